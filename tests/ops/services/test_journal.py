"""The journal of a unit: what comes in which form, what is missing, what goes on. Against the double, and inside of a sandbox a real one."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ops.jobs.errors import OpsError
from ops.services import journal, log_lines
from tests.ops.services.conftest import wait_for
from tests.ops.services.systemd_box import SystemdBox, box, is_real

__all__ = ["box"]
A, B = "a" * 32, "b" * 32


def entry(message: Any, *, at: float = 1_795_995_878.123456, **fields: Any) -> dict[str, Any]:
    return {"MESSAGE": message, "__REALTIME_TIMESTAMP": str(round(at * 1e6)), "_HOSTNAME": "gpu01", "SYSLOG_IDENTIFIER": "vllm", "_PID": "77",
            "_SYSTEMD_UNIT": "a.service", "_SYSTEMD_INVOCATION_ID": A, **fields}


def said(message: str, invocation: str) -> dict[str, Any]:
    """What systemd says of a run."""
    return entry(message, SYSLOG_IDENTIFIER="systemd", _PID="1", _SYSTEMD_UNIT="init.scope", UNIT="a.service", INVOCATION_ID=invocation,
                 _SYSTEMD_INVOCATION_ID="")


def journal_of(box: SystemdBox, entries: list[dict[str, Any]]) -> Path:
    """Puts a made journal where the double's journalctl reads."""
    path = box.folder / "double" / "journal.jsonl"
    return put(path, dict(enumerate(entries)))


def put(path: Path, entries: dict[int, dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps({"__CURSOR": f"s={index:012d}", **one}) + "\n" for index, one in entries.items()))
    return path


def end_reader(log: journal.JournalLog) -> None:
    """Ends the journalctl of a log, as a crash of it does."""
    assert log._running is not None
    log._running._process.kill()
    log._running._process.wait()


@pytest.mark.parametrize("message, told", [
    ("plain", ["plain"]), ([97, 13, 98, 255], ["a\rb\N{REPLACEMENT CHARACTER}"]), (None, ["(a message without text)"]),
    ("one\ntwo\n", ["one", "two"]), (["a", [98]], ["a", "b"]), ("", [""]), (7, ["7"])])
def test_each_form_of_a_message_becomes_lines(message: Any, told: list[str]) -> None:
    lines = journal.text_lines(entry(message))
    head = "2026-11-29T23:44:38.123456+0000 gpu01 vllm[77]: "
    assert lines == [head + one for one in told]
    assert all(log_lines.parse(line).ident == "vllm" for line in lines if "\r" not in line)


def test_an_entry_with_odd_fields_has_a_head_all_the_same() -> None:
    [line] = journal.text_lines({"MESSAGE": "x", "__REALTIME_TIMESTAMP": "9" * 30, "SYSLOG_IDENTIFIER": "a b\n", "_HOSTNAME": None})
    assert line.startswith("1970-01-01T00:00:00.000000+0000 ") and line.endswith("x")
    [line] = journal.text_lines(entry("x", SYSLOG_IDENTIFIER="a b]: evil\n"))
    assert " a_b_:_evil_[77]: x" in line


def test_only_a_run_of_hexadecimal_digits_reaches_the_command_line() -> None:
    for odd in ("", "--file=/etc/passwd", "A" * 32, f"{A}\n"):
        with pytest.raises(OpsError):
            journal.matches("a.service", invocation=odd)


