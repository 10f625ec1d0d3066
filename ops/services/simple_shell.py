"""What a short start script comes to: which program it becomes, with which arguments, variables and working folder. Nothing is run.

Only what start scripts of servers are made of is understood: assignments and `export`, `source` of an activate script or of a file of
assignments, `conda activate`, `cd`, `set`, `ulimit`, and at last one command, `exec`ed or not. Whatever decides something while it
runs (conditions, loops, substituted commands, pipes) is refused with its line: guessing would give another service than the one that runs.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from ops.jobs.errors import BadInput

SCRIPT_LIMIT = 256 * 1024  # bytes
_WORDS_OF_CONTROL = {"if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "function", "select", "{", "}", "[[",
                     "[", "test"}
_HARMLESS = {"set", "echo", "printf", ":", "true", "shopt", "umask", "trap", "date", "whoami", "hash", "alias", "wait"}
_CONDA_HOOK = re.compile(r'eval "\$\(\s*\S*(?:conda|mamba)"? (?:shell\S*|shell hook[^)]*)[^)]*\)"')


@dataclass
class Outcome:
    """What the script ends in. `ran` are commands before it that are not carried over, `notes` what else is not."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    activated: str = ""  # the environment that an activate script stands in, or what was given to `conda activate`
    ran: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    env_files: list[str] = field(default_factory=list)  # files of assignments that were sourced


@dataclass
class _State:
    env: dict[str, str]
    cwd: str
    arguments: list[str]
    name: str
    outcome: Outcome
    local: dict[str, str] = field(default_factory=dict)  # set, but not exported
    all_exported: bool = False  # set -a

    def look_up(self, name: str) -> str:
        return self.local.get(name, self.env.get(name, ""))


def follow(text: str, *, env: dict[str, str], cwd: str, arguments: list[str] | None = None, name: str = "sh", where: str = "the script") -> Outcome:
    """Follows the script from top to bottom. `arguments` are its $1, $2, ...; raises BadInput naming the line that cannot be followed."""
    outcome = Outcome(argv=[], env=dict(env), cwd=cwd)
    state = _State(env=outcome.env, cwd=cwd, arguments=list(arguments or []), name=name, outcome=outcome)
    last: list[str] | None = None
    for line, words in _Commands(_CONDA_HOOK.sub(":", text), state, where):
        if last is not None:
            outcome.ran.append(" ".join(last))  # it was no `exec`: something came after it
            last = None
        try:
            last, final = _one(words, state)
        except _Unclear as error:
            raise _unclear(where, line, str(error)) from error
        if final:
            break
    if last is None:
        raise BadInput(f"{where[:1].upper()}{where[1:]} ends in no command", why="Nothing in it starts a server",
                       hint="Adopt the unit that starts it")
    outcome.argv, outcome.cwd = last, state.cwd
    return outcome


class _Unclear(Exception):
    """Why a command cannot be followed."""


def _unclear(where: str, line: int, why: str) -> BadInput:
    return BadInput(f"Line {line} of {where} cannot be followed without running it", why=why,
                    hint="Put the command itself into ExecStart=, and variables into Environment= or EnvironmentFile=; then adopt the unit again")


def _one(words: list[tuple[str, bool]], state: _State) -> tuple[list[str] | None, bool]:
    """Does one command; gives the words of a program that it starts, and whether the script ends with it (`exec`)."""
    set_before: dict[str, str] = {}
    while words and (found := re.match(r"([A-Za-z_][A-Za-z0-9_]*)=", words[0][0])) and words[0][1]:
        set_before[found.group(1)] = words[0][0][found.end():]
        words = words[1:]
    argv = [word for word, _ in words]
    if not argv:
        for name, value in set_before.items():
            _assign(state, name, value, exported=name in state.env or state.all_exported)
        return None, False
    program = argv[0]
    if program in ("export", "declare", "typeset", "readonly", "local"):
        exported = program == "export" or "-x" in argv
        for word in argv[1:]:
            name, sign, value = word.partition("=")
            if word.startswith("-"):
                continue
            _assign(state, name, value if sign else state.look_up(name), exported=exported)
        return None, False
    if program == "unset":
        for name in argv[1:]:
            state.env.pop(name, None)
            state.local.pop(name, None)
        return None, False
    if program in ("source", "."):
        _source(argv[1:], state)
        return None, False
    if program == "cd":
        state.cwd = os.path.normpath(Path(state.cwd, argv[1] if len(argv) > 1 else state.look_up("HOME") or "/"))
        return None, False
    if Path(program).name in ("conda", "mamba", "micromamba") and argv[1:2] == ["activate"]:
        state.outcome.activated = argv[2] if len(argv) > 2 else "base"
        return None, False
    if program == "set":
        state.all_exported = (state.all_exported or _flags_of_set(argv[1:], "-")) and not _flags_of_set(argv[1:], "+")
        return None, False
    if program == "ulimit":
        state.outcome.notes.append(f"`{' '.join(argv)}`: use the unit's own Limit…= settings for it")
        return None, False
    if program in _HARMLESS:
        return None, False
    if program in ("return", "exit"):
        raise _Unclear(f"It ends with `{program}` before a server is started")
    final = program == "exec"
    if final:
        argv = argv[1:]
        if argv[:1] == ["-a"]:
            argv = argv[2:]
        if not argv:
            return None, False  # a redirection of the script's own output
    for name, value in set_before.items():
        state.env[name] = value
    return argv, final


