"""What a person may ask for. Values are choices or short anchored texts; whatever reaches a node was one of these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.core.validators import RegexValidator

from dashboard import dispatch, purge_story
from dashboard.models import Channel, Job, Service, ShelvedPatch
from ops.jobs.events import JobState

# Run from a service's page or card; each with the words of its button
ACTIONS = {"start": "Start", "stop": "Stop", "restart": "Restart", "switch": "Switch model", "leftovers": "Check leftovers",
           "end-leftovers": "End leftovers", "reset-failed": "Reset failed", "diagnose": "Diagnose its log",
           "sweep": "Sweep", "smoke": "Smoke tests", "integrity": "Integrity", "warmup": "Watch warmup",
           "practice-reset": "Reset practice box", "rollback": "Roll back", "remove-release": "Remove a release", "guards-apply": "Apply guards",
           "shelf-forget": "Forget patches", "recipe": "Save a recipe"}
MODES = {"full": "full: pristine wheels of the channel, resolved anew", "restore": "restore: the versions of now, only edited packages anew"}
FORGET_AT_ONCE = 500  # patches
END_AT_ONCE = 200  # processes
DIAGNOSE_MAX = 700_000  # characters: below the console's own limit on a request
_VERSION = RegexValidator(r"\A[0-9A-Za-z][0-9A-Za-z.+!_-]{0,79}\Z", "Give one exact version, as in 0.16.0rc2.dev344")
_RELEASE = RegexValidator(r"\A[0-9A-Za-z][0-9A-Za-z._+-]{0,199}\Z", "This is no name of a release")
_PYTHON = RegexValidator(r"\A3\.[0-9]{1,2}\Z", "Give a version of Python, as in 3.12")
_PROCESS = re.compile(r"([1-9][0-9]{0,9}):([0-9]{1,18})\Z")  # pid:start_ticks
_KEY = RegexValidator(r"\A[0-9a-f]{32}\Z", "This form is not ours; reload the page")


def preset_choices() -> list[tuple[str, str]]:
    """Names of the sweep presets with a few words on each: levels, tokens, minutes at most."""
    from ops.benchmark.presets import PRESETS, settings

    choices = []
    for name in PRESETS:
        if name == "custom":  # a name for settings given one by one; a form offers whole presets
            continue
        made = settings(name, base_url="http://127.0.0.1:8000", model="any")
        span = f"{made.values[0]:g} to {made.values[-1]:g}"
        levels = f"C = {span}" if made.load == "closed" else f"{span} requests/s"
        choices.append((name, f"{name}: {levels}, {made.max_tokens} tokens, up to {made.size()['minutes']:.0f} min"))
    return choices


def channels_for(service: Service) -> list[Channel]:
    """Channels that a service may be redeployed from: practice ones for practice services, the others for the others.

    First the one that its last release was built from, so that a new channel never becomes the usual one by its name; before there is one,
    what the node itself brings.
    """
    last = Job.objects.filter(service=service, type__in=("redeploy", "build"), state__in=(JobState.SUCCEEDED, JobState.PARTIAL)).first()
    usual = (last.params or {}).get("channel") if last else None
    return sorted(Channel.objects.filter(practice=service.practice), key=lambda channel: (channel.name != usual, not channel.announced, channel.name))


def others(service: Service) -> list[Service]:
    """Services that could take a service's place: of the same node, and practice as it is or real as it is."""
    return list(Service.objects.filter(node=service.node, practice=service.practice).exclude(pk=service.pk).select_related("node").order_by("name"))


def processes(values: Sequence[str]) -> list[dict[str, int]]:
    """Processes that a form named as `pid:start_ticks`; what names none is left out."""
    return [{"pid": int(found[1]), "start_ticks": int(found[2])} for value in values if (found := _PROCESS.match(value))]


class KeyedForm(forms.Form):
    """A form that starts a job: its key makes pressing twice one job."""

    idempotency_key = forms.CharField(required=False, max_length=32, validators=[_KEY])

    def key(self) -> str | None:
        return self.cleaned_data.get("idempotency_key") or None


