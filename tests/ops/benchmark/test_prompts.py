"""Prompts out of files, good and bad, and prompts of a chosen length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.benchmark import prompts
from ops.benchmark.prompts import read_file, synthetic
from ops.jobs.errors import BadInput


def file(tmp_path: Path, *lines: str | bytes) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


SHAREGPT = {"id": "1", "conversations": [{"from": "human", "value": "Why is the sky blue?"}, {"from": "gpt", "value": "Rayleigh."}]}
MESSAGES = {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]}


def test_each_form_of_a_prompt_is_read_and_the_last_answer_left_off(tmp_path: Path) -> None:
    lines = [json.dumps(SHAREGPT), json.dumps(MESSAGES), '{"prompt": "Count to ten."}', '"As JSON"', "As plain text", "", "  "]
    made = read_file(file(tmp_path, *lines), 1)
    assert [messages[-1]["content"] for messages in made.prompts] == ["Why is the sky blue?", "Hello", "Count to ten.", "As JSON", "As plain text"]
    assert made.prompts[1] == MESSAGES["messages"] and all(messages[-1]["role"] == "user" for messages in made.prompts)
    assert made.bad == 0 and len(made.sha256) == 64


def test_one_array_is_read_as_sharegpt_comes(tmp_path: Path) -> None:
    assert len(read_file(file(tmp_path, json.dumps([SHAREGPT, SHAREGPT, {"conversations": []}], indent=1)), 1).prompts) == 2


def test_bad_lines_are_counted_told_and_passed_over(tmp_path: Path) -> None:
    bad = ["{not json", '{"messages": [{"role": "robot", "content": "x"}]}', '{"conversations": [{"from": "gpt", "value": "only an answer"}]}',
           '{"prompt": 5}', b"\xff\xfe\xff",
           '{"prompt": "\\ud800"}', '{"a":' * 5000, '{"messages": [1]}', '{"prompt": ""}', "x" * (prompts.MAX_LINE + 1)]
    made = read_file(file(tmp_path, *bad, '{"prompt": "good"}'), 1)
    assert (len(made.prompts), made.bad, len(made.bad_lines)) == (1, len(bad), prompts.BAD_LINES_TOLD)
    assert made.bad_lines[1] == "line 2: a turn of an unknown role `robot`"


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"prompt": 5}\n'])
def test_a_file_without_any_prompt_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BadInput, match="holds no prompt"):
        read_file(file(tmp_path, content), 1)


@pytest.mark.parametrize("path", ["/nowhere/none.jsonl", "/dev/zero", "/tmp", "/tmp/\0"])
def test_what_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(BadInput, match=r"cannot be read as prompts|is not a file"):
        read_file(Path(path), 1)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_FILE", 10)
    with pytest.raises(BadInput, match="too large"):
        read_file(file(tmp_path, "more than ten bytes"), 1)


def test_prompts_begin_with_a_mark_of_their_own_even_when_they_come_again(tmp_path: Path) -> None:
    made = read_file(file(tmp_path, "one", json.dumps(MESSAGES)), 7)
    sent = [made.messages("8", index) for index in range(-2, 6)]
    assert len({messages[0]["content"].split()[0] for messages in sent}) == 8
    assert sent == [read_file(tmp_path / "prompts.jsonl", 7).messages("8", index) for index in range(-2, 6)]
    assert all(messages[0]["role"] == "system" or len(messages) == 1 for messages in sent)  # the mark stands in front of all that is sent
    assert made.messages("8", 0) != made.messages("16", 0) and MESSAGES["messages"][0]["content"] == "Be short."


def test_synthetic_prompts_are_the_same_for_the_same_seed_only() -> None:
    assert synthetic(1, "8", 0, 20) == synthetic(1, "8", 0, 20) != synthetic(2, "8", 0, 20)
