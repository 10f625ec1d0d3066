from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from ops.environments import guards
from ops.jobs.errors import BadInput
from ops.records import ServiceRecord


def check(model: Path, *given: dict) -> list[guards.GuardResult]:
    return guards.check(ServiceRecord(name="s", root="/nowhere", model_path=str(model), served_model_name="s", base_url="http://127.0.0.1:1",
                                      guards=list(given)))


def absent(key: str, file: str = "config.json") -> dict:
    return {"kind": "key_absent", "file": file, "key": key}


def equals(key: str, value: object) -> dict:
    return {"kind": "key_equals", "file": "config.json", "key": key, "value": value}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({
        "quantization_config": {"kv_cache_scheme": {"num_bits": 8}, "quant_method": "modelopt", "format": None},
        "layers": [1, {"deep": True}], "count": 1, "flag": True}))
    return tmp_path


def test_a_key_that_must_be_absent(model: Path):
    gone, there, null = check(model, absent("quantization_config.kv_cache_quant_algo"), absent("quantization_config.kv_cache_scheme"),
                              absent("quantization_config.format"))
    assert gone.holds and null.holds and not there.holds
    assert there.explains == "`quantization_config.kv_cache_scheme` is in `config.json`, but must not be"
    assert there.found == '{"num_bits": 8}' and "Remove `quantization_config.kv_cache_scheme`" in there.fix


def test_a_key_that_must_have_a_value(model: Path):
    right, wrong, missing, deep = check(model, equals("quantization_config.quant_method", "modelopt"), equals("count", 2), equals("none", 1),
                                        equals("layers.1.deep", True))
    assert right.holds and deep.holds and not wrong.holds and not missing.holds
    assert wrong.explains == "`count` in `config.json` is 1, but must be 2"
    assert missing.explains == "`none` in `config.json` is not there, but must be 1"


def test_true_is_not_one(model: Path):
    assert [result.holds for result in check(model, equals("flag", 1), equals("count", True))] == [False, False]


def test_the_hash_tells_before_from_after(model: Path):
    (before,) = check(model, absent("x"))
    assert before.sha256 == hashlib.sha256((model / "config.json").read_bytes()).hexdigest()
    (model / "config.json").write_text("{}")
    assert check(model, absent("x"))[0].sha256 != before.sha256


def test_missing_files(model: Path):
    optional, required = check(model, absent("x", "hf_quant_config.json"), {"kind": "key_equals", "file": "other.json", "key": "x", "value": 1})
    assert optional.holds and not required.holds
    (model / "config.json").unlink()
    assert not check(model, absent("x"))[0].holds
    assert "does not exist" in check(model / "none", absent("x"))[0].explains


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xff", b"[" * 200_000])
def test_what_is_no_json_does_not_hold(model: Path, content: bytes):
    (model / "config.json").write_bytes(content)
    (result,) = check(model, absent("x"))
    assert not result.holds and "is not JSON" in result.explains


def test_a_huge_file_is_not_read(model: Path):
    with (model / "config.json").open("wb") as file:
        file.truncate(guards.SIZE_LIMIT + 1)
    (result,) = check(model, absent("x"))
    assert not result.holds and "too large" in result.explains


def test_a_pipe_does_not_block(model: Path):
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    assert "no regular file" in check(model, absent("x"))[0].explains


def test_a_hub_cache_link_is_followed(model: Path, tmp_path: Path):
    blob = tmp_path / "blob"
    (model / "config.json").rename(blob)
    (model / "config.json").symlink_to(blob)
    assert check(model, absent("x"))[0].holds


@pytest.mark.parametrize("guard", [{"kind": "run", "file": "config.json", "key": "x"}, absent("x", "../secret.json"), absent("x", "/etc/passwd"), {}])
def test_what_is_no_guard_is_refused(model: Path, guard: dict):
    with pytest.raises(BadInput):
        check(model, guard)
