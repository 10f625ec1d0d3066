"""Who may do what. Superusers are admins, everybody else who is signed in is an operator; roles come later.

Ask `may(user, action)` before an action and in templates (`{% if may.operate %}`), never `user.is_superuser`.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

VIEW_ACTIONS = frozenset({"view", "live"})
OPERATOR_ACTIONS = frozenset({
    "job.plan", "job.redeploy", "job.restart", "job.warmup", "job.sweep", "job.purge", "job.smoke", "job.integrity",
    "job.practice-reset", "job.build", "job.rollback", "job.remove-release", "job.guards-set", "job.guards-apply", "job.shelf-forget", "job.recipe",
    "job.start", "job.stop", "job.switch", "job.reset-failed", "job.leftovers", "job.end-leftovers", "job.diagnose", "job.settings-set",
    "job.smoke-set", "job.noise-floor", "job.artifact-scan", "job.cancel",
    "benchmark.pin", "benchmark.edit", "benchmark.import", "service.target",
})
ADMIN_ACTIONS = frozenset({
    "job.adopt", "job.adopt-apply", "job.abandon", "account.manage", "channel.manage", "kind.manage", "node.manage", "settings.manage",
})
ACTIONS = VIEW_ACTIONS | OPERATOR_ACTIONS | ADMIN_ACTIONS


def may(user: AbstractBaseUser | AnonymousUser, action: str) -> bool:
    """Raises ValueError for an action that nobody defined: a typing error must not open a door."""
    if action not in ACTIONS:
        raise ValueError(f"no such action: {action}")
    if not user.is_authenticated or not user.is_active:
        return False
    return bool(getattr(user, "is_superuser", False)) or action not in ADMIN_ACTIONS


def require(user: AbstractBaseUser | AnonymousUser, action: str) -> None:
    """Raises PermissionDenied (403) if the user may not."""
    if not may(user, action):
        raise PermissionDenied(f"You may not do this: {action}")


def context(request: HttpRequest) -> dict[str, Any]:
    """For templates: `may.operate` (start and cancel jobs), `may.admin`."""
    user = getattr(request, "user", AnonymousUser())
    return {"may": {"operate": may(user, "job.cancel"), "admin": may(user, "settings.manage")}}
