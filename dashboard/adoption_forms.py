"""Which unit of a node is to be adopted, and how. What may stand in a field is what the node holds it to as well (ops/adopting.py)."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.core.validators import RegexValidator

from dashboard import dispatch
from dashboard.forms import KeyedForm
from dashboard.models import Job, Node

_UNIT = RegexValidator(r"\A[A-Za-z0-9_][A-Za-z0-9:_.\\-]{0,199}(?:@[A-Za-z0-9:_.\\-]{0,200})?\Z",
                       "This is not the name of a unit. For example vllm, vllm.service or vllm@kimi")
_NAME = RegexValidator(r"\A[a-z0-9][a-z0-9._-]{0,62}\Z", "Lower-case letters, digits, dot, dash, underscore")
_PATH = RegexValidator(r"\A/[^\x00-\x1f\x7f]{1,998}\Z", "An absolute path")
MANAGERS = {"systemd": "systemd, the unit stays in charge", "process": "plain process, Roundhouse starts and stops it"}


class AdoptForm(KeyedForm):
    """Asks a node to read one of its units. Nothing is changed by it."""

    unit = forms.CharField(max_length=400, strip=True, validators=[_UNIT], error_messages={"required": "Name the unit"})
    name = forms.CharField(required=False, max_length=63, strip=True, validators=[_NAME])
    environment = forms.CharField(required=False, max_length=1000, strip=True, validators=[_PATH])
    in_place = forms.BooleanField(required=False)
    manager = forms.ChoiceField(required=False, choices=list(MANAGERS.items()))

    def start(self, node: Node, user: User) -> Job:
        """The job that reads it. Raises what `dashboard/dispatch.py` raises."""
        given = self.cleaned_data
        return dispatch.start_adopt(node=node, user=user, unit=given["unit"], name=given["name"], environment=given["environment"],
                                    in_place=given["in_place"], manager=given["manager"] or "systemd", idempotency_key=self.key())

    def shown(self) -> dict[str, Any]:
        """Values and problems by field, for the template."""
        problems = {name: " ".join(str(error) for error in errors) for name, errors in self.errors.items()} if self.is_bound else {}
        return {name: {"value": self.data.get(name, "") if self.is_bound else "", "problem": problems.get(name, "")} for name in self.fields}


class AdoptApplyForm(KeyedForm):
    """Adopts what was looked at."""

    hash = forms.RegexField(r"\A[0-9a-f]{64}\Z", max_length=64)


def empty() -> dict[str, Any]:
    """What pages with the form on them give their templates."""
    return {"fields": AdoptForm().shown(), "managers": MANAGERS.items(), "more": False}
