"""The journal of a unit as lines of text: followed while a run goes on, or streamed once it is there. `journalctl` is called with argument lists.

A line is `2026-11-29T23:44:38.123456+0000 host ident[pid]: message`, as `journalctl -o short-iso-precise` prints it, with the message as it was
written: carriage returns and colours stay for `log_lines`. What the system manager says of the unit is among them (ident `systemd`). Read as
`-o json`, since the text forms replace a message with control characters by "[NNB blob data]"; the fields are those of systemd.journal-fields(7).

What is missing is a line of its own, by `roundhouse`: entries that were removed before they were read, entries too long to be held.

The lines of a run are not simply those with its invocation: journald learns that from the process, and of one that ended before journald came to
it (the crash that matters most) it knows the unit alone. So a run is all that its unit wrote after another run's last entry, until the next run's
first one. What a process writes may also come before the manager's own "Started".
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ops.jobs.errors import OpsError, Timeout
from ops.services import systemctl

ENTRY_LIMIT = 16 << 20  # bytes of JSON of one entry: a message with control characters takes up to 5 bytes for each of its own
LINE_LIMIT = 1 << 20  # characters of one line that are given on
PERSISTENT = Path("/var/log/journal")
_FIELDS = ("MESSAGE,SYSLOG_IDENTIFIER,SYSLOG_PID,_PID,_COMM,_HOSTNAME,_SYSTEMD_INVOCATION_ID,INVOCATION_ID,USER_INVOCATION_ID,"
           "OBJECT_SYSTEMD_INVOCATION_ID")
_LOOK_S = 20.0
_FIRST_S = 2.0  # journalctl opens its files within this, on a machine that is busy
_POLL_S = 0.1
_BEFORE_S = 2.0  # so long before the first entry that names a run its unnamed ones are looked for
_AGAIN_S = 1.0  # between two starts of a journalctl that ends by itself
_ODD = re.compile(r"[^\w.@:/-]+")


def matches(unit: str, *, user: bool = False, invocation: str | None = None) -> list[str]:
    """The arguments that choose entries: of the unit, or those that name one run: what it wrote, what the manager and journald said of it."""
    uid = os.geteuid()
    if invocation is None:
        return [f"--user-unit={unit}"] if user else [f"--unit={unit}"]
    if not re.fullmatch(r"[0-9a-f]{32}", invocation):
        raise OpsError(f"`{invocation[:64]}` names no run of a unit", why="An invocation is 32 hexadecimal digits")
    said = [f"USER_INVOCATION_ID={invocation}", f"_UID={uid}"] if user else [f"INVOCATION_ID={invocation}", "_PID=1"]
    return [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", *said, "+", f"OBJECT_SYSTEMD_INVOCATION_ID={invocation}", "_UID=0"]


def _around(unit: str, invocation: str, *, user: bool) -> list[str]:
    """The arguments that choose all of the unit's entries, and what journald said of this run."""
    uid = f"_UID={os.geteuid()}"
    of_unit = [f"_SYSTEMD_USER_UNIT={unit}", uid, "+", f"USER_UNIT={unit}", uid] if user else [f"_SYSTEMD_UNIT={unit}", "+", f"UNIT={unit}", "_PID=1"]
    return [*of_unit, "+", f"OBJECT_SYSTEMD_INVOCATION_ID={invocation}", "_UID=0"]


def command(unit: str, *, user: bool = False, invocation: str | None = None) -> str:
    """For people: how to read the same in a terminal."""
    chosen = matches(unit, user=user, invocation=invocation)
    return " ".join(["journalctl", "--all", *(chosen[:3] if invocation else chosen)])


def _argv(arguments: Sequence[str]) -> list[str]:
    program = shutil.which("journalctl")
    if program is None:
        raise OpsError("There is no journalctl on this machine", why="It is not on PATH, so the unit's log cannot be read", kind="no_systemd")
    return [program, "--no-pager", "--output=json", "--all", f"--output-fields={_FIELDS}", *arguments]


def _refusal(told: str) -> OpsError | None:
    """What journalctl's messages mean, if it reads nothing because of them."""
    if "insufficient permissions" in told:
        return OpsError("This user may not read the journal", why=told[-500:], kind="not_permitted",
                        hint="Make it a member of the group systemd-journal (`SupplementaryGroups=systemd-journal` in the agent's unit)")
    if "No journal files were found" in told:
        return OpsError("This machine keeps no journal", why=told[-500:], kind="no_journal",
                        hint="Set Storage=persistent (or auto, and make /var/log/journal) in journald.conf, and restart systemd-journald")
    return None


