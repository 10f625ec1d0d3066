"""Other people's words in our files: a cell of CSV that no sheet takes for a formula, a line of Markdown in which nothing is markup."""

from __future__ import annotations

import re
from typing import Any

_MARKUP = re.compile(r"([\\`*_\[\]<>|#~])")


def cell(value: Any) -> Any:
    """A text that a sheet would take for a formula gets a quote in front, a number stays one; None is an empty cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        return "" if value is None else value
    text = value.replace("\0", "")
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") or text[:1] in ("\t", "\r", "\n") else text


def markdown(text: str) -> str:
    """One line without a table's bar, a link, a tag."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
