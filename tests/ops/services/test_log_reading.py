"""Logs of any size, encoding and layout, and the kernel's log beside them: what is read, and that the answer stays the same."""

from __future__ import annotations

import gzip
import json
import re
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from ops.services import diagnosis, kernel_log, log_files
from ops.services.diagnosis import diagnose, diagnose_file, diagnose_lines
from ops.services.log_lines import parse
from ops.services.quick_patterns import Finder, Quick, required_words

LOGS = Path(__file__).resolve().parents[2] / "fixtures" / "logs"
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in json.loads((LOGS / "cases.json").read_text())["cases"]}
CRASH = CASES["04-nvcc-unsupported-arch"]  # plain, several processes
HEALTHY = (LOGS / CASES["92-healthy-autotuner-skips"]["file"]).read_text()


def text(case: dict[str, Any]) -> str:
    return (LOGS / str(case["file"])).read_text()


def right(found: diagnosis.Diagnosis, case: dict[str, Any], before: int = 0) -> bool:
    assert found.fault and found.line is not None and found.kind == case["kind"], found
    return found.line - before in {case["decisive_line"], *case["equivalent_lines"], *case["also_accept_lines"]}


# ---- layouts ----


@pytest.mark.parametrize("line", [
    "Mon 2026-03-02 04:11:07 CET gpu1 vllm[5]: {}", "[ 123.456789] gpu1 vllm[5]: {}", "1772420467.123456 gpu1 vllm[5]: {}",
    "<30>1 2026-03-02T04:11:07Z gpu1 vllm 5 - - {}", "[pod/vllm-0/server] {}", "    MESSAGE={}", "vllm-1  | 2026-03-02T04:11:07Z {}",
    "2026-03-02T04:11:07.123456+0000 gpu1 vllm[5]: {}", "2026-03-02T04:11:07.1Z stdout P {}", "\x1b[36m(Head pid=7, ip=10.0.0.9)\x1b[0m {}",
    "prod/eu-1 {}", "[node-a] {}",
])
def test_what_stands_before_a_line_is_taken_off(line: str) -> None:
    found = parse(line.format("(Worker_TP1 pid=611) ERROR 03-02 04:11:28 [v1/core.py:946] it broke \x1b[32m [repeated 6x across cluster]\x1b[0m"))
    assert (found.message, found.process, found.pid, found.level, found.source) == ("it broke", "Worker_TP1", 611, "ERROR", "core.py")


@pytest.mark.parametrize("line", ["[x] is no prefix", '  File "a.py", line 5, in f', "see (EngineCore) below", "ERROR is a word", "File | Edit"[:4]])
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert parse(line).message == line


def test_a_rank_that_torch_names_keeps_its_traceback_apart() -> None:
    both = ["Traceback (most recent call last):", '  File "/x.py", line 1, in f', "acme.FluxError: rank {} is empty"]
    lines = [f"[rank{rank}]: {line.format(rank)}" for line in both for rank in (1, 0)]
    found = diagnose("\n".join([*lines, "(EngineCore pid=2) ERROR 03-02 04:11:28 [core.py:1] EngineCore failed to start."]))
    assert (found.line, found.text) == (5, "acme.FluxError: rank 1 is empty")


def test_a_json_logger_with_the_traceback_in_one_field() -> None:
    traceback = 'Traceback (most recent call last):\n  File "/x.py", line 1, in f\nImportError: blobfile is not installed. Please install it\n'
    trouble = {"level": "ERROR", "message": "EngineCore failed to start.", "exc_info": traceback}
    found = diagnose(json.dumps({"message": "vLLM server version 0.32.0"}) + "\n" + json.dumps(trouble) + "\n")
    assert (found.line, found.kind, found.lines) == (2, "missing-python-dependency", 2) and "blobfile" in found.fix
    assert [one["number"] for one in found.context] == [1, 2] and found.context[1]["text"] == found.text


# ---- encodings and sizes ----


