"""Damages the practice node's uv cache, as people do it without knowing: an edit in an environment that was linked from it.

    ROUNDHOUSE_STATE=var/practice python -m ops.practice.damage

uv hard-links what it installs to its cache, so an edit in one environment is an edit in the cache, and in whatever is built from it next. Roundhouse
copies; but a colleague who runs uv with the same cache does not. This makes such an environment, types the debug patches into it, and takes
it away again: the edits stay in the cache. The next redeploy finds them, cleans the cache of that one package, and says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import uv as uv_package

from ops.agent.config import NodeConfig, NodePaths
from ops.environments import packages
from ops.environments.plan import default_uv
from ops.environments.uv import Uv
from ops.jobs import commands
from ops.jobs.errors import BadInput, OpsError
from ops.practice import box, hand_patches
from ops.records import ServiceRecord

VERSION = "0.16.0rc2.dev344"  # what the first redeploy of the box installs
INSTALL_S = 120


def damage_cache(record: ServiceRecord, root: Path, *, version: str = VERSION) -> list[str]:
    """Leaves the debug patches in uv's cache, in vLLM of that version; gives the paths of the edited files below site-packages.

    `record` is the box's service, `root` its folder. Raises OpsError if uv fails, or if it copied: then an edit does not reach the cache.
    """
    cache = default_uv(record).cache
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="colleague-", dir=cache.parent) as folder:
        environment = Path(folder, "env")
        Uv(cache=cache).venv(environment, python=sys.executable)
        argv = [uv_package.find_uv_bin(), "--no-config", "--no-progress", "--cache-dir", str(cache), "pip", "install", "--python",
                str(environment / "bin" / "python"), "--link-mode", "hardlink", "--no-build", "--offline", "--no-index", "--no-deps",
                "--find-links", box.channel(root).wheelhouse, "--", f"vllm=={version}+practice"]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              env=commands.clean_environment(), timeout=INSTALL_S)
        if done.returncode != 0:
            raise OpsError("uv could not install the practice vLLM", why=done.stdout[-2000:])
        library = packages.site_packages(environment)[0]
        edited = hand_patches.apply(library)
        if any(path.stat().st_nlink == 1 for path in edited):
            raise OpsError("An edit does not reach uv's cache here", why=f"uv could not hard-link from `{cache}`")
        return [str(path.relative_to(library)) for path in edited]


def main() -> None:
    paths = NodePaths.default()
    config = NodeConfig.load(paths.node_toml)
    if not config.practice:
        raise BadInput(f"Node `{config.name}` is no practice node", hint="ROUNDHOUSE_STATE=var/practice, where `make demo` was started")
    record = ServiceRecord.from_dict(json.loads((paths.announced / f"{box.SERVICE}.json").read_text(encoding="utf-8")))
    edited = damage_cache(record, Path(config.practice_root))
    sys.stdout.write(f"Edited in {default_uv(record).cache}, as from another environment:\n" + "".join(f"  {path}\n" for path in edited)
                     + f"The next redeploy to {VERSION} builds from it.\n")


if __name__ == "__main__":
    try:
        main()
    except OpsError as error:
        sys.exit(str(error))