class PlanForm(KeyedForm):
    """What a redeploy should be planned from. Without a channel: the service's usual one."""

    channel = forms.ChoiceField(required=False)
    mode = forms.ChoiceField(required=False, choices=list(MODES.items()))
    version = forms.CharField(required=False, max_length=80, validators=[_VERSION], strip=True)
    coupling = forms.ChoiceField(required=False, choices=[("on", "on"), ("off", "off")])
    python = forms.CharField(required=False, max_length=8, validators=[_PYTHON], strip=True)
    allow_variant_change = forms.BooleanField(required=False)

    def __init__(self, data: Any = None, *, service: Service) -> None:
        super().__init__(data)
        self.channels = channels_for(service)
        self.fields["channel"].choices = [(c.name, c.name) for c in self.channels]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.channels:
            raise forms.ValidationError("There is no channel for this service yet: nothing says where its wheels come from")
        return cleaned

    def chosen_channel(self) -> Channel:
        wanted = self.cleaned_data.get("channel")
        return next((c for c in self.channels if c.name == wanted), self.channels[0])

    def coupled(self) -> bool:
        return self.cleaned_data.get("coupling") != "off"

    def chosen_mode(self) -> str:
        return self.cleaned_data.get("mode") or "full"

    def options(self) -> dict[str, Any]:
        """As ops/environments/plan.py takes them."""
        python = self.cleaned_data.get("python")
        return {**({"python": python} if python else {}), **({"allow_variant_change": True} if self.cleaned_data.get("allow_variant_change") else {})}


class RedeployForm(KeyedForm):
    """The confirmation of a plan. `plan_hash` is what the person looked at."""

    plan_hash = forms.CharField(max_length=128)
    smoke = forms.BooleanField(required=False)
    sweep = forms.BooleanField(required=False)
    purge_kinds = forms.MultipleChoiceField(required=False)  # kinds of leftovers, of those that the plan found
    rollback = forms.BooleanField(required=False)
    accept_no_rollback = forms.BooleanField(required=False)  # the second confirmation, asked for where there is no way back
    only_build = forms.BooleanField(required=False)  # build and verify beside, switch another time
    preset = forms.ChoiceField(required=False)

    def __init__(self, data: Any = None, *, plan: dict[str, Any] | None = None) -> None:
        super().__init__(data)
        self.fields["preset"].choices = preset_choices()  # type: ignore[attr-defined]
        self.fields["purge_kinds"].choices = [(name, name) for name in purge_story.kinds_of_plan(plan or {})[0]]  # type: ignore[attr-defined]
        self.fields["purge_kinds"].error_messages["invalid_choice"] = "this plan found no leftovers of the kind `%(value)s`"

    def options(self) -> dict[str, Any]:
        told = {name: bool(self.cleaned_data[name]) for name in ("smoke", "sweep", "rollback", "accept_no_rollback")}
        kinds = list(self.cleaned_data["purge_kinds"])
        return told | {"purge": bool(kinds), "purge_kinds": kinds, "preset": self.cleaned_data.get("preset") or "quick"}


