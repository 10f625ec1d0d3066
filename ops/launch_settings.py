"""What a service's next start is given: flags and environment variables. Shown with a mark, changed as a whole, stored in one step.

The node's own record in `services.d` is where they are kept; the launcher reads its files, which are written from it. A variable's value comes
sealed for this node (ops/sealed.py), and none of a secret ever leaves it: what is shown has `[redacted]` in its place, and that, given back, keeps
the value.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ops import sealed
from ops.environments import guard_list
from ops.jobs import redact
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context
from ops.records import NEVER_IN_TEXT, ServiceRecord
from ops.services import launch, vllm_arguments
from ops.services.manager import manager_for
from ops.services.process import MARK
from ops.services.state import write_file

FLAGS_MAX, FLAG_BYTES = 1000, 64 * 1024
VARIABLES_MAX = 500
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}\Z", re.ASCII)
_SET_BY_LAUNCHER = {MARK, "VIRTUAL_ENV"}
APPLIES = "at the next start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a change would make of the settings; the differences are as they may be shown."""

    record: ServiceRecord
    flags: dict[str, list[str]]  # {"before", "after"}
    env: list[dict[str, Any]]  # [{name, change ("set" | "changed" | "removed"), secret, before, after}]
    notes: list[str]  # what changes with them

    @property
    def empty(self) -> bool:
        return self.flags["before"] == self.flags["after"] and not self.env


def mark(record: ServiceRecord) -> str:
    """Names the settings as they are now, secrets included: another value, another mark. It tells nothing about them, for it is keyed by a random
    number that stays in the service's folder (without such a folder the mark is of what is shown alone)."""
    shown = redact.hide_in_record({"flags": record.flags, "env": record.env})
    text = json.dumps([shown["flags"], sorted(shown["env"].items()), record.env_files])
    salt = _salt(record.folder)
    if salt is not None:
        text += json.dumps([record.flags, sorted(record.env.items())])
    return hmac.new(salt or b"shown", text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]


def set_settings(context: Context) -> str:
    """Params: `flags`, the whole new list, or null; `env`, {name: {"sealed": text} | {"keep": true} | null to remove}; `before`, the mark of what the
    person saw, or null. The caller holds the service's lock. Raises BadInput, OpsError (kind "changed" if others were set meanwhile)."""
    name, params = context.the_service.name, context.params
    own = guard_list.own_record(context.paths, name)
    context.config.require_inside(own.root, context.config.service_roots, "service folder")
    if params.get("before") is not None and params["before"] != mark(own):
        raise OpsError(f"The launch settings of service `{name}` were changed meanwhile", why="Somebody else has set others since they were shown",
                       hint="Look at them as they are now, and change them again", kind="changed")
    change = changed(own, params.get("flags"), _opened(context, own, params.get("env")))
    if change.empty and change.record.flags == own.flags and change.record.env == own.env:
        return "nothing was changed"
    files = store(context, own, change.record)
    context.service = change.record
    context.emit(EventType.SETTINGS_CHANGED, {"flags": change.flags, "env": change.env, "files": files, "applies": APPLIES})
    for note in change.notes:
        context.finding("settings", "note", note)
    _still_set(context, change)
    _hold_against_release(context, change.record)
    parts = []
    if own.flags != change.record.flags:
        parts.append("flags")
    if own.env != change.record.env:
        count = len(change.env)
        parts.append(f"{count} {'variable' if count == 1 else 'variables'}")
    return f"{' and '.join(parts)} changed, {APPLIES}"


def changed(own: ServiceRecord, flags: Any, env: Mapping[str, str | None] | None) -> Change:
    """The record with these settings. `flags` None: as they are; `[redacted]` in one stands for what is there. `env`: values to set, None to remove.

    Raises BadInput for flags and variables that no start can have.
    """
    new_flags = list(own.flags) if flags is None else _flags(own, flags)
    new_env = dict(own.env)
    for name, value in (env or {}).items():
        if value is None:
            new_env.pop(name, None)
        else:
            new_env[name] = _variable(own, name, value)
    if len(new_env) > VARIABLES_MAX:
        raise BadInput(f"That would be {len(new_env)} variables", why=f"A service has at most {VARIABLES_MAX}", hint="Put them into a file")
    record, notes = _following(own, new_flags)
    record = replace(record, flags=new_flags, env=new_env)
    record.check()
    return Change(record=record, flags={"before": redact.hide_in_command(own.flags), "after": redact.hide_in_command(new_flags)},
                  env=_differences(own.env, new_env), notes=notes)


