from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodePaths
from ops.artifacts import conditions as looking
from ops.artifacts import kinds
from ops.artifacts.conditions import Conditions
from ops.artifacts.kinds import Kind
from ops.artifacts.places import Never, Place, Places
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services.status import ServiceState, ServiceStatus

KINDS = {kind.name: kind for kind in kinds.builtin()}
DAY = 86400


class Service:
    """Stands for a manager: what its status says, and the logs of its last starts."""

    def __init__(self, state: str = ServiceState.STOPPED, *, started_at: float | None = None, logs: dict[str, list[str]] | None = None,
                 **facts: Any) -> None:
        pid = 4_000_000 if state in (ServiceState.HEALTHY, ServiceState.STARTING) else None
        self.told = ServiceStatus(state=state, started_at=started_at, pid=pid, detail="It says so", **facts)
        self.logs = logs or {}

    def status(self) -> ServiceStatus:
        return self.told

    def pids(self) -> set[int]:
        return set()

    def log_lines(self, invocation: str = "") -> Iterator[str]:
        if invocation == "unreadable":
            raise OpsError("The journal may not be read")
        yield from self.logs.get(invocation, [])


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> dict[str, Service]:
    found: dict[str, Service] = {}
    monkeypatch.setattr(looking, "manager_for", lambda record, **options: found[record.name])
    monkeypatch.setattr(looking, "FRESH_S", -1.0)
    monkeypatch.setattr(looking, "INSTALLED_FRESH_S", -1.0)
    monkeypatch.setattr(Conditions, "_others", lambda self: [])  # other servers on this machine; one test starts its own
    return found


def record(tmp_path: Path, name: str = "kimi", **fields: Any) -> ServiceRecord:
    root = NodePaths(tmp_path / "node").services / name
    root.mkdir(parents=True, exist_ok=True)
    return ServiceRecord.from_dict({"name": name, "root": str(root), "model_path": str(tmp_path / "model"), "served_model_name": name,
                                    "base_url": "http://127.0.0.1:9", **fields})


def conditions(place: str, folder: Path, *records: ServiceRecord, users: dict[str, int | None] | None = None, holders: Any = None) -> Conditions:
    names = tuple(record.name for record in records)
    found = Places([Place(place, str(folder), names[0] if len(names) == 1 else "", "", names)], Never(), users=users or {})
    return Conditions(None, None, records, holders, places=found)


