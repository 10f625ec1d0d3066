"""`artifacts kinds|scan|show|purge`: leftover files, found, looked at, and deleted as they were chosen.

A purge is made of a preview, which a scan wrote, and of a choice; without a choice it only says what could be chosen. On a node both are jobs, as the
console's are, within node.toml. On any other machine a scan needs the folders to look into, and a purge is bound to these; both take no lock there.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ops import cleaning
from ops.agent.config import NodeConfig, NodePaths
from ops.artifacts import kinds as kinds_of_leftovers
from ops.artifacts.found import KEPT, OFFERED, OPTIONAL, Artifact, Choice, Entry, shown
from ops.artifacts.kinds import CONDITIONS, METHODS, Kind
from ops.command_line import jobs, targets
from ops.command_line.output import INTERRUPTED, StatusLine, WrongArguments, from_arguments, interruptible, print_json, size, table, tell
from ops.jobs.errors import BadInput, Cancelled, OpsError
from ops.jobs.events import JobState

if TYPE_CHECKING:
    from ops.artifacts.places import Places
    from ops.artifacts.preview import Preview, Tree

STATES = (OFFERED, OPTIONAL, KEPT)
NO_NODE = "this-machine"  # the name that stands in previews of a machine that is no node
_KINDS_HINT = "Give a JSON list of kinds; docs/guides/cleanup.md shows one"
_OWN_MOST = 1 << 20  # bytes of a file with kinds
_LARGEST = 5  # folders that a scan names
_REASONS = 3  # reasons named of a kind
_COPY = 1 << 20


# ---- kinds ----


def kinds(arguments: argparse.Namespace) -> int:
    known = _chosen_kinds(arguments)
    if arguments.json:
        return print_json({"kinds": [kind.as_dict() for kind in known]})
    if arguments.kind:
        print("\n\n".join(_kind_in_full(kind) for kind in known))
        return 0
    table(["kind", "what", "where", "offered", "why it is a leftover"], [
        [kind.name, shown(kind.title), shown(", ".join(kind.places)), "yes" if kind.offered else "no", shown(kind.leftover)] for kind in known],
        left={0, 1, 2, 3, 4})
    print(f"{len(known)} kinds; one in full: python -m ops artifacts kinds --kind NAME")
    return 0


def _kind_in_full(kind: Kind) -> str:
    one = "a folder with all in it" if kind.unit == "folder" else "a socket" if kind.file_type == "socket" else "a file"
    rows = [("kind", f"{kind.name}{' (own)' if kind.own else ''}: {kind.title}"), ("leftover", kind.leftover), ("keeping", kind.keeping),
            ("where", ", ".join(kind.places)), ("patterns", ", ".join(patterns(kind))), ("one is", one),
            ("safe when", "; ".join(safe_when(kind))), ("offered", "yes" if kind.offered else "no: somebody must choose it"),
            ("redeploy", "offers it" if kind.with_redeploy else "leaves it alone")]
    return "\n".join(f"{head:<10} {shown(text)}" for head, text in rows if text)


def safe_when(kind: Kind) -> list[str]:
    """What must hold before one of this kind is deleted, beside what must hold of every file."""
    said = [CONDITIONS[condition] for condition in kind.conditions]
    if kind.min_age_s:
        said.append(f"unchanged for {_span(kind.min_age_s)}")
    return said or [METHODS[kind.method]]


def patterns(kind: Kind) -> list[str]:
    """Its patterns as kinds.toml has them (`vllm_dist_{hex:32}`), which people can read; of an own kind as it was given."""
    if kind.own:
        return kind.patterns
    raw = tomllib.loads(kinds_of_leftovers.BUILTIN.read_text(encoding="utf-8"))["kind"]
    return next(list(one["patterns"]) for one in raw if one["name"] == kind.name)


def _chosen_kinds(arguments: argparse.Namespace) -> list[Kind]:
    """Built-in kinds and those of --kinds; those of --kind alone, if it is given. Raises WrongArguments."""
    with from_arguments():
        known = kinds_of_leftovers.all_kinds(_own_kinds(arguments))
    if not arguments.kind:
        return list(known)
    if unknown := sorted(set(arguments.kind) - {kind.name for kind in known}):
        raise WrongArguments(f"There is no kind of leftover called `{unknown[0][:60]}`", hint=f"Known: {', '.join(kind.name for kind in known)}")
    return [kind for kind in known if kind.name in arguments.kind]


def _own_kinds(arguments: argparse.Namespace) -> list[Any]:
    """The records of --kinds: a JSON list, each marked as somebody's own."""
    if not getattr(arguments, "kinds", None):
        return []
    from ops.command_line.output import read_whole

    try:
        raw = json.loads(read_whole(Path(arguments.kinds), _OWN_MOST))
    except (ValueError, RecursionError) as error:
        raise WrongArguments(f"`{arguments.kinds}` is no JSON", why=str(error), hint=_KINDS_HINT) from error
    if not isinstance(raw, list) or not all(isinstance(one, dict) for one in raw):
        raise WrongArguments(f"`{arguments.kinds}` holds no list of kinds", hint=_KINDS_HINT)
    return [{**one, "own": True} for one in raw]


