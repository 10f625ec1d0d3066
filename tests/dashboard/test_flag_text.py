"""Flags as people type them: cut as a shell would, and nothing put in for anything."""

from __future__ import annotations

import shlex

import pytest

from dashboard import flag_text
from ops.jobs.errors import BadInput


@pytest.mark.parametrize(("typed", "flags", "model"), [
    ("--port 8000\n--max-model-len=4096", ["--port", "8000", "--max-model-len=4096"], ""),
    ("vllm serve /models/kimi \\\r\n  --port 8000 \\\r\n  --enforce-eager", ["--port", "8000", "--enforce-eager"], "/models/kimi"),
    ("exec /opt/vllm/bin/vllm serve --port 8000 /models/kimi", ["--port", "8000"], "/models/kimi"),
    ("python -m vllm.entrypoints.openai.api_server --model org/kimi --port 1", ["--port", "1"], "org/kimi"),
    ("""--hf-overrides '{"a": "it'"'"'s"}' --x "a \\"b\\" \\n $ 5" """, ["--hf-overrides", '{"a": "it\'s"}', "--x", 'a "b" \\n $ 5'], ""),
    ("# a comment; with `signs`\n--port 8000 # here too\n--x a#b '$HOME'", ["--port", "8000", "--x", "a#b", "$HOME"], ""),
    ("", [], ""), ("--x ''", ["--x", ""], ""),
])
def test_flags_are_cut_as_a_shell_would(typed: str, flags: list[str], model: str) -> None:
    assert flag_text.read(typed) == flag_text.Typed(flags, model)


@pytest.mark.parametrize(("typed", "said"), [
    ("--port 1\n--x $HOME", "Line 2"), ('--x "${HOME}"', "put in what"), ("--x `id`", "run a command"), ("--x $(id)", "run a command"),
    ("--x 1; reboot", "a second command"), ("--x 1 > /tmp/x", "output to a file"), ("--x a | tee log", "a pipe"),
    ("--port 1\n\n--x 'a\nb", "Line 3: a quote is not closed"), ("--x \\", "nothing follows the backslash"),
    ('--hf-overrides {"a": 1}', "single quotes"), ("A=1 vllm serve m", "is a variable"), ("serve me", "is no flag"), ("x" * 140_000, "longer than"),
])
def test_what_a_shell_would_do_more_with_is_refused_with_its_line(typed: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        flag_text.read(typed)
    assert said in str(refused.value)


def test_what_a_page_shows_comes_back_as_it_was() -> None:
    words = ["--a", "b c", "--json", '{"x": ["$y", "`z`"]}', "--it's", "\\", "*", "ä\tb", "--e", ""]
    assert flag_text.read("\n".join(shlex.quote(word) for word in words)).flags == words
