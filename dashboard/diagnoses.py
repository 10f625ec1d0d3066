"""A diagnosis as pages show it: its decisive line among its neighbours, the command of its fix, and the one button that helps.

A diagnosis came from a node (`ops/services/diagnosis.py` `Diagnosis.as_dict`), perhaps of another version: what has another form is left out.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from django.urls import NoReverseMatch, reverse

from dashboard import environment_story
from dashboard.environment_story import listed, text, told, whole
from dashboard.forms import channels_for
from dashboard.models import Job, Service

COMMANDS = ("uv", "pip", "python", "export", "sudo", "apt-get", "apt", "kill", "systemctl", "rm", "ulimit", "huggingface-cli", "hf")
DOWN = ("stopped", "failed")


def diagnosis_card(found: dict[str, Any], job: Job | None = None, service: Service | None = None) -> dict[str, Any]:
    """A diagnosis with its decisive line among its neighbours, the first command of its fix to copy, and the button that helps (`help`, or None)."""
    decisive = whole(found.get("line"))
    rows = [{**row, "decisive": decisive is not None and row.get("number") == decisive} for row in listed(found.get("context"))]
    if not rows and found.get("text"):
        rows = [{"number": decisive, "text": str(found["text"]), "decisive": True}]
    service = service or (job.service if job is not None else None)
    said = {name: text(found.get(name)) for name in ("text", "diagnosis", "kind", "fix", "rule", "source")}
    return {**found, **said, "rows": rows, "command": first_command(str(found.get("fix") or "")), "job": job,
            "help": help_for(found, service=service, job=job) if service is not None else None}


def first_command(fix: str) -> str:
    """The first command of a fix, to be copied: what stands in backticks, else from a program's name to the end of its clause; or ""."""
    for part in fix.split("`")[1::2]:
        if part.split(" ")[0] in COMMANDS:
            return part
    match = re.search(rf"(?:^|[:;] |\bor )((?:{'|'.join(COMMANDS)}) [^`]+?)(?=, then\b|, or\b|; | \(|\. [A-Z]|\.?$)", fix)
    return match.group(1) if match else ""


def address(name: str, *args: Any) -> str:
    """The address of a page, or "" where this console has none of that name."""
    try:
        return reverse(name, args=args)
    except NoReverseMatch:
        return ""


def help_for(found: dict[str, Any], *, service: Service, job: Job | None = None) -> dict[str, Any] | None:
    """The button that a diagnosis asks for: `how` ("post", "dialog" or "link"), `href`, `label`, `words`, `fields`. None where no job can help.

    A diagnosis that says no action at all (an older node's; the fault of a redeploy that no rule knows) leads to a new plan.
    """
    action = found.get("action")
    if not isinstance(action, str) or (not action and job is not None and job.type in ("redeploy", "rollback", "build")):
        action = "plan"
    where = (service.node.name, service.name)
    run = {name: reverse("service_run", args=[*where, name])
           for name in ("start", "restart", "rollback", "leftovers", "guards-apply", "reset-failed")}
    if action == "rollback":
        back = next((row for row in environment_story.releases(service) if row["last_good"] and row["can_switch"]), None)
        if back is not None:
            return _help("dialog", f"{run['rollback']}?release={quote(back['name'])}", "Roll back to the last good release…")
        action = "plan"
    if action in ("plan", "restore"):
        return _plan(service, job, restore=action == "restore")
    if action == "restart":
        return _help("dialog", run["start"], f"Start {service.name}…") if service.state in DOWN else \
            _help("dialog", run["restart"], f"Restart {service.name}…")
    if action == "settings":
        href = address("launch_settings", *where)
        return _help("link", href, "Change launch settings…", words=text(found.get("action_hint"))) if href else None
    if action == "end-leftovers":
        return _help("post", run["leftovers"], "See what is left over",
                     words=f"It only reads. What belonged to {service.name} can be ended from its result; nothing else can.")
    if action == "guards-apply":
        return _help("dialog", run["guards-apply"], "Apply guards…")
    if action == "reset-failed" and told(service.record).get("manager") == "systemd":
        return _help("dialog", run["reset-failed"], "Reset the failed state…")
    return None


def _plan(service: Service, job: Job | None, *, restore: bool) -> dict[str, Any] | None:
    if not channels_for(service):
        return None
    fields = [("mode", "restore")] if restore else [("coupling", "on")]
    asked = job.params if job is not None and job.service_id == service.pk else {}
    if isinstance(asked.get("channel"), str) and asked["channel"]:
        fields.append(("channel", asked["channel"]))
    label = "Plan to restore the edited files" if restore else "Plan a redeploy that completes coupled packages" if asked.get("coupling") is False \
        else "Plan a redeploy"
    return _help("post", reverse("plan_start", args=[service.node.name, service.name]), label, fields=fields,
                 words="It builds beside the live release and shows its plan first.")


def _help(how: str, href: str, label: str, *, words: str = "", fields: list[tuple[str, str]] | None = None) -> dict[str, Any]:
    return {"how": how, "href": href, "label": label, "words": words, "fields": fields or []}
