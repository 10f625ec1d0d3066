from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodeConfig, NodePaths
from ops.artifacts import kinds, places
from ops.artifacts.places import Places, is_inside
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.records import ServiceRecord
from ops.services import unit_files
from ops.services.surroundings import Surroundings
from tests.ops.artifacts.test_purge import in_own_mounts

Look = Callable[[ServiceRecord], Surroundings]


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    return NodePaths(tmp_path / "state" / "node").make()


def record(paths: NodePaths, name: str = "kimi", **fields: object) -> ServiceRecord:
    root = paths.services / name
    root.mkdir(parents=True, exist_ok=True)
    return ServiceRecord.from_dict({"name": name, "root": str(root), "model_path": str(paths.root.parent.parent / "models" / "kimi"),
                                    "served_model_name": name, "base_url": "http://127.0.0.1:9", **fields})


def started(home: Path, *, uid: int = 1000, **variables: str) -> Surroundings:
    return Surroundings(variables={"HOME": str(home), **variables}, user="vllm", uid=uid)


def look(*found: Surroundings) -> Look:
    rest = list(found)
    return lambda record: rest.pop(0)


def node(*roots: Path | str) -> NodeConfig:
    return NodeConfig(name="n1", artifact_roots=[str(root) for root in roots], model_roots=["/nonexistent"])


def paths_of(found: Places, name: str) -> list[str]:
    return [place.path for place in found.places if place.name == name]


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_practice_nodes_places_all_lie_below_its_root(tmp_path: Path, paths: NodePaths) -> None:
    box = tmp_path / "box"
    for name in ("tmp", "shm", "cores", "cache/flashinfer", "models/kimi"):
        make(box / name)
    config = NodeConfig(name="practice", practice=True, practice_root=str(box), model_roots=[str(box / "models")])
    service = record(paths, practice=True, artifact_roots=[str(box / "tmp")], env={"TMPDIR": "/tmp"})
    found = places.of_node(config, paths, [service], kinds=kinds.builtin())
    assert {place.path for place in found.places if not Path(place.path).is_relative_to(box)} == {service.root}
    assert paths_of(found, "shm") == [str(box / "shm")]
    assert paths_of(found, "scratch") == paths_of(found, "tmp") == [str(box / "tmp")]
    assert found.problems == []
    assert found.never.enters((box / "models").stat(), str(box / "models")) == "It is a model folder"


def test_caches_are_those_of_the_user_that_the_unit_runs_as(tmp_path: Path, paths: NodePaths) -> None:
    home = tmp_path / "home-of-vllm"
    for name in (".cache/vllm", ".cache/flashinfer", ".triton/cache", ".nv"):
        make(home / name)
    config = node(home / ".cache", home / ".triton", home / ".nv")
    found = places.of_node(config, paths, [record(paths)], kinds=kinds.builtin(), look=look(started(home)))
    assert paths_of(found, "vllm-cache") == [str(home / ".cache" / "vllm")]
    assert paths_of(found, "flashinfer-cache") == [str(home / ".cache" / "flashinfer")]
    assert paths_of(found, "triton-cache") == [str(home / ".triton" / "cache")]
    assert paths_of(found, "nv-cache") == [str(home / ".nv")]
    assert found.users == {"kimi": 1000}


def test_variables_say_where_programs_write(tmp_path: Path, paths: NodePaths) -> None:
    data = tmp_path / "data"
    for name in ("vllm", "triton", "fi/.cache/flashinfer", "cc/ComputeCache", "dumps", "gpu", "fr", "sockets", "t"):
        make(data / name)
    surroundings = started(
        tmp_path / "home", VLLM_CACHE_ROOT=f"{data}/vllm", TRITON_CACHE_DIR=f"{data}/triton", FLASHINFER_WORKSPACE_BASE=f"{data}/fi",
        CUDA_CACHE_PATH=f"{data}/cc/ComputeCache", VLLM_DEBUG_DUMP_PATH=f"{data}/dumps", CUDA_COREDUMP_FILE=f"{data}/gpu/cuda_coredump_%h.%p",
        TORCH_FR_DUMP_TEMP_FILE=f"{data}/fr/comm_lib_trace_rank_", VLLM_RPC_BASE_PATH=f"{data}/sockets", TMPDIR=f"{data}/t")
    found = places.of_node(node(data), paths, [record(paths)], kinds=kinds.builtin(), look=look(surroundings))
    wanted = {"vllm-cache": "vllm", "triton-cache": "triton", "flashinfer-cache": "fi/.cache/flashinfer", "nv-cache": "cc", "vllm-dump": "dumps",
              "gpu-cores": "gpu", "torch-cache": "fr", "rpc": "sockets", "tmp": "t"}
    assert {name: paths_of(found, name) for name in wanted} == {name: [str(data / path)] for name, path in wanted.items()}


