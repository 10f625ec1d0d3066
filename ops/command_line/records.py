"""`adopt`, `guards`, `fingerprint`, `recipe`: what a service is, what it must be, and what it was."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ops.agent.config import NodeConfig, NodePaths
from ops.command_line import jobs, targets
from ops.command_line.output import StatusLine, WrongArguments, print_json, table
from ops.jobs import redact
from ops.jobs.errors import BadInput

# ---- adopt ----


def adopt(arguments: argparse.Namespace) -> int:
    from ops.services import adoption

    paths = NodePaths.default()
    made = adoption.read(arguments.unit, unit_path=arguments.unit_path or None, user=arguments.user, paths=paths, name=arguments.name or "",
                         environment=arguments.environment or "", in_place=arguments.in_place, manager=arguments.manager)
    stored = installed = None
    if arguments.install and arguments.unit_path:
        raise WrongArguments("--install is for a unit of this host", hint="Leave --unit-path out")
    if arguments.apply and not made.stops:
        if arguments.install and made.before is not None:  # an admin who installs the drop-in writes nothing into the agent's folder
            stored = paths.announced / f"{made.record.name}.json"
        else:
            targets.own_node(paths)
            stored = adoption.apply(paths, made)
    if arguments.install and not made.stops:
        if made.before is None and stored is None:
            raise WrongArguments(f"`{made.unit}` is no service yet", hint="Give --apply as well")
        installed = adoption.install(made)
    told = {**made.as_dict(), "applied": stored is not None, "stored": str(stored) if stored else None,
            "installed": str(installed) if installed else None}
    if arguments.json:
        print_json(told)
    else:
        print(json.dumps(redact.hide_in_record(made.record.as_dict()), indent=1, ensure_ascii=False))
        _tell_adoption(told)
    return int(bool(made.stops))


def _tell_adoption(told: dict[str, Any]) -> None:
    """On stderr, so that stdout is the record alone."""
    say = lambda text="": print(text, file=sys.stderr)  # noqa: E731
    say(f"{told['unit']}: {', '.join(told['files'])}")
    for finding in told["findings"]:
        say(f"{finding['level']}: {finding['title']}")
        for word, text in (("", finding["why"]), ("fix: ", finding["fix"])):
            if text:
                say(f"  {word}{text}")
    if any(finding["level"] == "stop" for finding in told["findings"]):
        say("\nNothing was changed: it cannot be adopted like this")
        return
    say(f"\nStored: {told['stored']}" if told["applied"] else "\nNothing was changed. --apply makes it a service of this node")
    for line in told["node_toml"]:
        say(f"node.toml: {line}")
    if told["installed"]:
        say(f"\nInstalled: {told['installed']}\nFrom its next start on the unit starts the launcher")
    elif told["record"]["manager"] == "systemd":
        say(f"\nAn admin installs this once, as {told['drop_in']['path']}, then runs `systemctl daemon-reload` (--install does both):\n\n"
            f"{told['drop_in']['text']}")


# ---- guards ----


def guards(arguments: argparse.Namespace) -> int:
    from ops.environments import guards as checking
    from ops.environments import model_folder

    record = targets.service(arguments.service)
    if arguments.preset:
        known = [preset["name"] for preset in checking.presets()]
        if arguments.preset not in known:
            raise WrongArguments(f"There are no guards called `{arguments.preset[:60]}`", hint=f"Presets: {', '.join(known)}")
        record.guards = [guard.as_dict() for guard in checking.from_preset(arguments.preset, record.model_path)]
    if arguments.set or arguments.remove is not None:
        return _set_guards(arguments)
    if arguments.apply:
        own = targets.service(arguments.service)
        if arguments.preset and (new := [guard for guard in record.guards if guard not in own.guards]):
            raise BadInput(f"{len(new)} guards of the preset `{arguments.preset}` are not the service's own",
                           why="Only guards of the service's record are applied, so that they hold after the next change too",
                           hint=f"First: python -m ops guards --service {own.name} --preset {arguments.preset} --set")
        return jobs.run(arguments, "guards-apply", own, {"guards": record.guards if arguments.preset else None})
    results = [result.as_dict() for result in checking.check(record)]
    model = model_folder.look(record.model_path, record.flags)
    failing = [result for result in results if not result["holds"]]
    if arguments.json:
        print_json({"service": record.name, "model_path": record.model_path, "holds": not failing, "guards": results, "model": model})
        return int(bool(failing))
    for number, result in enumerate(results, start=1):
        print(f"{number:>2} {'ok' if result['holds'] else 'FAILS':<6} {result['explains']}")
        if not result["holds"] and result["fix"]:
            print(f"          fix: {result['fix']}")
    for finding in model:
        if finding["level"] != "ok":
            print(f"{finding['level']}: {finding['title']}")
    if not results:
        print(f"Service `{record.name}` has no guards; presets: {', '.join(preset['name'] for preset in checking.presets())}")
    return int(bool(failing))


def _set_guards(arguments: argparse.Namespace) -> int:
    """The whole new list goes to the job, which stores it in the service's record."""
    own = targets.service(arguments.service)
    wanted: list[dict[str, Any]] = list(own.guards)
    if arguments.set:
        if not arguments.preset:
            raise WrongArguments("Which guards?", hint="--set needs --preset NAME")
        wanted.append({"preset": arguments.preset})
    elif not 1 <= arguments.remove <= len(wanted):
        raise WrongArguments(f"Service `{own.name}` has no guard {arguments.remove}", hint=f"It has {len(wanted)}, numbered from 1 in what "
                             f"`python -m ops guards --service {own.name}` prints")
    elif arguments.preset:
        raise WrongArguments("--remove takes one of the service's own guards", hint="Leave --preset out")
    else:
        del wanted[arguments.remove - 1]
    from ops.environments import guard_list

    return jobs.run(arguments, "guards-set", own, {"guards": wanted, "before": guard_list.announced(own)})


