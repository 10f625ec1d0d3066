"""Log text as HTML for the page's first view. job_log.js draws the same from then on; both follow the same rules.

Log text is untrusted: it is escaped, ANSI colours become classes, and every other control or bidirectional character goes.
"""

from __future__ import annotations

import re
from typing import Any

from django import template
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER_ESCAPES = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|\[[0-9;?]*[ -/]*[@-ln-~]|[@-Z\\-_])")
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_PREFIX = re.compile(r"^(\([A-Za-z][^()]{0,40}pid=\d+\)|[\w.-]+\[\d+\]:)")
_LEVEL = re.compile(r"\b(INFO|DEBUG|WARNING|ERROR|CRITICAL)\b( \d\d-\d\d)?( \d\d:\d\d:\d\d)?( \[[^\]]{1,80}\])?")
COLOURS = {30: "black", 31: "red", 32: "green", 33: "yellow", 34: "blue", 35: "magenta", 36: "cyan", 37: "white",
           90: "black", 91: "red", 92: "green", 93: "yellow", 94: "blue", 95: "magenta", 96: "cyan", 97: "white"}


def clean(line: str) -> str:
    """The line without anything but text and colour codes; of text written over with a carriage return, the last."""
    line = line.rstrip("\r")
    if "\r" in line:
        line = line.rsplit("\r", 1)[1]
    return _UNSEEN.sub("", _OTHER_ESCAPES.sub("", line))


def plain(line: str) -> str:
    return _SGR.sub("", clean(line))


@register.filter
def log_html(line: Any) -> SafeString:
    """One line as HTML: ANSI colours where it has them, else vLLM's own parts (process, level, time) told apart."""
    text = clean(str(line))
    return mark_safe(_ansi(text) if "\x1b[" in text else _parts(text))  # noqa: S308 - both escape every piece of the line


def _ansi(text: str) -> str:
    out, bold, colour, at = [], False, "", 0
    for match in [*_SGR.finditer(text), None]:
        piece = text[at:match.start() if match else len(text)].replace("\x1b", "")
        if piece:
            names = " ".join(n for n in ("a-bold" if bold else "", f"a-{colour}" if colour else "") if n)
            out.append(f'<span class="{names}">{escape(piece)}</span>' if names else escape(piece))
        if match is None:
            break
        at = match.end()
        for code in [int(c or 0) for c in match.group(1).split(";") if len(c) < 4]:  # no code is longer, and Python refuses thousands of digits
            if code == 0:
                bold, colour = False, ""
            elif code == 1:
                bold = True
            elif code == 22:
                bold = False
            elif code == 39:
                colour = ""
            elif code in COLOURS:
                colour = COLOURS[code]
    return "".join(out)


def _parts(text: str) -> str:
    out = ""
    if prefix := _PREFIX.match(text):
        out, text = f'<span class="dim">{escape(prefix.group(1))}</span>', text[prefix.end():]
    if (level := _LEVEL.search(text)) and level.start() <= 12:
        word = level.group(1)
        tone = {"INFO": "info", "DEBUG": "dim", "WARNING": "warning"}.get(word, "error")
        rest = "".join(g for g in level.groups()[1:] if g)
        out += escape(text[:level.start()]) + f'<span class="{tone}">{word}</span>' + (f'<span class="dim">{escape(rest)}</span>' if rest else "")
        text = text[level.end():]
    elif text.startswith("Roundhouse: "):
        return out + f'<span class="note">{escape(text)}</span>'
    return out + escape(text)