# ---- scan ----


def scan(arguments: argparse.Namespace) -> int:
    """Exit code 1 if something could not be looked at."""
    out = _new_file(arguments.out, "--out")
    wanted = _chosen_kinds(arguments)
    roots = [os.path.abspath(root) for root in arguments.root or []]  # noqa: PTH100  (Path.resolve follows links, which a root must not be)
    try:
        told = _scan_job(arguments, out, roots) if targets.config_if_any() is not None else _scan_here(arguments, out, roots, wanted)
    except Cancelled:
        print("Interrupted: there is no preview", file=sys.stderr)
        return INTERRUPTED
    if arguments.json:
        print_json(told)
    else:
        _print_scan(told)
    return int(told["state"] != JobState.SUCCEEDED)


def _scan_job(arguments: argparse.Namespace, out: Path, roots: list[str]) -> dict[str, Any]:
    """The same job that the console starts; its preview is copied to `out`."""
    own = _own_kinds(arguments)
    params = {"roots": roots or None, "kinds": arguments.kind, "open_check": not arguments.no_open_check}
    result, error = jobs.execute(arguments, "artifact-scan", None, params, {"kinds": own} if own else {})
    if result["state"] == JobState.CANCELLED:
        raise Cancelled("scan")
    if "scan" not in result:
        raise error or OpsError("The scan told nothing", why=str(result["reason"]))
    told = dict(result["scan"])
    _copy(Path(told["preview"]["path"]), out)
    return {"job": result["job"], "state": result["state"], **told, "preview": {**told["preview"], "path": shown(str(out))}}


def _scan_here(arguments: argparse.Namespace, out: Path, roots: list[str], wanted: list[Kind]) -> dict[str, Any]:
    from ops.artifacts import scan as scanning
    from ops.artifacts.conditions import Conditions
    from ops.artifacts.holders import Holders
    from ops.artifacts.preview import Header, PreviewWriter

    if not roots:
        raise WrongArguments("Which folder is to be looked at?", why="This machine is no node, so nothing says where leftovers may lie",
                             hint="Give --root DIR; with `make up` it becomes a node, whose node.toml says it")
    where = _here(roots, wanted)
    if not where.places and where.refused:
        raise next(iter(where.refused.values()))
    holders = Holders()
    line = StatusLine()
    with interruptible() as pressed, PreviewWriter(out, Header.now(NO_NODE, roots, wanted)) as writer:
        try:
            result = scanning.scan(where, wanted, conditions=Conditions(None, None, [], holders, places=where), preview=writer,
                                   progress=_Pace(line).scanned, check=_check(pressed), open_check=not arguments.no_open_check,
                                   log=line.say if arguments.verbose else None)
        finally:
            line.clear()
        told = result.as_dict()
        digest = writer.finish(told)
    state = JobState.PARTIAL if result.partial else JobState.SUCCEEDED
    return {"state": str(state), **told, "preview": {"path": shown(str(out)), "digest": digest, "size_bytes": out.stat().st_size}}