# ---- fingerprint ----


def fingerprint(arguments: argparse.Namespace) -> int:
    from ops.environments import fingerprint as prints

    if arguments.diff:
        one, other = (_fingerprint_in(targets.json_file(path, "fingerprint")) for path in arguments.diff)
        return _tell_differences(arguments, prints.differences(one, other), {})
    if not (arguments.env or arguments.service):
        raise WrongArguments("Whose fingerprint?", hint="Use --service NAME, --env PATH, or --diff A B")
    target = targets.read(arguments)
    record = target.record or targets.by_hand(target.environment)
    from ops.gpus.open_source import open_source

    line = StatusLine()
    line.show("hashing the environment's files")
    gpus = open_source(targets.config_if_any() or NodeConfig(name="this-machine")).read()
    made = prints.fingerprint(record, release=target.environment, gpus=gpus)
    line.clear()
    if arguments.since_good:
        if target.record is None:
            raise WrongArguments("A lone environment has no last good start", hint="Use --service NAME")
        changed = prints.changed_since_good(record, made)
        if changed is None:
            raise BadInput(f"Service `{record.name}` has no good start yet that could be compared with",
                           hint="A redeploy or restart that ends well is one")
        return _tell_differences(arguments, changed["differences"], {key: changed.get(key) for key in ("since", "release", "job")})
    if arguments.json:
        return print_json(made)
    print(f"fingerprint {made['hash']}")
    for key in ("release", "python"):
        print(f"  {key}: {made.get(key) or 'unknown'}")
    for name, version in (made.get("versions") or {}).items():
        print(f"  {name}: {version}")
    patched = made.get("patched")
    print(f"  patched files: {'unknown' if patched is None else patched['files']}")
    return 0


def _fingerprint_in(raw: dict[str, Any]) -> dict[str, Any]:
    """A fingerprint alone, or inside of what a job or a recipe says."""
    inner = raw.get("fingerprint")
    return dict(inner) if isinstance(inner, dict) else raw


def _tell_differences(arguments: argparse.Namespace, differences: list[dict[str, Any]], more: dict[str, Any]) -> int:
    """As `diff` does: 1 if there are differences."""
    from ops.environments import fingerprint as prints

    words = prints.words(differences)
    if arguments.json:
        print_json({**more, "words": words, "differences": differences})
    else:
        if more.get("since"):
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(more["since"]))
            print(f"Since the last good start ({when}, release {more.get('release') or 'unknown'}):")
        print("\n".join(words) if words else "Nothing differs")
    return int(bool(differences))


# ---- recipe ----


def recipe_make(arguments: argparse.Namespace) -> int:
    from ops.environments import releases

    record = targets.service(arguments.service)
    if arguments.release:
        releases.inside(record, arguments.release)
    params = {"label": arguments.label or "", **({"release": arguments.release} if arguments.release else {})}
    result, error = jobs.execute(arguments, "recipe", record, params)
    if error is not None:
        raise error
    made = result["recipe"]
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(made["recipe"], indent=1, ensure_ascii=False) + "\n")
    if arguments.json:
        return print_json(made["recipe"])
    print(f"Saved as {arguments.output or record.folder / 'recipes' / made['name']}")
    return 0


def recipe_show(arguments: argparse.Namespace) -> int:
    from ops.environments import recipe

    made = recipe.read(Path(arguments.file))
    if arguments.json:
        return print_json(made)
    packages = made.get("packages") or made.get("lock") or []
    print(f"{made.get('label') or made.get('name') or arguments.file}: {len(packages)} packages, hash {made.get('hash')}")
    if packages and all(isinstance(one, dict) for one in packages):
        table(["package", "version"], [[str(one.get("name")), str(one.get("version") or one.get("new"))] for one in packages], left={0, 1})
    return 0
