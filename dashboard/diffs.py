"""A unified diff as rows for a page: line numbers, what was added and removed, the code in colours, and marks on single lines.

Colours are classes (`t-k` keyword, `t-s` string, ...), since the content security policy forbids style attributes. Code is lexed as whole hunks,
old and new text apart, so that a string of several lines keeps its colour; it is only ever read as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from pygments.lexer import Lexer
from pygments.lexers.configs import TOMLLexer
from pygments.lexers.data import JsonLexer
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, _TokenType

MOST_LINES = 1200  # a page shows so many; the download has all
MOST_WIDTH = 1000  # characters of a line that are shown
COLOURED_CHARACTERS = 400_000  # longer text stays plain: lexers take their time
# A node chooses name and text of a file: of Pygments' lexers these alone end in good time whatever the text is (YAML's, INI's, C's and many others
# need minutes for 20 KB of one character)
LEXERS: dict[str, type[Lexer]] = {"py": PythonLexer, "pyi": PythonLexer, "json": JsonLexer, "toml": TOMLLexer}
HOT_PATH = "debug code in a hot path"
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)\Z")
_CLASSES: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "t-c"), (String.Doc, "t-c"), (String, "t-s"), (Number, "t-n"), (Keyword, "t-k"), (Name.Function, "t-f"), (Name.Class, "t-f"),
    (Name.Decorator, "t-d"), (Name.Builtin, "t-b"))
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def rows(diff: Any, path: str = "", debris: Any = None) -> dict[str, Any]:
    """`{"rows", "more", "added", "removed", "marked"}` of a unified diff.

    A row is `{"kind": "at" | "add" | "del" | "same", "old", "new" (line numbers or None), "html", "what"}`; `what` says why a line is marked
    (`debris`: `[{"line", "text", "what"}]` of ops/environments/debris.py). `more`: lines that are not shown.
    """
    lines = _lines(diff)
    shown = lines[:MOST_LINES]
    found: list[dict[str, Any]] = []
    lexer = _lexer(path) if sum(map(len, shown)) <= COLOURED_CHARACTERS else None
    hunk: list[dict[str, Any]] = []
    old = new = 0
    for line in shown:
        if line.startswith(("--- ", "+++ ")) and not hunk and not found:
            continue  # the names of the file, which its heading has already
        if match := _HUNK.match(line):
            _colour(hunk, lexer)
            hunk = []
            old, new = int(match[1]), int(match[2])
            where = match[3].strip()
            found.append({"kind": "at", "old": None, "new": None, "text": line, "what": "",
                          "html": _plain(f"line {new}" + (f", in {where}" if where else ""))})
            continue
        kind = {"+": "add", "-": "del", " ": "same"}.get(line[:1], "same" if not line else "at")
        row: dict[str, Any] = {"kind": kind, "old": None, "new": None, "text": line[1:] if kind != "at" else line, "what": ""}
        row["html"] = _plain(row["text"])
        if kind in ("del", "same"):
            row["old"], old = old, old + 1
        if kind in ("add", "same"):
            row["new"], new = new, new + 1
        found.append(row)
        if kind != "at":
            hunk.append(row)
    _colour(hunk, lexer)
    marked = _mark(found, debris)
    added, removed = counts(diff)
    return {"rows": found, "more": len(lines) - len(shown), "marked": marked, "added": added, "removed": removed}


def _lines(diff: Any) -> list[str]:
    """Lines as a diff has them: only a newline ends one (a form feed, say, is a part of Python sources)."""
    lines = diff.split("\n") if isinstance(diff, str) else []
    return [line.removesuffix("\r") for line in (lines[:-1] if lines and not lines[-1] else lines)]


def counts(diff: Any) -> tuple[int, int]:
    """Lines added, lines removed."""
    lines = [line for line in _lines(diff) if not line.startswith(("+++ ", "--- "))]
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)


def _plain(text: str) -> SafeString:
    cut = text[:MOST_WIDTH] + ("…" if len(text) > MOST_WIDTH else "")
    return format_html("{}", _UNSEEN.sub("�", cut))


def _lexer(path: str) -> Lexer | None:
    kind = LEXERS.get(path.rpartition(".")[2].lower()) if "." in path else None
    return None if kind is None else kind(stripnl=False, ensurenl=False)


def _colour(hunk: Sequence[dict[str, Any]], lexer: Lexer | None) -> None:
    """Gives the rows of one hunk their coloured text: the old side's for removed lines, the new side's for the others."""
    if lexer is None or not hunk:
        return
    for kinds, wanted in ((("del", "same"), ("del",)), (("add", "same"), ("add", "same"))):
        side = [row for row in hunk if row["kind"] in kinds]
        if not any(row["kind"] in wanted for row in side):
            continue
        for row, html in zip(side, _coloured_lines([row["text"] for row in side], lexer), strict=True):
            if row["kind"] in wanted and len(row["text"]) <= MOST_WIDTH:
                row["html"] = html


def _coloured_lines(lines: Sequence[str], lexer: Lexer) -> list[SafeString]:
    told: list[list[SafeString]] = [[]]
    # What no lexer should see as a line's end; one character stays one, so lines keep their count
    text = "\n".join(_UNSEEN.sub("�", line[:MOST_WIDTH]) for line in lines)  # a longer line is shown plain, and costs its length squared
    for kind, value in lexer.get_tokens(text):
        name = _class(kind)
        for n, part in enumerate(value.split("\n")):
            if n:
                told.append([])
            if part:
                told[-1].append(format_html('<span class="{}">{}</span>', name, part) if name else format_html("{}", part))
    html = [format_html_join("", "{}", ((part,) for part in parts)) for parts in told]
    return (html + [SafeString("")] * max(0, len(lines) - len(html)))[:len(lines)]


def _class(kind: _TokenType) -> str:
    for wanted, name in _CLASSES:
        if kind in wanted:
            return name
    return ""


def _mark(found: Sequence[dict[str, Any]], debris: Any) -> int:
    """Marks added lines that are debris; by their text, and by their number where a text stands in several. Gives how many."""
    marked = 0
    for item in debris if isinstance(debris, list) else []:
        if not isinstance(item, dict):
            continue
        text, line = str(item.get("text") or "").strip().lstrip("+").strip(), item.get("line")
        same = [row for row in found if row["kind"] == "add" and not row["what"] and text and row["text"].strip() == text]
        row = next((row for row in same if row["new"] == line), same[0] if same else None)
        if row is not None:
            row["what"] = str(item.get("what") or HOT_PATH)[:200]
            marked += 1
    return marked


def debris_words(debris: Any) -> list[str]:
    """What the debris of a file is, each kind once."""
    said: list[str] = []
    for item in debris if isinstance(debris, list) else []:
        what = str(item.get("what") or "")[:200] if isinstance(item, dict) else ""
        if what and what not in said:
            said.append(what)
    return said


def whole_patch(patches: Iterable[Any]) -> str:
    """Shelved patches as one text that `patch -p1` and `git apply` take; a file without a diff is named in a comment line."""
    parts = []
    for patch in patches:
        if patch.diff:
            parts.append(patch.diff if patch.diff.endswith("\n") else f"{patch.diff}\n")
        else:
            parts.append(f"# {patch.path}: {patch.change}, no difference to show; the copy lies at {patch.where or 'its node'}\n")
    return "".join(parts)
