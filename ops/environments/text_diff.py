"""The unified diff of two contents, with bounds: some hundred files may be told at once, and a file may be anything."""

from __future__ import annotations

import difflib

COMPARED_BYTES = 4 * 1024 * 1024  # of each side; a larger file is copied, not compared
COMPARED_LINES = 60_000  # of each side; vLLM's longest module has 6,000. difflib needs minutes where 100,000 lines all differ


def unified(before: bytes | None, after: bytes | None, path: str) -> str | None:
    """How `before` became `after`; None for one of them: the file was not there. None comes back where nothing differs, where one of the two is
    no UTF-8 text, and beyond the bounds."""
    if max(len(before or b""), len(after or b"")) > COMPARED_BYTES:
        return None
    try:
        old, new = ((content or b"").decode("utf-8") for content in (before, after))
    except UnicodeDecodeError:
        return None
    if "\0" in old or "\0" in new:
        return None
    # only at "\n": a form feed or a line separator inside of a line is content
    old_lines, new_lines = (_lines(text) for text in (old, new))
    if max(len(old_lines), len(new_lines)) > COMPARED_LINES:
        return None
    told = []
    for line in difflib.unified_diff(old_lines, new_lines, f"a/{path}" if before is not None else "/dev/null",
                                     f"b/{path}" if after is not None else "/dev/null"):
        told.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(told) or None


def _lines(text: str) -> list[str]:
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def cut(text: str, limit: int) -> tuple[str, bool]:
    """The text's first lines that fit into `limit` bytes of UTF-8, and whether something was cut off."""
    content = text.encode("utf-8", "surrogatepass")
    if len(content) <= limit:
        return text, False
    end = content.rfind(b"\n", 0, limit) + 1
    return content[:end or limit].decode("utf-8", "ignore"), True