def aged(path: Path, age_s: float, *, folder: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if folder:
        path.mkdir()
    else:
        path.write_bytes(b"x")
    when = time.time() - age_s
    os.utime(path, (when, when))
    return path


def verdict(of: Conditions, kind: Kind, path: Path) -> str | None:
    return of.verdict(kind, str(path), stat=path.lstat(), folder_newest_ns=path.lstat().st_mtime_ns if kind.unit == "folder" else None)


def test_what_is_young_may_still_be_written(tmp_path: Path) -> None:
    of = conditions("vllm-dump", tmp_path)
    assert verdict(of, KINDS["graph-dump"], aged(tmp_path / "rank_0_dp_0", 1800, folder=True)) == (
        "It is younger than an hour, and may still be written")
    assert verdict(of, KINDS["graph-dump"], aged(tmp_path / "rank_1_dp_0", 7200, folder=True)) is None


def test_an_old_folder_with_a_young_file_in_it_is_young(tmp_path: Path) -> None:
    folder = aged(tmp_path / "rank_0_dp_0", 7200, folder=True)
    of = conditions("vllm-dump", tmp_path)
    assert of.verdict(KINDS["graph-dump"], str(folder), stat=folder.lstat(), folder_newest_ns=time.time_ns()) is not None


@pytest.mark.parametrize("service", [Service(ServiceState.HEALTHY), Service(ServiceState.STARTING), Service(ServiceState.UNKNOWN),
                                     Service(ServiceState.FAILED, ending=True), Service(ServiceState.FAILED, restarting=True)],
                         ids=["runs", "starts", "unknown", "is-ending", "is-restarted-by-systemd"])
def test_a_shared_cache_stays_until_all_that_use_it_are_stopped(tmp_path: Path, services: dict[str, Service], service: Service) -> None:
    cache = aged(tmp_path / ("A2" * 26), 2 * DAY, folder=True)
    of = conditions("triton-cache", tmp_path, record(tmp_path), record(tmp_path, "qwen"))
    services |= {"kimi": Service(ServiceState.STOPPED), "qwen": service}
    assert "`qwen`" in (verdict(of, KINDS["triton-cache"], cache) or "")
    services["qwen"] = Service(ServiceState.FAILED, exit_code=1)
    assert verdict(of, KINDS["triton-cache"], cache) is None


def test_shared_memory_of_an_earlier_run_goes_while_a_later_one_runs(tmp_path: Path, services: dict[str, Service]) -> None:
    segment = aged(tmp_path / "psm_1f0c9a3e", 2 * DAY)
    segment.chmod(0o600)

    class Complete:
        complete = True

    of = conditions("shm", tmp_path, record(tmp_path), users={"kimi": os.getuid()}, holders=Complete())
    services["kimi"] = Service(ServiceState.HEALTHY, started_at=time.time() + 60)
    assert verdict(of, KINDS["shared-memory"], segment) is None
    services["kimi"] = Service(ServiceState.HEALTHY, started_at=time.time() - 60)
    assert verdict(of, KINDS["shared-memory"], segment) == "`kimi` runs, and may have made it"  # made since, whatever its mtime says
    services["kimi"] = Service(ServiceState.UNKNOWN)
    assert "cannot be told" in (verdict(of, KINDS["shared-memory"], segment) or "")
    services["kimi"] = Service(ServiceState.STOPPED)
    assert verdict(of, KINDS["shared-memory"], segment) is None
    of.places.users["kimi"] = os.getuid() + 1  # type: ignore[union-attr]  # another user cannot have made it
    services["kimi"] = Service(ServiceState.HEALTHY, started_at=time.time() - 60)
    assert verdict(of, KINDS["shared-memory"], segment) is None


def test_a_server_that_is_no_service_keeps_what_it_may_use(tmp_path: Path) -> None:
    cache = aged(tmp_path / ("A2" * 26), 2 * DAY, folder=True)
    program = subprocess.Popen(["VLLM::EngineCore", "-c", "import time; print(flush=True); time.sleep(60)"], executable=sys.executable,
                               stdout=subprocess.PIPE)
    try:
        assert program.stdout is not None
        program.stdout.readline()
        told = [one.pid for one in conditions("triton-cache", tmp_path)._others()]
        assert program.pid in told
        assert "no service here" in (verdict(conditions("triton-cache", tmp_path), KINDS["triton-cache"], cache) or "")
    finally:
        program.kill()
        program.communicate()
    assert program.pid not in [one.pid for one in conditions("triton-cache", tmp_path)._others()]


@pytest.mark.parametrize(("title", "server"), [
    ("VLLM::EngineCore", True), ("sglang::scheduler", True), ("ray::RayWorkerWrapper.execute_method", True), ("ray::IDLE", False),
    ("/srv/venv/bin/vllm serve /models/kimi", True), ("vllm", True),
    ("/usr/bin/python3 /srv/venv/bin/vllm serve x", True), ("python -m vllm.entrypoints.openai.api_server", True),
    ("python3.12 -u -m sglang.launch_server", True), ("python -m ops artifacts scan --root /vllm", False), ("vim vllm.py", False),
    ("/data/vllm/bin/python x.py", False), ("tail -f /var/log/vllm", False), ("bash", False), ("", False),
])
def test_servers_are_known_by_what_was_started(title: str, server: bool) -> None:
    assert bool(looking._SERVER.match(title)) is server


def environment(folder: Path, version: str | None) -> Path:
    library = folder / "lib" / "python3.12" / "site-packages"
    library.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("version = 3.12.1\n")
    if version is not None:
        metadata = library / f"flashinfer_python-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {version}\n")
    return folder


def test_kernels_of_a_version_that_any_kept_release_has_stay(tmp_path: Path, services: dict[str, Service]) -> None:
    services |= {"kimi": Service(), "qwen": Service()}
    kimi = record(tmp_path)
    qwen = record(tmp_path, "qwen", environment=str(environment(tmp_path / "venv", "0.7.4")))
    environment(kimi.releases / "20260101-000000-0.1", "0.6.3+cu129")
    of = conditions("flashinfer-cache", tmp_path / "fi", kimi, qwen)
    versions = {name: aged(tmp_path / "fi" / name, 2 * DAY, folder=True) for name in ("0.6.2", "0.6.3", "0.7.4")}
    assert {name: verdict(of, KINDS["flashinfer-jit"], folder) for name, folder in versions.items()} == {
        "0.6.2": None, "0.6.3": "A release of `kimi` has FlashInfer 0.6.3 installed", "0.7.4": "A release of `qwen` has FlashInfer 0.7.4 installed"}
    bare = conditions("flashinfer-cache", tmp_path / "fi", record(tmp_path, "bare"))
    services["bare"] = Service()
    assert "it has no release" in (verdict(bare, KINDS["flashinfer-jit"], versions["0.6.2"]) or "")
    (kimi.releases / "20260102-000000-0.2" / "bin").mkdir(parents=True)  # something that is no environment
    assert "cannot be read" in (verdict(of, KINDS["flashinfer-jit"], versions["0.6.2"]) or "")


