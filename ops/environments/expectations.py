"""What was wanted is what comes out, or the plan has failed: version, pre-release, index, CUDA build, practice or real."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import InvalidVersion, Version

from ops.environments import coupling as coupling_rules
from ops.environments.resolving import MAIN, Asks, finding, fits
from ops.environments.uv import Origin
from ops.jobs.errors import BadInput, Refused
from ops.records import Channel, ServiceRecord

_VARIANT = re.compile(r"(cu\d+|rocm[\d.]*|cpu|xpu|practice)\Z")
_CUDA_LIBRARY = re.compile(r"nvidia-[a-z0-9-]+-cu(\d{2})\Z")  # nvidia-nccl-cu13: the CUDA that torch's libraries are for
_COMMIT_IN_VERSION = re.compile(r"g([0-9a-f]{7,40})\Z")


def version_is(wanted: str | None, new: dict[str, str], asks: Asks, findings: list[dict[str, Any]]) -> None:
    got, before = new.get(MAIN), asks.installed.version(MAIN) if asks.installed else None
    if wanted is not None:
        if got is None or not fits(got, wanted):
            raise BadInput(f"Wanted `{MAIN}` {wanted}, but the channel `{asks.channel.name}` gives {got or 'none'}",
                           why="A version that was replaced silently is a failed plan",
                           hint="Choose a version that the channel has, or another channel")
        return
    try:
        old, now = Version(before or ""), Version(got or "")
    except InvalidVersion:
        return  # not there before, or not there after
    if old.is_prerelease and not now.is_prerelease and now < old:
        raise BadInput(f"`{MAIN}` is the pre-release {before} today, and the channel `{asks.channel.name}` would replace it by the stable {got}",
                       why="A pre-release that is replaced silently by an older stable one is a failed plan",
                       hint=f"Choose {got} as the version if that is what you want, or another channel")
    if now < old:
        findings.append(finding("warning", f"`{MAIN}` would go back from {before} to {got}", why="It is the newest that the channel has"))
    elif old.is_prerelease and not now.is_prerelease:
        findings.append(finding("note", f"`{MAIN}` goes from the pre-release {before} to the stable {got}"))


def origin_is(channel: Channel, new: dict[str, str], origins: Mapping[str, Origin]) -> None:
    """A nightly or a commit's build must come from the index that publishes it, and be what it says."""
    got = new.get(MAIN)
    if channel.preset not in ("nightly", "commit") or got is None:
        return
    wanted = "a nightly" if channel.preset == "nightly" else f"the build of commit {channel.commit[:12]}"
    origin = origins[MAIN].index if MAIN in origins else None
    published = channel.extra_index_urls[0] if channel.extra_index_urls else ""
    parsed = Version(got)
    commit = next((found[1] for part in (parsed.local or "").split(".") if (found := _COMMIT_IN_VERSION.match(part))), None)
    if channel.preset == "nightly" and not parsed.is_prerelease:
        problem = f"the stable {got}"
    elif origin is not None and origin.rstrip("/") != published.rstrip("/"):
        problem = f"{got} from another index"
    elif channel.preset == "commit" and commit is not None and not channel.commit.startswith(commit):
        problem = f"{got}, of another commit"
    else:
        return
    raise BadInput(f"Wanted {wanted} of `{MAIN}`, but the channel `{channel.name}` gives {problem}",
                   why=f"`{published}` has no wheel that fits this interpreter and machine, or does not have that build any more",
                   hint="Choose another build or commit, or the stable channel")


def variant(version: str | None) -> str | None:
    """What a local suffix says about the build: "cu129", "cpu", "practice", ...; None: it says nothing."""
    try:
        parts = (Version(version).local or "").split(".") if version else []
    except InvalidVersion:
        return None
    return next((part for part in parts if _VARIANT.match(part)), None)


def cuda_majors(names: Sequence[str] | Mapping[str, str]) -> set[str]:
    """The CUDA majors that NVIDIA's libraries in a set of packages are for: `nvidia-nccl-cu13` is "13"."""
    return {found[1] for name in names if (found := _CUDA_LIBRARY.match(name))}


def variant_is(asks: Asks, new: dict[str, str], options: dict[str, Any], findings: list[dict[str, Any]]) -> None:
    if asks.channel.variant:
        _assert_wanted_variant(asks.channel, new)
    allowed = bool(options.get("allow_variant_change"))
    for name in (MAIN, "torch"):
        before, after = asks.installed.version(name) if asks.installed else None, new.get(name)
        if before is None or after is None or variant(before) == variant(after):
            continue
        told = f"`{name}` would change its build from {variant(before) or 'no suffix'} to {variant(after) or 'no suffix'}: {before} -> {after}"
        if variant(before) is None or allowed or variant(after) == asks.channel.variant:
            findings.append(finding("warning", told, why="Another CUDA build may need another driver"))
        else:
            raise BadInput(told, why="Wheels for another CUDA fail at import where the driver is too old",
                           hint="Choose a channel with that build, or allow the change")
    old = cuda_majors(asks.installed.versions()) if asks.installed else set()
    now = cuda_majors(new)
    if old and now and old != now:
        findings.append(finding("warning", f"CUDA would change from {' and '.join(sorted(old))} to {' and '.join(sorted(now))}",
                                 why="The new release's libraries are for another CUDA: the driver must be new enough for it"))


def _assert_wanted_variant(channel: Channel, new: dict[str, str]) -> None:
    wanted = channel.variant
    for name in (MAIN, "torch"):
        got = new.get(name)
        if got is None or variant(got) == wanted or (variant(got) is None and (name == "torch" or channel.preset in ("nightly", "commit"))):
            continue  # a published index for one build names it in its address, not always in the version
        raise BadInput(f"Wanted the build {wanted}, but the channel `{channel.name}` gives `{name}` {got}, {_build_words(variant(got))}",
                       why="A build that was replaced silently is a failed plan", hint="Choose the channel's build anew, or another channel")
    major = wanted[2:4] if wanted.startswith("cu") else None
    other = sorted(cuda_majors(new) - ({major} if major else set()))
    if other and (major or wanted == "cpu"):
        library = next(name for name in sorted(new) if (found := _CUDA_LIBRARY.match(name)) and found[1] in other)
        raise BadInput(f"Wanted the build {wanted}, but the channel `{channel.name}` gives libraries for CUDA {other[0]}: `{library}`",
                       why=f"`torch` {new.get('torch', 'of the channel')} is built for it",
                       hint="Choose PyTorch's index for that build in the channel (torch-backend)")


def _build_words(build: str | None) -> str:
    return f"which is {build}" if build else "which names no build"


def practice_is(record: ServiceRecord, channel: Channel, new: dict[str, str]) -> None:
    practice = sorted(name for name, version in new.items() if variant(version) == "practice")
    if practice and not record.practice:
        raise Refused(f"`{practice[0]}` {new[practice[0]]} is a practice wheel", why="Practice wheels never go onto a real node")
    real = [name for name in (MAIN, *coupling_rules.coupled_names()) if name in new and name not in practice]
    if record.practice and real:
        raise Refused(f"`{real[0]}` {new[real[0]]} is no practice wheel", why="A practice service takes practice wheels only")
