"""What a start would find: the variables of the process, its user, its limits. An operator's shell has others, so nothing is taken from ours."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import env_files, spawner
from ops.services.manager import manager_for

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"  # what the launcher takes where the unit has none
_ACL = "system.posix_acl_access"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the launcher's process would be given, as far as it can be known before a start."""

    variables: dict[str, str]  # the manager's, over them `record.env`, over them the environment files; not yet with the release's bin on PATH
    user: str  # "" where it is not known
    uid: int | None
    groups: frozenset[int] = frozenset()
    open_files: int | None = None  # the hard limit; None: unlimited, or (see `problem`) not known
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # environment files that we cannot read, and why
    problem: OpsError | None = None  # why the manager could not say; the rest is a guess then

    def path(self, release: Path | None) -> str:
        """PATH as the launcher makes it: the release's bin goes first."""
        own = self.variables.get("PATH") or DEFAULT_PATH
        return own if release is None else f"{release / 'bin'}{os.pathsep}{own}"

    @property
    def home(self) -> str:
        """HOME, or what Python takes where there is none: the user's entry in the password database; "" if there is neither."""
        if home := self.variables.get("HOME"):
            return home
        try:
            return pwd.getpwuid(self.uid).pw_dir if self.uid is not None else ""
        except KeyError:
            return ""

    def which(self, program: str, release: Path | None) -> str | None:
        """The program on the service's own PATH."""
        return shutil.which(program, path=self.path(release))

    def may_write(self, path: Path) -> bool | None:
        """Whether the service's user may make files in `path`, or (where it is not there yet) make it; None where that cannot be told from here."""
        folder = nearest(path)
        if folder is None or self.uid is None:
            return None
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return False
        if self.uid == os.geteuid():
            return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        if self.uid == 0:
            return folder.is_dir()
        return self._allowed(folder)

    def _allowed(self, folder: Path) -> bool | None:
        """By owner, group and others, of the folder and of all above it. An access list says more than these: None then."""
        for place, wanted in [*((parent, 1) for parent in folder.parents), (folder, 3)]:
            allowed = self.allows(place, wanted)
            if not allowed:
                return allowed
        return folder.is_dir()

    def allows(self, place: Path, wanted: int) -> bool | None:
        """Whether the mode of `place` gives the service's user these rights (4 read, 2 write, 1 enter); None where it has an access list. For a user
        whose uid is known."""
        try:
            found = place.stat()
            listed = _ACL in os.listxattr(place)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
                return None
            found, listed = place.stat(), False  # this file system has no lists
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid in self.groups else 0
        return None if listed else (found.st_mode >> shift) & wanted == wanted


def of(record: ServiceRecord) -> Surroundings:
    """Of a start of this service now. Never raises: what the manager cannot say is `problem`."""
    try:
        manager = manager_for(record)
        variables, open_files, problem = dict(manager.variables()), manager.open_files_limit(), None
    except OpsError as error:
        variables, open_files, problem = spawner.clean_environment({}), None, error
    user, uid, groups = _account(record, variables)
    variables.update(record.env)
    unreadable = []
    for path in record.env_files:
        try:
            variables.update({name: value for name, value in env_files.read(path).items() if not name.startswith("ROUNDHOUSE_")})
        except (OSError, ValueError) as error:
            unreadable.append((path, getattr(error, "strerror", None) or str(error)))
    return Surroundings(variables=variables, user=user, uid=uid, groups=groups, open_files=open_files, unreadable=unreadable, problem=problem)


def nearest(path: Path) -> Path | None:
    """The path itself, else its nearest parent that exists: where it would be made. None where we may not even look."""
    for place in (path, *path.parents):
        try:
            place.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
        return place
    return None


def _account(record: ServiceRecord, variables: dict[str, str]) -> tuple[str, int | None, frozenset[int]]:
    """(name, uid, groups) of the user that the service runs as; uid None where there is no such user here (a unit with DynamicUser=, say)."""
    if record.manager == "process" or record.unit_scope == "user":
        try:
            name = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            name = str(os.geteuid())
        return name, os.geteuid(), frozenset(os.getgroups())
    name = variables.get("USER") or variables.get("LOGNAME") or "root"  # a system unit without User= is root's
    try:
        found = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        return name, None, frozenset()
    return found.pw_name, found.pw_uid, frozenset([found.pw_gid, *(group.gr_gid for group in grp.getgrall() if found.pw_name in group.gr_mem)])
