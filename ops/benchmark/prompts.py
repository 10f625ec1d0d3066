"""Prompts for a level: each unique from its first token, each reproducible from the run's seed.

Equal prompts would hit the prefix cache, and on a mixture-of-experts model send every stream to the same experts. A prompt is
`nonce(seed, level, index)` and words drawn with the same seed: the seed in a run's settings is all that is needed to make it again.
"""

from __future__ import annotations

import random

_WORDS = [
    "engine", "boiler", "valve", "track", "signal", "lever", "smoke", "wheel", "axle", "brake", "piston", "whistle", "tender", "station", "freight",
    "timetable", "junction", "bridge", "tunnel", "coal", "water", "steam", "pressure", "gauge", "lantern", "platform", "ticket", "driver", "fireman",
    "depot", "turntable", "crane", "rail", "sleeper", "points", "siding", "goods", "express", "local", "winter", "summer", "morning", "evening",
    "river", "valley", "mountain", "harbour", "factory", "village", "market", "letter", "clock", "bell", "map", "pencil", "notebook", "window",
    "door",
]

_TASK = "Continue this list of notes about a railway depot, one short sentence for each note, and explain each: "


def nonce(seed: int, level: str, index: int) -> str:
    """16 hex digits, unlike for every request of a run (warm-up requests use negative indexes)."""
    return f"{random.Random(f'{seed}/{level}/{index}').getrandbits(64):016x}"  # noqa: S311  # reproducible load, not a secret


def synthetic(seed: int, level: str, index: int, words: int) -> str:
    """A prompt of about `words` words, beginning with its nonce."""
    mark = nonce(seed, level, index)
    draw = random.Random(mark)  # noqa: S311  # as above
    return f"{mark} {_TASK}{' '.join(draw.choices(_WORDS, k=words))}."
