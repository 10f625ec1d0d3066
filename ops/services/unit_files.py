"""A systemd unit as it is: its file and drop-ins in systemd's order, and what they say together. Nothing is run, nothing is changed.

Follows systemd.unit(5) (search path, drop-ins, specifiers), systemd.syntax(7) (lines, quoting, escapes) and systemd.exec(5),
systemd.service(5) (Environment=, ExecStart=). Where systemd runs, it is asked which files it uses; the files are read all the same, since
`systemctl show` prints command lines without their quotes.
"""

from __future__ import annotations

import grp
import os
import platform
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ops.jobs.errors import BadInput, OpsError
from ops.services import systemctl

SYSTEM_PATH = (
    "/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient", "/run/systemd/generator.early", "/etc/systemd/system",
    "/etc/systemd/system.attached", "/run/systemd/system", "/run/systemd/system.attached", "/run/systemd/generator", "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/generator.late")
UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\-]{1,200}(?:@[A-Za-z0-9:_.\\-]{0,200})?\.service\Z")
FILE_LIMIT = 1024 * 1024  # bytes; systemd takes lines of 1 MB
SYSTEMCTL_S = 20.0
BLANK = " \t\n\r"
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'", "s": " "}
_DIGITS = {"x": (2, 16), "u": (4, 16), "U": (8, 16)}


@dataclass(frozen=True, slots=True)
class Setting:
    """One assignment: `[section] key=value`, and where it stands."""

    section: str
    key: str
    value: str
    file: Path
    line: int


@dataclass
class Unit:
    """A unit with all its settings in the order in which they count. `name` is the full one (`vllm@a.service`)."""

    name: str
    files: list[Path]  # the unit's own file first, then its drop-ins
    texts: dict[Path, str]
    settings: list[Setting]
    user: bool = False  # a unit of a user's own manager (`systemctl --user`)
    problems: list[str] = field(default_factory=list)
    needs_reload: bool = False  # the files are newer than what systemd works with

    @property
    def path(self) -> Path:
        return self.files[0]

    @property
    def text(self) -> str:
        """All files as `systemctl cat` prints them."""
        return "\n".join(f"# {path}\n{self.texts[path]}" for path in self.files)

    def values(self, key: str, section: str = "Service") -> list[Setting]:
        """All that counts of a setting that may stand several times: an empty assignment drops those before it."""
        found: list[Setting] = []
        for setting in self.settings:
            if (setting.section, setting.key) == (section, key):
                found = [*found, setting] if setting.value else []
        return found

    def value(self, key: str, section: str = "Service") -> str:
        """The last assignment of a setting that has one value; "" if there is none. Specifiers are expanded."""
        last = [setting.value for setting in self.settings if (setting.section, setting.key) == (section, key)]
        return self.expand(last[-1]) if last and last[-1] else ""

    def without(self, path: Path) -> Unit:
        """The same unit as it would be without one of its drop-ins."""
        return Unit(name=self.name, files=[one for one in self.files if one != path], texts=self.texts, user=self.user, problems=list(self.problems),
                    settings=[setting for setting in self.settings if setting.file != path], needs_reload=self.needs_reload)

    # ---- what settings say ----

    def commands(self, key: str = "ExecStart") -> list[Command]:
        """The command lines of ExecStart= (or another Exec key)."""
        made: list[Command] = []
        for setting in self.values(key):
            try:
                made += self._commands(setting)
            except ValueError as error:
                self.problems.append(f"{setting.file}:{setting.line}: {key}= cannot be read: {error}")
        return made

    def _commands(self, setting: Setting) -> list[Command]:
        made, words = [], []
        for word in [*split(setting.value, separator=True), None]:
            if word is not None:
                words.append(word)
            elif words:
                made.append(self._command(words, setting))
                words = []
        return made

    def _command(self, words: list[str], setting: Setting) -> Command:
        first = words[0]
        bare = first.lstrip("@-:+!|")
        prefixes = first[:len(first) - len(bare)]
        argv = [self.expand(bare), *map(self.expand, words[1:])]
        if "@" in prefixes and len(argv) > 1:
            del argv[1]  # the name that the process shall see as its own
        return Command(argv=argv, prefixes=prefixes, setting=setting)

    def environment(self) -> dict[str, str]:
        """Environment=, without the files."""
        found: dict[str, str] = {}
        for setting in self.values("Environment"):
            try:
                words = [word for word in split(setting.value) if word is not None]
            except ValueError as error:
                self.problems.append(f"{setting.file}:{setting.line}: Environment= cannot be read: {error}")
                continue
            for word in map(self.expand, words):
                name, sign, value = word.partition("=")
                if sign and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                    found[name] = value
                else:
                    self.problems.append(f"{setting.file}:{setting.line}: a word of Environment= is no assignment, systemd leaves it out")
        return found

    def environment_files(self) -> list[str]:
        """EnvironmentFile=, in order, absolute; `-` before those that may be missing. Patterns stay patterns."""
        found = []
        for setting in self.values("EnvironmentFile"):
            path = self.expand(setting.value)
            optional, path = path.startswith("-"), path.removeprefix("-")
            if path.startswith("/"):
                found.append(("-" if optional else "") + os.path.normpath(path))
            else:
                self.problems.append(f"{setting.file}:{setting.line}: EnvironmentFile= names no absolute path, systemd leaves it out")
        return found

    def account(self) -> pwd.struct_passwd | None:
        """The user that its processes run as; None if this host has no such user (or systemd makes one up at each start)."""
        return account(self.value("User")) if self.value("User") else manager_account(self)

    def expand(self, text: str) -> str:
        """With specifiers (%i, %h, ...) expanded; one that is not known here stays as it is and is noted."""
        if "%" not in text:
            return text

        def one(found: re.Match[str]) -> str:
            value = _specifier(self, found.group(1))
            if value is None:
                self.problems.append(f"The specifier `{found.group()}` is not known here")
                return found.group()
            return value

        return re.sub(r"%(.)", one, text, flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """One command line, with the variables of the unit not yet put in."""

    argv: list[str]
    prefixes: str  # of "@-:+!|"
    setting: Setting

    def with_variables(self, variables: dict[str, str]) -> list[str]:
        """The words as the process gets them: `${NAME}` in its place, `$NAME` alone split into words, `$$` a dollar sign."""
        if ":" in self.prefixes:
            return list(self.argv)
        words = [self.argv[0]]
        for word in self.argv[1:]:
            if alone := re.fullmatch(r"\$([A-Za-z_][A-Za-z0-9_]*)", word):
                words += split_plain(variables.get(alone.group(1), ""))
            else:
                words.append(re.sub(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)\})",
                                    lambda found: variables.get(found.group(1), "") if found.group(1) else "$", word))
        return words