@pytest.mark.skipif(is_real(), reason="a made journal")
def test_a_run_is_read_without_others_and_with_what_systemd_says_of_it(box: SystemdBox) -> None:
    dropped = {"SYSLOG_IDENTIFIER": "systemd-journald", "_UID": "0", "_SYSTEMD_UNIT": "systemd-journald.service", "_SYSTEMD_INVOCATION_ID": "c" * 32}
    unknown = {"_SYSTEMD_INVOCATION_ID": ""}  # the process had ended before journald looked at it
    journal_of(box, [
        said("Started 1.", B), entry("before", _SYSTEMD_INVOCATION_ID=B), entry("before, unknown", **unknown), said("Failed 1.", B),
        entry("mine, early", **unknown), said("Started 2.", A), entry("mine, unknown", **unknown),
        entry("another unit", _SYSTEMD_UNIT="b.service", **unknown), entry("mine"),
        entry("forged", _SYSTEMD_UNIT="b.service", INVOCATION_ID=A, _SYSTEMD_INVOCATION_ID=B, UNIT="a.service"),
        entry("Suppressed 12 messages", OBJECT_SYSTEMD_INVOCATION_ID=A, **dropped), said("Failed.", A), entry("mine, late", **unknown),
        said("Started 3.", "d" * 32), entry("after, unknown", **unknown)])
    mine = ["mine, early", "Started 2.", "mine, unknown", "mine", "Suppressed 12 messages", "Failed.", "mine, late"]
    assert [line.partition("]: ")[2] for line in journal.lines("a.service", invocation=A)] == mine
    log = journal.follow("a.service", invocation=A)
    text = b""
    while b"late" not in text:
        text += log.read()
    assert [line.partition("]: ")[2] for line in text.decode().splitlines()] == mine
    log.close()


