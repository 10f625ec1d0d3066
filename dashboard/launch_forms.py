"""The launch settings of a service as a form: its flags as text, its variables as rows, and the difference before anything is saved.

The value of a secret variable goes one way. A page never holds one that the node has; one that was typed leaves the browser once, is sealed for the
node at once (ops/sealed.py), and stands in the form's second page only like that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.http import QueryDict

from dashboard import dispatch, flag_text, service_story
from dashboard.environment_story import text, told
from dashboard.forms import KeyedForm
from dashboard.inventories import SETTING_MAX
from dashboard.middleware import visible
from dashboard.models import Job, Service
from ops import launch_settings, sealed
from ops.jobs.errors import BadInput
from ops.jobs.redact import hide_in_record, redact
from ops.records import ServiceRecord

EMPTY_ROWS, MORE_ROWS, ROWS_MAX = 2, 4, 100  # of new variables
_SEALED = re.compile(r"(.{0,200}):([A-Za-z0-9+/]{1,60000}={0,2})\Z", re.DOTALL)  # the name that it was sealed for, and what is sealed
_PLACEHOLDER = "a value that was typed"


@dataclass
class Row:
    """One variable of the form. `known`: the node has it. `typed`: what the field shows; of a secret one never a value, but `sealed`, which was typed
    before: the name that it was sealed for, a colon, and the sealed value."""

    name: str
    known: bool
    secret: bool
    typed: str = ""
    before: str = ""
    sealed: str = ""
    remove: bool = False
    problem: str = ""
    number: int = 0  # in the page, from 1

    @property
    def sealed_for(self) -> str:
        return self.sealed.rpartition(":")[0]

    @property
    def lines(self) -> bool:
        """Whether it takes more than one line: a one-line field would drop the ends of lines."""
        return "\n" in self.shown

    @property
    def shown(self) -> str:
        """What its field holds in a page."""
        return "" if self.secret or is_secret(self.name, self.typed) else self.typed


def is_secret(name: str, value: str) -> bool:
    """Whether a variable must not be shown: by its name, or by the look of its value."""
    return hide_in_record({"env": {name: value or "x"}})["env"][name] != (value or "x")


def shown_record(service: Service) -> ServiceRecord | None:
    """The service's record as far as the console knows it, with its launch settings; None where it is of another form."""
    said, record = told(service.launch), told(service.record)
    known = {name: record[name] for name in ("root", "model_path", "served_model_name", "base_url") if name in record}
    try:
        return ServiceRecord.from_dict({**known, "name": service.name, "flags": said.get("flags") or [], "env": said.get("env") or {}})
    except BadInput:
        return None


