"""What a change of a setting leaves in the audit log: each field that changed, before and after."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dashboard.models import AuditEntry

VALUE_MAX = 2000  # characters of one value


def changed(*, user: int, action: str, subject: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """One row with what changed, field by field; of what is long (a recipe, hundreds of pins) only its hash. `user`: its key."""
    fields = {field: {"before": _short(before.get(field)), "after": _short(after.get(field))}
              for field in sorted(before.keys() | after.keys()) if before.get(field) != after.get(field)}
    AuditEntry.objects.create(by_id=user, action=action, subject=subject, data={"changed": fields})


def _short(value: Any) -> Any:
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= VALUE_MAX else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