@pytest.mark.skipif(is_real(), reason="a made journal")
def test_following_goes_on_by_cursor_after_journalctl_died_and_tells_a_gap(box: SystemdBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_AGAIN_S", 0.05)
    path = journal_of(box, [entry(f"line {index}") for index in range(5)])
    log, text = journal.follow("a.service", invocation=A), b""

    def until(word: bytes, after: int = 0) -> None:
        def look() -> bool:
            nonlocal text
            text += log.read()
            return word in text[after:]

        wait_for(look)

    until(b"line 4")
    for kept, first in ((range(8), 5), (range(9, 12), 9)):  # once nothing is lost; then the journal was rotated meanwhile
        before = len(text)
        end_reader(log)
        put(path, {index: entry(f"line {index}") for index in kept})
        until(f"line {kept[-1]}".encode(), before)
        new = text[before:].decode().splitlines()
        told = [line.partition("]: ")[2] for line in new]
        assert told[-1] == f"line {kept[-1]}" and f"line {first}" in told and "line 4" not in told
        assert [journal.GAP in line for line in new] == ([False] * len(new) if first == 5 else [True, *[False] * (len(new) - 1)])
    log.close()


@pytest.mark.skipif(is_real(), reason="a made journal")
def test_an_entry_that_is_too_long_or_damaged_is_left_out_visibly(box: SystemdBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "ENTRY_LIMIT", 100_000)
    monkeypatch.setattr(journal, "LINE_LIMIT", 1000)
    journal_of(box, [entry("before"), entry("x" * 2_000_000), entry("y" * 50_000), entry("after")])
    lines = list(journal.lines("a.service", invocation=A))
    assert lines[0].endswith(": before") and lines[-1].endswith(": after") and journal.TOO_LONG in lines[1] and len(lines) == 4
    assert len(lines[2]) < 1100
    entries = journal._Entries()
    assert entries.feed(b'{"MESSAGE": "a"}\n{broken\n[1]\n\n{"MESS') == [{"MESSAGE": "a"}, None, None]
    assert entries.feed(b'AGE": "b"}\n') == [{"MESSAGE": "b"}]


@pytest.mark.skipif(is_real(), reason="a made journal")
def test_what_may_not_be_read_or_is_not_kept_is_an_error_with_its_way_out(box: SystemdBox) -> None:
    for flag, kind in (("journal-not-permitted", "not_permitted"), ("no-journal", "no_journal")):
        (box.folder / "double" / flag).touch()
        for ask in (lambda: journal.follow("a.service", invocation=A), lambda: list(journal.lines("a.service", invocation=A))):
            with pytest.raises(OpsError) as caught:
                ask()
            assert caught.value.kind == kind and caught.value.hint
        (box.folder / "double" / flag).unlink()
    [only] = list(journal.lines("a.service", invocation=A))
    assert "holds nothing of this run" in only and log_lines.parse(only).ident == "roundhouse"


@pytest.mark.skipif(is_real(), reason="a made journal")
def test_a_long_journal_is_streamed_in_bounded_memory(box: SystemdBox) -> None:
    journal_of(box, [entry(f"{index} " + "z" * 4000) for index in range(12_000)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(1 for _ in journal.lines("a.service", invocation=A)) == 12_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024, "48 MB of messages are not held"


# ---- what only a real journal shows ----


@pytest.mark.skipif(not is_real(), reason="needs a real journald; the sandbox's run of this file has it")
def test_a_rotated_and_vacuumed_journal_shows_its_gap(box: SystemdBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_AGAIN_S", 0.05)
    (box.folder / "emit").write_text("i=0; while [ ! -e go ]; do sleep 0.05; done; for i in 1 2 3; do echo late $i; done; exec sleep 1000\n")
    manager = box.manager(box.write("rh-rotate", f"cd {box.folder}; echo early; . ./emit"))
    manager.start()
    log = manager.run_log()
    assert log is not None
    text = b""

    def read() -> bytes:
        nonlocal text
        text += log.read()
        return text

    wait_for(lambda: b"early" in read())
    end_reader(log)
    for arguments in (["--sync"], ["--rotate"], ["--vacuum-time=1us"]):
        time.sleep(0.1)
        subprocess.run(["journalctl", *arguments], check=True, capture_output=True, timeout=20)
    (box.folder / "go").touch()
    wait_for(lambda: b"late 3" in read())
    assert journal.GAP in text.decode() and text.decode().index(journal.GAP) < text.decode().index("late 1")
    log.close()


@pytest.mark.skipif(not is_real(), reason="needs a real journald; the sandbox's run of this file has it")
def test_lines_that_journald_dropped_are_told_among_those_of_the_run(box: SystemdBox) -> None:
    (box.folder / "emit").write_text("i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); done; sleep 1.2; echo after; exec sleep 1000\n")
    manager = box.manager(box.write("rh-fast", f". {box.folder}/emit", "LogRateLimitIntervalSec=1s", "LogRateLimitBurst=5"))
    manager.start()
    lines = wait_for(lambda: (found := list(manager.log_lines())) and any("after" in line for line in found) and found)
    assert sum("]: line " in line for line in lines) < 50
    assert any("systemd-journald" in line and "Suppressed" in line for line in lines), lines


@pytest.mark.skipif(not is_real(), reason="needs a real journald; the sandbox's run of this file has it")
def test_what_follows_a_journal_ends_with_its_reader(box: SystemdBox) -> None:
    manager = box.manager(box.write("rh-reader", "echo up; while :; do sleep 0.1; echo tick; done"))
    manager.start()
    log = manager.run_log()
    assert log is not None
    wait_for(log.read)
    assert log._running is not None
    reader = log._running
    os.dup2(os.open(os.devnull, os.O_RDONLY), reader.output)  # as if this process had died
    wait_for(lambda: reader._process.poll() is not None)
    log.close()


@pytest.mark.skipif(not is_real(), reason="needs a real journald; the sandbox's run of this file has it")
def test_another_user_is_told_what_it_may_not_see(box: SystemdBox) -> None:
    manager = box.manager(box.write("rh-other", "echo secret; exec sleep 1000"))
    invocation = manager.start().invocation
    code = ("import sys; sys.path.insert(0, '.'); from ops.services import journal; from ops.jobs.errors import OpsError\n"
            f"try: print(journal.check('rh-other.service', invocation='{invocation}'))\nexcept OpsError as error: print(error.kind, error.hint)")
    done = subprocess.run(["setpriv", "--reuid=daemon", "--regid=daemon", "--clear-groups", "/usr/bin/python3", "-c", code],
                          capture_output=True, text=True, check=False, timeout=30, env={"PATH": os.environ["PATH"]})
    assert "not_permitted" in done.stdout and "systemd-journal" in done.stdout, done.stdout + done.stderr
