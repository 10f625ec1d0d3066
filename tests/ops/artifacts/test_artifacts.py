from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ops.artifacts import old_scan as scanning
from ops.artifacts import purge as purging
from ops.artifacts.old_scan import Artifact, scan
from ops.artifacts.purge import purge
from ops.jobs.errors import BadInput


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    (folder / "layers" / "0").mkdir(parents=True)
    (folder / "step0.pt").write_bytes(b"a" * 100)
    (folder / "layers" / "0" / "attn.pt").write_bytes(b"b" * 200)
    (folder / "notes.txt").write_text("mine")
    return folder


def names(artifacts: list[Artifact]) -> list[str]:
    return [Path(artifact.path).name for artifact in artifacts]


def test_scan_finds_known_kinds_at_any_depth(root: Path):
    found = scan([root])
    assert names(found) == ["attn.pt", "step0.pt"]
    assert all(artifact.safe and artifact.kind == "debug-tensor" for artifact in found)


def test_purge_deletes_what_was_listed_and_nothing_else(root: Path):
    said: list[str] = []
    result = purge(scan([root]), roots=[root], log=said.append)
    assert result.freed_bytes == 300 and result.kept == []
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == ["notes.txt"]
    assert said[0] == f"deleted {root}/layers/0/attn.pt (200 bytes)"


def test_roots_that_do_not_exist_have_nothing(tmp_path: Path):
    assert scan([tmp_path / "none"]) == []


