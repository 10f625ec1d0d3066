"""Log lines in vLLM's form, written whole to stderr so that processes never cut into each other's lines.

`(APIServer pid=N) INFO MM-DD HH:MM:SS [file.py:LINE] text`; within one record every line but the last ends in CR LF, as
vLLM's own formatter does it.
"""

import os
import time
import traceback


class ProcessLog:
    """The log of this process. A forked child calls `become` first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = os.getpid()
        self._line_open = False

    def become(self, name: str) -> None:
        """From now on lines carry this name and the pid of the calling process."""
        self.name = name
        self.pid = os.getpid()
        self._line_open = False

    @property
    def prefix(self) -> str:
        return f"({self.name} pid={self.pid}) "

    def info(self, place: str, text: str) -> None:
        self._record("INFO", place, text)

    def warning(self, place: str, text: str) -> None:
        self._record("WARNING", place, text)

    def error(self, place: str, text: str) -> None:
        self._record("ERROR", place, text)

    def exception(self, place: str, title: str) -> None:
        """The exception being handled, with its whole traceback, each line a log line."""
        self._record("ERROR", place, title)
        self._record("ERROR", place, traceback.format_exc().rstrip("\n"))

    def raw(self, text: str) -> None:
        """Text that did not come through the logger (uvicorn, tqdm, tracebacks): each new line gets the prefix only.

        Text after a carriage return within a line gets none: that is how progress bars look in a log file.
        """
        written = []
        for piece in _lines(text):
            written.append(piece if self._line_open else self.prefix + piece)
            self._line_open = not piece.endswith("\n")
        _write("".join(written))

    def _record(self, level: str, place: str, text: str) -> None:
        head = f"{self.prefix}{level} {time.strftime('%m-%d %H:%M:%S')} [{place}] "
        start = "\n" if self._line_open else ""
        self._line_open = False
        _write(start + "\r\n".join(head + line for line in text.split("\n")) + "\n")


def _lines(text: str) -> list[str]:
    """Lines with their newline. Not splitlines: a carriage return does not end a line here."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _write(text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(2, data):]


log = ProcessLog("APIServer")
