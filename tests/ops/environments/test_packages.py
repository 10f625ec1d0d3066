from __future__ import annotations

from pathlib import Path

import pytest

from ops.environments import packages


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
