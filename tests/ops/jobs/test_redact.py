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
    f"/tmp/dump_{HF}_layer0.pt",
    f"/tmp/dump_{SK}_layer0.pt",
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
    "vllm serve /m --api-key CANARY1x CANARY2y --port 8000",
    "vllm serve /m --api-key 'CANARY a b' --port 8000",
    "['vllm', 'serve', '--api-key', 'CANARYx', 'CANARYy', '--port', '1']",
    '["--hf-token", "CANARYx"]',
    '{"api_key": "a\\"CANARY", "port": 1}',
    "api_key: CANARYx",
    "X-Api-Key: CANARYx",
    "HUGGING_FACE_HUB_TOKEN=CANARYx",
    "AWS_SECRET_ACCESS_KEY=CANARYx and WANDB_TOKEN=CANARYy",
    "bearer: CANARYtoken",
    "git clone https://CANARYabcdefghijk1234@git.example/x",
    "postgres://ops:a@CANARY@db/ops",
    "GET https://h.example/x?a=1&Signature=CANARY~x&Key-Pair-Id=1",
    "ghp_CANARYabcdefghijklmnopq1234 nvapi-CANARYabcdefghijklmnop",
    "eyJCANARYaaaa.CANARYbbbb.CANARYcccc",
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
    "max_num_batched_tokens=8192, num_hidden_tokens=3, eos_token=2, bos_token='<s>'",
    "GET https://user@index.example/simple and http://127.0.0.1:8000/v1/models?limit=5",
    "KeyError: 'api_key' is not in the settings; ENABLE_TOKENIZERS=1, monkey=2",
    '"api_key": null, "password": "[redacted]"',
])
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert redact.log_text(line) == line


def test_known_values_are_hidden_wherever_they_stand() -> None:
    secrets = redact.secret_values({"HF_TOKEN": "very-secret", "VLLM_API_KEY": "k3y-value", "PORT": "8000", "MY_TOKEN": "x"})
    assert secrets == ["very-secret", "k3y-value"]
    assert redact.redact("a very-secret b k3y-value", secrets) == f"a {redact.HIDDEN} b {redact.HIDDEN}"


def test_passwords_in_addresses_are_known_wherever_they_are_said() -> None:
    """A client's error names the password without the address."""
    record = {"env": {"PROXY": "http://anna:pass%2Fword1@proxy:3128/", "A": "https://tokentokentoken1234@h/", "B": "http://u:short@h/", "C": "x@y.z"},
              "flags": ["--x", "redis://:flag-password@h/0"]}
    assert set(redact.record_secrets(record)) == {"pass%2Fword1", "pass/word1", "tokentokentoken1234", "flag-password"}


def test_a_record_leaves_its_node_without_its_secrets() -> None:
    record = {"name": "x", "base_url": "http://u:CANARY@127.0.0.1:8000",
              "flags": ["--api-key", "CANARY1", "CANARY2", "--port", "8000", "--hf-token=CANARY3", "--ssl-password", "CANARY4", "--x",
                        '{"api_key": "CANARY5"}'],
              "env": {"HF_TOKEN": "CANARY", "OPENAI_KEY": "CANARY", "DB_PASS": "CANARY", "S3": "https://u:CANARY@h",
                      "TOKENIZERS_PARALLELISM": "false"}}
    shown = redact.hide_in_record(record)
    assert "CANARY" not in str(shown)
    assert (shown["flags"][3:5], shown["env"]["TOKENIZERS_PARALLELISM"]) == (["--port", "8000"], "false")
    assert {"CANARY1", "CANARY2", "CANARY3", "CANARY4"} <= set(redact.record_secrets(record))


def test_log_text_is_text() -> None:
    assert redact.plain_text("\x1b]0;title\x07a\x1b[2Jb\x1b[31mred\x1b[0m\u202eevil\u2066\x08\tz\n") == "abredevil\tz\n"
    assert redact.plain_text("\x1b[2Ja\x1b[31mred\x1b[0m", colour=True) == "a\x1b[31mred\x1b[0m"
    assert redact.plain_text("äöü 漢字 ✓") == "äöü 漢字 ✓"


def test_line_ends_become_newlines() -> None:
    assert redact.log_text("a\r\nb\rc\n") == "a\nb\nc\n"


@pytest.mark.parametrize("part", ["x", "a-", "sk-", "password ", "https://", "_", "'api_key': [", "bearer ", " ", "\x1b]",
                                  "'--api-key', ", "--api-key a1b2c3 ", "api_key: ", '"api_key": "\\', "a://b", "?key=&", "eyJaaaaaaaa.", "_KEY="])
def test_a_long_line_takes_no_longer_than_its_length(part: str) -> None:
    began = time.monotonic()
    redact.log_text(part * (300_000 // len(part)))
    assert time.monotonic() - began < 5
