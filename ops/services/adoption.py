"""An existing systemd unit becomes a service of this node, without being changed.

`read` looks at the unit as it is and says what its record would be, with findings (ok, note, warning, stop; why; fix). `apply` stores the
record in `services.d`, makes the adopted release's links and writes the launcher. Neither writes to the unit, to the environment or to the
model folder. The one thing that an admin does once is the drop-in of `Adoption.drop_in`, by `install`: ExecStart= becomes the launcher.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.agent.config import NodeConfig, NodePaths
from ops.jobs import claim, redact
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.records import NAME, ServiceRecord
from ops.services import env_files, launch, start_command, systemctl, unit_files, vllm_arguments
from ops.services.start_command import Server
from ops.services.state import write_file
from ops.services.unit_files import Unit, unit_notes

DROP_IN = "50-roundhouse.conf"
KEPT_FROM_BEFORE = ("guards", "artifact_roots", "target_tok_s", "keep_releases", "keep_bytes", "smoke_tests",
                    "smoke_without")  # what people add to a record after its adoption
# What the launcher sets itself, and what a shell leaves in every environment
_NOT_CARRIED = {"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PS1", "PWD", "OLDPWD", "SHLVL", "_"}
_SECRET_FLAGS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}  # vLLM takes the same from a variable, which no `ps` shows
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z|[A-Za-z0-9][\w.-]*\Z")
_LEVELS = ("stop", "warning", "note", "ok")


@dataclass
class Adoption:
    """What a unit would become. `files` are the unit's own file and its drop-ins; `user` is who its processes run as."""

    record: ServiceRecord
    unit: str
    files: list[Path]
    unit_text: str
    user: str
    findings: list[dict[str, str]] = field(default_factory=list)
    drop_in: str = ""
    drop_in_path: str = ""
    node_toml: list[str] = field(default_factory=list)  # lines to be changed, whole
    before: ServiceRecord | None = None  # the record of the same unit that is stored already

    @property
    def stops(self) -> list[dict[str, str]]:
        """Findings that forbid to adopt it as it is."""
        return [finding for finding in self.findings if finding["level"] == "stop"]

    def as_dict(self) -> dict[str, Any]:
        """As it may be shown: secrets hidden."""
        return {
            "unit": self.unit, "files": [str(path) for path in self.files], "user": self.user, "record": redact.hide_in_record(self.record.as_dict()),
            "findings": self.findings, "drop_in": {"path": self.drop_in_path, "text": self.drop_in}, "node_toml": self.node_toml,
            "adopted_before": self.before is not None,
        }


def read(unit: str, *, unit_path: Sequence[Path | str] | None = None, systemctl: Sequence[str] | None = None, user: bool = False,
         paths: NodePaths | None = None, name: str = "", environment: str = "", in_place: bool = False, manager: str = "systemd") -> Adoption:
    """What the unit would become. `unit` is a name, or the path of a unit file; `unit_path` and `systemctl` as for unit_files.read.

    `name`, `environment`, `in_place`, `manager` go over what the unit says. Raises BadInput for a unit that is not there or starts no vLLM
    server on this host; all else is a finding.
    """
    node = paths or NodePaths.default()
    if "/" in unit:
        unit_path, unit = [Path(unit).resolve().parent], Path(unit).name
    found = unit_files.read(unit, path=unit_path, user=user, systemctl=systemctl)
    findings: list[dict[str, str]] = []
    found = _before_adoption(found, node, findings)
    command = _command(found)
    variables, of_files, files = _variables(found, findings)
    account = found.account()
    home = account.pw_dir if account else "/"
    start = {**variables, **of_files, "HOME": variables.get("HOME") or home}
    cwd = _working_folder(found, home)
    server = start_command.read(command.with_variables(start), env=start, cwd=cwd, home=home)
    findings += [note.as_dict() for note in server.notes]
    chosen = name or _service_name(found.name)
    if not NAME.match(chosen):
        raise BadInput(f"`{chosen[:80]}` is not a service name", hint="Give one with --name: lower-case letters, digits, dot, dash, underscore")
    if environment:
        _use_environment(server, environment, findings)
    model, flags = _model(server, findings)
    env = _carried(server, of_files, files, home, variables, findings)
    flags = _without_secrets(flags, env, of_files, findings)
    record = ServiceRecord(
        name=chosen, manager=manager, unit=found.name if manager == "systemd" else "", root=str(node.services / chosen), model_path=model,
        served_model_name=vllm_arguments.value(flags, "--served-model-name") or model, base_url=_base_url(flags, findings), flags=flags, env=env,
        gpus=_gpus(flags, {**start, **server.env}, server.environment, findings), environment=server.environment,
        in_place=in_place and bool(server.environment),
        env_files=files, unit_scope="user" if user and manager == "systemd" else "system")
    before = _stored(node, chosen)
    if before is not None and _same_unit(before, found.name, manager):
        for kept in KEPT_FROM_BEFORE:
            setattr(record, kept, getattr(before, kept))
        if changed := [word for word, name in (("flags", "flags"), ("variables", "env")) if getattr(before, name) != getattr(record, name)]:
            _tell(findings, "warning", f"The service's {' and '.join(changed)} are not those of the unit any more",
                  why="They were changed here, or in the unit, since it was adopted", fix="Adopting it again takes those of the unit")
    made = Adoption(record=record, unit=found.name, files=found.files, unit_text=found.text, user=found.value("User") or ("root" if not user else ""),
                    findings=findings, before=before)
    _look_at_names(made, node, manager)
    _look_at_environment(made)
    _look_at_unit(made, found, command, server, account, node, manager)
    _look_at_limits(made, node)
    made.drop_in_path, made.drop_in = _drop_in(record, found, command, server)
    findings += [{"level": "note", "title": problem, "why": "", "fix": ""} for problem in dict.fromkeys(found.problems)]
    secrets = {*redact.record_secrets(record.as_dict()), *redact.secret_values({**variables, **of_files}),
               *redact.record_secrets({"flags": command.argv})}
    for finding in findings:  # they are printed, and repeat what stands in the unit
        finding |= {part: redact.log_text(finding[part], secrets) for part in ("title", "why", "fix")}
    findings.sort(key=lambda finding: _LEVELS.index(finding["level"]))
    record.check()
    return made


