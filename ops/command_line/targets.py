"""Which environment or service a command is about: `--env PATH` or `--service NAME`; `--channel SPEC`."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ops.agent.config import NodeConfig, NodePaths
from ops.command_line.output import WrongArguments
from ops.jobs.errors import BadInput
from ops.records import Channel, ServiceRecord

BY_HAND = "by-hand"  # the name of the record that stands in for a lone environment


@dataclass(frozen=True)
class Target:
    """`environment` is the folder that is looked at; `record` None for a lone environment; `release` None where it is no release."""

    environment: Path
    record: ServiceRecord | None
    release: str | None


def target_options(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--env", metavar="PATH", help="an environment's folder (the one that holds bin/python)")
    service_option(either, required=False)


def service_option(parser: argparse.ArgumentParser | argparse._MutuallyExclusiveGroup, *, required: bool = True) -> None:
    parser.add_argument("--service", metavar="NAME", required=required, help="a service of this node (its record lies in services.d)")


def channel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", required=True, metavar="SPEC",
                        help="stable, nightly[:cu129], commit:SHA[:cu129], wheelhouse:/path, recipe:/file.json, or a JSON file with a channel")
    parser.add_argument("--version", metavar="V", help="of vllm (default: the newest in the channel)")
    parser.add_argument("--python", metavar="V", help="interpreter of the new release, such as 3.12 (default: the one in use)")
    parser.add_argument("--no-coupling", action="store_true", help="leave coupled packages as they are installed")
    parser.add_argument("--restore", action="store_true", help="the same versions as now: only edited packages are installed anew")


def read(arguments: argparse.Namespace) -> Target:
    """The target of `--env` or `--service`. Raises BadInput for a service that this node does not have, or that has no environment yet."""
    if arguments.env:
        return Target(Path(arguments.env), None, None)
    record = service(arguments.service)
    release = record.release_in_use()
    if release is None and not record.environment:
        raise BadInput(f"Service `{record.name}` has no release", hint="Build one: python -m ops build --service NAME --channel SPEC")
    return Target(release or Path(record.environment), record, release.name if release else None)


def names() -> list[str]:
    """The services of this node."""
    folder = NodePaths.default().announced
    return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []


def service(name: str) -> ServiceRecord:
    """The whole record of a service of this node, from services.d. Raises BadInput if there is none of this name, or if it cannot be read."""
    known, folder = names(), NodePaths.default().announced
    path = folder / f"{name}.json"
    if "/" in name or not path.is_file():
        raise BadInput(f"This node has no service `{name[:80]}`", why=f"Looked in {folder}",
                       hint=f"It has: {', '.join(known)}" if known else "`python -m ops adopt --unit UNIT --apply` makes a systemd unit one")
    try:
        return ServiceRecord.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"`{path}` cannot be read", why=str(error)) from error


def by_hand(environment: Path) -> ServiceRecord:
    """A record that stands in for a lone environment, so that what takes a service can be asked about it. Nothing of it is stored."""
    paths, config = NodePaths.default(), config_if_any()
    root = paths.services if paths.root.is_dir() else Path(tempfile.gettempdir())
    return ServiceRecord(name=BY_HAND, root=str(root / BY_HAND), model_path="/nonexistent", served_model_name="", base_url="http://127.0.0.1:8000",
                         environment=str(environment.resolve()), practice=config.practice if config else False)


def config_if_any() -> NodeConfig | None:
    """This node's limits; None on a machine that is no node. Raises BadInput for a node.toml that cannot be read."""
    path = NodePaths.default().node_toml
    return NodeConfig.load(path) if path.exists() else None


def channel(spec: str) -> Channel:
    """The channel that `spec` says, within what this node allows. Raises BadInput, Refused."""
    from ops.environments import channels

    return channels.parse(spec, config=config_if_any())


def own_node(paths: NodePaths) -> None:
    """Raises BadInput unless the node's state belongs to the user that runs this: files of another owner would shut the agent out of them."""
    if not paths.root.exists() or (owner := paths.root.stat().st_uid) == os.geteuid():
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = str(owner)
    raise BadInput(f"The node's state `{paths.root}` belongs to the user `{name}`",
                   why="What this user writes there, the agent could not read or change", hint=f"Run it as `{name}`")


def json_file(path: str, what: str) -> dict[str, object]:
    """The JSON object in a file. Raises WrongArguments if it holds none."""
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WrongArguments(f"`{path}` cannot be read", why=str(error), hint=f"Give the file of a {what}") from error
    if not isinstance(raw, dict):
        raise WrongArguments(f"`{path}` holds no JSON object", hint=f"Give the file of a {what}")
    return raw
