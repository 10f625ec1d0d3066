"""Guards set from the pages: what is asked, what the list is after it, and the job that stores it."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard import dispatch, guard_forms
from dashboard.models import AuditEntry, Job, Service
from ops.jobs.errors import BadInput
from tests.dashboard.pages import environment_data as said
from tests.dashboard.pages import factory
from tests.dashboard.pages.reading import text

SERVICE = "/services/practice/kimi-k25/"
PAGE = f"{SERVICE}guards/"
OWN = [result["guard"] for result in said.guards(holding=True)]
MARK = guard_forms.mark(OWN)
BY_HAND = {"kind": "key_equals", "file": "config.json", "at": "num_hidden_layers", "value": "61"}


@pytest.fixture
def visitor(member: Client) -> Client:
    """An operator: guards are theirs to set."""
    return member


@pytest.fixture
def story(story: factory.Story) -> factory.Story:
    story.environment()
    return story


def answer_of(page: Any) -> dict[str, str]:
    """What the question's form sends back."""
    body = page.content.decode()
    form = body[body.index('class="confirm"'):].split("</form>")[0]
    return {name: value for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form) if name != "csrfmiddlewaretoken"}


def test_the_page_of_the_service_offers_to_add_and_to_remove(visitor: Client, story: factory.Story) -> None:
    body = visitor.get(SERVICE).content.decode()
    for n in range(3):
        assert f"{PAGE}?remove={n}&amp;base={MARK}" in body
    assert f"{PAGE}?preset=sm120" in body and f"{PAGE}?preset=complete" in body and f'action="{PAGE}"' in body


def test_a_guard_that_no_look_has_found_yet_is_shown(visitor: Client, story: factory.Story) -> None:
    new = {"kind": "file_present", "file": "tokenizer.json", "key": "", "value": None}
    Service.objects.update(record={**story.the_service.record, "guards": [new, *OWN]})
    seen = text(visitor.get(SERVICE))
    assert "tokenizer.json is there Not checked yet" in seen and "3 of 3 hold" in seen


def test_adding_a_preset_says_the_list_after_it_and_leaves_the_rest_to_the_node(visitor: Client, story: factory.Story, redis_url: str) -> None:
    page = visitor.get(f"{PAGE}?preset=sm120")
    seen = text(page)
    assert "Add guards to kimi-k25: No FP8 KV cache (SM120)?" in seen and "All shards that model.safetensors.index.json names are whole" in seen
    assert seen.count("quantization_config.kv_cache_quant_algo is not in config.json") == 1, "the one that it does not have yet"
    assert "those of the preset that fit the files in its model folder" in seen and "goes on serving" in seen
    answer = visitor.post(PAGE, answer_of(page))
    job = Job.objects.get()
    assert answer.url == f"/jobs/{job.number}/"
    assert (job.type, job.params) == ("guards-set", {"guards": [*OWN, {"preset": "sm120"}], "before": OWN})
    assert [lock.lock for lock in job.locks.all()] == ["service:kimi-k25"]
    assert AuditEntry.objects.get(action="job.guards-set").by.username == "olga"
    assert "Set guards of kimi-k25" in text(visitor.get(f"/jobs/{job.number}/"))


def test_removing_one_says_which(visitor: Client, story: factory.Story, redis_url: str) -> None:
    page = visitor.get(f"{PAGE}?remove=1&base={MARK}", headers={"X-Roundhouse-Fragment": "dialog"})
    assert "<html" not in page.content.decode()
    assert "<s><span class=\"mono\">quantization.kv_cache_quant_algo</span>" in page.content.decode()
    visitor.post(PAGE, answer_of(page))
    assert Job.objects.get().params == {"guards": [OWN[0], OWN[2]], "before": OWN}


def test_removing_the_last_one_says_what_follows(visitor: Client, story: factory.Story) -> None:
    Service.objects.update(record={**story.the_service.record, "guards": OWN[:1]})
    assert "None is left" in text(visitor.get(f"{PAGE}?remove=0"))


@pytest.mark.parametrize(("given", "guard"), [
    (BY_HAND, {"kind": "key_equals", "file": "config.json", "key": "num_hidden_layers", "value": 61}),
    ({**BY_HAND, "value": "FP8"}, {"kind": "key_equals", "file": "config.json", "key": "num_hidden_layers", "value": "FP8"}),
    ({**BY_HAND, "value": '"61"'}, {"kind": "key_equals", "file": "config.json", "key": "num_hidden_layers", "value": "61"}),
    ({**BY_HAND, "value": "null"}, {"kind": "key_equals", "file": "config.json", "key": "num_hidden_layers", "value": None}),
    ({**BY_HAND, "value": "NaN"}, {"kind": "key_equals", "file": "config.json", "key": "num_hidden_layers", "value": "NaN"}),
    ({**BY_HAND, "value": "[" * 3000}, {"kind": "key_equals", "file": "config.json", "key": "num_hidden_layers", "value": "[" * 3000}),
    ({"kind": "file_present", "file": " a b.json ", "at": "left out", "value": "1"}, {"kind": "file_present", "file": "a b.json", "key": "",
                                                                                     "value": None}),
    ({"kind": "file_hash", "file": "m.bin", "value": "A" * 64}, {"kind": "file_hash", "file": "m.bin", "key": "", "value": "a" * 64}),
    ({"kind": "not_lfs_pointer", "file": "*.safetensors"}, {"kind": "not_lfs_pointer", "file": "*.safetensors", "key": "", "value": None})])