@pytest.mark.parametrize("encoded", [
    lambda log: log.encode("utf-16"), lambda log: log.encode("utf-16-le"), lambda log: log.encode("utf-16-be"),
    lambda log: b"\xef\xbb\xbf" + log.encode(), lambda log: gzip.compress(log.encode()),
    lambda log: gzip.compress(log.encode("utf-16")), lambda log: log.replace("\n", "\r\n").encode(),
    lambda log: gzip.compress(log.encode() + b"x" * 100_000)[:-20], lambda log: b"\0" * 5_000_000 + log.encode(),
    lambda log: log.replace(" INFO ", " \xe9\xff INFO ").encode("latin-1", "replace"), lambda log: log.replace("g", "g\0").encode(),
], ids=["utf-16", "utf-16-le", "utf-16-be", "bom", "gzip", "gzip-utf-16", "crlf", "gzip-cut", "nul-hole", "latin-1", "nul-between"])
def test_the_answer_does_not_depend_on_the_encoding(encoded: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(encoded(text(CRASH)))
    assert right(diagnose_file(path), CRASH)


def test_what_is_no_text_is_told_apart() -> None:
    assert log_files.problem(b"\x28\xb5\x2f\xfd....") == "It is packed with zstd" and log_files.problem(b"BZh91AY") == "It is packed with bzip2"
    assert "NUL bytes" in log_files.problem(Path(sys.executable).resolve().read_bytes()[:8192])
    for head in (b"", b"text\n", b"\0" * 8192, b"a\nb\0c" + b"d" * 200, "text\n".encode("utf-16"), gzip.compress(b"text")):
        assert log_files.problem(head) == ""


def test_memory_stays_bounded_whatever_the_length_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    before = text(CRASH)
    with path.open("wb") as file:
        file.write(b"first line\n")
        for _ in range(200):
            file.write(b"x" * 1_000_000)
        file.write(b"\n" + before.encode())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert right(diagnose_file(path), CRASH, before=2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 60_000  # KiB


# ---- long logs ----


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of long logs, as if a hundred lines were many."""
    for name, value in (("_READ_LINES", 100), ("_DEATH_LINES", 400), ("_LATER_LINES", 40), ("_TROUBLE_LINES", 20), ("_WINDOWS", (4000, 64_000))):
        monkeypatch.setattr(diagnosis, name, value)
    monkeypatch.setattr(diagnosis._Run.__init__, "__defaults__", tuple(
        100 if value == 6_000 else value for value in diagnosis._Run.__init__.__defaults__ or ()))


CHATTER = "(EngineCore_DP0 pid=611583) INFO 03-02 04:11:{:02d} [core.py:99] step {}\n"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", ["01-flashinfer-cubin-mismatch", "12-no-kv-memory", "16-port-in-use", "27-removed-flag-after-upgrade",
                                  "29-host-oom-kill", "31-xid-fallen-off-bus", "39-illegal-memory-access-runtime"])
def test_a_death_after_more_lines_than_are_read_is_explained(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    lines = text(case).splitlines(keepends=True)
    head, tail = lines[:5], lines[5:]
    path = tmp_path / "log"
    path.write_text("".join(head) + "".join(CHATTER.format(number % 60, number) for number in range(3000)) + "".join(tail))
    found = diagnose_file(path)
    assert found.line is not None and right(found, case, before=3000) and found.lines == len(lines) + 3000
    assert [one["number"] for one in found.context] == [number for number in range(found.line - 3, found.line + 4) if number <= found.lines]


@pytest.mark.usefixtures("short")
def test_of_many_runs_the_last_ones_are_read_and_lines_are_counted_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    runs = []
    for number in range(40):  # each start is another process
        crash = text(CASES["01-flashinfer-cubin-mismatch"])
        for pid in ("611582", "611583"):
            crash = crash.replace(pid, str(700_000 + number))
        runs.append(crash)
    path.write_text("".join(runs) + HEALTHY)
    assert diagnose_file(path).state == "serving" and diagnose_file(path).lines == path.read_text().count("\n")
    path.write_text(HEALTHY + "".join(runs))
    found = diagnose_file(path)
    assert found == diagnose(path.read_text()) and right(found, CASES["01-flashinfer-cubin-mismatch"],
                                                         before=HEALTHY.count("\n") + 39 * runs[0].count("\n"))


@pytest.mark.usefixtures("short")
def test_a_server_that_was_found_serving_and_dies_is_explained(tmp_path: Path) -> None:
    """Of a journal that was rotated only the later part is there: no start, no banner."""
    case = CASES["39-illegal-memory-access-runtime"]
    traffic = '(APIServer pid=4711) INFO:     10.0.0.9:4{:04d} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' \
              "(APIServer pid=4711) ERROR 03-02 04:11:07 [serving_chat.py:200] ValueError: too many tokens: {}\n"
    path = tmp_path / "log"
    path.write_text("".join(traffic.format(number, number) for number in range(2000)))
    assert (diagnose_file(path).fault, diagnose_file(path).state) == (False, "serving")
    path.write_text(path.read_text() + text(case))
    assert right(diagnose_file(path), case, before=4000)


@pytest.mark.usefixtures("short")
@pytest.mark.timeout(30)  # where the time grows with the square of a line's length, each of them takes five seconds
@pytest.mark.parametrize("run", ["1", "100%|", "x.", "Error: "])
def test_a_line_that_repeats_itself_takes_no_time_to_speak_of(run: str) -> None:
    line = f"ValueError: {run * (32_000 // len(run))} !\n"
    assert diagnose("INFO x\n" + line * 8).lines == 9


def test_trouble_in_the_middle_of_a_long_start_is_seen() -> None:
    lines = [CHATTER.format(number % 60, number).rstrip() for number in range(6000)]
    lines[3000:3000] = ["Traceback (most recent call last):", '  File "/x.py", line 1, in f', "acme.FluxError: capacitor is empty"]
    found = diagnose_lines(lines)
    assert (found.line, found.text) == (3003, "acme.FluxError: capacitor is empty")


# ---- quick refusals ----


def test_no_rule_is_refused_wrongly() -> None:
    lines = [parse(line).message for path in sorted(LOGS.glob("**/*.log")) for line in path.read_text(errors="replace").split("\n")]
    patterns = [rule.pattern for rule in diagnosis.rules()]
    finder, seen = Finder(patterns), 0
    for message in dict.fromkeys(lines):
        worth = set(finder.worth(message))
        if len(worth) < len(patterns) and ("rror" in message or "fatal" in message):
            seen += 1
            if seen % 5 == 0:  # all would take long
                assert {index for index, pattern in enumerate(patterns) if pattern.search(message)} <= worth, message
    assert seen > 200


@pytest.mark.parametrize(("expression", "words"), [
    (r"abc\d+defg", ("defg",)), (r"(?:one|three) (?P<x>\S+)", ("one", "three")), (r"(?i)abc", ()), (r"a|bcd", ()),
    (r"(?:abc)?x", ()), (r"(?:abcd)+", ("abcd",)), (r"abcds?e", ("abcd",)), (r"abc{2}de", ()), (r"abc{,2}", ()), (r"abc{x}\.d", ("abc{x}.d",)),
    (r"(?:abcd){0,2}ef|xyz", ()), (r"(?:abcd){1,2}?", ("abcd",)), (r"ab(?:c|)d", ()), (r"abc(?!defg)h", ("abch",)), (r"^abc\bdef$", ("abcdef",)),
    (r"ab[.][\]]c[^x]", ("ab.]c",)), (r"[]abc]xyz", ("xyz",)), (r"(?i:abcd)efg", ("efg",)), (r"(?#note)ab(?P<n>c)", ("abc",)),
    (r"(?P<q>x)(?P=q)abcd", ("abcd",)), (r"(abcd)\1", ()), (r"\x41bcd", ()), (r"(x)?(?(1)abcd|efgh)", ()), (r"(?x) ab cd", ()),
    (r"\nabc\tdefg", ("defg",)), (r"ab(?:cdx(?:ef|gh)|ijk)", ("cdx", "ijk"))])
def test_a_match_holds_one_of_its_words(expression: str, words: tuple[str, ...]) -> None:
    assert required_words(re.compile(expression)) == words
    assert Quick(expression).search("nothing here") is None


# ---- the kernel's log ----

DEATH = ["(APIServer pid=900) INFO 03-02 04:00:00 [api_server.py:1] vLLM API server version 0.16.0",
         "(EngineCore_DP0 pid=911) INFO 03-02 04:00:01 [core.py:1] Initializing a V1 LLM engine (v0.16.0)",
         "(APIServer pid=900) ERROR 03-02 04:11:28 [async_llm.py:1] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."]
OOM = "2026-03-02T04:11:27.000000+0000 gpu kernel: Out of memory: Killed process {} ({}) total-vm:1kB, anon-rss:1kB"
XID = "2026-03-02T04:11:27.000000+0000 gpu kernel: NVRM: Xid (PCI:0000:41:00): {}, pid=911, name=python"


@pytest.mark.parametrize(("lines", "kind"), [
    ([OOM.format(911, "VLLM::EngineCor")], "host-oom-kill"), ([OOM.format(5, "VLLM::Worker_TP0")], "host-oom-kill"), ([XID.format(79)], "gpu-xid"),
])
def test_the_kernels_word_is_the_cause_where_the_log_has_none(lines: list[str], kind: str) -> None:
    found = diagnose_lines(DEATH, kernel=["2026-03-02T04:11:20+0000 gpu kernel: eth0: link up", *lines])
    assert (found.source, found.line, found.kind, found.lines) == ("kernel", None, kind, 3)
    assert found.text.startswith(("Out of memory", "NVRM")) and [one["number"] for one in found.context] == [1, 2]


@pytest.mark.parametrize("lines", [[], [OOM.format(5, "postgres")], ["2026-03-02T04:11:27+0000 gpu kernel: postgres[77]: segfault at 0 ip 0"]])
def test_what_the_kernel_says_of_others_is_no_cause(lines: list[str]) -> None:
    found = diagnose_lines(DEATH, kernel=lines)
    assert (found.source, found.line) == ("log", 3)


def test_a_serving_server_is_not_at_fault_for_a_kernel_line_unless_it_ended() -> None:
    serving = HEALTHY.split("\n")
    assert not diagnose_lines(serving, kernel=[XID.format(79)]).fault
    found = diagnose_lines(serving, kernel=[XID.format(79)], ended=True)
    assert found.fault and found.source == "kernel" and found.kind == "gpu-xid"
    assert not diagnose_lines(serving, ended=True).fault


def test_what_a_program_did_itself_does_not_outweigh_the_logs_own_cause() -> None:
    case = CASES["39-illegal-memory-access-runtime"]
    assert right(diagnose(text(case), kernel=[XID.format(31)]), case)


def test_the_kernels_log_is_read_or_it_is_said_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_772_424_687.0
    journal = tmp_path / "journalctl"
    entries = [{"__REALTIME_TIMESTAMP": str(int(now * 1e6)), "MESSAGE": "NVRM: Xid (PCI:0000:41:00): 79"},
               {"__REALTIME_TIMESTAMP": str(int(now * 1e6)), "MESSAGE": list(b"Out of memory: Killed process 7 (python)")},
               {"__REALTIME_TIMESTAMP": str(int(now * 1e6)), "MESSAGE": "eth0: link up"}, {"__REALTIME_TIMESTAMP": "soon", "MESSAGE": "oom"}]
    (tmp_path / "entries").write_text("-- No entries --\n" + "\n".join(map(json.dumps, entries)))
    journal.write_text(f"#!/bin/sh\ncat {tmp_path}/entries\n")
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = kernel_log.read(now - 5, now + 5)
    assert found.problem == "" and [parse(line).message for line in found.lines] == [
        "NVRM: Xid (PCI:0000:41:00): 79", "Out of memory: Killed process 7 (python)"]
    assert {parse(line).ident for line in found.lines} == {"kernel"}
    journal.write_text("#!/bin/sh\necho 'Hint: You are currently not seeing messages from other users and the system.' >&2; exit 1\n")
    (tmp_path / "dmesg").write_text("#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1\n")
    (tmp_path / "dmesg").chmod(0o755)
    monkeypatch.setattr(kernel_log, "KMSG", tmp_path / "kmsg")
    found = kernel_log.read(now - 5, now + 5)
    assert found.lines == [] and "not seeing messages" in found.problem and "/dev/kmsg: No such file" in found.problem
    assert "Operation not permitted" in found.problem
    boot = kernel_log._booted_at()
    (tmp_path / "dmesg").write_text("#!/bin/sh\necho '[  100.000000] python3[7]: segfault at 0 ip 0'; echo '[  900.000000] NVRM: Xid (PCI:1): 79'\n")
    assert [parse(line).message for line in kernel_log.read(boot + 90, boot + 110).lines] == ["python3[7]: segfault at 0 ip 0"]
