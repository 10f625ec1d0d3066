"""The smoke suite of a service in a form: which built-in questions it is asked, its own ones, and what it last answered."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.models import Job, Service
from ops import smoke_set
from tests.dashboard.pages import factory
from tests.dashboard.pages import service_data as ran
from tests.dashboard.pages.reading import form_with, text

PAGE = "/services/practice/kimi-k25/smoke/"
# As a person may write it into the record by hand, with more than the form shows
BY_HAND = {"name": "by-hand", "kind": "factual", "title": "By hand", "prompt": "\nQ\r\n[redacted]\a", "expect": "x", "timeout_s": 12.5}


@pytest.fixture
def visitor(member: Client) -> Client:
    """An operator: the suite is theirs to change."""
    return member


@pytest.fixture
def service(story: factory.Story) -> Service:
    found = Service.objects.get(name="kimi-k25")
    Service.objects.update(record={**found.record, "smoke_tests": [*ran.QUESTIONS, BY_HAND], "smoke_without": ["code"]})
    found.refresh_from_db()
    return found


def sent(visitor: Client, step: str = "save", **changed: Any) -> Any:
    fields = form_with(visitor.get(PAGE), "base")
    return visitor.post(PAGE, {**fields, **{name.replace("_of_", "-"): value for name, value in changed.items()}, "step": step})


def saved() -> dict[str, Any]:
    params: dict[str, Any] = Job.objects.get(type="smoke-set").params
    smoke_set.check(params["tests"], params["without"])
    return params


def test_a_suite_that_was_left_alone_is_not_saved(visitor: Client, service: Service) -> None:
    answer = sent(visitor)
    assert answer.status_code == 400 and "<p>Nothing was changed</p>" in answer.content.decode()


def test_a_built_in_question_is_left_out_and_own_ones_stay_as_they_are(visitor: Client, service: Service, redis_url: str) -> None:
    answer = sent(visitor, ask=["factual", "code", "reasoning"])
    assert answer.url == f"/jobs/{Job.objects.get().number}/"
    assert saved() == {"tests": [*ran.QUESTIONS, BY_HAND], "without": ["tool", "stream"],
                       "before": {"tests": [*ran.QUESTIONS, BY_HAND], "without": ["code"]}}


def test_a_question_is_added_another_edited_and_another_removed(visitor: Client, service: Service, redis_url: str) -> None:
    sent(visitor, q4_of_name="polite", q4_of_prompt="Say please.", q4_of_kind="matches", q4_of_expect="(?i)please", q4_of_max_tokens="64",
         q2_of_schema='{"type": "array"}', q1_of_remove="1")
    assert saved()["tests"] == [
        {**ran.QUESTIONS[1], "schema": {"type": "array"}}, BY_HAND,
        {"name": "polite", "kind": "matches", "prompt": "Say please.", "title": "polite", "expect": "(?i)please", "max_tokens": 64}]


@pytest.mark.parametrize(("changed", "said"), [
    ({"name": "Bad Name"}, "Lower-case letters"), ({"name": ""}, "Give it a name of its own"),
    ({"name": "finnish"}, "There is one of this name above"),
    ({"prompt": " "}, "Write what is asked"), ({"expect": ""}, "Say what the answer must hold"), ({"kind": "run-it"}, "Choose one of these"),
    ({"kind": "matches", "expect": "("}, "is no regular expression"), ({"max_tokens": "many"}, "A number"), ({"max_tokens": "0"}, "out of range"),
    ({"kind": "json", "schema": "{"}, "This is no JSON"), ({"kind": "json", "schema": "[1]"}, "wrong form"), ({"kind": "tool"}, "offers no tools"),
    ({"kind": "tool", "tools": '[{"type": "function"}]'}, "is none"), ({"prompt": "x" * 9000}, "longer than 8,000"),
])
def test_a_question_that_cannot_be_asked_is_told_at_its_field(visitor: Client, service: Service, changed: dict[str, str], said: str) -> None:
    new = {"name": "new", "prompt": "Q", "expect": "A", **changed}
    answer = sent(visitor, **{f"q4_of_{name}": value for name, value in new.items()})
    body = answer.content.decode()
    assert answer.status_code == 400 and said in body and "One question is not right" in body
    assert 'id="question-4" open' in body and not Job.objects.exists()


def test_a_suite_that_others_changed_meanwhile_is_not_overwritten(visitor: Client, service: Service) -> None:
    fields = form_with(visitor.get(PAGE), "base")
    Service.objects.update(record={**service.record, "smoke_without": []})
    assert "changed since this form was opened" in visitor.post(PAGE, {**fields, "step": "save"}).content.decode()


def test_room_for_more_questions_keeps_what_was_typed(visitor: Client, service: Service) -> None:
    page = sent(visitor, "more", q4_of_name="new", q4_of_prompt="Q")
    fields = form_with(page, "base")
    assert fields["q4-name"] == ["new"] and fields["count"] == ["7"] and page.status_code == 200


def test_the_last_answers_stand_beside_the_questions(visitor: Client, service: Service, story: factory.Story) -> None:
    job = story.job("smoke")
    for result in [*ran.SMOKE, {**ran.SMOKE[0], "name": "finnish", "answer": "Helsinki on pääkaupunki."}]:
        story.say(job, "smoke.result", **result)
    story.end(job, "failed", reason="1 of 4 failed")
    seen = text(visitor.get(PAGE))
    assert "Helsinki on pääkaupunki." in seen and f"In #{job.number}" in seen and "max_tokens 256 is too few" in seen
    assert "Left out by itself: started without --tool-call-parser" not in seen, "this service's flags are not known"


def test_an_empty_suite_says_what_an_own_question_is_for(visitor: Client, story: factory.Story) -> None:
    seen = text(visitor.get(PAGE))
    assert "None yet. What this service is for" in seen and "Not asked yet" in seen


@pytest.mark.parametrize("odd", ["text", [1, None, {"name": 5, "prompt": ["x"], "max_tokens": True, "schema": 3}], {"a": 1}])
def test_a_record_of_another_form_breaks_no_page(visitor: Client, service: Service, odd: Any) -> None:
    Service.objects.update(record={**service.record, "smoke_tests": odd, "smoke_without": odd})
    assert visitor.get(PAGE).status_code == 200