# ---- finding the files ----


def unit_name(text: str) -> str:
    """The full name: `vllm` becomes `vllm.service`. Raises BadInput for what is no service unit."""
    name = text if text.endswith(".service") else f"{text}.service"
    if not UNIT_NAME.match(name) or text.startswith("-"):
        raise BadInput(f"`{text[:80]}` is not the name of a service unit", hint="For example vllm, vllm.service or vllm@kimi.service")
    if name.endswith("@.service"):
        raise BadInput(f"`{name}` is a template", why="A template is no unit before it has an instance", hint="Name one, such as "
                       f"{name.removesuffix('.service')}NAME.service")
    return name


def search_path(*, user: bool = False) -> list[Path]:
    """Where systemd looks for units, first wins. `user`: the paths of `systemctl --user` for the user that asks."""
    if not user:
        return [Path(path) for path in SYSTEM_PATH]
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "systemd"
    return [config / "systemd/user.control", runtime / "user.control", runtime / "transient", runtime / "generator.early", config / "systemd/user",
            Path("/etc/systemd/user"), runtime / "user", Path("/run/systemd/user"), runtime / "generator", data / "systemd/user",
            Path("/usr/local/lib/systemd/user"), Path("/usr/lib/systemd/user"), Path("/lib/systemd/user"), runtime / "generator.late"]


def read(name: str, *, path: Sequence[Path | str] | None = None, user: bool = False, systemctl: Sequence[str] | None = None) -> Unit:
    """The unit. `path`: search these folders alone, in this order, and ask nobody. `systemctl`: how to call it (default: if systemd runs here).

    Raises BadInput if there is no such unit, or if it is masked; OpsError where a file cannot be read.
    """
    full = unit_name(name)
    if path is None and systemctl is None and Path("/run/systemd/system").is_dir() and shutil.which("systemctl"):
        systemctl = ["systemctl", *(["--user"] if user else [])]
    asked = _ask(full, systemctl) if path is None and systemctl is not None else None
    folders = search_path(user=user) if path is None else [Path(folder) for folder in path]
    if asked is not None:
        files, needs_reload = asked
    else:
        files, needs_reload = _files(full, folders), False
    unit = Unit(name=full, files=files, texts={}, settings=[], user=user, needs_reload=needs_reload)
    for file in files:
        unit.texts[file] = _text(file)
        unit.settings += settings(unit.texts[file], file, unit.problems)
    return unit


