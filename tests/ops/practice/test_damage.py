"""An edit that lies in uv's cache on the practice node, and what the next install makes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import uv

from ops.agent.config import NodePaths
from ops.environments import integrity, packages, plan
from ops.practice import box, damage, hand_patches


def test_the_edits_are_in_whatever_is_built_from_that_cache_next(tmp_path: Path) -> None:
    root = tmp_path / "box"
    record = box.set_up(NodePaths(tmp_path / "node"), root, port=18998)
    edited = damage.damage_cache(record, root)
    assert edited == list(hand_patches.PATCHES)
    cache = plan.default_uv(record).cache
    assert not list(cache.parent.glob("colleague-*"))

    env = tmp_path / "env"
    install = ["--reinstall", "--link-mode", "copy", "--offline", "--no-index", "--no-deps", "--find-links", box.channel(root).wheelhouse]
    for arguments in (["venv", "--python", sys.executable, env],
                      ["pip", "install", "--python", env / "bin" / "python", *install, f"vllm=={damage.VERSION}+practice"]):
        subprocess.run([uv.find_uv_bin(), "--no-config", "--cache-dir", cache, *arguments], check=True, capture_output=True, timeout=60)
    library = packages.site_packages(env)[0].relative_to(env)
    assert [finding.path for finding in integrity.check(env).changed] == sorted(str(library / path) for path in edited)
