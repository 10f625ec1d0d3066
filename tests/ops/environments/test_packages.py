from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ops.environments import packages
from ops.jobs.errors import BadInput


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """The bare bones of an environment: nothing of it can run, and nothing needs to."""
    (tmp_path / "env/lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.11.7\n")
    return tmp_path / "env"


def add(env: Path, name: str, version: str, *, metadata: str | None = None, **files: str) -> Path:
    folder = env / f"lib/python3.11/site-packages/{name}-{version}.dist-info"
    folder.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" if metadata is None else metadata
    (folder / "METADATA").write_text(text)
    for file, content in files.items():
        (folder / file).write_text(content)
    return folder


def test_names_are_normalized_and_versions_read(env: Path):
    add(env, "Flash_Infer.Python", "0.6.4+cu130", INSTALLER="uv\n", REQUESTED="")
    found = packages.read(env)
    assert found.version("flash-infer_python") == "0.6.4+cu130"
    distribution = found.distributions["flash-infer-python"]
    assert (distribution.installer, distribution.requested) == ("uv", True)
    assert found.python_version == "3.11.7" and found.version("vllm") is None


def test_requirements_and_origin_are_read(env: Path):
    folder = add(env, "vllm", "1.0", metadata="Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\nRequires-Dist: torch==2.9\n"
                 "Requires-Dist: numpy>=1; python_version<'3.12'\n\nName: not-a-header\n")
    (folder / "direct_url.json").write_text('{"url": "https://user:secret@example.org/vllm.whl", "archive_info": {}}')
    found = packages.read(env).distributions["vllm"]
    assert found.requires == ["torch==2.9", "numpy>=1; python_version<'3.12'"]
    assert found.direct_url == {"url": "https://example.org/vllm.whl", "archive_info": {}}


def test_a_distribution_that_is_there_twice_is_told(env: Path):
    add(env, "torch", "2.9.0")
    add(env, "torch", "2.10.0")
    found = packages.read(env)
    assert len(found.duplicates) == 1 and "`torch` is there twice" in found.problems[0]


def test_unreadable_metadata_falls_back_on_the_folder_name(env: Path):
    (env / "lib/python3.11/site-packages/torch-2.9.0.dist-info").mkdir()
    found = packages.read(env)
    assert found.version("torch") == "2.9.0" and "METADATA" in found.problems[0]


def test_what_a_killed_uninstall_left_is_no_distribution(env: Path):
    add(env, "~orch", "2.9.0")
    found = packages.read(env)
    assert found.distributions == {} and "did not end" in found.problems[0]


def test_the_library_of_the_interpreter_that_counts_is_read(env: Path):
    older = env / "lib/python3.10/site-packages/torch-1.0.dist-info"
    newer = env / "lib/python3.12/site-packages/torch-3.0.dist-info"
    for folder in (older, newer):
        folder.mkdir(parents=True)
    add(env, "torch", "2.9.0")
    assert packages.read(env).version("torch") == "2.9.0"


def test_lib64_that_links_to_lib_is_read_once(env: Path):
    (env / "lib64").symlink_to("lib")
    add(env, "torch", "2.9.0")
    found = packages.read(env)
    assert found.duplicates == [] and len(found.site_packages) == 1


def test_nothing_of_the_environment_is_imported(env: Path, tmp_path: Path):
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w')\n"
    library = env / "lib/python3.11/site-packages"
    (library / "sitecustomize.py").write_text(trap)
    (library / "torch.py").write_text(trap)
    (library / "trap.pth").write_text(f"import os; {trap}")
    add(env, "torch", "2.9.0")
    assert packages.read(env).version("torch") == "2.9.0"
    assert not (tmp_path / "sprung").exists()