@pytest.mark.parametrize("flags", [
    ["--compilation-config", '{"level": 3, "debug_dump_path": "DUMPS"}'], ["-O.debug_dump_path=DUMPS"],
    ["--compilation-config.debug-dump-path", "DUMPS"],
    ['-O={"debug_dump_path": "DUMPS"}'], ["--compilation-config={", "--compilation_config.debug_dump_path=DUMPS"],
], ids=["json", "short", "dotted", "short json", "broken before"])
def test_graph_dumps_are_looked_for_where_a_services_flags_send_them(tmp_path: Path, paths: NodePaths, flags: list[str]) -> None:
    dumps = make(tmp_path / "dumps")
    service = record(paths, flags=[flag.replace("DUMPS", str(dumps)) for flag in flags])
    found = places.of_node(node(tmp_path), paths, [service], kinds=kinds.builtin(), look=lambda _: started(tmp_path / "home"))
    assert [(place.path, place.service) for place in found.places if place.name == "vllm-dump"] == [(str(dumps), "kimi")]


def test_a_cache_that_two_services_share_names_both(tmp_path: Path, paths: NodePaths) -> None:
    cache = make(tmp_path / "shared")
    both = started(tmp_path / "home", VLLM_CACHE_ROOT=str(cache))
    found = places.of_node(node(cache), paths, [record(paths), record(paths, "qwen")], kinds=kinds.builtin(), look=look(both, both))
    (place,) = [place for place in found.places if place.name == "vllm-cache"]
    assert (place.service, place.services) == ("", ("kimi", "qwen"))


def test_a_service_whose_environment_cannot_be_read_may_use_any_cache(tmp_path: Path, paths: NodePaths) -> None:
    cache = make(tmp_path / "c" / "vllm")
    hidden = dataclasses.replace(started(tmp_path / "home"), unreadable=[("/etc/vllm/secret.env", "Permission denied")])
    found = places.of_node(node(cache), paths, [record(paths), record(paths, "qwen")], kinds=kinds.builtin(),
                           look=look(started(tmp_path, VLLM_CACHE_ROOT=str(cache)), hidden))
    compile_cache = next(kind for kind in kinds.builtin() if kind.name == "compile-cache")
    assert found.services_of(compile_cache, f"{cache}/torch_compile_cache/0123456789") == ["kimi", "qwen"]
    assert any("/etc/vllm/secret.env" in text and "any cache may be its own" in text for text in found.problems)


def test_a_file_that_only_systemd_may_read_makes_every_cache_a_possible_one(tmp_path: Path, paths: NodePaths,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    units = make(tmp_path / "units")
    secret = tmp_path / "secret.env"
    secret.write_text("VLLM_CACHE_ROOT=/data/cache\n")
    (units / "kimi.service").write_text(f"[Service]\nExecStart=/bin/true\nEnvironmentFile={secret}\nWorkingDirectory={make(tmp_path / 'work')}\n")
    read = unit_files.read
    monkeypatch.setattr(unit_files, "read", lambda name, **options: read(name, path=[units]))
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(secret) and allowed(path, mode))
    service = record(paths, manager="systemd", unit="kimi.service")
    found = places.of_node(node(tmp_path), paths, [service], kinds=kinds.builtin(), look=look(started(tmp_path / "home")))
    assert found.unknown == {"kimi": f"its environment file `{secret}` cannot be read"}
    assert str(tmp_path / "work") in paths_of(found, "service-folder")


def test_what_node_toml_does_not_name_is_told_and_left_alone(tmp_path: Path, paths: NodePaths) -> None:
    home = tmp_path / "home"
    make(home / ".cache" / "vllm")
    found = places.of_node(node(), paths, [record(paths)], kinds=kinds.builtin(), look=look(started(home)))
    assert {place.name for place in found.places} == {"service-folder"}
    assert f"`{home}/.cache/vllm` (vLLM's cache of `kimi`) was not looked into: `artifact_roots` in node.toml does not name it" in found.problems


