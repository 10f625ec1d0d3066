"""What a node said of a unit that it read, as the job's page shows it: the record, what forbids or limits it, and what an admin does once.

It comes from another program, perhaps of another version: what does not have the form that is promised is left out.
"""

from __future__ import annotations

import json
from typing import Any

from dashboard import job_story
from dashboard.environment_story import listed, text, told
from dashboard.models import Job, Service
from ops.jobs.events import JobState

ASKED = ("unit", "name", "environment", "in_place", "manager")
# A finding's fix names the command line's options; the form has the same by other words
WORDS = (("with --environment", "in the form"), ("with --name", "in the form"), ("Use --name ", "In the form, name it "))
ORDER = {"stop": 0, "warning": 1, "note": 2, "ok": 3}


def panel(job: Job, said: dict[str, Any]) -> dict[str, Any]:
    """Everything about one reading of a unit, or about its adoption."""
    record = told(said.get("record"))
    found = [{**finding, "fix": _of_the_form(text(finding.get("fix")))} for finding in listed(said.get("findings"))]
    found.sort(key=lambda finding: ORDER.get(finding.get("level", ""), 2))
    lines = [line for line in said.get("node_toml") or [] if isinstance(line, str)]
    if lines:  # shown above the findings, with what to do on a page: read it again
        found = [finding for finding in found if not text(finding.get("title")).endswith("does not allow it yet")]
    counted = job_story.counted(found)
    name = text(record.get("name"))
    reads = job.type == "adopt"
    return {
        "unit": text(said.get("unit")) or text(job.params.get("unit")), "name": name, "findings": found, "counted": counted, "lines": lines,
        "rows": _rows(record, said), "json": json.dumps(record, indent=1, ensure_ascii=False), "drop_in": told(said.get("drop_in")),
        "hash": text(said.get("hash")), "reads": reads, "stored": text(said.get("stored")), "again": said.get("adopted_before") is True,
        "systemd": record.get("manager") == "systemd",
        "can_adopt": reads and job.state == JobState.SUCCEEDED and not counted["stop"] and not lines and bool(said.get("hash")),
        "service": Service.objects.select_related("node").filter(node=job.node, name=name).first() if name else None}


def asked(job: Job) -> list[tuple[str, str]]:
    """The fields of a form that reads the same unit again, as the job was asked."""
    params = job.params
    fields = [(key, str(params.get(key) or "")) for key in ("unit", "name", "environment", "manager") if params.get(key)]
    return fields + ([("in_place", "on")] if params.get("in_place") is True else [])


def line(job: Job) -> str:
    """The job's line in lists."""
    said = told(told(job.result).get("adoption"))
    name = text(told(said.get("record")).get("name"))
    if not name:
        return ""
    if said.get("stored"):
        return f"service `{name}` is stored"
    stops = [finding for finding in listed(said.get("findings")) if finding.get("level") == "stop"]
    return f"cannot be adopted: {text(stops[0].get('title'))}" if stops else f"can become service `{name}`"


def _of_the_form(fix: str) -> str:
    for option, words in WORDS:
        fix = fix.replace(option, words)
    return fix


def _rows(record: dict[str, Any], said: dict[str, Any]) -> list[dict[str, Any]]:
    """The record as a person reads it: term, value, mono."""
    env = told(record.get("env"))
    listed_texts = {key: [str(one) for one in record[key]] if isinstance(record.get(key), list) else [] for key in ("flags", "env_files", "gpus")}
    manager = "systemd, the unit itself" if record.get("manager") == "systemd" else "plain process: Roundhouse starts it"
    rows = [("Service", text(record.get("name")), True), ("Manager", manager, False), ("Runs as", text(said.get("user")), True),
            ("Environment", text(record.get("environment")), True), ("Model folder", text(record.get("model_path")), True),
            ("Model name", text(record.get("served_model_name")), True), ("Address", text(record.get("base_url")), True),
            ("GPUs", ", ".join(listed_texts["gpus"]), False), ("Flags", " ".join(listed_texts["flags"]), True),
            ("Variables", "\n".join(f"{name}={value}" for name, value in sorted(env.items())), True),
            ("Read at each start", "\n".join(map(_file_words, listed_texts["env_files"])), True)]
    if record.get("in_place") is True:
        rows.insert(4, ("Changed", "in place: the environment may not move", False))
    files = [one for one in said.get("files") or [] if isinstance(one, str)]
    rows.append(("Read from", "\n".join(files), True))
    return [{"term": term, "lines": value.split("\n"), "mono": mono} for term, value, mono in rows if value]


def _file_words(path: str) -> str:
    return f"{path[1:]} (may be missing)" if path.startswith("-") else path
