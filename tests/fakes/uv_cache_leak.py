"""The trap of uv's hard links, on the real uv with a cache of its own: an edit in an installed file is an edit in uv's cache.

`Trap` is a person's machine: an index, a cache, an environment made by plain `uv venv` and `uv pip install`. `CASES` are what people do
to be rid of an edit, in the order in which they tend to try it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uv as uv_package

from tests.fakes.package_index import Index
from tests.fakes.wheels import make_wheel

PACKAGE = "leakdemo"
EDIT = "LEFTOVER = True  # debug, remove me\n"


def make_wheels(folder: Path) -> Path:
    """Two versions of one small package, and a second package that nobody edits."""
    for version in ("1.0", "2.0"):
        make_wheel(folder, PACKAGE, version, files={f"{PACKAGE}/__init__.py": f'VERSION = "{version}"\n', f"{PACKAGE}/layer.py": "SCALE = 1\n"})
    make_wheel(folder, "bystander", "1.0")
    return folder


class Trap:
    """`root` is a new folder for environments and cache; `cache` one that is shared with somebody, if it is not `root/cache`."""

    def __init__(self, root: Path, index: Index, *, cache: Path | None = None) -> None:
        self.root, self.index, self.cache = root, index, cache or root / "cache"
        self.requirements = root / "hashes.txt"
        root.mkdir(parents=True, exist_ok=True)
        wheel = index.wheels / f"{PACKAGE}-1.0-py3-none-any.whl"
        self.requirements.write_text(f"{PACKAGE}==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")

    def uv(self, *arguments: str | Path) -> str:
        """Runs uv as a person does, but for the cache; gives what it said. Raises where it fails."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_", "VIRTUAL_ENV"))}
        done = subprocess.run([uv_package.find_uv_bin(), *map(str, arguments)], env={**env, "UV_CACHE_DIR": str(self.cache), "UV_NO_CONFIG": "1"},
                              cwd=self.root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"uv {' '.join(map(str, arguments))}: {done.stderr}"
        return done.stdout + done.stderr

    @property
    def version(self) -> str:
        return self.uv("--version").split()[1]

    def make(self, env: str = "env") -> Path:
        """A new environment in place of any that was there."""
        self.uv("venv", "--clear", "--python", sys.executable, env)
        return self.root / env

    def install(self, *arguments: str | Path, env: str = "env", spec: tuple[str, ...] = (f"{PACKAGE}==1.0", "bystander")) -> None:
        self.uv("pip", "install", "--default-index", self.index.url, "--python", self.root / env / "bin" / "python", *arguments, *spec)

    def file(self, env: str = "env") -> Path:
        """The file that is edited."""
        return next((self.root / env).glob(f"lib/python*/site-packages/{PACKAGE}/layer.py"))

    def edit(self, env: str = "env") -> Path:
        """As vim, nano, `>>` and Python's open() do it: the same inode."""
        path = self.file(env)
        with path.open("a") as file:
            file.write(EDIT)
        return path

    def edited(self, env: str = "env") -> bool:
        return EDIT in self.file(env).read_text()

    def first_day(self, *arguments: str) -> None:
        """An empty cache, and an environment with an edit in it."""
        shutil.rmtree(self.cache, ignore_errors=True)
        self.make()
        self.install(*arguments)
        self.edit()


@dataclass(frozen=True)
class Case:
    """What somebody does about an edit, and whether it is gone afterwards."""

    words: str
    act: Callable[[Trap], object]
    clean: bool
    build: tuple[str, ...] = ()  # arguments of the first install
    look: str = "env"  # the environment to look at afterwards


def _uninstall(trap: Trap) -> None:
    trap.uv("pip", "uninstall", "--python", trap.root / "env" / "bin" / "python", PACKAGE)
    trap.install()


def _other_version_and_back(trap: Trap) -> None:
    trap.install(spec=(f"{PACKAGE}==2.0",))
    assert not trap.edited()  # the other version's own files
    trap.install()


def _new_environment(trap: Trap) -> None:
    shutil.rmtree(trap.root / "env")
    trap.make()
    trap.install()


def _another_environment(trap: Trap) -> None:
    trap.make("other")
    trap.install(env="other")


def _prune(trap: Trap) -> None:
    trap.uv("cache", "prune")
    trap.install("--reinstall")


def _clean(trap: Trap) -> None:
    trap.uv("cache", "clean", PACKAGE)
    trap.install("--reinstall")


CASES = [
    Case("`uv pip install --force-reinstall`", lambda trap: trap.install("--force-reinstall"), clean=False),
    Case("`--reinstall --refresh`", lambda trap: trap.install("--reinstall", "--refresh"), clean=False),
    Case("`--reinstall --link-mode copy`", lambda trap: trap.install("--reinstall", "--link-mode", "copy"), clean=False),
    Case("`--reinstall --require-hashes`, with the wheel's right hash",
         lambda trap: trap.install("--reinstall", "--require-hashes", "--no-deps", spec=("-r", str(trap.requirements))), clean=False),
    Case("uninstall, then install", _uninstall, clean=False),
    Case("another version, and back (a rollback)", _other_version_and_back, clean=False),
    Case("delete the environment, make it anew", _new_environment, clean=False),
    Case("a second environment, never edited by anybody", _another_environment, clean=False, look="other"),
    Case("`uv cache prune`, then `--reinstall`", _prune, clean=False),
    Case("`--reinstall --no-cache`", lambda trap: trap.install("--reinstall", "--no-cache"), clean=True),
    Case("`--reinstall --cache-dir OTHER`", lambda trap: trap.install("--reinstall", "--cache-dir", trap.root / "another-cache"), clean=True),
    Case("`uv cache clean PACKAGE`, then `--reinstall`", _clean, clean=True),
    Case("first installed with `--link-mode copy`; then `--force-reinstall`", lambda trap: trap.install("--force-reinstall"), clean=True,
         build=("--link-mode", "copy")),
]