def test_a_cache_that_this_user_cannot_reach_is_told(tmp_path: Path, paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    cache = str(home / ".cache" / "vllm")
    stat = os.stat

    def closed(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path) == cache:
            raise PermissionError(13, "Permission denied", cache)
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", closed)
    found = places.of_node(node(home), paths, [record(paths)], kinds=kinds.builtin(), look=look(started(home)))
    assert f"`{cache}` (vLLM's cache of `kimi`) was not looked into: this user may not enter a folder on the way" in found.problems


def test_a_cache_behind_a_link_is_held_against_where_it_really_lies(tmp_path: Path, paths: NodePaths) -> None:
    elsewhere = make(tmp_path / "elsewhere" / "vllm")
    home = make(tmp_path / "home" / ".cache")
    (home / "vllm").symlink_to(elsewhere)
    inside = node(home)
    found = places.of_node(inside, paths, [record(paths)], kinds=kinds.builtin(), look=look(started(home.parent)))
    assert paths_of(found, "vllm-cache") == []
    found = places.of_node(node(elsewhere), paths, [record(paths)], kinds=kinds.builtin(), look=look(started(home.parent)))
    assert paths_of(found, "vllm-cache") == [str(elsewhere)]


def test_models_hubs_environments_and_state_are_never_entered_wherever_they_lie(tmp_path: Path, paths: NodePaths) -> None:
    home = tmp_path / "home"
    hub, model, environment = make(home / ".cache" / "huggingface"), make(tmp_path / "models" / "kimi"), make(tmp_path / "venv")
    service = record(paths, environment=str(environment), artifact_roots=[str(tmp_path)])
    make(service.releases)
    logs = make(service.folder / "logs")
    found = places.of_node(node(tmp_path), paths, [service], kinds=kinds.builtin(), look=look(started(home)))
    for folder in (hub, model, environment, service.releases, paths.root, logs):
        assert found.never.enters(folder.stat(), str(folder)), folder
    (tmp_path / "bind").mkdir()
    assert found.never.enters(model.stat(), "/elsewhere/under/another/name") == "It is the model of `kimi`"  # a mount of the same folder
    assert found.never.enters((tmp_path / "bind").stat(), str(tmp_path / "bind")) is None
    dumps = make(service.folder / "flashinfer_dumps")
    assert found.never.enters(dumps.stat(), str(dumps)) is None


def test_scratch_may_lie_in_a_services_own_folder_but_shelf_logs_and_releases_never(tmp_path: Path, paths: NodePaths) -> None:
    folder = paths.services / "kimi"
    scratch, shelf = make(folder / "scratch" / "deep"), make(folder / "shelf")
    service = record(paths, artifact_roots=[str(folder / "scratch"), str(shelf)])
    found = places.of_node(node(tmp_path), paths, [service], kinds=kinds.builtin(), look=look(started(tmp_path / "home")))
    assert paths_of(found, "scratch") == [str(folder / "scratch")]
    assert found.never.enters((folder / "scratch").stat(), str(folder / "scratch")) is None
    assert found.never.enters(scratch.stat(), str(scratch)) is None
    assert any(f"`{shelf}`" in text and "the shelf of `kimi`" in text for text in found.problems)


def test_what_another_user_keeps_for_himself_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = make(tmp_path / "private"), make(tmp_path / "public")
    private.chmod(0o700)
    public.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4711)
    monkeypatch.setattr(os, "getegid", lambda: os.getgid() + 4711)
    never = places.Never()
    assert "keeps others out" in (never.enters(private.stat(), str(private)) or "")
    assert never.enters(public.stat(), str(public)) is None