def _flags_of_set(words: list[str], sign: str) -> bool:
    return any(word.startswith(sign) and "a" in word[1:] and not word.startswith(sign + "o") for word in words) or (
        f"{sign}o" in words and "allexport" in words)


def _assign(state: _State, name: str, value: str, *, exported: bool) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise _Unclear(f"`{name}` is no variable's name")
    (state.env if exported else state.local)[name] = value
    if exported:
        state.local.pop(name, None)


def _source(words: list[str], state: _State) -> None:
    if not words:
        raise _Unclear("`source` without a file")
    path = os.path.normpath(Path(state.cwd, words[0]))
    folder, name = os.path.split(path)
    if name == "activate" and len(words) > 1:
        state.outcome.activated = words[1]  # conda's own: source /opt/conda/bin/activate NAME
    elif name == "activate" and Path(folder).name == "bin":
        environment = str(Path(folder).parent)
        state.outcome.activated = environment
        state.env["VIRTUAL_ENV"] = environment
        state.env["PATH"] = os.pathsep.join([folder, state.env.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])
    elif name not in ("conda.sh", "mamba.sh"):  # those only bring `conda activate`
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")[:SCRIPT_LIMIT]
        except OSError as error:
            raise _Unclear(f"It sources `{path}`, which cannot be read: {error.strerror or error}") from error
        for line, words_of_line in _Commands(text, state, path):
            argv, _ = _one(words_of_line, state)
            if argv is not None:
                raise _Unclear(f"It sources `{path}`, which runs `{argv[0]}` in line {line}")
        state.outcome.env_files.append(path)


# ---- words ----


