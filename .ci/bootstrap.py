"""Makes the virtual environment that everything else runs in, from the pinned requirements. Standard library only.

    python3 .ci/bootstrap.py --venv .venv            what the console needs
    python3 .ci/bootstrap.py --venv .venv --tests    what tests, lint and type checks need too, Chromium and a C compiler among them

pip installs uv, held to the hash in requirements.txt; uv installs the rest, held to the hashes too. A stamp in the environment says what
it holds, so a second run takes no time. Whatever went wrong earlier (killed half way, made by a Python that is gone) is made again.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def give_up(sentence: str) -> None:
    say(sentence)
    sys.exit(1)


def run(argv: list[str | os.PathLike[str]], what: str) -> None:
    """Runs a program quietly; on failure shows the end of what it said."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        say("\n".join(done.stdout.splitlines()[-15:]))
        give_up(f"{what} failed with exit code {done.returncode}; the lines above are the end of what it said.")


def works(python: Path) -> bool:
    """Whether this environment has a Python that is new enough, and uv."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for argv in ([python, "-c", check], [python.parent / "uv", "--version"]):
        try:
            if subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True).returncode != 0:
                return False
        except OSError:
            return False
    return True


def uv_requirement() -> str:
    """uv's own lines of requirements.txt, with hashes."""
    lines = (HERE / "requirements.txt").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("uv=="))
    end = next((number for number in range(start + 1, len(lines)) if not lines[number].startswith(" ")), len(lines))
    return "\n".join(line for line in lines[start:end] if not line.strip().startswith("#")).rstrip("\\ ") + "\n"


def make_venv(venv: Path) -> None:
    say(f"Making {venv} with Python {platform.python_version()} ({sys.executable})")
    if venv.exists():
        if not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
            give_up(f"`{venv}` is there but is no virtual environment; move it away, or choose another place with VENV=.")
        shutil.rmtree(venv)
    run([sys.executable, "-m", "venv", venv], "Making the virtual environment")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(uv_requirement())
        file.flush()
        run([venv / "bin/python", "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "-r", file.name], "Installing uv")


def install(venv: Path, name: str) -> None:
    """Installs one requirements file unless the stamp says that it is there."""
    stamp = venv / f"installed-{name}"
    digest = hashlib.sha256((HERE / name).read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text().strip() == digest:
        return
    began = time.monotonic()
    say(f"Installing {name} (pinned, with hashes)")
    stamp.unlink(missing_ok=True)
    run([venv / "bin/uv", "pip", "install", "--python", venv / "bin/python", "--require-hashes", "-r", HERE / name], f"Installing {name}")
    stamp.write_text(digest + "\n")
    if name == "requirements-dev.txt":  # it holds all of the other one too: tests/test_requirements.py
        (venv / "installed-requirements.txt").write_text(hashlib.sha256((HERE / "requirements.txt").read_bytes()).hexdigest() + "\n")
    say(f"Installed in {time.monotonic() - began:.1f} s")


def need_program(names: tuple[str, ...], packages: list[str], why: str) -> None:
    """A system program that tests need: installed by apt-get as root, else asked for in one sentence."""
    if any(shutil.which(name) for name in names):
        return
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", *packages]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        give_up(f"{why} need `{names[0]}`, not on PATH; install it (Debian: `sudo apt-get install {' '.join(packages)}`) and run this again.")
    say(f"Installing {' '.join(packages)} with apt-get")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    run(["apt-get", "-o", "DPkg::Lock::Timeout=300", "update"], "apt-get update")
    run([*apt], f"Installing {' '.join(packages)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=HERE / ".venv")
    parser.add_argument("--tests", action="store_true")
    arguments = parser.parse_args()
    venv: Path = arguments.venv if arguments.venv.is_absolute() else HERE / arguments.venv

    wanted = ["requirements-dev.txt"] if arguments.tests else ["requirements.txt"]
    if not (works(venv / "bin/python") and all((venv / f"installed-{name}").exists() for name in wanted)):
        try:  # before anything is half made
            venv.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=venv.parent).close()
        except OSError as error:
            give_up(f"`{venv.parent}` cannot be written to ({error.strerror}); copy Roundhouse to a folder of yours, or choose a place with VENV=.")
    descriptor = os.open(venv.parent, os.O_RDONLY)  # a folder can be locked without leaving a lock file behind
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if not works(venv / "bin/python"):
        make_venv(venv)
    for name in wanted:
        install(venv, name)
    if arguments.tests:
        need_program(("gcc",), ["gcc", "libc6-dev"], "Tests compile a stand-in for the GPU driver's library: they")
        need_program(CHROMIUM, ["chromium", "fonts-dejavu-core"], "Browser tests")


if __name__ == "__main__":
    main()