@pytest.mark.parametrize(("path", "words"), [
    ("/", "root of the file system"), ("//", "root of the file system"), ("scratch", "no absolute path"), ("", "no absolute path"),
    ("-rf", "no absolute path"), ("/tmp/../etc", "`..`"), ("/home", "operating system"), ("/etc", "operating system"),
    ("/usr/lib", "operating system"), ("/proc/self", "operating system"), ("/dev", "operating system"), ("/var", "operating system"),
    ("/nonexistent/folder", "no folder"), ("/etc/passwd", "operating system"), ("/tmp/\0", "no absolute path"),
], ids=lambda text: text.replace("\0", "NUL"))
def test_a_root_that_can_be_none_is_refused(path: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        places.check_root(path, config=None)
    assert words in caught.value.what


def test_links_homes_models_environments_and_state_are_no_roots(tmp_path: Path, paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    config = NodeConfig(name="n", artifact_roots=[str(tmp_path)], model_roots=[str(tmp_path / "models")])
    ok, model, venv, hub, home = (make(tmp_path / name) for name in ("ok", "models/kimi", "venv", "models--kimi", "home"))
    (tmp_path / "link").symlink_to(ok)
    make(ok / "below")
    (venv / "pyvenv.cfg").touch()
    make(hub / "blobs")
    monkeypatch.setenv("HOME", str(home))
    places.check_root(str(ok), config=config, paths=paths)
    places.check_root(f"{ok}/", config=config, paths=paths)
    places.check_root(str(tmp_path), config=config, paths=paths)  # around a model folder, which the walk leaves out
    for path, error, words in (
            (tmp_path / "link", BadInput, "is a link"), (tmp_path / "link" / "below", BadInput, "reached through a link"),
            (model, Refused, "a model folder"), (venv, BadInput, "an environment"), (hub, BadInput, "a cache of models"), (home, BadInput, "home"),
            (paths.jobs, Refused, "the state folder of this node"), (paths.root, Refused, "the state folder of this node")):
        with pytest.raises(error) as caught:
            places.check_root(str(path), config=config, paths=paths)
        assert words in caught.value.what, path
    with pytest.raises(Refused) as refused:
        places.check_root(str(ok), config=node(tmp_path / "other"), paths=paths)
    assert f'"{ok}"' in refused.value.hint
    assert "artifact_roots" in refused.value.hint


def test_a_mount_point_is_no_root_unless_it_is_made_for_temporary_files() -> None:
    if os.path.ismount("/dev/shm"):
        places.check_root("/dev/shm", config=None)
    assert places.is_mount_point("/proc", Path("/proc").stat())
    with open("/proc/self/mountinfo", encoding="utf-8") as file:  # noqa: PTH123
        mounted = [line.split()[4] for line in file]
    for point in mounted:
        if point not in places.MADE_FOR_TEMPORARY_FILES and Path(point).is_dir():
            with pytest.raises(OpsError):
                places.check_root(point, config=None)


def test_a_named_root_narrows_the_places_it_lies_in(tmp_path: Path, paths: NodePaths) -> None:
    scratch, other = make(tmp_path / "scratch" / "a"), make(tmp_path / "other")
    service = record(paths, artifact_roots=[str(tmp_path / "scratch")])
    config = node(tmp_path / "scratch", other)

    def found(*roots: Path) -> list[tuple[str, str]]:
        made = places.of_node(config, paths, [service], kinds=kinds.builtin(), roots=[str(root) for root in roots],
                              look=lambda _: started(tmp_path / "h"))
        return [(place.name, place.path) for place in made.places]

    assert found(tmp_path / "scratch") == [("scratch", str(tmp_path / "scratch"))]
    assert found(scratch, other) == [("scratch", str(scratch)), ("scratch", str(other))]
    assert found(make(tmp_path / "third")) == []


def test_a_named_root_that_can_be_none_is_told_and_the_others_are_looked_into(tmp_path: Path, paths: NodePaths) -> None:
    ours = make(tmp_path / "ours")
    (tmp_path / "link").symlink_to(ours)
    bad = ["/", "/home", str(tmp_path / "link"), str(tmp_path / "gone"), "/tmp"]
    found = places.of_node(node(tmp_path), paths, [], kinds=kinds.builtin(), roots=[*bad, str(ours)])
    assert [place.path for place in found.places] == [str(ours)]
    assert list(found.refused) == bad
    assert len([text for text in found.problems if places.NOT_LOOKED in text]) == len(bad)


def test_a_services_scratch_folder_that_is_a_link_is_told_and_not_looked_into(tmp_path: Path, paths: NodePaths) -> None:
    make(tmp_path / "real" / "scratch" / "a")
    (tmp_path / "allowed").symlink_to(tmp_path / "real")  # how the root that node.toml names is reached is its owner's matter
    (tmp_path / "real" / "link").symlink_to(tmp_path / "real" / "scratch")
    named = [str(tmp_path / "allowed" / name) for name in ("scratch/a", "link", "link/a", "gone")]
    found = places.of_node(node(tmp_path / "allowed"), paths, [record(paths, artifact_roots=named)], kinds=kinds.builtin()[:1],
                           look=lambda _: started(tmp_path / "home"))
    assert [place.path for place in found.places] == [str(tmp_path / "real" / "scratch" / "a")]
    assert list(found.refused) == named[1:3]
    assert all(any(f"`{path}`" in text and "link" in text for text in found.problems) for path in named[1:3])


def test_without_a_node_only_named_folders_are_looked_into(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No folder was named"):
        places.of_node(None, None, [], kinds=kinds.builtin())
    made = places.of_node(None, None, [], kinds=kinds.builtin(), roots=[str(tmp_path)])
    assert {place.path for place in made.places} == {str(tmp_path)}


def test_an_own_kinds_folder_is_checked_like_a_root(tmp_path: Path, paths: NodePaths) -> None:
    ours = make(tmp_path / "ours")
    (tmp_path / "link").symlink_to(ours)
    (kind,) = kinds.own([{"name": "team", "title": "Team dumps", "one": "team dump", "leftover": "Ours", "keeping": "Nothing", "min_age_s": 3600.0,
                          "places": [str(ours), str(tmp_path / "link"), str(tmp_path / "gone")], "patterns": ["dump_*"], "own": True}])
    found = places.of_node(node(tmp_path), paths, [], kinds=[kind])
    assert [place.path for place in found.of(kind)] == [str(ours)]
    assert len(found.problems) == 2
    assert all("Team dumps" in text for text in found.problems)
    assert list(found.refused) == [str(tmp_path / "link")]  # a kind is for all nodes, and not each has the folder


@pytest.mark.parametrize(("pattern", "folder"), [
    ("core", None), ("core.%p", None), ("", None), ("/var/crash/core.%e.%p", "/var/crash"), ("/cores/%h/core.%p", "/cores"),
    ("|/usr/lib/systemd/systemd-coredump %P %u %g %s %t %c %h", "/var/lib/systemd/coredump"),
    ("|/usr/share/apport/apport -p%p -s%s -c%c -d%d -P%P -u%u -g%g -- %E", "/var/lib/apport/coredump"),
    ("|/usr/local/bin/own-handler %p", None), ("|/bin/false", None),
])
def test_core_dumps_are_looked_for_where_the_kernel_puts_them(pattern: str, folder: str | None) -> None:
    found = places.coredump_folder(pattern)
    assert (found[0] if found else None) == folder


def test_a_new_node_may_clean_up_where_leftovers_are_made_but_not_in_homes_or_model_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    roots = places.default_roots()
    assert roots[:3] == ["/tmp", "/var/tmp", "/dev/shm"]
    assert str(tmp_path / "cache" / "vllm") in roots
    assert not any(root.endswith((".cache", "huggingface", "/")) for root in roots)
    assert os.path.realpath(os.path.expanduser("~")) not in roots  # noqa: PTH111


def test_a_practice_node_reaches_nothing_outside_of_its_box(tmp_path: Path, paths: NodePaths) -> None:
    box, real = make(tmp_path / "box"), make(tmp_path / "real")
    (box / "tmp").symlink_to(real)
    config = NodeConfig(name="practice", practice=True, practice_root=str(box), artifact_roots=[str(tmp_path)])
    own = kinds.own([{"name": "dumps", "title": "Dumps", "one": "dump", "leftover": "-", "keeping": "-", "places": [str(real)],
                      "patterns": ["*.dump"], "min_age_s": 3600}])
    found = places.of_node(config, paths, [record(paths, practice=True, artifact_roots=[str(real)])], kinds=[*kinds.builtin(), *own])
    assert [place.path for place in found.places if is_inside(place.path, str(real))] == []
    with pytest.raises(Refused, match="does not allow"):
        places.check_root(str(real), config=config, paths=paths)


@pytest.mark.parametrize("named", ["/", "//", "/home", "/etc", "/var", "/proc/self/root", "/../", "relative", ""])
def test_variables_that_name_the_system_lead_nowhere(tmp_path: Path, paths: NodePaths, named: str) -> None:
    everywhere = dict.fromkeys(("VLLM_CACHE_ROOT", "TMPDIR", "TRITON_CACHE_DIR", "VLLM_DEBUG_DUMP_PATH", "CUDA_CACHE_PATH"), named)
    found = places.of_node(node("/"), paths, [record(paths)], kinds=kinds.builtin(), look=look(started(tmp_path / "home", **everywhere)))
    assert {place.path for place in found.places} <= {"/tmp", "/var/tmp", "/dev/shm", record(paths).root} | set(paths_of(found, "cores"))


def test_what_lies_in_the_model_of_any_service_is_no_place(tmp_path: Path, paths: NodePaths) -> None:
    """Also where that service comes later, and where somebody names the folder for one scan."""
    model = tmp_path / "models" / "kimi"
    make(model / "inner" / "deep")
    both = [record(paths, "a", model_path="/nonexistent/a"), record(paths, "kimi", model_path=str(model))]
    config = dataclasses.replace(node(tmp_path), model_roots=[])
    found = places.of_node(config, paths, both, kinds=kinds.builtin(),
                           look=look(started(tmp_path, TMPDIR=str(model / "inner")), started(tmp_path)))
    assert not [place for place in found.places if is_inside(place.path, str(model))]
    assert f"`{model}/inner` (temporary files, as TMPDIR says of `a`) was not looked into: it is, or lies in, the model of `kimi`" in found.problems
    root = str(model / "inner" / "deep")
    found = places.of_node(config, paths, both, kinds=kinds.builtin(), roots=[root], look=look(started(tmp_path), started(tmp_path)))
    assert found.places == [] and list(found.refused) == [root]


def test_a_model_that_is_a_file_and_what_the_flags_name_is_never_taken(tmp_path: Path, paths: NodePaths) -> None:
    scratch = make(tmp_path / "scratch")
    model, draft, adapter = scratch / "model.pt", scratch / "draft.pth", make(scratch / "adapter")
    for path in (model, draft, scratch / "debug.pt", adapter / "a.pt"):
        path.touch()
    service = record(paths, model_path=str(model), artifact_roots=[str(scratch)],
                     flags=["--speculative-config", f'{{"model": "{draft}"}}', "--lora-modules", f"mine={adapter}", "--enforce-eager"])
    found = places.of_node(node(scratch), paths, [service], kinds=kinds.builtin(), look=look(started(tmp_path / "home")))
    assert found.never.takes(model.stat(), str(model)) == "It is the model of `kimi`"
    assert found.never.takes(draft.stat(), "/by/another/path") == "It is named by the flags of `kimi`"
    assert found.never.enters(adapter.stat(), str(adapter)) is not None
    assert found.never.takes((scratch / "debug.pt").stat(), str(scratch / "debug.pt")) is None


_ALIAS = """
import subprocess, sys
from pathlib import Path
from ops.agent.config import NodePaths
from ops.artifacts import kinds, places
from tests.ops.artifacts.test_places import look, node, record, started
root = Path(sys.argv[1])
cache, alias = root / "cache" / "triton", root / "alias"
cache.mkdir(parents=True)
alias.mkdir()
subprocess.run(["mount", "--bind", cache.parent, alias], check=True)
paths = NodePaths(root / "node").make()
kind = next(kind for kind in kinds.builtin() if kind.name == "triton-cache")
found = places.of_node(node(root), paths, [record(paths, "kimi"), record(paths, "qwen")], kinds=[kind], look=look(
    started(root / "home", TRITON_CACHE_DIR=str(cache)), started(root / "home", TRITON_CACHE_DIR=str(alias / "triton"))))
print([found.services_of(kind, f"{folder}/A") for folder in (cache, alias / "triton")])
"""


def test_a_cache_that_another_service_knows_by_another_path_is_that_ones_too(tmp_path: Path) -> None:
    assert in_own_mounts(_ALIAS, tmp_path) == "[['kimi', 'qwen'], ['kimi', 'qwen']]\n"


def test_a_cache_within_what_would_go_is_its_services_too(tmp_path: Path, paths: NodePaths) -> None:
    outer = make(tmp_path / "t" / "torchinductor_me")
    make(outer / "cache")
    found = places.of_node(node(tmp_path), paths, [record(paths, "a"), record(paths, "b")], kinds=kinds.builtin(), look=look(
        started(tmp_path / "home", TMPDIR=str(outer.parent)), started(tmp_path / "home", VLLM_CACHE_ROOT=str(outer / "cache"))))
    inductor = next(kind for kind in kinds.builtin() if kind.name == "inductor-temp")
    assert found.services_of(inductor, str(outer)) == ["a", "b"]


def test_who_names_a_root_elsewhere_learns_nothing_of_what_lies_there(tmp_path: Path, paths: NodePaths) -> None:
    there, allowed = make(tmp_path / "there"), make(tmp_path / "allowed")
    (tmp_path / "link").symlink_to(there)
    (tmp_path / "file").touch()
    told = set()
    for name in ("there", "link", "file", "none", "link/x"):
        with pytest.raises(Refused) as refused:
            places.check_root(str(tmp_path / name), config=node(allowed), paths=paths)
        told.add((refused.value.what.replace(f"{tmp_path}/{name}", "X"), refused.value.why))
    assert len(told) == 1
