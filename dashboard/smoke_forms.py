"""The smoke suite of a service as a form: which built-in questions it is asked, and its own ones. Saved as a whole by a job of its node."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.http import QueryDict

from dashboard import dispatch, launch_forms
from dashboard.environment_story import listed, text, told
from dashboard.forms import KeyedForm
from dashboard.middleware import visible
from dashboard.models import Job, Service
from ops import smoke_set
from ops.jobs.errors import BadInput
from ops.jobs.events import FINAL_STATES
from ops.records import NAME
from ops.services import safe_match, smoke

KINDS = {
    "factual": "a fact: the answer names it", "contains": "the answer contains each line, as written", "matches": "the answer matches a pattern",
    "json": "the answer is JSON", "code": "a Python function that parses", "reasoning": "reasoning and an answer, apart",
    "tool": "a well-formed tool call", "stream": "streamed it is the same answer",
}
FIELDS = ("name", "title", "kind", "prompt", "expect", "max_tokens", "timeout_s", "system", "function", "schema", "tools")
DEFAULTS = {"kind": "factual", "max_tokens": "1024", "timeout_s": "180"}
RESULTS_OF = ("smoke", "start", "restart", "redeploy", "rollback")
JOBS_LOOKED_AT = 40
_TOOLS = json.dumps([smoke.WEATHER_TOOL], indent=1)


@dataclass
class Question:
    """One own question in the form. `was`: its place in the list that the person saw, None for a new one; `values` and `problems` by field."""

    number: int  # in the page, from 1
    was: int | None
    values: dict[str, str]
    remove: bool = False
    problems: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] | None = None

    @property
    def empty(self) -> bool:
        return self.was is None and not any(self.values[name].strip() for name in ("name", "title", "prompt", "expect"))


def mark(suite: dict[str, Any]) -> str:
    """Names a suite, so that a form and its answer are about the same one."""
    return hashlib.sha256(json.dumps(suite, sort_keys=True).encode()).hexdigest()[:16]


def values_of(raw: Any) -> dict[str, str]:
    """A question's fields as texts of the form, whatever form it has."""
    raw = told(raw)
    values = dict.fromkeys(FIELDS, "") | DEFAULTS
    for name in FIELDS:
        value = raw.get(name)
        if name in ("schema", "tools"):
            values[name] = json.dumps(value, indent=1, ensure_ascii=False) if value else ""
        elif isinstance(value, bool) or value is None:
            continue
        elif isinstance(value, float):
            values[name] = f"{value:g}"
        else:
            values[name] = str(value)
    return {name: _as_sent(value) for name, value in values.items()}


def last_results(service: Service) -> dict[str, dict[str, Any]]:
    """By name of the question, what came back when it was last asked: the data of `smoke.result`, and `job`."""
    found: dict[str, dict[str, Any]] = {}
    for job in Job.objects.filter(service=service, type__in=RESULTS_OF, state__in=FINAL_STATES).defer("params")[:JOBS_LOOKED_AT]:
        for result in listed(told(job.result).get("smoke")):
            if name := text(result.get("name")):
                found.setdefault(name, {**result, "job": job})
    return found


