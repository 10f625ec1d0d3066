"""JSON that came from a node, as it may go into the database and onto pages: no NUL, no lone surrogate, no NaN and no infinity (no database takes
them), no secret of known form (S12: nodes redact at the source; this is the second line)."""

from __future__ import annotations

import json
import re
from typing import Any

from ops.jobs.redact import redact

LARGEST = 1e300
_MAY_HOLD_A_SECRET = re.compile(r"(?i)hf_|sk-|sk_|bearer|://[^/\s]*@|api[_-]?key|token|passw|passph|secret|authorization|private|credential|_key|"
                                r"eyj|akia|gh[pousr]_|github_pat|glpat-|nvapi-|xox|signature=|[?&](?:key|sig)=")


def read(text: str | bytes) -> Any:
    """The value. Raises ValueError on what is no JSON, nested too deep included."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    try:
        return _clean(json.loads(text, parse_constant=lambda name: None), bool(_MAY_HOLD_A_SECRET.search(text)))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _clean(value: Any, secrets: bool) -> Any:
    if isinstance(value, str):
        if "\x00" in value:
            value = value.replace("\x00", "\ufffd")
        if not value.isascii():
            value = value.encode("utf-8", "replace").decode("utf-8")
        return redact(value) if secrets and len(value) > 8 else value
    if isinstance(value, dict):
        # Together with its name: `{"api_key": "x"}` says by the name that the value is a secret
        return {_clean(str(name), False): _clean_named(str(name), item, secrets) for name, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, secrets) for item in value]
    if isinstance(value, int | float) and not -LARGEST < value < LARGEST:  # 1e999 is valid JSON and no number; nor is an integer beyond every float
        return None
    return value


def _clean_named(name: str, item: Any, secrets: bool) -> Any:
    if secrets and isinstance(item, str) and item and "[redacted]" in redact(f"'{name}': '{item}'") and "[redacted]" not in redact(item):
        return "[redacted]"
    return _clean(item, secrets)
