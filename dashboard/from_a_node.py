"""JSON that came from a node, and single values of it, as they may go into the database and onto pages: no NUL, no lone surrogate, no NaN and no
infinity (no database takes them), no secret of known form (S12: nodes redact at the source; this is the second line)."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from ops.jobs.redact import redact

LARGEST = 1e300
COUNT_MOST = 2**31 - 1  # of the columns that count
BYTES_MOST = 2**63 - 1  # of the columns that hold bytes
# Of casefolded text: five times as fast as a pattern that ignores case
_MAY_HOLD_A_SECRET = re.compile(r"hf_|sk-|sk_|bearer|://[^/\s]*@|api[_-]?key|token|passw|passph|secret|authorization|private|credential|_key|"
                                r"eyj|akia|gh[pousr]_|github_pat|glpat-|nvapi-|xox|signature=|[?&](?:key|sig)=")


def read(text: str | bytes) -> Any:
    """The value. Raises ValueError on what is no JSON, nested too deep included."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    try:
        return _clean(json.loads(text, parse_constant=lambda name: None), bool(_MAY_HOLD_A_SECRET.search(text.casefold())))
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


def when(at: float) -> datetime:
    """Seconds since the epoch as a time; a node's nonsense clock gives the nearest time that a database takes."""
    return datetime.fromtimestamp(min(max(at, 0.0), 32_503_680_000.0), UTC)


def number(value: Any) -> float | None:
    """A finite number, or None: unknown is not 0, and JSON columns take no NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST < value < LARGEST:  # an integer may be beyond every float
        return None
    return float(value)


def count(value: Any) -> int | None:
    """How many, if the columns that count can hold it; else None."""
    found = number(value)
    return int(found) if found is not None and 0 <= found <= COUNT_MOST else None


def text(value: Any, length: int) -> str:
    """What was told as text, cut; "" for what is no text."""
    return value[:length] if isinstance(value, str) else ""


def named(value: Any, length: int) -> str:
    """A name that identifies something: a cut one would be another. Raises ValueError on what is none."""
    if not isinstance(value, str) or not 0 < len(value) <= length:
        raise ValueError(f"no name: {str(value)[:60]!r}")
    return value


def items(value: Any, most: int) -> list[dict[str, Any]]:
    """The objects of what should be a list of objects, at most so many."""
    return [one for one in value if isinstance(one, dict)][:most] if isinstance(value, list) else []


def texts(value: Any, most: int) -> list[str]:
    """The texts of what should be a list of texts, at most so many."""
    return [one for one in value if isinstance(one, str)][:most] if isinstance(value, list) else []


def whole(value: Any, most: int = BYTES_MOST) -> int | None:
    """A whole number from 0 to `most`, exactly; else None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None