class SuiteForm(KeyedForm):
    """Fields beside the declared ones: `ask` (names of built-in questions that are asked), and of each own question `q1-name`, `q1-prompt`, ...,
    `q1-was` and `q1-remove`."""

    base = forms.RegexField(r"\A[0-9a-f]{16}\Z")
    count = forms.IntegerField(min_value=0, max_value=smoke_set.TESTS_MAX * 2)

    def __init__(self, data: QueryDict | None = None, *, service: Service) -> None:
        super().__init__(data)
        self.sent = data if data is not None else QueryDict()
        self.service = service
        self.suite = dispatch.smoke_suite(service)
        self.known = [raw for raw in self.suite["tests"] if isinstance(raw, dict)] if isinstance(self.suite["tests"], list) else []
        self.left_out = {str(name) for name in self.suite["without"]} if isinstance(self.suite["without"], list) else set()
        self.results = last_results(service)
        self.questions = self._questions()
        self.asked = {test.name for test in smoke.SUITE if test.name not in self.left_out} if not self.is_bound else set(self.sent.getlist("ask"))

    def _questions(self) -> list[Question]:
        if not self.is_bound:
            made = [Question(n, n - 1, values_of(raw)) for n, raw in enumerate(self.known, start=1)]
        else:
            given = self.sent.get("count", "")
            made = [self._question(n) for n in range(1, min(int(given) if given.isdigit() and len(given) < 4 else 0, smoke_set.TESTS_MAX * 2) + 1)]
        for question in made:
            question.result = self.results.get(question.values["name"])
        return made

    def _question(self, number: int) -> Question:
        was = self.sent.get(f"q{number}-was", "")
        place = int(was) if was.isdigit() and len(was) < 4 and int(was) < len(self.known) else None
        values = {name: _as_sent(self.sent.get(f"q{number}-{name}", "")) for name in FIELDS}
        return Question(number, place, {**values, "name": values["name"].strip()}, remove=bool(self.sent.get(f"q{number}-remove")))

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.errors:
            return cleaned
        if cleaned["base"] != mark(self.suite):
            raise forms.ValidationError("The questions were changed since this form was opened. Open it again, and change them as they are now")
        self.tests: list[dict[str, Any]] = []
        names: set[str] = set()
        for question in self.questions:
            if question.remove or question.empty:
                continue
            raw = self.known[question.was] if question.was is not None else None
            made = raw if raw is not None and values_of(raw) == question.values else _made(question)
            if made is None:
                continue
            if question.values["name"] in names:
                question.problems["name"] = "There is one of this name above"
            names.add(question.values["name"])
            self.tests.append(made)
        self.without = [test.name for test in smoke.SUITE if test.name not in self.asked]
        if wrong := sum(1 for question in self.questions if question.problems):
            raise forms.ValidationError("One question is not right" if wrong == 1 else f"{wrong} questions are not right")
        try:
            smoke_set.check(self.tests, self.without)
        except BadInput as error:
            raise forms.ValidationError(_words(error)) from error
        if self.tests == self.known and set(self.without) == self.left_out:
            raise forms.ValidationError("Nothing was changed")
        return cleaned

    def shown(self, *, more: bool = False) -> dict[str, Any]:
        """For the template: the built-in questions, the own ones, and empty ones to fill."""
        own = {question.values["name"] for question in self.questions if not question.remove}
        record = launch_forms.shown_record(self.service)
        spared = {one.name: one.summary for one in smoke.applicable(smoke.SUITE, record)[1]} if record is not None else {}
        built_in = [{"test": test, "asked": test.name in self.asked, "result": self.results.get(test.name), "why_not": spared.get(test.name, ""),
                     "replaced": test.name in own} for test in smoke.SUITE]
        questions = [question for question in self.questions if not (question.empty and not question.problems)]
        room = smoke_set.TESTS_MAX - len(questions)
        empty = [Question(0, None, dict.fromkeys(FIELDS, "") | DEFAULTS) for _ in range(min(3 if more else 1, room))]
        for number, question in enumerate([*questions, *empty], start=1):
            question.number = number
        return {"base": self.sent.get("base", "") if self.is_bound else mark(self.suite), "built_in": built_in, "questions": questions,
                "empty": empty, "count": len(questions) + len(empty), "kinds": KINDS.items(), "tools": _TOOLS}

    def start(self, user: User) -> Job:
        """The job that stores the suite. Raises what `dashboard/dispatch.py` raises."""
        return dispatch.start_smoke_set(service=self.service, user=user, tests=self.tests, without=self.without, before=self.suite,
                                        idempotency_key=self.key())


def _made(question: Question) -> dict[str, Any] | None:
    """The question as a record holds it, without what is left as usual. None, and `problems`, for one that cannot be asked."""
    values, problems = question.values, question.problems
    made: dict[str, Any] = {name: values[name] for name in ("name", "kind", "prompt")} | {"title": values["title"].strip() or values["name"]}
    if not NAME.match(values["name"]):
        problems["name"] = "Lower-case letters, digits, dot, dash, underscore" if values["name"] else "Give it a name of its own"
    if values["kind"] not in KINDS:
        problems["kind"] = "Choose one of these"
    if not values["prompt"].strip():
        problems["prompt"] = "Write what is asked"
    if values["kind"] in ("factual", "contains", "matches") and not values["expect"].strip():
        problems["expect"] = "Say what the answer must hold"
    if values["kind"] == "matches" and values["expect"].strip():
        try:
            safe_match.check(values["expect"])
        except BadInput as error:
            problems["expect"] = _words(error)
    for name, form in (("max_tokens", int), ("timeout_s", float)):
        typed = values[name].strip() or DEFAULTS[name]
        try:
            number = form(typed)
        except ValueError:
            problems[name] = "A number"
            continue
        if number != form(DEFAULTS[name]):
            made[name] = number
    for name in ("schema", "tools"):
        if values[name].strip():
            try:
                made[name] = json.loads(values[name], parse_constant=_none)
            except (ValueError, RecursionError) as error:
                problems[name] = f"This is no JSON: {str(error)[:120]}"
    made |= {name: values[name] for name in ("expect", "system", "function") if values[name].strip()}
    if problems:
        return None
    try:
        smoke.SmokeTest.from_dict(made)
    except BadInput as error:
        problems["schema" if "`schema`" in error.what else "tools" if "tool" in error.what else "prompt" if "longer" in error.what else
                 "max_tokens" if "max_tokens" in error.what else "name"] = _words(error)
        return None
    return made


def _none(constant: str) -> Any:
    raise ValueError(f"{constant} is no number in JSON")


def _as_sent(value: str) -> str:
    """A text as a browser gives it back when it was shown and left alone."""
    return visible(value).replace("\r\n", "\n").replace("\r", "\n")


def _words(error: BadInput) -> str:
    return ". ".join(part.rstrip(".") for part in (error.what, error.why, error.hint) if part)
