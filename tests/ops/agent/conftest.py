"""The same node as the jobs' tests have, and a service with a small environment."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

from ops.records import ServiceRecord
from tests.fakes.node import FakeNode
from tests.ops.jobs.conftest import node

__all__ = ["node"]


def distribution(library: Path, name: str, version: str, requires: str = "") -> None:
    """A `.dist-info` as an installer leaves it, with nothing but metadata."""
    folder = library / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{f'Requires-Dist: {requires}' if requires else ''}\n".encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
    (folder / "METADATA").write_bytes(text)
    (folder / "RECORD").write_text(f"{folder.name}/METADATA,sha256={digest},{len(text)}\n{folder.name}/RECORD,,\n")


@pytest.fixture
def record(node: FakeNode) -> ServiceRecord:
    """A service whose release has vllm and an older flashinfer-cubin."""
    root = node.paths.services / "a"
    release = root / "releases" / "20260101-000000-0.16.0"
    library = release / "lib" / "python3.11" / "site-packages"
    library.mkdir(parents=True)
    (release / "pyvenv.cfg").write_text("version = 3.11.7\n")
    (release / "bin").mkdir()
    for name, version in (("vllm", "0.16.0"), ("flashinfer-python", "0.6.4"), ("flashinfer-cubin", "0.6.3")):
        distribution(library, name, version)
    (root / "current").symlink_to(release)
    made = ServiceRecord(name="a", root=str(root), model_path=str(root), served_model_name="m", base_url="http://127.0.0.1:9")
    (node.paths.announced / "a.json").write_text(json.dumps(made.as_dict()))
    return made