class _Commands:
    """Simple commands one after another, as (line, [(word, begins unquoted)]): each is expanded when it is reached, after those before it."""

    def __init__(self, text: str, state: _State, where: str) -> None:
        self._text, self._state, self._where = text, state, where
        self._place, self._line = 0, 1

    def __iter__(self) -> _Commands:
        return self

    def __next__(self) -> tuple[int, list[tuple[str, bool]]]:
        while self._place < len(self._text):
            line = self._line
            try:
                words = self._next()
            except _Unclear as error:
                raise _unclear(self._where, line, str(error)) from error
            if words:
                return line, words
        raise StopIteration

    def _next(self) -> list[tuple[str, bool]]:
        """One simple command: up to a newline, `;` or `&&`."""
        text = self._text
        words: list[tuple[str, bool]] = []
        while self._place < len(text):
            c = text[self._place]
            if c == "\\" and text.startswith("\\\n", self._place):
                self._line += 1
                self._place += 2
            elif c in " \t\r":
                self._place += 1
            elif c == "\n":
                self._line += 1
                self._place += 1
                if words:
                    return words
            elif c == "#":
                end = text.find("\n", self._place)
                self._place = end if end >= 0 else len(text)
            elif c == ";":
                self._place += 1
                if words:
                    return words
            elif text.startswith("&&", self._place):
                self._place += 2
                if words:
                    return words
            elif text.startswith("||", self._place):
                rest = text[self._place + 2:].lstrip()
                if re.match(r"(exit|true|:|return|echo)\b", rest):  # what is done when it fails: it is taken not to
                    end = text.find("\n", self._place)
                    self._place = end if end >= 0 else len(text)
                    return words
                raise _Unclear("It has `||`: what runs is decided while it runs")
            elif c == "|":
                self._pipe(words)
                return words
            elif c == "&" and not text.startswith("&>", self._place):
                raise _Unclear("It starts something in the background")
            elif c in "()":
                raise _Unclear("It has a subshell or a function")
            elif found := re.compile(r"(?:[0-9]*|&)(?:>>?\|?|<<?<?)(?:&(?:[0-9]+|-))?").match(text, self._place):
                if "<<" in found.group():
                    raise _Unclear("It has a here-document")
                self._place = found.end()
                if "&" not in found.group()[1:]:
                    self._word()  # where the output goes: the journal has it now
                self._note("what it writes goes to the journal (or the service's log), not into a file of the script's own")
            else:
                word, many = self._word()
                if not words and word and word[0] in _WORDS_OF_CONTROL:
                    raise _Unclear(f"It has `{word[0]}`: what runs is decided while it runs")
                words += [(one, many and index == 0) for index, one in enumerate(word)]
        return words

    def _pipe(self, words: list[tuple[str, bool]]) -> None:
        rest = self._text[self._place + 1:]
        if not re.match(r"&?\s*(tee|ts|logger|systemd-cat|cat|rotatelogs|multilog|svlogd)\b", rest):
            raise _Unclear("It has a pipe")
        end = rest.find("\n")
        self._place = self._place + 1 + end if end >= 0 else len(self._text)
        self._note("its output is not piped into another program any more")

    def _note(self, text: str) -> None:
        if text not in self._state.outcome.notes:
            self._state.outcome.notes.append(text)

    def _word(self) -> tuple[list[str], bool]:
        """The next word, expanded: usually one, none or several where a variable stands without quotes; and whether it begins without them."""
        while self._text[self._place:self._place + 1] in (" ", "\t"):
            self._place += 1
        text, begin = self._text, self._place
        fields: list[str] = [""]
        quoted = False
        while self._place < len(text):
            c = text[self._place]
            if c in " \t\r\n;&|<>()":
                break
            if c == "'":
                end = text.find("'", self._place + 1)
                if end < 0:
                    raise _Unclear("A ' has no end")
                fields[-1] += text[self._place + 1:end]
                self._line += text.count("\n", self._place, end)
                self._place, quoted = end + 1, True
            elif c == '"':
                self._double(fields)
                quoted = True
            elif c == "\\":
                if text.startswith("\\\n", self._place):
                    self._line += 1
                else:
                    fields[-1] += text[self._place + 1:self._place + 2]
                    quoted = True
                self._place += 2
            elif c == "`":
                raise _Unclear("It takes a value from a command")
            elif c == "$":
                self._variable(fields, quoted=False)
            elif c in "*?[" and not fields[-1].startswith("-") and "=" not in fields[-1]:
                raise _Unclear(f"It has a pattern of file names (`{text[begin:self._place + 1]}`)")
            elif c == "~" and self._place == begin and text[self._place + 1:self._place + 2] in ("/", "", " ", "\n"):
                fields[-1] += self._state.look_up("HOME") or "~"
                self._place += 1
            else:
                fields[-1] += c
                self._place += 1
        if fields == [""] and not quoted:
            return [], False
        return fields, text[begin:begin + 1] not in ("'", '"', "\\")

    def _double(self, fields: list[str]) -> None:
        text = self._text
        self._place += 1
        while self._place < len(text):
            c = text[self._place]
            if c == '"':
                self._place += 1
                return
            if c == "\\" and text[self._place + 1:self._place + 2] in ('"', "\\", "$", "`", "\n"):
                if text[self._place + 1] == "\n":
                    self._line += 1
                else:
                    fields[-1] += text[self._place + 1]
                self._place += 2
            elif c == "`":
                raise _Unclear("It takes a value from a command")
            elif c == "$":
                self._variable(fields, quoted=True)
            else:
                self._line += c == "\n"
                fields[-1] += c
                self._place += 1
        raise _Unclear('A " has no end')

    def _variable(self, fields: list[str], *, quoted: bool) -> None:
        text, state = self._text, self._state
        if text.startswith("$(", self._place):
            raise _Unclear("It takes a value from a command")
        if found := re.compile(r"\$(?:@|\*|\{[@*]\})").match(text, self._place):
            self._place = found.end()
            if state.arguments:
                fields[-1] += state.arguments[0]
                fields += state.arguments[1:]
            return
        if found := re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*|[0-9#$])|\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+)(?:(:?[-=+?])([^{}]*))?\})").match(
                text, self._place):
            self._place = found.end()
            name, how, other = found.group(1) or found.group(2), found.group(3) or "", found.group(4) or ""
            value = self._value(name)
            if how and how.endswith(("-", "=")) and not value:
                value = self._plain(other)
            elif how and how.endswith("+"):
                value = self._plain(other) if value else ""
            elif how and how.endswith("?") and not value:
                raise _Unclear(f"${name} is not set")
            if quoted or (len(fields) == 1 and re.match(r"[A-Za-z_][A-Za-z0-9_]*=", fields[0])):  # an assignment's value is not cut into words
                fields[-1] += value
            else:
                parts = value.split()
                if parts:
                    fields[-1] += parts[0]
                    fields += parts[1:]
            return
        if text.startswith("${", self._place):
            raise _Unclear("It has an expansion that is not followed here")
        fields[-1] += "$"
        self._place += 1

    def _plain(self, text: str) -> str:
        """The other value of `${NAME:-other}`: plain, or a variable itself."""
        if "`" in text or "$(" in text:
            raise _Unclear("It takes a value from a command")
        text = text.strip("\"'")
        return re.sub(r"\$([A-Za-z_][A-Za-z0-9_]*)", lambda found: self._value(found.group(1)), text)

    def _value(self, name: str) -> str:
        if name.isdigit():
            number = int(name)
            return self._state.name if number == 0 else (self._state.arguments[number - 1] if number <= len(self._state.arguments) else "")
        if name in ("#", "$"):
            return str(len(self._state.arguments)) if name == "#" else "$"
        return self._state.look_up(name)
