"""What must not leave a process as text: secrets, and characters that act on a terminal or a page.

Used by whoever writes a step's log, before disk and before Redis. Redaction is by form (tokens of known shape, passwords in URLs, secret
arguments in vLLM's startup line) and by value (what the service's own environment holds).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

HIDDEN = "[redacted]"

_PRIVATE_NAME = (
    r"(?:api[_-]?keys?|(?:hf[_-]?|hub[_-]?|hugging[_-]?face[_-]?)+token|(?:auth|access|refresh|session|bearer|api|github|gh)[_-]?token"
    r"|password|passwd|passphrase|(?:secret|private)[_-]?key|secret[_-]?access[_-]?key|client[_-]?secret)"
)
_UNLESS_SAID = r"(?!None\b|True\b|False\b|null\b|true\b|false\b|\[redacted\]|'\[redacted\]|\"\[redacted\])"
_SINGLE, _DOUBLE = r"'(?:[^'\\]|\\.)*'?", r'"(?:[^"\\]|\\.)*"?'  # with escapes, and to the end of the text if it is cut off

# What each form needs is looked for first, in lower case: of a megabyte of an ordinary log all forms together would take 0.6 s.
_NAMED = ("api_k", "api-k", "apik", "token", "passw", "passph", "secret", "private")
_FORMS: list[tuple[tuple[str, ...], re.Pattern[str], str]] = [
    # The token's own shape. The boundary keeps words such as `hf_overrides` and `sk-learn`: a token has a long body without blanks. An underscore is
    # none of it: a file may be called dump_hf_<token>_0.pt.
    (("hf_",), re.compile(r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{16,}(?![A-Za-z0-9])"), HIDDEN),
    (("sk-", "sk_"), re.compile(r"(?<![A-Za-z0-9])sk-(?:[A-Za-z]+-)*[A-Za-z0-9_-]{16,}|\bsk_(?:live|test)_[A-Za-z0-9]{16,}"), HIDDEN),
    (("gh", "glpat-", "nvapi-", "xox", "akia"), re.compile(
        r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bnvapi-[\w-]{16,}|\bxox[abps]-[\w-]{10,}|\bAKIA[A-Z0-9]{16}\b"),
        HIDDEN),
    (("eyj",), re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"), HIDDEN),  # a JSON web token
    (("bearer",), re.compile(r"(?i)\b(bearer(?:\s+|\s*[:=]\s*))[A-Za-z0-9._~+/=-]{6,}"), rf"\g<1>{HIDDEN}"),
    (("authorization",), re.compile(r"(?i)\b(authorization\s*[:=]\s*(?:basic|token)\s+)\S+"), rf"\g<1>{HIDDEN}"),
    # The scheme's length is bounded: without that, a line of a million letters takes a million times a million steps. A password may hold an @.
    (("://",), re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,20}://[^\s/@:'\"]*):[^\s/'\"]+@"), rf"\g<1>:{HIDDEN}@"),
    (("://",), re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,20}://)[^\s/@:'\"]{16,}@"), rf"\g<1>{HIDDEN}@"),  # a token in the user's place
    (("?", "&"), re.compile(r"(?i)([?&](?:token|key|sig|signature|x-amz-signature|x-amz-security-token)=)[^\s&'\"]+"), rf"\g<1>{HIDDEN}"),
    # A list of arguments as Python or JSON writes it: ['--api-key', 'a', 'b', '--port', '1'].
    (_NAMED, re.compile(rf"(?i)(['\"]--{_PRIVATE_NAME}['\"])(?:\s*,\s*(?:'(?!-)[^']*'|\"(?!-)[^\"]*\"))+"), rf"\g<1>, '{HIDDEN}'"),
    # Python's repr in vLLM's startup line: 'api_key': ['a', 'b'], 'hf_token': 'x'. None, True and False say that there is no secret.
    (_NAMED, re.compile(rf"(?i)('{_PRIVATE_NAME}'\s*:\s*)(\[[^\]]*\]?|{_SINGLE}|{_DOUBLE})"), rf"\g<1>'{HIDDEN}'"),
    (_NAMED, re.compile(rf"(?i)(\"{_PRIVATE_NAME}\"\s*:\s*)(\[[^\]]*\]?|{_SINGLE}|{_DOUBLE})"), rf'\g<1>"{HIDDEN}"'),
    # Arguments and settings: --api-key X, api_key=X, HF_TOKEN=X (the value up to a blank, a comma or a bracket). vLLM's --api-key takes several
    # values: what follows is one of them if it has a digit, and a sentence goes on otherwise.
    (_NAMED, re.compile(rf"(?i)(--{_PRIVATE_NAME}(?:\s+|=))(?!None\b)(?:'[^']*'|\"[^\"]*\"|\S+)(?:[ \t]+(?!-)(?=[^\s\d]{{0,200}}\d)\S{{6,}})*"),
     rf"\g<1>{HIDDEN}"),
    (_NAMED, re.compile(rf"(?i)({_PRIVATE_NAME}\s*[=:]\s*){_UNLESS_SAID}('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[^\s,;)\]}}\[]+)"), rf"\g<1>{HIDDEN}"),
    # Variables of any program: WANDB_TOKEN=X. Upper case only, as `eos_token=2` is no secret.
    (("token", "secret", "passw", "_key", "credential"), re.compile(
        rf"((?:_TOKEN|SECRET|PASSWORD|PASSWD|_KEY|CREDENTIALS?)=){_UNLESS_SAID}('[^']*'|\"[^\"]*\"|[^\s,;)\]}}]+)"), rf"\g<1>{HIDDEN}"),
]

# Not TOKENIZERS_PARALLELISM, not PWD
_SECRET_VARIABLE = re.compile(
    r"(?i)(token(?!iz)|secret|passw|passphrase|api_?key|access_?key|credential|private_?key|cookie|(?:^|_)(?:key|auth)\Z|_(?:pass|pw|pwd)\Z)")

# ANSI: CSI sequences, OSC strings (titles, links), and lone escapes.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?|\x1b[@-Z\\-_]?|\x9b[0-?]*[ -/]*[@-~]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m\Z")
# Control characters but tab and newline; bidirectional marks and overrides; zero-width and line separators; Unicode tags.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")
_UNSAFE_BUT_ESCAPE = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")


_OF_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,20}://(?:[^\s/@:'\"]*:([^\s/'\"]+)|([^\s/@:'\"]{16,}))@")


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Values of the variables whose names say that they are secret, and passwords in addresses of any variable, longest first. Values under 6
    characters hide too much else."""
    found = {value for name, value in environment.items() if _SECRET_VARIABLE.search(name)} | _of_addresses(environment.values())
    return sorted((value for value in found if len(value) >= 6), key=len, reverse=True)


