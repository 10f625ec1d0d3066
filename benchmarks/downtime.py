"""How long is the service down for a redeploy that is built beside it, next to one that is done in place?

    python -m benchmarks.downtime [--rounds 3] [--only practice|real] [--speed 1000] [--ballast 1000] [--packages flashinfer-cubin==0.6.4,pyarrow,...]

Same packages, same jobs, same machine, in one run; rounds alternate. *practice*: two practice boxes, one of them changed in place; once as they
are (wheels of some kilobytes), and once with a wheel of `--ballast` MB beside them, which stands for the size of a real stack. *real*: two
services on the same real packages of more than 1 GB, with a small server that is up in a moment. Both ways fetch wheels before *stop*, so no
network is in these times. Stop, GPUs free, start and warmup are the same whatever the way, and any restart costs them (minutes with a real model;
the box runs at `--speed`). So there are two ratios: of the whole downtime, and of what the way of installing adds to that of a restart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.real_service import PACKAGES, channel_of, make_node, size
from ops.agent.config import NodePaths
from ops.jobs import claim, runner
from ops.jobs.envelope import Envelope
from ops.jobs.kinds import KINDS
from ops.practice import box
from ops.records import Channel, ServiceRecord
from ops.services.manager import manager_for
from tests.fakes.real_node import RealNode, Told, free_port, until
from tests.fakes.wheels import make_wheel

Redeploy = Callable[[], Told]
OF_THE_INSTALL = ("install", "verify", "switch")  # steps while the service is down; beside it is *switch* alone


@dataclass
class Times:
    """Seconds of each round."""

    downtime: list[float] = field(default_factory=list)
    added: list[float] = field(default_factory=list)  # of it, by the way of installing; the rest is what any restart costs
    steps: list[dict[str, float]] = field(default_factory=list)

    def add(self, told: Told) -> None:
        if told.outcome.state != "succeeded":
            raise SystemExit(f"{told.outcome}")
        took = {data["step"]: float(data["duration_s"]) for kind, data in told.said if kind == "step.finished"}
        self.downtime.append(told.downtime_s)
        self.added.append(sum(took[step] for step in OF_THE_INSTALL if step == "switch" or "install" in took))
        self.steps.append(took)


def measure(title: str, rounds: int, beside: Redeploy, in_place: Redeploy) -> None:
    """Runs both in turn and prints the table."""
    times = {"beside": Times(), "in place": Times()}
    for _ in range(rounds):
        for name, redeploy in (("beside", beside), ("in place", in_place)):
            os.sync()
            times[name].add(redeploy())
    print(f"\n{title}; load {os.getloadavg()[0]:.1f}\n")
    print("| | downtime s | of it by the install s |\n| --- | --- | --- |")
    for name, found in times.items():
        print(f"| {name} | {_span(found.downtime)} | {_span(found.added)} |")
    whole = [slow / fast for slow, fast in zip(times["in place"].downtime, times["beside"].downtime, strict=True)]
    rest = [slow / fast for slow, fast in zip(times["in place"].added, times["beside"].added, strict=True)]
    print(f"| in place / beside | {_span(whole)} | {_span(rest)} |")
    last = times["in place"].steps[-1]
    print(f"\nSteps of the last one in place: {', '.join(f'{name} {took:.2f}' for name, took in last.items())}")
    print(f"Steps of the last one beside: {', '.join(f'{name} {took:.2f}' for name, took in times['beside'].steps[-1].items())}", flush=True)


def _span(found: list[float]) -> str:
    """Median, and the least and the most."""
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


# ---- the practice box ----


@dataclass
class PracticeService:
    """A practice box in a folder of its own, its service running."""

    paths: NodePaths
    root: Path
    record: ServiceRecord
    channel: Channel

    @classmethod
    def make(cls, folder: Path, *, speed: float, in_place: bool) -> PracticeService:
        paths = NodePaths(folder / "node").make()
        record = box.set_up(paths, folder / "box", speed=speed, port=free_port(), in_place=in_place)
        manager = manager_for(record)
        manager.start()
        until(lambda: str(manager.status().state) == "healthy", 120)
        return cls(paths, folder / "box", record, box.channel(folder / "box"))

    def load(self, megabytes: int) -> None:
        """Puts a package of that size into the wheelhouse, in files of 50 kB, and into what the channel installs."""
        files: dict[str, str | bytes] = {f"practice_ballast/part_{n:05d}.bin": os.urandom(50_000) for n in range(megabytes * 20)}
        make_wheel(Path(self.channel.wheelhouse), "practice-ballast", "1.0+practice", files=files)
        self.channel = replace(self.channel, requirements=[*self.channel.requirements, "practice-ballast"])

    def redeploy(self) -> Told:
        params: dict[str, Any] = {"sweep": False, "smoke": False, "purge": False}
        if self.record.in_place:
            params |= {"in_place": True, "environment": os.path.realpath(self.record.environment)}
        locks = sorted(KINDS["redeploy"].locks(self.record.name, params))
        envelope = Envelope.make(type="redeploy", node="practice", service=self.record.as_dict(), params=params, locks=locks,
                                 fence=claim.next_fences(self.paths, locks), snapshot={"channel": self.channel.as_dict()}, by="bench",
                                 now=time.time())
        told = Told(outcome=None)  # type: ignore[arg-type]  # until it has ended
        told.outcome = runner.run_here(self.paths, envelope, on_event=lambda kind, data: told.said.append((kind, json.loads(json.dumps(data)))))
        return told

    def close(self) -> None:
        manager = manager_for(self.record)
        manager.terminate()
        until(lambda: not manager.pids(), 30)


def practice(root: Path, rounds: int, speed: float, ballast: int) -> None:
    boxes = [PracticeService.make(root / name, speed=speed, in_place=name == "i") for name in ("b", "i")]
    try:
        for megabytes in (0, ballast):
            for one in boxes:
                if megabytes:
                    one.load(megabytes)
                one.redeploy()  # to the newest version, so that all rounds are from the same to the same
            beside = f", with {megabytes} MB beside its own packages" if megabytes else ""
            measure(f"The practice box at speed {speed:g}{beside}", rounds, boxes[0].redeploy, boxes[1].redeploy)
    finally:
        for one in boxes:
            one.close()


# ---- real packages ----


def real(root: Path, rounds: int, packages: list[str]) -> None:
    with channel_of(root, packages) as channel:
        nodes: list[RealNode] = []
        try:
            for name in ("b", "i"):
                nodes.append(make_node(root / f"real-{name}", channel, cache=root / "cache", in_place=name == "i"))
                nodes[-1].start()
            beside, in_place = nodes
            files, length = size(beside.current.resolve())
            options = {"sweep": False, "smoke": False, "purge": False}
            for node in nodes:  # so that all rounds are from a release of ours to the same one
                node.run("redeploy", channel, **options)
            measure(f"Real packages: {files:,} files, {length / 1e9:.2f} GB", rounds, lambda: beside.run("redeploy", channel, **options),
                    lambda: in_place.run("redeploy", channel, **options))
        finally:
            for node in nodes:
                node.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("practice", "real"))
    parser.add_argument("--speed", type=float, default=1000)
    parser.add_argument("--ballast", type=int, default=1000)
    parser.add_argument("--packages", default=",".join(PACKAGES))
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="rh-down-"))
    try:
        if given.only != "real":
            practice(root, given.rounds, given.speed, given.ballast)
        if given.only != "practice":
            real(root, given.rounds, given.packages.split(","))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