def test_a_root_that_is_a_link_is_refused(root: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(BadInput):
        scan([tmp_path / "link"])


def test_links_are_not_followed(root: Path, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.pt").write_bytes(b"victim")
    (root / "folder").symlink_to(outside)
    (root / "file.pt").symlink_to(outside / "model.pt")
    assert "model.pt" not in names(scan([root])) and "file.pt" not in names(scan([root]))


@pytest.mark.parametrize("beside", ["config.json", "pyvenv.cfg", "tokenizer.json"])
def test_model_folders_and_environments_are_never_searched(root: Path, beside: str):
    model = root / "model"
    (model / "original").mkdir(parents=True)
    (model / beside).write_text("{}")
    (model / "original" / "consolidated.pt").write_bytes(b"weights")
    assert "consolidated.pt" not in names(scan([root]))


def test_open_and_mapped_files_are_kept(root: Path):
    import mmap

    with (root / "step0.pt").open("rb") as file:
        listed = {Path(artifact.path).name: artifact for artifact in scan([root])}
        assert not listed["step0.pt"].safe and os.getpid() in listed["step0.pt"].open_by
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    os.sched_yield()
    listed = {Path(artifact.path).name: artifact for artifact in scan([root])}
    assert "open in process" in listed["step0.pt"].why
    mapped.close()
    assert all(artifact.safe for artifact in scan([root]))


def test_a_file_that_another_process_opened_after_the_scan_is_kept(root: Path):
    listed = scan([root])
    holder = subprocess.Popen([sys.executable, "-c", "import sys; f = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()",
                               str(root / "step0.pt")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin and holder.stdout
    try:
        assert holder.stdout.readline() == b"open\n"
        result = purge(listed, roots=[root])
    finally:
        holder.communicate(b"")
    assert [Path(kept["path"]).name for kept in result.kept] == ["step0.pt"]
    assert f"open in process {holder.pid}" in result.kept[0]["why"]


def test_young_files_and_those_of_others_are_kept(root: Path):
    assert {artifact.why for artifact in scan([root], min_age_s=3600)} == {"younger than 3,600 s"}
    others = scan([root], owner_uid=os.geteuid() + 1)
    assert not any(artifact.safe for artifact in others)
    assert purge(scan([root]), roots=[root], owner_uid=os.geteuid() + 1).deleted == []


def test_hard_links_are_kept(root: Path, tmp_path: Path):
    (tmp_path / "precious").hardlink_to(root / "step0.pt")
    result = purge(scan([root]), roots=[root])
    assert result.kept == [{"path": f"{root}/step0.pt", "why": "has 2 names (hard links)"}]


def _written_again(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _other_file(path: Path) -> None:
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b"a" * 100)


def _gone(path: Path) -> None:
    path.unlink()


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("notes.txt")


@pytest.mark.parametrize("change, why", [(_written_again, "was written to"), (_other_file, "is another file"), (_gone, "is gone already"),
                                         (_link, "is no regular file")])
def test_what_changed_since_it_was_listed_is_kept(root: Path, change, why: str):
    listed = scan([root])
    change(root / "step0.pt")
    result = purge(listed, roots=[root])
    assert why in result.kept[0]["why"] and len(result.deleted) == 1
    assert (root / "notes.txt").read_text() == "mine"


def test_paths_outside_of_the_roots_are_kept(root: Path, tmp_path: Path):
    victim = tmp_path / "victim.pt"
    victim.write_bytes(b"v")
    state = victim.stat()
    for path in (str(victim), f"{root}/../victim.pt", f"{root}/layers/../../victim.pt", "victim.pt", f"{root}", "/"):
        lie = Artifact(path=path, size_bytes=1, kind="debug-tensor", mtime_ns=state.st_mtime_ns, inode=state.st_ino, device=state.st_dev,
                       uid=state.st_uid)
        assert purge([lie], roots=[root]).deleted == []
    assert victim.exists()


def test_a_folder_swapped_for_a_link_while_purging_gives_no_victim(tmp_path: Path):
    """20 rounds against a thread that swaps a folder and a link to another one, whose file has the same name, as fast as it can."""
    victims = tmp_path / "victims"
    victims.mkdir()
    swapping, stop = threading.Event(), threading.Event()
    root = tmp_path / "scratch"
    root.mkdir()

    def swap() -> None:
        while not stop.is_set():
            try:
                (root / "dump").rename(root / "aside")
                (root / "dump").symlink_to(victims)
                (root / "dump").unlink()
                (root / "aside").rename(root / "dump")
            except OSError:
                pass
            swapping.set()

    for number in range(20):
        (victims / f"t{number}.pt").write_bytes(b"victim")
    for number in range(20):
        dump = root / "dump"
        dump.mkdir()
        (dump / f"t{number}.pt").write_bytes(b"leftover")
        listed = scan([root])
        assert len(listed) == 1
        swapping.clear()
        stop.clear()
        thread = threading.Thread(target=swap)
        thread.start()
        swapping.wait(5)
        for _ in range(10):
            purge(listed, roots=[root])
        stop.set()
        thread.join()
        for leftover in root.rglob("*.pt"):
            leftover.unlink()
        for folder in root.iterdir():
            folder.rmdir()
    assert len(list(victims.iterdir())) == 20


def test_a_bait_is_never_unpickled(root: Path, tmp_path: Path):
    class Bait:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    (root / "bait.pt").write_bytes(pickle.dumps(Bait()))
    result = purge(scan([root]), roots=[root])
    assert len(result.deleted) == 3 and not (tmp_path / "sprung").exists()


def test_an_artifact_survives_its_json(root: Path):
    for artifact in scan([root]):
        assert Artifact.from_dict(artifact.as_dict()) == artifact


@pytest.mark.parametrize("raw", [None, {}, {"path": "/x"}, "x"])
def test_what_is_no_artifact_is_refused(raw: object):
    with pytest.raises(BadInput):
        Artifact.from_dict(raw)


def test_an_artifact_with_a_field_of_another_type_is_refused(root: Path):
    raw = scan([root])[0].as_dict()
    with pytest.raises(BadInput):
        Artifact.from_dict({**raw, "inode": "5"})


def test_who_has_files_open_is_read_again_while_a_long_purge_runs(root: Path, monkeypatch: pytest.MonkeyPatch):
    looks: list[float] = []
    monkeypatch.setattr(purging, "OPEN_FILES_AGE_S", 0)
    monkeypatch.setattr(purging, "open_files", lambda: looks.append(time.monotonic()) or scanning.open_files())
    purge(scan([root]), roots=[root])
    assert len(looks) == 2
