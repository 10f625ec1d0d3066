"""What the console asks a node to do: one JSON object, checked strictly, because it is the only thing that a node believes.

The job's type stands inside the envelope (and so inside its signature): Celery's own headers, task name included, are not
trusted. On the embedded default (one user, a 0600 socket) `sig` is empty. A node that has the console's public key passes a
`Verifier`, which gets `Envelope.signed_bytes()` and `sig`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ops.agent.config import NodeConfig
from ops.jobs.errors import BadInput, Refused
from ops.records import NAME, NEVER_IN_TEXT, Channel, ServiceRecord

MAX_BYTES = 2 * 1024 * 1024  # a plan of some hundred packages is under 200 KB
LIFETIME_MAX_S = 7 * 24 * 3600
BY_LENGTH = 150  # as Django's user names
LOCK = re.compile(r"(service:[a-z0-9][a-z0-9._-]{0,62}|env:/[^\x00-\x1f]{1,1000}|node:[a-z][a-z-]{0,30})\Z")
TYPE = re.compile(r"[a-z][a-z0-9-]{0,29}\Z")

Verifier = Callable[[bytes, str], bool]  # (signed bytes, signature) -> whether the console signed them

_FIELDS: dict[str, tuple[type, ...]] = {
    "job": (str,), "node": (str,), "service": (dict, type(None)), "type": (str,), "params": (dict,), "locks": (list,), "fence": (dict,),
    "snapshot": (dict,), "iat": (int, float), "exp": (int, float), "by": (str,), "sig": (str,),
}


def check_job_id(text: Any) -> str:
    """The id, if it is a uuid4 in its usual form (it becomes a folder's name); raises Refused otherwise."""
    try:
        parsed = uuid.UUID(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise Refused(f"`{str(text)[:60]}` is not a job id", why="A job id is a uuid4") from error
    if parsed.version != 4 or str(parsed) != text:
        raise Refused(f"`{str(text)[:60]}` is not a job id", why="A job id is a uuid4 in lower case with dashes")
    return text


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """One order to one node. `iat` and `exp` are seconds since the epoch by Redis' clock; `fence` has one number for each lock."""

    job: str
    node: str
    type: str
    service: dict[str, Any] | None = None  # ServiceRecord.as_dict()
    params: dict[str, Any] = field(default_factory=dict)
    locks: list[str] = field(default_factory=list)  # sorted: the order in which they are taken
    fence: dict[str, int] = field(default_factory=dict)
    snapshot: dict[str, Any] = field(default_factory=dict)  # channel, suites, kinds, plan: records that the job needs
    iat: float
    exp: float
    by: str = ""
    sig: str = ""

    @classmethod
    def make(cls, *, type: str, node: str, service: dict[str, Any] | None = None, params: dict[str, Any] | None = None,
             locks: list[str] | None = None, fence: dict[str, int] | None = None, snapshot: dict[str, Any] | None = None, by: str = "",
             now: float, lifetime_s: float = 24 * 3600, job: str | None = None) -> Envelope:
        """A checked envelope with a new job id (or `job`). `now` is Redis' time where the node is reached through Redis."""
        raw = {
            "job": job or str(uuid.uuid4()), "node": node, "type": type, "service": service, "params": params or {}, "locks": sorted(locks or []),
            "fence": fence or {}, "snapshot": snapshot or {}, "iat": now, "exp": now + lifetime_s, "by": by, "sig": "",
        }
        return cls.from_dict(raw)

    @classmethod
    def from_dict(cls, raw: Any) -> Envelope:
        """Raises Refused naming what is missing, unknown or of the wrong form."""
        if not isinstance(raw, dict):
            raise Refused(f"An envelope must be a JSON object, not {type(raw).__name__}")
        if unknown := sorted(str(key) for key in set(raw) - set(_FIELDS)):
            raise Refused(f"An envelope has no field `{unknown[0][:60]}`")
        if missing := sorted(set(_FIELDS) - set(raw)):
            raise Refused(f"The envelope lacks the field `{missing[0]}`")
        for name, kinds in _FIELDS.items():
            if not isinstance(raw[name], kinds) or isinstance(raw[name], bool):
                raise Refused(f"The envelope's `{name}` has the wrong form", why=f"It is of type {type(raw[name]).__name__}")
        try:
            size = len(json.dumps(raw, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise Refused("The envelope is not plain JSON", why=str(error)) from error
        if size > MAX_BYTES:
            raise Refused(f"The envelope is too large: {size:,} bytes", why=f"At most {MAX_BYTES:,} are taken")
        made = cls(**raw)
        made._check()
        return made

    @classmethod
    def from_json(cls, text: str | bytes) -> Envelope:
        """As `from_dict`, from text."""
        if len(text) > MAX_BYTES:
            raise Refused(f"The envelope is too large: {len(text):,} bytes", why=f"At most {MAX_BYTES:,} are taken")
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise Refused("The envelope is not JSON", why=str(error)) from error

    def _check(self) -> None:
        check_job_id(self.job)
        if not NAME.match(self.node):
            raise Refused(f"`{self.node[:60]}` is not a node's name")
        if not TYPE.match(self.type):
            raise Refused(f"`{self.type[:60]}` is not a job type")
        for lock in self.locks:
            if not isinstance(lock, str) or not LOCK.match(lock) or "/../" in f"{lock}/":
                raise Refused(f"`{str(lock)[:60]}` is not a lock's name")
        if self.locks != sorted(set(self.locks)):
            raise Refused("The envelope's locks are not sorted, or one stands twice",
                          why="Locks are taken in sorted order, so that no two jobs wait for each other")
        if set(self.fence) != set(self.locks):
            raise Refused("The envelope's fences do not fit its locks")
        if any(not isinstance(number, int) or isinstance(number, bool) or number < 1 for number in self.fence.values()):
            raise Refused("A fence must be a whole number above 0")
        if not self.exp > self.iat:
            raise Refused("The envelope ends before it begins")
        if not (self.iat >= 0 and self.exp < 1e11 and self.exp - self.iat <= LIFETIME_MAX_S):
            raise Refused("The envelope is valid for too long", why=f"An order ends after {LIFETIME_MAX_S // 86400} days at the latest")
        if len(self.by) > BY_LENGTH or not self.by.isprintable():
            raise Refused("The envelope's `by` is not a user's name")
        self.service_record()

    def service_record(self) -> ServiceRecord | None:
        """The service that the job is for. Raises Refused if it is not a service record."""
        if self.service is None:
            return None
        try:
            return ServiceRecord.from_dict(self.service)
        except BadInput as error:
            raise Refused("The envelope's service is not a service record", why=str(error)) from error

    @property
    def service_name(self) -> str | None:
        return str(self.service["name"]) if self.service else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), separators=(",", ":"))

    def signed_bytes(self) -> bytes:
        """What a signature covers: everything but the signature, in one fixed form."""
        return json.dumps({**self.as_dict(), "sig": ""}, separators=(",", ":"), sort_keys=True).encode()


def verify(envelope: Envelope, config: NodeConfig, *, now: float, types: set[str], verifier: Verifier | None = None) -> None:
    """Raises Refused unless this node may run it now. `now` is Redis' time; `types` the job types that the node knows."""
    if verifier is not None and not verifier(envelope.signed_bytes(), envelope.sig):
        raise Refused("The envelope's signature is wrong", why="The console did not write this order, or it was changed on its way",
                      kind="bad_signature")
    if verifier is None and envelope.sig:
        raise Refused("The envelope is signed, but this node has no key to check it with", kind="bad_signature")
    if envelope.node != config.name:
        raise Refused(f"The envelope is for node `{envelope.node}`, this is `{config.name}`", kind="another_node")
    if envelope.type not in types:
        raise Refused(f"This node knows no job type `{envelope.type}`", why=f"It knows {', '.join(sorted(types))}",
                      hint="Bring console and node to the same version")
    if now >= envelope.exp:
        raise Refused("The order is too old to be carried out", why=f"It ran out {now - envelope.exp:.0f} s ago",
                      hint="Start the job again", kind="expired")
    check_limits(envelope, config)


def check_limits(envelope: Envelope, config: NodeConfig) -> None:
    """Raises Refused if the service, the channel, or a folder that a scan is to look into lies outside of what `node.toml` allows.

    The places of an admin's own kinds are no reason to refuse: they are meant for all nodes, and a scan says which of them this one leaves out.
    """
    from ops.environments import channels

    if envelope.type == "artifact-scan" and isinstance(roots := envelope.params.get("roots"), list):
        for root in roots:
            if isinstance(root, str) and not NEVER_IN_TEXT.search(root):  # anything else is refused by its steps
                config.require_inside(root, config.artifact_roots, "folder to be cleaned up")

    if (record := envelope.service_record()) is not None:
        check_record(record, config)
    if (raw := envelope.snapshot.get("channel")) is not None:
        try:
            channel = channels.check(Channel.from_dict(raw))
        except BadInput as error:
            raise Refused("The envelope's channel is not a channel record", why=str(error)) from error
        channels.allowed(channel, config)


def check_record(record: ServiceRecord, config: NodeConfig) -> None:
    """Raises Refused if a service lies outside of what `node.toml` allows."""
    config.require_inside(record.root, config.service_roots, "service folder")
    config.require_inside(record.model_path, config.model_roots, "model folder")
    for root in record.artifact_roots:
        config.require_inside(root, config.artifact_roots, "purge root")
    if record.manager == "systemd" and record.unit not in config.units:
        raise Refused(f"This node does not allow the unit `{record.unit}`", hint="The node's owner sets this in node.toml")
    if record.in_place:
        config.require_inside(record.environment, config.environment_roots, "environment to be changed in place")
