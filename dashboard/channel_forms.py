"""The form of a channel, generated from what a preset asks (ops/environments/channels.py), and the words for one that is there.

What a field may hold is decided by `channels.make`, the same for the form and the command line; here each of its complaints finds its field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile

from dashboard.models import Channel
from ops import records
from ops.environments import channels
from ops.jobs.errors import BadInput

RECIPE_MAX_BYTES = 700_000  # below the console's own limit on a request; one of 200 packages has some 60 KB
RECORD_MAX_BYTES = 1024 * 1024  # an order to a node takes 2 MB with the plan beside it
LENGTHS = {"text": 200, "path": 1000, "address": 500, "lines": 20_000}
TAKEN = frozenset({"new"})  # an address of our own pages
ARGUMENTS = {"torch_backend": "torch-backend", "exclude_newer": "exclude-newer"}  # fields that are arguments of the record
STAND_INS = {"commit": "0" * 40, "wheelhouse": "/"}  # right values of needed fields, so that the others are looked at where these are wrong
PRESET_OF_KIND = {"index": "index", "wheelhouse": "wheelhouse", "recipe": "recipe"}  # for a channel that was written by hand


@dataclass(frozen=True, slots=True)
class Shown:
    """A field as the page shows it. `value` is text, for a switch a bool."""

    name: str
    title: str
    kind: str
    required: bool
    choices: list[str]
    help: str
    value: Any
    problem: str
    fixed: bool = False  # shown, and cannot be changed

    @property
    def described_by(self) -> str:
        return " ".join(f"{self.name}-{part}" for part in ("problem", "help") if getattr(self, part))


def presets() -> list[dict[str, Any]]:
    """All presets, in the order in which they are offered."""
    return channels.presets()


def preset(name: str) -> dict[str, Any] | None:
    return next((one for one in presets() if one["name"] == name), None)


def preset_of(record: dict[str, Any]) -> dict[str, Any] | None:
    """What an existing channel was made from."""
    return preset(str(record.get("preset") or "")) or preset(PRESET_OF_KIND.get(str(record.get("kind")), ""))


class ChannelForm(forms.Form):
    """One preset's fields. `channel`: the row that is edited; its name stays."""

    name = forms.CharField(max_length=63, strip=True)

    def __init__(self, made_from: dict[str, Any], data: Any = None, files: Any = None, *, channel: Channel | None = None) -> None:
        super().__init__(data, files)
        self.preset, self.channel = made_from, channel
        self.asked: list[dict[str, Any]] = [dict(one) for one in made_from["fields"]]
        self.made: records.Channel | None = None
        if channel is not None:
            del self.fields["name"]
        for one in self.asked:
            self.fields[one["name"]] = self._field(one)

    def _field(self, asked: dict[str, Any]) -> forms.Field:
        kind, needed = asked["kind"], bool(asked.get("required"))
        if kind == "switch":
            return forms.BooleanField(required=False)
        if kind == "choice":
            return forms.ChoiceField(required=False, choices=[(one, one) for one in asked["choices"]])
        if kind == "json":
            return forms.FileField(required=needed and self.channel is None, max_length=255, allow_empty_file=False,
                                   error_messages={"required": "Choose the recipe's file"})
        return forms.CharField(required=needed, max_length=LENGTHS[kind], strip=True)

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        if not records.NAME.match(name):
            raise forms.ValidationError("Lower-case letters, digits, dot, dash and underscore; a letter or a digit first")
        if name in TAKEN or Channel.objects.filter(name=name).exists():
            raise forms.ValidationError(f"There is a channel called {name} already" if name not in TAKEN else "This name is kept for our own pages")
        return name

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        values: dict[str, Any] = {}
        for one in self.asked:
            if one["name"] in self.errors:
                if one["name"] in STAND_INS:
                    values[one["name"]] = STAND_INS[one["name"]]
                continue
            try:
                if (value := self._value(one, cleaned.get(one["name"]))) is not None:
                    values[one["name"]] = value
            except BadInput as error:
                self.add_error(one["name"], _words(error))
        name = self.channel.name if self.channel else str(cleaned.get("name") or "unnamed")
        made = self._make(name, values)
        if made is None or self.errors:
            return cleaned
        if problem := _not_storable(made):
            self.add_error("recipe" if "recipe" in self.fields else None, problem)
            return cleaned
        self.made = made
        return cleaned

    def _make(self, name: str, values: dict[str, Any]) -> records.Channel | None:
        """The channel, or None and an error beside each field that is not right: a wrong one is left out, and the rest looked at again."""
        while True:
            try:
                recipe = values.get("recipe")
                # Practice packages never meet a real service: what was made on the practice box stays there
                practice = isinstance(recipe, dict) and recipe.get("practice") is True
                return channels.make(self.preset["name"], name=name, practice=practice, **values)
            except BadInput as error:
                field = str(error.facts.get("field") or "")
                if field in self.errors:  # it is needed, and what was given for it is told already
                    return None
                self.add_error(field if field in self.fields else None, _words(error))
                if field not in values:
                    return None
                if field in STAND_INS:
                    values[field] = STAND_INS[field]
                else:
                    del values[field]

    def _value(self, asked: dict[str, Any], told: Any) -> Any:
        """What goes to `channels.make`; None leaves the field out, so that its default counts."""
        kind = asked["kind"]
        if kind == "switch":
            return bool(told)
        if kind == "json":
            if told is None and self.channel is not None:
                return self.channel.record.get("recipe")
            return _read_json(told)
        if kind == "lines":
            return [line.strip() for line in str(told or "").splitlines() if line.strip()] or None
        if told and not str(told).isprintable():
            raise BadInput("It holds characters that cannot be seen", hint="Type it anew")
        return told or None

    def shown(self) -> list[Shown]:
        """All fields with their values and problems, the name first."""
        name = Shown(name="name", title="Name", kind="text", required=True, choices=[], help="Lower-case letters, digits, dot, dash, underscore",
                     value=self.channel.name if self.channel else str(self.data.get("name", "")), problem=self._problem("name"),
                     fixed=self.channel is not None)
        now = values_of(self.channel.record) if self.channel else {}
        return [name, *(self._shown(one, now) for one in self.asked)]

    def _shown(self, asked: dict[str, Any], now: dict[str, Any]) -> Shown:
        name, kind = asked["name"], asked["kind"]
        value: Any
        if self.is_bound:
            value = name in self.data if kind == "switch" else str(self.data.get(name, ""))
        else:
            value = now.get(name, asked.get("default"))
            if kind == "lines":
                value = "\n".join(value or [])
            elif kind == "switch":
                value = bool(value)
            else:
                value = str(value or "")
        words = f"Its JSON file, at most {RECIPE_MAX_BYTES // 1000} kB" if kind == "json" else str(asked.get("help") or "")
        return Shown(name=name, title=asked["title"], kind=kind, required=bool(asked.get("required")) and not (kind == "json" and self.channel),
                     choices=list(asked.get("choices") or []), help=words, value="" if kind == "json" else value,
                     problem=self._problem(name))

    def _problem(self, name: str) -> str:
        return " ".join(str(error) for error in self.errors.get(name, [])) if self.is_bound else ""


