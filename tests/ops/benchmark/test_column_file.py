"""The column file comes back as it was, is what numpy reads, and nothing else is taken for it."""

from __future__ import annotations

import json
import struct
import zipfile
from array import array
from pathlib import Path
from typing import Any

import pytest

from ops.benchmark import column_file
from ops.benchmark.request_record import RequestRecord
from ops.jobs.errors import BadInput

HEAD = {"load": "closed", "value": 2, "concurrency": 2, "requests": 4, "started_at": 1.5e9, "seed": 7, "stopped": ""}


def records() -> list[RequestRecord]:
    return [
        RequestRecord(index=0, slot=0, t_sched=1000, t_send=1010, t_end=5000, times=array("q", [2010, 3010, 4510]), kinds="rrc", output_tokens=9,
                      reasoning_tokens=2, prompt_tokens=9, finish_reason="length", status=200, chunk_tokens=[2, 3, 4]),
        RequestRecord(index=1, slot=1, t_sched=1000, t_send=1020, t_end=1500, status=503, error_kind="http", error="HTTP 503: nö", retried=True),
        RequestRecord(index=2, slot=0, t_sched=5000, t_send=5001, unfinished=True, connected=True),
        RequestRecord(index=3, slot=1, t_sched=5000, t_send=5001, t_end=10**10, times=array("q", [5_000_005_001]), kinds="t", status=200,
                      finish_reason="tool_calls", output_tokens=10**12),
    ]


def test_requests_come_back_with_times_from_the_levels_start(tmp_path: Path) -> None:
    path = column_file.write(tmp_path / "c2.npz", records(), t0=1000, head=HEAD)
    head, back = column_file.read(path)
    assert head | HEAD == head and head["schema"] == "roundhouse.level/2"
    first, failed, cut, slow = back
    assert (first.t_send, first.t_end, list(first.times), first.kinds, first.chunk_tokens) == (10, 4000, [1010, 2010, 3510], "rrc", [2, 3, 4])
    assert (first.output_tokens, first.reasoning_tokens, first.prompt_tokens, first.finish_reason, first.status) == (9, 2, 9, "length", 200)
    assert (failed.error_kind, failed.error, failed.retried, failed.output_tokens, failed.finish_reason) == ("http", "HTTP 503: nö", True, None, None)
    assert (cut.t_end, cut.unfinished, cut.connected, cut.status, len(cut.times)) == (None, True, True, None, 0)
    assert list(slow.times) == [5_000_004_001] and slow.output_tokens == 2**31 - 1  # a gap of seconds, and a count that no column holds
    assert [path.name for path in tmp_path.iterdir()] == ["c2.npz"]


def test_every_member_is_a_npy_of_version_1(tmp_path: Path) -> None:
    """What numpy's own format asks for: magic, a header whose end lies at a multiple of 64, little-endian values."""
    path = column_file.write(tmp_path / "c2.npz", records(), t0=1000, head=HEAD)
    with zipfile.ZipFile(path) as file:
        content = file.read("send_ns.npy")
        names = set(file.namelist())
    length = struct.unpack("<H", content[8:10])[0]
    assert content[:8] == b"\x93NUMPY\x01\x00" and (10 + length) % 64 == 0 and content[9 + length:10 + length] == b"\n"
    assert content[10:10 + length].strip() == b"{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }"
    assert struct.unpack("<4q", content[10 + length:]) == (10, 20, 4001, 4001)
    assert {"level.json", "chunk_gaps_ns.npy", "chunk_kinds.npy", "chunk_offsets.npy", "chunk_tokens.npy"} <= names


def test_a_level_without_requests_is_a_file_too(tmp_path: Path) -> None:
    assert column_file.read(column_file.write(tmp_path / "c1.npz", [], t0=0, head=HEAD))[1] == []


def _spoiled(path: Path, name: str, content: bytes | None) -> Path:
    """The file with one member changed, or left out."""
    out = path.with_name("spoiled.npz")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(out, "w") as target:
        for member in source.namelist():
            if member != name:
                target.writestr(member, source.read(member))
        if content is not None:
            target.writestr(name, content)
    return out


def npy(descr: str, shape: str, data: bytes) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape},), }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(("name", "content"), [
    ("send_ns.npy", None), ("send_ns.npy", b"\x93NUM"), ("send_ns.npy", npy("<i8", "4", bytes(31))), ("send_ns.npy", npy("<i8", "4", bytes(33))),
    ("send_ns.npy", npy("|O8", "4", bytes(32))), ("send_ns.npy", npy("<i8", "999999999999", b"")), ("send_ns.npy", npy("<i8", "3", bytes(24))),
    ("chunk_offsets.npy", npy("<i8", "5", struct.pack("<5q", 0, 3, 1, 3, 4))),
    ("chunk_offsets.npy", npy("<i8", "5", struct.pack("<5q", 0, 0, 0, 0, 9))),
    ("error_kind.npy", npy("|u1", "4", b"\x09" * 4)), ("level.json", b"{}"), ("level.json", b"[" * 100_000), ("level.json", b"\xff"),
    ("level.json", json.dumps({"schema": "roundhouse.level/2"}).encode()), ("level.json", b'{"schema": "roundhouse.level/3"}'),
])
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, name: str, content: Any) -> None:
    path = column_file.write(tmp_path / "c2.npz", records(), t0=1000, head=HEAD)
    with pytest.raises(BadInput):
        column_file.read(_spoiled(path, name, content))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no zip at all"])
def test_something_else_is_no_level(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(BadInput):
        column_file.read(tmp_path / "x.npz")
