"""A level's requests in one compressed file of columns: `c8.npz`, which numpy.load reads, written and read without numpy.

It is a zip archive of `.npy` members, one a column, one value a request in the order of sending; times are ns from the level's start and -1 means
"none" everywhere:

    index, slot, status                          int32
    sched_ns, send_ns, end_ns                    int64
    output_tokens, reasoning_tokens, prompt_tokens   int32
    finish_reason, error_kind                    uint8: places in `level.json`'s lists of these names (0 is "")
    unfinished, connected, retried               uint8: 0 or 1
    chunk_offsets                                int64, one more than requests: request i has the chunks offsets[i] .. offsets[i + 1] - 1
    chunk_gaps_ns                                int32 or int64, a value a chunk: the first since send_ns, then since the chunk before
    chunk_kinds                                  uint8: the letter (c content, r reasoning, t a tool call's arguments)
    chunk_tokens                                 int32: tokens of the chunk where the server reports usage in every event, else no such member

`level.json` holds the rest: schema, load, value, requests, started_at (seconds since the epoch), seed, stopped, the two lists, and `errors`,
the text of each failed request by its place.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zipfile
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from ops.benchmark.request_record import RequestRecord
from ops.jobs.errors import BadInput

SCHEMA = "roundhouse.level/2"
SUFFIX = ".npz"
MAX_REQUESTS = 1_000_000
MAX_MEMBER = 4 * 1024**3  # bytes, unpacked
MAX_HEAD = 64 * 1024 * 1024
_CODES = {"<i4": "i", "<i8": "q", "|u1": "B"}
_HEADER = re.compile(r"\{'descr': '([<|]\w\d)', 'fortran_order': False, 'shape': \((\d{1,12}),\), \}\s*")
_MAGIC = b"\x93NUMPY\x01\x00"

# column: descr, value of a request (times are made relative before)
_COLUMNS: dict[str, tuple[str, Callable[[RequestRecord, int], int | None]]] = {
    "index": ("<i4", lambda r, t0: r.index), "slot": ("<i4", lambda r, t0: r.slot), "status": ("<i4", lambda r, t0: r.status),
    "sched_ns": ("<i8", lambda r, t0: r.t_sched - t0), "send_ns": ("<i8", lambda r, t0: r.t_send - t0),
    "end_ns": ("<i8", lambda r, t0: None if r.t_end is None else r.t_end - t0),
    "output_tokens": ("<i4", lambda r, t0: r.output_tokens), "reasoning_tokens": ("<i4", lambda r, t0: r.reasoning_tokens),
    "prompt_tokens": ("<i4", lambda r, t0: r.prompt_tokens),
    "unfinished": ("|u1", lambda r, t0: r.unfinished), "connected": ("|u1", lambda r, t0: r.connected), "retried": ("|u1", lambda r, t0: r.retried),
}


def write(path: Path, records: Sequence[RequestRecord], *, t0: int, head: dict[str, Any]) -> Path:
    """Writes the level's requests, times from `t0`; the file appears whole or not at all. `head`: what `level.json` says besides."""
    part = path.with_suffix(".part")
    try:
        _write(part, records, t0, head)
        part.replace(path)
    except OSError:  # a full disk: what is there of it only takes room
        part.unlink(missing_ok=True)
        raise
    return path


def _write(part: Path, records: Sequence[RequestRecord], t0: int, head: dict[str, Any]) -> None:
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=5) as file:
        for name, (descr, value) in _COLUMNS.items():
            _member(file, name, descr, len(records), [array(_CODES[descr], (_whole(value(record, t0), descr) for record in records))])
        words = {}
        for name in ("finish_reason", "error_kind"):
            known = ["", *sorted({word for record in records if (word := getattr(record, name) or "")})][:256]
            places = {word: place for place, word in enumerate(known)}
            _member(file, name, "|u1", len(records), [array("B", (places.get(getattr(record, name) or "", 0) for record in records))])
            words[f"{name}s"] = [word[:200] for word in known]  # a server's words
        chunks = [len(record.times) for record in records]
        _member(file, "chunk_offsets", "<i8", len(records) + 1, [array("q", accumulate(chunks, initial=0))])
        longest = max((gap for record in records for gap in _gaps(record)), default=0)
        descr = "<i4" if longest < 2**31 else "<i8"
        _member(file, "chunk_gaps_ns", descr, sum(chunks), (array(_CODES[descr], _gaps(record)) for record in records))
        _member(file, "chunk_kinds", "|u1", sum(chunks), (array("B", record.kinds.encode("ascii")) for record in records))
        if any(record.chunk_tokens for record in records):
            _member(file, "chunk_tokens", "<i4", sum(chunks),
                    (array("i", record.chunk_tokens or [-1] * len(record.times)) for record in records))
        errors = {str(place): record.error for place, record in enumerate(records) if record.error}
        told = {"schema": SCHEMA, **head, "clock": "CLOCK_MONOTONIC", "unit": "ns", **words, "errors": errors}
        file.writestr("level.json", json.dumps(told))


