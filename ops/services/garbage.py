"""Can this text be an answer at all? What broken kernels, wrong weights and NaN logits produce has a look of its own: one character over and over, a
piece that repeats to its end, a mixture of scripts, control characters. Ordinary text, tables, code and lists have none of it."""

from __future__ import annotations

import unicodedata
from collections import Counter
from itertools import pairwise

LOOKED_AT = 20_000  # characters from the beginning and the end: garbage shows early, and a text may be long
_LEAST = 40  # solid characters: shorter texts say too little
_SCRIPT_NAMES = {"HIRAGANA": "Japanese", "KATAKANA": "Japanese", "CJK": "Chinese characters", "HANGUL": "Korean", "LATIN": "Latin letters"}
# A prompt that names a language may be answered in it.
_ASKED_FOR = {
    "CJK": ("chinese", "mandarin", "cantonese", "japanese", "kanji", "hanzi"), "HIRAGANA": ("japanese", "hiragana"),
    "KATAKANA": ("japanese", "katakana"), "HANGUL": ("korean", "hangul"), "ARABIC": ("arabic", "persian", "farsi", "urdu"),
    "CYRILLIC": ("russian", "ukrainian", "bulgarian", "serbian", "cyrillic"), "GREEK": ("greek",), "HEBREW": ("hebrew", "yiddish"),
    "DEVANAGARI": ("hindi", "sanskrit", "nepali", "marathi"), "THAI": ("thai",), "LATIN": ("english", "translate"),
}


def garbage(text: str) -> str:
    """Why the text cannot be an answer, in whatever language, or ""."""
    if len(text) > 2 * LOOKED_AT:
        text = text[:LOOKED_AT] + text[-LOOKED_AT:]
    solid = "".join(text.split())
    strange = [character for character in text if _is_control(character)]
    if len(strange) >= 3 or len(strange) > 0.05 * len(text):
        return f"it has {len(strange)} control characters, such as U+{ord(strange[0]):04X}"
    if len(solid) < _LEAST:
        return ""
    top, count = Counter(solid).most_common(1)[0]
    if count > 0.8 * len(solid):
        return f"{top!r} makes up {100 * count // len(solid)} % of {len(solid)} characters"
    if solid.count("\ufffd") > 0.2 * len(solid):
        return "a fifth of it are replacement characters"
    return _repeats(solid) or _few_words(text) or _mixture(text)


def wrong_script(text: str, *allowed: str) -> str:
    """Why the text's letters cannot be an answer to `allowed` (the prompt, and what is expected of the answer), or "": nearly all of them are of
    scripts that none of these has, and no such language is named there."""
    letters = scripts(text)
    total = sum(letters.values())
    if total < _LEAST:
        return ""
    known = set().union(*(scripts(one) for one in allowed)) | {"LATIN"}
    named = " ".join(allowed).lower()
    foreign = {name: count for name, count in letters.items() if name not in known and not any(word in named for word in _ASKED_FOR.get(name, ()))}
    if sum(foreign.values()) > 0.5 * total:
        most = max(foreign, key=lambda name: foreign[name])
        return f"{100 * sum(foreign.values()) // total} % of its letters are {_SCRIPT_NAMES.get(most, most.capitalize())}, and nothing asked for them"
    return ""


def scripts(text: str) -> Counter[str]:
    """Letters per script, by the first word of their Unicode names (LATIN, CYRILLIC, CJK, ...)."""
    found: Counter[str] = Counter()
    for character in text[:LOOKED_AT]:
        if "a" <= character <= "z" or "A" <= character <= "Z":
            found["LATIN"] += 1
        elif character.isalpha():
            found[unicodedata.name(character, "UNNAMED").split(" ", 1)[0]] += 1
    return found


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Co", "Cs") and character not in "\t\n\r\f"


def _repeats(solid: str) -> str:
    """A piece that repeats to the end: short ones over most of the text, long ones at least four times over half of it."""
    for size in range(1, min(400, len(solid) // 4) + 1):
        piece = solid[-size:]
        if size > 12 and not solid.endswith(piece, 0, len(solid) - size):
            continue  # it does not even repeat once
        count, end = 0, len(solid)
        while solid.endswith(piece, 0, end):
            count += 1
            end -= size
        covers = count * size
        if (size <= 12 and covers >= 40 and covers > 0.6 * len(solid)) or (size > 12 and count >= 4 and covers >= 120 and covers > 0.5 * len(solid)):
            return f"it repeats {piece[:60]!r} to its end"
    return ""


def _few_words(text: str) -> str:
    words = text.lower().split()
    distinct = len(set(words))
    return f"it has {distinct} different words in {len(words)}" if len(words) >= 80 and distinct < 0.06 * len(words) else ""


def _mixture(text: str) -> str:
    """Letters of four scripts and more, each a good part: no language, and no translation, looks so."""
    letters = scripts(text)
    if letters.keys() & {"HIRAGANA", "KATAKANA"}:
        letters["CJK"] += letters.pop("HIRAGANA", 0) + letters.pop("KATAKANA", 0)
    total = sum(letters.values())
    parts = [name for name, count in letters.items() if count >= 0.05 * total]
    if total < _LEAST or len(parts) < 4:
        return ""
    # A list of languages has its scripts in stretches; garbage changes them from letter to letter.
    names = [unicodedata.name(c, "?").split(" ", 1)[0] for c in text[:LOOKED_AT] if c.isalpha()]
    changes = sum(1 for one, other in pairwise(names) if one != other)
    return f"its letters are a mixture of {len(parts)} scripts" if changes > 0.15 * total else ""