class LaunchForm(KeyedForm):
    """`base` is the mark of the settings that the person saw. Fields beside the declared ones: `value:NAME`, `sealed:NAME` and `remove` of variables
    that are there; `new-name`, `new-value` and `new-sealed`, once each for every new one."""

    base = forms.CharField(max_length=200)
    flags = forms.CharField(required=False, max_length=flag_text.TEXT_MAX, strip=False)

    def __init__(self, data: QueryDict | None = None, *, service: Service) -> None:
        super().__init__(data)
        self.sent = data if data is not None else QueryDict()
        self.service = service
        self.record = shown_record(service)
        self.said = told(service.launch)
        self.key_of_node = text(told(service.node.facts).get("settings_key"))
        self.text_now = "\n".join(service_story.flag_lines(self.said.get("flags")))
        self.cut_short = any(len(one) >= SETTING_MAX for one in [*(self.said.get("flags") or []), *(self.said.get("env") or {}).values()])
        self.rows = self._rows()
        self.new_flags: list[str] | None = None  # None: as they are
        self.env: dict[str, str | dict[str, str] | None] = {}
        self.change: launch_settings.Change | None = None
        self.named_model = ""

    def _rows(self) -> list[Row]:
        known = service_story.launch(self.service)["env"]
        rows = [Row(row["name"], True, row["secret"] or is_secret(row["name"], row["value"]), before="" if row["secret"] else row["value"])
                for row in known]
        for row in rows:
            if not self.is_bound:
                row.typed = "" if row.secret else _as_sent(row.before)
            else:
                row.typed = _as_sent(self.sent.get(f"value:{row.name}", ""))
                row.remove = row.name in self.sent.getlist("remove")
                row.sealed = self._sealed(self.sent.get(f"sealed:{row.name}", ""))
        if self.is_bound:
            lists = [self.sent.getlist(name)[:ROWS_MAX] for name in ("new-name", "new-value", "new-sealed")]
            for n, name in enumerate(lists[0]):
                typed, given = (one[n] if n < len(one) else "" for one in lists[1:])
                if name.strip() or typed or given:
                    rows.append(Row(name.strip(), False, is_secret(name.strip(), typed), _as_sent(typed), sealed=self._sealed(given)))
        for number, row in enumerate(rows, start=1):
            row.number, row.secret = number, row.secret or bool(row.sealed)  # once sealed, for its value's sake, it stays so
        return rows

    def _sealed(self, given: str) -> str:
        return given if _SEALED.match(given) else ""

    def empty_rows(self) -> int:
        asked = MORE_ROWS if self.is_bound and self.sent.get("step") == "more" else EMPTY_ROWS
        return min(asked, ROWS_MAX - sum(1 for row in self.rows if not row.known))

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.said.get("mark") or self.record is None:
            raise forms.ValidationError("The node has not told these settings yet")
        if not self.errors and cleaned["base"] != self.said["mark"]:
            raise forms.ValidationError("The settings were changed since this form was opened. Open it again, and change them as they are now")
        self._flags(cleaned.get("flags", ""))
        for row in self.rows:
            self._variable(row)
        if not self.errors and not any(row.problem for row in self.rows):
            self._whole()
        if any(row.problem for row in self.rows):
            raise forms.ValidationError("A variable is not right")
        return cleaned

    def _flags(self, typed: str) -> None:
        if _as_sent(typed).strip() == _as_sent(self.text_now).strip() or self.record is None:
            return
        try:
            found = flag_text.read(typed)
            dispatch.checked_flags(found.flags)
            launch_settings.changed(self.record, found.flags, None)
        except BadInput as error:
            self.add_error("flags", _words(error))
            return
        self.named_model = found.model if found.model != self.record.model_path else ""
        self.new_flags = found.flags if found.flags != self.record.flags else None

    def _variable(self, row: Row) -> None:
        """What the row changes, into `env`; or its problem."""
        if row.known and row.remove:
            self.env[row.name] = None
            return
        if row.known and not row.secret and row.typed == _as_sent(row.before):
            return
        if row.secret and not row.typed and row.known and not row.sealed:
            return
        if not row.name:
            row.problem = "Name it"
        elif not row.known and any(other.name == row.name and other.number < row.number for other in self.rows):
            row.problem = "There is one of this name above"
        elif row.sealed and not row.typed and row.sealed_for != row.name:
            row.problem = "Type its value again: it was sealed " + (
                f"for the name `{row.sealed_for[:80]}`, and counts for that one alone" if row.sealed_for else "before it had a name")
        elif not self.key_of_node:
            row.problem = "Its node has not told the key that values are sealed with"
        if row.problem:
            row.secret = row.secret or bool(row.typed and is_secret("X", row.typed))
            if row.secret and row.typed and self.key_of_node:
                self._seal(row)
            return
        row.secret = row.secret or is_secret(row.name, row.typed)
        typed = row.typed
        try:
            if self.record is not None:
                launch_settings.changed(self.record, None, {row.name: typed or (_PLACEHOLDER if row.sealed else "")})
            sealed.seal(self.key_of_node, typed, service=self.service.name, name=row.name)
        except BadInput as error:
            row.problem = _words(error)
        if row.secret and typed:
            self._seal(row)
        if not row.problem:
            self.env[row.name] = {"sealed": row.sealed.rpartition(":")[2]} if row.sealed else typed

    def _seal(self, row: Row) -> None:
        try:
            row.sealed = f"{row.name}:{sealed.seal(self.key_of_node, row.typed, service=self.service.name, name=row.name)}"
        except BadInput as error:
            row.problem = row.problem or _words(error)
        row.typed = ""

    def _whole(self) -> None:
        """All of it together, as the node will look at it."""
        if self.record is None:
            return
        plain = {name: _PLACEHOLDER if isinstance(value, dict) else value for name, value in self.env.items()}
        try:
            self.change = launch_settings.changed(self.record, self.new_flags, plain)
        except BadInput as error:
            raise forms.ValidationError(_words(error)) from error
        if self.new_flags is None and not self.env:
            self.change = None
            raise forms.ValidationError(
                "Nothing is changed" + (f": the command names the model {self.named_model}, which is not set here" if self.named_model else ""))

    def differences(self) -> dict[str, Any]:
        """What saving would change, for the template: `flags` (rows), `env` (rows), `notes` (sentences)."""
        if self.change is None:
            return {}
        hidden = {name for name, value in self.env.items() if isinstance(value, dict)}
        secret = hidden | {row.name for row in self.rows if row.secret}
        known = {row.name for row in self.rows if row.known}
        env = [{"name": name, "change": "removed" if value is None else "changed" if name in known else "set", "secret": name in secret,
                "before": "" if name in secret else self.record.env.get(name, "") if self.record else "",
                "after": "" if name in secret or not isinstance(value, str) else value} for name, value in sorted(self.env.items())]
        lines = [service_story.flag_lines(self.change.flags[when]) for when in ("before", "after")]
        notes = list(self.change.notes)
        if self.named_model:
            notes.append(f"The command names the model `{self.named_model}`. The model is not set here: it stays "
                         f"`{self.record.model_path if self.record else ''}`")
        return {"flags": service_story.flag_changes(*lines), "env": env, "notes": notes}

    def shown(self) -> dict[str, Any]:
        """The form's fields for the template."""
        return {"base": self.sent.get("base", "") if self.is_bound else text(self.said.get("mark")),
                "flags": redact(_as_sent(self.sent.get("flags", ""))) if self.is_bound else self.text_now,
                "flags_problem": " ".join(str(error) for error in self.errors.get("flags", [])) if self.is_bound else "",
                "problems": [str(error) for error in self.non_field_errors()] + [str(error) for error in self.errors.get("base", [])] +
                [str(error) for error in self.errors.get("idempotency_key", [])] if self.is_bound else [],
                "known": [row for row in self.rows if row.known], "new": [row for row in self.rows if not row.known],
                "empty": [len(self.rows) + 1 + n for n in range(self.empty_rows())]}

    def start(self, user: User) -> Job:
        """The job that sets them. Raises what `dashboard/dispatch.py` raises."""
        return dispatch.start_settings_set(service=self.service, user=user, before=self.cleaned_data["base"], flags=self.new_flags,
                                           env=self.env, idempotency_key=self.key())


def _as_sent(value: str) -> str:
    """A value as a browser gives it back when it was shown and left alone."""
    return visible(value).replace("\r\n", "\n").replace("\r", "\n")


def _words(error: BadInput) -> str:
    """A complaint in one line: what, why, what to do."""
    return ". ".join(part.rstrip(".") for part in (error.what, error.why, error.hint) if part)
