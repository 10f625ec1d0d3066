"""The launcher of a service: `services/<name>/launch`, and the files that it reads.

`launch` is what the process manager (or a systemd unit's ExecStart) runs. It is written once; jobs change only what it reads:

    current       link to the release in use
    launch.json   the model path and the flags, as JSON: nothing passes a shell, so nothing has to be quoted
    flags.json    only the flags, as a list, for people and for the fingerprint
    env.json      environment variables, mode 0600

Variables out of files (`record.env_files`, the EnvironmentFile= of an adopted unit) are read at each start, and override env.json as systemd
does: what is secret stays in those files, and a change of them counts from the next start on.

`former-secrets.json` (mode 0600) keeps secrets that these files held before: a run that goes on, and the logs of earlier ones, still hold them.

It needs sh to find itself, and the release's own interpreter for the rest. `record.json` beside it is the record that they came from.
"""

from __future__ import annotations

import json
from pathlib import Path

from ops.jobs import redact
from ops.jobs.errors import BadInput, OpsError
from ops.records import ServiceRecord
from ops.services import env_files
from ops.services.state import read_json, write_file

FORMER_MAX = 100  # secrets of earlier settings that are kept from pages and journals

LAUNCH = """\
#!/bin/sh
# Written by Roundhouse. Runs `vllm serve` of the release that `current` points at, with launch.json and env.json.
# The link is followed once, here: a switch while it starts cannot mix two releases.
folder=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd -P) || exit 127
release=$(readlink -f -- "$folder/current") || { echo "launch: $folder/current points nowhere" >&2; exit 127; }
[ -x "$release/bin/python" ] || { echo "launch: $release has no bin/python: the release is not whole" >&2; exit 127; }
exec "$release/bin/python" -I "$folder/launch.py" "$release"
"""

_BECOME = """\


# ---- the launcher ----

import json
import sys

release = sys.argv[1]
folder = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(folder, "launch.json"), encoding="utf-8") as file:
    settings = json.load(file)
with open(os.path.join(folder, "env.json"), encoding="utf-8") as file:
    given = json.load(file)
environment = {**os.environ, **given}
overlay(environment, settings["env_files"])
# ninja and other tools lie in the environment's bin, which a unit does not have on its PATH by itself.
environment["PATH"] = os.pathsep.join([os.path.join(release, "bin"), environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")])
environment["VIRTUAL_ENV"] = release
# Processes of vLLM write a title over their arguments; without this also over their environment, and with it over the mark
# by which a service's processes are found.
environment.setdefault("SPT_NOENV", "1")
program = os.path.join(release, "bin", "vllm")
arguments = [program, "serve", settings["model"], *settings["flags"]]
sys.stdout.flush()
os.execve(program, arguments, environment)
"""
# One reader of environment files, here and in the launcher, which cannot import ours: it runs in the release's own interpreter
LAUNCHER = ("# Written by Roundhouse: becomes `vllm serve MODEL FLAGS...` of the release given as the only argument.\n"
            + Path(env_files.__file__).read_text(encoding="utf-8") + _BECOME)


def launch_path(record: ServiceRecord) -> Path:
    return record.folder / "launch"


def write(record: ServiceRecord) -> Path:
    """Writes the launcher and its files, each in one step, only where the content differs; gives the launcher's path.

    Raises BadInput for flags or variables that no process can have (a NUL, a variable of Roundhouse), OpsError if the folder cannot be written.
    """
    _check(record)
    texts = {
        "launch": (LAUNCH, 0o755),
        "launch.py": (LAUNCHER, 0o644),
        "launch.json": (_json({"model": record.model_path, "flags": record.flags, "env_files": record.env_files}), 0o600),
        "flags.json": (_json(record.flags), 0o600),
        "env.json": (_json(record.env), 0o600),
        "record.json": (_json(record.as_dict()), 0o600),
    }
    try:
        record.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (record.folder / "logs").mkdir(mode=0o700, exist_ok=True)
        _keep_former(record)
        for name, (content, mode) in texts.items():
            path = record.folder / name
            if not _holds(path, content, mode):
                write_file(path, content, mode=mode)
    except OSError as error:
        raise OpsError(f"The launcher of service `{record.name}` cannot be written in `{record.root}`", why=str(error)) from error
    return launch_path(record)


def variables(record: ServiceRecord) -> dict[str, str]:
    """The service's variables as its launcher sets them: `record.env`, and over it what its environment files hold now.

    A file that this process may not read, or that is gone, is left out: whoever asks wants to know a value, not to start the service.
    """
    found = dict(record.env)
    for path in record.env_files:
        try:
            found.update(env_files.read(path))
        except (OSError, ValueError):
            continue
    return found


def secrets(record: ServiceRecord) -> list[str]:
    """The secret values that its server may write into its log, or wrote into an earlier one: of its flags, its variables, what its environment
    files hold now, and of settings that it had before."""
    return [*redact.record_secrets({**record.as_dict(), "env": variables(record)}), *_former(record)]


def _former(record: ServiceRecord) -> list[str]:
    """Oldest first. Empty where the file cannot be read: what is known is hidden all the same."""
    try:
        kept = (read_json(record.folder / "former-secrets.json") or {}).get("secrets")
    except OpsError:
        return []
    return [one for one in kept if isinstance(one, str) and one] if isinstance(kept, list) else []


def _keep_former(record: ServiceRecord) -> None:
    """Adds to the former secrets what the files hold and the record does not, before they are replaced. Raises OSError."""
    try:
        settings, env = (read_json(record.folder / name) or {} for name in ("launch.json", "env.json"))
        held = redact.record_secrets({"flags": settings.get("flags"), "env": env})
    except (OpsError, AttributeError, TypeError):
        return  # a file that somebody has spoilt: nothing can be read out of it
    known = _former(record)
    new = [secret for secret in held if secret not in redact.record_secrets(record.as_dict()) and secret not in known]
    if new:
        write_file(record.folder / "former-secrets.json", _json({"secrets": [*known, *new][-FORMER_MAX:]}))


def _json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _holds(path: Path, content: str, mode: int) -> bool:
    try:
        return path.read_text(encoding="utf-8") == content and path.stat().st_mode & 0o777 == mode
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _check(record: ServiceRecord) -> None:
    for flag in [record.model_path, *record.flags]:
        if not isinstance(flag, str) or "\0" in flag:
            raise BadInput(f"A flag of service `{record.name}` is not text: {flag!r}"[:300])
    for name, value in record.env.items():
        if not isinstance(value, str) or not name or "=" in name or "\0" in name or "\0" in value:
            raise BadInput(f"`{name[:80]}` of service `{record.name}` is not an environment variable")
        if name.startswith("ROUNDHOUSE_"):
            raise BadInput(f"Service `{record.name}` may not have the variable `{name}`", why="Variables of Roundhouse itself stay with Roundhouse")