def test_one_by_hand_is_asked_back_and_set(
        visitor: Client, story: factory.Story, redis_url: str, given: dict[str, str], guard: dict[str, Any]) -> None:
    page = visitor.get(f"{PAGE}?{urlencode(given)}")
    assert "Add a guard to kimi-k25?" in text(page)
    visitor.post(PAGE, {name: html.unescape(value) for name, value in answer_of(page).items()})
    assert Job.objects.get().params["guards"] == [*OWN, guard]


@pytest.mark.parametrize("given", [
    {"kind": "key_absent", "file": "", "at": "a"}, {"kind": "key_absent", "file": "config.json"}, {"kind": "file_hash", "file": "a", "value": "x"},
    {"kind": "file_present", "file": "../../etc/passwd"}, {"kind": "file_present", "file": "/etc/passwd"},
    {"kind": "file_present", "file": "a\u202eb"}, {"kind": "run", "file": "a"}, {"kind": "file_present", "file": "x" * 1001},
    {**BY_HAND, "value": "y" * 4001}, {"preset": "nothing"}, {"remove": "3"}, {"remove": "-1"}, {"remove": "x"},
    {"preset": "sm120", "remove": "0"}, {"preset": "sm120", "base": "0" * 16}, {"remove": "0", "base": "no"},
    {"kind": "key_absent", "file": OWN[0]["file"], "at": OWN[0]["key"]}])
def test_what_cannot_be_is_told_and_starts_nothing(visitor: Client, story: factory.Story, given: dict[str, str]) -> None:
    page = visitor.get(f"{PAGE}?{urlencode(given)}")
    assert page.status_code == 400 and ('role="alert"' in page.content.decode() or 'aria-invalid="true"' in page.content.decode())
    assert visitor.post(PAGE, {"base": MARK, **given}).status_code == 400
    assert not Job.objects.exists()


def test_an_answer_about_another_list_than_the_one_that_is_there_is_refused(visitor: Client, story: factory.Story) -> None:
    given = answer_of(visitor.get(f"{PAGE}?remove=0"))
    Service.objects.update(record={**story.the_service.record, "guards": OWN[1:]})
    answer = visitor.post(PAGE, given)
    assert answer.status_code == 400 and "were changed since" in answer.content.decode()
    assert visitor.post(PAGE, {"remove": "0"}).status_code == 400, "an answer always says which list it is about"
    assert not Job.objects.exists()


def test_more_than_a_hundred_are_refused(visitor: Client, story: factory.Story) -> None:
    many = [{"kind": "file_present", "file": f"{n}.json", "key": "", "value": None} for n in range(100)]
    Service.objects.update(record={**story.the_service.record, "guards": many})
    assert visitor.get(f"{PAGE}?{urlencode(BY_HAND)}").status_code == 400
    assert visitor.get(f"{PAGE}?remove=99").status_code == 200
    assert "and 79 more that stay" in text(visitor.get(f"{PAGE}?remove=99"))


def test_without_a_question_the_page_is_the_form(visitor: Client, story: factory.Story) -> None:
    page = visitor.get(PAGE)
    assert "Change the guards of kimi-k25" in text(page) and "The download is complete" in text(page)
    assert "role=\"alert\"" not in page.content.decode()
    assert visitor.get("/services/practice/other/guards/").status_code == 404
    assert Client().get(PAGE).status_code == 302


def test_pressing_twice_sets_once(visitor: Client, story: factory.Story, redis_url: str) -> None:
    given = answer_of(visitor.get(f"{PAGE}?remove=0"))
    assert len({visitor.post(PAGE, given).url for _ in range(2)}) == 1 and Job.objects.count() == 1


def test_a_page_without_its_token_is_refused(story: factory.Story, operator: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)
    assert client.post(PAGE, {"remove": "0", "base": MARK}).status_code == 403 and not Job.objects.exists()


def test_the_order_itself_takes_no_guard_that_is_none(story: factory.Story, admin: User) -> None:
    for wanted in ([{"kind": "file_present", "file": "../x"}], [{"preset": "x"}], [{"kind": "x"}], [{}],
                   [{"kind": "file_present", "file": f"{n}"} for n in range(101)]):
        with pytest.raises(BadInput):
            dispatch.start_guards_set(service=story.the_service, guards=wanted, user=admin)
    assert not Job.objects.exists()


@pytest.mark.parametrize("odd", [None, "x", [3, None, "a"], [{}], [{"kind": 3, "file": None}]])
def test_a_list_that_a_node_tells_wrongly_is_left_out(visitor: Client, story: factory.Story, odd: Any) -> None:
    Service.objects.update(record={**story.the_service.record, "guards": odd})
    for path in (SERVICE, PAGE, f"{PAGE}?preset=sm120"):
        assert visitor.get(path).status_code == 200, path


def test_what_somebody_typed_is_text(visitor: Client, story: factory.Story) -> None:
    given = {"kind": "key_equals", "file": "<script>a", "at": "<img src=x>", "value": '"><b>'}
    for query in (given, {**given, "at": ""}):
        body = visitor.get(f"{PAGE}?{urlencode(query)}").content.decode()
        assert "<script>a" not in body and "<img src=x" not in body and '"><b>' not in body
