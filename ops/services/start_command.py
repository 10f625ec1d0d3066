"""Which vLLM server a unit's command line starts: environment, model, flags, variables. Read, never run.

A command line is unwrapped from the outside: `env`, `numactl` and the like, `uv run`, `conda run`, a shell with a few lines, a start
script; at the bottom stands `vllm serve` of an environment, or its older form `python -m vllm.entrypoints.openai.api_server`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ops.jobs import redact
from ops.jobs.errors import BadInput
from ops.services import simple_shell, unit_files

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}
WRAPPERS = {"numactl", "taskset", "nice", "ionice", "chrt", "setpriv", "stdbuf", "prlimit", "systemd-cat", "nohup", "setsid", "catchsegv", "unbuffer",
            "tini", "dumb-init", "time", "choom", "capsh"}
OTHER_USER = {"sudo", "su", "runuser", "doas", "gosu"}
CONTAINERS = {"docker", "podman", "nerdctl", "docker-compose", "podman-compose", "apptainer", "singularity", "enroot", "kubectl", "crictl", "ctr",
              "lxc", "systemd-nspawn"}
CONDAS = {"conda", "mamba", "micromamba"}
API_SERVER = {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"}
DEPTH = 12  # wrappers in wrappers
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*\Z")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_UV_WITH_VALUE = {
    "--python", "-p", "--project", "--directory", "--with", "--with-editable", "--with-requirements", "--extra", "--no-extra", "--group",
    "--no-group", "--only-group", "--env-file", "--package", "--index", "--default-index", "--index-url", "--extra-index-url", "--find-links", "-f",
    "--cache-dir", "--config-file", "--index-strategy", "--link-mode", "--color", "--resolution", "--prerelease"}
_PYTHON_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}


@dataclass
class Note:
    """Something to tell about the command line: level "ok", "note", "warning" or "stop"."""

    level: str
    title: str
    why: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        return {"level": self.level, "title": self.title, "why": self.why, "fix": self.fix}


@dataclass
class Server:
    """What the command line comes to. `arguments` are those after `vllm serve`, with the model among them."""

    arguments: list[str]
    env: dict[str, str]
    cwd: str
    environment: str  # "" where it was not found; `notes` say why
    prefix: list[str] = field(default_factory=list)  # wrappers such as numactl, which may stay in front of the launcher
    form: str = "vllm serve"  # or "api_server", whose model stands in --model
    env_files: list[str] = field(default_factory=list)  # that the command line itself reads
    notes: list[Note] = field(default_factory=list)

    def tell(self, level: str, title: str, *, why: str = "", fix: str = "") -> None:
        self.notes.append(Note(level, title, why, fix))


def read(argv: list[str], *, env: dict[str, str], cwd: str, home: str) -> Server:
    """The server that `argv` starts with the variables `env` in the folder `cwd`. Raises BadInput if it is none that can be adopted."""
    server = Server(arguments=[], env=dict(env), cwd=cwd, environment="")
    server.env.setdefault("HOME", home)
    words = list(argv)
    for _ in range(DEPTH):
        following = _unwrap(words, server)
        if following is None:
            return server
        words = following
    raise BadInput("The unit's command line is wrapped too often", why=f"After {DEPTH} wrappers there is still no server: {' '.join(words)[:200]}")


def _unwrap(words: list[str], server: Server) -> list[str] | None:
    """Takes one layer off; None when the server itself is reached."""
    if not words:
        raise _not_vllm([], "There is nothing behind its wrappers")
    program, rest = words[0], words[1:]
    name = Path(program).name
    if name in CONTAINERS:
        raise BadInput(f"The unit starts a container (`{name}`)",
                       why="Packages inside of an image are no environment on this host: they cannot be looked at, or built beside one another",
                       hint="Install vLLM into an environment on this host (`uv venv`), use it in the unit, then adopt that")
    if name in OTHER_USER:
        raise BadInput(f"The unit changes its user by `{name}`",
                       why="Who runs the server must stand in the unit, so that the launcher runs as that user",
                       hint="Use User= in the unit instead, then adopt it again")
    if name == "env":
        return _env(rest, server)
    if name in WRAPPERS:
        return _wrapper(words, server)
    if name in ("uv", "uvx"):
        return _uv(name, rest, server)
    if name in CONDAS:
        return _conda(program, rest, server)
    if name in SHELLS:
        return _shell(name, rest, server)
    found = _find(program, server)
    if name == "vllm":
        _vllm(found, rest, server)
        return None
    if _PYTHON.match(name):
        return _python(found, rest, server)
    return _script(found, words, server)


# ---- the server itself ----


def _vllm(program: str, rest: list[str], server: Server) -> None:
    if rest[:1] != ["serve"]:
        raise BadInput(f"The unit runs `{' '.join(['vllm', *rest[:1]])}`, no server", hint="Adopt the unit that runs `vllm serve`")
    server.arguments = rest[1:]
    _environment_of_program(program, server)


def _python(program: str, rest: list[str], server: Server) -> list[str] | None:
    place, dropped = 0, []
    while place < len(rest) and rest[place].startswith("-") and rest[place] not in ("-m", "-c", "-"):
        dropped.append(rest[place])
        if rest[place] in _PYTHON_WITH_VALUE:
            place += 1
            dropped += rest[place:place + 1]
        place += 1
    if dropped:
        server.tell("note", f"The interpreter's own options are not carried over: {' '.join(dropped)}", fix="Use PYTHON… variables where they matter")
    what = rest[place:]
    if what[:1] == ["-m"] and len(what) > 1:
        module, arguments = what[1], what[2:]
        if module in API_SERVER:
            server.form, server.arguments = "api_server", arguments
            server.tell("note", f"`python -m {module}` becomes `vllm serve`", why="It is the same server; the model stands in front, without --model")
            _environment_of_python(program, server)
            return None
        if module in ("vllm", "vllm.entrypoints.cli.main") and arguments[:1] == ["serve"]:
            server.arguments = arguments[1:]
            _environment_of_python(program, server)
            return None
        if module == "uv":
            return ["uv", *arguments]
        raise _not_vllm(["python", "-m", module], "")
    if what and Path(what[0]).name == "vllm":
        return [what[0], *what[1:]] if "/" in what[0] else [str(Path(program).parent / "vllm"), *what[1:]]
    raise _not_vllm([program, *what[:1]], "It runs a Python program of somebody's own" if what else "It starts an interpreter without a program")


def _environment_of_program(program: str, server: Server) -> None:
    """Sets the environment that holds `program` (bin/vllm): the folder above, or where a link or its first line leads."""
    path = Path(program)
    if _is_environment(path.parent.parent):
        server.environment = str(path.parent.parent)
        return
    real = Path(os.path.realpath(path))
    if real != path and _is_environment(real.parent.parent):
        server.environment = str(real.parent.parent)
        server.tell("note", f"`{program}` is a link into the environment `{server.environment}`")
        return
    interpreter = _shebang(real)
    if interpreter:
        _environment_of_python(interpreter[-1] if Path(interpreter[0]).name != "env" else _find(interpreter[1], server), server)
        return
    if not path.exists():
        server.environment = str(path.parent.parent) if path.parent.name == "bin" else ""
        server.tell("stop", f"`{program}` is not there", why="The unit names a program that does not exist, or that this user may not see",
                    fix="Run this as the unit's user or as root, or name the environment with --environment")
        return
    server.tell("stop", f"`{program}` lies in no Python environment", fix="Name the environment with --environment")


def _environment_of_python(program: str, server: Server) -> None:
    path = Path(program)
    folder = path.parent.parent
    if _is_environment(folder):
        server.environment = str(folder)
    elif not path.exists():
        server.environment = str(folder) if path.parent.name == "bin" else ""
        server.tell("stop", f"The interpreter `{program}` is not there",
                    fix="Run this as the unit's user or as root, or name the environment with --environment")
    else:
        server.tell("stop", f"`{program}` is the system's own Python, no environment", why="Its packages are shared with other programs of this host",
                    fix="Install vLLM into an environment (`uv venv`), or name the environment with --environment")


def _is_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").is_dir()


def _find(program: str, server: Server) -> str:
    """The program's path, links not followed; a name is looked up on the unit's PATH."""
    if "/" in program:
        return os.path.normpath(Path(server.cwd, program))
    for folder in (server.env.get("PATH") or DEFAULT_PATH).split(":"):
        candidate = Path(folder or server.cwd, program)
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    virtual = server.env.get("VIRTUAL_ENV")
    return str(Path(virtual, "bin", program)) if virtual else program


def _not_vllm(words: list[str], why: str) -> BadInput:
    return BadInput(f"The unit starts no vLLM server that can be read: `{' '.join(words)[:160] or 'nothing'}`",
                    why=why or "Known are `vllm serve`, `python -m vllm.entrypoints.openai.api_server`, and wrappers around them",
                    hint="Put `ENVIRONMENT/bin/vllm serve MODEL ...` into ExecStart=, then adopt the unit again")


# ---- layers ----


def _env(rest: list[str], server: Server) -> list[str]:
    place = 0
    while place < len(rest):
        word = rest[place]
        if word in ("-i", "--ignore-environment", "-"):
            server.env = {"HOME": server.env["HOME"]}
        elif word in ("-u", "--unset", "-C", "--chdir") and place + 1 < len(rest):
            place += 1
            _env_option(word.lstrip("-")[0], rest[place], server)
        elif found := re.match(r"(?:--(unset|chdir)=|-([uC]))(.+)\Z", word):
            _env_option((found.group(1) or found.group(2))[0], found.group(3), server)
        elif word in ("-S", "--split-string") and place + 1 < len(rest):
            return _env([*unit_files.split_plain(rest[place + 1]), *rest[place + 2:]], server)
        elif word == "--":
            place += 1
            break
        elif word.startswith("-"):
            server.tell("note", f"`env {word}` is not carried over")
        elif not _ASSIGNMENT.match(word):
            break
        if _ASSIGNMENT.match(word):
            key, _, value = word.partition("=")
            server.env[key] = value
        place += 1
    return rest[place:]


def _env_option(option: str, value: str, server: Server) -> None:
    if option == "u":
        server.env.pop(value, None)
    else:
        server.cwd = os.path.normpath(Path(server.cwd, value))


def _wrapper(words: list[str], server: Server) -> list[str]:
    """A program that starts another one: everything up to the first word that is a program of its own, or a server."""
    for place, word in enumerate(words[1:], 1):
        if word == "--":
            return _kept(words[:place + 1], words[place + 1:], server)
        name = Path(word).name
        known = name in {"vllm", "env", "uv", "uvx"} | SHELLS | WRAPPERS | CONDAS | CONTAINERS | OTHER_USER or _PYTHON.match(name)
        if not word.startswith("-") and (known or (word.startswith("/") and Path(word).is_file())):
            return _kept(words[:place], words[place:], server)
    raise _not_vllm(words, f"Nothing behind `{words[0]}` is a program that is known here")


def _kept(prefix: list[str], rest: list[str], server: Server) -> list[str]:
    server.prefix += prefix
    return rest


def _uv(name: str, rest: list[str], server: Server) -> list[str]:
    if name == "uvx" or rest[:2] == ["tool", "run"]:
        raise BadInput("The unit runs vLLM by `uvx`", why="uv makes an environment for it that belongs to uv's cache: it may change with each start",
                       hint="Make an environment (`uv venv /opt/vllm`, `uv pip install vllm`), use its bin/vllm in the unit, then adopt it")
    place = 0
    while place < len(rest) and rest[place].startswith("-"):
        place += 2 if rest[place] in _UV_WITH_VALUE else 1
    if rest[place:place + 1] != ["run"]:
        raise _not_vllm([name, *rest[:3]], "")
    options: dict[str, str] = {}
    place += 1
    for word, value, after in _uv_options(rest, place):
        options.setdefault(word, value)
        place = after
    if {"--with", "--with-requirements", "--with-editable", "--isolated"} & set(options):
        raise BadInput("The unit runs vLLM by `uv run --with`", why="uv makes a throwaway environment for it",
                       hint="Install all into one environment, use its bin/vllm in the unit, then adopt it")
    if folder := options.get("--directory"):
        server.cwd = os.path.normpath(Path(server.cwd, folder))
    if "--env-file" in options:
        server.env_files.append(os.path.normpath(Path(server.cwd, options["--env-file"])))
    environment = _uv_environment(options, server)
    if environment:
        server.env["PATH"] = f"{environment}/bin:{server.env.get('PATH') or DEFAULT_PATH}"
        server.env["VIRTUAL_ENV"] = environment
        server.tell("note", f"`uv run` uses the environment `{environment}`", why="uv may bring it up to date at each start; the launcher does not")
    return rest[place:]


def _uv_options(rest: list[str], place: int) -> Iterator[tuple[str, str, int]]:
    """Options of `uv run`, each with its value and where the command line goes on behind it."""
    while place < len(rest) and rest[place].startswith("-") and rest[place] != "--":
        word, sign, value = rest[place].partition("=")
        if not sign and word in _UV_WITH_VALUE and place + 1 < len(rest):
            place += 1
            value = rest[place]
        place += 1
        yield {"-p": "--python"}.get(word, word), value, place
    if rest[place:place + 1] == ["--"]:
        yield "--", "", place + 1


def _uv_environment(options: dict[str, str], server: Server) -> str:
    """Which environment `uv run` works in: that of the project, else an active one, else the one of its --python."""
    start = Path(server.cwd, options.get("--project", "."))
    if "--active" in options and server.env.get("VIRTUAL_ENV"):
        return server.env["VIRTUAL_ENV"]
    for folder in [start, *start.parents] if "--no-project" not in options else []:
        if (folder / "pyproject.toml").exists():
            return os.path.normpath(folder / server.env.get("UV_PROJECT_ENVIRONMENT", ".venv"))
    if python := options.get("--python"):
        for folder in (Path(python), Path(python).parent.parent):
            if "/" in python and _is_environment(folder):
                return str(folder)
    if server.env.get("VIRTUAL_ENV"):
        return server.env["VIRTUAL_ENV"]
    return next((str(folder / ".venv") for folder in [start, *start.parents] if _is_environment(folder / ".venv")), "")


def _conda(program: str, rest: list[str], server: Server) -> list[str]:
    if rest[:1] != ["run"]:
        raise _not_vllm([program, *rest[:2]], "")
    place, wanted = 1, ""
    while place < len(rest) and rest[place].startswith("-"):
        word, sign, value = rest[place].partition("=")
        if word in ("-p", "--prefix", "-n", "--name", "--cwd") and not sign:
            place += 1
            value = rest[place] if place < len(rest) else ""
        if word in ("-p", "--prefix", "-n", "--name"):
            wanted = value
        elif word == "--cwd":
            server.cwd = os.path.normpath(Path(server.cwd, value))
        place += 1
    _activate_conda(wanted or "base", server, program)
    return rest[place:]


def _activate_conda(wanted: str, server: Server, program: str = "") -> None:
    """Puts a conda environment, by name or path, in front on PATH."""
    environment = Path(server.cwd, wanted) if "/" in wanted else _conda_by_name(wanted, server, program)
    if environment is None:
        server.tell("stop", f"The conda environment `{wanted}` was not found", fix="Name its folder with --environment")
        return
    server.env["PATH"] = f"{environment}/bin:{server.env.get('PATH') or DEFAULT_PATH}"
    server.env["CONDA_PREFIX"] = str(environment)


def _conda_by_name(wanted: str, server: Server, program: str) -> Path | None:
    home = Path(server.env["HOME"])
    roots = [Path(server.env["CONDA_EXE"]).parent.parent] if server.env.get("CONDA_EXE") else []
    roots += [Path(os.path.realpath(program)).parent.parent] if "/" in program else []
    roots += [base / name for base in (home, Path("/opt"), Path("/usr/local")) for name in (
        "miniconda3", "anaconda3", "miniforge3", "mambaforge", "conda", "micromamba")]
    if server.env.get("MAMBA_ROOT_PREFIX"):
        roots.insert(0, Path(server.env["MAMBA_ROOT_PREFIX"]))
    places = [root if wanted == "base" else root / "envs" / wanted for root in roots] + [home / ".conda" / "envs" / wanted]
    return next((place for place in places if (place / "conda-meta").is_dir()), None)


def _shell(name: str, rest: list[str], server: Server) -> list[str]:
    place, login, text = 0, False, None
    while place < len(rest) and rest[place][:1] in "-+" and rest[place] not in ("-", "--"):
        word = rest[place]
        login = login or word == "--login" or (not word.startswith("--") and "l" in word)
        if word in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
            place += 1
        elif not word.startswith("--") and word.startswith("-") and "c" in word:
            text = ""
        if not word.startswith("--") and word.startswith("-") and word.endswith("o") and word != "-o":
            place += 1  # -euo pipefail
        place += 1
    rest = rest[place:]
    if login:
        server.tell("warning", f"It starts a login shell (`{name} -l`)", why="Profile files of the user may set variables that are not seen here",
                    fix="Compare the record's env with the running server's, and put what is missing into Environment=")
    if text is None:
        if not rest:
            raise _not_vllm([name], "It starts a shell without a program")
        return _follow_file(_find(rest[0], server) if "/" in rest[0] else os.path.normpath(Path(server.cwd, rest[0])), rest[1:], server)
    if not rest:
        raise _not_vllm([name, "-c"], "The shell gets no command")
    return _follow(rest[0], server, arguments=rest[2:], name=rest[1] if len(rest) > 1 else name, where=f"the `{name} -c` command")


def _script(path: str, words: list[str], server: Server) -> list[str]:
    """A program of another name: a start script, or nothing that can be read."""
    first = _shebang(Path(path))
    if first is None:
        raise _not_vllm(words[:2], "" if Path(path).exists() else f"`{path}` is not there, or this user may not see it")
    interpreter = Path(first[0]).name
    if interpreter == "env":
        interpreter = next((Path(word).name for word in first[1:] if not word.startswith("-") and "=" not in word), "")
    if interpreter not in SHELLS:
        raise _not_vllm(words[:2], f"It is a program for `{interpreter}`")
    return _follow_file(path, words[1:], server)


def _follow_file(path: str, arguments: list[str], server: Server) -> list[str]:
    try:
        raw = Path(path).read_bytes()[:simple_shell.SCRIPT_LIMIT]
    except OSError as error:
        raise BadInput(f"The start script `{path}` cannot be read", why=error.strerror or str(error),
                       hint="Run this as the unit's user or as root") from error
    if b"\0" in raw:
        raise _not_vllm([path], "It is no script")
    server.tell("note", f"The start script `{path}` was read, and is not used any more by the launcher",
                why="What it sets stands in the record; a later change of it changes nothing")
    return _follow(raw.decode(errors="replace"), server, arguments=arguments, name=path, where=f"`{path}`")


def _follow(text: str, server: Server, *, arguments: list[str], name: str, where: str) -> list[str]:
    outcome = simple_shell.follow(text, env=server.env, cwd=server.cwd, arguments=arguments, name=name, where=where)
    server.env, server.cwd = outcome.env, outcome.cwd
    server.env_files += outcome.env_files
    for command in outcome.ran:
        server.tell("warning", f"`{_told(command)}` runs before the server, and is not carried over", why=f"It stands in {where}",
                    fix="If it is needed, put it into ExecStartPre= of the unit")
    for note in outcome.notes:
        server.tell("note", note[:1].upper() + note[1:], why=f"It stands in {where}")
    if outcome.activated and (not outcome.activated.startswith("/") or Path(outcome.activated, "conda-meta").is_dir()):
        _activate_conda(outcome.activated, server)
    return outcome.argv


def _told(command: str) -> str:
    """A command as it may be printed: its program, and short words; a longer one may be a secret, in whatever form this program takes it."""
    first, *words = redact.hide_in_command(command.split(" "))
    return " ".join([first[:120], *(word if re.fullmatch(r"-{0,2}\w{1,8}", word) else "…" for word in words[:6])])


def _shebang(path: Path) -> list[str] | None:
    """The words of a script's first line behind `#!`; None for what is no script or cannot be read."""
    try:
        with path.open("rb") as file:
            line = file.readline(1024)
    except OSError:
        return None
    return line[2:].decode(errors="replace").split() or None if line.startswith(b"#!") else None
