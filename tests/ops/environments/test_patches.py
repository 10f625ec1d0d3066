from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from uv import find_uv_bin

from ops.environments import integrity, patches, plan, pristine, releases, text_diff
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType
from ops.records import ServiceRecord
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import Events, library, make_wheelhouse


@pytest.fixture(autouse=True)
def no_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may hold anything."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Path:
    """An environment as uv installs it; read only."""
    env = tmp_path_factory.mktemp("patches") / "env"
    install(env, wheels)
    return env


@pytest.fixture
def live(record: ServiceRecord, installed: Path, wheels: Path) -> Path:
    """A copy of it as a release, with the manifest that a build writes."""
    release = record.releases / "20260101-000000-0.16.0rc2.dev313"
    shutil.copytree(installed, release, symlinks=True)
    record.current.symlink_to(f"releases/{release.name}")
    write_manifest(release, wheels)
    return release


def install(release: Path, wheels: Path, *, cache: Path | None = None) -> None:
    uv = find_uv_bin()
    options = ["--quiet", "--no-config", *(["--cache-dir", str(cache)] if cache else ["--no-cache"])]
    subprocess.run([uv, *options, "venv", "--python", sys.executable, str(release)], check=True)
    subprocess.run([uv, *options, "pip", "install", "--python", str(release / "bin/python"), "--offline", "--no-index", "--find-links", str(wheels),
                    "--link-mode", "copy", "--prerelease", "allow", "vllm==0.16.0rc2.dev313+practice"], check=True)


