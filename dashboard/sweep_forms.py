"""A sweep as a form: a preset, what is changed of it, and what the whole will take, said before it starts."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.contrib.auth.models import User

from dashboard import dispatch
from dashboard.forms import KeyedForm
from dashboard.models import BenchmarkRun, Job, Service
from ops.benchmark import presets
from ops.benchmark.presets import MAX_LEVELS, PRESETS, SweepSettings
from ops.jobs.errors import BadInput

# name: (title, what it is good for)
WORDS = {
    "quick": ("Quick", "A look after a change: few requests, short answers. Good for a look, not for a comparison."),
    "story": ("1 to 128", "Eight levels of 512 tokens: throughput and latency from one user to a crowd."),
    "capacity": ("Capacity", "How much it can give at all: high concurrency, answers of a fixed length."),
    "latency": ("Latency under load", "Requests that arrive as people send them, at rising rates, held against limits: what users get."),
    "custom": ("Custom", "Two levels to begin with: give your own."),
}
LEVELS_TEXT = re.compile(r"[0-9., ;/\t\n]{1,400}\Z")
REASONS_TOKENS = 512  # a reasoning model thinks first: with fewer tokens most answers end before any content
HISTORY_RUNS = 6  # looked back for how fast the service answers
SLOS = ("ttft_ms", "tpot_ms", "e2e_s")
DEFAULT = [("", "as the preset has it")]


class SweepForm(KeyedForm):
    """What is left empty is as the preset has it. `settings` is what comes out, once the form is valid."""

    preset = forms.ChoiceField()
    load = forms.ChoiceField(required=False, choices=[*DEFAULT, ("closed", "closed loop: so many at once"), ("open", "open loop: so many a second")])
    levels = forms.CharField(required=False, max_length=400)
    requests = forms.IntegerField(required=False, min_value=1, max_value=presets.MAX_REQUESTS)
    repeats = forms.IntegerField(required=False, min_value=1, max_value=dispatch.REPEATS_MOST)
    order = forms.ChoiceField(required=False, choices=[*DEFAULT, ("ascending", "ascending"), ("shuffled", "shuffled by the seed")])
    level_seconds = forms.FloatField(required=False, min_value=1, max_value=3600)
    max_in_flight = forms.IntegerField(required=False, min_value=1, max_value=presets.MAX_CONCURRENCY)
    burst = forms.ChoiceField(required=False, choices=[*DEFAULT, ("off", "staggered over one answer"), ("on", "all at the same instant")])
    endpoint_kind = forms.ChoiceField(required=False, choices=[("chat", "chat completions"), ("completions", "completions")])
    output_mode = forms.ChoiceField(required=False, choices=[*DEFAULT, ("fixed", "fixed: always so many tokens"),
                                                             ("natural", "natural: it ends by itself")])
    max_tokens = forms.IntegerField(required=False, min_value=1, max_value=presets.MAX_TOKENS)
    prompt_tokens = forms.IntegerField(required=False, min_value=presets.MIN_PROMPT_TOKENS, max_value=presets.MAX_PROMPT_TOKENS)
    temperature = forms.FloatField(required=False, min_value=0, max_value=2)
    reasoning = forms.ChoiceField(required=False, choices=[("", "as the server has it"), ("on", "on"), ("off", "off")])
    slo_ttft_ms = forms.FloatField(required=False, min_value=0.001, max_value=3_600_000)
    slo_tpot_ms = forms.FloatField(required=False, min_value=0.001, max_value=3_600_000)
    slo_e2e_s = forms.FloatField(required=False, min_value=0.001, max_value=36_000)

    def __init__(self, data: Any = None, *, service: Service) -> None:
        super().__init__(data)
        self.service = service
        self.record = service.record or {}
        self.fields["preset"].choices = [(name, WORDS.get(name, (name, ""))[0]) for name in PRESETS]  # type: ignore[attr-defined]
        self.settings: SweepSettings | None = None

    @property
    def chosen_preset(self) -> str:
        told = str(self.data.get("preset") or "") if self.is_bound else ""
        return told if told in PRESETS else "quick"

    def clean_levels(self) -> list[float]:
        text = self.cleaned_data["levels"].strip()
        if not text:
            return []
        if not LEVELS_TEXT.match(text):
            raise forms.ValidationError("give numbers with commas between, as in 1, 8, 32")
        words = [word for word in re.split(r"[,;/\s]+", text) if word]
        try:
            values = [float(word) for word in words]
        except ValueError:
            raise forms.ValidationError("give numbers with commas between, as in 1, 8, 32") from None
        if len(values) > MAX_LEVELS:
            raise forms.ValidationError(f"at most {MAX_LEVELS} levels")
        return values

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors:
            try:
                self.settings = self._settings(cleaned)
            except BadInput as error:
                raise forms.ValidationError(". ".join(part for part in (error.what, error.why, error.hint) if part)) from error
        return cleaned

    def _settings(self, given: dict[str, Any]) -> SweepSettings:
        preset, levels = given["preset"], given["levels"]
        load = given["load"] or PRESETS[preset].get("load", "closed")
        if not levels and load != PRESETS[preset].get("load", "closed"):
            raise BadInput("Which levels?", why="The preset has those of the other kind of load",
                           hint="Give rates, as in 0.5, 1, 2" if load == "open" else "Give concurrencies, as in 1, 8, 32")
        changed: dict[str, Any] = {"load": load}
        if levels and load == "open":
            changed["rates"] = levels
        elif levels:
            if any(value != int(value) for value in levels):
                raise BadInput("A concurrency is a whole number", hint="A rate (requests a second) needs an open loop")
            changed["concurrencies"] = [int(value) for value in levels]
        for name in ("requests", "order", "level_seconds", "max_tokens", "output_mode", "prompt_tokens", "temperature", "endpoint_kind", "reasoning"):
            if given[name] not in (None, ""):
                changed[name] = given[name]
        if given["max_in_flight"] and load == "open":
            changed["max_in_flight"] = given["max_in_flight"]
        if given["burst"]:
            changed["burst"] = given["burst"] == "on"
        if slos := {name: given[f"slo_{name}"] for name in SLOS if given[f"slo_{name}"] is not None}:
            changed["slos"] = slos
        made = made_for(self.service, preset, **changed, repeats=given["repeats"] or 1)
        made.check()
        return made

    def start(self, user: User) -> Job:
        """The job that was asked for. Raises what `dashboard/dispatch.py` raises."""
        settings = self._wanted()
        return dispatch.start_sweep(service=self.service, settings=settings, repeats=settings.repeats, user=user, idempotency_key=self.key())

    def start_noise_floor(self, user: User) -> Job:
        """The same configuration several times, so that it is known how much it differs from itself."""
        settings = self._wanted()
        repeats = settings.repeats if settings.repeats >= dispatch.NOISE_RUNS_LEAST else dispatch.NOISE_RUNS
        return dispatch.start_noise_floor(service=self.service, settings=settings, repeats=repeats, user=user, idempotency_key=self.key())

    def _wanted(self) -> SweepSettings:
        if self.settings is None:
            raise BadInput("This sweep cannot be started as asked", hint="Go back and correct it")
        return self.settings


def made_for(service: Service, preset: str, **changed: Any) -> SweepSettings:
    """The preset's settings for this service, with `changed` in their place. Raises BadInput."""
    record = service.record or {}
    return presets.settings(preset, base_url=str(record.get("base_url") or ""), model=str(record.get("served_model_name") or ""),
                            practice=service.practice, gpu_count=len(record.get("gpus") or []) or None, **changed)


