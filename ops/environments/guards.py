"""Do the model folder's expectations hold? Checked before *stop* and after *switch*; "apply" mends those that are about single keys.

A model folder is untrusted: files are only parsed as JSON, up to a size, and nothing in it is imported or run. What a check finds out about a huge
file is remembered (ops/environments/model_files.py), so that the next check costs a stat a file.
"""

from __future__ import annotations

import dataclasses
import fcntl
import fnmatch
import hashlib
import json
import os
import shutil
import stat
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.environments import json_edit, model_files, text_diff
from ops.environments.model_files import Memory, read_limited
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.jobs.journal import sync_folder
from ops.records import Guard, ServiceRecord
from ops.services import state

PRESETS = Path(__file__).with_name("guard_presets.toml")
APPLICABLE = ("key_absent", "key_equals")
MATCHES_NAMED = 5
DIFF_BYTES = 256 * 1024
_MISSING = object()


@dataclass(frozen=True, slots=True)
class GuardResult:
    """One guard held against the model folder. `sha256` is the file's, so that before and after can be compared; None: no such file, or not hashed.

    `can_apply`: `apply` would mend it.
    """

    guard: dict[str, Any]
    holds: bool
    explains: str
    path: str
    sha256: str | None = None
    fix: str = ""
    found: Any = field(default=None)  # what stands at the key, shortened; None also for an absent key
    can_apply: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {"guard": self.guard, "holds": self.holds, "explains": self.explains, "path": self.path, "sha256": self.sha256,
                "fix": self.fix, "found": self.found, "can_apply": self.can_apply}


# Checking


def check(record: ServiceRecord) -> list[GuardResult]:
    """One result for each guard of the service, in its order. Raises BadInput for a guard that is none.

    Guards about keys cost milliseconds. A huge file is hashed (1.3 GB a second), and the headers of shards are read, when they are new.
    """
    guards = [Guard.from_dict(raw) for raw in record.guards]
    if not guards:
        return []
    memory = Memory.of(record.folder)
    look = _Look(Path(record.model_path), memory)
    results = [look.at(guard) for guard in guards]
    memory.save()
    return results


def stamp(record: ServiceRecord) -> list[Any]:
    """Changes whenever a file changes that a guard of the service looks at: names, sizes and times; no file is opened."""
    folder = Path(record.model_path)
    told: list[Any] = []
    wide = False
    for raw in record.guards:
        guard = Guard.from_dict(raw)
        told.append((guard.file, _state_of(folder / guard.file)))
        wide = wide or guard.kind in ("shards_complete", "not_lfs_pointer")
    if wide:
        try:
            told += [(name, _state_of(folder / name)) for name in sorted(model_files.names(folder))]
        except OSError as error:
            told.append(error.strerror)
    return told


def _state_of(path: Path) -> list[int] | None:
    try:
        return model_files.file_key(path)
    except OSError:
        return None


