"""What does a scan for leftovers cost, next to `find ROOT -printf '%s %T@ %u %p\\n'` over the same tree, and a purge next to `rm -rf` of it? Both in
one run, as a ratio.

    .venv/bin/python -m benchmarks.artifacts scan [--files 1000000] [--in-a-folder 1000] [--rounds 5] [--folder PATH]
    .venv/bin/python -m benchmarks.artifacts purge [--files 100000] [--in-a-folder 1000] [--rounds 5] [--folder PATH]

A tree of so many debug tensors is made in a temporary folder (below PATH) and removed. It is scanned twice a round: once without the kinds for
tensors, so that nothing is found, and once with them, so that every file becomes a line of the preview. Ours is a process of its own from start to
exit: the interpreter's start, all built-in kinds that are looked for in /tmp, shared memory and scratch folders, the preview written and closed;
without the look at open files, which `find` does not take either. One untimed round warms the kernel's caches, then all run in turn. Prints JSON and
rows of a table; exit 1 if a median ratio is above 2.0 or our largest resident set above 300 MB. The figures are of this machine: look at the ratio.

For a purge the tree is made anew for each turn and written to the disk, scanned, and then deleted: by `rm -rf`, by a purge of every file as an
artifact of its own, and by a purge of every folder as one. Ours again is the whole process: the preview read and checked, every file looked at, who
has what open looked at before, meanwhile and after, the manifest forced to the disk. The scan is not counted. Exit 1 if a median ratio is above 3.0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from ops.artifacts import kinds as kinds_of  # noqa: E402
from ops.artifacts.conditions import Conditions  # noqa: E402
from ops.artifacts.found import Choice  # noqa: E402
from ops.artifacts.holders import Holders  # noqa: E402
from ops.artifacts.kinds import Kind  # noqa: E402
from ops.artifacts.manifest import ManifestWriter  # noqa: E402
from ops.artifacts.places import Never, Place, Places  # noqa: E402
from ops.artifacts.preview import Header, Preview, PreviewWriter  # noqa: E402
from ops.artifacts.purge import purge  # noqa: E402
from ops.artifacts.scan import scan  # noqa: E402

# Byte code is kept, as it is where Roundhouse runs: nobody compiles it anew each time
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
SCAN_AT_MOST = 2.0
RSS_AT_MOST = 300_000_000
PURGE_AT_MOST = 3.0
PURGED = {
    "every file": Kind(name="file", title="Files", one="file", leftover="Made by a benchmark", keeping="Nothing", places=["scratch"],
                       patterns=["*.pt"]),
    "every folder": Kind(name="folder", title="Folders", one="folder", leftover="Made by a benchmark", keeping="Nothing", places=["scratch"],
                         patterns=["run*/step*"], unit="folder"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, files, text in (("scan", 1_000_000, "a scan, next to find"), ("purge", 100_000, "a purge, next to rm -rf")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--files", type=int, default=files)
        command.add_argument("--in-a-folder", type=int, default=1000, help="files in each folder; as many as --files: one flat folder")
        command.add_argument("--rounds", type=int, default=5)
        command.add_argument("--folder", type=Path, help="where the trees are made; default: the temporary folder")
    only = commands.add_parser("only-scan", help="what the benchmark runs: one scan of a tree")
    only.add_argument("root", type=Path)
    only.add_argument("preview", type=Path)
    only.add_argument("--without-tensors", action="store_true")
    purging = commands.add_parser("only-purge", help="what the benchmark runs: one purge of a preview")
    purging.add_argument("root", type=Path)
    purging.add_argument("preview", type=Path)
    purging.add_argument("what", choices=list(PURGED))
    arguments = parser.parse_args()
    if arguments.command == "only-purge":
        return only_purge(arguments.root, arguments.preview, arguments.what)
    if arguments.command == "purge":
        return purges(arguments.files, arguments.in_a_folder, arguments.rounds, arguments.folder)
    if arguments.command == "only-scan":
        return only_scan(arguments.root, arguments.preview, tensors=not arguments.without_tensors)
    return scans(arguments.files, arguments.in_a_folder, arguments.rounds, arguments.folder)


# Scan


def scans(files: int, in_a_folder: int, rounds: int, folder: Path | None) -> int:
    with tempfile.TemporaryDirectory(prefix="artifacts-speed-", dir=folder) as made:
        make_tree(Path(made, "tree"), files, in_a_folder)
        rows = measure_scan(Path(made, "tree"), Path(made, "preview.jsonl"), rounds)
    print(json.dumps({"files": files, "rows": rows}, indent=1))
    print("\n| files | found | find, s | scan, s | scan / find | ratio by round | processor time | largest resident set, MB | preview, MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {files:,} | {row['found']} | {row['find_s']:.1f} | {row['scan_s']:.1f} | {row['ratio']:.2f} | {min(row['ratios']):.2f} to "
              f"{max(row['ratios']):.2f} | {row['cpu_ratio']:.2f} | {row['rss_bytes'] / 1e6:.0f} | {row['preview_bytes'] / 1e6:.1f} |")
    return 0 if all(row["ratio"] <= SCAN_AT_MOST and row["rss_bytes"] <= RSS_AT_MOST for row in rows) else 1


def make_tree(tree: Path, files: int, in_a_folder: int) -> None:
    """Folders of so many files each, ten of them in one, as a debug run writes them; most are empty, for what is in them costs a scan nothing."""
    for number in range(0, files, in_a_folder):
        folder = tree / f"run{number // (10 * in_a_folder):03}" / f"step{number // in_a_folder:04}"
        folder.mkdir(parents=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for each in range(number, min(number + in_a_folder, files)):
            file = os.open(f"layer{each % 100:02}_{each:07}.pt", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=descriptor)
            if each % 100 == 0:
                os.write(file, b"tensor")
            os.close(file)
        os.close(descriptor)


def measure_scan(tree: Path, preview: Path, rounds: int) -> list[dict[str, Any]]:
    """A row for each of the two scans, of medians."""
    find = shutil.which("find")
    if find is None:
        raise SystemExit("find is not installed")
    ours = [sys.executable, "-m", "benchmarks.artifacts", "only-scan", str(tree), str(preview)]
    asked = {"find": [find, str(tree), "-printf", "%s %T@ %u %p\\n"], "nothing": [*ours, "--without-tensors"], "every file": ours}
    took: dict[str, list[float]] = {what: [] for what in asked}
    worked: dict[str, list[float]] = {what: [] for what in asked}
    largest, sizes = dict.fromkeys(asked, 0), dict.fromkeys(asked, 0)
    for number in range(rounds + 1):
        for what, argv in asked.items():
            seconds, processor, resident = timed(argv)
            if number:
                took[what].append(seconds)
                worked[what].append(processor)
            largest[what] = max(largest[what], resident)
            sizes[what] = preview.stat().st_size if preview.exists() else 0
    rows = []
    for what in ("nothing", "every file"):
        ratios = [mine / theirs for mine, theirs in zip(took[what], took["find"], strict=True)]
        processor = statistics.median(worked[what]) / statistics.median(worked["find"])
        rows.append({"found": what, "find_s": statistics.median(took["find"]), "scan_s": statistics.median(took[what]),
                     "ratio": statistics.median(ratios), "ratios": ratios, "cpu_ratio": processor,
                     "rss_bytes": largest[what], "preview_bytes": sizes[what]})
    return rows


def timed(argv: list[str]) -> tuple[float, float, int]:
    """(seconds from start to exit, seconds of processor time, largest resident set in bytes)."""
    began = time.perf_counter()
    process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv[0]} ended with exit status {process.returncode}")
    return took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def only_scan(root: Path, preview: Path, *, tensors: bool) -> int:
    names = ("scratch", "tmp", "shm")
    places = Places([Place(name=name, path=str(root)) for name in names], Never())
    kinds = [kind for kind in kinds_of.builtin() if set(kind.places) & set(names) and (tensors or "*.pt" not in kind.patterns)]
    with PreviewWriter(preview, Header.now("benchmark", [str(root)], kinds)) as writer:
        result = scan(places, kinds, preview=writer, open_check=False)
        writer.finish(result.as_dict())
    return 0


# Purge


def purges(files: int, in_a_folder: int, rounds: int, folder: Path | None) -> int:
    took: dict[str, list[float]] = {what: [] for what in ("rm", *PURGED)}
    worked: dict[str, list[float]] = {what: [] for what in took}
    largest = dict.fromkeys(took, 0)
    with tempfile.TemporaryDirectory(prefix="artifacts-speed-", dir=folder) as made:
        tree, preview = Path(made, "tree"), Path(made, "preview.jsonl")
        for number in range(rounds + 1):
            for what in took:
                make_tree(tree, files, in_a_folder)
                if what != "rm":
                    with PreviewWriter(preview, Header.now("benchmark", [str(tree)], [PURGED[what]])) as writer:
                        writer.finish(scan(purge_places(tree), [PURGED[what]], preview=writer).as_dict())
                os.sync()  # nobody waits for what the making of the tree left to be written
                ours = [sys.executable, "-m", "benchmarks.artifacts", "only-purge", str(tree), str(preview), what]
                seconds, processor, resident = timed(["rm", "-rf", str(tree)] if what == "rm" else ours)
                if [path for path in tree.rglob("*") if not path.is_dir()]:
                    raise SystemExit(f"{what}: not all is gone")
                shutil.rmtree(tree, ignore_errors=True)
                largest[what] = max(largest[what], resident)
                print(f"round {number}, {what}: {seconds:.2f} s, {processor:.2f} s of processor time", file=sys.stderr, flush=True)
                if number:  # the first round warms caches
                    took[what].append(seconds)
                    worked[what].append(processor)
    rows: list[dict[str, Any]] = []
    for what in PURGED:
        ratios = [mine / theirs for mine, theirs in zip(took[what], took["rm"], strict=True)]
        rows.append({"purged": what, "rm_s": statistics.median(took["rm"]), "purge_s": statistics.median(took[what]),
                     "ratio": statistics.median(ratios), "ratios": ratios,
                     "cpu_ratio": statistics.median(worked[what]) / statistics.median(worked["rm"]), "rss_bytes": largest[what]})
    print(json.dumps({"files": files, "rows": rows}, indent=1))
    print("\n| files | purged | rm -rf, s | purge, s | purge / rm | ratio by round | processor time | largest resident set, MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {files:,} | {row['purged']} | {row['rm_s']:.2f} | {row['purge_s']:.2f} | {row['ratio']:.2f} | {min(row['ratios']):.2f} to "
              f"{max(row['ratios']):.2f} | {row['cpu_ratio']:.2f} | {row['rss_bytes'] / 1e6:.0f} |")
    return 0 if all(row["ratio"] <= PURGE_AT_MOST for row in rows) else 1


def purge_places(tree: Path) -> Places:
    return Places([Place(name="scratch", path=str(tree))], Never())


def only_purge(root: Path, preview: Path, what: str) -> int:
    places = purge_places(root)
    manifest = preview.with_name("manifest.jsonl")
    manifest.unlink(missing_ok=True)
    with Preview.open(preview) as opened, ManifestWriter(manifest) as written:
        result = purge(opened, Choice(kinds=[PURGED[what].name]), places=places, conditions=Conditions(None, None, [], Holders(), places=places),
                       manifest=written, kinds=[PURGED[what]])
    if result.partial:
        print(f"Not all went: {result.why_kept} {result.problems}", file=sys.stderr)
    return 1 if result.partial else 0


if __name__ == "__main__":
    raise SystemExit(main())