def test_without_services_nothing_says_which_version_or_hash_is_in_use(tmp_path: Path) -> None:
    of = conditions("vllm-cache", tmp_path)
    for kind, path in (("flashinfer-jit", tmp_path / "0.6.2"), ("compile-cache", tmp_path / "torch_compile_cache" / "0123456789")):
        assert "No service is known here" in (verdict(of, KINDS[kind], aged(path, 2 * DAY, folder=True)) or "")


def test_compile_caches_that_a_kept_log_names_and_the_newest_stay(tmp_path: Path, services: dict[str, Service]) -> None:
    services["kimi"] = Service()
    kimi = record(tmp_path)
    folder = tmp_path / "torch_compile_cache"
    age = {"aaaaaaaaaa": 9, "bbbbbbbbbb": 7, "cccccccccc": 5, "dddddddddd": 3}
    caches = {key: aged(folder / key, days * DAY, folder=True) for key, days in age.items()}
    aot = aged(folder / "torch_aot_compile" / ("ab" * 32), 9 * DAY, folder=True)
    newer = aged(folder / "torch_aot_compile" / ("cd" * 32), 4 * DAY, folder=True)
    logs = kimi.folder / "logs"
    logs.mkdir()
    (logs / "20260101-000000-a.log").write_text(
        f"INFO Using cache directory: {folder}/aaaaaaaaaa/rank_0_0/backbone for vLLM's torch.compile\n")
    (logs / "20260102-000000-b.log").write_text(f"INFO Directly load AOT compilation from path {aot}/rank_0_0/model\n")
    of = conditions("vllm-cache", tmp_path, kimi)
    found = {key: verdict(of, KINDS["compile-cache"], path) for key, path in caches.items()}
    assert found == {"aaaaaaaaaa": "`kimi` used it in one of its last starts", "bbbbbbbbbb": None, "cccccccccc": None,
                     "dddddddddd": "It is the newest here: the next start may use it"}
    assert verdict(of, KINDS["compile-cache"], aot) == "`kimi` used it in one of its last starts"
    assert verdict(of, KINDS["compile-cache"], newer) == "It is the newest here: the next start may use it"


def test_a_running_service_whose_log_says_nothing_keeps_all_compile_caches(tmp_path: Path, services: dict[str, Service]) -> None:
    cache = aged(tmp_path / "torch_compile_cache" / "aaaaaaaaaa", 9 * DAY, folder=True)
    aged(tmp_path / "torch_compile_cache" / "bbbbbbbbbb", DAY, folder=True)
    unit = {"manager": "systemd", "unit": "kimi.service"}
    services["kimi"] = Service(ServiceState.HEALTHY, started_at=1.0)
    assert "names none" in (verdict(conditions("vllm-cache", tmp_path, record(tmp_path, **unit)), KINDS["compile-cache"], cache) or "")
    eager = record(tmp_path, flags=["--enforce-eager"], **unit)
    assert verdict(conditions("vllm-cache", tmp_path, eager), KINDS["compile-cache"], cache) is None
    line = f"Using cache directory: {cache}/rank_0_0/x for vLLM's torch.compile"
    services["kimi"] = Service(ServiceState.HEALTHY, started_at=1.0, logs={"": [line]})
    assert "last starts" in (verdict(conditions("vllm-cache", tmp_path, eager), KINDS["compile-cache"], cache) or "")


def test_a_log_that_may_not_be_read_keeps_all_compile_caches(tmp_path: Path, services: dict[str, Service]) -> None:
    kimi = record(tmp_path, manager="systemd", unit="kimi.service")
    (kimi.folder / "state.json").write_text('{"runs": [{"invocation": "unreadable"}]}')
    services["kimi"] = Service()
    cache = aged(tmp_path / "torch_compile_cache" / "aaaaaaaaaa", 9 * DAY, folder=True)
    why = verdict(conditions("vllm-cache", tmp_path, kimi), KINDS["compile-cache"], cache)
    assert why == "It cannot be told which compile cache `kimi` uses: The journal may not be read"