def apply(paths: NodePaths, adoption: Adoption, *, locked: bool = False) -> Path:
    """Makes it a service of this node; gives the stored record's path. The same adoption again changes nothing. `locked`: the caller holds the lock.

    Raises BadInput for an adoption with findings that stop it, Busy while a job works on a service of that name, OpsError where a folder
    cannot be written. The record is stored last: a service that is announced is whole.
    """
    from ops.environments import releases

    record = adoption.record
    if adoption.stops:
        first = adoption.stops[0]
        raise BadInput(f"`{adoption.unit}` cannot be adopted: {first['title']}", why=first["why"], hint=first["fix"], findings=adoption.stops)
    paths.make()
    held = () if locked else claim.lock_all(paths, [f"service:{record.name}"])
    try:
        launch.write(record)
        releases.adopt(record)
        target = paths.announced / f"{record.name}.json"
        text = json.dumps(record.as_dict(), indent=1, ensure_ascii=False) + "\n"
        if not target.exists() or target.read_text(encoding="utf-8") != text or target.stat().st_mode & 0o777 != 0o600:
            write_file(target, text, mode=0o600)
        return target
    except OSError as error:
        raise OpsError(f"Service `{record.name}` cannot be stored", why=str(error)) from error
    finally:
        claim.release(held)


def install(adoption: Adoption) -> Path:
    """Writes the drop-in, lets systemd read it, and makes sure that the unit starts the launcher from now on; gives the drop-in's path.

    The running server is not touched: the launcher counts from its next start. Raises BadInput for what is no systemd service, or was not
    stored; OpsError (kind "not_permitted") where this user may not write there, OpsError where another drop-in has the last word.
    """
    from ops.services.systemd import SystemdManager

    record, path = adoption.record, Path(adoption.drop_in_path)
    if record.manager != "systemd":
        raise BadInput(f"Service `{record.name}` is not run by systemd", why="Only a unit has a drop-in")
    if not launch.launch_path(record).exists():
        raise BadInput(f"Service `{record.name}` has no launcher yet", hint="First adopt it: --apply")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != adoption.drop_in:
            write_file(path, adoption.drop_in, mode=0o644)
    except OSError as error:
        raise OpsError(f"The drop-in `{path}` cannot be written", why=error.strerror or str(error), kind="not_permitted",
                       hint="An admin runs the same command as root, or puts it there and runs `systemctl daemon-reload`:\n" + adoption.drop_in
                       ) from error
    user = record.unit_scope == "user"
    systemctl.call(["daemon-reload"], user=user, limit_s=60)
    if not SystemdManager(record).launcher_installed():
        unit = unit_files.read(adoption.unit, user=user)
        last = unit.values("ExecStart")[-1:]
        why = f"`{last[0].file}` has the last word on ExecStart=" if last and last[0].file != path else "systemd does not use the drop-in"
        raise OpsError(f"`{adoption.unit}` still does not start the launcher", why=why, hint=f"Take ExecStart= out of that file; `{path}` is there")
    return path


