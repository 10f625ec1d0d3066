"""The agent's one helper process: follows the journals of all jobs and publishes them, sends heartbeats, telemetry and announcements,
turns cancel messages into flags, and has jobs reconciled whose runner died.

Redis may be away or empty at any moment: then it goes on looking after jobs, and publishes later what the journals hold. It may be
killed at any moment: all that it knows is on disk or in Redis. One runs on a node at a time (a lock on `companion.lock`).
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ops.agent.config import NodeConfig, NodePaths
from ops.agent.telemetry import Telemetry
from ops.jobs import reconcile, reserve, runner, streams
from ops.jobs.envelope import check_job_id
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.jobs.events import EventType
from ops.jobs.journal import Tail, journal_path, short_address

log = logging.getLogger("roundhouse.companion")

LOOK_S = 1.0  # journals are looked at this often even without a nudge
BEAT_S = 5.0
RECONCILE_AGAIN_S = 30.0  # after a reconciler that could not do it
RECONCILE_S = 5.0  # every 30 s is promised; what a look costs is a line of each open journal
RESERVE_S = 600.0
ANNOUNCE_S = 30.0
READY_S = 15.0  # the first announcement waits this long for GPUs and packages to be read once
AWAY_S = 1.0  # pause after Redis did not answer
CONTROL_BLOCK_S = 4.0
BATCH = 64
BATCH_BYTES = 1024 * 1024
CANCEL_KEPT_S = 7 * 24 * 3600.0  # a cancel of a job that never came


@dataclass
class Followed:
    """A job that is not settled: what was read of its journal, and what of that waits to be published."""

    job: str
    tail: Tail
    waiting: list[tuple[int, str]] = field(default_factory=list)
    final: bool = False
    reconcile_after: float = 0.0  # monotonic
    told_damage: bool = False


class Companion:
    """`run` does everything until `stop` is set."""

    def __init__(self, paths: NodePaths, config: NodeConfig) -> None:
        self.paths, self.config = paths, config
        self.stopping = threading.Event()
        self.followed: dict[str, Followed] = {}
        self.reconciling: dict[str, subprocess.Popen[bytes]] = {}
        self.publisher: streams.Publisher | None = None
        self.telemetry = Telemetry(paths, config)
        self._socket = _listen(paths.nudge_socket)
        self._due: dict[str, float] = {}
        self._seen: set[str] = set()  # folders that need no second look: settled, or not a job
        self._away_until = 0.0
        self._away_told = ""
        self._announced = ""
        self._began = time.monotonic()
        self._more = False  # a journal may have more to publish at once

    def run(self) -> None:
        self.telemetry.start()
        threading.Thread(target=self._follow_control, name="control", daemon=True).start()
        try:
            while not self.stopping.is_set():
                self._turn()
        finally:
            self.telemetry.stop()
            self._socket.close()
            self.paths.nudge_socket.unlink(missing_ok=True)

    def _turn(self) -> None:
        """One round; waits up to `LOOK_S` for a nudge at its end."""
        if self._is_due("look", LOOK_S):
            self._find_jobs()
        if self._is_due("reserve", RESERVE_S):
            reserve.keep(self.paths.root)
        if self._is_due("reconcile", RECONCILE_S):
            self._reconcile()
        self._collect_reconcilers()
        if time.monotonic() >= self._away_until:
            try:
                self._publish()
                self._away_told = ""
            except streams.RedisAway as error:
                self._lost_redis(error)
        self._wait()

    def _wait(self) -> None:
        """Until a journal grew, or something is due."""
        now = time.monotonic()
        away = now < self._away_until
        due = [self._due.get(what, 0.0) for what in (("look", "reconcile") if away else ("look", "reconcile", "beat", "telemetry"))]
        until = min([*due, self._away_until] if away else due)
        self._socket.settimeout(0.001 if self._more and not away else min(max(until - now, 0.001), LOOK_S))
        try:
            for _ in range(1000):  # a datagram an event: all that came meanwhile is one round's work
                if self._socket.recv(64).decode(errors="replace") not in self.followed:
                    self._due["look"] = 0.0  # a new job
                self._socket.settimeout(0)
        except (TimeoutError, BlockingIOError):
            pass

    # Journals

    def _find_jobs(self) -> None:
        """Follows every job whose events the recorder does not have in full."""
        try:
            names = os.listdir(self.paths.jobs)  # noqa: PTH208  (thousands of folders, once a second)
        except FileNotFoundError:
            return
        for name in names:
            if name in self.followed or name in self._seen:
                continue
            try:
                check_job_id(name)
            except Refused:
                self._seen.add(name)
                continue
            folder = self.paths.jobs / name
            if (folder / "settled").exists():
                self._seen.add(name)
                continue
            self.followed[name] = Followed(name, Tail(journal_path(self.paths, name)))
            asked = self.paths.root / "cancelled" / name
            if asked.exists():  # the cancel came before the claim, or while it was made
                self._flag(name, asked.read_text() or "")
                asked.unlink(missing_ok=True)

    def _publish(self) -> None:
        publisher = self._connected()
        if self._is_due("beat", BEAT_S):
            publisher.check(list(self.followed))
            publisher.beat(self._living())
            self._settle(publisher)
        self._more = False
        for followed in list(self.followed.values()):
            try:
                self._publish_job(publisher, followed)
            except streams.ResponseError as error:  # this job's stream is not what it should be: the others go on
                log.error("the events of job %s cannot be published: %s", followed.job, error)
        if self._is_due("telemetry", 1.0):
            publisher.telemetry(self.telemetry.sample())
            self._announce(publisher)

    def _publish_job(self, publisher: streams.Publisher, followed: Followed) -> None:
        after = publisher.resume_after(followed.job)
        if after < (followed.waiting[0][0] - 1 if followed.waiting else followed.tail.last_seq):
            # The server was emptied, or another batch was lost: read again from the journal, which has everything.
            followed.tail, followed.waiting, followed.final = Tail(followed.tail.path), [], False
        for _ in range(4):  # then other jobs and telemetry have their turn
            if not followed.waiting and not self._read(followed):
                return
            while followed.waiting:
                batch: list[tuple[int, str]] = []
                size = 0
                for seq, line in followed.waiting:
                    if batch and (len(batch) >= BATCH or size + len(line) > BATCH_BYTES):
                        break
                    batch.append((seq, line))
                    size += len(line)
                publisher.send(followed.job, batch)
                del followed.waiting[: len(batch)]
        self._more = True

    def _read(self, followed: Followed) -> bool:
        """Takes the next events of the job's journal; false if there are none."""
        lines = followed.tail.read_lines(limit=500)
        if followed.tail.damaged and not followed.told_damage:
            followed.told_damage = True
            log.error("the journal of job %s is damaged at byte %d: nothing after that is published", followed.job, followed.tail.offset)
        if lines:
            force(followed.tail.path)  # nothing that anybody saw may be unwritten by a power cut
        for event, line in lines:
            followed.waiting.append((event.seq, line))
            followed.final = followed.final or event.type == EventType.JOB_FINISHED
        return bool(lines)

    def _settle(self, publisher: streams.Publisher) -> None:
        """Lets go of jobs that are over and whose events the recorder has stored."""
        over = [followed for followed in self.followed.values() if followed.final and not followed.waiting]
        stored = publisher.stored([followed.job for followed in over])
        for followed in over:
            if stored[followed.job] >= followed.tail.last_seq:
                publisher.settle(followed.job)
                (self.paths.jobs / followed.job / "settled").touch(mode=0o600)
                del self.followed[followed.job]
                self._seen.add(followed.job)

    def _living(self) -> list[str]:
        """Jobs that somebody works on: their runner, or a reconciler."""
        living = []
        for followed in self.followed.values():
            if followed.final:
                continue
            found = reconcile.runner_of(followed.tail.path)
            if followed.job in self.reconciling or (found is not None and found.lives()):
                living.append(followed.job)
        return living

    # Reconciling

    def _reconcile(self) -> None:
        """Has every open job without a living runner ended, each in a process of its own."""
        for job, followed in self.followed.items():
            if followed.final or job in self.reconciling or time.monotonic() < followed.reconcile_after:
                continue
            if reconcile.needs_reconciling(self.paths, job):
                log.warning("the runner of job %s is gone: reconciling", job)
                self.reconciling[job] = reconcile.start(self.paths, job)

    def _collect_reconcilers(self) -> None:
        for job, process in list(self.reconciling.items()):
            code = process.poll()
            if code is None:
                continue
            del self.reconciling[job]
            if code != 0 and job in self.followed:
                self.followed[job].reconcile_after = time.monotonic() + (RECONCILE_S if code == 3 else RECONCILE_AGAIN_S)
            if code == 3:
                log.warning("job %s cannot be ended yet: something still holds its lock, or writes its journal", job)
            elif code != 0:
                log.error("reconciling job %s failed with code %s; see reconcile.out in its folder", job, code)

    # Redis

    def _connected(self) -> streams.Publisher:
        if self.publisher is None:
            self.publisher = streams.Publisher(streams.connect(), self.config.name)
        return self.publisher

    def _lost_redis(self, error: streams.RedisAway) -> None:
        if self._away_told != str(error):
            log.warning("%s", error)
            self._away_told = str(error)
        if self.publisher is not None:
            self.publisher.client.close()
            self.publisher = None  # the address is read again: the server may have been started anew
        self._away_until = time.monotonic() + AWAY_S

    def _announce(self, publisher: streams.Publisher) -> None:
        """At the start, at a change, and every 30 s."""
        if not self._announced and not self.telemetry.is_ready() and time.monotonic() - self._began < READY_S:
            return
        said = self.telemetry.announcement()
        text = json.dumps({**said, "at": None}, sort_keys=True)
        if self._is_due("announce", ANNOUNCE_S) or text != self._announced:
            publisher.announce(said)
            self._announced = text
            self._due["announce"] = time.monotonic() + ANNOUNCE_S

    def _follow_control(self) -> None:
        """Cancel messages become flags. The stream is read from its beginning after each (re)connect: flags are safe to set twice."""
        while not self.stopping.is_set():
            try:
                with streams.connect(block_s=CONTROL_BLOCK_S) as client:
                    position = "0"
                    while not self.stopping.is_set():
                        answer: Any = client.xread({streams.control_stream(self.config.name): position}, count=100,
                                                   block=int(CONTROL_BLOCK_S * 1000))
                        for _, entries in (answer.items() if isinstance(answer, dict) else answer or []):
                            for entry, fields in entries:
                                position = entry
                                self._obey(fields.get(b"c", b""))
            except (*streams.AWAY, streams.RedisAway):
                self.stopping.wait(AWAY_S)
            except streams.ResponseError as error:
                log.error("the control stream cannot be read: %s", error)
                self.stopping.wait(BEAT_S)

    def _obey(self, raw: bytes) -> None:
        try:
            said = json.loads(raw)
            if said["do"] != "cancel":
                raise ValueError(f"unknown: {said['do']!r}")
            job, by = check_job_id(said["job"]), str(said.get("by") or "")[:150]
        except (ValueError, KeyError, TypeError, RecursionError, Refused) as error:
            log.error("a control message cannot be obeyed: %s", error)
            return
        try:
            if (self.paths.jobs / job).exists():
                self._flag(job, by)
            else:
                folder = self.paths.root / "cancelled"
                folder.mkdir(mode=0o700, exist_ok=True)
                (folder / job).write_text(by)
                for old in folder.iterdir():
                    if time.time() - old.stat().st_mtime > CANCEL_KEPT_S:
                        old.unlink(missing_ok=True)
        except OSError as error:
            log.error("job %s could not be asked to stop: %s", job, error)

    def _flag(self, job: str, by: str) -> None:
        folder = self.paths.jobs / job
        if not (folder / "cancel").exists() and not runner.is_final(self.paths, job):
            log.info("job %s is asked to stop", job)
            runner.write_cancel(folder, by)

    def _is_due(self, what: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_s
        return True


def force(path: Path) -> None:
    """Forces a file's content to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # an earlier companion's; there is one at a time
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    with short_address(path) as address:
        made.bind(address)
    path.chmod(0o600)
    return made


def alone(paths: NodePaths, wait_s: float = 10.0) -> int:
    """Takes the node's companion lock (its descriptor). Raises BadInput if another one keeps it for longer than `wait_s`."""
    descriptor = os.open(paths.root / "companion.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise BadInput(f"Another agent already works in `{paths.root}`", hint="Stop it first, or give this one another folder") from error
            time.sleep(0.2)


def die_with(parent: int) -> None:
    """Ends this process with its parent, however that one ends; at once if it has ended already."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the agent has ended")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.agent.companion")
    parser.add_argument("--parent", type=int, help="end when this process, which must be the parent, ends")
    given = parser.parse_args(arguments)
    if given.parent is not None:
        die_with(given.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        paths = NodePaths.default().make()
        config = NodeConfig.load(paths.node_toml)
        lock = alone(paths)
        companion = Companion(paths, config)
    except OpsError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1

    def asked(number: int, frame: FrameType | None) -> None:
        companion.stopping.set()

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal group; the agent tells us when it has ended
    try:
        companion.run()
    finally:
        os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