def _ask(name: str, systemctl: Sequence[str]) -> tuple[list[Path], bool] | None:
    """Which files systemd uses for the unit, and whether they are newer than what it has read; None if it does not answer."""
    try:
        done = subprocess.run([*systemctl, "show", "--no-pager", "--property=LoadState,FragmentPath,DropInPaths,NeedDaemonReload", "--", name],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SYSTEMCTL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None  # no manager on the other side (a container, a chroot): the files are there all the same
    told = dict(line.partition("=")[::2] for line in done.stdout.splitlines() if "=" in line)
    if told.get("LoadState") == "masked":
        raise _masked(name, Path(told.get("FragmentPath") or name))
    if not told.get("FragmentPath"):
        return None  # not loaded, and perhaps not found: the search path says it
    return [Path(told["FragmentPath"]), *map(Path, told.get("DropInPaths", "").split())], told.get("NeedDaemonReload") == "yes"


def _files(name: str, folders: Sequence[Path]) -> list[Path]:
    candidates = [name]
    if template := _template(name):
        candidates.append(template)
    found, names = None, {name: None}  # in order: a dict keeps it
    for candidate in candidates:
        for folder in folders:
            if (folder / candidate).is_symlink() or (folder / candidate).exists():
                found = folder / candidate
                break
        if found:
            break
    if found is None:
        looked = ", ".join(str(folder) for folder in folders if folder.is_dir())
        raise BadInput(f"There is no unit `{name}`", why=f"Looked in {looked or 'no folder: none of the search path exists'}",
                       hint="`systemctl list-units --type=service --all` lists those that systemd knows; --user looks at your own")
    if found.is_symlink():
        target = Path(os.path.realpath(found))
        if str(target) == "/dev/null":
            raise _masked(name, found)
        if UNIT_NAME.match(target.name) or target.name.endswith("@.service"):  # an alias: drop-ins of either name count
            real = target.name.replace("@.service", f"@{_parts(name)[1]}.service") if target.name.endswith("@.service") else target.name
            names[real] = None
        if not target.exists():
            raise BadInput(f"The unit file `{found}` points nowhere", why=f"`{target}` is not there")
    elif found.stat().st_size == 0:
        raise _masked(name, found)
    drop_ins: dict[str, Path] = {}
    for base in [folder / f"{one}.d" for wanted in names for folder in folders for one in _drop_in_names(wanted)] + [
            folder / "service.d" for folder in folders]:
        for file in sorted(base.glob("*.conf")) if base.is_dir() else []:
            drop_ins.setdefault(file.name, file)  # the first of a name hides the others
    return [found, *(file for _, file in sorted(drop_ins.items()) if os.path.realpath(file) != "/dev/null" and not file.is_dir())]


def _masked(name: str, path: Path) -> BadInput:
    return BadInput(f"The unit `{name}` is masked", why=f"`{path}` says that nobody may start it", hint=f"`systemctl unmask {name}` first")


def _parts(name: str) -> tuple[str, str]:
    """Prefix and instance of a unit's name."""
    prefix, _, instance = name.removesuffix(".service").partition("@")
    return prefix, instance


def _template(name: str) -> str:
    return f"{_parts(name)[0]}@.service" if "@" in name else ""


def _drop_in_names(name: str) -> list[str]:
    """Names of the drop-in folders of one unit, the most exact first: `a-b@i.service`, `a-b@.service`, `a-@i.service`, ..., `a-.service`."""
    prefix, instance = _parts(name)
    prefixes = [prefix]
    while (cut := prefix.rstrip("-").rfind("-")) > 0:
        prefix = prefix[:cut + 1]
        prefixes.append(prefix)
    if "@" not in name:
        return [f"{one}.service" for one in prefixes]
    shorter = [f"{one}.service" for one in prefixes[1:]]
    return [*(f"{one}@{end}.service" for one in prefixes for end in (instance, "")), *shorter]


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > FILE_LIMIT:
            raise OpsError(f"`{file}` is too large for a unit file")
        return file.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise OpsError(f"`{file}` cannot be read", why=error.strerror or str(error), hint="Run this as a user who may read the unit") from error


def matching(pattern: str) -> list[str]:
    """The files that a path of EnvironmentFile= names: it may hold `*`, `?` and `[...]`."""
    plain = re.sub(r"\*+", "*", pattern)  # `**` is nothing special to systemd; here it would search the whole disk
    return sorted(str(path) for path in Path("/").glob(plain.lstrip("/"))) if re.search(r"[*?[]", pattern) else [pattern]


# ---- reading a file ----


def settings(text: str, file: Path, problems: list[str] | None = None) -> list[Setting]:
    """The assignments of a unit file, continued lines joined. What systemd would leave out is left out, and noted in `problems`."""
    noted = problems if problems is not None else []
    found: list[Setting] = []
    section, held, began = "", "", 0
    lines = text.replace("\r\n", "\n").split("\n")
    for number, raw in enumerate(lines, 1):
        if raw.lstrip(BLANK)[:1] in ("#", ";"):
            continue  # also between continued lines
        line = held + raw
        began = began if held else number
        if (len(line) - len(line.rstrip("\\"))) % 2 and number < len(lines):
            held = line[:-1] + " "
            continue
        held = ""
        line = line.rstrip("\\") if number == len(lines) and line.endswith("\\") else line
        line = line.strip(BLANK)
        if not line:
            continue
        if line.startswith("["):
            section = line[1:-1] if line.endswith("]") else ""
            if not section:
                noted.append(f"{file}:{began}: `{line[:60]}` is no section")
            continue
        key, sign, value = line.partition("=")
        if not sign or not section:
            noted.append(f"{file}:{began}: this line is no assignment in a section, systemd leaves it out")
            continue
        found.append(Setting(section, key.rstrip(BLANK), value.lstrip(BLANK), file, began))
    return found


def split(text: str, *, separator: bool = False) -> list[str | None]:
    """Words as systemd.syntax(7) has them: quotes anywhere in a word, C escapes in and out of quotes.

    `separator`: a bare `;` between words becomes None, `\\;` is one as a word. Raises ValueError for a quote without its end.
    """
    words: list[str | None] = []
    word: list[str] | None = None
    quote, place = "", 0
    while place < len(text):
        c = text[place]
        if separator and word is None and not quote:
            if c == ";" and text[place + 1:place + 2] in ("", *BLANK):
                words.append(None)
                place += 1
                continue
            if text.startswith("\\;", place) and text[place + 2:place + 3] in ("", *BLANK):
                words.append(";")
                place += 2
                continue
        if not quote and c in BLANK:
            if word is not None:
                words.append("".join(word))
                word = None
            place += 1
            continue
        word = [] if word is None else word
        if c == quote:
            quote = ""
        elif not quote and c in "'\"":
            quote = c
        elif c == "\\":
            value, place = _unescape(text, place)
            word.append(value)
            continue
        else:
            word.append(c)
        place += 1
    if quote:
        raise ValueError(f"a {quote} has no end")
    if word is not None:
        words.append("".join(word))
    return words


def _unescape(text: str, place: int) -> tuple[str, int]:
    """What the escape at `place` (a backslash) stands for, and where the text goes on. An unknown one stays as it is written."""
    c = text[place + 1:place + 2]
    if not c:
        raise ValueError("a backslash ends the line")
    if c in _ESCAPES:
        return _ESCAPES[c], place + 2
    if c in _DIGITS:
        count, base = _DIGITS[c]
        digits = text[place + 2:place + 2 + count]
        if re.fullmatch(f"[0-9A-Fa-f]{{{count}}}", digits) and 0 < int(digits, base) < 0x110000:
            return chr(int(digits, base)), place + 2 + count
    elif re.fullmatch("[0-3][0-7]{2}", text[place + 1:place + 4]) and int(text[place + 1:place + 4], 8):
        return chr(int(text[place + 1:place + 4], 8)), place + 4
    return "\\" + c, place + 2


def split_plain(text: str) -> list[str]:
    """How systemd cuts the value of `$NAME` into words: at blanks, with quotes (relaxed: a quote without its end is taken as it is)."""
    try:
        return [word for word in split(text) if word is not None]
    except ValueError:
        return text.split()


# ---- specifiers ----


def account(name: str) -> pwd.struct_passwd | None:
    """A user of this host, by name or number; None if there is none."""
    try:
        return pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        return None


def manager_account(unit: Unit) -> pwd.struct_passwd | None:
    """Whom %u and %h mean: the user of the manager, which for system units is root, whatever User= says."""
    try:
        return pwd.getpwuid(os.getuid() if unit.user else 0)
    except KeyError:
        return None


def _specifier(unit: Unit, letter: str) -> str | None:
    prefix, instance = _parts(unit.name)
    who = manager_account(unit)
    home = who.pw_dir if who else "/root"
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    of_user: Callable[[str, str], str] = lambda system, own: own if unit.user else system  # noqa: E731
    table: dict[str, Callable[[], str]] = {
        "%": lambda: "%", "n": lambda: unit.name, "N": lambda: unit.name.removesuffix(".service"), "p": lambda: prefix, "P": lambda: _plain(prefix),
        "i": lambda: instance, "I": lambda: _plain(instance), "j": lambda: prefix.rpartition("-")[2], "J": lambda: _plain(prefix.rpartition("-")[2]),
        "f": lambda: "/" + _plain(instance or prefix).lstrip("/"), "y": lambda: str(unit.path), "Y": lambda: str(unit.path.parent),
        "u": lambda: who.pw_name if who else "root", "U": lambda: str(who.pw_uid if who else 0), "h": lambda: home,
        "s": lambda: who.pw_shell if who else "/bin/sh", "g": lambda: _group(who), "G": lambda: str(who.pw_gid if who else 0),
        "H": socket.gethostname, "l": lambda: socket.gethostname().partition(".")[0], "q": socket.gethostname,
        "t": lambda: of_user("/run", runtime), "S": lambda: of_user("/var/lib", f"{home}/.local/state"),
        "C": lambda: of_user("/var/cache", f"{home}/.cache"), "L": lambda: of_user("/var/log", f"{home}/.local/state/log"),
        "E": lambda: of_user("/etc", f"{home}/.config"), "T": lambda: "/tmp", "V": lambda: "/var/tmp",  # noqa: S108
        "v": platform.release, "a": lambda: platform.machine().replace("_", "-").replace("aarch64", "arm64"),
        "b": lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""),
        "m": lambda: Path("/etc/machine-id").read_text().strip(), "o": lambda: _os_release("ID"), "w": lambda: _os_release("VERSION_ID"),
        "W": lambda: _os_release("VARIANT_ID"), "B": lambda: _os_release("BUILD_ID"), "M": lambda: _os_release("IMAGE_ID"),
        "A": lambda: _os_release("IMAGE_VERSION"), "d": lambda: f"/run/credentials/{unit.name}",
    }
    try:
        return table[letter]() if letter in table else None
    except OSError:
        return None