def _tell(findings: list[dict[str, str]], level: str, title: str, *, why: str = "", fix: str = "") -> None:
    findings.append({"level": level, "title": title, "why": why, "fix": fix})


# ---- the unit ----


def _before_adoption(unit: Unit, node: NodePaths, findings: list[dict[str, str]]) -> Unit:
    """The unit without a drop-in that makes it start our launcher already: what stood there before is what is to be read."""
    for setting in reversed(unit.values("ExecStart")):
        try:
            words = [word for word in unit_files.split(setting.value) if word]
        except ValueError:
            continue
        ours = next((word for word in words if Path(word.lstrip("@-:+!")).name == "launch" and _is_launcher(Path(word.lstrip("@-:+!")))), None)
        if ours and setting.file != unit.path:
            _tell(findings, "ok", f"It starts Roundhouse's launcher `{ours}` already", why=f"By the drop-in `{setting.file}`, which is left out here")
            return unit.without(setting.file)
        if ours:
            raise BadInput(f"`{unit.name}` starts Roundhouse's launcher `{ours}` by its own file", why="What it started before is not known any more",
                           hint=f"Its record lies in {node.announced}")
    return unit


def _is_launcher(path: Path) -> bool:
    try:
        return "Written by Roundhouse" in path.read_text(errors="replace")[:400]
    except OSError:
        return path.parent.parent.name == "services"


def _command(unit: Unit) -> unit_files.Command:
    kind = unit.value("Type") or "simple"
    commands = unit.commands()
    if not commands:
        raise BadInput(f"`{unit.name}` has no ExecStart=", why="; ".join(unit.problems), hint="Adopt the unit that starts the server")
    if kind in ("forking", "oneshot", "dbus"):
        raise BadInput(f"`{unit.name}` is of Type={kind}", why="A server that is adopted is the unit's main process itself",
                       hint="Use Type=simple or Type=exec, and start the server in the foreground")
    if len(commands) > 1:
        raise BadInput(f"`{unit.name}` starts {len(commands)} commands", why="; ".join(command.argv[0][:80] for command in commands),
                       hint="Put what runs before the server into ExecStartPre=")
    return commands[0]


