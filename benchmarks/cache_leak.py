"""Which commands give back a clean file after an edit in site-packages, and does a redeploy of ours? Shown on the real uv, in seconds.

    python -m benchmarks.cache_leak

Everything is its own: a small index on loopback, uv's cache, the environments, a node with one service. Nothing of yours is touched. It prints
the table of docs/guides/clean-builds.md; exit code 1 where a release of Roundhouse's was not clean.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from ops.environments import integrity
from ops.records import Channel
from tests.fakes.package_index import package_index
from tests.fakes.real_node import RealNode, Told, real_node
from tests.fakes.small_vllm import make_small_vllm
from tests.fakes.uv_cache_leak import CASES, EDIT, PACKAGE, Case, Trap, make_wheels


def by_hand(root: Path, wheels: Path) -> list[tuple[Case, list[bool]]]:
    """Each case with whether the edit was still there, against an index that answers 304 and one that sends the file again."""
    found: list[tuple[Case, list[bool]]] = [(case, []) for case in CASES]
    for answers_304 in (True, False):
        with package_index(wheels, answers_304=answers_304) as index:
            trap = Trap(root / f"by-hand-{answers_304}", index)
            trap.first_day()
            if trap.file().stat().st_nlink == 1:
                raise SystemExit(f"uv {trap.version} copies or clones on the file system of {root}: there is no trap to show")
            for case, survived in found:
                trap.first_day(*case.build)
                case.act(trap)
                survived.append(trap.edited(case.look))
    return found


def by_redeploy(root: Path, wheels: Path, *, live_is_edited: bool) -> tuple[Told, bool]:
    """A redeploy on a node whose own cache holds the edit; how it ended, and whether the release in use is clean afterwards."""
    with package_index(wheels) as index, real_node(root, index_urls=[index.url]) as node:
        adopted(node, Trap(root / "person", index, cache=node.cache), live_is_edited=live_is_edited)
        told = node.run("redeploy", Channel(name="demo", kind="index", index_url=index.url), sweep=False, smoke=False, purge=False)
        changed = node.current.name != "adopted"
        file = next(node.current.glob(f"lib/python*/site-packages/{PACKAGE}/layer.py"))
        return told, changed and EDIT not in file.read_text() and integrity.check(node.current).clean


def adopted(node: RealNode, trap: Trap, *, live_is_edited: bool = True, spec: tuple[str, ...] = ("vllm==1.0",)) -> None:
    """Makes the service's environment as a person does, with the node's cache, and an edit in it, or in another environment of that cache."""
    env = trap.make()
    trap.install(*([] if live_is_edited else ["--link-mode", "copy"]), spec=spec)
    if not live_is_edited:
        trap.make("colleague")
        trap.install(env="colleague")
    trap.edit("env" if live_is_edited else "colleague")
    node.adopt(env)
    node.start()


def main() -> None:
    root = Path(tempfile.mkdtemp(prefix="rh-leak-"))
    try:
        wheels = make_wheels(root / "wheels")
        make_small_vllm(wheels, "1.0", requires=[f"{PACKAGE}==1.0", "bystander"])
        with package_index(wheels) as index:
            version = Trap(root / "v", index).version
        print(f"uv {version}, after an edit in an installed file of a {PACKAGE} 1.0 that uv linked from its cache\n")
        print("| what is done about it | index answers 304 | index sends the file again |\n| --- | --- | --- |")
        for case, survived in by_hand(root, wheels):
            print(f"| {case.words} | {' | '.join('**the edit is back**' if one else 'clean' for one in survived)} |")
        print("\nA redeploy by Roundhouse, from a cache that holds the edit:\n")
        failed = False
        for number, (live, words) in enumerate(((True, "the service's environment was edited"), (False, "another one of that cache was edited"))):
            told, clean = by_redeploy(root / f"n{number}", wheels, live_is_edited=live)
            failed |= not clean
            print(f"- {words}: {told.outcome.state}, {'every file of the new release is as its wheel has it' if clean else 'NOT CLEAN'}")
            for line in told.log.splitlines():
                if line.startswith("Dropped from uv's cache"):
                    print(f"    log: {line}")
            for finding in told.findings:
                if PACKAGE in str(finding):
                    print(f"    {finding['level']}: {finding['title']}")
        sys.exit(1 if failed else 0)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