def test_the_newest_core_dump_stays_also_after_a_newer_one_was_taken_away(tmp_path: Path) -> None:
    of = conditions("cores", tmp_path)
    old, new, newest = (aged(tmp_path / f"core.{pid}", age * DAY) for pid, age in ((1, 3), (2, 2), (3, 1)))
    kind = KINDS["core-dump"]
    assert [verdict(of, kind, path) for path in (old, new, newest)] == [None, None, "It is the newest core dump here, and stays"]
    newest.unlink()
    assert verdict(of, kind, new) == "It is the newest core dump here, and stays"
    assert verdict(of, kind, old) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_newer_core_dump_of_another_user_takes_nothing_of_the_worth_of_the_newest(tmp_path: Path) -> None:
    mine, decoy = aged(tmp_path / "core.1", 2 * DAY), aged(tmp_path / "core.2", DAY)
    os.chown(decoy, 65534, 65534)
    assert verdict(conditions("tmp", tmp_path), KINDS["core-dump"], mine) == "It is the newest core dump here, and stays"


def test_the_newest_core_dump_is_no_folder_link_or_file_of_another_name(tmp_path: Path) -> None:
    only = aged(tmp_path / "core.1", 3 * DAY)
    aged(tmp_path / "core.2", DAY, folder=True)
    aged(tmp_path / "corelist", DAY)
    (tmp_path / "core.3").symlink_to(only)
    assert verdict(conditions("cores", tmp_path), KINDS["core-dump"], only) == "It is the newest core dump here, and stays"


def test_a_core_dump_that_found_no_room_on_the_disk_is_not_the_newest(tmp_path: Path) -> None:
    whole, empty = aged(tmp_path / "core.1", 3 * DAY), aged(tmp_path / "core.2", DAY)
    os.truncate(empty, 0)
    os.utime(empty, (time.time() - DAY,) * 2)
    of = conditions("cores", tmp_path)
    assert verdict(of, KINDS["core-dump"], whole) == "It is the newest core dump here, and stays"
    assert verdict(of, KINDS["core-dump"], empty) is None


def test_of_an_own_kind_the_newest_core_dump_and_log_stay_whatever_it_says(tmp_path: Path) -> None:
    (mine,) = kinds.own([{"name": "team", "title": "Team files", "one": "team file", "leftover": "Ours", "keeping": "Nothing", "min_age_s": 3600.0,
                          "places": [str(tmp_path)], "patterns": ["*.log", "*.log.gz", "core.*", "*.bin"]}])
    of = conditions(str(tmp_path), tmp_path)
    aged(tmp_path / "newest.bin", DAY // 2)
    old = [aged(tmp_path / name, 9 * DAY) for name in ("vllm.log", "vllm-2026.log.gz", "core.77", "a.bin", "newest.bin.log")]
    new = {aged(tmp_path / name, DAY): word for name, word in (("crash.log", "log"), ("core.78", "core dump"))}
    assert [verdict(of, mine, path) for path in old] == [None] * len(old)
    assert {path: verdict(of, mine, path) for path in new} == {path: f"It is the newest {word} here, and stays" for path, word in new.items()}


def test_a_socket_that_a_process_listens_on_stays(tmp_path: Path, services: dict[str, Service], short_path: Path) -> None:
    path = short_path / str(uuid.uuid4())
    of = conditions("tmp", short_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        os.utime(path, (time.time() - DAY,) * 2)
        assert verdict(of, KINDS["ipc-socket"], path) == "A process listens on it"
    assert verdict(of, KINDS["ipc-socket"], path) is None
    path.unlink()


def test_shared_memory_stays_where_not_all_that_could_hold_it_was_seen(tmp_path: Path, services: dict[str, Service],
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    segment = aged(tmp_path / "psm_1f0c9a3e", DAY)
    segment.chmod(0o600)
    kind = KINDS["shared-memory"]

    class Partial:
        complete = False

    assert verdict(conditions("shm", tmp_path), kind, segment) == "It was not looked at which processes have it open"
    of = conditions("shm", tmp_path, holders=Partial())
    monkeypatch.setattr(looking, "_closed_process", lambda: None)
    assert verdict(of, kind, segment) is None  # only our own user could open it, and all of ours were seen
    monkeypatch.setattr(looking, "_closed_process", lambda: "The process x (pid 1) cannot be looked into, and may have it open")
    assert "pid 1" in (verdict(of, kind, segment) or "")
    segment.chmod(0o666)
    assert "other users" in (verdict(of, kind, segment) or "")
    segment.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "other users" in (verdict(of, kind, segment) or "")


def test_all_processes_of_our_own_can_be_looked_into_here() -> None:
    if os.geteuid() == 0:  # root looks into all
        assert looking._closed_process() is None