def values_of(record: dict[str, Any]) -> dict[str, Any]:
    """A channel's record as the values of its form's fields."""
    channel = records.Channel.from_dict(record)
    values: dict[str, Any] = {name: getattr(channel, name) for name in ("index_url", "wheelhouse", "variant", "commit", "requirements", "without",
                                                                        "prerelease", "extra_index_urls", "index_strategy")}
    values |= {field: channel.arguments.get(argument, "") for field, argument in ARGUMENTS.items()}
    values["flashinfer"] = channels.flashinfer_index(channel)
    if values["flashinfer"]:  # a switch of its own
        values["extra_index_urls"] = [address for address in channel.extra_index_urls if not address.startswith(channels.flashinfer_address())]
    values["recipe"] = str(channel.recipe.get("hash") or "")
    return values


def described(channel: Channel) -> dict[str, Any]:
    """A row as lists show it: `preset` (its title), `from` (list of text: where wheels come from, asked in this order), `details` (list of text)."""
    record = channel.record
    made_from = preset_of(record)
    places = [*(record.get("extra_index_urls") or []), record.get("index_url") or ""]
    details = [f"{argument} {value}" for argument, value in (record.get("arguments") or {}).items()]
    if record.get("variant"):
        details.insert(0, str(record["variant"]))
    if record.get("commit"):
        details.insert(0, f"commit {str(record['commit'])[:12]}")
    if record.get("index_strategy") == "unsafe-first-match":
        details.append("first match over the indexes")
    if record.get("without"):
        details.append(f"without {', '.join(record['without'])}")
    title, words = (made_from["title"], made_from["words"]) if made_from else (str(record.get("kind")), "")
    return {"channel": channel, "preset": title, "words": words, "from": [record["wheelhouse"]] if record.get("wheelhouse") else
            [place for place in places if place], "is_folder": bool(record.get("wheelhouse")), "details": details}


def node_needs(record: dict[str, Any]) -> str:
    """The lines of node.toml that allow the channel, for the node's owner to compare with."""
    lines = []
    if record.get("wheelhouse"):
        lines.append(f"wheelhouse_roots = {json.dumps([record['wheelhouse']])}")
    places = [place for place in [record.get("index_url"), *(record.get("extra_index_urls") or [])] if place]
    if (record.get("arguments") or {}).get("torch-backend"):
        places.append(channels.PYTORCH_INDEX)
    if places:
        lines.append(f"index_urls = {json.dumps(places)}")
    return "\n".join(lines)


def _read_json(upload: Any) -> Any:
    """The object in an uploaded file. Raises BadInput on what is too large or no JSON object."""
    if not isinstance(upload, UploadedFile):
        raise BadInput("There is no file", hint="Choose the recipe's file")
    if upload.size is None or upload.size > RECIPE_MAX_BYTES:
        raise BadInput("This file is too large for a recipe", why=f"At most {RECIPE_MAX_BYTES // 1000} kB are taken")
    try:
        found = json.loads(upload.read(), parse_constant=_no_number)  # as it is: it has a hash over all that stands in it
    except (ValueError, RecursionError) as error:
        raise BadInput("This file is not JSON", why=str(error)[:200]) from error
    if not isinstance(found, dict):
        raise BadInput("This file holds no recipe", why="A recipe is a JSON object")
    return found


def _not_storable(channel: records.Channel) -> str:
    """Why neither a database nor an order to a node can take it; "" if both can."""
    try:
        text = json.dumps(channel.as_dict(), allow_nan=False, ensure_ascii=False)
    except ValueError:
        return "It holds a number that is none in JSON"
    if records.NEVER_IN_TEXT.search(text) or "\\u0000" in text:
        return "It holds characters that no text can hold"
    return "This is too large to be sent to a node" if len(text) > RECORD_MAX_BYTES else ""


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")


def _words(error: BadInput) -> str:
    """A complaint in one line: what, why, what to do."""
    return ". ".join(part.rstrip(".") for part in (error.what, error.why, error.hint) if part).replace("`", "")
