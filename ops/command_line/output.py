"""What every command prints with: JSON, tables, one changing line on stderr, errors in their three parts."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from ops.jobs.errors import BadInput, OpsError
from ops.jobs.redact import plain_text

WRONG_ARGUMENTS = 2
INTERRUPTED = 130
LOG_LIMIT = 64 * 1024 * 1024  # bytes of a file that is read, from its end


class WrongArguments(BadInput):
    """What stands on the command line cannot be, whatever the server or the disk says."""


@contextmanager
def from_arguments() -> Iterator[None]:
    """What is refused within it was wrong on the command line: exit code 2."""
    try:
        yield
    except BadInput as error:
        raise WrongArguments(error.what, why=error.why, hint=error.hint, **error.facts) from error


class PlainTerminal:
    """A terminal that gets text only: names, versions and diffs come from environments and model folders, and none of them moves the cursor, changes
    colours or turns the direction of reading. What goes into a file or a pipe is exact."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(plain_text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def printable(stream: TextIO) -> TextIO:
    """The stream, with what keeps a terminal whole; a file name that is no text does not end the command."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return cast(TextIO, PlainTerminal(stream)) if stream.isatty() else stream


def tell(error: OpsError, json_output: bool) -> None:
    print(plain_text(f"error: {error}"), file=sys.stderr)
    if json_output:
        print_json({"error": error.as_dict()})


def print_json(value: Any) -> int:
    print(json.dumps(value, indent=1, ensure_ascii=False))
    return 0


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: set[int]) -> None:
    """Aligned columns, numbers to the right, those in `left` to the left."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        print("  ".join(cells).rstrip())


class StatusLine:
    """One line on stderr that changes; nothing where stderr is no terminal, but for what is said."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\x1b[2K{plain_text(text[:150])}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._shown = False

    def say(self, text: str) -> None:
        self.clear()
        print(plain_text(text), file=sys.stderr, flush=True)



def print_finding(finding: Mapping[str, Any]) -> None:
    """A finding with its why and its fix, indented."""
    print(f"{finding['level']}: {finding['title']}")
    if finding.get("why"):
        print(f"  {finding['why']}")
    if finding.get("fix"):
        print(f"  fix: {finding['fix']}")


def size(count: int | None) -> str:
    """`1.5 GB`, `640 kB`; "unknown" for None."""
    if count is None:
        return "unknown"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}" if count < 100 * factor else f"{count / factor:.0f} {unit}"
    return f"{count} B"


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C (or SIGTERM) only makes the given callable true, so that partial results are kept; the second one ends at once."""
    pressed = False

    def on_interrupt(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = {number: signal.signal(number, on_interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: pressed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_whole(path: Path, most: int) -> bytes:
    """A file's bytes. Raises BadInput for one that cannot be read, or holds more than `most` (a device may have no end, and no size either)."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as error:  # the latter: a NUL in the path
        raise BadInput(f"`{path}` cannot be read", why=getattr(error, "strerror", None) or str(error)) from error
    if len(content) > most:
        raise BadInput(f"`{path}` is larger than {most >> 20} MiB", hint="Leave the texts of the responses out of it")
    return content


def read_end(name: str) -> bytes:
    """A file's last LOG_LIMIT bytes; `-` is stdin. Raises BadInput."""
    try:
        if name == "-":
            return sys.stdin.buffer.read()[-LOG_LIMIT:]
        with Path(name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_LIMIT))
            return file.read()
    except FileNotFoundError as error:
        raise BadInput(f"There is no file `{name}`", why="" if Path(name).is_absolute() else f"Looked for in {Path.cwd()}",
                       hint="Give the path of a log, or - to read one from stdin") from error
    except OSError as error:
        raise BadInput(f"`{name}` cannot be read", why=error.strerror or str(error)) from error