def test_where_it_came_from_is_told_in_words(env: Path):
    direct = {
        "one": ({"url": "https://user:secret@example.org/vllm.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}},
                "git+https://example.org/vllm.git@abc123"),
        "two": ({"url": "file:///home/me/vllm", "dir_info": {"editable": True}}, "editable /home/me/vllm"),
        "three": ({"url": "file:///home/me/vllm", "dir_info": {}}, "folder /home/me/vllm"),
        "four": ({"url": "file:///wheels/four.whl", "archive_info": {"hash": "sha256=abc"}}, "/wheels/four.whl"),
        "five": ({"url": "https://example.org/five.whl", "archive_info": {}}, "https://example.org/five.whl"),
        "six": ({"archive_info": {}}, "not recorded"),
        "seven": ({"url": "https://example.org", "vcs_info": {"commit_id": 7}}, "vcs+https://example.org"),
    }
    for name, (told, _) in direct.items():
        add(env, name, "1.0", **{"direct_url.json": json.dumps(told)})
    found = packages.read(env).distributions
    assert {name: packages.source(found[name]) for name in direct} == {name: words for name, (_, words) in direct.items()}


def test_the_manifest_tells_the_source_of_what_it_lists_in_that_version(env: Path):
    for name, version in (("vllm", "1.0"), ("torch", "2.9"), ("byhand", "1.0")):
        add(env, name, version)
    add(env, "local", "1.0", **{"direct_url.json": '{"url": "file:///me", "dir_info": {"editable": true}}'})
    listed = [{"name": name, "version": "1.0", "file": f"{name}.whl"} for name in ("vllm", "torch", "local")]
    manifest = {"channel": {"name": "practice", "wheelhouse": "/srv/wheels"},
                "packages": [*listed, {"name": "byhand", "version": "1.0", "file": None}]}
    found = packages.read(env)

    def told(manifest: dict[str, object]) -> dict[str, str]:
        return {one["name"]: one["source"] for one in packages.describe(found, manifest)}

    assert told(manifest) == {"vllm": "wheelhouse /srv/wheels", "torch": "not recorded", "byhand": "not recorded", "local": "editable /me"}
    assert told(manifest | {"channel": {"name": "n", "index_url": "https://me:pw@example.org/x"}})["vllm"] == "index https://example.org/x"
    both = {"name": "nightly", "index_url": "public", "extra_index_urls": ["https://example.org/x"]}
    assert told(manifest | {"channel": both})["vllm"] == "channel nightly"
    assert set(told({"channel": None, "packages": "?"}).values()) == {"not recorded", "editable /me"}


def test_sizes_are_those_of_record_and_unknown_is_not_zero(env: Path):
    add(env, "one", "1.0", RECORD='one/a.py,sha256=x,100\n"one/b,c.py",sha256=y,23\none/__pycache__/a.pyc,,\none-1.0.dist-info/RECORD,,\n')
    add(env, "two", "1.0", RECORD="two/a.py,,\n")
    add(env, "three", "1.0")
    add(env, "four", "1.0", RECORD=f"x,,{'9' * 5000}\n")
    found = packages.read(env)
    assert packages.sizes(found) == packages.sizes(env) == {"one": 123}
    assert found.distributions["two"].size_bytes is None
    assert [one["size_bytes"] for one in packages.describe(found)] == [None, 123, None, None]


def test_versions_as_virtualenv_and_conda_write_them(env: Path):
    (env / "pyvenv.cfg").write_text("version_info = 3.11.7.final.0\nversion = 3.11.7\n")
    assert packages.read(env).python_version == "3.11.7"
    (env / "pyvenv.cfg").unlink()
    (env / "bin").mkdir()
    (env / "bin/python").write_text("#!/bin/sh\n")
    (env / "bin/python").chmod(0o755)
    found = packages.read(env)
    assert found.python_version == "3.11" and not found.is_venv


@pytest.mark.parametrize(("python", "words"), [("gone", "which is gone"), ("no right", "may not be executed"), ("none", None), ("good", None)])
def test_a_python_that_no_longer_runs_is_told(env: Path, python: str, words: str | None):
    (env / "bin").mkdir()
    if python == "gone":
        (env / "bin/python").symlink_to("/opt/removed/bin/python3")
    elif python != "none":
        (env / "bin/python").write_text("#!/bin/sh\n")
        (env / "bin/python").chmod(0o755 if python == "good" else 0o644)
    problems = packages.read(env).problems
    assert problems == [] if words is None else "no longer runs" in problems[0] and words in problems[0]


@pytest.mark.parametrize("name", ["METADATA", "INSTALLER", "direct_url.json", "RECORD", "REQUESTED"])
def test_no_pipe_and_no_endless_file_holds_it_up(env: Path, name: str):
    folder = add(env, "one", "1.0")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    found = packages.read(env)
    assert found.version("one") == "1.0" and packages.sizes(found) == {}
    (folder / name).unlink()
    with (folder / name).open("wb") as file:
        file.truncate(50_000_000_000)
    assert packages.read(env).version("one") == "1.0"


def test_a_folder_that_is_a_loop_of_links_is_no_environment(tmp_path: Path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadInput):
        packages.read(tmp_path / "loop")
    (tmp_path / "env/lib/python3.11").mkdir(parents=True)
    (tmp_path / "env/lib/python3.11/site-packages").symlink_to("site-packages")
    (tmp_path / "env/pyvenv.cfg").write_text("version = 3.11.7\n")
    with pytest.raises(BadInput, match="is no Python environment"):
        packages.read(tmp_path / "env")