class _Look:
    """One check of a model folder: a file that several guards are about is read once."""

    def __init__(self, folder: Path, memory: Memory) -> None:
        self.folder, self.memory = folder, memory
        self.contents: dict[Path, bytes] = {}

    def at(self, guard: Guard) -> GuardResult:
        told, path = guard.as_dict(), self.folder / guard.file
        try:
            if not self.folder.is_dir():
                return GuardResult(told, False, f"The model folder `{self.folder}` does not exist", str(path), fix="Mount or restore it")
            if guard.kind != "not_lfs_pointer" and any(character in guard.file for character in "*?[") and not os.path.lexists(path):
                return GuardResult(told, False, f"`{guard.file}` is a pattern: a guard of kind `{guard.kind}` names one file", str(path))
            return {"key_absent": self._key, "key_equals": self._key, "file_hash": self._hash, "file_present": self._present,
                    "shards_complete": self._shards, "not_lfs_pointer": self._pointers}[guard.kind](guard, told, path)
        except FileNotFoundError:
            return self._no_file(guard, told, path)
        except OpsError as error:
            return GuardResult(told, False, f"{error.what}: {error.why}" if error.why else error.what, str(path))
        except OSError as error:
            return GuardResult(told, False, f"`{path}` cannot be read: {error.strerror or error}", str(path))

    def _no_file(self, guard: Guard, told: dict[str, Any], path: Path) -> GuardResult:
        if path.is_symlink():
            return GuardResult(told, False, f"`{path.name}` is a link to nothing", str(path),
                               fix=f"The file itself was never fetched, or was deleted from the cache. {_again(self.folder)}")
        if guard.kind == "key_absent" and path.name != "config.json":  # optional files; every model has a config.json
            return GuardResult(told, True, f"There is no `{guard.file}`, so `{guard.key}` is not in it", str(path))
        return GuardResult(told, False, f"There is no `{guard.file}` in `{self.folder}`", str(path), fix=_again(self.folder))

    def _key(self, guard: Guard, told: dict[str, Any], path: Path) -> GuardResult:
        content = self.contents[path] = self.contents.get(path) or read_limited(path)
        digest = hashlib.sha256(content).hexdigest()
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            pointer = content.startswith(model_files.LFS)
            return GuardResult(told, False, f"`{guard.file}` is only a Git LFS pointer" if pointer else f"`{guard.file}` is not JSON: {reason}",
                               str(path), digest, fix=_again(self.folder) if pointer else "")
        value = look_up(document, guard.key)
        shown = shorten(None if value is _MISSING else value)
        if guard.kind == "key_absent":
            if value is _MISSING:
                return GuardResult(told, True, f"`{guard.key}` is not in `{guard.file}`", str(path), digest)
            if value is None:  # what readers of these files take as absent
                return GuardResult(told, True, f"`{guard.key}` is null in `{guard.file}`, which says the same as absent", str(path), digest)
            return GuardResult(told, False, f"`{guard.key}` is in `{guard.file}`, but must not be", str(path), digest,
                               f"Remove `{guard.key}` from `{path}`", shown, can_apply=True)
        if value is not _MISSING and _same(value, guard.value):
            return GuardResult(told, True, f"`{guard.key}` in `{guard.file}` is {shorten_any(guard.value)}", str(path), digest, "", shown)
        now = "is not there" if value is _MISSING else f"is {shorten_any(value)}"
        return GuardResult(told, False, f"`{guard.key}` in `{guard.file}` {now}, but must be {shorten_any(guard.value)}", str(path), digest,
                           f"Set `{guard.key}` to {shorten_any(guard.value)} in `{path}`", shown, can_apply=True)

    def _hash(self, guard: Guard, told: dict[str, Any], path: Path) -> GuardResult:
        digest = model_files.sha256(path, self.memory)
        if digest == guard.value:
            return GuardResult(told, True, f"`{guard.file}` is the file with SHA-256 {digest[:12]}…", str(path), digest)
        return GuardResult(told, False, f"`{guard.file}` has SHA-256 {digest[:12]}…, but must have {str(guard.value)[:12]}…", str(path), digest,
                           f"{_again(self.folder)} If the new file is meant, set the guard to {digest}", digest)

    def _present(self, guard: Guard, told: dict[str, Any], path: Path) -> GuardResult:
        size = model_files.file_key(path)[2]
        return GuardResult(told, True, f"`{guard.file}` is there ({size:,} bytes)", str(path))

    def _shards(self, guard: Guard, told: dict[str, Any], path: Path) -> GuardResult:
        found = model_files.shards(self.folder, guard.file, self.memory)
        if not found.wrong:
            count = f"All {len(found.names):,} shards that `{guard.file}` names are" if len(found.names) > 1 else f"`{found.names[0]}` is"
            return GuardResult(told, True, f"{count} whole ({found.bytes / 1e9:,.1f} GB)", str(path))
        more = f", and {len(found.wrong) - MATCHES_NAMED:,} more" if len(found.wrong) > MATCHES_NAMED else ""
        what = f"{len(found.wrong):,} of {len(found.names):,} shards are not whole" if len(found.names) > 1 else "The weights are not whole"
        return GuardResult(told, False, f"{what}: {'; '.join(found.wrong[:MATCHES_NAMED])}{more}", str(path), fix=_again(self.folder))

    def _pointers(self, guard: Guard, told: dict[str, Any], path: Path) -> GuardResult:
        matching = _matching(self.folder, guard.file)
        if not matching:
            return self._no_file(guard, told, path)
        if broken := [one for one in matching if not (self.folder / one).exists()]:
            return self._no_file(guard, told, self.folder / broken[0])
        pointers = [one for one in matching if model_files.is_lfs_pointer(self.folder / one)]
        if not pointers:
            told_of = f"`{model_files.as_text(matching[0])}` holds" if len(matching) == 1 else f"All {len(matching):,} files `{guard.file}` hold"
            return GuardResult(told, True, f"{told_of} content, not a Git LFS pointer", str(path))
        named = ", ".join(f"`{model_files.as_text(name)}`" for name in pointers[:MATCHES_NAMED])
        more = f" and {len(pointers) - MATCHES_NAMED:,} more" if len(pointers) > MATCHES_NAMED else ""
        return GuardResult(told, False, f"Only a Git LFS pointer: {named}{more}", str(path),
                           fix=f"Run `git lfs pull` in `{self.folder}`, or download the model again")