def again(service: Service, params: Any) -> dict[str, str]:
    """The form's fields that ask for what a sweep's or noise floor's job was asked: those that the preset does not have by itself. Empty for params
    that are none of today's. Different requests for each level, which the form cannot ask for, stay the preset's."""
    told = params if isinstance(params, dict) else {}
    preset, asked = str(told.get("preset") or ""), told.get("sweep_settings")
    if preset not in PRESETS or not isinstance(asked, dict):
        return {}
    try:
        was = made_for(service, preset, **{name: value for name, value in asked.items() if name not in presets.NODE_SAYS})
        levels = {"load": was.load, "rates" if was.load == "open" else "concurrencies": was.values}
        plain = made_for(service, preset, **levels)
        usual = made_for(service, preset)
    except BadInput:
        return {}
    fields = {"preset": preset, "load": was.load if was.load != usual.load else ""}
    if was.values != usual.values or was.load != usual.load:
        fields["levels"] = ", ".join(f"{value:g}" for value in was.values)
    if was.requests != plain.requests and len(set(was.requests)) == 1:
        fields["requests"] = str(was.requests[0])
    for name in ("repeats", "order", "level_seconds", "max_tokens", "output_mode", "prompt_tokens", "temperature", "endpoint_kind", "reasoning",
                 "max_in_flight"):
        if getattr(was, name) != getattr(plain, name):
            fields[name] = f"{value:g}" if isinstance(value := getattr(was, name), float) else str(value)
    if was.burst != plain.burst:
        fields["burst"] = "on" if was.burst else "off"
    if was.slos != plain.slos:
        fields |= {f"slo_{name}": f"{value:g}" for name, value in was.slos.items()}
    return {name: value for name, value in fields.items() if value}


