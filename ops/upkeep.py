"""Small jobs on what a service keeps: a release is removed, guards are set or applied, shelved patches are forgotten, a recipe is saved."""

from __future__ import annotations

from typing import Any

from ops.environments import guard_list, guards, patches, releases
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context


def remove_release(context: Context) -> str:
    """Params: `release`."""
    record = context.the_service
    release = releases.inside(record, str(context.params.get("release") or ""))
    release = releases.check_removable(record, release)
    kept = 0
    if releases.kind_of(record, release) != "adopted":  # of which only the link goes
        kept = patches.keep_edits(record, release, job=context.job, emit=context.emit,
                                  progress=lambda done, total: context.progress(done, total, "files"))
    releases.remove(record, release)
    return f"{release.name} is gone" + (f"; {kept} edited files are on the shelf" if kept else "")


def finish_removal(context: Context) -> str:
    """Undo of it: a removal that was cut off is carried out to its end, for half a release is none."""
    releases.finish_removals(context.the_service)
    return ""


def apply_guards(context: Context) -> str:
    """Params: `guards`, a list of guards of the service, or null for all that fail and can be mended by an edit."""
    record, wanted = context.the_service, context.params.get("guards")
    applied: list[dict[str, Any]] = []
    try:
        applied = guards.apply(record, wanted)
    finally:
        results = guards.check(record)
        context.emit(EventType.GUARDS, {"results": [result.as_dict() for result in results], "applied": applied})
    failing = [result for result in results if not result.holds]
    if failing:
        context.facts["partial"] = f"{len(failing)} guards still do not hold: {failing[0].explains}"
    return f"{len(applied)} files edited" if applied else "nothing had to be edited"


def set_guards(context: Context) -> str:
    """Params: `guards`, the whole new list (a guard of a preset may be {"preset": name}), and `before`, the list that the person saw, or null."""
    name, config = context.the_service.name, context.config
    own = guard_list.own_record(context.paths, name)
    config.require_inside(own.model_path, config.model_roots, "model folder")
    stored = guard_list.store(context.paths, name, context.params.get("guards"), seen=context.params.get("before"))
    told = f"{len(stored.guards)} {'guard' if len(stored.guards) == 1 else 'guards'} ({len(own.guards)} before)"
    try:
        results = guards.check(stored)
    except OpsError as error:
        context.facts["partial"] = f"The guards are set, but could not be held against the model folder: {error.what}"
        return told
    context.emit(EventType.GUARDS, {"results": [result.as_dict() for result in results], "applied": []})
    failing = [result for result in results if not result.holds]
    if failing:
        context.finding("guards", "warning", f"{len(failing)} of {len(results)} guards do not hold: {failing[0].explains}",
                        why="A redeploy, a restart or a roll back stops before the service does", fix=failing[0].fix)
        return f"{told}, {len(failing)} {'does' if len(failing) == 1 else 'do'} not hold"
    return f"{told}, all hold" if results else told


def forget_patches(context: Context) -> str:
    """Params: `entries`, a list of {"folder", "path"}."""
    entries = context.params.get("entries")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise BadInput("Nothing was chosen to be forgotten", hint="Choose patches on the shelf")
    forgotten, problems = 0, []
    for entry in entries:
        folder, path = str(entry.get("folder") or ""), str(entry.get("path") or "")
        try:
            gone = patches.forget(context.the_service, folder, path)
        except OpsError as error:
            problems.append(error.what)
            context.log(str(error))
            continue
        forgotten += gone
        context.emit(EventType.SHELF_FORGOTTEN, {"folder": folder, "path": path})
    if problems and not forgotten:
        raise OpsError(problems[0], why="; ".join(problems[1:5]))
    if problems:
        context.facts["partial"] = f"{len(problems)} patches were kept: {problems[0]}"
    return f"{forgotten} of {len(entries)} forgotten"


def save_recipe(context: Context) -> str:
    """Params: `label`, `release` (by default the one in use), `reference` (numbers of a benchmark; by default the node's newest)."""
    from ops.environments import recipe

    record, name = context.the_service, context.params.get("release")
    release = releases.inside(record, str(name)) if name else releases.current(record)
    if release is None:
        raise OpsError(f"Service `{record.name}` has no release", hint="Redeploy it first")
    reference = context.params.get("reference") or recipe.reference_from(record, release, context.paths.runs)
    made = recipe.make(record, release, reference=reference, label=str(context.params.get("label") or ""), node=context.config.name)
    path = recipe.save(record, made)
    context.emit(EventType.RECIPE, {"recipe": made, "name": path.name})
    return path.name