class ActionForm(KeyedForm):
    """One-button jobs of a service. A job without settings has only the key."""

    def __init__(self, data: Any = None, *, action: str, service: Service | None = None) -> None:
        super().__init__(data)
        self.action = action
        if action == "sweep":
            self.fields["preset"] = forms.ChoiceField(required=False, choices=preset_choices())
        elif action in ("rollback", "remove-release"):
            self.fields["release"] = forms.CharField(max_length=200, validators=[_RELEASE], error_messages={"required": "choose a release"})
            if action == "rollback":
                self.fields["smoke"] = forms.BooleanField(required=False)
        elif action == "guards-apply":
            guards = (service.record.get("guards") or []) if service else []
            self.guards = guards if isinstance(guards, list) else []
            self.fields["guard"] = forms.TypedMultipleChoiceField(required=False, coerce=int, choices=[(n, str(n)) for n in range(len(self.guards))])
        elif action == "shelf-forget":
            self.fields["patch"] = forms.ModelMultipleChoiceField(
                ShelvedPatch.objects.filter(service=service, forgotten_at=None), error_messages={
                    "required": "choose what to forget", "invalid_choice": "it is not on the shelf any more", "invalid_pk_value": "it is no patch"})
        elif action in ("start", "restart"):
            self.fields["smoke"] = forms.ChoiceField(required=False, choices=[("on", "on"), ("off", "off")])  # left out: as the job does by itself
        elif action == "switch":
            self.others = others(service) if service else []
            self.fields["to"] = forms.ChoiceField(choices=[(one.name, one.name) for one in self.others], error_messages={
                "required": "choose the service to start", "invalid_choice": "there is no such other service on this node"})
            self.fields["smoke"] = forms.BooleanField(required=False)
        elif action == "end-leftovers":
            self.fields["process"] = forms.MultipleChoiceField(required=False)
            self.fields["process"].valid_value = lambda value: bool(_PROCESS.match(value))  # type: ignore[attr-defined]
        elif action == "recipe":
            self.fields["label"] = forms.CharField(required=False, max_length=120, strip=True)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if len(cleaned.get("patch") or ()) > FORGET_AT_ONCE:
            raise forms.ValidationError(f"at most {FORGET_AT_ONCE} at once")
        if self.action == "end-leftovers" and not self.errors and not 0 < len(cleaned.get("process") or ()) <= END_AT_ONCE:
            raise forms.ValidationError("choose which processes to end" if not cleaned.get("process") else f"at most {END_AT_ONCE} at once")
        return cleaned

    def start(self, service: Service, user: User) -> Job:
        """The job that was asked for. Raises what `dashboard/dispatch.py` raises."""
        given, key = self.cleaned_data, self.key()
        if self.action in dispatch.CONTROL_KINDS:
            smoke = {"on": True, "off": False}.get(given.get("smoke") or "")
            return dispatch.start_control(service=service, kind=self.action, smoke=smoke, user=user, idempotency_key=key)
        if self.action == "switch":
            to = next(one for one in self.others if one.name == given["to"])
            return dispatch.start_switch(service=service, to=to, smoke=given["smoke"], user=user, idempotency_key=key)
        if self.action == "end-leftovers":
            return dispatch.start_end_leftovers(service=service, processes=processes(given["process"]), user=user, idempotency_key=key)
        if self.action == "rollback":
            return dispatch.start_rollback(service=service, release=given["release"], smoke=given["smoke"], user=user, idempotency_key=key)
        if self.action == "remove-release":
            return dispatch.start_remove_release(service=service, release=given["release"], user=user, idempotency_key=key)
        if self.action == "guards-apply":
            wanted = [self.guards[n] for n in given["guard"]] or None
            return dispatch.start_guards_apply(service=service, guards=wanted, user=user, idempotency_key=key)
        if self.action == "shelf-forget":
            return dispatch.start_shelf_forget(service=service, entries=list(given["patch"]), user=user, idempotency_key=key)
        if self.action == "recipe":
            return dispatch.start_recipe(service=service, label=given["label"], user=user, idempotency_key=key)
        if self.action == "sweep":
            from dashboard.sweep_forms import made_for

            settings = made_for(service, given.get("preset") or "quick")
            return dispatch.start_sweep(service=service, settings=settings, user=user, idempotency_key=key)
        return dispatch.start(type=self.action, node=service.node, service=service, user=user, idempotency_key=key)


class AbandonForm(forms.Form):
    """Giving up a lost job: the name of its service (of its node, if it has none), typed."""

    name = forms.CharField(max_length=80, strip=True, error_messages={"required": "type the name"})


class DiagnoseForm(KeyedForm):
    """A log to be read: pasted (`text`) or uploaded (`file`), perhaps of the service `about`; or that of the service `own`, by a job.

    Services are named node/name.
    """

    text = forms.CharField(required=False, max_length=DIAGNOSE_MAX, strip=False, error_messages={
        "max_length": f"This is longer than {DIAGNOSE_MAX:,} characters. Choose the log as a file, or paste its end"})
    file = forms.FileField(required=False, allow_empty_file=True, max_length=None)
    about = forms.ChoiceField(required=False)
    own = forms.ChoiceField(required=False, error_messages={"invalid_choice": "There is no such service any more"})

    def __init__(self, data: Any = None, files: Any = None, *, services: Sequence[Service]) -> None:
        super().__init__(data, files)
        self.known = {f"{one.node.name}/{one.name}": one for one in services}
        for name in ("about", "own"):
            self.fields[name].choices = [(key, key) for key in self.known]  # type: ignore[attr-defined]

    def service(self, field: str) -> Service | None:
        """The service that a field names."""
        return self.known.get(self.cleaned_data.get(field) or "")
