from __future__ import annotations

import time

import pytest

from ops.jobs import redact

HF = "hf_" + "CANARYabcdefghijklmnop1234"
SK = "sk-" + "CANARYabcdefghijklmnop1234"


@pytest.mark.parametrize("line", [
    f"downloading with {HF} now",
    f"key {SK}.",
    f"sk-proj-{SK[3:]}",
    "Authorization: Bearer CANARY.abc-def",
    "authorization: Basic CANARYdXNlcjpwYXNz",
    "GET https://user:CANARYpass@index.example/simple",
    "postgres://ops:CANARY%40x@db/ops and more",
    "redis://:CANARYpw@127.0.0.1:6379/0",
    "non-default args: {'model': '/m', 'api_key': ['CANARY1', 'CANARY2'], 'port': 8000}",
    "non-default args: {'hf_token': 'CANARYx', 'port': 8000}",
    "vllm serve /m --api-key CANARYx --port 8000",
    "vllm serve /m --api-key=CANARYx --port 8000",
    "Namespace(api_key='CANARYx', port=8000)",
    "Namespace(api_key=['CANARYx', 'CANARYy'], port=8000)",
    "HF_TOKEN=CANARYx vllm serve",
    f"h\x1b[0mf_\x00{HF[3:]}",
    "b\x08\x1b[1mearer CANARYtoken",
])
def test_no_canary_survives(line: str) -> None:
    assert "CANARY" not in redact.log_text(line)


@pytest.mark.parametrize("line", [
    "non-default args: {'api_key': None, 'hf_overrides': {}, 'port': 8000}",
    "hf_overrides=None, api_key=None",
    "GET http://127.0.0.1:8000/health 200",
    "Loading safetensors checkpoint shards:  42% Completed | 27/64 [03:01<04:09,  6.73s/it]",
    "file.py:12] scikit sk-learn, disk-usage 5",
    "max_num_batched_tokens=8192, num_hidden_tokens=3",
])
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert redact.log_text(line) == line


def test_known_values_are_hidden_wherever_they_stand() -> None:
    secrets = redact.secret_values({"HF_TOKEN": "very-secret", "VLLM_API_KEY": "k3y-value", "PORT": "8000", "MY_TOKEN": "x"})
    assert secrets == ["very-secret", "k3y-value"]
    assert redact.redact("a very-secret b k3y-value", secrets) == f"a {redact.HIDDEN} b {redact.HIDDEN}"


def test_log_text_is_text() -> None:
    assert redact.plain_text("\x1b]0;title\x07a\x1b[2Jb\x1b[31mred\x1b[0m\u202eevil\u2066\x08\tz\n") == "abredevil\tz\n"
    assert redact.plain_text("\x1b[2Ja\x1b[31mred\x1b[0m", colour=True) == "a\x1b[31mred\x1b[0m"
    assert redact.plain_text("äöü 漢字 ✓") == "äöü 漢字 ✓"


def test_line_ends_become_newlines() -> None:
    assert redact.log_text("a\r\nb\rc\n") == "a\nb\nc\n"


@pytest.mark.parametrize("part", ["x", "a-", "sk-", "password ", "https://", "_", "'api_key': [", "bearer ", " ", "\x1b]"])
def test_a_long_line_takes_no_longer_than_its_length(part: str) -> None:
    began = time.monotonic()
    redact.log_text(part * (300_000 // len(part)))
    assert time.monotonic() - began < 5