def _plain(escaped: str) -> str:
    """systemd's own escaping undone: `-` is `/`, `\\xNN` a byte."""
    text = escaped.replace("-", "/")
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found.group(1), 16)]), text.encode())
    return raw.decode(errors="replace")


def _group(who: pwd.struct_passwd | None) -> str:
    try:
        return grp.getgrgid(who.pw_gid if who else 0).gr_name
    except KeyError:
        return str(who.pw_gid if who else 0)


def _os_release(key: str) -> str:
    text = Path("/etc/os-release").read_text(errors="replace")
    found = re.search(rf'^{key}="?([^"\n]*)"?$', text, re.MULTILINE)
    return found.group(1) if found else ""


# ---- what settings mean ----


def unit_notes(told: Mapping[str, str]) -> list[str]:
    """What a unit's settings mean for a vLLM server, one sentence each; [] if there is nothing to say."""
    notes = []
    restart = told.get("Restart", "")
    if restart in ("on-failure", "on-abnormal", "on-abort", "on-watchdog"):
        notes.append(f"Restart={restart} does not fire when vLLM's engine dies: vLLM ends with exit code 0 then. Restart=always does")
    elif restart == "on-success":
        notes.append("Restart=on-success fires when vLLM's engine dies (exit code 0), but not when it crashes")
    kill_mode = told.get("KillMode", "")
    if kill_mode in ("process", "none"):
        notes.append(f"KillMode={kill_mode}: a stop leaves engine and workers to themselves, with their GPU memory. KillMode=mixed ends them")
    if told.get("SendSIGKILL") == "no":
        notes.append("SendSIGKILL=no: a server that ignores SIGTERM (vLLM does while it starts) is never ended by systemd")
    if (limit := systemctl.seconds(told.get("TimeoutStopUSec", ""))) is not None and limit < 20:
        notes.append(f"TimeoutStopSec={limit:g}: requests that are being answered are cut off after that time")
    elif told.get("TimeoutStopUSec") == "infinity":
        notes.append("TimeoutStopSec=infinity: an open stream, or a start that is going on, can keep the server from ending for ever")
    elif limit is not None and limit > 60:
        notes.append(f"TimeoutStopSec={limit:g}: a stop while vLLM starts, or while a stream is open, may take all of it")
    return notes
