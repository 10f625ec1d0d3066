"""Flags as a person types them, cut into words as a shell would. Nothing is run, and what a shell would put something else in for is refused.

The text holds an option a line, or a whole command line from a start script (`vllm serve MODEL --port 8000 \\`), whose model is told apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ops.jobs.errors import BadInput
from ops.services import vllm_arguments

TEXT_MAX = 128 * 1024  # characters
_API_SERVER = "vllm.entrypoints.openai.api_server"
_OTHER_COMMANDS = {"|": "a pipe", ";": "a second command", "&": "a second command", "<": "a file read in", ">": "output to a file",
                   "(": "a command of its own", ")": "a command of its own"}


@dataclass(frozen=True, slots=True)
class Typed:
    """`flags` as the launcher takes them; `model` as the command named it, "" where only flags were typed."""

    flags: list[str]
    model: str = ""


def read(text: str) -> Typed:
    """Raises BadInput naming the line that no start can have."""
    if len(text) > TEXT_MAX:
        raise BadInput(f"These flags are longer than {TEXT_MAX:,} characters")
    cut = _cut(text)
    words = [word for word, _ in cut]
    if not words or words[0].startswith("-"):
        _hold_json(cut)
        return Typed(words)
    rest = _after_command(words)
    _hold_json(cut[len(cut) - len(rest):])
    model, flags = vllm_arguments.split_model(rest, positional="serve" in words[:len(words) - len(rest)])
    return Typed(flags, model)


def _after_command(words: list[str]) -> list[str]:
    """What follows `vllm serve` or the older module. Raises BadInput where neither stands."""
    if "=" in words[0] and words[0].partition("=")[0].isidentifier():
        raise BadInput(f"`{words[0].partition('=')[0]}=` is a variable, not a flag", hint="Leave it out here, and set it among the variables below")
    for place, word in enumerate(words):
        if word.startswith("-") and word != "-m":
            break
        if (word == "serve" and place and words[place - 1].rpartition("/")[2] == "vllm") or word == _API_SERVER:
            return words[place + 1:]
    raise BadInput(f"`{words[0][:80]}` is no flag", why="The text begins with neither a flag nor `vllm serve`", hint="Begin with a word like --port")


def _hold_json(cut: list[tuple[str, int]]) -> None:
    """Raises BadInput for JSON whose quotes a shell would have taken away."""
    for word, line in cut:
        value = word.partition("=")[2] if word.startswith("-") and "={" in word else word
        if value.startswith("{"):
            try:
                json.loads(value)
            except (ValueError, RecursionError) as error:
                raise BadInput(f"Line {line}: `{value[:80]}` is no JSON", why="A shell takes quotes away and cuts at blanks",
                               hint="Put the whole value into single quotes: '{\"temperature\": 0.6}'") from error


def _cut(text: str) -> list[tuple[str, int]]:
    """The words, each with the line that it begins in."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    words: list[tuple[str, int]] = []
    word: list[str] | None = None  # None: between words
    quote, line, began, at = "", 1, 1, 0
    while at < len(text):
        letter, following = text[at], text[at + 1:at + 2]
        at += 1
        if letter == "\n":
            line += 1
        if quote == "'":
            if letter == "'":
                quote = ""
            else:
                _add(word, letter)
        elif letter == "\\" and (not quote or (following and following in '"\\$`\n')):
            at += 1
            if following == "\n":  # the line goes on
                line += 1
                continue
            if not following:
                raise BadInput(f"Line {line}: nothing follows the backslash", hint="Write two of them, or leave it out")
            word, began = ([], line) if word is None else (word, began)
            _add(word, following)
        elif letter in "$`" and (letter == "`" or following.isalnum() or following in ("_", "{", "(")):
            what = "run a command" if letter == "`" or following == "(" else f"put in what `${following}…` stands for"
            raise BadInput(f"Line {line}: a shell would {what} here", why="Nothing is run, and nothing put in",
                           hint="Write the value itself, or put it into single quotes")
        elif quote:
            if letter == '"':
                quote = ""
            else:
                _add(word, letter)
        elif letter.isspace():
            if word is not None:
                words.append(("".join(word), began))
            word = None
        elif letter in "'\"":
            word, began = ([], line) if word is None else (word, began)
            quote = letter
        elif letter == "#" and word is None:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif letter in _OTHER_COMMANDS:
            raise BadInput(f"Line {line}: `{letter}` would be {_OTHER_COMMANDS[letter]}", why="Only the flags of one server are set here",
                           hint="Leave it out, or put the value into single quotes")
        else:
            word, began = ([], line) if word is None else (word, began)
            _add(word, letter)
    if quote:
        raise BadInput(f"Line {began}: a quote is not closed", hint=f"Add `{quote}` where the value ends")
    if word is not None:
        words.append(("".join(word), began))
    return words


def _add(word: list[str] | None, letter: str) -> None:
    if word is not None:
        word.append(letter)