def _run(arguments: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """The entries of a short question, and what journalctl said beside them. Raises OpsError."""
    argv = _argv(arguments)
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOOK_S, check=False, env=systemctl.environment())
    except subprocess.TimeoutExpired as error:
        raise Timeout(f"journalctl gave no answer within {_LOOK_S:g} s", why="The journal is very large, or its disk hangs") from error
    told = done.stderr.decode(errors="replace").strip()
    if (refused := _refusal(told)) is not None:
        raise refused
    if done.returncode:
        raise OpsError("The journal cannot be read", why=told[-500:] or f"journalctl ended with exit code {done.returncode}")
    entries = _Entries()
    return [entry for entry in entries.feed(done.stdout) if entry is not None], told


def check(unit: str, *, user: bool = False, invocation: str | None = None) -> str:
    """That the journal may be read. Gives what is not seen all the same, in a sentence; "" if all is. Raises OpsError."""
    found, told = _run(["--lines=1", *matches(unit, user=user, invocation=invocation)])
    if "not seeing messages from other users" in told:
        return ("This user sees only its own entries of the journal: what systemd says of the unit is missing "
                "(membership in the group systemd-journal lets it see all)")
    if not found and invocation is not None:
        volatile = "" if PERSISTENT.is_dir() else "; it is kept in memory only (there is no /var/log/journal), and starts anew with the machine"
        return f"The journal holds nothing of this run: it wrote nothing, or what it wrote was removed{volatile}"
    return ""


def last_invocation(unit: str, *, user: bool = False) -> str | None:
    """The unit's newest run that the journal knows of this boot; None if there is none. Raises OpsError."""
    field = "USER_INVOCATION_ID" if user else "INVOCATION_ID"
    argv = [f"--output-fields=_SYSTEMD_INVOCATION_ID,{field}", "--boot", "--lines=20", *matches(unit, user=user)]
    found, _ = _run(argv)
    for entry in reversed(found):
        invocation = entry.get(field) or entry.get("_SYSTEMD_INVOCATION_ID")
        if isinstance(invocation, str) and re.fullmatch(r"[0-9a-f]{32}", invocation):
            return invocation
    return None


def manager_entries(unit: str, invocation: str, *, user: bool = False) -> list[dict[str, Any]]:
    """What the system manager itself said of one run, oldest first (its last 200 entries): MESSAGE_ID, EXIT_CODE, ... Raises OpsError."""
    said = matches(unit, user=user, invocation=invocation)[2:4]
    found, _ = _run(["--output-fields=MESSAGE,MESSAGE_ID,EXIT_CODE,EXIT_STATUS,UNIT_RESULT,JOB_TYPE", "--lines=200", *said])
    return found


# ---- entries and lines ----


class _Entries:
    """Cuts what journalctl prints into entries. One longer than ENTRY_LIMIT is dropped, and stands as None."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[dict[str, Any] | None]:
        found: list[dict[str, Any] | None] = []
        pieces = data.split(b"\n")
        for index, piece in enumerate(pieces):
            if self._size <= ENTRY_LIMIT:
                self._parts.append(piece)
            self._size += len(piece)
            if index < len(pieces) - 1:
                found += self._take()
        return found

    def _take(self) -> list[dict[str, Any] | None]:
        whole, size = b"".join(self._parts), self._size
        self._parts, self._size = [], 0
        if size > ENTRY_LIMIT:
            return [None]
        if not whole:
            return []
        try:
            raw = json.loads(whole.decode(errors="replace"))
        except (ValueError, RecursionError):
            return [None]
        return [raw] if isinstance(raw, dict) else [None]


def message(value: Any) -> str:
    """MESSAGE as text: text, the numbers of bytes (it had control characters, or was no UTF-8), several of either, or null (nothing)."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            return bytes(one & 0xFF for one in value).decode(errors="replace")
        return "\n".join(message(one) for one in value)
    return "(a message without text)" if value is None else str(value)


def _word(value: Any, instead: str) -> str:
    return _ODD.sub("_", value)[:100] if isinstance(value, str) and value else instead


def _head(at: float, host: str, ident: str, pid: str) -> str:
    stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f+0000")
    return f"{stamp} {host} {ident}[{pid}]: "