def write_manifest(release: Path, wheels: Path) -> None:
    files = [path for path in wheels.glob("*.whl") if "dev344" not in path.name and "0.6.4" not in path.name]
    told = [{"name": path.name.split("-")[0].replace("_", "-"), "version": path.name.split("-")[1], "file": path.name,
             "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in files]
    (release / releases.MANIFEST).write_text(json.dumps({"release": release.name, "verified": True, "packages": told,
                                                         "channel": {"kind": "wheelhouse", "wheelhouse": str(wheels)}}))


def edit(live: Path) -> None:
    with (library(live) / "vllm/model.py").open("a") as file:
        file.write("torch.save(x, '/tmp/x.pt')\n")
    (library(live) / "vllm/mine.py").write_text("typed = True")
    (library(live) / "vllm/blob.bin").write_bytes(b"\xff\x00")
    (library(live) / "vllm/config.py").unlink()


def by_name(events: Events) -> dict[str, dict]:
    return {Path(told["path"]).name: told for told in events.of(EventType.SHELF_SAVED)}


def test_edited_and_extra_files_are_saved_with_a_diff(record: ServiceRecord, live: Path):
    edit(live)
    saved = patches.save_to_shelf(record, live, integrity.check(live), job="job-1")
    assert sorted(path.name for path in saved) == ["blob.bin", "mine.py", "model.py"]
    shelf = next((record.folder / "shelf").iterdir())
    assert shelf.name.endswith(live.name)
    manifest = json.loads((shelf / "manifest.json").read_text())
    assert manifest["job"] == "job-1" and manifest["release"] == live.name and manifest["saved_at"]
    files = {Path(entry["path"]).name: entry for entry in manifest["files"]}
    assert files["config.py"]["change"] == "missing" and files["blob.bin"]["diff"] is None
    model = files["model.py"]
    assert model["package"] == "vllm" and model["original"] == str(library(live) / "vllm/model.py")
    assert model["version"] == "0.16.0rc2.dev313+practice" and model["pristine_from"].startswith("the wheel `vllm-")
    assert model["sha256"] == hashlib.sha256((library(live) / "vllm/model.py").read_bytes()).hexdigest()
    assert model["pristine_sha256"] != model["sha256"]
    diff = (shelf / model["diff"]).read_text()
    assert "+torch.save(x, '/tmp/x.pt')" in diff and " def forward(x):" in diff and "\n-" not in diff.split("@@", 1)[1]
    assert "\\ No newline at end of file" in (shelf / files["mine.py"]["diff"]).read_text()


def test_copies_outlive_the_release_and_are_private(record: ServiceRecord, live: Path):
    edit(live)
    saved = patches.save_to_shelf(record, live, integrity.check(live))
    shutil.rmtree(live)
    assert next(path for path in saved if path.name == "mine.py").read_text() == "typed = True"
    assert {path.stat().st_mode & 0o777 for path in saved} == {0o600}


def test_without_the_wheel_the_file_is_saved_without_a_diff(record: ServiceRecord, live: Path, tmp_path: Path):
    edit(live)
    (tmp_path / "empty").mkdir()
    patches.save_to_shelf(record, live, integrity.check(live), wheels=tmp_path / "empty")
    (told,) = patches.entries(record)
    model = next(entry for entry in told["files"] if entry["path"].endswith("model.py"))
    assert model["saved"] and model["diff"] is None and model["pristine_sha256"] is None and "not at hand" in model["note"]


def test_the_same_edits_are_saved_once_and_new_ones_again(record: ServiceRecord, live: Path):
    edit(live)
    one = patches.save_to_shelf(record, live, integrity.check(live), job="a")
    assert patches.save_to_shelf(record, live, integrity.check(live), job="b") == one
    assert len(patches.entries(record)) == 1 and patches.entries(record)[0]["job"] == "a"
    (library(live) / "vllm/mine.py").write_text("typed = 'more'")
    other = patches.save_to_shelf(record, live, integrity.check(live))
    assert set(other).isdisjoint(one) and len(patches.entries(record)) == 2
    assert next(path for path in one if path.name == "mine.py").read_text() == "typed = True"


def test_a_clean_release_leaves_nothing_on_the_shelf(record: ServiceRecord, live: Path):
    assert patches.save_to_shelf(record, live, integrity.check(live)) == []
    assert not (record.folder / "shelf").exists()


def test_an_environment_that_was_there_before_us_is_saved_too(record: ServiceRecord, live: Path, wheels: Path):
    (live / releases.MANIFEST).unlink()
    edit(live)
    patches.save_to_shelf(record, live, integrity.check(live), wheels=wheels)
    (told,) = patches.entries(record)
    assert any(entry.get("diff") for entry in told["files"] if entry["path"].endswith("model.py"))


def test_an_adopted_environment_is_saved_by_its_real_place(record: ServiceRecord, live: Path, tmp_path: Path, wheels: Path):
    place = tmp_path / "adopted-env"
    install(place, wheels)
    link = record.releases / "adopted"
    link.symlink_to(place)
    edit(link)
    saved = patches.save_to_shelf(record, link, integrity.check(link), wheels=wheels)
    (told,) = patches.entries(record)
    assert len(saved) == 3 and told["environment"] == str(place) and Path(told["folder"]).name.endswith("-adopted")


# ---- where pristine files come from ----


def pristine_of(record: ServiceRecord) -> dict[str, str | None]:
    return {Path(entry["path"]).name: entry.get("pristine_from") for manifest in patches.entries(record) for entry in manifest["files"]}


def test_another_release_gives_the_pristine_file_where_the_wheel_is_gone(record: ServiceRecord, live: Path, wheels: Path, tmp_path: Path):
    install(record.releases / "20250101-000000-older", wheels)
    edit(live)
    patches.save_to_shelf(record, live, integrity.check(live), wheels=tmp_path)
    assert pristine_of(record)["model.py"] == "the release `20250101-000000-older`"


def cache_of(record: ServiceRecord) -> Path:
    return plan.default_uv(record).cache


def test_uvs_cache_gives_it_only_if_it_is_the_file_that_record_names(record: ServiceRecord, live: Path, wheels: Path, tmp_path: Path):
    install(tmp_path / "warm", wheels, cache=cache_of(record))
    edit(live)
    report = integrity.check(live)
    patches.save_to_shelf(record, live, report, wheels=tmp_path)
    assert pristine_of(record)["model.py"] == "uv's cache"
    shutil.rmtree(record.folder / "shelf")
    (cached,) = cache_of(record).glob("archive-v*/*/vllm/model.py")
    cached.write_text("edited in the cache as well\n")
    patches.save_to_shelf(record, live, report, wheels=tmp_path)
    assert pristine_of(record)["model.py"] is None


def test_what_is_not_at_hand_is_fetched_if_the_caller_allows_it(record: ServiceRecord, live: Path, wheels: Path, tmp_path: Path):
    edit(live)
    asked: list = []

    def fetch(wanted: list[tuple[str, str, str | None]]) -> None:
        asked.extend(wanted)
        install(tmp_path / "warm", wheels, cache=cache_of(record))

    patches.save_to_shelf(record, live, integrity.check(live), wheels=tmp_path, fetch=fetch)
    assert [(name, version) for name, version, _ in asked] == [("vllm", "0.16.0rc2.dev313+practice")] and len(asked[0][2] or "") == 64
    assert pristine_of(record)["model.py"] == "uv's cache"


def test_a_channel_that_does_not_answer_costs_the_diff_not_the_copy(record: ServiceRecord, live: Path, tmp_path: Path):
    edit(live)

    def fetch(wanted: list[tuple[str, str, str | None]]) -> None:
        raise OpsError("The index does not answer")

    saved = patches.save_to_shelf(record, live, integrity.check(live), wheels=tmp_path, fetch=fetch)
    assert len(saved) == 3 and patches.entries(record)[0]["note"] == "Not every file has a diff: The index does not answer"


def test_another_wheel_of_the_same_name_and_version_is_not_taken(record: ServiceRecord, live: Path, tmp_path: Path):
    make_wheel(tmp_path / "other", "vllm", "0.16.0rc2.dev313+practice", files={"vllm/model.py": "another build\n"})
    edit(live)
    (live / releases.MANIFEST).unlink()
    patches.save_to_shelf(record, live, integrity.check(live), wheels=tmp_path / "other")
    assert pristine_of(record)["model.py"] is None


# ---- events ----


def test_each_file_is_told_once(record: ServiceRecord, live: Path, events: Events):
    edit(live)
    patches.save_to_shelf(record, live, integrity.check(live), emit=events)
    told = by_name(events)
    assert set(told) == {"blob.bin", "mine.py", "model.py", "config.py"}
    model = told["model.py"]
    assert set(model) == {"folder", "path", "package", "version", "release", "change", "size_bytes", "sha256", "pristine_sha256", "diff", "diff_cut",
                          "debris", "note", "where"}
    assert model["folder"] == next((record.folder / "shelf").iterdir()).name and Path(model["where"]).is_file()
    assert "+torch.save" in model["diff"] and model["diff_cut"] is False and told["blob.bin"]["diff"] is None
    assert told["config.py"]["change"] == "missing" and told["config.py"]["size_bytes"] is None
    patches.save_to_shelf(record, live, integrity.check(live), emit=events)
    assert len(events.of(EventType.SHELF_SAVED)) == 4


def test_files_that_a_killed_job_saved_but_never_told_are_told_by_the_next_one(record: ServiceRecord, live: Path, events: Events):
    edit(live)
    patches.save_to_shelf(record, live, integrity.check(live))
    patches.save_to_shelf(record, live, integrity.check(live), emit=events)
    assert len(events.of(EventType.SHELF_SAVED)) == 4


def test_a_long_diff_is_cut_in_the_event_and_whole_on_the_disk(record: ServiceRecord, live: Path, events: Events):
    (library(live) / "vllm/table.py").write_text("".join(f"ROW_{number} = {number}  # é\n" for number in range(20_000)))
    patches.save_to_shelf(record, live, integrity.check(live), emit=events)
    told = by_name(events)["table.py"]
    assert told["diff_cut"] and len(told["diff"].encode()) <= patches.TOLD_DIFF and told["diff"].endswith("\n")
    assert (patches.view(record, told["folder"], told["path"])["diff"] or "").count("\n+ROW_") == 20_000


def test_many_files_are_told_up_to_a_number_and_the_rest_is_counted(record: ServiceRecord, live: Path, events: Events,
                                                                    monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(patches, "TOLD_FILES", 5)
    monkeypatch.setattr(patches, "TOLD_DIFFS", 100)
    for number in range(8):
        (library(live) / f"vllm/extra_{number}.py").write_text(f"number = {number}\n" * 4)
    patches.save_to_shelf(record, live, integrity.check(live), emit=events)
    told = events.of(EventType.SHELF_SAVED)
    assert len(told) == 5 and told[-1]["diff"] is None and told[-1]["diff_cut"]
    assert events.of(EventType.FINDING)[0]["title"].startswith("3 more files")
    assert len(patches.shelf(record)) == 8


def test_a_secret_that_was_typed_into_a_file_stays_on_the_node(record: ServiceRecord, live: Path, events: Events):
    record.env["MY_PASSWORD"] = "hunter2-hunter2"
    (library(live) / "vllm/mine.py").write_text("login('hf_abcdefghijklmnopqrstuvwx', 'hunter2-hunter2')\nprint(1)\n")
    report = integrity.check(live)
    (copy,) = patches.save_to_shelf(record, live, report, emit=events)
    shown = patches.shown_differences(live, report.findings, record=record)
    assert "hf_abc" not in str(events) and "hunter2" not in str(events) and "hf_abc" not in str(shown) and "hunter2" not in str(shown)
    assert "hf_abc" in copy.read_text() and "+print(1)" in str(events)


def test_debris_goes_with_the_file(record: ServiceRecord, live: Path, events: Events):
    with (library(live) / "vllm/model.py").open("a") as file:
        file.write("\n\ndef forward_again(hidden_states):\n    import torch\n    torch.save(hidden_states, '/tmp/x.pt')\n    return hidden_states\n")
    report = integrity.check(live)
    shown = patches.shown_differences(live, report.findings)
    patches.save_to_shelf(record, live, report, emit=events)
    (found,) = by_name(events)["model.py"]["debris"]
    assert found["text"] == "torch.save(hidden_states, '/tmp/x.pt')" and "forward pass" in found["what"]
    assert next(told for path, told in shown.items() if path.endswith("model.py"))["debris"] == [found]
    assert patches.shelf(record)[0]["debris"] == [found]


# ---- full disk, kills ----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB, where the machine lets us make one."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_before_anything_is_overwritten_and_leaves_nothing_half_saved(record: ServiceRecord, live: Path, small_disk: Path):
    record.folder.joinpath("shelf").symlink_to(small_disk)
    (library(live) / "vllm/large.bin").write_bytes(os.urandom(2_000_000))
    with pytest.raises(OpsError, match="cannot be saved") as caught:
        patches.save_to_shelf(record, live, integrity.check(live))
    assert "No space left" in caught.value.why and not list(small_disk.iterdir())


def test_a_save_that_was_killed_is_cleared_away_by_the_next_one(record: ServiceRecord, live: Path):
    (record.folder / "shelf" / ".20260101-000000-x-1" / "files").mkdir(parents=True)
    edit(live)
    patches.save_to_shelf(record, live, integrity.check(live))
    assert [folder.name.startswith(".") for folder in (record.folder / "shelf").iterdir()] == [False]


# ---- looking, forgetting ----


def on_shelf(record: ServiceRecord, live: Path) -> dict[str, dict]:
    edit(live)
    patches.save_to_shelf(record, live, integrity.check(live), job="job-1")
    return {Path(told["path"]).name: told for told in patches.shelf(record)}


def test_the_shelf_lists_what_when_where_and_by_which_job(record: ServiceRecord, live: Path):
    told = on_shelf(record, live)
    assert set(told) == {"blob.bin", "mine.py", "model.py", "config.py"}
    model = told["model.py"]
    assert model["job"] == "job-1" and model["release"] == live.name and model["has_diff"] and model["saved_at"]
    assert "+torch.save" in patches.view(record, model["folder"], model["path"])["diff"]
    assert patches.view(record, model["folder"], told["blob.bin"]["path"])["diff"] is None


def test_forget_deletes_the_copy_and_the_diff_and_only_those(record: ServiceRecord, live: Path):
    told = on_shelf(record, live)
    model, folder = told["model.py"], record.folder / "shelf" / told["model.py"]["folder"]
    assert patches.forget(record, model["folder"], model["path"]) is True
    assert not list(folder.rglob("model.py*")) and (folder / "files" / told["mine.py"]["path"]).is_file()
    assert {Path(one["path"]).name for one in patches.shelf(record)} == {"blob.bin", "mine.py", "config.py"}
    assert patches.forget(record, model["folder"], model["path"]) is False
    with pytest.raises(BadInput, match="was forgotten"):
        patches.view(record, model["folder"], model["path"])
    for name in ("blob.bin", "mine.py", "config.py"):
        patches.forget(record, model["folder"], told[name]["path"])
    assert patches.shelf(record) == [] and [path.name for path in folder.iterdir()] == ["manifest.json"]


def test_an_edit_that_was_forgotten_is_saved_again_if_it_is_still_there(record: ServiceRecord, live: Path):
    told = on_shelf(record, live)
    patches.forget(record, told["model.py"]["folder"], told["model.py"]["path"])
    saved = patches.save_to_shelf(record, live, integrity.check(live))
    assert "model.py" in {path.name for path in saved} and len(patches.entries(record)) == 2


def test_forget_goes_on_after_a_kill_between_copy_and_manifest(record: ServiceRecord, live: Path):
    model = on_shelf(record, live)["model.py"]
    Path(model["where"]).unlink()
    assert patches.forget(record, model["folder"], model["path"]) is True


@pytest.mark.parametrize(("folder", "path"), [
    ("..", "state.json"), ("", "x"), (".", "x"), ("{folder}", "../../../state.json"), ("{folder}", "/etc/passwd"), ("{folder}", "manifest.json"),
    ("{folder}", ""), ("{folder}", "files/x"), ("{folder}/..", "x"), ("20260101-000000-none", "x"), ("{folder}", "a\0b")])
def test_forget_never_leaves_the_shelf(record: ServiceRecord, live: Path, folder: str, path: str):
    told = on_shelf(record, live)
    with pytest.raises(BadInput):
        patches.forget(record, folder.format(folder=told["model.py"]["folder"]), path)
    assert len(patches.shelf(record)) == 4


def test_forget_follows_no_link_out_of_the_shelf(record: ServiceRecord, live: Path, tmp_path: Path):
    model = on_shelf(record, live)["model.py"]
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "model.py").write_text("mine")
    parent = Path(model["where"]).parent
    shutil.rmtree(parent)
    parent.symlink_to(victim)
    with pytest.raises(OpsError):
        patches.forget(record, model["folder"], model["path"])
    assert (victim / "model.py").read_text() == "mine"


# ---- text ----


def test_differences_of_texts_and_of_what_is_none():
    assert [text_diff.unified(before, after, "f") for before, after in ((b"a\n", b"a\n"), (b"\xff", b"a"), (b"a\0", b"a"))] == [None] * 3
    assert text_diff.unified(b"a\nb", b"a\n", "f") == "--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n a\n-b\n\\ No newline at end of file\n"
    assert text_diff.unified(None, b"a\x0cb\n", "f") == "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\x0cb\n"
    assert (text_diff.unified(b"a\r\n", b"a\n", "f") or "").count("\r") == 1
    assert text_diff.unified(b"", b"x\n" * (text_diff.COMPARED_LINES + 1), "f") is None


def test_a_text_is_cut_at_a_line():
    assert text_diff.cut("é\nb\n", 5) == ("é\nb\n", False)
    assert text_diff.cut("é\nb\n", 4) == ("é\n", True)
    assert text_diff.cut("é" * 10, 5) == ("éé", True)


def test_a_diff_can_be_applied_by_patch(record: ServiceRecord, live: Path, tmp_path: Path, wheels: Path):
    if shutil.which("patch") is None:
        pytest.skip("there is no patch here")
    told = on_shelf(record, live)["model.py"]
    clean = tmp_path / "clean"
    install(clean, wheels)
    subprocess.run(["patch", "-p1", "--quiet"], input=patches.view(record, told["folder"], told["path"])["diff"], text=True, cwd=clean, check=True)
    assert (clean / told["path"]).read_bytes() == (live / told["path"]).read_bytes()


def test_the_nodes_own_cache_of_uv_is_looked_at_before_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert pristine.caches_of(tmp_path / "node") == [tmp_path / "node", tmp_path / "uv"]
    assert pristine.caches_of(None) == [tmp_path / "uv"]


def test_the_wheelhouse_of_these_tests_is_the_same_each_time(tmp_path: Path, wheels: Path):
    """The manifest above names hashes: a wheel that came out differently would make each test a lucky one."""
    again = make_wheelhouse(tmp_path)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {path.name: path.read_bytes() for path in wheels.iterdir()}
