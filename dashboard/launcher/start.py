"""`manage.py up`, in reading order: check, start, tell, stay, stop."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from dashboard.by_hand import by_hand
from dashboard.embedded_redis import EmbeddedRedis
from dashboard.launcher import main_job, node
from dashboard.launcher.children import Child, Children
from dashboard.launcher.earlier import START_MARK, Start, check_state_folder
from dashboard.launcher.terminal import Terminal
from ops.agent.config import NodePaths, state_folder
from ops.gpus.processes import marked_with
from ops.jobs import reconcile
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.marks import end, marked, tell
from ops.records import ServiceRecord
from ops.services.manager import Manager, manager_for
from ops.services.status import ServiceState, ServiceStatus

DEFAULT_PORT = 8470
WEB_S = 60.0
SERVICE_S = 300.0  # the practice service's warmup at speed 1 takes a small part of this
SERVICE_END_S = 5.0  # a practice service that starts ignores SIGTERM, as vllm does; one that serves ends within a second
PRACTICE_MARK = "PRACTICE_BOX"


@dataclass(frozen=True, slots=True)
class Options:
    practice: bool = False
    once: bool = False
    port: int = DEFAULT_PORT
    job: bool = True


class Asked(BaseException):
    """Somebody asked the launcher to end (Ctrl-C, SIGTERM, a closed terminal)."""


class Signals:
    """Raises Asked at the first signal; later ones only count, so that they cannot interrupt the ending. Two or more: in a hurry."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            raise Asked(signal.Signals(number).name)

    def hurry(self) -> bool:
        return self.count > 1


def up(options: Options, terminal: Terminal | None = None) -> int:
    """Runs until asked to end (`once`: until the main job has ended). Gives the exit code; raises OpsError for what stops it at the start."""
    launcher = Launcher(options, terminal or Terminal())
    with Signals() as signals:
        try:
            return launcher.run()
        except Asked:
            code = 0 if not options.once else 130
        finally:
            signals.count = max(signals.count, 1)  # from here on a signal only means hurry
            launcher.stop(signals.hurry)
    launcher.terminal.line("Ended; no process is left.")
    return code