def _of_addresses(texts: Iterable[str]) -> set[str]:
    """Passwords and tokens in addresses (scheme://user:password@host), as they stand there and decoded: a client names them without the address."""
    found = {password or token for text in texts if "://" in text for password, token in _OF_ADDRESS.findall(text)}
    return found | {unquote(secret) for secret in found}


_SECRET_FLAG = re.compile(rf"(?i)--(?:[a-z0-9]+[_-])*{_PRIVATE_NAME}\Z|(?i:--(?:[a-z0-9]+[_-])*(?:password|token|secret))\Z")
_FLAG_WITH_VALUE = re.compile(r"(--[A-Za-z0-9_-]+)=(.*)\Z", re.DOTALL)


def _marked(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each word of a command line as (what may be shown before it, secret): of `--api-key a b --port 1` the words `a` and `b` are secret, of
    `--api-key=a` the part behind the sign; the secret is empty for all others, and the word stands whole in the first place."""
    secret = False
    for word in words:
        if secret and not word.startswith("-"):
            yield "", word
            continue
        found = _FLAG_WITH_VALUE.match(word)
        if found and _SECRET_FLAG.match(found.group(1)):
            yield f"{found.group(1)}=", found.group(2)
        else:
            yield word, ""
        secret = _SECRET_FLAG.match(word) is not None


def hide_in_command(words: Sequence[str]) -> list[str]:
    """A command line, word by word, as it may be shown."""
    return [f"{shown}{HIDDEN}" if secret else redact(shown) for shown, secret in _marked(words)]


def hide_in_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A service record as it may leave its node: values of secret variables, and of flags such as `--api-key`, hidden."""
    env = {name: HIDDEN if value and _SECRET_VARIABLE.search(name) else redact(value) for name, value in (record.get("env") or {}).items()}
    return {**_redacted(dict(record)), "flags": hide_in_command(record.get("flags") or []), "env": env}


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _redacted(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_redacted(inner) for inner in value]
    return redact(value) if isinstance(value, str) else value


def record_secrets(record: Mapping[str, Any]) -> list[str]:
    """The secret values that a service record holds, in its variables and its flags. Values under 6 characters hide too much else."""
    flags = record.get("flags") or []
    named = {secret for _, secret in _marked(flags)} | _of_addresses(flags)
    return [*secret_values(record.get("env") or {}), *sorted(secret for secret in named if len(secret) >= 6)]


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