def _again(folder: Path) -> str:
    return f"Download the model into `{folder}` again: what is whole already is kept."


def _matching(folder: Path, pattern: str) -> list[str]:
    """Files that a name or a pattern (in its last part only) names, relative to the folder."""
    parent, name = os.path.split(pattern)
    if not any(character in name for character in "*?["):
        return [pattern] if os.path.lexists(folder / pattern) else []
    return sorted(str(Path(parent, found)) for found in model_files.names(folder / parent) if fnmatch.fnmatchcase(found, name))


def _same(value: Any, wanted: Any) -> bool:
    """Equality of JSON: true is not 1, 1 is 1.0."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, dict) and isinstance(wanted, dict):
        return value.keys() == wanted.keys() and all(_same(inner, wanted[name]) for name, inner in value.items())
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(_same, value, wanted))
    return bool(value == wanted)


def look_up(document: Any, key: str) -> Any:
    """What stands at the dotted `key` (numbers index lists), or a private mark where nothing does."""
    value = document
    for part in key.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
    return value


def is_missing(value: Any) -> bool:
    """Whether `look_up` found nothing."""
    return value is _MISSING


def shorten_any(value: Any, limit: int = 200) -> str:
    """The value as JSON text, cut to `limit` characters."""
    text = model_files.as_text(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shorten(value: Any, limit: int = 200) -> str | None:
    """The value as JSON text, cut to `limit` characters; None stays None."""
    return None if value is None else shorten_any(value, limit)


# Presets


def presets() -> list[dict[str, Any]]:
    """[{name, title, words, sources, guards}]: `guards` are those that hold for any model; `from_preset` adds what fits one."""
    return [{"name": preset["name"], "title": preset["title"], "words": preset["words"], "sources": list(preset["sources"]),
             "guards": [_guard_of(raw).as_dict() for raw in preset["guard"] if raw["when"] == "always"]}
            for preset in _presets()]


def from_preset(name: str, model_path: str | Path) -> list[Guard]:
    """The preset's guards for that model: those for every model, and those for files and objects that it has. Raises BadInput for an unknown name."""
    known = {preset["name"]: preset for preset in _presets()}
    if name not in known:
        raise BadInput(f"There is no guard preset `{name[:40]}`", hint=f"Use one of {', '.join(known)}")
    return [_guard_of(raw) for raw in known[name]["guard"] if raw["when"] == "always" or _is_there(_guard_of(raw), Path(model_path))]