class Launcher:
    def __init__(self, options: Options, terminal: Terminal) -> None:
        self.options, self.terminal = options, terminal
        self.state = state_folder()
        self.paths = NodePaths.default()
        self.start = Start(self.state)
        self.children: Children | None = None
        self.taken = False

    # ---- check, start, tell, stay ----

    def run(self) -> int:
        options = self.options
        check_state_folder(self.state)
        self.start.take()
        self.taken = True
        node.check_kind(self.paths, practice=options.practice)
        ended = self.start.end_leftovers()  # an earlier web may still hold the port
        check_port(options.port)
        address = f"http://127.0.0.1:{options.port}"
        self.start.write(address=address, practice=options.practice)

        self.terminal.line(self.terminal.colour("Roundhouse", "bold") + (", practice box: simulated GPUs and model" if options.practice else ""))
        self.terminal.fact("state", str(self.state) + (f", {ended} processes of an earlier start ended" if ended else ""))
        self.children = Children(self.state / "logs", self.terminal)
        self._start_redis()
        self._prepare_database()
        record = self._become_node()
        manager = self._start_service(record) if record else None
        self._start_console(address)
        answers = True
        if record and manager:
            try:
                self._wait_until_healthy(record, manager)
            except OpsError as error:  # somebody left it broken: the page says more, and can put it right
                answers = False
                self.terminal.line(self.terminal.colour(str(error), "red"))
        self._tell_address(address)
        succeeded: bool | None = None
        if record and options.job and (answers or options.once):
            try:
                succeeded = main_job.main_job(record, self.terminal, self.tick, always=options.once, reset=by_hand("manage.py demo_job --reset"),
                                              ensure_service=lambda: self._wait_until_healthy(record, self._start_service(record)))
            except OpsError as error:
                succeeded = False
                self.terminal.line(self.terminal.colour(str(error), "red"))
        if options.once:
            return 0 if succeeded else 1
        self.terminal.line(f"\nRoundhouse runs at {address}. Ctrl-C ends it" + (" and the practice service." if record else "."))
        while True:
            self.tick()
            time.sleep(0.2)

    def tick(self) -> None:
        if self.children is not None:
            self.children.watch()

    def _start_redis(self) -> None:
        import redis

        if url := os.environ.get("ROUNDHOUSE_REDIS_URL"):
            try:
                with contextlib.closing(redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)) as client:
                    version = client.info("server").get("redis_version")
            except (redis.exceptions.RedisError, ValueError, OSError) as error:
                raise OpsError("The Redis of ROUNDHOUSE_REDIS_URL does not answer", why=str(error)[:200],
                               hint="Start it, or unset the variable: then Roundhouse starts its own") from error
            self.terminal.fact("redis", f"a running one (ROUNDHOUSE_REDIS_URL), version {version}")
            return
        child = self._children.start_redis(EmbeddedRedis(self.state / "redis"))
        self.terminal.fact("redis", f"embedded, pid {child.pid}")

    def _prepare_database(self) -> None:
        from django.conf import settings
        from django.core.management import call_command
        from django.db import connection
        from django.db.utils import Error

        began = time.monotonic()
        try:
            call_command("migrate", interactive=False, verbosity=0)
        except Error as error:
            raise OpsError("The database cannot be prepared", why=str(error), hint="Look at ROUNDHOUSE_DATABASE_URL and the state folder") from error
        changed = static_fingerprint()
        stamp = Path(settings.STATIC_ROOT) / ".roundhouse-collected"
        if not stamp.exists() or stamp.read_text() != changed:
            stamp.unlink(missing_ok=True)
            call_command("collectstatic", interactive=False, verbosity=0)
            stamp.write_text(changed)
        self.terminal.fact("database", f"{connection.vendor}, ready  ({time.monotonic() - began:.1f} s)")

    def _become_node(self) -> ServiceRecord | None:
        if not self.options.practice:
            node.set_up_real(self.paths, self.terminal)
            return None
        self.terminal.status("  making the practice box: wheels, an environment, a model folder ...")
        return node.set_up_practice(self.paths, self.state / "box", self.terminal)

    def _start_service(self, record: ServiceRecord) -> Manager:
        """The practice service, unless it runs: one that an earlier start left is adopted as it is."""
        manager = manager_for(record)
        status = manager.status()
        if job := self._job_in_the_way(record):
            self.terminal.fact("service", f"{status.state}; job {job} goes on and has the service in its hands")
        elif status.runs:
            self.terminal.fact("service", f"{record.name} runs since an earlier start, pid {status.pid}, release {status.release}")
        else:
            status = manager.start()
            self.terminal.fact("service", f"{record.name} starts, pid {status.pid}, release {status.release}")
        return manager

    def _job_in_the_way(self, record: ServiceRecord) -> str | None:
        """An unfinished job that holds the service's lock: a runner that outlived the launcher, or one that the agent must undo first."""
        for job in reconcile.open_jobs(self.paths):
            try:
                locks = json.loads((self.paths.jobs / job / "envelope.json").read_text()).get("locks", [])
            except (OSError, ValueError):
                continue  # killed while it claimed: nothing was done yet
            if f"service:{record.name}" in locks:
                return job
        return None

    def _start_console(self, address: str) -> None:
        python, port = sys.executable, str(self.options.port)
        web = self._children.start("web", [
            python, "-m", "uvicorn", "dashboard.asgi:application", "--host", "127.0.0.1", "--port", port, "--timeout-graceful-shutdown", "3",
            "--no-access-log", "--no-server-header", "--ws", "none",
            "--no-proxy-headers"])  # whoever reaches the port could forge X-Forwarded-For; Django itself reads X-Forwarded-Proto where told to
        recorder = self._children.start("recorder", [python, "manage.py", "record_events"])
        # Celery loads Django's settings where it finds this variable; an agent has no use for them
        agent = self._children.start("agent", agent_argv(self.paths), without=("DJANGO_SETTINGS_MODULE",))
        self._wait_for_web(address, web)
        self.terminal.fact("web", f"{address}, pid {web.pid}")
        self.terminal.fact("recorder", f"pid {recorder.pid}")
        self.terminal.fact("agent", f"node {node_name(self.paths)}, pid {agent.pid}")

    def _wait_for_web(self, address: str, web: Child) -> None:
        """Until /health/ says that web, database, Redis and recorder are well."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever HTTP_PROXY says: this is our own address
        deadline, said = time.monotonic() + WEB_S, "nothing"
        while time.monotonic() < deadline:
            self.terminal.status("  waiting for the web process ...")
            self.tick()
            try:
                with direct.open(f"{address}/health/", timeout=5):
                    return
            except urllib.error.HTTPError as error:  # 503: it answers, and something is away still
                with error:
                    said = " ".join(error.read(500).decode(errors="replace").split())
            except OSError:
                pass  # it does not listen yet
            time.sleep(0.2)
        raise OpsError(f"The web process does not answer at {address}, or not well", why=f"Its last answer: {said}",
                       hint=f"Look into {self._children.log(web.name)}")

    def _wait_until_healthy(self, record: ServiceRecord, manager: Manager) -> None:
        """Waits for the practice service's first answer, unless a job has it in its hands."""
        began = time.monotonic()
        while self._job_in_the_way(record) is None:
            status: ServiceStatus = manager.status()
            if status.state == ServiceState.HEALTHY:
                self.terminal.fact("service", f"{record.name} answers at {record.base_url}")
                return
            if status.state in {ServiceState.FAILED, ServiceState.STOPPED}:
                raise OpsError(f"The practice service `{record.name}` did not start", why=status.detail, hint=f"Look into {status.log_path}")
            if time.monotonic() - began > SERVICE_S:
                raise OpsError(f"The practice service `{record.name}` did not answer within {SERVICE_S:.0f} s", why=status.detail,
                               hint=f"Look into {status.log_path}")
            self.terminal.status(f"  {record.name} warms up ... {time.monotonic() - began:.0f} s")
            self.tick()
            time.sleep(0.2)

    def _tell_address(self, address: str) -> None:
        from django.conf import settings

        from dashboard import accounts

        link = address + accounts.link_path(accounts.make_token(accounts.first_admin()))
        self.terminal.line(f"\nSign in: {self.terminal.colour(link, 'bold')}\n(works once, within {settings.SIGN_IN_LINK_MINUTES} minutes; another: "
                           f"{by_hand('manage.py sign_in_link')})")

    @property
    def _children(self) -> Children:
        if self.children is None:
            raise RuntimeError("run() makes the children before it starts one")
        return self.children

    # ---- stop ----

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ends everything: console and agent first (so that nobody undoes or restarts meanwhile), then jobs and practice services."""
        if not self.taken:
            return
        self.terminal.status("")
        if self.children is not None and self.children.all:
            self.terminal.status("  stopping ...")
            redis = [child for child in self.children.all if child.redis is not None]
            others = [child for child in self.children.all if child.redis is None]
            self.children.all = others
            self.children.stop(hurry)
            stop_jobs(self.paths)
            self._stop_practice(hurry)
            self.children.all = redis
            self.children.stop(hurry)
        else:
            self._stop_practice(hurry)
        self._verify_nothing_is_left()
        self.start.release()
        self.terminal.status("")

    def _stop_practice(self, hurry: Callable[[], bool]) -> None:
        if not self.options.practice:
            return
        for record in node.practice_services(self.paths):
            manager = manager_for(record)
            if not manager.pids():
                continue
            manager.terminate()
            deadline = time.monotonic() + SERVICE_END_S
            while manager.pids() and time.monotonic() < deadline and not hurry():
                time.sleep(0.05)
            if manager.pids():
                manager.kill()

    def _verify_nothing_is_left(self) -> None:
        """What still carries a mark of this state folder is ended; raises OpsError if one cannot be."""
        def left() -> set[int]:
            found = set(marked_with(START_MARK, self.start.mark))
            if self.options.practice:
                found |= set(marked_with(PRACTICE_MARK, str(self.state / "box")))
            return found - {os.getpid()}

        if stuck := end(left, lambda pid: pid in left(), grace_s=2):
            raise OpsError(f"These processes could not be ended: {tell(stuck)}", hint="End them by hand")


def stop_jobs(paths: NodePaths) -> None:
    """Asks runners to cancel and undo, then ends all that carries their job's mark. What that cuts short, the next start's agent undoes."""
    if not paths.jobs.exists():
        return
    for folder in paths.jobs.iterdir():
        if marked(folder.name):
            reconcile.shut_down(paths, folder.name, grace_s=10)


def agent_argv(paths: NodePaths) -> list[str]:
    """The agent's command line (docs/concepts/architecture.md)."""
    name = node_name(paths)
    return [sys.executable, "-m", "celery", "-A", "ops.agent.celery", "worker", "-Q", f"node.{name}", "--hostname", f"agent@{name}",
            "--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]


def node_name(paths: NodePaths) -> str:
    from ops.agent.config import NodeConfig

    return NodeConfig.load(paths.node_toml).name


def check_port(port: int) -> None:
    """Raises BadInput if somebody listens on the port, or it may not be used."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as uvicorn: connections that just ended do not count
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadInput(f"Port {port} cannot be used: {reason}", hint=f"Choose another one: `make demo PORT={DEFAULT_PORT + 1}`") from error


def static_fingerprint() -> str:
    """Changes when a static file of ours, of Plotly or of an installed app does: names, sizes and times of all."""
    from django.contrib.staticfiles.finders import get_finders

    from dashboard.apps import StaticFiles

    found = []
    for finder in get_finders():
        for path, storage in finder.list(StaticFiles.ignore_patterns):
            known = Path(storage.path(path)).stat()
            found.append(f"{path} {known.st_size} {known.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()
