"""Which list of guards a service is to have: its own, with a preset's or one written by hand added, or one taken away."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from django import forms
from django.contrib.auth.models import User

from dashboard import dispatch
from dashboard.forms import KeyedForm
from dashboard.models import Job, Service
from ops.environments import guard_list, guards
from ops.jobs.errors import BadInput, OpsError
from ops.records import GUARD_KINDS

KINDS = {
    "key_absent": "a key is absent", "key_equals": "a key has a value", "file_present": "a file is there", "file_hash": "a file has a SHA-256",
    "shards_complete": "all shards of an index are whole", "not_lfs_pointer": "files have content, no LFS pointer",
}
VALUE_LENGTH = 4000


def own(service: Service) -> list[dict[str, Any]]:
    """The service's guards, as its node announced them."""
    listed = service.record.get("guards")
    return [guard for guard in listed if isinstance(guard, dict)] if isinstance(listed, list) else []


def mark(listed: list[dict[str, Any]]) -> str:
    """Names a list, so that a question and its answer are about the same one."""
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()[:16]


def words(guard: dict[str, Any]) -> str:
    """A guard in one line, names in backticks."""
    kind, file, key = (str(guard.get(part) or "") for part in ("kind", "file", "key"))
    value = json.dumps(guard.get("value"), ensure_ascii=False)
    value = value if len(value) <= 60 else f"{value[:59]}…"
    return {
        "key_absent": f"`{key}` is not in `{file}`", "key_equals": f"`{key}` in `{file}` is `{value}`", "file_present": f"`{file}` is there",
        "file_hash": f"`{file}` has SHA-256 `{str(guard.get('value'))[:12]}…`", "shards_complete": f"All shards that `{file}` names are whole",
        "not_lfs_pointer": f"`{file}` holds content, not a Git LFS pointer",
    }.get(kind, f"`{kind}` of `{file}`")


def presets() -> list[dict[str, Any]]:
    """The presets that a page offers; none where the table cannot be read."""
    try:
        return guards.presets()
    except OpsError:
        return []


class GuardsForm(KeyedForm):
    """One change of the list: `preset`, `remove` (a number from 0), or a guard by hand (its key is `at`). `after` is the whole list then.

    `base` names the list that the person saw; an answer must have it.
    """

    base = forms.RegexField(r"\A[0-9a-f]{16}\Z", required=False)
    preset = forms.ChoiceField(required=False)
    remove = forms.IntegerField(required=False, min_value=0, max_value=guard_list.GUARDS_MAX * 10)
    kind = forms.ChoiceField(required=False, choices=[(kind, KINDS[kind]) for kind in GUARD_KINDS])
    file = forms.CharField(required=False, max_length=guard_list.TEXT_LENGTH, strip=True)
    at = forms.CharField(required=False, max_length=guard_list.TEXT_LENGTH, strip=True)
    value = forms.CharField(required=False, max_length=VALUE_LENGTH, strip=True)

    def __init__(self, data: Any = None, *, service: Service, answers: bool = False) -> None:
        super().__init__(data)
        self.service, self.answers = service, answers
        self.known = own(service)
        self.known_presets = presets()
        self.after: list[dict[str, Any]] = []
        self.added: list[dict[str, Any]] = []
        self.removed: dict[str, Any] | None = None
        self.whole_preset: dict[str, Any] | None = None
        self.fields["preset"].choices = [(preset["name"], preset["title"]) for preset in self.known_presets]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.errors:
            return cleaned
        asked = [name for name in ("preset", "kind") if cleaned.get(name)] + (["remove"] if cleaned.get("remove") is not None else [])
        if len(asked) != 1:
            raise forms.ValidationError("Choose a preset, a guard to remove, or what a guard by hand is about")
        base = cleaned.get("base")
        if (base or self.answers) and base != mark(self.known):
            raise forms.ValidationError("The guards were changed since this list was shown: look at them as they are now")
        getattr(self, f"_{asked[0]}")(cleaned)
        if len(self.after) > guard_list.GUARDS_MAX:
            raise forms.ValidationError(f"A service has at most {guard_list.GUARDS_MAX} guards")
        return cleaned

    def _preset(self, cleaned: dict[str, Any]) -> None:
        self.whole_preset = found = next(preset for preset in self.known_presets if preset["name"] == cleaned["preset"])
        self.added = [guard for guard in found["guards"] if not self._has(guard)]
        self.after = [*self.known, {"preset": found["name"]}]

    def _remove(self, cleaned: dict[str, Any]) -> None:
        if cleaned["remove"] >= len(self.known):
            raise forms.ValidationError("The service has no such guard any more")
        self.after = list(self.known)
        self.removed = self.after.pop(cleaned["remove"])

    def _kind(self, cleaned: dict[str, Any]) -> None:
        kind, file = cleaned["kind"], cleaned["file"]
        if not file:
            self.add_error("file", "Name the file, relative to the model folder")
            return
        raw: dict[str, Any] = {"kind": kind, "file": file, "key": cleaned["at"] if kind.startswith("key_") else "", "value": None}
        if kind.startswith("key_") and not raw["key"]:
            self.add_error("at", "Name the key, as in quantization_config.kv_cache_scheme")
            return
        if kind == "key_equals":
            raw["value"] = _value(cleaned["value"])
        elif kind == "file_hash":
            raw["value"] = cleaned["value"].lower()
        try:
            made = guard_list.check(raw).as_dict()
        except BadInput as error:
            self.add_error("value" if kind == "file_hash" and ".." not in file and not file.startswith("/") else "file", error.what)
            return
        if self._has(made):
            raise forms.ValidationError("The service has this guard already")
        self.added = [made]
        self.after = [*self.known, made]

    def _has(self, guard: dict[str, Any]) -> bool:
        whole = {"key": "", "value": None}
        return any({**whole, **known} == {**whole, **guard} for known in self.known)

    def asked(self) -> list[tuple[str, str]]:
        """The fields that ask the same again, for the form that confirms it."""
        given = {name: self.data.get(name, "") for name in ("preset", "remove", "kind", "file", "at", "value")}
        return [(name, value) for name, value in given.items() if value] + [("base", mark(self.known))]

    def shown(self) -> dict[str, Any]:
        """Values and problems of the fields by hand, for the template."""
        problems = {name: " ".join(str(error) for error in errors) for name, errors in self.errors.items()} if self.is_bound else {}
        return {name: {"value": self.data.get(name, ""), "problem": problems.get(name, "")} for name in ("kind", "file", "at", "value")}

    def start(self, user: User) -> Job:
        """The job that stores the list. Raises what `dashboard/dispatch.py` raises."""
        return dispatch.start_guards_set(service=self.service, guards=self.after, user=user, idempotency_key=self.key())


def _value(text: str) -> Any:
    """What was typed as JSON, else as the text that it is: 8, true, null and "8" say what they say; FP8 is a text."""
    def none(constant: str) -> Any:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=none)
    except (ValueError, RecursionError):
        return text