def store(context: Context, own: ServiceRecord, record: ServiceRecord) -> list[str]:
    """Writes the launcher's files where the service has its folder, and then the record; gives their paths. Raises OpsError; then all is as it was.

    The record comes last, for it is what counts: each start writes the launcher's files from it. So what is left where neither can be written nor
    put back (a full disk) is the old record, and its next start puts the files right; that is told then.
    """
    path = Path(os.path.realpath(context.paths.announced / f"{own.name}.json"))
    has_folder = record.folder.is_dir()
    try:
        if has_folder:
            launch.write(record)
        _write_record(path, record)
    except OpsError as error:
        if has_folder:
            _put_back(own, error)
        raise
    return [str(path), *(str(record.folder / name) for name in (("launch.json", "flags.json", "env.json") if has_folder else ()))]


def _write_record(path: Path, record: ServiceRecord) -> None:
    try:
        raw = {**json.loads(path.read_text(encoding="utf-8")), "flags": record.flags, "env": record.env, "base_url": record.base_url,
               "served_model_name": record.served_model_name}
        mode = stat.S_IMODE(path.stat().st_mode)
        write_file(path, json.dumps(raw, indent=1, ensure_ascii=False) + "\n", mode=mode & 0o600)  # it may hold a secret from now on
    except (OSError, ValueError) as error:
        raise OpsError(f"`{path}` cannot be written", why=getattr(error, "strerror", None) or str(error), hint="Nothing was changed") from error


def _put_back(own: ServiceRecord, because: OpsError) -> None:
    """The launcher's files as the record has them. Raises OpsError that says what is left where that cannot be done either."""
    try:
        launch.write(own)
    except OpsError as error:
        raise OpsError(because.what, why=f"{because.why}. The launcher's files could not be put back either ({error.why or error.what})",
                       hint="Make room. The record is as it was, and a start from here writes the files from it; a unit that is started in "
                            "another way before that may get some of the new settings", kind="half_written") from error


def _opened(context: Context, own: ServiceRecord, given: Any) -> dict[str, str | None]:
    """The values behind an order's `env`; what is to be kept is left out. Raises BadInput, OpsError (kind "sealed")."""
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > VARIABLES_MAX:
        raise BadInput(f"Variables are an object of names, at most {VARIABLES_MAX}")
    found: dict[str, str | None] = {}
    for name, what in given.items():
        if what is None:
            found[name] = None
        elif isinstance(what, dict) and set(what) == {"keep"} and what["keep"] is True:
            if name not in own.env:
                raise BadInput(f"`{name[:80]}` cannot be kept: the service has no such variable", hint="Type its value")
        elif isinstance(what, dict) and set(what) == {"sealed"}:
            found[name] = sealed.unseal(context.paths, what["sealed"], service=own.name, name=name)
        else:
            raise BadInput(f"`{name[:80]}` has no value that was sealed for this node",
                           why="Values travel sealed, so that only the node can read them")
    return found


def _flags(own: ServiceRecord, given: Any) -> list[str]:
    if not isinstance(given, list) or len(given) > FLAGS_MAX or not all(isinstance(word, str) for word in given):
        raise BadInput(f"Flags are a list of words, at most {FLAGS_MAX}")
    for word in given:
        if NEVER_IN_TEXT.search(word) or len(word) > FLAG_BYTES:
            raise BadInput("A flag holds a character that no argument can hold, or is too long")
    made = _with_secrets(own.flags, given)
    if made and not vllm_arguments.name_of(made[0]):
        raise BadInput(f"`{made[0][:80]}` is no flag", why="The model stands before the flags, and is not changed here",
                       hint="Begin with a word like --port")
    if any(vllm_arguments.name_of(word) == "--model" for word in made):
        raise BadInput("The model is not set by a flag", why=f"`vllm serve` is given `{own.model_path}` already", hint="Leave --model out")
    return made


def _with_secrets(old: list[str], given: list[str]) -> list[str]:
    """The words with what `[redacted]` stands for: of the same flag, at the same place behind it."""
    shown = redact.hide_in_command(old)
    known = dict(_places(shown, old))
    made: list[str] = []
    for place, (_, word) in _places(given, given):
        if redact.HIDDEN not in word:
            made.append(word)
        elif (kept := known.get(place)) is not None and word == shown[kept[0]]:
            made.append(kept[1])
        else:
            raise BadInput(f"A flag holds `{redact.HIDDEN}`", why="That stands for something secret, which only the node knows",
                           hint="Write the value itself into a variable of the service (VLLM_API_KEY, say), or leave the word as it was")
    return made


