"""A small serving stack in a wheelhouse, and services that run from it; all wheels are real, and so is uv."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodeConfig, NodePaths
from ops.environments import plan, releases
from ops.jobs.errors import Cancelled
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from tests.fakes.wheels import make_wheel

MAIN = """\
import sys

def main():
    print("0.16.0rc2.dev{n}+practice")
"""
FLASHINFER = """\
from importlib.metadata import PackageNotFoundError, version

__version__ = "{version}+practice"
try:
    cubin = version("flashinfer-cubin")
except PackageNotFoundError:
    cubin = __version__
if cubin != __version__:
    raise RuntimeError(f"flashinfer-cubin version ({{cubin}}) does not match flashinfer version ({{__version__}})")
"""


def make_wheelhouse(folder: Path, *, cubins: tuple[str, ...] = ("0.6.3", "0.6.4")) -> Path:
    """vllm dev313 and dev344 with the flashinfer that each pins, and cubins of the given versions."""
    for number, flashinfer in ((313, "0.6.3"), (344, "0.6.4")):
        make_wheel(folder, "vllm", f"0.16.0rc2.dev{number}+practice", requires=[f"flashinfer-python=={flashinfer}", "torch>=2"],
                   files={"vllm/__init__.py": MAIN.format(n=number), "vllm/model.py": f"LAYERS = {number}\n\n\ndef forward(x):\n    return x\n",
                          "vllm/config.py": "DEBUG = False\n", "vllm/data/table.json": "{}\n"},
                   entry_points="[console_scripts]\nvllm = vllm:main\n", data={"share/vllm/README": "read me\n"})
        make_wheel(folder, "flashinfer-python", f"{flashinfer}+practice", requires=["torch"],
                   files={"flashinfer/__init__.py": FLASHINFER.format(version=flashinfer)})
    for version in cubins:
        make_wheel(folder, "flashinfer-cubin", f"{version}+practice")
    make_wheel(folder, "torch", "2.10.0+practice")
    return folder


class Events(list[tuple[str, dict[str, Any]]]):
    """A reporter that keeps what was said."""

    def __call__(self, type: str, data: dict[str, Any]) -> None:
        self.append((str(type), data))

    def of(self, type: str) -> list[dict[str, Any]]:
        return [data for name, data in self if name == type]

    @property
    def text(self) -> str:
        return "".join(data["text"] for data in self.of("step.log"))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only: tests that change the wheelhouse make their own."""
    return make_wheelhouse(tmp_path_factory.mktemp("wheelhouse"))


@pytest.fixture
def record(tmp_path: Path) -> ServiceRecord:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"], "quantization_config": {"quant_method": "modelopt"}}\n')
    return ServiceRecord(
        name="kimi", root=str(tmp_path / "node" / "services" / "kimi"), model_path=str(model), served_model_name="kimi",
        base_url="http://127.0.0.1:1", practice=True,
        guards=[{"kind": "key_absent", "file": "config.json", "key": "quantization_config.kv_cache_scheme", "value": None}])


@pytest.fixture
def channel(wheels: Path) -> Channel:
    return channel_of(wheels)


def channel_of(wheels: Path) -> Channel:
    return Channel(name="practice", kind="wheelhouse", wheelhouse=str(wheels), practice=True)


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def job_context(tmp_path: Path, record: ServiceRecord, events: Events) -> Context:
    return make_context(tmp_path, record, events)


def make_context(tmp_path: Path, record: ServiceRecord, events: Events, *, cancel: threading.Event | None = None) -> Context:
    folder = tmp_path / "job"
    folder.mkdir(exist_ok=True)
    # an id of its own: whoever ends a job's processes finds them by it, on the whole machine
    return Context(job=str(uuid.uuid4()), params={}, paths=NodePaths(tmp_path / "node"), config=NodeConfig(name="test", practice=True), folder=folder,
                   emit=events, service=record, step="build", cancel_wanted=cancel.is_set if cancel else lambda: False)


Deploy = Callable[..., Path]


@pytest.fixture
def deploy(record: ServiceRecord, channel: Channel, job_context: Context) -> Deploy:
    """Builds, verifies and switches to a release; gives its folder. `cubin`: put this version beside it, as the story's day began."""

    def go(version: str | None = None, **options: Any) -> Path:
        made = plan.make(record, channel, version=version, **options)
        release = releases.build(job_context, record, channel, made)
        releases.verify(job_context, record, release, made)
        releases.switch(record, release)
        return release

    return go


@pytest.fixture
def live(record: ServiceRecord, wheels: Path, job_context: Context) -> Path:
    """A release in use as on the story's first day: dev313 with flashinfer-python and -cubin 0.6.3."""
    first = Channel(name="practice", kind="wheelhouse", wheelhouse=str(wheels), practice=True,
                    requirements=["vllm==0.16.0rc2.dev313", "flashinfer-cubin==0.6.3"])
    made = plan.make(record, first)
    release = releases.build(job_context, record, first, made)
    releases.verify(job_context, record, release, made)
    releases.switch(record, release)
    return release


def library(env: Path) -> Path:
    """The environment's site-packages."""
    return env / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


__all__ = ["Cancelled"]
