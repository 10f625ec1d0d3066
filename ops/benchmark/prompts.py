"""Prompts for a level: each unique from its first token, each reproducible from the run's seed.

Equal prompts would hit the prefix cache, and on a mixture-of-experts model send every stream to the same experts. A synthetic prompt is
`nonce(seed, level, index)` and words drawn with the same seed: the seed in a run's settings is all that is needed to make it again. A prompt
from a file gets the nonce in front.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ops.jobs.errors import BadInput

MAX_FILE = 256 * 1024 * 1024  # bytes
MAX_LINE = 4 * 1024 * 1024  # bytes
MAX_PROMPTS = 100_000
MAX_MESSAGES = 200  # in one prompt
BAD_LINES_TOLD = 5

_WORDS = [
    "engine", "boiler", "valve", "track", "signal", "lever", "smoke", "wheel", "axle", "brake", "piston", "whistle", "tender", "station", "freight",
    "timetable", "junction", "bridge", "tunnel", "coal", "water", "steam", "pressure", "gauge", "lantern", "platform", "ticket", "driver", "fireman",
    "depot", "turntable", "crane", "rail", "sleeper", "points", "siding", "goods", "express", "local", "winter", "summer", "morning", "evening",
    "river", "valley", "mountain", "harbour", "factory", "village", "market", "letter", "clock", "bell", "map", "pencil", "notebook", "window",
    "door",
]

_TASK = "Continue this list of notes about a railway depot, one short sentence for each note, and explain each: "
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant", "bard": "assistant",
          "system": "system", "developer": "system"}

Messages = list[dict[str, str]]


class Prompts(Protocol):
    """Where a level's prompts come from: the messages of one request. `level` is LevelPlan.key; warm-up requests have negative indexes."""

    def messages(self, level: str, index: int) -> Messages: ...


def nonce(seed: int, level: str, index: int) -> str:
    """16 hex digits, unlike for every request of a run (warm-up requests use negative indexes)."""
    return f"{random.Random(f'{seed}/{level}/{index}').getrandbits(64):016x}"  # noqa: S311  # reproducible load, not a secret


def synthetic(seed: int, level: str, index: int, words: int) -> str:
    """A prompt of about `words` words, beginning with its nonce."""
    mark = nonce(seed, level, index)
    draw = random.Random(mark)  # noqa: S311  # as above
    return f"{mark} {_TASK}{' '.join(draw.choices(_WORDS, k=words))}."


@dataclass(frozen=True, slots=True)
class SyntheticPrompts:
    """One user message of `words` words each."""

    seed: int
    words: int

    def messages(self, level: str, index: int) -> Messages:
        return [{"role": "user", "content": synthetic(self.seed, level, index, self.words)}]


@dataclass(slots=True)
class FilePrompts:
    """Prompts of a file, in an order drawn by seed and level; used again where there are fewer than requests (their nonces differ).

    `bad`: lines that hold no prompt; `bad_lines`: what was wrong with the first of them.
    """

    seed: int
    prompts: list[Messages]
    sha256: str
    bad: int = 0
    bad_lines: list[str] = field(default_factory=list)
    _orders: dict[str, list[int]] = field(default_factory=dict, repr=False)

    def messages(self, level: str, index: int) -> Messages:
        order = self._orders.get(level)
        if order is None:
            order = list(range(len(self.prompts)))
            random.Random(f"{self.seed}/{level}/prompts").shuffle(order)  # noqa: S311  # as above
            self._orders[level] = order
        first, *rest = self.prompts[order[index % len(order)]]
        return [{"role": first["role"], "content": f"{nonce(self.seed, level, index)} {first['content']}"}, *rest]