def _here(roots: Sequence[str], wanted: Sequence[Kind]) -> Places:
    """The places of a machine that is no node: these folders, once each is one that may be purged."""
    from ops.artifacts import places

    return places.of_node(None, None, [], kinds=wanted, roots=list(roots))


def _check(pressed: Callable[[], bool]) -> Callable[[], None]:
    def check() -> None:
        if pressed():
            raise Cancelled("by hand")

    return check


class _Pace:
    """Says how far a loop is, a few times a second."""

    def __init__(self, line: StatusLine) -> None:
        self._line, self._next = line, 0.0

    def scanned(self, files: int, folder: str) -> None:
        self._show(f"{files:,} files looked at: {shown(folder)}")

    def purged(self, done: int, total: int, freed: int) -> None:
        self._show(f"{done:,} of {total:,}, freed {size(freed)}")

    def _show(self, text: str) -> None:
        if (now := time.monotonic()) >= self._next:
            self._line.show(text)
            self._next = now + 0.2


def _print_scan(told: Mapping[str, Any]) -> None:
    rows = [row for kind in told["kinds"] for row in _kind_rows(kind)]
    if rows:
        table(["kind", "state", "count", "files", "size", "oldest", "newest", "why"], rows, left={0, 1, 7})
    counted = _counted(told["kinds"])
    looked = f"{told['files']:,} files were looked at in {told['took_s']:.1f} s"
    if not rows:
        print(f"No leftovers: {looked}")
    else:
        print(f"{looked}; sizes are what they take on the disk")
    if largest := told["largest"][:_LARGEST]:
        print("largest folders: " + ", ".join(f"{shown(one['path'])} {size(one['size_bytes'])}" for one in largest))
    for gauge in told["gauges"]:
        if gauge["free_bytes"] is not None and gauge["total_bytes"]:
            inodes = f", {gauge['inodes_free']:,} of {gauge['inodes']:,} inodes" if gauge["inodes"] and gauge["inodes_free"] is not None else ""
            print(f"{shown(gauge['path'])} ({shown(gauge['what'])}): {size(gauge['free_bytes'])} of {size(gauge['total_bytes'])}{inodes} free")
    for problem in told["problems"]:
        print(f"note: {shown(problem)}")
    if rows:
        print("; ".join(f"{state}: {size(of['size_bytes'])} in {of['count']:,}" for state, of in counted.items() if of["count"]))
        path = _word(told["preview"]["path"])
        print(f"Written: {path}\nLook at them: python -m ops artifacts show {path}")
        if counted[OFFERED]["count"]:
            print(f"Delete what is offered: python -m ops artifacts purge {path} --all-offered")
        if counted[OPTIONAL]["count"]:
            print("What is optional goes only if you choose it: --kind NAME, or --only N")


def _word(path: str) -> str:
    """A path as it is typed in a shell."""
    import shlex

    return shlex.quote(path)


def _kind_rows(kind: Mapping[str, Any]) -> Iterator[list[str]]:
    """A row for each state in which there is one."""
    for state in STATES:
        of = kind[state]
        if of["count"]:
            yield [kind["kind"], state, f"{of['count']:,}", f"{of['files']:,}", size(of["size_bytes"]), _age(of["oldest_ns"]), _age(of["newest_ns"]),
                   {OFFERED: shown(kind["leftover"]), OPTIONAL: shown(kind["keeping"]), KEPT: _reasons(kind["why_kept"])}[state]]


