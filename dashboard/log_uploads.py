"""A log that a person pasted or uploaded, read for its decisive line. Nothing of it is kept, and of a file never more than a block is in memory.

Uploads lie in a temporary file of Django's while they are read. gzip is read as it is (rotated logs), up to a size: a small file may unpack to a
disk full of nothing.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from django.core.files.uploadedfile import UploadedFile

from dashboard.templatetags.roundhouse import size as size_words
from ops.jobs.errors import BadInput
from ops.services import diagnosis, log_files

UNPACKED_BYTES = 512 << 20
ON_THE_NODE = "On the node there is no limit: `python -m ops diagnose LOGFILE`"
_LOOKED_AT = 60  # lines, for the layout
_LAYOUTS = (
    ("journal entries as JSON", re.compile(r'\{.*"(?:__CURSOR|MESSAGE)"\s*:')),
    ("docker's JSON lines", re.compile(r'\{"log":"')),
    ("JSON lines", re.compile(r'\{\s*"\w+"\s*:')),
    ("kubernetes (CRI)", re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) (?:stdout|stderr) [FP] ")),
    ("kubectl with names of pods", re.compile(r"\[(?:pod/)?[\w.-]+/[\w./-]+\] ")),
    ("docker compose", re.compile(r"[A-Za-z0-9][\w.-]*\s+\| ")),
    ("a journal", re.compile(r"(?:[A-Z][a-z]{2} [ \d]\d [\d:.]+|\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d)?) [\w.-]+ [\w.@:/-]+(?:\[\d+\])?: ")),
    ("Ray", re.compile(r"\((?:Ray\w*|raylet|[\w.]+ pid=\d+, ip=)")),
    ("vLLM's own lines", re.compile(r"(?:\(\S+ pid=\d+\) )?(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[")),
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\r$")


@dataclass(frozen=True, slots=True)
class Read:
    """What was found, and in what: `size` in bytes as it was sent, `layout` in words ("" if it is none that is known), `packed` with gzip."""

    found: diagnosis.Diagnosis
    size: int
    layout: str
    name: str = ""
    packed: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {"lines": self.found.lines, "size": self.size, "layout": self.layout, "name": self.name, "packed": self.packed,
                "state": self.found.state}


class _Unpacked:
    """Reads gzip up to a size. A file that was cut, or is damaged further on, ends there. Raises BadInput beyond the size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._seen = gzip.GzipFile(fileobj=file, mode="rb"), 0

    def read(self, size: int, /) -> bytes:
        try:
            data = self._file.read1(size)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return b""
        self._seen += len(data)
        if self._seen > UNPACKED_BYTES:
            raise BadInput(f"Unpacked this file is larger than {size_words(UNPACKED_BYTES)}", hint=ON_THE_NODE)
        return data


def read_text(text: str) -> Read:
    """A pasted log. Raises BadInput for nothing at all."""
    if not text.strip():
        raise BadInput("There is nothing to read", hint="Paste the log, or choose its file")
    return Read(diagnosis.diagnose(text), len(text.encode(errors="replace")), layout(text[:log_files.HEAD_BYTES * 4]))


def read_upload(upload: UploadedFile, *, limit: int) -> Read:
    """An uploaded log. Raises BadInput for one that is empty, too large, or no text."""
    size, name = upload.size or 0, (upload.name or "")[:200]
    if not size:
        raise BadInput("This file is empty", hint="Choose the log, or paste it")
    if size > limit:
        raise BadInput(f"This file is larger than {size_words(limit)}", hint=ON_THE_NODE)
    file = cast(BinaryIO, upload.file)
    file.seek(0)
    head = file.read(log_files.HEAD_BYTES)
    packed = log_files.is_gzip(head)
    if packed:
        file.seek(0)
        head = _Unpacked(file).read(log_files.HEAD_BYTES)
        if not head:
            raise BadInput("This file cannot be unpacked", why="It begins like gzip, and is damaged from its beginning on")
        if log_files.is_gzip(head):
            raise BadInput("This file is packed with gzip twice", hint="Unpack it, then choose it again")
    if problem := log_files.problem(head):
        raise BadInput("This file is no log", why=problem, hint="Choose a text file; gzip is fine")
    file.seek(0)
    found = diagnosis.diagnose_stream(_Unpacked(file) if packed else file)
    return Read(found, size, layout(head.decode(log_files.encoding(head), errors="replace")), name, packed)


def layout(head: str) -> str:
    """What wraps most of a log's first lines, in words; "" where nothing known does."""
    lines = [line for line in (_COLOUR.sub("", line) for line in head.lstrip("\ufeff").split("\n")[:_LOOKED_AT]) if line.strip()]
    for words, form in _LAYOUTS:
        if lines and sum(1 for line in lines if form.match(line)) * 2 >= len(lines):
            return words
    return ""
