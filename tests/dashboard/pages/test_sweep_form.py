"""The form of a sweep: what it says before the start, what it starts, and what it refuses in words."""

from __future__ import annotations

import html
import uuid
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from dashboard import sweep_forms
from dashboard.models import Job, Service
from dashboard.sweep_forms import SweepForm
from tests.dashboard.pages import factory
from tests.dashboard.pages.reading import text

FORM = "/services/practice/kimi-k25/sweep/"


def ask(service: Service, **given: Any) -> SweepForm:
    form = SweepForm({"preset": "story", **given}, service=service)
    form.is_valid()
    return form


def test_the_form_says_what_each_preset_takes_before_anything_starts(visitor: Client, story: factory.Story) -> None:
    seen = text(visitor.get(FORM))
    assert "What it takes" in seen
    assert seen.count(" requests") >= 4
    assert not Job.objects.filter(type="sweep").exists()


def test_a_sweep_is_started_once_however_often_the_button_is_pressed(member: Client, story: factory.Story) -> None:
    given = {"preset": "story", "levels": "1, 4", "max_tokens": "128", "repeats": "3", "step": "start", "idempotency_key": uuid.uuid4().hex}
    first, second = (member.post(FORM, given) for _ in range(2))
    assert first.status_code == 302
    assert first.url == second.url  # type: ignore[attr-defined]
    job = Job.objects.get(type="sweep")
    asked = job.params["sweep_settings"]
    assert (asked["concurrencies"], asked["max_tokens"], asked["repeats"]) == ([1, 4], 128, 3)


def test_rates_and_limits_make_an_open_loop(story: factory.Story) -> None:
    form = ask(story.the_service, load="open", levels="0.5; 1 2.25", slo_ttft_ms="500", slo_e2e_s="20", max_in_flight="64")
    assert form.settings is not None
    assert (form.settings.load, form.settings.rates, form.settings.concurrencies) == ("open", [0.5, 1, 2.25], [])
    assert (form.settings.slos, form.settings.max_in_flight) == ({"ttft_ms": 500, "e2e_s": 20}, 64)


@pytest.mark.parametrize("given", [
    {"preset": "quick"}, {"preset": "story", "levels": "1, 4", "max_tokens": "128", "repeats": "3", "requests": "40", "temperature": "0.6",
     "endpoint_kind": "completions"},
    {"preset": "custom", "load": "open", "levels": "0.5, 2.25", "slo_ttft_ms": "500", "slo_e2e_s": "20", "max_in_flight": "64", "burst": "on"},
    {"preset": "latency", "output_mode": "fixed", "prompt_tokens": "1000", "order": "shuffled", "reasoning": "off"},
], ids=lambda given: given["preset"])
def test_a_sweep_asked_for_again_asks_for_the_same(visitor: Client, member: Client, story: factory.Story, given: dict[str, str]) -> None:
    member.post(FORM, {**given, "step": "start", "idempotency_key": uuid.uuid4().hex})
    job = Job.objects.get(type="sweep")
    fields = sweep_forms.again(story.the_service, job.params)
    same = SweepForm(fields, service=story.the_service)
    assert same.is_valid(), same.errors
    assert same.settings is not None
    told = same.settings.as_dict()
    assert {name: told[name] for name in job.params["sweep_settings"] if name != "seed"} == {
        name: value for name, value in job.params["sweep_settings"].items() if name != "seed"}
    Job.objects.filter(pk=job.pk).update(state="succeeded")
    assert f"{FORM}?{html.escape(urlencode(fields))}" in member.get(f"/jobs/{job.number}/").content.decode()


def test_nothing_is_asked_again_of_params_that_are_none(story: factory.Story) -> None:
    for params in ({}, None, {"preset": "gone", "sweep_settings": {}}, {"preset": "quick", "sweep_settings": {"nonsense": 1}}):
        assert sweep_forms.again(story.the_service, params) == {}


@pytest.mark.parametrize(("given", "words"), [
    ({"levels": "1, eight"}, "give numbers"), ({"levels": "1.5"}, "whole number"), ({"levels": "0"}, "Concurrency 0"),
    ({"levels": ",".join("1" * 17)}, "at most 16"), ({"levels": "1..2"}, "give numbers"), ({"load": "open"}, "Which levels?"),
    ({"levels": "8, 8"}, "only once"), ({"max_tokens": "0"}, "max_tokens"), ({"repeats": "13"}, "repeats"), ({"preset": "huge"}, "preset"),
    ({"slo_ttft_ms": "nan"}, "slo_ttft_ms"), ({"level_seconds": "inf"}, "level_seconds"), ({"levels": "99999999999999999999"}, "outside"),
    ({"repeats": "12", "level_seconds": "3600"}, "minutes"),
], ids=lambda value: "-".join(value) if isinstance(value, dict) else "")
def test_what_cannot_be_is_said_at_the_form(visitor: Client, story: factory.Story, given: dict[str, str], words: str) -> None:
    response = visitor.post(FORM, {"preset": "story", "step": "start", **given})
    assert response.status_code == 400
    assert words in html.unescape(response.content.decode())
    assert not Job.objects.filter(type="sweep").exists()


def test_the_size_is_worked_out_anew_for_what_is_typed(visitor: Client, story: factory.Story) -> None:
    sizes = [text(visitor.get(FORM, {"preset": "story", "levels": "1", "requests": "20", "repeats": repeats}, HTTP_X_ROUNDHOUSE_FRAGMENT="size"))
             for repeats in ("1", "3")]
    assert "22 " in sizes[0]
    assert "66 " in sizes[1]
    assert "three or more" in sizes[0] or "3 or more" in sizes[0]


def test_a_reasoning_model_gets_more_tokens_proposed(visitor: Client, story: factory.Story) -> None:
    assert sweep_forms.proposed_tokens(story.the_service, 64) == 512
    assert sweep_forms.proposed_tokens(story.the_service, 512) is None
    assert "512 are proposed" in text(visitor.get(FORM, {"preset": "quick"}, HTTP_X_ROUNDHOUSE_FRAGMENT="size"))
    run, = story.measured()
    level = run.levels.get(value=8)
    level.metrics["marks"] = ["reasoning only"]
    level.save()
    assert sweep_forms.proposed_tokens(story.the_service, 512) == 1024


def test_the_completions_endpoint_is_warned_of(story: factory.Story) -> None:
    assert any("hides" in words for words in sweep_forms.warnings(ask(story.the_service, endpoint_kind="completions")))


def test_levels_that_are_never_full_are_warned_of(story: factory.Story) -> None:
    assert any("concurrency 8 has 4 requests" in words for words in sweep_forms.warnings(ask(story.the_service, levels="1, 8", requests="4")))
    assert not any("Never full" in words for words in sweep_forms.warnings(ask(story.the_service, levels="1, 4", requests="4")))


def test_without_a_script_the_button_shows_the_size_and_keeps_what_was_typed(visitor: Client, story: factory.Story) -> None:
    response = visitor.post(FORM, {"preset": "story", "step": "size", "levels": "3, 5"})
    assert response.status_code == 200
    assert 'value="3, 5"' in response.content.decode()


def test_with_one_service_a_new_sweep_leads_to_its_form_and_with_more_to_a_choice(visitor: Client, story: factory.Story) -> None:
    assert visitor.get("/benchmarks/new/").url == FORM  # type: ignore[attr-defined]
    Service.objects.create(node=story.the_node, name="glm-5", record=story.the_service.record, practice=True)
    assert "Sweep glm-5…" in text(visitor.get("/benchmarks/new/"))
