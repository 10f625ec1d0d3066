from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from ops.environments import pruning, releases
from ops.records import ServiceRecord


def release(record: ServiceRecord, day: int, *, verified: bool = True, size: int = 1000) -> Path:
    """A release as its manifest tells it."""
    folder = record.releases / f"202601{day:02}-000000-0.1"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / releases.MANIFEST).write_text(json.dumps({"release": folder.name, "verified": verified, "size_bytes": size, "version": "0.1"}))
    return folder


def names(record: ServiceRecord) -> list[int]:
    return sorted(int(found.name[6:8]) for found in releases.listing(record))


@pytest.fixture
def five(record: ServiceRecord) -> list[Path]:
    """Days 1 to 5; day 4 is in use, day 2 is the last good one."""
    made = [release(record, day) for day in range(1, 6)]
    releases.switch(record, made[3])
    releases.mark_good(record, made[1])
    return made


def test_the_oldest_go_until_the_number_fits(record: ServiceRecord, five: list[Path]):
    assert pruning.prune(None, dataclasses.replace(record, keep_releases=4)) == [five[0].name]
    assert names(record) == [2, 3, 4, 5]
    assert pruning.prune(None, dataclasses.replace(record, keep_releases=4)) == []


def test_the_live_the_last_good_and_the_one_before_stay_whatever_the_limit(record: ServiceRecord, five: list[Path]):
    assert pruning.prune(None, dataclasses.replace(record, keep_releases=2)) == [five[0].name, five[4].name]
    assert names(record) == [2, 3, 4]


def test_a_verified_release_of_a_failed_redeploy_counts_and_goes(record: ServiceRecord, five: list[Path]):
    """Day 5 is newer than the one in use: it was built, and never came to serve."""
    assert pruning.prune(None, dataclasses.replace(record, keep_releases=2), keep=(five[0].name,)) == [five[4].name]


def test_bytes_are_limited_too_the_oldest_first(record: ServiceRecord, five: list[Path]):
    assert pruning.prune(None, dataclasses.replace(record, keep_bytes=5000)) == []
    assert pruning.prune(None, dataclasses.replace(record, keep_bytes=4999)) == [five[0].name]
    assert pruning.prune(None, dataclasses.replace(record, keep_bytes=1)) == [five[4].name]
    assert names(record) == [2, 3, 4]


def test_the_way_back_is_verified(record: ServiceRecord):
    made = [release(record, 1), release(record, 2, verified=False), release(record, 3), release(record, 4)]
    releases.switch(record, made[2])
    assert pruning.prune(None, dataclasses.replace(record, keep_releases=2)) == [made[1].name, made[3].name]


def test_an_environment_that_was_here_before_us_is_neither_counted_nor_touched(record: ServiceRecord, five: list[Path], tmp_path: Path):
    (tmp_path / "env" / "bin").mkdir(parents=True)
    releases.point(record.releases / releases.ADOPTED, tmp_path / "env")
    adopted = dataclasses.replace(record, environment=str(tmp_path / "env"), keep_releases=5)
    assert pruning.prune(None, adopted) == []
    assert pruning.prune(None, dataclasses.replace(adopted, keep_releases=2)) == [five[0].name, five[4].name]
    assert (record.releases / releases.ADOPTED / "bin").is_dir()


def test_what_was_in_use_before_stays_when_the_clock_was_set_back(record: ServiceRecord, five: list[Path]):
    """Day 1 was built after day 5: by its name it is the oldest, and nothing is older."""
    releases.switch(record, five[4])
    releases.switch(record, five[0])
    releases.mark_good(record, five[0])
    assert pruning.prune(None, dataclasses.replace(record, keep_releases=2)) == [five[1].name, five[2].name, five[3].name]
    assert names(record) == [1, 5]


def test_what_somebody_edited_in_a_release_is_on_the_shelf_before_it_goes(record: ServiceRecord, five: list[Path]):
    """Edits are shelved when a release is replaced; this one was made in a release that nobody runs any more."""
    library = five[0] / "lib" / "python3.11" / "site-packages"
    info = library / "thing-1.dist-info"
    info.mkdir(parents=True)
    (five[0] / "pyvenv.cfg").write_text("version = 3.11.7\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
    (library / "thing.py").write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"thing.py,sha256={digest},6\nthing-1.dist-info/METADATA,,\nthing-1.dist-info/RECORD,,\n")
    (library / "thing.py").write_text("x = 2  # mine\n")
    assert pruning.prune(None, dataclasses.replace(record, keep_releases=4)) == [five[0].name]
    assert [path.read_text() for path in (record.folder / "shelf").glob("*/files/lib/*/site-packages/thing.py")] == ["x = 2  # mine\n"]
