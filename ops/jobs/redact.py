"""What must not leave a process as text: secrets, and characters that act on a terminal or a page.

Used by whoever writes a step's log, before disk and before Redis. Redaction is by form (tokens of known shape, passwords in URLs, secret
arguments in vLLM's startup line) and by value (what the service's own environment holds).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "[redacted]"

_PRIVATE_NAME = r"(?:api[_-]?keys?|hf[_-]?(?:hub[_-]?)?token|auth[_-]?token|access[_-]?token|password|passwd|secret[_-]?key|client[_-]?secret)"

# What each form needs is looked for first, in lower case: of a megabyte of an ordinary log all forms together would take 0.6 s.
_NAMED = ("api_k", "api-k", "apik", "token", "passw", "secret")
_FORMS: list[tuple[tuple[str, ...], re.Pattern[str], str]] = [
    # The token's own shape. The boundary keeps words such as `hf_overrides` and `sk-learn`: a token has a long body without blanks.
    (("hf_",), re.compile(r"\bhf_[A-Za-z0-9]{16,}\b"), HIDDEN),
    (("sk-",), re.compile(r"\bsk-(?:[A-Za-z]+-)*[A-Za-z0-9_-]{16,}"), HIDDEN),
    (("bearer",), re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{6,}"), rf"\g<1>{HIDDEN}"),
    (("authorization",), re.compile(r"(?i)\b(authorization\s*[:=]\s*(?:basic|token)\s+)\S+"), rf"\g<1>{HIDDEN}"),
    # The scheme's length is bounded: without that, a line of a million letters takes a million times a million steps.
    (("://",), re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,20}://[^\s/@:'\"]*):[^\s/@'\"]+@"), rf"\g<1>:{HIDDEN}@"),
    # Python's repr in vLLM's startup line: 'api_key': ['a', 'b'], 'hf_token': 'x'. None, True and False say that there is no secret.
    (_NAMED, re.compile(rf"(?i)(['\"]{_PRIVATE_NAME}['\"]\s*:\s*)(\[[^\]]*\]?|'[^']*'?|\"[^\"]*\"?)"), rf"\g<1>'{HIDDEN}'"),
    # Arguments and settings: --api-key X, api_key=X, HF_TOKEN=X (the value up to a blank, a comma or a bracket).
    (_NAMED, re.compile(rf"(?i)(--{_PRIVATE_NAME}(?:\s+|=))(?!None\b)\S+"), rf"\g<1>{HIDDEN}"),
    (_NAMED, re.compile(rf"(?i)({_PRIVATE_NAME}\s*=\s*)(?!None\b|True\b|False\b|\[redacted\])('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[^\s,;)\]}}]+)"),
     rf"\g<1>{HIDDEN}"),
]

_SECRET_VARIABLE = re.compile(r"(?i)(token|secret|passw|api_?key|credential|private_?key)")

# ANSI: CSI sequences, OSC strings (titles, links), and lone escapes.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?|\x1b[@-Z\\-_]?|\x9b[0-?]*[ -/]*[@-~]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m\Z")
# Control characters but tab and newline; bidirectional marks and overrides; zero-width and line separators; Unicode tags.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")
_UNSAFE_BUT_ESCAPE = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Values of the variables whose names say that they are secret, longest first. Values under 6 characters hide too much else."""
    return sorted({value for name, value in environment.items() if _SECRET_VARIABLE.search(name) and len(value) >= 6}, key=len, reverse=True)


_SECRET_FLAG = re.compile(rf"(?i)--{_PRIVATE_NAME}\Z")


def hide_in_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A service record as it may leave its node: values of secret variables, and of flags such as `--api-key`, hidden."""
    flags = list(record.get("flags") or [])
    shown = [HIDDEN if index and _SECRET_FLAG.match(flags[index - 1]) else redact(flag) for index, flag in enumerate(flags)]
    env = {name: HIDDEN if value and _SECRET_VARIABLE.search(name) else redact(value) for name, value in (record.get("env") or {}).items()}
    return {**record, "flags": shown, "env": env}


def record_secrets(record: Mapping[str, Any]) -> list[str]:
    """The secret values that a service record holds, in its variables and its flags."""
    flags = list(record.get("flags") or [])
    named = [flag for index, flag in enumerate(flags) if index and _SECRET_FLAG.match(flags[index - 1]) and len(flag) >= 6]
    return [*secret_values(record.get("env") or {}), *named]


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without secrets. `secrets` are values known to be secret, wherever they stand."""
    for value in sorted(set(secrets), key=len, reverse=True):
        if value:
            text = text.replace(value, HIDDEN)
    lower = text.lower()
    for needs, form, instead in _FORMS:
        if any(word in lower for word in needs):
            text = form.sub(instead, text)
    return text


def plain_text(text: str, *, colour: bool = False) -> str:
    """Text that acts on nothing: no ANSI sequences, control characters (but tab and newline) or bidirectional marks.

    `colour` keeps ANSI colours (SGR), for a page that renders them itself.
    """
    if "\x1b" in text or "\x9b" in text:
        text = _ANSI.sub((lambda found: found.group() if _COLOUR.match(found.group()) else "") if colour else "", text)
    return (_UNSAFE_BUT_ESCAPE if colour else _UNSAFE).sub("", text)


def log_text(text: str, secrets: Iterable[str] = ()) -> str:
    """What may go into a step's log: secrets hidden, then everything but plain text and line breaks taken out.

    Control characters go first, so that one in the middle of a token cannot hide it from the forms.
    """
    return redact(plain_text(text.replace("\r\n", "\n").replace("\r", "\n")), secrets)
