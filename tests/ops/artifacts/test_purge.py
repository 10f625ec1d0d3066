from __future__ import annotations

import errno
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ops.artifacts import clearing
from ops.artifacts import kinds as known
from ops.artifacts import manifest as manifests
from ops.artifacts import purge as purging
from ops.artifacts.conditions import Conditions
from ops.artifacts.found import Artifact, Choice, Entry
from ops.artifacts.places import Place, Places, is_inside
from ops.artifacts.preview import Header, Preview, PreviewWriter, Row
from ops.jobs.errors import BadInput, Cancelled, Timeout
from tests.ops.artifacts.leftovers import ALL, CACHE, SOCKET, TENSOR, Leftovers


@pytest.fixture
def box(tmp_path: Path) -> Leftovers:
    made = Leftovers(tmp_path)
    made.write("step0.pt")
    made.write("layers/0/attn.pt", 5000)
    made.write("notes.txt")
    return made


@pytest.fixture
def cached(tmp_path: Path) -> Leftovers:
    """A folder artifact: five files in three folders."""
    made = Leftovers(tmp_path)
    for name in ("cache-1/a", "cache-1/b", "cache-1/deep/c", "cache-1/deep/er/d", "cache-1/deep/er/e"):
        made.write(name, 5000)
    return made


def allocated(root: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in (root, *root.rglob("*")))


# ---- what goes ----


def test_what_was_chosen_goes_and_nothing_else(box: Leftovers):
    box.scan()
    result = box.purge()
    assert box.left() == ["layers", "layers/0", "notes.txt"]
    assert (result.deleted.count, result.deleted.files, result.freed_bytes, result.kept, result.partial) == (2, 2, 4096 + 8192, 0, False)
    assert [(entry.result, entry.freed_bytes, entry.reason) for entry in box.told] == [
        ("deleted", size, "Written by a test") for size in sorted((4096, 8192), reverse=box.told[0].path.endswith("attn.pt"))]
    assert list(manifests.read(box.manifest)) == box.told


def test_a_folder_goes_with_all_that_is_in_it_and_frees_what_the_preview_said(cached: Leftovers):
    before = allocated(cached.root / "cache-1")
    artifact, = cached.found()
    result = cached.purge()
    assert cached.left() == [] and artifact.size_bytes == before == result.freed_bytes
    assert (cached.told[0].result, cached.told[0].deleted_files, result.deleted.files) == ("deleted", 5, 5)


def test_only_what_is_chosen_goes(box: Leftovers):
    numbers = {Path(artifact.path).name: artifact.number for artifact in box.found()}
    box.purge(Choice(numbers=[numbers["attn.pt"]]))
    assert "step0.pt" in box.left() and "layers/0/attn.pt" not in box.left()
    box.purge(Choice(kinds=["tensor"], without=[numbers["step0.pt"]]))
    assert "step0.pt" in box.left()


def test_the_result_is_told_by_kind_and_by_reason(box: Leftovers):
    box.write("cache-1/a")
    box.scan()
    box.write("step0.pt", 200)
    told = box.purge().as_dict()
    assert told["kinds"] == [
        {"kind": "cache", "title": "Caches", "one": "cache", "chosen": 1, "deleted": 1, "kept": 0, "freed_bytes": 8192},
        {"kind": "tensor", "title": "Tensors", "one": "tensor", "chosen": 2, "deleted": 1, "kept": 1, "freed_bytes": 8192}] or \
        sorted(row["kind"] for row in told["kinds"]) == ["cache", "tensor"]
    assert told["chosen"]["count"] == 3 and told["deleted"]["count"] == 2 and told["kept"] == {"count": 1}
    assert told["why_kept"] == [{"why": "It was written to since the preview", "count": 1, "example": f"{box.root}/step0.pt"}]
    assert told["manifest"] == {"path": str(box.manifest), "entries": 3, "told": 3} and told["gauges"][0]["total_bytes"] > 0


def test_a_socket_that_was_previewed_goes(short_path: Path):
    box = Leftovers(short_path)
    box.root.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(box.root / "a.sock"))
    box.write("b.sock")  # a file with a socket's name
    box.scan()
    assert box.purge().deleted.count == 1 and box.left() == ["b.sock"]