def read_file(path: Path, seed: int) -> FilePrompts:
    """Prompts of a JSONL file, or of one JSON array (as ShareGPT comes).

    A line is an object with `messages` ([{role, content}]), `conversations` (ShareGPT: [{from, value}]) or `prompt` (or `text`, `question`), a
    JSON string, or a plain line of text. What an assistant said last is left off: it is what the model is asked for. Bad lines are counted and
    passed over. Raises BadInput for a file that cannot be read, is too large, or holds no prompt at all.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe or a device would be read for ever
            raise BadInput(f"`{path}` is not a file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise BadInput(f"`{path}` is too large for prompts", why=f"They may take {MAX_FILE // 1024**2} MiB at most")
    except (OSError, ValueError) as error:  # the latter: a NUL in the path
        raise BadInput(f"`{path}` cannot be read as prompts", why=getattr(error, "strerror", None) or str(error)) from error
    made = FilePrompts(seed, [], hashlib.sha256(content).hexdigest())
    for number, item in _items(content):
        try:
            made.prompts.append(_messages_of(item))
        except (ValueError, RecursionError) as error:
            made.bad += 1
            if len(made.bad_lines) < BAD_LINES_TOLD:
                made.bad_lines.append(f"{number}: {str(error) or type(error).__name__}"[:200])
        if len(made.prompts) >= MAX_PROMPTS:
            break
    if not made.prompts:
        raise BadInput(f"`{path}` holds no prompt", why="; ".join(made.bad_lines) or "The file is empty",
                       hint='A prompt a line: {"prompt": "..."}, {"messages": [...]}, {"conversations": [...]}, or plain text')
    return made


def _items(content: bytes) -> Iterator[tuple[str, bytes | Any]]:
    """(where, what) of each prompt: lines as bytes, or the values of an array."""
    if content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, list) and all(isinstance(item, dict) for item in document):
            yield from ((f"entry {n}", item) for n, item in enumerate(document, 1))
            return
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if line.strip():
            yield f"line {number}", line


def _messages_of(item: bytes | Any) -> Messages:
    """Raises ValueError saying what is wrong."""
    if isinstance(item, bytes):
        if len(item) > MAX_LINE:
            raise ValueError(f"longer than {MAX_LINE // 1024**2} MiB")
        text = item.decode("utf-8").strip()  # UnicodeDecodeError is a ValueError
        item = json.loads(text) if text[0] in '{"' else text
    if isinstance(item, str):
        return _whole([{"role": "user", "content": item}])
    if not isinstance(item, dict):
        raise ValueError("neither an object nor a text")
    if isinstance(turns := item.get("messages"), list):
        return _whole([_turn(turn, "role", "content") for turn in turns[:MAX_MESSAGES]])
    if isinstance(turns := item.get("conversations", item.get("conversation")), list):
        return _whole([_turn(turn, "from", "value") for turn in turns[:MAX_MESSAGES]])
    for name in ("prompt", "text", "question"):
        if isinstance(item.get(name), str):
            return _whole([{"role": "user", "content": item[name]}])
    raise ValueError("has no `prompt`, `messages` or `conversations`")


def _turn(turn: Any, role: str, text: str) -> dict[str, str]:
    if not isinstance(turn, dict):
        raise ValueError("a turn is not an object")
    name, said = turn.get(role, turn.get("role")), turn.get(text, turn.get("content"))
    if not isinstance(name, str) or name not in _ROLES:
        raise ValueError(f"a turn of an unknown role `{str(name)[:40]}`")
    if not isinstance(said, str):
        raise ValueError("a turn without text")
    return {"role": _ROLES[name], "content": said}


def _whole(turns: Messages) -> Messages:
    """Up to the last thing that the user says."""
    while turns and turns[-1]["role"] != "user":
        turns = turns[:-1]
    if not any(turn["content"].strip() for turn in turns if turn["role"] == "user"):
        raise ValueError("nothing is asked")
    for turn in turns:
        turn["content"].encode()  # half of a surrogate pair cannot be sent
    return turns


def as_text(messages: Messages) -> str:
    """For a completions endpoint, which knows no roles."""
    return "\n\n".join(message["content"] for message in messages)
