"""The documentation is held to the code: every setting, every event, every link, every command that the README names."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

from ops.artifacts import kinds, places
from ops.command_line.artifacts import patterns, safe_when
from ops.jobs.events import EventType
from ops.records import ServiceRecord

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted([REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *(REPOSITORY / "docs").rglob("*.md")])


def settings_in_the_code() -> set[str]:
    files = [REPOSITORY / "manage.py", REPOSITORY / "Makefile", *(REPOSITORY / "ops").rglob("*.py"), *(REPOSITORY / "dashboard").rglob("*.py")]
    return {name for path in files for name in re.findall(r"ROUNDHOUSE_[A-Z_]*[A-Z]", path.read_text())}


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    documented = set(re.findall(r"^\| `(ROUNDHOUSE_[A-Z_]+)`", (REPOSITORY / "docs/reference/settings.md").read_text(), re.M))
    assert settings_in_the_code() - documented == set()
    assert documented - settings_in_the_code() == set()


def event_rows() -> list[str]:
    """A table row for each event: its type, and its data as the comment above it in ops/jobs/events.py says."""
    source = (REPOSITORY / "ops/jobs/events.py").read_text()
    comments: list[str] = []
    told: dict[str, str] = {}
    line: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not line:
            comments.append(token.string.lstrip("# "))
        elif token.type in (tokenize.NAME, tokenize.STRING, tokenize.OP):
            line.append(token.string)
        elif token.type == tokenize.NEWLINE:
            if len(line) == 3 and line[1] == "=" and line[0] in EventType.__members__:
                told[EventType[line[0]].value] = " ".join(comments)
                shared = comments
                comments = []
                if not shared:  # two events under one comment
                    told[EventType[line[0]].value] = "see the one above"
            elif line:
                comments = []
            line = []
    return [f"| `{name}` | {told[name].replace('|', chr(92) + '|')} |" for name in map(str, EventType)]


def test_every_event_is_documented_as_the_contract_says() -> None:
    page = (REPOSITORY / "docs/reference/events.md").read_text().splitlines()
    assert [row for row in event_rows() if row not in page] == [], "The rows above are missing in docs/reference/events.md"
    assert len([line for line in page if re.match(r"\| `[a-z_.]+` \|", line)]) == len(EventType)


def kind_rows() -> list[str]:
    """A table row for each built-in kind of leftover: what it is, where, when deleting one is safe, what keeping it is worth."""
    rows = []
    for kind in kinds.builtin():
        known = "" if kind.method != "files" else ": " + ", ".join(f"`{pattern}`" for pattern in patterns(kind))
        offered = "with a redeploy too" if kind.with_redeploy else "yes" if kind.offered else "no"
        cells = (f"**{kind.title}** `{kind.name}`", kind.leftover, ", ".join(kind.places) + known, "; ".join(safe_when(kind)), offered, kind.keeping)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def place_rows() -> list[str]:
    """A table row for each name of a place, as the docstring of ops/artifacts/places.py has it."""
    return [f"| `{name}` | {where} |" for name, where in re.findall(r"^    ([a-z-]+)  +(\S.*)$", places.__doc__ or "", re.M)]


def test_every_place_of_leftovers_is_documented_as_the_code_says() -> None:
    page = (REPOSITORY / "docs/guides/cleanup.md").read_text().splitlines()
    known = {name for kind in kinds.builtin() for name in kind.places}
    assert known and {row.split("`")[1] for row in place_rows()} == known
    assert [row for row in place_rows() if row not in page] == [], "The rows above are missing in docs/guides/cleanup.md"


def test_every_kind_of_leftover_is_documented_as_the_data_says() -> None:
    page = (REPOSITORY / "docs/guides/cleanup.md").read_text().splitlines()
    assert [row for row in kind_rows() if row not in page] == [], "The rows above are missing in docs/guides/cleanup.md"
    assert len([line for line in page if line.startswith("| **")]) == len(kinds.builtin())


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_link_and_picture_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", text)
    local = [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if target and not (page.parent / target).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs/README.md").read_text()
    pages = {str(path.relative_to(REPOSITORY / "docs")) for path in PAGES if path.is_relative_to(REPOSITORY / "docs")} - {"README.md"}
    assert sorted(page for page in pages if f"({page})" not in index) == []


def test_every_make_target_that_the_docs_name_exists() -> None:
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text())}
    named |= {target for page in PAGES for target in re.findall(r"^make ([a-z-]+)", page.read_text(), re.M)}
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M))
    assert {"demo", "test"} <= named
    assert named - targets == set()


def test_make_help_names_every_target_for_people() -> None:
    told = subprocess.run(["make", "--no-print-directory", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M)) - {"help", "environment", "environment-tests", "types"}
    assert sorted(target for target in targets if f"make {target}" not in told) == []


def test_the_record_that_the_docs_show_is_one() -> None:
    shown = re.search(r"```json\n(.*?)```", (REPOSITORY / "docs" / "guides" / "nodes.md").read_text(), re.DOTALL)
    assert shown is not None
    assert ServiceRecord.from_dict(json.loads(shown[1])).gpus == list(range(8))


def test_every_picture_is_shown() -> None:
    shown = "".join(page.read_text() for page in [*REPOSITORY.glob("docs/**/*.md"), REPOSITORY / "README.md"])
    pictures = [picture.name for picture in (REPOSITORY / "docs" / "images").glob("*.webp")]
    assert pictures
    assert [name for name in pictures if f"images/{name})" not in shown] == []