HOSTILE = ["new\nline.pt", os.fsdecode(b"\xff\xfe.pt"), "-rf.pt", "--.pt", "a" * 252 + ".pt", "\u202eabc.pt", "<b>&.pt", "a b'\"$(x).pt", "=1+1.pt"]


def test_names_that_bite_are_names_like_others(tmp_path: Path):
    box = Leftovers(tmp_path)
    for name in HOSTILE:
        box.write(name)
        box.write(f"cache-1/{name}")
    assert len(box.found()) == len(HOSTILE) + 1
    result = box.purge()
    assert box.left() == [] and result.kept == 0 and result.deleted.files == 2 * len(HOSTILE)
    assert {Path(entry.path).name for entry in manifests.read(box.manifest)} == {*HOSTILE, "cache-1"}


def test_a_bait_is_never_unpickled(tmp_path: Path):
    class Bait:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return (Path.touch, (tmp_path / "sprung",))

    box = Leftovers(tmp_path)
    for name in ("bait.pt", "cache-1/bait.pt"):
        box.write(name).write_bytes(pickle.dumps(Bait()))
        os.utime(box.root / name, (0, 0))
    assert len(box.found()) == 2
    assert box.purge().deleted.files == 2 and box.left() == [] and not (tmp_path / "sprung").exists()


# ---- what has changed since the preview stays ----


def _written(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _touched(path: Path) -> None:
    os.utime(path)


def _other(path: Path) -> None:
    state = path.stat()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b"x" * state.st_size)
    os.utime(path, ns=(state.st_mtime_ns, state.st_mtime_ns))


