from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ops.environments import wheelhouse
from ops.jobs.errors import OpsError
from tests.fakes.wheels import make_wheel


def test_contents_are_counted_without_unpacking(tmp_path: Path):
    wheel = make_wheel(tmp_path, "thing", "1.0", files={"thing/__init__.py": "x = 1\n", "thing/data.bin": b"\0" * 1000})
    told = wheelhouse.contents(wheel)
    assert told.files == 5 and told.size_bytes > 1000


def test_a_pristine_file_comes_out_as_it_is(tmp_path: Path):
    wheel = make_wheel(tmp_path, "thing", "1.0", files={"thing/__init__.py": "x = 1\n"}, data={"share/thing/notes": "read me\n"})
    assert wheelhouse.pristine(wheel, "thing/__init__.py") == b"x = 1\n"
    assert wheelhouse.pristine(wheel, "thing/other.py") is None
    assert wheelhouse.pristine(wheel, "thing/__init__.py", limit=3) is None


def test_files_of_purelib_lie_in_site_packages_like_the_rest(tmp_path: Path):
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing-1.0.data/purelib/thing/__init__.py", "x = 1\n")
        archive.writestr("thing-1.0.dist-info/METADATA", "M")
        archive.writestr("thing-1.0.dist-info/RECORD", "thing-1.0.data/purelib/thing/__init__.py,sha256=abc,6\n"
                         "thing-1.0.dist-info/METADATA,sha256=def,1\nthing/listed_but_not_there.py,sha256=ghi,1\n")
    assert wheelhouse.pristine(wheel, "thing/__init__.py") == b"x = 1\n"
    assert wheelhouse.record_rows(wheel) == {"thing-1.0.dist-info/METADATA": "sha256=def"}


@pytest.mark.parametrize("content", [b"", b"no wheel", b"PK\3\4" + b"\0" * 50])
def test_what_is_no_wheel_says_so(tmp_path: Path, content: bytes):
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    wheel.write_bytes(content)
    for read in (wheelhouse.contents, wheelhouse.record_rows, lambda path: wheelhouse.pristine(path, "x")):
        with pytest.raises(OpsError, match="cannot be read"):
            read(wheel)
    with pytest.raises(OpsError, match="cannot be read"):
        wheelhouse.sha256(tmp_path / "gone.whl")


def test_a_wheel_without_a_record_says_so(tmp_path: Path):
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing/__init__.py", "")
    with pytest.raises(OpsError, match="has no RECORD"):
        wheelhouse.record_rows(wheel)


def test_the_best_of_a_packages_wheels_is_chosen_for_that_interpreter():
    files = ["x-1.0-py3-none-any.whl", "x-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "x-1.0-cp38-abi3-manylinux_2_17_x86_64.whl", "no wheel"]
    assert wheelhouse.best(files, "3.11.7") == files[1]
    assert wheelhouse.best(files, "3.14.0") == files[2]
    assert wheelhouse.best(["x-1.0-1-py3-none-any.whl", "x-1.0-2-py3-none-any.whl"], "3.12") == "x-1.0-2-py3-none-any.whl"
    assert wheelhouse.best([], "unknown") is None