def defaults(service: Service, preset: str) -> dict[str, Any]:
    """What the preset has, as the fields of the form show it while they are empty."""
    made = made_for(service, preset)
    return {
        "load": made.load, "levels": ", ".join(f"{value:g}" for value in made.values), "requests": _span(made.requests), "repeats": "1",
        "level_seconds": f"{made.level_seconds:g}", "max_tokens": f"{made.max_tokens:,}", "temperature": f"{made.temperature:g}",
        "prompt_tokens": f"about {made.prompt_words} words" if made.prompt_tokens is None else f"{made.prompt_tokens:,}", "order": made.order,
        "output_mode": made.output_mode, "burst": "all at the same instant" if made.burst else "staggered", "max_in_flight": "no cap",
        **{f"slo_{name}": f"{made.slos[name]:g}" if name in made.slos else "none" for name in SLOS}}


def cards(service: Service) -> list[dict[str, Any]]:
    """The presets to choose from, each with what it takes."""
    found = history(service)
    told = []
    for name in PRESETS:
        made = made_for(service, name)
        title, what = WORDS.get(name, (name, ""))
        levels = ", ".join(f"{value:g}" for value in made.values)
        told.append({"name": name, "title": title, "what": what, "levels": f"{levels} requests/s" if made.load == "open" else f"C = {levels}",
                     "tokens": made.max_tokens, "size": size(made, found)})
    return told


def history(service: Service) -> list[dict[str, Any]]:
    """Levels of the service's last good sweeps on the release in use, newest first: what an estimate is made from."""
    runs = BenchmarkRun.objects.filter(service=service, state="done", origin="roundhouse")
    release = (service.status or {}).get("release")
    runs = runs.filter(release=release) if release and runs.filter(release=release).exists() else runs
    return [level.metrics for run in runs.prefetch_related("levels")[:HISTORY_RUNS] for level in run.levels.all() if level.state == "done"]


def size(made: SweepSettings, earlier: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """What the sweep takes: requests, input_tokens (or None), output_tokens, minutes, estimate (the minutes come from earlier sweeps; else they are
    the most that it can take)."""
    told = presets.size(made, earlier)
    return {"requests": told["requests"], "input_tokens": told["input_tokens"], "output_tokens": told["output_tokens"], "minutes": told["minutes"],
            "most_minutes": made.most_minutes(), "estimate": told["minutes_from"] == "earlier levels"}


def reasons(service: Service) -> bool:
    """Whether the model thinks before it answers: its server was told how to take the thinking apart."""
    flags = (service.record or {}).get("flags")
    return any(isinstance(flag, str) and flag.startswith("--reasoning-parser") for flag in flags) if isinstance(flags, list) else False


def proposed_tokens(service: Service, asked: int, *, runs: int = HISTORY_RUNS) -> int | None:
    """A larger `max_tokens` for a reasoning model: enough that an answer is left after the thinking. None where `asked` is enough.

    Where the last sweeps with at least `asked` tokens were marked "reasoning only", twice as many.
    """
    wanted = REASONS_TOKENS if reasons(service) else 0
    for run in BenchmarkRun.objects.filter(service=service, origin="roundhouse").exclude(state="running").prefetch_related("levels")[:runs]:
        marked = [level.metrics for level in run.levels.all() if "reasoning only" in (level.metrics.get("marks") or [])]
        used = [one.get("max_tokens") or (run.settings or {}).get("max_tokens") for one in marked]
        wanted = max([wanted, *(2 * one for one in used if isinstance(one, int))])
    wanted = min(wanted, presets.MAX_TOKENS)
    return wanted if wanted > asked else None


def warnings(form: SweepForm) -> list[str]:
    """What a person should know before the start of what was asked for."""
    made, told = form.settings, []
    if made is None:
        return []
    if made.endpoint_kind == "completions":
        told.append("The completions endpoint hides a reasoning model's thinking: its tokens are counted, but nobody sees them. Use chat completions "
                    "unless this is what your users call.")
    if few := made.never_full():
        told.append(f"{few}. Such a level gets no verdict, and no noise floor can be made of it.")
    if made.load == "open" and made.max_in_flight:
        told.append(f"With at most {made.max_in_flight} in flight the arrivals queue in the client: the delay is measured and shown.")
    if (floor := dispatch.NOISE_RUNS_LEAST) > made.repeats:
        told.append(f"One run decides nothing against another: {floor} or more repeats a side do." if made.repeats == 1 else
                    f"{made.repeats} runs decide nothing yet: {floor} or more a side do.")
    return told


def _span(values: list[int]) -> str:
    """30, or 30 to 640."""
    return f"{values[0]:,}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,}"