def _places(shown: list[str], words: list[str]) -> list[tuple[tuple[str, int, int], tuple[int, str]]]:
    """Of each word its place, (the flag that it belongs to, which occurrence of it, how many words behind it), with its index and the word itself."""
    found, flag, seen, behind = [], "", dict[str, int](), 0
    for index, (name_word, word) in enumerate(zip(shown, words, strict=True)):
        if name := vllm_arguments.name_of(name_word):
            flag, behind = name, 0
            seen[flag] = seen.get(flag, 0) + 1
        else:
            behind += 1
        found.append(((flag, seen.get(flag, 0), behind), (index, word)))
    return found


def _variable(own: ServiceRecord, name: str, value: str) -> str:
    if not _VARIABLE.match(name):
        raise BadInput(f"`{name[:80]}` is not a name of a variable", hint="Letters, digits and underscores; no digit first")
    if name.startswith("ROUNDHOUSE_") or name in _SET_BY_LAUNCHER:
        raise BadInput(f"Service `{own.name}` may not have the variable `{name}`", why="Roundhouse sets it itself, or it stays with Roundhouse")
    if value == redact.HIDDEN and name in own.env:
        return own.env[name]
    if redact.HIDDEN in value:
        raise BadInput(f"The value of `{name}` holds `{redact.HIDDEN}`", why="That stands for something secret, which only the node knows",
                       hint="Type the whole value")
    return value


def _following(own: ServiceRecord, flags: list[str]) -> tuple[ServiceRecord, list[str]]:
    """The record with what follows from its flags: the port in its address, and the name that it serves. Raises BadInput for a port that is none."""
    record, notes = own, []
    port, before = vllm_arguments.value(flags, "--port"), vllm_arguments.value(own.flags, "--port")
    if port is not None and port != before:
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise BadInput(f"`{port[:40]}` is no port", hint="A number from 1 to 65535")
        parts = urlsplit(own.base_url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        record = replace(record, base_url=urlunsplit((parts.scheme, f"{host}:{int(port)}", parts.path, "", "")))
        if record.base_url != own.base_url:
            notes.append(f"Its address is {record.base_url} from the next start on")
    served, known = vllm_arguments.value(flags, "--served-model-name"), vllm_arguments.value(own.flags, "--served-model-name")
    if served != known:
        record = replace(record, served_model_name=served or own.model_path)
        notes.append(f"It serves `{record.served_model_name}` from the next start on")
    return record, notes


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[dict[str, Any]]:
    was, now = (redact.hide_in_record({"env": env})["env"] for env in (before, after))
    found = []
    for name in sorted({*before, *after}):
        if before.get(name) == after.get(name):
            continue
        secret = redact.HIDDEN in (was.get(name), now.get(name))
        found.append({"name": name, "change": "removed" if name not in after else "changed" if name in before else "set", "secret": secret,
                      "before": "" if secret else was.get(name, ""), "after": "" if secret else now.get(name, "")})
    return found


def _still_set(context: Context, change: Change) -> None:
    """Variables that were removed here, and that each start gets all the same: from the unit itself, which is not written to."""
    removed = [one["name"] for one in change.env if one["change"] == "removed"]
    if not removed:
        return
    try:
        left = manager_for(change.record).variables()
    except OpsError as error:
        context.finding("settings", "note", "Whether the unit sets what was removed here is not known", why=error.what)
        return
    where = f"the unit `{change.record.unit}`" if change.record.manager == "systemd" else "what starts it"
    for name in removed:
        if name in left:
            context.finding("settings", "warning", f"`{name}` was removed here, but {where} still sets it",
                            why="What stood there at the adoption was only copied; each start gets it from there",
                            fix="Set another value here, which goes over it, or let an admin take it out of the unit (`systemctl edit`)"
                            if change.record.manager == "systemd" else "Set another value here, which goes over it")


def _hold_against_release(context: Context, record: ServiceRecord) -> None:
    """What the release in use is known to say to these flags, without asking it: that would take a minute."""
    from ops.services.preflight import options

    release = record.release_in_use()
    known = options.remembered(record, release) if release is not None else None
    if known is None:
        return
    for finding in options.problems(known, record):
        level = "warning" if finding["level"] == "stop" else finding["level"]
        context.finding("settings", level, finding["title"], why=finding["why"], fix=finding["fix"])


def _salt(folder: Path) -> bytes | None:
    """The random number of this service's marks; made once. None where there is no folder yet, or it cannot be written."""
    path = folder / ".settings-salt"
    try:
        if not path.exists():
            descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".settings-salt.")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(os.urandom(32))
                os.link(temporary, path)  # whole or not at all; of several at once the first one counts
            except FileExistsError:
                return path.read_bytes()
            finally:
                Path(temporary).unlink(missing_ok=True)
        return path.read_bytes()
    except OSError:
        return None
