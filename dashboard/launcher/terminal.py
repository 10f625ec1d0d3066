"""Lines for the person at the terminal: what was started, and a job's steps as they turn. Plain text where stdout is no terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Any, TextIO

from ops.jobs.events import Event
from ops.report import duration

COLOURS = {"green": "32", "red": "31", "amber": "33", "dim": "2", "bold": "1"}
MARKS = {"done": ("✓", "green"), "skipped": ("–", "dim"), "failed": ("✗", "red"), "cancelled": ("✗", "amber"), "interrupted": ("✗", "amber")}
TURNING = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
NAME_WIDTH = 10


class Terminal:
    """Writes whole lines; on a real terminal also one last line that changes in place."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.live = self.out.isatty() and os.environ.get("TERM", "") != "dumb"
        self.coloured = self.live and "NO_COLOR" not in os.environ
        self._shown = ""
        encoding = (getattr(self.out, "encoding", None) or "utf-8").lower().replace("-", "")
        self.plain_marks = encoding not in {"utf8", "utf16"}

    def colour(self, text: str, name: str) -> str:
        return f"\x1b[{COLOURS[name]}m{text}\x1b[0m" if self.coloured else text

    def line(self, text: str = "") -> None:
        """One finished line."""
        self.status("")
        if self.plain_marks:
            text = text.encode("ascii", "replace").decode()
        try:
            self.out.write(text + "\n")
            self.out.flush()
        except (BrokenPipeError, OSError):  # nobody reads any more (closed terminal, `| head`): the work goes on
            pass

    def fact(self, name: str, text: str) -> None:
        """`  redis      started, pid 12`"""
        self.line(f"  {self.colour(name.ljust(NAME_WIDTH), 'dim')} {text}")

    def status(self, text: str) -> None:
        """The line that changes in place; an empty text takes it away. Nothing where stdout is no terminal."""
        if not self.live or text == self._shown:
            return
        width = shutil.get_terminal_size().columns - 1
        cut = text if len(text) <= width else text[: width - 1] + "…"
        try:
            self.out.write("\r\x1b[K" + cut)
            self.out.flush()
        except (BrokenPipeError, OSError):
            pass
        self._shown = text


class JobLines:
    """A job's events as lines: one a step, and what matters within it. `tick` keeps the running step's line turning."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.titles: dict[str, str] = {}
        self.running: str | None = None
        self.began = 0.0
        self.progress = ""
        self.report: str | None = None

    def tick(self) -> None:
        if self.running is None:
            return
        waited = time.monotonic() - self.began
        turn = TURNING[int(waited * 10) % len(TURNING)]
        self.terminal.status(f"  {turn} {self._title(self.running):<22} {duration(waited):>9}  {self.progress}")

    def show(self, event: Event) -> None:
        shown = getattr(self, "_" + event.type.replace(".", "_"), None)
        if shown is not None:
            shown(event.data)

    def _title(self, step: str) -> str:
        return self.titles.get(step, step)

    def _detail(self, text: str, colour: str = "dim") -> None:
        self.terminal.line("      " + self.terminal.colour(text, colour))

    def _job_claimed(self, data: dict[str, Any]) -> None:
        self.titles = {step["name"]: step["title"] for step in data.get("steps", [])}

    def _step_started(self, data: dict[str, Any]) -> None:
        self.titles.setdefault(data["step"], data.get("title", data["step"]))
        self.running, self.began, self.progress = data["step"], time.monotonic(), ""

    def _step_progress(self, data: dict[str, Any]) -> None:
        done, total, unit, text = data.get("done"), data.get("total"), data.get("unit", ""), data.get("text", "")
        counted = "" if done is None else f"{done:,.0f} of {total:,.0f} {unit}" if total else f"{done:,.0f} {unit}"
        self.progress = text if any(sign.isdigit() for sign in text) else "  ".join(part for part in (counted, text) if part)

    def _step_finished(self, data: dict[str, Any]) -> None:
        mark, colour = MARKS.get(data["outcome"], ("?", "amber"))
        word = "" if data["outcome"] == "done" else f"{data['outcome']}  "
        took = duration(data["duration_s"]) if data.get("duration_s") is not None else ""
        note = f"{word}{data.get('note') or ''}"
        self.terminal.line(f"  {self.terminal.colour(mark, colour)} {self._title(data['step']):<22} {took:>9}  {note}".rstrip())
        self.running = None

    def _step_undoing(self, data: dict[str, Any]) -> None:
        self.running, self.began, self.progress = f"undo {data.get('title') or data['step']}", time.monotonic(), ""

    def _step_undone(self, data: dict[str, Any]) -> None:
        mark, colour = MARKS["done" if data["outcome"] == "done" else "failed"]
        took = duration(data["duration_s"]) if data.get("duration_s") is not None else ""
        text = f"  {self.terminal.colour(mark, colour)} {'undo ' + self._title(data['step']):<22} {took:>9}  {data.get('note') or ''}"
        self.terminal.line(text.rstrip())
        self.running = None

    def _finding(self, data: dict[str, Any]) -> None:
        if data["level"] in {"warning", "stop"}:
            self._detail(f"! {data['title']}", "amber" if data["level"] == "warning" else "red")

    def _downtime_ended(self, data: dict[str, Any]) -> None:
        self._detail(f"service was down for {duration(data['seconds'])}", "bold")

    def _warmup_phase(self, data: dict[str, Any]) -> None:
        if data["state"] == "running":
            self.progress = data.get("title") or data["phase"]
        elif data.get("took_s") is not None:
            self._detail(f"{data.get('title') or data['phase']:<32} {duration(data['took_s']):>9}")

    def _smoke_result(self, data: dict[str, Any]) -> None:
        self._detail(f"{data['title']}: {data['outcome']}", "dim" if data["outcome"] == "passed" else "red")

    def _sweep_level_started(self, data: dict[str, Any]) -> None:
        self.progress = f"{data['concurrency']} at once, {data['requests']} requests"

    def _sweep_level_second(self, data: dict[str, Any]) -> None:
        rate = data.get("throughput_so_far_tok_s")
        self.progress = f"{data['concurrency']} at once: {data['finished']} finished" + (f", {rate:,.0f} tok/s so far" if rate is not None else "")

    def _sweep_level_finished(self, data: dict[str, Any]) -> None:
        level = data["metrics"]
        rate, mean = level.get("output_tok_s"), level.get("e2e_mean_s")
        told = [f"{level['concurrency']:>4} at once"]
        told.append(f"{rate:>9,.1f} tok/s" if rate is not None else "no throughput")
        if mean is not None:
            told.append(f"mean {duration(mean)}")
        if level.get("errors"):
            told.append(f"{level['errors']} errors")
        self._detail("  ".join(told))

    def _diagnosis(self, data: dict[str, Any]) -> None:
        if data.get("text"):
            self._detail(f"line {data.get('line')}: {data['text'].strip()}", "red")
        for part in ("diagnosis", "fix"):
            if data.get(part):
                self._detail(str(data[part]), "bold")

    def _report(self, data: dict[str, Any]) -> None:
        self.report = data.get("markdown")

    def _job_finished(self, data: dict[str, Any]) -> None:
        self.running = None