def _rewritten(path: Path) -> None:
    """Other bytes, as many, and the time put back."""
    before = path.stat()
    path.write_bytes(b"y" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _gone(path: Path) -> None:
    path.unlink()


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("notes.txt")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _named_twice(path: Path) -> None:
    path.with_suffix(".precious").hardlink_to(path)


@pytest.mark.parametrize("change, result, why", [
    (_written, "kept", "It was written to since the preview"), (_touched, "kept", "It was written to since the preview"),
    (_other, "kept", "It is another one than the one in the preview"), (_gone, "gone", "It was not there any more"),
    (_link, "kept", "It is no regular file any more"), (_folder, "kept", "It is no regular file any more"),
    (_named_twice, "kept", "It has 2 names (hard links)"),
    (_rewritten, "kept", "Something of it changed since the preview, so that it may be another file by now")])
def test_what_changed_since_the_preview_stays_and_is_told(box: Leftovers, change: Callable[[Path], None], result: str, why: str):
    box.scan()
    change(box.root / "step0.pt")
    purged = box.purge()
    assert (box.told_of("step0.pt").result, box.told_of("step0.pt").why) == (result, why) and box.told_of("attn.pt").result == "deleted"
    assert (purged.partial, purged.kept) == (result == "kept", int(result == "kept"))
    assert "notes.txt" in box.left() and (result == "gone") == ("step0.pt" not in box.left())


def test_in_a_folder_stays_what_is_new_or_changed_with_the_folders_around_it(cached: Leftovers):
    cached.scan()
    _written(cached.root / "cache-1/deep/er/d")
    cached.write("cache-1/deep/new")
    result = cached.purge()
    assert cached.left() == ["cache-1", "cache-1/deep", "cache-1/deep/er", "cache-1/deep/er/d", "cache-1/deep/new"]
    entry, = cached.told
    assert (entry.result, entry.deleted_files, result.partial, result.deleted.count) == ("partly", 4, True, 0)
    assert entry.why == "`deep/new` is new since the preview; `deep/er/d` stays: it was written to since the preview"
    assert entry.freed_bytes == 4 * 8192


def test_a_folder_that_was_put_in_the_place_of_the_previewed_one_stays(cached: Leftovers):
    cached.scan()
    (cached.root / "cache-1").rename(cached.folder / "away")
    cached.write("cache-1/a", 5000)
    cached.purge()
    assert cached.left() == ["cache-1", "cache-1/a"] and len(list((cached.folder / "away").rglob("*"))) == 7
    assert cached.told[0].why == "It is another one than the one in the preview"


def test_links_in_a_folder_stay_and_lead_nowhere(cached: Leftovers):
    (cached.folder / "model").mkdir()
    (cached.folder / "model/weights").write_bytes(b"precious")
    (cached.root / "cache-1/deep/link").symlink_to(cached.folder / "model")
    cached.scan()
    cached.purge()
    assert cached.left() == ["cache-1", "cache-1/deep", "cache-1/deep/link"] and (cached.folder / "model/weights").exists()
    assert cached.told[0].why == "`deep/link` stays: it is no regular file"
    assert cached.told[0].freed_bytes == cached.told[0].size_bytes


def test_a_folder_that_went_by_itself_is_told_as_gone(cached: Leftovers):
    cached.scan()
    subprocess.run(["rm", "-r", cached.root / "cache-1"], check=True)
    assert not cached.purge().partial and cached.told[0].result == "gone"


# ---- what is open ----


def test_what_a_process_has_opened_since_the_preview_stays(box: Leftovers):
    box.write("cache-1/deep/a")
    box.scan()
    holder = subprocess.Popen([sys.executable, "-c", "import sys; f = [open(p) for p in sys.argv[1:]]; print('open', flush=True); sys.stdin.read()",
                               box.root / "step0.pt", box.root / "cache-1/deep/a"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin and holder.stdout
    try:
        assert holder.stdout.readline() == b"open\n"
        result = box.purge()
    finally:
        holder.communicate(b"")
    assert box.told_of("step0.pt").why.startswith("Open in python") and f"(pid {holder.pid})" in box.told_of("step0.pt").why
    assert box.told_of("cache-1").why.startswith("Something in it is open in python") and (box.root / "cache-1/deep/a").exists()
    assert {row["why"] for row in result.why_kept} == {"Open in a process", "Something in it is open in a process"}


def test_a_folder_that_a_process_works_in_stays(cached: Leftovers):
    cached.scan()
    holder = subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=cached.root / "cache-1/deep")
    try:
        cached.purge()
    finally:
        holder.communicate(b"")
    assert f"open in cat (pid {holder.pid})" in cached.told[0].why and len(cached.left()) == 8


def test_who_opened_a_file_in_the_last_moment_is_told_with_it(box: Leftovers, monkeypatch: pytest.MonkeyPatch):
    """Between the look at who has what open and the unlinking; the space comes back only when the file is closed."""
    box.scan()
    unlink, held = os.unlink, []

    def just_then(name: str, *, dir_fd: int) -> None:
        held.append(os.open(name, os.O_RDONLY, dir_fd=dir_fd))
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(purging.os, "unlink", just_then)
    result = box.purge(Choice(kinds=["tensor"]))
    for descriptor in held:
        os.close(descriptor)
    entry = box.told_of("step0.pt")
    assert entry.result == "deleted" and entry.why.endswith(f"(pid {os.getpid()}) opened it at that very moment: its space comes back when that "
                                                            "process closes it")
    assert entry.freed_bytes == 0 and result.freed_bytes == 0 and list(manifests.read(box.manifest)) == box.told


def test_who_has_what_open_is_looked_at_again_while_a_long_purge_runs(box: Leftovers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(purging, "FRESH_S", 0.0)
    monkeypatch.setattr(purging, "LOOKS_PART", 0.0)
    conditions, looks = box.conditions, []
    refresh = conditions.holders.refresh
    monkeypatch.setattr(conditions.holders, "refresh", lambda: looks.append(1) or refresh())
    box.write("cache-1/deep/a")
    box.scan()
    result = box.purge(conditions=conditions)
    assert len(looks) >= 5 and result.kept == 0  # we hold folders open ourselves meanwhile: those are not in the way


# ---- what may never go ----


def test_of_other_users_nothing_goes_unless_the_kind_says_so(box: Leftovers):
    box.write("cache-1/a")
    box.scan()
    box.purge(owner_uid=os.geteuid() + 1)
    assert {entry.why for entry in box.told} == {f"It belongs to another user (uid {os.geteuid()})",
                                                 f"Something in it belongs to another user (uid {os.geteuid()})"}
    assert box.purge(owner_uid=os.geteuid() + 1, kinds=[replace(TENSOR, own=True, any_owner=True)]).deleted.count == 2


@pytest.mark.parametrize("beside", ["config.json", "pyvenv.cfg", "blobs"])
def test_what_lies_in_a_model_an_environment_or_a_hub_cache_stays(box: Leftovers, beside: str):
    box.write("cache-1/deep/a")
    box.scan()
    (box.root / "layers" / beside).write_text("{}")
    (box.root / "cache-1/deep" / beside).write_text("{}")
    box.purge()
    assert f"It holds `{beside}`" in box.told_of("attn.pt").why and (box.root / "layers/0/attn.pt").exists()
    assert f"It holds `{beside}`" in box.told_of("cache-1").why and (box.root / "cache-1/deep/a").exists()


def test_what_lies_in_a_folder_that_is_never_entered_stays(box: Leftovers):
    box.scan()
    box.never.add(box.root / "layers", "a model folder")
    box.purge()
    assert box.told_of("attn.pt").why == "It lies in a folder that is never entered: It is a model folder"
    assert (box.root / "layers/0/attn.pt").exists()


def test_a_file_that_is_a_model_stays_also_in_a_folder_and_whatever_the_preview_says(box: Leftovers):
    model, inside = box.write("model.pt"), box.write("cache-1/model.bin")
    box.write("cache-1/x")
    box.scan()
    for path in (model, inside):
        box.never.add(path, "the model of `kimi`")
    box.purge()
    assert {"model.pt", "cache-1/model.bin", "cache-1/x"} <= set(box.left()) and "step0.pt" not in box.left()
    assert box.told_of("model.pt").why == box.told_of("cache-1").why == "It is the model of `kimi`"
    assert {Path(artifact.path).name: artifact.state for artifact in box.found()} == {"model.pt": "kept", "cache-1": "kept"}


def test_what_belongs_to_a_service_goes_only_while_that_is_locked(box: Leftovers):
    box.service = "kimi"
    box.scan()
    box.purge()
    assert {entry.why for entry in box.told} == {"It belongs to `kimi`, which this purge does not lock"}
    assert box.purge(locked_services=frozenset({"kimi"})).deleted.count == 2


def test_a_cache_that_several_services_may_use_goes_only_while_all_of_them_are_locked(box: Leftovers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Conditions, "services_of", lambda self, kind, path: ["glm", "kimi"])
    box.scan()
    kinds = [replace(TENSOR, conditions=["service-stopped"])]
    box.purge(kinds=kinds, locked_services=frozenset({"kimi"}))
    assert {entry.why for entry in box.told} == {"`glm` may use it, and this purge does not lock it"}
    monkeypatch.setattr(Conditions, "verdict", lambda self, kind, path, **more: None)
    assert box.purge(kinds=kinds, locked_services=frozenset({"glm", "kimi"})).deleted.count == 2


def test_conditions_count_when_it_goes_not_only_when_it_was_found(box: Leftovers):
    box.write("cache-1/a")
    box.scan()
    box.write("cache-1/b", age_s=0)
    box.purge(kinds=[replace(TENSOR, min_age_s=2 * 3600), replace(CACHE, min_age_s=60)])
    assert [entry.result for entry in box.told] == ["kept"] * 3 and all("younger than" in entry.why for entry in box.told)
    assert (box.root / "cache-1/a").exists()


def test_a_preview_made_by_hand_takes_nothing_that_no_kind_recognises(box: Leftovers, tmp_path: Path):
    """Right numbers, wrong places: each is a real file of ours, as it is now."""
    victim = tmp_path / "victim.pt"
    victim.write_bytes(b"precious")
    box.write("cache-1/a")
    (box.root / "out").symlink_to(tmp_path)
    lies = [(victim, TENSOR), (box.root / "notes.txt", TENSOR), (box.root / "out/victim.pt", TENSOR), (box.root / "cache-1/a", CACHE),
            (box.root / "step0.pt", SOCKET), (box.root / "step0.pt", replace(TENSOR, name="unknown"))]
    path = tmp_path / "by-hand.jsonl"
    all_of_it = {kind.name: replace(kind, patterns=["*"], places=["/"]) for _, kind in lies}
    with PreviewWriter(path, Header.now("test", ["/"], [*all_of_it.values()])) as made:
        for number, (file, kind) in enumerate(lies, 1):
            state = file.stat()
            row = Row.of("", state)
            artifact = Artifact(number, kind.name, kind.unit, str(file), row.size_bytes, 1, row.mtime_ns, row.uid, "me", row.device, row.inode,
                                "offered", "")
            if kind.unit == "folder":
                made.add_row(row)
            made.add(artifact, None if kind.unit == "folder" else row)
        made.finish({})
    result = box.purge(Choice(kinds=[kind.name for _, kind in lies]), preview=path)
    assert (result.deleted.count, result.kept) == (0, len(lies)) and victim.exists() and len(box.left()) == 8
    whys = [entry.why for entry in box.told]
    assert whys[0] == "It lies outside of the folders that a purge may touch" and whys[5] == "Its kind is not known here any more"
    assert whys[2] == "A link, or something that is no folder, lies on the way to it"
    assert whys[1] == whys[3] == "No kind of leftover recognises it there any more" and whys[4] == "The preview does not say what it was"


def test_of_the_kinds_that_a_preview_names_only_those_count_that_are_known_here(tmp_path: Path):
    lying = replace(known.builtin()[0], patterns=["*"], conditions=[])
    own = replace(TENSOR, name="mine", own=True, places=[str(tmp_path)], min_age_s=7200.0)
    made = [lying, replace(TENSOR, name="no-such"), own]
    with PreviewWriter(tmp_path / "p.jsonl", Header.now("test", [], made)) as writer:
        writer.finish({})
    with Preview.open(tmp_path / "p.jsonl") as preview:
        assert purging.kinds_of(preview) == (known.builtin()[0], own)
        stricter = replace(own, min_age_s=86400.0)
        assert purging.kinds_of(preview, [stricter.as_dict()]) == (known.builtin()[0], stricter)
        assert purging.kinds_of(preview, []) == (known.builtin()[0],)  # it was removed since
    with PreviewWriter(tmp_path / "q.jsonl", Header.now("test", [], [replace(own, patterns=["*"])])) as writer:
        writer.finish({})
    with Preview.open(tmp_path / "q.jsonl") as preview, pytest.raises(BadInput):
        purging.kinds_of(preview)


# ---- races ----


def _swaps(folder: Path, victims: Path, stop: threading.Event, swapping: threading.Event) -> None:
    aside = folder.with_name("aside")
    while not stop.is_set():
        try:
            folder.rename(aside)
            folder.symlink_to(victims)
            swapping.set()
            folder.unlink()
            aside.rename(folder)
        except OSError:
            pass
    if aside.is_dir():
        folder.unlink(missing_ok=True)
        aside.rename(folder)


@pytest.mark.parametrize("swapped", ["dump", "dump/cache-1", "dump/cache-1/deep"])
def test_a_folder_swapped_for_a_link_while_purging_gives_no_victim(tmp_path: Path, swapped: str):
    """20 rounds against a thread that swaps a folder and a link to another one, with the same names in it, as fast as it can."""
    names = ["t0.pt", "t1.pt", "cache-1/deep/a", "cache-1/deep/b", "cache-1/deep/er/c", "cache-1/d"]
    (tmp_path / "proc").mkdir()
    for name in names:
        (tmp_path / "victims/dump" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "victims/dump" / name).write_bytes(b"x" * 100)
    stayed: set[str] = set()
    for number in range(20):
        box = Leftovers(tmp_path / f"round-{number}", proc=str(tmp_path / "proc"))
        for name in names:
            box.write(f"dump/{name}")
        box.scan()
        (box.root / swapped).rename(box.root / "aside")  # once for certain: nothing goes through a link, and in the end all goes
        (box.root / swapped).symlink_to(tmp_path / "victims" / swapped)
        box.purge()
        link = str(box.root / swapped)
        stayed |= {entry.result for entry in box.told if is_inside(entry.path, link) or is_inside(link, entry.path)}
        (box.root / swapped).unlink()
        (box.root / "aside").rename(box.root / swapped)
        stop, swapping = threading.Event(), threading.Event()
        thread = threading.Thread(target=_swaps, args=(box.root / swapped, tmp_path / "victims" / swapped, stop, swapping))
        thread.start()
        assert swapping.wait(10)
        try:
            for _ in range(5):
                box.purge()
        finally:
            stop.set()
            thread.join()
        box.purge()
        assert not [path for path in box.root.rglob("*") if path.is_file()], number
    assert sorted(str(path.relative_to(tmp_path / "victims/dump")) for path in (tmp_path / "victims").rglob("*") if path.is_file()) == sorted(names)
    assert all((tmp_path / "victims/dump" / name).read_bytes() == b"x" * 100 for name in names) and stayed and "deleted" not in stayed


def test_between_the_last_look_and_the_unlinking_lies_nothing(box: Leftovers, monkeypatch: pytest.MonkeyPatch):
    """No call says `unlink it if it is this file`: the two that there are follow each other at once, on the folder's own descriptor."""
    calls: list[tuple[str, object, object]] = []
    for name in ("stat", "open", "unlink", "rmdir", "fstat", "access"):
        real = getattr(os, name)
        monkeypatch.setattr(purging.os, name, lambda *args, _real=real, _name=name, **options: calls.append(
            (_name, args[0], options.get("dir_fd"))) or _real(*args, **options))
    box.write("cache-1/a")
    box.scan()
    box.purge()
    unlinked = [number for number, call in enumerate(calls) if call[0] == "unlink"]
    assert len(unlinked) == 3
    for number in unlinked:
        assert calls[number - 1] == ("stat", *calls[number][1:]) and isinstance(calls[number][2], int)


def test_a_folder_that_was_moved_away_is_not_followed(cached: Leftovers, monkeypatch: pytest.MonkeyPatch):
    """Somebody rescues it in the middle: what is held open by its descriptor is not where it was."""
    cached.scan()
    unlink, away = os.unlink, cached.folder / "away"

    def moved(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        if not away.exists():
            (cached.root / "cache-1").rename(away)

    monkeypatch.setattr(purging.os, "unlink", moved)
    monkeypatch.setattr(clearing, "SEEN_S", 0.0)
    cached.purge()
    assert cached.told[0].result == "partly" and len([path for path in away.rglob("*") if path.is_file()]) == 4


_MOUNTS = """
import os, subprocess, sys
from pathlib import Path
from tests.ops.artifacts.leftovers import Leftovers
box = Leftovers(Path(sys.argv[1]))
for name in ("there/a.pt", "cache-1/deep/b", "full/c.pt", "file.pt"):
    box.write(name)
for name in ("victims/a.pt", "victims/b"):
    (box.folder / name).parent.mkdir(exist_ok=True)
    (box.folder / name).write_bytes(b"x" * 100)
box.scan()
bind = lambda source, target: subprocess.run(["mount", "--bind", source, target], check=True)
bind(box.folder / "victims", box.root / "there")
bind(box.folder / "victims", box.root / "cache-1/deep")
bind(box.folder / "victims/b", box.root / "file.pt")
subprocess.run(["mount", "-t", "tmpfs", "none", box.root / "full"], check=True)
result = box.purge()
assert result.deleted.count == 0, result
for entry in sorted(box.told, key=lambda entry: entry.path):
    print(f"{Path(entry.path).name}: {entry.why}")
assert (box.folder / "victims/a.pt").exists() and (box.folder / "victims/b").exists()
"""


def in_own_mounts(code: str, folder: Path) -> str:
    """Runs it where it may mount what it likes, and nobody else sees it."""
    command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--propagation", "private"]
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    done = subprocess.run([*command, sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_something_was_mounted_over_stays_also_where_it_is_the_same_device(tmp_path: Path):
    other = "It lies on another file system than the folder that it was found below: something is mounted on the way"
    assert in_own_mounts(_MOUNTS, tmp_path).splitlines() == [
        "cache-1: Another file system is mounted in it", "file.pt: It is another one than the one in the preview", f"c.pt: {other}", f"a.pt: {other}"]


# ---- what the file system refuses ----


@pytest.mark.parametrize("number, words", [(errno.EPERM, "it may be immutable"), (errno.EBUSY, "in use by the kernel"), (errno.EROFS, "is read-only"),
                                           (errno.EIO, "nput/output error")])
def test_what_cannot_be_unlinked_stays_is_told_and_the_rest_goes_on(box: Leftovers, monkeypatch: pytest.MonkeyPatch, number: int, words: str):
    box.write("cache-1/step0.pt")
    box.write("cache-1/a")
    box.scan()
    unlink = os.unlink

    def refuses(name: str, *, dir_fd: int) -> None:
        if name == "step0.pt":
            raise OSError(number, os.strerror(number), name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(purging.os, "unlink", refuses)
    result = box.purge()
    assert result.partial and words in box.told_of("step0.pt").why and box.told_of("attn.pt").result == "deleted"
    assert box.told_of("cache-1").result == "partly" and words in box.told_of("cache-1").why and box.left().count("cache-1/a") == 0


def test_an_immutable_file_stays_and_is_told(box: Leftovers):
    if subprocess.run(["chattr", "+i", box.root / "step0.pt"], check=False, capture_output=True).returncode:
        pytest.skip("this file system knows no immutable files, or we may not make one")
    try:
        box.scan()
        box.purge()
    finally:
        subprocess.run(["chattr", "-i", box.root / "step0.pt"], check=True)
    assert "immutable" in box.told_of("step0.pt").why and box.told_of("attn.pt").result == "deleted"


def test_a_folder_that_vanished_and_a_place_that_is_a_link_now(box: Leftovers):
    box.scan()
    subprocess.run(["rm", "-r", box.root / "layers"], check=True)
    box.purge()
    assert (box.told_of("attn.pt").result, box.told_of("step0.pt").result) == ("gone", "deleted")
    box.write("step0.pt")
    box.scan()
    box.root.rename(box.folder / "real")
    box.root.symlink_to("real")
    box.purge()
    assert box.told_of("step0.pt").why == "A link, or something that is no folder, lies on the way to it"


# ---- cancelled, killed, no room ----


def test_a_cancelled_purge_tells_what_went_and_how_much_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    box = Leftovers(tmp_path)
    for number in range(10):
        box.write(f"{number}.pt")
    box.scan()
    monkeypatch.setattr(purging, "CHECKED_EVERY_S", 0.0)
    asked = iter(range(100))

    def check() -> None:
        if next(asked) == 4:
            raise Cancelled

    result = box.purge(check=check)
    assert (result.cancelled, result.deleted.count, result.chosen.count, len(box.left())) == (True, 4, 10, 6)
    assert [entry.result for entry in manifests.read(box.manifest)] == ["deleted"] * 4
    with manifests.Manifest(box.manifest) as manifest:
        assert manifest.result is not None and manifest.result["cancelled"]


def test_a_purge_is_cancelled_between_the_files_of_a_folder_too(cached: Leftovers, monkeypatch: pytest.MonkeyPatch):
    cached.scan()
    monkeypatch.setattr(purging, "CHECKED_EVERY_S", 0.0)
    unlinked: list[str] = []
    unlink = os.unlink
    monkeypatch.setattr(purging.os, "unlink", lambda name, *, dir_fd: unlinked.append(name) or unlink(name, dir_fd=dir_fd))

    def check() -> None:
        if len(unlinked) == 2:
            raise Cancelled

    result = cached.purge(check=check)
    assert result.cancelled and (cached.told[0].result, cached.told[0].deleted_files) == ("partly", 2)
    assert "the purge was cancelled" in cached.told[0].why


def test_a_folder_whose_entries_are_cut_off_the_preview_meanwhile_stays_and_is_told(cached: Leftovers):
    preview = cached.scan()
    assert cached.purge(check=lambda: os.truncate(preview, 0)).partial
    assert cached.told[0].result == "kept" and "is no preview of a scan" in cached.told[0].why
    assert list(manifests.read(cached.manifest)) == cached.told and "cache-1/deep/er/e" in cached.left()


def test_a_purge_that_runs_out_of_time_within_a_folder_tells_what_went_of_it(cached: Leftovers, monkeypatch: pytest.MonkeyPatch):
    cached.scan()
    unlinked: list[str] = []
    unlink = os.unlink
    monkeypatch.setattr(purging.os, "unlink", lambda name, *, dir_fd: unlinked.append(name) or unlink(name, dir_fd=dir_fd))
    monkeypatch.setattr(purging, "CHECKED_EVERY_S", -1.0)

    def late() -> None:
        if len(unlinked) == 2:
            raise Timeout("The step did not end before its deadline")

    with pytest.raises(Timeout):
        cached.purge(check=late)
    [entry] = manifests.read(cached.manifest)
    assert (entry.result, entry.deleted_files) == ("partly", 2) and "did not end before its deadline" in entry.why


def test_a_killed_purge_leaves_a_manifest_that_tells_all_that_went(tmp_path: Path):
    box = Leftovers(tmp_path)
    for number in range(400):
        box.write(f"{number % 7}/{number}.pt", 10)
    box.scan()
    before = {str(path) for path in box.root.rglob("*.pt")}
    code = """
import os, sys
from pathlib import Path
from ops.artifacts import purge
from tests.ops.artifacts.leftovers import Leftovers
unlink, left = os.unlink, iter(range(400))
def killed(name, *, dir_fd):
    unlink(name, dir_fd=dir_fd)
    if next(left) == 234:
        os.kill(os.getpid(), 9)
purge.os.unlink, purge.ANNOUNCED = killed, 100  # in the second part
Leftovers(Path(sys.argv[1])).purge(manifest=Path(sys.argv[1]) / "killed.jsonl")
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == -9
    went = before - {str(path) for path in box.root.rglob("*.pt")}
    told = list(manifests.read(tmp_path / "killed.jsonl"))
    assert len(went) == 235 and {entry.path for entry in told if entry.result in ("deleted", "partly")} == went
    assert [entry.why for entry in told if entry.result == "partly"] == [manifests.INTERRUPTED] and told[-1].result == "partly"


_FULL = """
import os, subprocess, sys
from pathlib import Path
from ops.artifacts import manifest
from tests.ops.artifacts.leftovers import Leftovers
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], check=True)
box = Leftovers(folder if sys.argv[2:] else folder / "disk")
for number in range(150):
    box.write(f"{number}.pt", 5000)
box.scan()
with (folder / "ballast").open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        print(error.strerror)
result = box.purge()
print(result.deleted.count, result.kept, len(box.left()), len(list(manifest.read(box.manifest))), result.problems)
"""


def test_on_a_full_disk_the_first_to_go_make_room_for_the_manifest(tmp_path: Path):
    told = in_own_mounts(_FULL, tmp_path).splitlines()
    assert told == ["No space left on device", "150 0 0 150 []"]


class Full(manifests.ManifestWriter):
    """A manifest on a disk that stays full."""

    def _flush(self, *, sync: bool) -> bool:
        self.problem, self.full = os.strerror(errno.ENOSPC), True
        return False


@pytest.mark.parametrize("elsewhere", [True, False], ids=["another-disk", "same-disk"])
def test_where_the_manifest_cannot_be_written_nothing_goes_untold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool):
    box = Leftovers(tmp_path)
    for number in range(150):
        box.write(f"{number}.pt")
    box.scan()
    monkeypatch.setattr("tests.ops.artifacts.leftovers.ManifestWriter", Full)
    if elsewhere:
        monkeypatch.setattr(Full, "device", property(lambda self: -1, lambda self, value: None), raising=False)
    told: list[Entry] = []
    before: list[int] = []
    unlink = os.unlink
    monkeypatch.setattr(purging.os, "unlink", lambda name, *, dir_fd: before.append(len(told)) or unlink(name, dir_fd=dir_fd))
    result = box.purge(on_entry=told.append)
    went = 0 if elsewhere else purging.UNTOLD_MOST
    assert (result.deleted.count, result.kept) == (went, 150 - went) and result.partial and result.problems
    assert before == list(range(went))  # each was told to whoever listens before the next one went
    assert told[-1].why == "The manifest cannot be written (No space left on device), and nothing goes that is not in it"


def test_a_purge_that_breaks_tells_what_went_before(box: Leftovers, monkeypatch: pytest.MonkeyPatch):
    box.scan()

    def check() -> None:
        if len(list(box.root.rglob("*.pt"))) < 2:
            raise RuntimeError("a bug")

    monkeypatch.setattr(purging, "CHECKED_EVERY_S", 0.0)
    with pytest.raises(RuntimeError):
        box.purge(check=check)
    assert [entry.result for entry in box.told] == ["deleted"] and next(entry.result for entry in manifests.read(box.manifest)) == "deleted"


def test_no_descriptor_stays_open(box: Leftovers):
    box.write("cache-1/deep/a")
    box.scan()
    before = len(list(Path("/proc/self/fd").iterdir()))
    box.write("cache-1/deep/b")
    box.purge()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_folder_in_no_place_is_not_touched(box: Leftovers, tmp_path: Path):
    box.scan()
    (tmp_path / "other").mkdir()
    box.purge(places=Places([Place("scratch", str(tmp_path / "other"))], box.never))
    assert {entry.why for entry in box.told} == {"It lies outside of the folders that a purge may touch"}
    assert ALL.kinds[0] == "tensor"
