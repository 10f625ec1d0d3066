from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from ops.environments import integrity, patches, releases
from ops.records import ServiceRecord
from tests.ops.environments.conftest import library


def edit(live: Path) -> None:
    with (library(live) / "vllm/model.py").open("a") as file:
        file.write("torch.save(x, '/tmp/x.pt')\n")
    (library(live) / "vllm/mine.py").write_text("typed = True")
    (library(live) / "vllm/blob.bin").write_bytes(b"\xff\x00")
    (library(live) / "vllm/config.py").unlink()


def test_edited_and_extra_files_are_saved_with_a_diff(record: ServiceRecord, live: Path):
    edit(live)
    saved = patches.save_to_shelf(record, live, integrity.check(live))
    assert sorted(path.name for path in saved) == ["blob.bin", "mine.py", "model.py"]
    shelf = next((record.folder / "shelf").iterdir())
    assert shelf.name.endswith(live.name)
    manifest = json.loads((shelf / "manifest.json").read_text())
    entries = {Path(entry["path"]).name: entry for entry in manifest["files"]}
    assert entries["config.py"]["change"] == "missing" and entries["blob.bin"].get("diff") is None
    model = entries["model.py"]
    assert model["package"] == "vllm" and model["original"] == str(library(live) / "vllm/model.py")
    assert model["sha256"] == hashlib.sha256((library(live) / "vllm/model.py").read_bytes()).hexdigest()
    assert model["pristine_sha256"] != model["sha256"]
    diff = (shelf / model["diff"]).read_text()
    assert "+torch.save(x, '/tmp/x.pt')" in diff and " def forward(x):" in diff and "\n-" not in diff.split("@@", 1)[1]
    assert "\\ No newline at end of file" in (shelf / entries["mine.py"]["diff"]).read_text()


def test_copies_outlive_the_release(record: ServiceRecord, live: Path):
    edit(live)
    saved = patches.save_to_shelf(record, live, integrity.check(live))
    shutil.rmtree(live)
    assert next(path for path in saved if path.name == "mine.py").read_text() == "typed = True"


def test_without_the_wheel_the_file_is_saved_without_a_diff(record: ServiceRecord, live: Path, tmp_path: Path):
    edit(live)
    (tmp_path / "empty").mkdir()
    patches.save_to_shelf(record, live, integrity.check(live), wheels=tmp_path / "empty")
    (told,) = patches.entries(record)
    model = next(entry for entry in told["files"] if entry["path"].endswith("model.py"))
    assert model["saved"] and "diff" not in model and model["pristine_sha256"] is None


def test_the_same_edits_are_saved_once_and_new_ones_again(record: ServiceRecord, live: Path):
    edit(live)
    one = patches.save_to_shelf(record, live, integrity.check(live))
    assert sorted(patches.save_to_shelf(record, live, integrity.check(live))) == sorted(one)
    (library(live) / "vllm/mine.py").write_text("typed = 2")
    other = patches.save_to_shelf(record, live, integrity.check(live))
    assert set(other).isdisjoint(one) and len(patches.entries(record)) == 2


def test_a_clean_release_leaves_nothing_on_the_shelf(record: ServiceRecord, live: Path):
    assert patches.save_to_shelf(record, live, integrity.check(live)) == []
    assert not (record.folder / "shelf").exists()


def test_an_environment_that_was_there_before_us_is_saved_too(record: ServiceRecord, live: Path, wheels: Path):
    (live / releases.MANIFEST).unlink()
    edit(live)
    patches.save_to_shelf(record, live, integrity.check(live), wheels=wheels)
    (told,) = patches.entries(record)
    assert any(entry.get("diff") for entry in told["files"] if entry["path"].endswith("model.py"))
