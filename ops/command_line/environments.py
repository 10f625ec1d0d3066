"""`packages`, `coupling`, `integrity`, `verify`, `releases`, `shelf`: what is installed, and whether it is whole. Nothing is changed here."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from ops.command_line import targets
from ops.command_line.output import StatusLine, print_finding, print_json, size, table
from ops.command_line.targets import Target
from ops.environments.packages import EnvironmentPackages
from ops.jobs.errors import BadInput, CommandFailed, OpsError, Timeout

VERSION_S = 300.0  # `vllm --version` imports all of vLLM: 17 s on an idle machine, 50 s on a busy one


def packages(arguments: argparse.Namespace) -> int:
    from ops.environments import cuda_builds, kernels, releases, requirements_check
    from ops.environments import packages as reading

    target = targets.read(arguments)
    read = reading.read(target.environment)
    manifest = releases.manifest(target.environment) if target.record else None
    distributions = reading.describe(read, manifest)
    if arguments.search:
        distributions = [one for one in distributions if arguments.search.lower() in one["name"]]
    coupled = _coupling(read, target)
    unmet = [{**finding.as_dict(), "title": finding.title} for finding in requirements_check.check(read)]
    gpus = _gpus() if target.record else None
    cuda = [finding.as_dict() for finding in cuda_builds.findings(read, gpus["cuda"] if gpus else None)]
    kernel = kernels.check(target.environment, gpus["capabilities"]) if gpus and gpus["capabilities"] and read.version("torch") else None
    wrong = bool(coupled or unmet or read.duplicates or read.problems or cuda or (kernel and kernel.missing))
    if arguments.json:
        print_json({**read.as_dict(), "release": target.release, "distributions": distributions, "coupling": coupled, "requirements": unmet,
                    "cuda": cuda, "kernels": {**kernel.as_dict(), "findings": kernel.findings} if kernel else None})
        return int(wrong)
    total = sum(one["size_bytes"] or 0 for one in distributions)
    print(f"{read.path}: Python {read.python_version or 'unknown'}, {len(read.distributions)} packages, {size(total)}")
    table(["package", "version", "size", "installer", "source"], [
        [one["name"], one["version"], size(one["size_bytes"]), one["installer"] or "unknown", one["source"]] for one in distributions],
        left={0, 1, 3, 4})
    for problem in read.problems:
        print(f"problem: {problem}")
    for one in unmet:
        print(f"unmet: {one['title']}" + (f" ({one['marker']})" if one["marker"] else ""))
    for finding in [*cuda, *(kernel.findings if kernel else []), *coupled]:
        print_finding(finding)
    if kernel and kernel.problem:
        print(f"note: whether its kernels suit the GPUs is not known: {kernel.problem}")
    if not coupled:
        print(_agree(read))
    return int(wrong)


def coupling(arguments: argparse.Namespace) -> int:
    from ops.environments import packages as reading

    target = targets.read(arguments)
    read = reading.read(target.environment)
    found = _coupling(read, target)
    if arguments.json:
        print_json({"path": str(read.path), "coupling": found})
    else:
        for finding in found:
            print_finding(finding)
        if not found:
            print(_agree(read))
    return int(bool(found))


def integrity(arguments: argparse.Namespace) -> int:
    from ops.environments import integrity as checking

    target = targets.read(arguments)
    line = StatusLine()
    report = checking.check(target.environment, only=arguments.only,
                            progress=lambda done, total: line.show(f"{done:,} of {total:,} files"))
    line.clear()
    if arguments.json:
        told = report.as_plain()
        print_json(told if told.get("problems") else {key: value for key, value in told.items() if key != "problems"})
        return int(not report.clean)
    for finding in report.findings:
        print(f"{finding.change:<8} {finding.package or '-':<24} {checking.shown(finding.path)}{f'  ({finding.note})' if finding.note else ''}")
    for problem in report.problems:
        print(f"problem  {problem}")
    if report.as_in_wheel:
        names = ", ".join(sorted({f"`{found.package}`" for found in report.as_in_wheel}))
        print(f"note: {len(report.as_in_wheel)} files of {names} are not as RECORD says, but as their wheel has them: it was published like that")
    if report.clean:
        print(f"Clean: {report.checked_files:,} files of {report.distributions} packages are as installed")
    else:
        print(f"{len(report.changed)} changed, {len(report.missing)} missing, {len(report.extra)} extra; {report.checked_files:,} files of "
              f"{report.distributions} packages looked at")
    return int(not report.clean)


def verify(arguments: argparse.Namespace) -> int:
    """All that a redeploy verifies, but against what is installed instead of a plan: files, requirements, coupling, interpreter, vLLM."""
    from ops.environments import copying, releases, requirements_check
    from ops.environments import integrity as checking
    from ops.environments import packages as reading

    target = targets.read(arguments)
    if arguments.release:
        if target.record is None:
            raise BadInput("A release belongs to a service", hint="Use --service NAME --release RELEASE")
        folder = releases.inside(target.record, arguments.release)
        if not folder.is_dir():
            raise BadInput(f"Service `{target.record.name}` has no release `{arguments.release[:80]}`",
                           hint="`python -m ops releases --service NAME` lists them")
        target = Target(folder, target.record, folder.name)
    read = reading.read(target.environment)
    line = StatusLine()
    report = checking.check(target.environment, progress=lambda done, total: line.show(f"{done:,} of {total:,} files"))
    checks = [_check("files", report.clean, f"{report.checked_files:,} files of {report.distributions} packages are as installed" if report.clean else
                     f"{len(report.changed)} changed, {len(report.missing)} missing, {len(report.extra)} extra, {len(report.problems)} problems")]
    unmet = requirements_check.check(read)
    checks.append(_check("requirements", not unmet, "; ".join(finding.title for finding in unmet[:5]) or "all met"))
    found = _coupling(read, target)
    checks.append(_check("coupling", not found, "; ".join(str(finding["title"]) for finding in found) or _agree(read)))
    line.show("asking the environment's programs")
    env = dict(target.record.env) if target.record else {}
    checks.append(_program("interpreter", [target.environment / "bin" / "python", "-I", "-c", "import sys; print(sys.version.split()[0])"], env))
    if read.version("vllm") and (other := copying.foreign_interpreter(target.environment, "vllm")):
        checks.append(_check("vllm", False, f"`bin/vllm` starts `{other}`, which is not of this environment: the folder was copied or renamed"))
    elif read.version("vllm"):
        checks.append(_program("vllm", [target.environment / "bin" / "vllm", "--version"], env))
    line.clear()
    wrong = [check for check in checks if not check["holds"]]
    if arguments.json:
        print_json({"path": str(target.environment), "release": target.release, "verified": not wrong, "checks": checks})
    else:
        for check in checks:
            print(f"{'ok' if check['holds'] else 'WRONG':<6} {check['name']:<13} {check['detail']}")
    return int(bool(wrong))


def _check(name: str, holds: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "holds": holds, "detail": detail}


def _program(name: str, argv: list[str | Path], env: dict[str, str]) -> dict[str, Any]:
    from ops.jobs import commands
    from ops.jobs.redact import log_text

    try:
        done = commands.run([os.fspath(word) for word in argv], env={**env, "PYTHONDONTWRITEBYTECODE": "1"}, timeout_s=VERSION_S)
    except (CommandFailed, Timeout) as error:
        last = str(error.facts.get("tail") or error.why).strip().splitlines()
        return _check(name, False, log_text(last[-1] if last else error.what))
    except OpsError as error:
        return _check(name, False, f"{error.what}: {error.why}")
    return _check(name, True, log_text((done.stdout.strip().splitlines() or [""])[-1]))


def releases(arguments: argparse.Namespace) -> int:
    from ops.command_line import jobs
    from ops.environments import releases as kept

    record = targets.service(arguments.service)
    if arguments.remove:
        return jobs.run(arguments, "remove-release", record, {"release": arguments.remove})
    found = [release.as_dict() for release in kept.listing(record)]
    if arguments.json:
        return print_json({"service": record.name, "current": next((one["name"] for one in found if one["is_current"]), None),
                           "last_good": kept.last_good(record), "releases": found})
    if not found:
        print(f"Service `{record.name}` has no release")
        return 0
    table(["release", "vllm", "kind", "built", "size", "state"], [[
        one["name"], one["version"] or "unknown", one.get("kind") or "built", _at(one["built_at"]), size(one["size_bytes"]), _state(one)]
        for one in found], left={0, 1, 2, 3, 5})
    return 0


def _state(release: dict[str, Any]) -> str:
    words = ["in use"] if release["is_current"] else []
    words += ["last good"] if release["is_last_good"] else []
    words += ["unfinished"] if release["unfinished"] else [] if release["verified"] else ["not verified"]
    return ", ".join(words) or "kept"


def shelf(arguments: argparse.Namespace) -> int:
    from ops.command_line import jobs
    from ops.environments import patches

    record = targets.service(arguments.service)
    if arguments.forget:
        folder, path = arguments.forget
        return jobs.run(arguments, "shelf-forget", record, {"entries": [{"folder": folder, "path": path}]})
    if arguments.show:
        folder, path = arguments.show
        one = patches.view(record, folder, path)
        if arguments.json:
            return print_json(one)
        print(one["diff"] if one["diff"] is not None else f"There is no diff of `{path}`: the copy lies at {one.get('where') or 'an unknown place'}")
        return 0
    found = patches.shelf(record)
    if arguments.json:
        return print_json({"service": record.name, "shelf": found})
    if not found:
        print(f"Nothing lies on the shelf of service `{record.name}`")
        return 0
    table(["folder", "change", "package", "path", "size", "notes"], [[
        one["folder"], one["change"], one["package"] or "-", one["path"], size(one["size_bytes"]),
        ", ".join(["debug code"] if one["debris"] else []) or "-"] for one in found], left={0, 1, 2, 3, 5})
    return 0


def _at(seconds: float | None) -> str:
    return "unknown" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _coupling(read: EnvironmentPackages, target: Target) -> list[dict[str, Any]]:
    from ops.environments import coupling as rules

    return [finding.as_dict() for finding in rules.findings(read, env=target.record.env if target.record else {})]


def _agree(read: EnvironmentPackages) -> str:
    from ops.environments import coupling as rules

    there = [name for name in rules.coupled_names() if read.version(name)]
    if len(there) > 1:
        return f"Coupled packages agree: {', '.join(there)}"
    return f"No packages here that must agree with one another ({', '.join(rules.coupled_names())})"


def _gpus() -> dict[str, Any] | None:
    """CUDA of the driver and the GPUs' compute capabilities; None on a machine whose GPUs cannot be read."""
    from ops.agent.config import NodeConfig
    from ops.gpus.open_source import open_source

    snapshot = open_source(targets.config_if_any() or NodeConfig(name="this-machine")).read()
    if snapshot.problem:
        return None
    return {"cuda": snapshot.cuda, "capabilities": sorted({gpu.compute_capability for gpu in snapshot.gpus if gpu.compute_capability})}