def read(path: Path) -> tuple[dict[str, Any], list[RequestRecord]]:
    """The level's head and its requests, times from its start. Raises BadInput on a file that is none."""
    try:
        with zipfile.ZipFile(path) as file:
            head = json.loads(_bytes(file, "level.json", MAX_HEAD))
            if not isinstance(head, dict) or head.get("schema") != SCHEMA:
                raise BadInput(f"`{path}` is not a level of schema `{SCHEMA}`")
            return head, _records(file, head)
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError, zipfile.BadZipFile,
            NotImplementedError, RuntimeError) as error:  # the last two: a packing or encryption that zipfile does not know
        raise BadInput(f"`{path}` cannot be read as a level's requests", why=f"{type(error).__name__}: {error}") from error


def _records(file: zipfile.ZipFile, head: dict[str, Any]) -> list[RequestRecord]:
    columns = {name: _column(file, name) for name in (*_COLUMNS, "finish_reason", "error_kind", "chunk_offsets", "chunk_gaps_ns", "chunk_kinds")}
    offsets, gaps, kinds = columns.pop("chunk_offsets"), columns.pop("chunk_gaps_ns"), columns.pop("chunk_kinds")
    tokens = _column(file, "chunk_tokens") if "chunk_tokens.npy" in file.namelist() else None
    n = len(columns["index"])
    if any(len(column) != n for column in columns.values()) or len(offsets) != n + 1 or n > MAX_REQUESTS:
        raise ValueError("columns of different lengths")
    if offsets[0] != 0 or offsets[n] != len(gaps) or len(kinds) != len(gaps) or (tokens is not None and len(tokens) != len(gaps)):
        raise ValueError("chunks do not fit their offsets")
    finish, errors, texts = head["finish_reasons"], head["error_kinds"], head["errors"]
    records = []
    for i in range(n):
        first, last = offsets[i], offsets[i + 1]
        if not first <= last:
            raise ValueError("chunk offsets go back")
        of_chunks = list(tokens[first:last]) if tokens is not None else []
        record = RequestRecord(
            index=columns["index"][i], slot=columns["slot"][i], t_sched=columns["sched_ns"][i], t_send=columns["send_ns"][i],
            t_end=_known(columns["end_ns"][i]), times=array("q", accumulate(gaps[first:last], initial=columns["send_ns"][i]))[1:],
            kinds=bytes(kinds[first:last]).decode("ascii"), chunk_tokens=of_chunks if of_chunks and -1 not in of_chunks else None,
            output_tokens=_known(columns["output_tokens"][i]), reasoning_tokens=_known(columns["reasoning_tokens"][i]),
            prompt_tokens=_known(columns["prompt_tokens"][i]), finish_reason=str(finish[columns["finish_reason"][i]]) or None,
            status=_known(columns["status"][i]), error_kind=str(errors[columns["error_kind"][i]]), error=str(texts.get(str(i), "")),
            unfinished=bool(columns["unfinished"][i]), connected=bool(columns["connected"][i]), retried=bool(columns["retried"][i]))
        records.append(record)
    return records


def _known(value: int) -> int | None:
    return None if value == -1 else value


def _whole(value: int | None, descr: str) -> int:
    """What no column can hold (a server may say that it made 10**12 tokens) is cut to the most that it can."""
    if value is None:
        return -1
    return min(int(value), 2**31 - 1) if descr == "<i4" else int(value)


def _gaps(record: RequestRecord) -> Iterable[int]:
    before = record.t_send
    for at in record.times:
        yield at - before
        before = at


def _member(file: zipfile.ZipFile, name: str, descr: str, count: int, parts: Iterable[array[int]]) -> None:
    """One column, part after part, so that a level's chunks never stand in memory twice."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}".encode()
    header += b" " * (-(len(_MAGIC) + 2 + len(header) + 1) % 64) + b"\n"
    with file.open(f"{name}.npy", "w", force_zip64=True) as member:
        member.write(_MAGIC + len(header).to_bytes(2, "little") + header)
        for part in parts:
            if sys.byteorder == "big":
                part.byteswap()
            member.write(part.tobytes())


def _column(file: zipfile.ZipFile, name: str) -> array[int]:
    """Raises ValueError on a member that is not such a column."""
    info = file.getinfo(f"{name}.npy")
    if info.file_size > MAX_MEMBER:
        raise ValueError(f"{name} is too large")
    with file.open(info) as member:
        if member.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{name} is no .npy of version 1.0")
        header = member.read(int.from_bytes(member.read(2), "little")).decode("latin-1")
        match = _HEADER.fullmatch(header)
        if match is None or match[1] not in _CODES:
            raise ValueError(f"{name} has a header that is not ours: {header[:80]!r}")
        made = array(_CODES[match[1]])
        wanted = int(match[2]) * made.itemsize
        if wanted > MAX_MEMBER:
            raise ValueError(f"{name} is too large")
        _fill(made, member, wanted)
    if sys.byteorder == "big":
        made.byteswap()
    return made


def _fill(made: array[int], member: IO[bytes], wanted: int) -> None:
    step = math.lcm(8, 4) * 131072
    left = wanted
    while left > 0:
        got = member.read(min(step, left))
        if not got or len(got) % made.itemsize:
            raise ValueError("a column is cut off")
        made.frombytes(got)
        left -= len(got)
    if member.read(1):
        raise ValueError("a column is longer than it says")


def _bytes(file: zipfile.ZipFile, name: str, most: int) -> bytes:
    with file.open(name) as member:
        content = member.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{name} is too large")
    return content