def _variables(unit: Unit, findings: list[dict[str, str]]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Environment=, the variables of EnvironmentFile=, and those files."""
    variables = unit.environment()
    secret = sorted(name for name in variables if _is_secret(name))
    if secret:
        _tell(findings, "warning", f"{_listed(secret)} {'stands' if len(secret) == 1 else 'stand'} in the unit in clear text",
              why="Every user of this host can read it by `systemctl show`; it comes into the record, which only the agent's user can read",
              fix="Move it into a file of mode 0600, and name that in EnvironmentFile=")
    files, values = [], {}
    for named in unit.environment_files():
        optional, pattern = named.startswith("-"), named.removeprefix("-")
        for path in unit_files.matching(pattern):
            files.append(f"-{path}" if optional else path)
            values.update(_file_values(path, optional, findings))
    dropped = [word for setting in unit.values("UnsetEnvironment") for word in unit_files.split_plain(unit.expand(setting.value))]
    for word in dropped:
        variables.pop(word.partition("=")[0], None)
    if passed := [word for setting in unit.values("PassEnvironment") for word in setting.value.split()
                  if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", word)]:
        _tell(findings, "note", f"{_listed(passed)} {'comes' if len(passed) == 1 else 'come'} from the manager's own environment",
              why="PassEnvironment= goes on working with the launcher")
    return variables, values, files


def _file_values(path: str, optional: bool, findings: list[dict[str, str]]) -> dict[str, str]:
    try:
        values = env_files.read(path)
    except FileNotFoundError:
        if not optional:
            _tell(findings, "stop", f"The environment file `{path}` is not there", why="systemd would not start the unit either",
                  fix="Put it there, or write `EnvironmentFile=-` if it may be missing")
        return {}
    except (OSError, ValueError) as error:
        _tell(findings, "warning", f"The environment file `{path}` cannot be read by this user", why=getattr(error, "strerror", None) or str(error),
              fix="Run this as root to see what it sets; the values stay in the file all the same")
        return {}
    names = sorted(values)
    secret = [name for name in names if _is_secret(name)]
    _tell(findings, "ok", f"{len(names)} variable{'s' if len(names) != 1 else ''} from `{path}`: {', '.join(names[:12]) or 'none'}",
          why="They stay in that file, and are read at each start"
          + (f"; {_listed(secret)} look{'s' if len(secret) == 1 else ''} secret" if secret else ""))
    return values


def _is_secret(name: str) -> bool:
    return bool(redact.secret_values({name: "x" * 8}))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _working_folder(unit: Unit, home: str) -> str:
    text = unit.value("WorkingDirectory").removeprefix("-")
    return home if text == "~" else text or (home if unit.user else "/")


def _service_name(unit: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", unit.removesuffix(".service").lower()).strip("-._")[:63]


# ---- model, flags, variables ----


def _use_environment(server: Server, given: str, findings: list[dict[str, str]]) -> None:
    """The environment that was named by hand: what was said of the unit's own does not stop the adoption any more."""
    path = os.path.normpath(Path.cwd() / given)
    for finding in findings:
        if finding["level"] == "stop" and "--environment" in finding["fix"]:
            finding["level"] = "note"
    if server.environment and server.environment != path:
        _tell(findings, "note", f"The environment was given: `{path}`", why=f"The unit itself starts `{server.environment}`")
    server.environment = path


def _model(server: Server, findings: list[dict[str, str]]) -> tuple[str, list[str]]:
    """The model folder, absolute, and the flags without it. A name of the model hub becomes its folder in the hub's cache."""
    named, flags = vllm_arguments.split_model(server.arguments, positional=server.form == "vllm serve")
    config = vllm_arguments.value(flags, "--config")
    if config:
        flags, named = _from_config(config, flags, named, server, findings)
    flags, made_absolute = vllm_arguments.absolute(flags, server.cwd)
    if made_absolute:
        _tell(findings, "note", f"Relative paths of {_listed(sorted(set(made_absolute)))} were made absolute",
              why=f"They counted from `{server.cwd}`")
    if not named:
        _tell(findings, "stop", "The command line names no model", why="vLLM would start with its own default model, which is made for trying it out",
              fix="Name the model folder in ExecStart=")
        return "/", flags
    if "://" in named:
        _tell(findings, "stop", f"The model `{named}` is no folder on this host", why="vLLM streams it from an object store",
              fix="Copy it into a folder, and name that")
        return "/", flags
    local = Path(server.cwd, os.path.expanduser(named)) if named.startswith("~/") else Path(server.cwd, named)  # noqa: PTH111
    if named.startswith("/") or named.startswith(("./", "../", "~/")) or local.exists():
        path = os.path.normpath(local)
        _look_at_model(path, findings)
        if path != named:
            flags = _keep_name(flags, named, findings)
        return path, flags
    path = _hub_folder(named, flags, server, findings)
    return path, _keep_name(flags, named, findings)


def _from_config(config: str, flags: list[str], named: str, server: Server, findings: list[dict[str, str]]) -> tuple[list[str], str]:
    """What `--config FILE` sets becomes flags, where the command line does not say otherwise: the record has to hold all."""
    path = os.path.normpath(Path(server.cwd, config))
    try:
        read_ones = vllm_arguments.read_config(path)
    except OSError as error:
        _tell(findings, "warning", f"The settings file `{path}` (--config) cannot be read", why=error.strerror or str(error),
              fix="Port and names are those of the command line, or vLLM's defaults")
        return flags, named
    named = named or read_ones.get("--model", "") or read_ones.get("--model-tag", "")
    wanted = ("--host", "--port", "--served-model-name", "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
    told = [name for name in wanted if name in read_ones and vllm_arguments.values(flags, name) is None]
    for name in told:
        flags = [*flags, name, read_ones[name]]
    _tell(findings, "note", f"`{path}` (--config) stays in use", why=f"Taken from it as flags: {', '.join(told)}" if told else "")
    return flags, named


def _keep_name(flags: list[str], named: str, findings: list[dict[str, str]]) -> list[str]:
    """The name under which clients know the model, now that its folder's path is what vLLM is started with."""
    if vllm_arguments.value(flags, "--served-model-name"):
        return flags
    _tell(findings, "note", f"It goes on being served as `{named}`",
          why="The launcher starts it by its folder, so the name is given as --served-model-name")
    return ["--served-model-name", named, *flags]


def _look_at_model(path: str, findings: list[dict[str, str]]) -> None:
    if not Path(path).exists():
        _tell(findings, "stop", f"The model folder `{path}` is not there, or this user may not see it", fix="Run this as the unit's user or as root")
    elif Path(path).is_dir() and not Path(path, "config.json").exists() and not Path(path, "params.json").exists():
        _tell(findings, "warning", f"The model folder `{path}` has no config.json")
    else:
        _tell(findings, "ok", f"Model folder `{path}`")


def _hub_folder(named: str, flags: list[str], server: Server, findings: list[dict[str, str]]) -> str:
    """The folder of a hub's model in its cache (`models--org--name/snapshots/<revision>`); where it would be, if it is not there."""
    env = server.env
    of_user = Path(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or Path(env["HOME"], ".cache"), "huggingface"), "hub")
    cache = next((cache for cache in (vllm_arguments.value(flags, "--download-dir"), env.get("HF_HUB_CACHE"), env.get("HUGGINGFACE_HUB_CACHE"),
                                      env.get("TRANSFORMERS_CACHE")) if cache), str(of_user))
    cache = cache.replace("~", env["HOME"], 1) if cache.startswith("~/") else cache
    folder = Path(server.cwd, cache, f"models--{named.replace('/', '--')}")
    if not _HUB_NAME.match(named):
        _tell(findings, "stop", f"The model `{named[:100]}` is neither a folder nor a name of the model hub")
        return str(folder)
    if env.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        home = Path(env.get("MODELSCOPE_CACHE") or Path(env["HOME"], ".cache/modelscope/hub"))
        places = [place for place in (home / "models" / named, home / named) if place.is_dir()]
        if places:
            _look_at_model(str(places[0]), findings)
            return str(places[0])
    revision = vllm_arguments.value(flags, "--revision") or "main"
    try:
        revision = (folder / "refs" / revision).read_text().strip()
    except OSError:
        pass  # a full commit is the snapshot's own name
    snapshot = folder / "snapshots" / revision
    if snapshot.is_dir():
        _tell(findings, "ok", f"Model `{named}` in the hub's cache: `{snapshot}`",
              why="This very revision stays in use; a newer one on the hub is not taken by itself any more")
        return str(snapshot)
    _tell(findings, "stop", f"The model `{named}` is not in the hub's cache of this host", why=f"Looked for `{snapshot}`",
          fix=f"Start the unit once, or download it into a folder (`hf download {named}`), or run this as a user who may read that cache")
    return str(snapshot)


def _carried(server: Server, of_files: dict[str, str], files: list[str], home: str, of_unit: dict[str, str],
             findings: list[dict[str, str]]) -> dict[str, str]:
    """The variables of the record: what the unit and its command line set, without what stays in files or what the launcher sets."""
    for path in dict.fromkeys(server.env_files):  # a file of plain assignments that a script sources is one for the launcher too
        try:
            values = env_files.read(path)
        except (OSError, ValueError):
            values = {}
        if path not in files and values and all(server.env.get(name) == value for name, value in values.items()):
            files.append(path)
            of_files = {**of_files, **values}
            _tell(findings, "ok", f"{len(values)} variables from `{path}`, which the start script reads: {', '.join(sorted(values)[:12])}",
                  why="They stay in that file, and are read at each start")
        elif path not in files:
            _tell(findings, "warning", f"What `{path}` sets was copied into the record",
                  why="It is more than plain assignments, so the launcher cannot read it",
                  fix="Write it as NAME=value lines and name it in EnvironmentFile=, above all if it holds secrets")
    env = {name: value for name, value in server.env.items() if name not in _NOT_CARRIED and not name.startswith("ROUNDHOUSE_")}
    if env.get("HOME") == home and of_unit.get("HOME") != home:
        env.pop("HOME", None)
    over = sorted(name for name, value in of_files.items() if name in env and env[name] != value)
    if over:
        _tell(findings, "warning", f"{_listed(over)}: the command line sets another value than the environment file",
              why="The launcher reads files last, so the file's value would count", fix="Take it out of the file")
    env = {name: value for name, value in env.items() if name not in of_files}
    if "PATH" in env:
        kept = [folder for folder in env["PATH"].split(":") if not server.environment or folder != f"{server.environment}/bin"]
        if ":".join(kept) in ("", start_command.DEFAULT_PATH, "/usr/local/bin:/usr/bin:/bin"):
            del env["PATH"]
        else:
            env["PATH"] = ":".join(kept)
    inside = sorted(name for name, value in env.items() if server.environment and f"{server.environment}/" in value + "/")
    if inside:
        _tell(findings, "warning", f"{_listed(inside)} point{'s' if len(inside) == 1 else ''} into the environment `{server.environment}`",
              why="A new release would load parts of the old one", fix="Take it out of the unit, if the server starts without it")
    if odd := sorted(set(env) & {"PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "PYTHONSTARTUP"}):
        _tell(findings, "warning", f"{_listed(odd)} {'is' if len(odd) == 1 else 'are'} set",
              why="Code from elsewhere comes into every release; no check sees it")
    return env


def _without_secrets(flags: list[str], env: dict[str, str], of_files: dict[str, str], findings: list[dict[str, str]]) -> list[str]:
    """The flags without secrets that vLLM takes from a variable as well: arguments are in everybody's `ps`."""
    for flag, variable in _SECRET_FLAGS.items():
        given = vllm_arguments.values(flags, flag)
        if not given:
            continue
        if len(given) > 1:
            _tell(findings, "warning", f"`{flag}` has {len(given)} values, and stays in the arguments",
                  why="Every user of this host can read them (`ps`)")
            continue
        flags = vllm_arguments.without(flags, flag)
        if of_files.get(variable) == given[0]:
            _tell(findings, "ok", f"`{flag}` was left out: `{variable}` says the same, and stays in its file")
            continue
        env[variable] = given[0]
        why = "Every user of this host can read arguments (`ps`)"
        if given[0] in of_files.values():
            _tell(findings, "warning", f"`{flag}` becomes the variable `{variable}`",
                  why=f"{why}; its value was copied from an environment file into the record",
                  fix=f"Name it `{variable}` in the file itself, then adopt the unit again")
        else:
            _tell(findings, "note", f"`{flag}` becomes the variable `{variable}`", why=why)
    return flags


def _base_url(flags: list[str], findings: list[dict[str, str]]) -> str:
    host, port = vllm_arguments.value(flags, "--host") or "", vllm_arguments.value(flags, "--port") or "8000"
    if socket := vllm_arguments.value(flags, "--uds"):
        _tell(findings, "stop", f"It listens on the socket `{socket}`", why="A service is asked by its address", fix="Use --host and --port")
    if not port.isdigit() or not 0 < int(port) < 65536:
        _tell(findings, "stop", f"`{port[:40]}` is no port", fix="Write the number itself into ExecStart=")
        port = "8000"
    if vllm_arguments.values(flags, "--port") is None:
        _tell(findings, "note", "It names no port, so it is vLLM's own default: 8000")
    here = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]", "localhost": "127.0.0.1"}.get(host)  # noqa: S104
    scheme = "https" if vllm_arguments.value(flags, "--ssl-certfile") else "http"
    if scheme == "https":
        _tell(findings, "warning", "It serves TLS", why="Its certificate has to be valid for the address by which it is asked here")
    return f"{scheme}://{here or (f'[{host}]' if ':' in host else host)}:{port}"


def _cpu_build(environment: str) -> str | None:
    """The package that says that the environment is one without GPUs ("vllm 0.32.0+cpu"); None where none does."""
    from ops.environments import packages

    try:
        versions = packages.read(environment).versions() if environment else {}
    except BadInput:  # told where the environment is looked at
        return None
    return next((f"{name} {version}" for name in ("vllm", "torch") if (version := versions.get(name, "")).partition("+")[2].startswith("cpu")), None)


def _gpus(flags: list[str], env: dict[str, str], environment: str, findings: list[dict[str, str]]) -> list[int]:
    """The GPUs that it uses, by index; [] where it uses none, or that cannot be said."""
    count = 1
    for flag in ("--tensor-parallel-size", "--pipeline-parallel-size"):
        count *= vllm_arguments.number(flags, flag) or 1
    count *= vllm_arguments.number(flags, "--data-parallel-size-local") or vllm_arguments.number(flags, "--data-parallel-size") or 1
    if (build := _cpu_build(environment)) is not None:
        _tell(findings, "ok", "It uses no GPU", why=f"Its {build} is a build for the CPU")
        return []
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        _tell(findings, "ok", f"It uses {count} GPU{'s' if count > 1 else ''}, the first of this host",
              why="From its parallel sizes; CUDA_VISIBLE_DEVICES is not set")
        return list(range(count))
    words = [word.strip() for word in visible.split(",") if word.strip()]
    if not words or not all(word.isdigit() for word in words):
        _tell(findings, "warning", "CUDA_VISIBLE_DEVICES names GPUs otherwise than by number",
              why="Which of this host's GPUs it uses is not known here", fix="Set `gpus` in the record")
        return []
    if len(words) < count:
        _tell(findings, "warning", f"It asks for {count} GPUs, but CUDA_VISIBLE_DEVICES shows it {len(words)}", why="vLLM would not start like that")
    return [int(word) for word in words[:count]]


# ---- what else is to be known ----


def _look_at_names(made: Adoption, node: NodePaths, manager: str) -> None:
    record, before = made.record, made.before
    if before is not None and not _same_unit(before, made.unit, manager):
        whose = f"the unit `{before.unit}`" if before.unit else f"the {before.manager} manager"
        _tell(made.findings, "stop", f"There is a service `{record.name}` already, and it is another one", why=f"It belongs to {whose}",
              fix="Choose another name with --name")
        made.before = None
    for path in sorted(node.announced.glob("*.json")) if node.announced.is_dir() else []:
        other = _stored(node, path.stem)
        if other is not None and other.name != record.name and manager == "systemd" and _same_unit(other, made.unit, manager):
            _tell(made.findings, "stop", f"`{made.unit}` is adopted already, as service `{other.name}`", fix=f"Use --name {other.name}")


def _same_unit(record: ServiceRecord, unit: str, manager: str) -> bool:
    return record.manager == manager and (record.unit == unit or manager == "process")


def _stored(node: NodePaths, name: str) -> ServiceRecord | None:
    try:
        return ServiceRecord.from_dict(json.loads((node.announced / f"{name}.json").read_text()))
    except (OSError, ValueError, RecursionError, BadInput):
        return None


def _look_at_environment(made: Adoption) -> None:
    from ops.environments import copying, coupling, packages

    record = made.record
    if not record.environment:
        if not made.stops:
            _tell(made.findings, "stop", "The environment was not found", fix="Name it with --environment")
        return
    folder = Path(record.environment)
    try:
        installed = packages.read(folder)
    except OpsError as error:
        if not made.stops:
            _tell(made.findings, "stop", error.what, why=error.why, fix=error.hint)
        return
    if not os.access(folder / "bin" / "python", os.X_OK):
        _tell(made.findings, "stop", f"The interpreter of `{folder}` is gone", why=f"`{os.path.realpath(folder / 'bin' / 'python')}` cannot be run",
              fix="Install that Python again")
    vllm = installed.version("vllm")
    if vllm is None:
        _tell(made.findings, "stop", f"`{folder}` has no vllm", fix="Name the environment that serves with --environment")
    elif vllm.endswith("+practice"):
        _tell(made.findings, "stop", f"`{folder}` holds practice packages (vllm {vllm})", why="Practice never mixes with real services")
    elif not os.access(folder / "bin" / "vllm", os.X_OK):
        _tell(made.findings, "stop", f"`{folder}/bin/vllm` cannot be run", why="The launcher starts it", fix="Install vllm again in that environment")
    elif (other := copying.foreign_interpreter(folder, "vllm")) is not None:
        _tell(made.findings, "warning", f"`{folder}/bin/vllm` starts `{other}`", why="That is not of this environment: the folder was copied or "
              "renamed, and its programs run from the other place", fix="Adopt the environment that really serves, or install vllm again in this one")
    else:
        _tell(made.findings, "ok",
              f"Environment `{folder}`: Python {installed.python_version or 'unknown'}, {len(installed.distributions)} packages, vllm {vllm}")
    for finding in coupling.findings(installed, env=record.env):
        _tell(made.findings, "warning", finding.title, why=finding.why, fix=finding.fix)
    if record.in_place:
        _tell(made.findings, "note", "Its environment stays where it is: a redeploy changes it in place",
              why="The service is down while packages are installed; the folder is copied before, where the disk allows it")


def _look_at_unit(made: Adoption, unit: Unit, command: unit_files.Command, server: Server, account: Any, node: NodePaths, manager: str) -> None:
    findings = made.findings
    if unit.needs_reload:
        _tell(findings, "warning", "The unit's files are newer than what systemd works with",
              fix="Run `systemctl daemon-reload` to make both the same")
    if server.prefix:
        words = server.prefix[0] + (" …" if len(server.prefix) > 1 else "")  # its arguments stand in the drop-in
        if manager == "systemd":
            _tell(findings, "note", f"`{words}` stays in front of the launcher, in the drop-in", why="It is no part of the record")
        else:
            _tell(findings, "warning", f"`{words}` is not carried over", why="The plain-process manager starts the launcher alone")
    if "+" in command.prefixes or "!" in command.prefixes:
        _tell(findings, "warning", "It starts with full privileges, whatever User= says", why=f"ExecStart= begins with `{command.prefixes}`")
    for key, why in (("RootDirectory", "Paths mean other folders for it than for Roundhouse"), ("RootImage", "Its files lie in an image")):
        if unit.value(key):
            _tell(findings, "stop", f"The unit has {key}=", why=why, fix="Serve from a folder of this host")
    if unit.value("ProtectHome") in ("yes", "true", "1", "on", "tmpfs") and node.root.parts[1:2] in (("home",), ("root",)):
        _tell(findings, "warning", f"The unit may not look into `{node.root}`", why="It has ProtectHome=, and the launcher lies there",
              fix="Choose another state folder with ROUNDHOUSE_STATE")
    owner = node.root.stat().st_uid if node.root.exists() else os.geteuid()
    runs_as = account.pw_uid if account else None
    if unit.value("DynamicUser") in ("yes", "true", "1", "on"):
        runs_as = None
    if manager == "systemd" and runs_as != owner and runs_as != 0:
        _tell(findings, "warning", f"The unit runs as `{made.user or 'another user'}`, who may not enter Roundhouse's state folder `{node.root}`",
              why="It belongs to another user and is closed to all others, so the unit could not start the launcher there",
              fix=f"Run the agent as `{made.user}` before the drop-in is installed" if made.user and account
              else "Give the unit a User= of this host")
    if unit.value("User") and account is None:
        _tell(findings, "warning", f"This host has no user `{unit.value('User')}`", why="Its home, and with it its caches, are not known")
    if manager == "systemd":
        if not any(finding["level"] == "ok" and "launcher" in finding["title"] for finding in findings):
            _tell(findings, "note", "Until its drop-in is installed, the unit starts what it started before",
                  why="Start, stop and restart work without it; a redeploy, a rollback and a switch of the release need it",
                  fix=f"An admin runs, once: {install_command(made)}")
        for note in unit_notes(_settings(unit)):
            _tell(findings, "note", note)
    else:
        _tell(findings, "warning", f"The unit `{made.unit}` must not run beside it", why="Roundhouse starts the server itself then",
              fix=f"Before the first start: `systemctl disable --now {made.unit}`")


def _settings(unit: Unit) -> dict[str, str]:
    """Of the unit's files what `unit_notes` looks at, as `systemctl show` names it."""
    limit = unit.value("TimeoutStopSec") or unit.value("TimeoutSec")
    return {"Restart": unit.value("Restart"), "KillMode": unit.value("KillMode"),
            "SendSIGKILL": "no" if unit.value("SendSIGKILL") in ("no", "false", "0", "off") else "yes",
            "TimeoutStopUSec": f"{limit}s" if limit.isdigit() else limit}


def install_command(made: Adoption) -> str:
    """What an admin types to have the drop-in installed."""
    user = " --user" if made.record.unit_scope == "user" else ""
    name = f" --name {made.record.name}" if made.record.name != _service_name(made.unit) else ""
    return f"python -m ops adopt --unit {made.unit}{user}{name} --apply --install"


def _look_at_limits(made: Adoption, node: NodePaths) -> None:
    if not node.node_toml.exists():
        _tell(made.findings, "warning", f"This machine is no node yet: there is no `{node.node_toml}`", fix="`make up` makes it one")
        return
    config = NodeConfig.load(node.node_toml)
    if config.practice:
        _tell(made.findings, "stop", f"`{config.name}` is a practice node", why="Practice never mixes with real services",
              fix="Use another state folder (ROUNDHOUSE_STATE) with `make up`")
    made.node_toml = limits(config, made.record)
    if made.node_toml:
        _tell(made.findings, "warning", f"`{node.node_toml}` does not allow it yet", why="Jobs on this service are refused until its owner adds: "
              + "; ".join(made.node_toml), fix=f"Change these lines of {node.node_toml}, then start the node again")


def limits(config: NodeConfig, record: ServiceRecord) -> list[str]:
    """The lines of `node.toml` that must be changed for this service, each whole; [] if all is allowed."""
    wanted: list[tuple[str, list[str], str]] = [("service_roots", config.service_roots, str(Path(record.root).parent))]
    if record.model_path != "/":
        wanted.append(("model_roots", config.model_roots, str(Path(record.model_path).resolve().parent)))
    if record.in_place:
        wanted.append(("environment_roots", config.environment_roots, str(Path(record.environment).resolve().parent)))
    inside = {"service_roots": record.root, "model_roots": record.model_path, "environment_roots": record.environment}
    lines = []
    for key, roots, add in wanted:
        try:
            config.require_inside(inside[key], roots, key)
        except Refused:
            lines.append(f"{key} = {json.dumps([*roots, add])}")
    if record.manager == "systemd" and record.unit not in config.units:
        lines.append(f"units = {json.dumps([*config.units, record.unit])}")
    return lines


def _drop_in(record: ServiceRecord, unit: Unit, command: unit_files.Command, server: Server) -> tuple[str, str]:
    """Where the drop-in belongs and what it says: nothing of the unit changes but its command."""
    folder = unit_files.search_path(user=True)[4] if unit.user else Path("/etc/systemd/system")
    path = folder / f"{unit.name}.d" / DROP_IN
    words = [*server.prefix, str(launch.launch_path(record))]
    kept = "".join(mark for mark in command.prefixes if mark in "-+!")
    return str(path), (f"# {path}\n# Starts service `{record.name}` by Roundhouse's launcher. An admin installs it once.\n"
                       f"[Service]\nExecStart=\nExecStart={kept}{' '.join(map(_quoted, words))}\n")


def _quoted(word: str) -> str:
    word = word.replace("%", "%%").replace("$", "$$")
    return word if re.fullmatch(r"[\w@%+=:,./$-]+", word) else '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
