"""The form of a kind of leftover that an admin adds, and the words for every kind there is.

What a kind may be is decided by `ops/artifacts/kinds.py own`, the same for the form, the command line and the node; here each of its complaints finds
its field. Which folders may be cleaned up at all is each node's own to say: `artifact_roots` in its node.toml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import QueryDict

from dashboard import cleanup_rows
from dashboard.from_a_node import texts
from dashboard.models import ArtifactKind, Node
from ops.artifacts import kinds
from ops.artifacts.found import shown
from ops.artifacts.kinds import CONDITIONS, KIND_NAME, METHODS, OWN_CONDITIONS, Kind
from ops.artifacts.places import MADE_FOR_TEMPORARY_FILES, check_root_by_name
from ops.jobs.errors import BadInput

TAKEN = frozenset({"new"})  # an address of our own pages
OWN_MOST = 100  # kinds: every scan, and every plan, takes all of them along
OWN_BYTES_MOST = 512 * 1024  # of all of them, as JSON: an order may have 2 MB
LINES_MOST = 50  # folders, and patterns, of one kind
TOLD_MOST = 5  # sentences about one node
HOUR, DAY = 3600, 86400
UNITS = {"hours": HOUR, "days": DAY}
PLACE_WORDS = {
    "scratch": "scratch folders of services", "tmp": "temporary folders", "shm": "shared memory", "service-folder": "where services run",
    "cores": "where the kernel puts core dumps", "gpu-cores": "where CUDA puts core dumps", "vllm-cache": "vLLM's cache",
    "vllm-dump": "vLLM's dump folder", "flashinfer-cache": "FlashInfer's cache", "flashinfer-dump": "FlashInfer's dump folder",
    "autotune-cache": "the autotune cache", "triton-cache": "Triton's cache", "torch-cache": "PyTorch's cache", "nv-cache": "the CUDA driver's cache",
    "rpc": "vLLM's socket folder", "pip-cache": "pip's cache", "releases": "releases of services", "uv-cache": "uv's cache"}
CLASSES = {"[0-9a-f]": "hex", "[0-9]": "number", "[A-Z2-7]": "hash"}  # of which a name has some in a row
RUNS = re.compile(rf"({'|'.join(map(re.escape, CLASSES))})(?:\1)*\*?")
UUID = "<hex>-<hex>-4<hex>-[89ab]<hex>-<hex>"
# Right values of each field that `own` looks at: so the others are looked at, too, where one is wrong
STAND_INS: dict[str, Any] = {
    "name": "x-stand-in", "title": "x", "one": "x", "leftover": "x", "keeping": "x", "places": ["/x/y"], "patterns": ["x.tmp"], "depth": 4,
    "min_age_s": float(DAY), "conditions": [], "offered": False, "any_owner": False, "own": True}


@dataclass(frozen=True, slots=True)
class Shown:
    """A field as the page shows it. `kind`: text, lines, number, age, checks or switch; `value` is text, of a switch a bool, of checks a list."""

    name: str
    title: str
    kind: str
    help: str
    value: Any
    problem: str
    most: int = 0
    choices: tuple[tuple[str, str], ...] = ()
    unit: str = ""
    fixed: bool = False  # shown, and cannot be changed
    mono: bool = False

    @property
    def described_by(self) -> str:
        return " ".join(f"{self.name}-{part}" for part in ("problem", "help") if getattr(self, part))


FIELDS: tuple[dict[str, Any], ...] = (
    {"name": "name", "title": "Name", "kind": "text", "most": 40, "help": "Lower-case letters, digits and dashes: `bench-scratch`"},
    {"name": "title", "title": "Title", "kind": "text", "most": 60, "help": "What several are called: `Benchmark scratch files`"},
    {"name": "one", "title": "One of them", "kind": "text", "most": 60, "help": "What a single one is called: `benchmark scratch file`"},
    {"name": "places", "title": "Folders", "kind": "lines", "mono": True,
     "help": "Absolute, one a line. A node looks into one only if its node.toml allows it"},
    {"name": "patterns", "title": "Names", "kind": "lines", "mono": True,
     "help": "One a line: `nightly-*.bin` is a name anywhere below the folder, `runs/*/dump_*.bin` a path in it. Nothing but `*` is refused"},
    {"name": "depth", "title": "How deep", "kind": "number", "most": 32, "help": "Folders down that a name is looked for in; 0: only directly in it"},
    {"name": "min_age", "title": "At least this old", "kind": "age",
     "help": "Since its last change; at least one hour: a younger file may still be written"},
    {"name": "conditions", "title": "Only if", "kind": "checks", "help": "An open file is never deleted, with or without these"},
    {"name": "leftover", "title": "Why it is a leftover", "kind": "text", "most": 300, "help": "A sentence that stands in previews and manifests"},
    {"name": "keeping", "title": "What keeping it is worth", "kind": "text", "most": 300, "help": "`Nothing reads it again`, or what would be lost"},
    {"name": "offered", "title": "Chosen when a preview opens", "kind": "switch", "help": "Otherwise a person has to choose it each time"},
    {"name": "any_owner", "title": "Also files of other users", "kind": "switch",
     "help": "Otherwise only files of the user that the node's agent runs as. The operating system must allow it as well"},
)


class KindForm(forms.Form):
    """`stored`: the row that is edited; its name stays. `made`: the record, once the form is right."""

    name = forms.CharField(max_length=40, strip=True)
    title = forms.CharField(max_length=60, strip=True)
    one = forms.CharField(max_length=60, strip=True)
    places = forms.CharField(max_length=20_000)
    patterns = forms.CharField(max_length=20_000)
    depth = forms.IntegerField(min_value=0, max_value=32, initial=4)
    min_age = forms.FloatField(min_value=0, initial=7)
    min_age_unit = forms.ChoiceField(choices=[(unit, unit) for unit in UNITS], initial="days", required=False)
    conditions = forms.MultipleChoiceField(choices=[(name, name) for name in OWN_CONDITIONS], required=False)
    leftover = forms.CharField(max_length=300, strip=True)
    keeping = forms.CharField(max_length=300, strip=True)
    offered = forms.BooleanField(required=False)
    any_owner = forms.BooleanField(required=False)

    def __init__(self, data: QueryDict | None = None, *, stored: ArtifactKind | None = None) -> None:
        super().__init__(data)
        self.posted = data if data is not None else QueryDict()
        self.stored = stored
        self.made: dict[str, Any] | None = None
        if stored is not None:
            del self.fields["name"]

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        if not KIND_NAME.match(name):
            raise forms.ValidationError("Lower-case letters, digits and dashes; a letter or a digit first")
        if name in TAKEN:
            raise forms.ValidationError("This name is kept for our own pages")
        if name in cleanup_rows.known_kinds():
            raise forms.ValidationError(f"There is a kind called {name} already")
        return name

    def clean_places(self) -> list[str]:
        places = _lines(self.cleaned_data["places"])
        for place in places:
            if place.startswith("/") and place.strip("/").count("/") < 1 and place.rstrip("/") not in MADE_FOR_TEMPORARY_FILES:
                raise forms.ValidationError(f"{place[:100]} is too much: name a folder in it")
            try:
                check_root_by_name(place)
            except BadInput as error:
                raise forms.ValidationError(_words(error)) from error
        return [place.rstrip("/") or place for place in places]

    def clean_patterns(self) -> list[str]:
        return _lines(self.cleaned_data["patterns"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        for name in ("title", "one", "leftover", "keeping"):
            if name in cleaned and not cleaned[name].isprintable():
                self.add_error(name, "It holds characters that cannot be seen. Type it anew")
        if "min_age" in cleaned:
            cleaned["min_age_s"] = float(round(cleaned["min_age"] * UNITS.get(cleaned.get("min_age_unit") or "days", DAY)))
            if cleaned["min_age_s"] > 10 * 365 * DAY:
                self.add_error("min_age", "At most ten years")
        record = {name: cleaned[name] for name in STAND_INS if name in cleaned} | {"own": True}
        record["name"] = self.stored.name if self.stored is not None else cleaned.get("name", STAND_INS["name"])
        for name in ("places", "patterns", "min_age_s", "conditions"):
            field = "min_age" if name == "min_age_s" else name
            if name in record and field not in self.errors and (problem := _problem({name: record[name]})):
                self.add_error(field, problem)
        if self.errors:
            return cleaned
        try:
            made = kinds.own([STAND_INS | record])[0]
        except BadInput as error:  # only together, which no rule of today does
            self.add_error(None, _words(error))
            return cleaned
        others = ArtifactKind.objects.exclude(name=made.name).values_list("record", flat=True)
        if len(json.dumps([*others, made.as_dict()])) > OWN_BYTES_MOST:
            self.add_error(None, f"All kinds of your own together may have {OWN_BYTES_MOST // 1024} KiB: name fewer folders")
            return cleaned
        self.made = made.as_dict()
        return cleaned

    def shown(self) -> list[Shown]:
        """All fields with their values and problems."""
        now = dict(self.stored.record) if self.stored is not None else {}
        age = now.get("min_age_s")
        if isinstance(age, int | float):
            now["min_age_unit"] = "days" if age % DAY == 0 else "hours"
            now["min_age"] = f"{age / UNITS[now['min_age_unit']]:g}"
        return [self._shown(one, now) for one in FIELDS]

    def _shown(self, asked: dict[str, Any], now: dict[str, Any]) -> Shown:
        name, kind = asked["name"], asked["kind"]
        field = self.fields.get(name)
        value: Any = now.get(name, field.initial if field is not None else "")
        unit = now.get("min_age_unit", "days")
        if self.is_bound and field is not None:
            value = self.posted.getlist(name) if kind == "checks" else name in self.posted if kind == "switch" else self.posted.get(name, "")
            unit = str(self.posted.get("min_age_unit", unit))
        elif kind == "lines":
            value = "\n".join(texts(value, LINES_MOST))
        elif kind == "checks":
            value = texts(value, len(OWN_CONDITIONS))
        elif kind == "switch":
            value = bool(value)
        else:
            value = "" if value is None else str(value)
        return Shown(
            name=name, title=asked["title"], kind=kind, help=asked["help"], value=value, most=asked.get("most", 0), mono=asked.get("mono", False),
            problem=" ".join(str(error) for error in self.errors.get(name, [])) if self.is_bound else "", fixed=field is None,
            choices=tuple((one, CONDITIONS[one]) for one in OWN_CONDITIONS) if kind == "checks" else tuple((one, one) for one in UNITS)
            if kind == "age" else (), unit=unit if unit in UNITS else "days")


# ---- words ----


def described(kind: Kind) -> dict[str, Any]:
    """A kind as lists show it: `title`, `kind`, `where` (words or folders), `names` (patterns), `when` (sentences), `chosen` (whether at first); of
    an own one its `row`, and why it is not taken any more in `problem`."""
    where = [PLACE_WORDS.get(place, place if place.startswith("/") else place.replace("-", " ")) for place in kind.places]
    when = [f"older than {kinds.age(kind.min_age_s)}"] if kind.min_age_s else []
    when += [CONDITIONS[name] for name in kind.conditions] + ([METHODS[kind.method]] if kind.method != "files" else [])
    names = kind.patterns if kind.own else list(dict.fromkeys(map(name_words, kind.patterns))) if kind.method == "files" else []
    return {"row": None, "problem": "", "title": kind.title, "kind": kind, "where": where,
            "names": names, "when": when, "chosen": kind.offered}


def builtin() -> list[dict[str, Any]]:
    return [described(kind) for kind in kinds.builtin()]


def own() -> list[dict[str, Any]]:
    """The kinds that admins added; one that this version does not take any more says why in `problem`."""
    made = []
    for row in ArtifactKind.objects.all():
        try:
            made.append({**described(kinds.own([row.record])[0]), "row": row})
        except BadInput as error:
            made.append({"row": row, "problem": _words(error), "title": row.name, "kind": None, "where": [], "names": [], "when": [],
                         "chosen": False})
    return made


def name_words(pattern: str) -> str:
    """A pattern of a built-in kind for people: `core.<number>` for one to seven digits, `<hex>`, `<hash>`, `<uuid>`."""
    return RUNS.sub(lambda found: f"<{CLASSES[found[1]]}>", pattern).replace(UUID, "<uuid>")


def node_line(places: Iterable[str]) -> str:
    """The line of a node.toml that allows these folders."""
    quoted = (place.replace("\\", "\\\\").replace('"', '\\"') for place in places)
    return f"artifact_roots = [{', '.join(f'{chr(34)}{place}{chr(34)}' for place in quoted)}]"


def found_by_scans(name: str, folders: Iterable[str] = ()) -> list[dict[str, Any]]:
    """What the newest scan of each node found of a kind: {node, scan, count, size_bytes, told}; nodes whose scan did not know it are left out.
    `told`: why it did not look into one of `folders`, as sentences (ops/artifacts/places.py), the first few."""
    begin = tuple(f"`{shown(folder)}`" for folder in folders)
    nodes = list(Node.objects.all())
    found = []
    for pk, scan in cleanup_rows.newest_scans(nodes).items():
        kind: Mapping[str, Any] | None = next((one for one in scan.summary.get("kinds") or [] if one.get("kind") == name), None)
        if kind is not None:
            totals = [kind.get(state) or {} for state in cleanup_rows.STATES]
            told = [one for one in texts(scan.summary.get("problems"), cleanup_rows.PROBLEMS_MOST) if one.startswith(begin)]
            found.append({"node": next(node for node in nodes if node.pk == pk), "scan": scan, "count": sum(one.get("count") or 0 for one in totals),
                          "size_bytes": sum(one.get("size_bytes") or 0 for one in totals),
                          "told": told[:TOLD_MOST]})
    return found


def is_too_many() -> bool:
    """Whether there are as many own kinds as there may be."""
    return ArtifactKind.objects.count() >= OWN_MOST


def _problem(values: dict[str, Any]) -> str:
    """What `own` says against these values, if the rest is right."""
    try:
        kinds.own([STAND_INS | values])
    except BadInput as error:
        return _words(error)
    return ""


def _words(error: BadInput) -> str:
    told = error.what.replace(f"The kind `{STAND_INS['name']}` ", "It ").replace("`", "")
    return f"{told}. {error.hint}" if error.hint else f"{told}. {error.why}" if error.why else told


def _lines(text: str) -> list[str]:
    lines = list(dict.fromkeys(line.strip() for line in str(text).splitlines() if line.strip()))
    if not lines:
        raise forms.ValidationError("This is needed")
    if len(lines) > LINES_MOST:
        raise forms.ValidationError(f"At most {LINES_MOST} lines")
    if odd := next((line for line in lines if not line.isprintable()), None):
        raise forms.ValidationError(f"It holds characters that cannot be seen: {odd[:60]!r}")
    return lines