def _presets() -> list[dict[str, Any]]:
    return list(tomllib.loads(PRESETS.read_text(encoding="utf-8"))["preset"])


def _guard_of(raw: dict[str, Any]) -> Guard:
    return Guard.from_dict({name: value for name, value in raw.items() if name != "when"})


def _is_there(guard: Guard, folder: Path) -> bool:
    """Whether the model has the guard's file; of a key, whether it has the object that would hold it, or, at the top, the key itself."""
    try:
        if not guard.key:
            return bool(_matching(folder, guard.file))
        document = json.loads(read_limited(folder / guard.file))
    except (OSError, OpsError, ValueError, RecursionError):  # not there, or not to be read: the guards for every model will say so
        return False
    outer, _, _ = guard.key.rpartition(".")
    return isinstance(look_up(document, outer), dict) if outer else not is_missing(look_up(document, guard.key))


# Applying


def apply(record: ServiceRecord, wanted: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """Edits the model folder so that the guards hold; [{"file", "backup", "diff"}] of each file that was changed.

    `wanted`: guards of the service (as records or as dicts); None: all of its guards about keys that do not hold now. All files are edited
    or none. The text is changed in the keys' places only, and mode and owner stay. A link (hub caches have one for each file) is replaced
    by a file of its own: the blob that others share is not touched. What was there lies in `services/<name>/guard-backups/` before
    anything is changed.

    Raises BadInput for a guard that is none of the service's, or one that an edit cannot mend (`hint` says what does); Refused for a file
    outside of the model folder; OpsError where a file cannot be read or written.
    """
    folder = Path(record.model_path)
    chosen = _chosen(record, wanted)
    by_file: dict[str, list[Guard]] = {}
    for guard in chosen:
        by_file.setdefault(os.path.normpath(guard.file), []).append(guard)
    if not by_file:
        return []
    with _one_at_a_time(folder):
        edits = [edit for file, guards in sorted(by_file.items()) if (edit := _Edit.prepare(folder, file, guards)) is not None]
        if not edits:
            return []
        kept = _back_up(record, edits)
        done: list[_Edit] = []
        try:
            for edit in edits:
                edit.write(edit.after)
                done.append(edit)
        except OSError as error:
            _put_back(done, kept)
            shutil.rmtree(kept, ignore_errors=True)
            raise OpsError(f"`{edits[len(done)].path}` cannot be changed", why=error.strerror or str(error),
                           hint="No file was changed. Edit it as its owner, or let the agent's user write the model folder") from error
    return [{"file": edit.file, "backup": str(kept / "files" / edit.file), "diff": edit.diff} for edit in edits]


def _put_back(done: Sequence[_Edit], kept: Path) -> None:
    for edit in reversed(done):
        try:
            edit.put_back()
        except OSError as error:
            raise OpsError(f"`{edit.path}` was edited, another file could not be, and the edit cannot be taken back",
                           why=error.strerror or str(error), hint=f"The file as it was: `{kept / 'files' / edit.file}`") from error


def _chosen(record: ServiceRecord, wanted: Sequence[Any] | None) -> list[Guard]:
    own = [Guard.from_dict(raw) for raw in record.guards]
    if wanted is None:
        return [guard for guard, result in zip(own, check(record), strict=True) if result.can_apply]
    chosen = [guard if isinstance(guard, Guard) else Guard.from_dict(guard) for guard in wanted]
    for guard in chosen:
        if guard not in own:
            raise BadInput(f"`{guard.kind}` of `{guard.file}` is no guard of service `{record.name}`", hint="Add it to the service first")
        if guard.kind not in APPLICABLE:
            (result,) = check(_with_guards(record, [guard]))
            raise BadInput(f"No edit makes this guard hold: {result.explains}", hint=result.fix)
    return chosen


def _with_guards(record: ServiceRecord, guards: Sequence[Guard]) -> ServiceRecord:
    return dataclasses.replace(record, guards=[guard.as_dict() for guard in guards])


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Two services may share a model folder: their edits wait for each other."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise OpsError(f"The model folder `{folder}` cannot be opened", why=error.strerror or str(error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass
class _Edit:
    """One file on its way to new content."""

    file: str  # relative to the model folder
    path: Path
    before: bytes
    after: bytes
    key: list[int]
    mode: int
    uid: int
    gid: int
    link: str | None
    attributes: dict[str, bytes]
    diff: str

    @classmethod
    def prepare(cls, folder: Path, file: str, guards: Sequence[Guard]) -> _Edit | None:
        """None if the guards hold already. Nothing is written."""
        path = folder / file
        inside = Path(os.path.realpath(folder))
        parent = Path(os.path.realpath(path.parent))
        if parent != inside and inside not in parent.parents:
            raise Refused(f"`{path}` lies outside of the model folder", why=f"A link on the way leads to `{parent}`",
                          hint="Only files of the model folder itself are edited")
        target = Path(os.path.realpath(path))
        if inside not in target.parents and not _is_blob(inside, target):
            raise Refused(f"`{path}` lies outside of the model folder", why=f"It is a link to `{target}`, whose content would be shown as a diff",
                          hint="Put a copy of that file in the link's place if it belongs to the model")
        try:
            key, before = model_files.file_key(target), read_limited(target)
            link = str(path.readlink()) if path.is_symlink() else None
            found = path.stat()
        except FileNotFoundError as error:
            raise OpsError(f"There is no `{file}` in `{folder}` to be edited", hint=_again(folder)) from error
        except OSError as error:
            raise OpsError(f"`{path}` cannot be read", why=error.strerror or str(error)) from error
        after = _edited(path, before, guards)
        if after == before:
            return None
        shown, was_cut = text_diff.cut(text_diff.unified(before, after, file) or "", DIFF_BYTES)
        return cls(file, parent / path.name, before, after, key, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, link, _attributes(path),
                   shown + ("… the rest of this diff is left out\n" if was_cut else ""))

    def write(self, content: bytes) -> None:
        """Puts a new file in the place of the old one, in one step. Raises OSError; PermissionError where it could not be given to its owner."""
        if model_files.file_key(self.path) != self.key:
            raise OSError(0, "somebody else has changed it a moment ago", str(self.path))
        temporary = self.path.with_name(f".{self.path.name}.roundhouse-{os.getpid()}")
        for left in _left_over(self.path):
            left.unlink(missing_ok=True)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                if (os.fstat(descriptor).st_uid, os.fstat(descriptor).st_gid) != (self.uid, self.gid):
                    self._give_away(descriptor)
                for name, value in self.attributes.items():
                    os.setxattr(descriptor, name, value)
                os.fchmod(descriptor, self.mode)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(self.path.parent)
        self.key = model_files.file_key(self.path)

    def _give_away(self, descriptor: int) -> None:
        try:
            os.fchown(descriptor, self.uid, self.gid)
        except PermissionError as error:
            raise PermissionError(error.errno, f"it belongs to another user (uid {self.uid}, gid {self.gid}), and a new file cannot be given to them",
                                  str(self.path)) from error

    def put_back(self) -> None:
        """As it was: the content, or the link."""
        if self.link is None:
            self.write(self.before)
            return
        temporary = self.path.with_name(f".{self.path.name}.roundhouse-{os.getpid()}")
        temporary.symlink_to(self.link)
        temporary.replace(self.path)
        sync_folder(self.path.parent)


def _is_blob(folder: Path, target: Path) -> bool:
    """Whether the file is the model's own in a hub's cache: `models--org--name/snapshots/<revision>/config.json` links to `../../blobs/<hash>`."""
    return folder.parent.name == "snapshots" and folder.parents[1] / "blobs" in target.parents


def _left_over(path: Path) -> list[Path]:
    """New content of the file that never came to its place, because its writer was killed: whoever edits has the model folder for itself."""
    start = f".{path.name}.roundhouse-"
    return [one for one in path.parent.iterdir() if one.name.startswith(start) and one.name.removeprefix(start).isdecimal()]


def _attributes(path: Path) -> dict[str, bytes]:
    """Extended attributes that a copy must have too: access lists and what users put there."""
    try:
        return {name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith(("user.", "system.posix_acl_access"))}
    except OSError:  # this file system has none
        return {}


def _edited(path: Path, before: bytes, guards: Sequence[Guard]) -> bytes:
    """The content with the guards' keys as wanted. Raises OpsError if it is no JSON in UTF-8, or if the edit did more than it should."""
    mark = b"\xef\xbb\xbf" if before.startswith(b"\xef\xbb\xbf") else b""
    try:
        text = before[len(mark):].decode("utf-8")
        document = json.loads(text)
        for guard in guards:
            value = look_up(document, guard.key)
            if guard.kind == "key_absent" and value is not _MISSING and value is not None:
                text = json_edit.remove(text, guard.key)
                _drop(document, guard.key)
            elif guard.kind == "key_equals" and (value is _MISSING or not _same(value, guard.value)):
                text = json_edit.put(text, guard.key, guard.value)
                _set(document, guard.key, guard.value)
        as_meant = json.dumps(json.loads(text)) == json.dumps(document)
    except (ValueError, RecursionError) as error:
        raise OpsError(f"`{path}` is not JSON", why=str(error) or type(error).__name__) from error
    if not as_meant:  # two names that are the same in one object, guards that contradict each other
        raise OpsError(f"`{path}` cannot be edited without changing more than the guards ask for", hint="Edit it by hand")
    return mark + text.encode("utf-8")


def _drop(document: Any, key: str) -> None:
    outer, _, name = key.rpartition(".")
    del (look_up(document, outer) if outer else document)[name]


def _set(document: Any, key: str, value: Any) -> None:
    *outer, name = key.split(".")
    for part in outer:
        if isinstance(document, list):
            document = document[int(part)]
        else:
            document = document.setdefault(part, {})
    if isinstance(document, list):
        document[int(name)] = value
    else:
        document[name] = value


def _back_up(record: ServiceRecord, edits: Sequence[_Edit]) -> Path:
    """Copies what will be changed, with its diff, to `guard-backups/<time>/`; gives that folder. Raises OpsError: then nothing may be changed."""
    moment = time.time()
    root = record.folder / "guard-backups"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(moment))
    half = root / f".{stamp}-{os.getpid()}"
    try:
        for left in root.glob(".[0-9]*-[0-9]*"):  # of one that was killed: it had changed nothing yet
            shutil.rmtree(left, ignore_errors=True)
        half.mkdir(mode=0o700, parents=True)
        files = []
        for edit in edits:
            copy, diff = half / "files" / edit.file, half / "diffs" / f"{edit.file}.diff"
            for path, content in ((copy, edit.before), (diff, edit.diff.encode("utf-8", "surrogatepass"))):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with path.open("xb") as file:
                    os.fchmod(file.fileno(), 0o600)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            files.append({"file": edit.file, "original": str(edit.path), "link": edit.link, "mode": f"{edit.mode:04o}", "uid": edit.uid,
                          "gid": edit.gid, "sha256_before": hashlib.sha256(edit.before).hexdigest(),
                          "sha256_after": hashlib.sha256(edit.after).hexdigest()})
        manifest = {"service": record.name, "model": record.model_path, "made_at": moment, "files": files}
        state.write_file(half / "manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
        number = 1
        while os.path.lexists(final := root / (stamp if number == 1 else f"{stamp}-{number}")):
            number += 1
        half.rename(final)
        sync_folder(root)
    except OSError as error:
        shutil.rmtree(half, ignore_errors=True)
        raise OpsError("The files that would be edited cannot be saved beforehand", why=error.strerror or str(error),
                       hint=f"Make room below `{root}`: nothing is changed before they are safe") from error
    return final