def text_lines(entry: dict[str, Any]) -> list[str]:
    """The lines of one entry, each with its head. Newlines alone end a line."""
    try:
        at = int(entry.get("__REALTIME_TIMESTAMP") or 0) / 1_000_000
        head = _head(at, _word(entry.get("_HOSTNAME"), "host"), _word(entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM"), "unknown"),
                     _word(entry.get("_PID") or entry.get("SYSLOG_PID"), "0"))
    except (ValueError, OverflowError, OSError):  # a time that no calendar has: of another machine's journal
        head = _head(0.0, "host", "unknown", "0")
    return [head + part[:LINE_LIMIT] for part in message(entry.get("MESSAGE")).rstrip("\n").split("\n")]


def _note(text: str) -> str:
    return f"{_head(time.time(), os.uname().nodename or 'host', 'roundhouse', str(os.getpid()))}-- {text} --"


TOO_LONG = "An entry of the journal is left out: it is too long to be read, or damaged"
GAP = "Entries of the journal are missing here: they were removed (rotated) before they were read"


class JournalLog:
    """One run's (or one unit's) entries as they come. Implements manager.RunLog.

    A journalctl that ends by itself (killed, a damaged file) is started again where it was: by the cursor of the last entry, which is asked for
    once more, so that its absence shows that something is missing.
    """

    def __init__(self, unit: str, *, user: bool = False, invocation: str | None = None, cursor: str | None = None, follow: bool = True) -> None:
        self.where = command(unit, user=user, invocation=invocation)
        self.cursor = cursor  # of the last entry that was read
        self._named = matches(unit, user=user, invocation=invocation)
        self._matches = _around(unit, invocation, user=user) if invocation else self._named
        self._user, self._invocation, self._follow = user, invocation, follow
        self._seen, self._later = False, False  # an entry that names this run; one that names a later run
        self._early: list[str] = []  # lines of no known run, before the first entry that names this one
        self._running: _Running | None = None
        self._entries = _Entries()
        self._ready: deque[str] = deque()  # lines that were read but not given yet
        self._resumed_at: str | None = None  # the cursor whose entry must come first
        self._started = 0.0
        self._silent = True  # this journalctl has printed nothing yet
        self.ended = False  # only without `follow`: all was read
        self._starts = 0

    # ---- RunLog ----

    def read(self, limit: int = 1 << 20) -> bytes:
        """See manager.RunLog. Raises OpsError if the journal may not be read."""
        wait = _FIRST_S if self._silent and self._starts <= 1 else 0.0
        lines, size = [], 0
        while size < limit and (self._ready or self._fill(wait)):
            wait = 0.0
            while self._ready and size < limit:
                line = self._ready.popleft()
                lines.append(line)
                size += len(line)
        return "".join(line + "\n" for line in lines).encode("utf-8", "replace")

    def close(self) -> None:
        if self._running is not None:
            self._running.end()
            self._running = None

    # ---- reading ----

    def _fill(self, wait_s: float) -> bool:
        """Reads what is there; waits at most `wait_s` for it. False if nothing came."""
        running = None if self.ended else self._running or self._start()
        if running is None:
            return False
        self._running = running
        if not select.select([running.output], [], [], wait_s)[0]:
            return False
        data = os.read(running.output, 1 << 18)
        if not data:
            self._running = None
            self._over(*running.end(over=True))
            return bool(self._ready)
        self._silent = False
        for entry in self._entries.feed(data):
            if not self.ended:
                self._take(entry)
        return True

    def _take(self, entry: dict[str, Any] | None) -> None:
        if entry is None:
            self._ready.append(_note(TOO_LONG))
            return
        cursor = entry.get("__CURSOR")
        expected, self._resumed_at = self._resumed_at, None
        self.cursor = cursor if isinstance(cursor, str) else self.cursor
        if expected is not None:
            if expected == cursor:
                return  # it was read before
            self._ready.append(_note(GAP))
        if self._invocation is None or self._belongs(entry):
            self._ready += [*self._early, *text_lines(entry)]
            self._early.clear()

    def _belongs(self, entry: dict[str, Any]) -> bool:
        """Whether an entry of the unit is one of this run: see the head of this module."""
        if entry.get("OBJECT_SYSTEMD_INVOCATION_ID") == self._invocation:
            return True
        said = entry.get("USER_INVOCATION_ID") if self._user else entry.get("INVOCATION_ID") if entry.get("_PID") == "1" else None
        of = said or entry.get("_SYSTEMD_INVOCATION_ID")
        if of == self._invocation:
            self._seen = True
        elif not self._seen:  # before it, or of no run that is known: ours, if no other run follows
            self._early = [] if of else [*self._early, *text_lines(entry)]
            return False
        elif of:
            self._later = True
            if not self._follow and said:
                self.ended = True  # what follows is of later runs
        return of == self._invocation or (not of and not self._later)

    def _start(self) -> _Running | None:
        """A new journalctl that goes on after the last entry; None: it is not time for another one yet."""
        if self._started and time.monotonic() - self._started < (_AGAIN_S if self._starts else _POLL_S):
            return None
        self._started = time.monotonic()
        where = [f"--cursor={self.cursor}"] if self.cursor else []
        if self.cursor is None and self._invocation is not None:
            if (first := self._first()) is None:
                self.ended = not self._follow  # else journald has not come to it yet
                return None
            where = [f"--since=@{first - _BEFORE_S:.6f}"]
        lines = ["--follow", "--lines=all" if self.cursor else "--no-tail"] if self._follow else []
        running = _Running(_argv([*lines, *where, *self._matches]))
        self._entries, self._resumed_at = _Entries(), self.cursor
        self._silent = True
        self._starts += 1
        return running

    def _first(self) -> float | None:
        """When the first entry came that names this run, in seconds since the epoch; None if there is none (yet). Raises OpsError."""
        running, entries, end = _Running(_argv(self._named)), _Entries(), time.monotonic() + _LOOK_S
        try:
            while (left := end - time.monotonic()) > 0:
                if not select.select([running.output], [], [], left)[0]:
                    break
                data = os.read(running.output, 1 << 16)
                for entry in entries.feed(data):
                    if entry is not None and str(entry.get("__REALTIME_TIMESTAMP", "")).isdigit():
                        return int(entry["__REALTIME_TIMESTAMP"]) / 1_000_000
                if not data:
                    return None
        finally:
            running.end()
        raise Timeout(f"journalctl gave no answer within {_LOOK_S:g} s", why="The journal is very large, or its disk hangs")

    def _over(self, code: int, told: str) -> None:
        """A journalctl has ended: all was read, or another one goes on later. Raises OpsError for what no other one helps."""
        if (refused := _refusal(told)) is not None:
            raise refused
        if not self._follow:
            if code == 0:
                self.ended = True
            elif self._starts >= 5:
                raise OpsError("The journal cannot be read to its end", why=told[-500:] or f"journalctl ended with exit code {code}")


class _Running:
    """A journalctl at work. `output` is the descriptor of what it prints."""

    def __init__(self, argv: list[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self.output, given = os.pipe()
        try:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=given, stderr=self._errors, env=systemctl.environment())
        except OSError as error:
            self._errors.close()
            os.close(self.output)
            raise OpsError("journalctl cannot be run", why=error.strerror or str(error)) from error
        finally:
            os.close(given)

    def end(self, *, over: bool = False) -> tuple[int, str]:
        """Ends it (`over`: it has closed its output, and ends by itself); gives its exit code, and what it said beside the entries."""
        os.close(self.output)
        if not over:
            self._process.kill()
        try:
            code = self._process.wait(timeout=_AGAIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        told = self._errors.read(4096).decode(errors="replace").strip()
        self._errors.close()
        return code, told


def follow(unit: str, *, user: bool = False, invocation: str | None = None, cursor: str | None = None) -> JournalLog:
    """The entries from the beginning (or after `cursor`) and on. Raises OpsError if the journal may not be read, or there is none.

    What this user does not see is said in a first line.
    """
    unseen = check(unit, user=user, invocation=invocation)
    log = JournalLog(unit, user=user, invocation=invocation, cursor=cursor)
    if unseen and "holds nothing" not in unseen:
        log._ready.append(_note(unseen))
    return log


def lines(unit: str, *, user: bool = False, invocation: str | None = None) -> Iterator[str]:
    """The entries so far as lines, in bounded memory. Raises OpsError as `follow` does."""
    unseen = check(unit, user=user, invocation=invocation)
    if unseen:
        yield _note(unseen)
    log = JournalLog(unit, user=user, invocation=invocation, follow=False)
    try:
        while not log.ended:
            if not log._fill(1.0) and not log.ended:
                time.sleep(0.05)
            yield from log._ready
            log._ready.clear()
    finally:
        log.close()