def _reasons(why_kept: Sequence[Mapping[str, Any]]) -> str:
    named = [f"{shown(one['why'])} ({one['count']:,})" for one in why_kept[:_REASONS]]
    return "; ".join(named + [f"{len(why_kept) - _REASONS} more reasons"] * (len(why_kept) > _REASONS))


def _counted(kinds: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """{state: {count, files, size_bytes}} over all kinds."""
    kinds = list(kinds)
    return {state: {part: sum(kind[state][part] for kind in kinds) for part in ("count", "files", "size_bytes")} for state in STATES}


# ---- show ----


def show(arguments: argparse.Namespace) -> int:
    from ops.artifacts.preview import Preview

    if arguments.limit < 0:
        raise WrongArguments(f"--limit {arguments.limit} cannot be", hint="Give 0 to list all")
    with Preview.open(arguments.preview) as preview:
        preview.check_summary()
        _known_in(preview, arguments.kind)
        fitting = 0

        def wanted() -> Iterator[Artifact]:
            nonlocal fitting
            for artifact, _ in preview.artifacts():
                if (not arguments.kind or artifact.kind in arguments.kind) and arguments.state in (None, artifact.state):
                    fitting += 1
                    yield artifact

        key = _ORDER[arguments.sort]
        listed = heapq.nsmallest(arguments.limit, wanted(), key=key) if arguments.limit else sorted(wanted(), key=key)
        header, summary = preview.header, preview.summary
        if arguments.json:
            return print_json({"preview": {"path": shown(str(preview.path)), "digest": preview.digest, "size_bytes": preview.size_bytes},
                               "node": header.node, "at": header.at, "roots": [shown(root) for root in header.roots], "summary": summary,
                               "fitting": fitting, "artifacts": [artifact.as_dict() for artifact in listed]})
    print(f"Scan of {shown(header.node)}, {_when(header.at)} ({_age(header.at * 1e9)} ago)")
    rows = [row for kind in summary["kinds"] if not arguments.kind or kind["kind"] in arguments.kind for row in _kind_rows(kind)
            if arguments.state in (None, row[1])]
    if rows:
        table(["kind", "state", "count", "files", "size", "oldest", "newest", "why"], rows, left={0, 1, 7})
        print()
        _print_artifacts(listed, preview.kinds)
    print(f"{len(listed):,} of {fitting:,} listed{'; --limit 0 lists all' if len(listed) < fitting else ''}")
    for problem in summary["problems"]:
        print(f"note: {shown(problem)}")
    return 0


_ORDER: dict[str, Callable[[Artifact], Any]] = {
    "size": lambda one: (-one.size_bytes, one.number), "age": lambda one: (one.mtime_ns, one.number), "path": lambda one: (one.path, one.number),
    "owner": lambda one: (one.owner, -one.size_bytes, one.number), "number": lambda one: one.number}


def _print_artifacts(listed: Sequence[Artifact], known: Mapping[str, Kind]) -> None:
    """A line for each, and a second one that says why where that is not what the table says of its kind."""
    heads = ["number", "kind", "state", "files", "size", "age", "owner", "service"]
    cells = [_cells(artifact) for artifact in listed]
    if not any(row[-1] for row in cells):  # none is known to come from one
        heads, cells = heads[:-1], [row[:-1] for row in cells]
    widths = [max(len(row[i]) for row in [heads, *cells]) for i in range(len(heads))]
    for row, artifact in zip([heads, *cells], [None, *listed], strict=True):
        aligned = [cell.ljust(width) if i in (1, 2, 6, 7) else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        print("  ".join([*aligned, "path" if artifact is None else shown(artifact.path)]))
        if artifact is not None and artifact.why not in ("", known[artifact.kind].leftover, known[artifact.kind].keeping):
            print(f"{'':>{widths[0]}}  {artifact.state}: {shown(artifact.why)}")


def _cells(artifact: Artifact) -> list[str]:
    return [str(artifact.number), artifact.kind, artifact.state, f"{artifact.files:,}", size(artifact.size_bytes), _age(artifact.mtime_ns),
            shown(artifact.owner), shown(artifact.service)]


# ---- purge ----


def purge(arguments: argparse.Namespace) -> int:
    """Exit code 1 if something that was chosen stayed, 130 if it was interrupted."""
    from ops.artifacts.preview import Preview

    manifest = _new_file(arguments.manifest, "--manifest") if arguments.manifest else None
    with Preview.open(arguments.preview) as preview:
        preview.check_summary()
        choice = _choice(arguments, preview)
        if arguments.dry_run:
            return _dry_run(arguments, preview, choice)
        if not arguments.yes and not arguments.json and sys.stdin.isatty() and not _agreed(preview, choice):
            print("Nothing was deleted", file=sys.stderr)
            return 1
        config = targets.config_if_any()
        told, kept_at, state = _purge_job(arguments, preview, choice) if config is not None else _purge_here(arguments, preview, choice)
    problem = None
    if manifest is not None:
        try:
            _export(kept_at, manifest)
            told = {**told, "manifest": {**told["manifest"], "path": shown(str(manifest))}}
        except OpsError as error:
            problem = error
    if arguments.json:
        print_json({**told, "state": state})
    else:
        _print_purge(told)
    if problem is not None:
        raise problem  # after what was deleted was told: files are gone all the same
    return INTERRUPTED if told["cancelled"] else int(state != JobState.SUCCEEDED)


def _choice(arguments: argparse.Namespace, preview: Preview) -> Choice:
    """What is chosen of the preview. Raises WrongArguments for no choice, and for one that the preview does not have."""
    _known_in(preview, arguments.kind)
    could = {kind["kind"]: kind for kind in preview.summary["kinds"] if kind[OFFERED]["count"] or kind[OPTIONAL]["count"]}
    if not (arguments.all_offered or arguments.kind or arguments.only):
        raise WrongArguments("Nothing was chosen, so nothing is deleted", why=f"The preview has {_could(could.values())}",
                             hint="Choose with --all-offered, --kind NAME or --only N; `python -m ops artifacts show` has the numbers")
    for kind in preview.summary["kinds"]:
        if kind["kind"] in (arguments.kind or []) and kind["kind"] not in could:
            raise WrongArguments(f"Nothing of the kind `{kind['kind']}` can be chosen", why=f"All is kept: {_reasons(kind['why_kept'])}"
                                 if kind[KEPT]["count"] else "The scan found none")
    whole, without, numbers = list(arguments.kind or []), set(arguments.without or []), set(arguments.only or [])
    if arguments.all_offered:
        offered = [name for name, kind in could.items() if kind[OFFERED]["count"] and name not in whole]
        mixed = {name for name in offered if could[name][OPTIONAL]["count"]}
        if mixed:  # a kind is chosen whole, so what is only optional in it must be left out
            without |= {artifact.number for artifact, _ in preview.artifacts() if artifact.kind in mixed and artifact.state == OPTIONAL} - numbers
        whole += offered
    if numbers or arguments.without:
        _check_numbers(preview, numbers, set(arguments.without or []))
    with from_arguments():
        choice = Choice(kinds=sorted(set(whole)), numbers=sorted(numbers), without=sorted(without))
        if arguments.all_offered and not choice.kinds and not numbers:
            raise BadInput("The preview offers nothing", why=f"It has {_could(could.values())}")
        choice.check()
    return choice


def _known_in(preview: Preview, names: Sequence[str] | None) -> None:
    known = [kind.name for kind in preview.header.kinds]
    if unknown := sorted(set(names or []) - set(known)):
        raise WrongArguments(f"The preview knows no kind `{unknown[0][:60]}`", hint=f"It was made for {', '.join(known)}")


def _check_numbers(preview: Preview, numbers: set[int], without: set[int]) -> None:
    """Raises WrongArguments for a number that is not in the preview, and for one that cannot be chosen."""
    strange = sorted(number for number in numbers | without if not 1 <= number <= preview.count)
    if strange:
        raise WrongArguments(f"The preview has no artifact {strange[0]}", hint=f"They are numbered from 1 to {preview.count:,}" if preview.count
                             else "It is empty")
    for artifact, _ in preview.artifacts():
        if artifact.number in numbers and not artifact.choosable:
            raise WrongArguments(f"Artifact {artifact.number} cannot be chosen: `{shown(artifact.path)}`", why=artifact.why)


def _could(kinds: Iterable[Mapping[str, Any]]) -> str:
    """`35 debug tensors offered (debug-tensor, 65 MB), ...`."""
    found = [(kind, state, kind[state]) for kind in kinds for state in (OFFERED, OPTIONAL) if kind[state]["count"]]
    said = [f"{kinds_of_leftovers.counted(of['count'], kind['one'], kind['title'])} {state} ({kind['kind']}, {size(of['size_bytes'])})"
            for kind, state, of in found]
    return ", ".join(said) or "nothing that can be chosen"


def _chosen_counts(preview: Preview, choice: Choice) -> tuple[list[list[str]], dict[str, int]]:
    """(rows of the table by kind, {count, files, size_bytes}) of what is chosen."""
    count, files, size_bytes, oldest = Counter[str](), Counter[str](), Counter[str](), dict[str, int]()
    for artifact, _ in preview.artifacts(choice):
        count[artifact.kind] += 1
        files[artifact.kind] += artifact.files
        size_bytes[artifact.kind] += artifact.size_bytes
        oldest[artifact.kind] = min(artifact.mtime_ns, oldest.get(artifact.kind, artifact.mtime_ns))
    rows = [[name, f"{count[name]:,}", f"{files[name]:,}", size(size_bytes[name]), _age(oldest[name]), shown(preview.kinds[name].keeping)]
            for name in preview.kinds if count[name]]
    return rows, {"count": count.total(), "files": files.total(), "size_bytes": size_bytes.total()}


_CHOSEN_HEAD = ["kind", "count", "files", "size", "oldest", "keeping it"]


def _agreed(preview: Preview, choice: Choice) -> bool:
    rows, total = _chosen_counts(preview, choice)
    table(_CHOSEN_HEAD, rows, left={0, 5})
    return input(f"Delete {_of(total)} for good? [y/N] ").strip().lower() in ("y", "yes")


def _of(total: Mapping[str, int]) -> str:
    artifacts, files = total["count"], total["files"]
    return f"{artifacts:,} artifact{'s' * (artifacts != 1)} ({files:,} file{'s' * (files != 1)}, {size(total['size_bytes'])})"


def _dry_run(arguments: argparse.Namespace, preview: Preview, choice: Choice) -> int:
    """Each artifact that is chosen, in the preview's order; with --verbose also what lies in a folder. Nothing is held in memory."""
    rows, total = _chosen_counts(preview, choice)
    if arguments.json:
        print(f'{{"dry_run": true, "chosen": {json.dumps(total)}, "artifacts": [')
        for number, (artifact, _) in enumerate(preview.artifacts(choice)):
            print(f"{',' if number else ''}{json.dumps(artifact.as_dict(), ensure_ascii=False)}")
        print("]}")
        return 0
    print(f"{'number':>7}  {'kind':<20}  {'files':>7}  {'size':>8}  {'age':>6}  path")
    for artifact, tree in preview.artifacts(choice):
        print(f"{artifact.number:>7}  {artifact.kind:<20}  {artifact.files:>7,}  {size(artifact.size_bytes):>8}  {_age(artifact.mtime_ns):>6}  "
              f"{shown(artifact.path)}{'/' * (artifact.unit == 'folder')}")
        if arguments.verbose and artifact.unit == "folder":
            _print_tree(artifact, tree)
    print()
    table(_CHOSEN_HEAD, rows, left={0, 5})
    print(f"Would delete {_of(total)}. Nothing was deleted: a purge looks at each again, and keeps what has changed or is in use by then")
    return 0


def _print_tree(artifact: Artifact, tree: Tree | None) -> None:
    for row in tree or ():
        if row.path:
            print(f"{'':>9}{shown(artifact.path)}/{shown(row.path)}{'/' * (row.type == 'folder')}  {size(row.size_bytes)}")


Purged = tuple[dict[str, Any], Path, str]  # data of PURGE_RESULT, the manifest, how it ended


def _to_lock(preview: Preview, choice: Choice, paths: NodePaths) -> list[str]:
    """The services that something chosen belongs to, or all of the node for a cache that several may use: it goes only while they are stopped."""
    stopped = {kind.name for kind in preview.header.kinds if kind.needs_all_stopped}
    found = {(artifact.service, artifact.kind in stopped) for artifact, _ in preview.artifacts(choice)}
    named = {service for service, _ in found if service}
    if ("", True) in found:
        named |= {record.name for record in cleaning.node_records(paths)}
    return sorted(named)


def _purge_job(arguments: argparse.Namespace, preview: Preview, choice: Choice) -> Purged:
    """The same job that the console starts: it locks purges of this node, and the services that something chosen belongs to."""
    paths = NodePaths.default()
    if preview.header.node != (node := NodeConfig.load(paths.node_toml).name):
        raise BadInput(f"The preview is of `{shown(preview.header.node)[:60]}`, and this node is `{node}`",
                       hint="Scan this node, then choose from that")
    targets.own_node(paths)
    paths.make()
    services = _to_lock(preview, choice, paths)
    params = {"scan": _hand_over(paths, preview), "digest": preview.digest, "choice": choice.as_dict(), "services": services}
    result, error = jobs.execute(arguments, "purge", None, params)
    if "purge" not in result:
        if result["state"] == JobState.CANCELLED:
            raise KeyboardInterrupt
        raise error or OpsError("The purge told nothing", why=str(result["reason"]))
    if result["state"] == JobState.FAILED and error is not None:
        tell(error, json_output=False)
    return {"job": result["job"], **result["purge"]}, paths.manifests / f"{result['job']}.jsonl", str(result["state"])


def _hand_over(paths: NodePaths, preview: Preview) -> str:
    """The scan by which the node knows this preview; one that it keeps no more becomes known again."""
    import uuid

    from ops.artifacts.preview import Preview as Reader

    for known in sorted(paths.previews.glob("*.jsonl")):
        try:
            if known.stat().st_size != preview.size_bytes:
                continue
            with Reader.open(known) as other:
                if other.digest == preview.digest:
                    return known.stem
        except (BadInput, FileNotFoundError):  # somebody changed that one, or a scan tidied it away just now
            continue
    name = str(uuid.uuid4())
    _copy(preview.path, paths.previews / f"{name}.jsonl")
    return name


def _purge_here(arguments: argparse.Namespace, preview: Preview, choice: Choice) -> Purged:
    from ops.artifacts import manifest, purge
    from ops.artifacts.conditions import Conditions
    from ops.artifacts.holders import Holders

    if preview.header.node != NO_NODE:
        raise BadInput(f"The preview is of the node `{shown(preview.header.node)[:60]}`", why="This machine is no node",
                       hint="Purge there, or scan this machine")
    where = _here(preview.header.roots, preview.header.kinds)
    kept_at = preview.path.absolute().with_name(f"{preview.path.name[:200]}.manifest-{time.strftime('%Y%m%d-%H%M%S')}.jsonl")
    line = StatusLine()

    def on_entry(entry: Entry) -> None:
        if arguments.verbose:
            line.say(f"    {entry.result} {shown(entry.path)}{f': {shown(entry.why)}' if entry.why else ''}")

    with interruptible() as pressed, manifest.ManifestWriter(kept_at, digest=preview.digest, node=NO_NODE) as written:
        try:
            result = purge.purge(preview, choice, places=where, conditions=Conditions(None, None, [], Holders(), places=where), manifest=written,
                                 progress=_Pace(line).purged, check=_check(pressed), on_entry=on_entry)
        finally:
            line.clear()
    state = JobState.CANCELLED if result.cancelled else JobState.PARTIAL if result.partial else JobState.SUCCEEDED
    return result.as_dict(), kept_at, str(state)


def _print_purge(told: Mapping[str, Any]) -> None:
    if told["kinds"]:
        parts = ("chosen", "deleted", "kept")
        rows = [[kind["kind"], *(f"{kind[part]:,}" for part in parts), size(kind["freed_bytes"])] for kind in told["kinds"]]
        table(["kind", *parts, "freed"], rows, left={0})
    for one in told["why_kept"]:
        print(f"kept {one['count']:,}: {shown(one['why'])}, such as {shown(one['example'])}")
    gone = told["chosen"]["count"] - told["deleted"]["count"] - told["kept"]["count"]
    if gone and not told["cancelled"]:
        print(f"{gone:,} {'was' if gone == 1 else 'were'} not there any more")
    for problem in told.get("problems", []):
        print(f"note: {shown(problem)}")
    how = "Interrupted: freed" if told["cancelled"] else "Freed"
    print(f"{how} {size(told['freed_bytes'])}: {told['deleted']['count']:,} of {told['chosen']['count']:,} artifacts deleted")
    print(f"Manifest: {told['manifest']['path']}")


def _export(kept_at: Path, wanted: Path) -> None:
    """The manifest once more, as CSV or JSON."""
    from ops.artifacts import manifest

    with manifest.Manifest(kept_at) as kept:
        head = {"node": kept.node, "at": kept.at, "scan": kept.scan, "digest": kept.digest, "result": kept.result}
        pieces = manifest.to_csv(kept.entries(), at=kept.at) if wanted.suffix.lower() == ".csv" else manifest.to_json(
            kept.entries(), at=kept.at, head=head)
        try:
            with _created(wanted) as file:  # its end writes as well: what a full disk refuses is told here
                file.writelines(pieces)
        except OSError as error:
            wanted.unlink(missing_ok=True)  # a half one would pass for the whole
            raise OpsError(f"`{shown(str(wanted))}` cannot be written", why=error.strerror or str(error),
                           hint=f"The manifest is whole in {shown(str(kept_at))}") from error


# ---- files and words ----


def _new_file(path: str, option: str) -> Path:
    """A path at which a file can be made. Raises WrongArguments; told before anything is looked at."""
    wanted = Path(path)
    if os.path.lexists(wanted):
        raise WrongArguments(f"{option}: `{shown(path)}` is there already", why="Nothing is overwritten", hint="Choose another name")
    if not wanted.absolute().parent.is_dir():
        raise WrongArguments(f"{option}: there is no folder `{shown(str(wanted.absolute().parent))}`")
    return wanted.absolute()


def _created(path: Path) -> TextIO:
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8", newline="")
    except OSError as error:
        raise OpsError(f"`{shown(str(path))}` cannot be written", why=error.strerror or str(error)) from error


def _copy(source: Path, to: Path) -> None:
    with source.open("rb") as file, _created(to) as copy:
        while block := file.read(_COPY):
            copy.buffer.write(block)


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _age(ns: float | None) -> str:
    return "unknown" if ns is None else _span(max(0.0, time.time() - ns / 1e9))


def _span(seconds: float) -> str:
    """`2 y`, `3 d`, `5 h`, `2 min`, `7 s`."""
    for unit, length in (("y", 365.25 * 86400), ("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length * (2 if unit == "y" else 1):
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
