"""Adopting a unit from the pages: who may, what is asked, what is shown of it, and what the button starts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.models import AuditEntry, Job, Node, Service
from ops.jobs.errors import BadInput
from ops.jobs.events import EventType, JobState
from ops.records import ServiceRecord
from tests.dashboard.pages import environment_data as said
from tests.dashboard.pages import factory
from tests.dashboard.pages.reading import text

FORM = "/nodes/gpu01/adopt/"


@pytest.fixture
def story(story: factory.Story) -> factory.Story:
    story.real_node()
    return story


def apply_path(job: Job) -> str:
    return f"/jobs/{job.number}/adopt/"


# ---- the form ----


def test_an_admin_has_a_unit_read(visitor: Client, story: factory.Story, redis_url: str) -> None:
    assert f'action="{FORM}"' in visitor.get("/nodes/gpu01/").content.decode()
    answer = visitor.post(FORM, {"unit": " vllm@kimi ", "name": "kimi", "environment": "/opt/v llm", "in_place": "on", "manager": "process"})
    job = Job.objects.get()
    assert answer.url == f"/jobs/{job.number}/"
    assert (job.type, job.service, job.practice, list(job.locks.all())) == ("adopt", None, False, [])
    assert job.params == {"unit": "vllm@kimi", "name": "kimi", "environment": "/opt/v llm", "in_place": True, "manager": "process"}
    assert "Read unit vllm@kimi" in text(visitor.get(f"/jobs/{job.number}/"))
    assert AuditEntry.objects.get(action="job.adopt").subject == f"#{job.number} gpu01"


def test_pressing_twice_reads_once(visitor: Client, story: factory.Story, redis_url: str) -> None:
    first, second = (visitor.post(FORM, {"unit": "vllm", "idempotency_key": "a" * 32}).url for _ in range(2))
    assert first == second and Job.objects.count() == 1


@pytest.mark.parametrize("field", [
    {"unit": ""}, {"unit": "../vllm"}, {"unit": "/etc/systemd/system/a.service"}, {"unit": "-a"}, {"unit": "a b"}, {"unit": "a;b"}, {"unit": "$(id)"},
    {"unit": "a\nb"}, {"unit": "a@b@c"}, {"unit": "x" * 401}, {"unit": "vllm", "name": "../a"}, {"unit": "vllm", "name": "A"},
    {"unit": "vllm", "environment": "opt/a"}, {"unit": "vllm", "environment": "/a\nb"}, {"unit": "vllm", "manager": "docker"},
    {"unit": "vllm", "idempotency_key": "no"}])
def test_what_cannot_be_is_told_beside_its_field_and_starts_nothing(visitor: Client, story: factory.Story, field: dict[str, str]) -> None:
    answer = visitor.post(FORM, field)
    assert answer.status_code == 400 and not Job.objects.exists()
    body = answer.content.decode()
    assert 'aria-invalid="true"' in body or "form is not ours" in body or field.get("manager")


def test_a_template_is_no_unit(visitor: Client, story: factory.Story) -> None:
    answer = visitor.post(FORM, {"unit": "vllm@"})
    assert answer.status_code == 400 and "is a template" in answer.content.decode() and not Job.objects.exists()


def test_only_an_admin_may(member: Client, story: factory.Story) -> None:
    assert FORM not in member.get("/nodes/gpu01/").content.decode()
    job = story.adoption_job()
    assert member.get(FORM).status_code == member.post(FORM, {"unit": "vllm"}).status_code == 403
    assert member.post(apply_path(job), {"hash": "a" * 64}).status_code == 403
    page = member.get(f"/jobs/{job.number}/")
    assert "can become service glm-5" in text(page) and "/adopt/" not in page.content.decode()
    assert Job.objects.count() == 1


def test_a_page_without_its_token_is_refused(story: factory.Story, admin: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin)
    job = story.adoption_job()
    for path, given in ((FORM, {"unit": "vllm"}), (apply_path(job), {"hash": "a" * 64})):
        assert client.post(path, given).status_code == 403
    assert Job.objects.count() == 1


def test_a_practice_node_says_why_not(visitor: Client, story: factory.Story) -> None:
    for path in ("/nodes/practice/", "/nodes/practice/adopt/"):
        seen = text(visitor.get(path))
        assert "practice adopts no unit" in seen and "never mixes with real services" in seen
    answer = visitor.post("/nodes/practice/adopt/", {"unit": "vllm"})
    assert answer.status_code == 400 and "is a practice node" in answer.content.decode() and not Job.objects.exists()


def test_a_console_without_a_service_offers_it_where_there_is_a_real_node(visitor: Client, member: Client, admin: User) -> None:
    assert "needs a real node" in text(visitor.get("/services/"))
    factory.Story().real_node()
    Node.objects.create(name="gpu02")
    page = visitor.get("/services/")
    assert f'action="{FORM}"' in page.content.decode() and 'href="/nodes/gpu02/adopt/"' in page.content.decode()
    assert "is adopted by an admin, unchanged" in text(member.get("/services/"))


# ---- what was read ----


def test_the_page_shows_record_findings_and_drop_in_and_one_button(visitor: Client, story: factory.Story) -> None:
    job = story.adoption_job()
    page = visitor.get(f"/jobs/{job.number}/")
    seen, body = text(page), page.content.decode()
    for words in ("vllm.service can become service glm-5", "HF_TOKEN stands in the unit in clear text", "Move it into a file of mode 0600",
                  "Environment /opt/vllm", "HF_TOKEN=[redacted]", "/etc/vllm.env (may be missing)", "2 checks are fine",
                  "ExecStart=/usr/bin/numactl --interleave=all", "systemctl daemon-reload", "ops adopt --unit vllm.service --apply --install"):
        assert words in seen, words
    assert body.count("btn-primary") == 1 and f'action="{apply_path(job)}"' in body and f'value="{"a" * 64}"' in body
    assert "can become service glm-5" in text(visitor.get("/jobs/"))


def test_what_forbids_it_leaves_no_button(visitor: Client, story: factory.Story) -> None:
    for shape, words in (({"stops": True}, "1 finding forbids it"), ({"lines": True}, 'units = ["vllm.service"]')):
        job = story.adoption_job(**shape)
        page = visitor.get(f"/jobs/{job.number}/")
        assert words in text(page).replace("&quot;", '"') and apply_path(job) not in page.content.decode()
        assert "Read it again" in text(page)
        answer = visitor.post(apply_path(job), {"hash": "a" * 64})
        assert answer.status_code == 400 and not Job.objects.filter(type="adopt-apply").exists()


def test_reading_again_asks_the_same(visitor: Client, story: factory.Story, redis_url: str) -> None:
    job = story.adoption_job(told={**said.adoption(), "asked": {"unit": "vllm", "name": "glm-5", "environment": "/opt/x", "in_place": True,
                                                                "manager": "process"}})
    body = visitor.get(f"/jobs/{job.number}/").content.decode()
    form = body[body.index(f'action="{FORM}"'):].split("</form>")[0]
    given = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
    visitor.post(FORM, {name: value for name, value in given.items() if name != "csrfmiddlewaretoken"})
    assert Job.objects.exclude(pk=job.pk).get().params == job.params


def test_the_button_starts_a_job_with_what_was_looked_at(visitor: Client, story: factory.Story, redis_url: str) -> None:
    read = story.adoption_job()
    first, second = (visitor.post(apply_path(read), {"hash": "a" * 64, "idempotency_key": "b" * 32}).url for _ in range(2))
    job = Job.objects.get(type="adopt-apply")
    assert first == second == f"/jobs/{job.number}/"
    assert [lock.lock for lock in job.locks.all()] == ["service:glm-5"]
    assert job.params == {"unit": "vllm", "name": "glm-5", "environment": "", "in_place": False, "manager": "systemd", "hash": "a" * 64,
                          "record": said.ADOPTED, "drop_in": said.DROP_IN, "read_job": str(read.pk)}
    assert AuditEntry.objects.filter(action="job.adopt-apply").count() == 1


@pytest.mark.parametrize("given", [{}, {"hash": ""}, {"hash": "b" * 64}, {"hash": "A" * 64}, {"hash": "a" * 65}, {"hash": "a" * 64 + "\n1"}])
def test_another_hash_than_the_one_on_the_page_starts_nothing(visitor: Client, story: factory.Story, given: dict[str, str]) -> None:
    assert visitor.post(apply_path(story.adoption_job()), given).status_code == 400
    assert not Job.objects.filter(type="adopt-apply").exists()


def test_only_a_unit_that_was_read_to_the_end_is_adopted(visitor: Client, story: factory.Story) -> None:
    failed = story.adoption_job(error={"kind": "bad_input", "what": "There is no unit `vllm.service`", "why": "Looked in /etc", "hint": "",
                                       "facts": {}})
    assert "There is no unit vllm.service" in text(visitor.get(f"/jobs/{failed.number}/"))
    for job in (failed, story.adoption_job("adopt-apply", stored=True), story.plan_job()):
        assert visitor.post(apply_path(job), {"hash": "a" * 64}).status_code == 400
    assert visitor.post("/jobs/99999/adopt/", {"hash": "a" * 64}).status_code == 404
    assert visitor.get(apply_path(failed)).status_code == 405


def test_after_it_the_page_says_what_is_left_to_do_and_where_the_service_is(visitor: Client, story: factory.Story) -> None:
    job = story.adoption_job("adopt-apply", stored=True)
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "vllm.service is service glm-5" in seen and "within half a minute" in seen and "What is left to do" in seen
    Service.objects.create(node=story.real, name="glm-5", record=ServiceRecord.from_dict(said.ADOPTED).as_dict())
    assert 'href="/services/gpu01/glm-5/"' in visitor.get(f"/jobs/{job.number}/").content.decode()
    process = story.adoption_job("adopt-apply", stored=True, process=True)
    seen = text(visitor.get(f"/jobs/{process.number}/"))
    assert "systemctl disable --now vllm.service" in seen and "daemon-reload" not in seen


def test_a_unit_that_changed_meanwhile_is_told_with_what_differs(visitor: Client, admin: User) -> None:
    factory.adopting()
    job = Job.objects.get(type="adopt-apply", state=JobState.FAILED)
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "is not what was looked at any more" in seen and "http://127.0.0.1:8001" in seen and "Read it again" in seen


@pytest.mark.parametrize("odd", [
    {"record": {"name": 7, "flags": "x", "env": [], "gpus": None}, "findings": "x", "node_toml": 3, "drop_in": [], "files": {}},
    {"record": {}, "findings": [None, {"level": [], "title": 3}], "node_toml": [None], "drop_in": {"text": 1}, "hash": 5, "stored": True}])
def test_what_a_node_says_wrongly_is_left_out(visitor: Client, story: factory.Story, odd: dict[str, Any]) -> None:
    job = story.adoption_job(told={**said.adoption(), **odd})
    assert visitor.get(f"/jobs/{job.number}/").status_code == 200
    assert visitor.get("/jobs/").status_code == 200
    assert visitor.post(apply_path(job), {"hash": "a" * 64}).status_code == 400


def test_a_record_that_is_none_or_endless_is_not_kept(story: factory.Story) -> None:
    job = story.job("adopt", steps=(("read", "Read", False),), of=story.real)
    for record in ("x", {"flags": ["y" * 200_000]}):
        story.say(job, EventType.ADOPTION, **{**said.adoption(), "record": record})
    story.end(job)
    assert "adoption" not in Job.objects.get(pk=job.pk).result


def test_text_of_a_unit_is_text(visitor: Client, story: factory.Story) -> None:
    told = said.adoption()
    told["findings"][0]["title"] = "<script>alert(1)</script>"
    told["record"] = {**told["record"], "flags": ['--x="><img src=x>'], "env": {"A": "<b>"}}
    told["drop_in"] = {**told["drop_in"], "text": "</pre><script>", "hidden": True}
    body = visitor.get(f"/jobs/{story.adoption_job(told=told).number}/").content.decode()
    assert "<script>alert" not in body and "<img src=x" not in body and "</pre><script>" not in body
    assert "Something secret stands in front" in body


def test_these_pages_hold_no_inline_style_and_no_inline_script(visitor: Client, admin: User) -> None:
    factory.adopting()
    for path in (FORM, "/nodes/gpu01/", "/nodes/practice/", *(f"/jobs/{job.number}/" for job in Job.objects.all())):
        body = visitor.get(path).content.decode()
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:", body), path
        assert not re.search(r"<script(?![^>]*(?:src=|type=\"application/json\"))", body), path


def test_the_order_itself_is_held_to_the_same_limits(story: factory.Story, admin: User) -> None:
    from dashboard import dispatch

    for unit in ("", "../a", "-a", "vllm@"):
        with pytest.raises(BadInput):
            dispatch.start_adopt(node=story.real, unit=unit, user=admin)
    assert not Job.objects.exists()
