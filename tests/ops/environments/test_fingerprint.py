from __future__ import annotations

import dataclasses
from pathlib import Path

from ops.environments import fingerprint
from ops.gpus.source import GpuReading, GpuSnapshot
from ops.records import ServiceRecord
from tests.ops.environments.conftest import library

GPUS = GpuSnapshot(gpus=[GpuReading(index=index, uuid=f"u{index}", name="RTX", power_limit_w=600.0) for index in range(2)], driver="580.1")


def make(record: ServiceRecord, live: Path | None) -> dict:
    return fingerprint.fingerprint(record, release=live, gpus=GPUS)


def test_it_names_what_could_explain_a_number(record: ServiceRecord, live: Path):
    found = make(record, live)
    assert found["versions"]["vllm"] == "0.16.0rc2.dev313+practice" and found["packages"]["torch"] == "2.10.0+practice"
    assert found["gpus"]["driver"] == "580.1" and found["gpus"]["count"] == 2 and found["gpus"]["power_limit_w"] == [600.0, 600.0]
    assert found["model"]["quantization"]["quant_method"] == "modelopt" and found["model"]["architecture"] == "DeepseekV3ForCausalLM"
    assert found["patched"] == {"digest": None, "files": 0} and found["host"]["cpus"]
    assert make(record, live)["hash"] == found["hash"]


def test_a_patch_or_a_flag_makes_another_one_and_the_difference_is_named(record: ServiceRecord, live: Path):
    before = make(record, live)
    (library(live) / "vllm/config.py").write_text("DEBUG = True\n")
    after = make(dataclasses.replace(record, flags=["--max-num-seqs", "128"]), live)
    assert before["hash"] != after["hash"]
    assert {change["key"] for change in fingerprint.differences(before, after)} == {"flags", "patched.digest", "patched.files"}


def test_values_that_could_be_secret_are_hidden(record: ServiceRecord):
    canary = "sk-canary"
    told = make(dataclasses.replace(
        record, env={"HF_TOKEN": canary, "VLLM_API_KEY": canary, "OTHER": canary, "VLLM_USE_V1": "1", "NCCL_P2P_DISABLE": "1"},
        flags=["--api-key", canary, canary, "--max-model-len=8", f"--hf-token={canary}", "--max-num-batched-tokens", "512"]), None)
    assert canary not in str(told)
    assert told["env"]["VLLM_USE_V1"] == "1" and told["env"]["NCCL_P2P_DISABLE"] == "1" and told["env"]["OTHER"] == "hidden"
    assert told["flags"][-2:] == ["--max-num-batched-tokens", "512"]


def test_what_cannot_be_read_is_null_and_says_why(record: ServiceRecord):
    Path(record.model_path, "config.json").unlink()
    told = fingerprint.fingerprint(record, release=None, gpus=None)
    assert told["packages"] is None and told["gpus"] is None and told["model"]["config_sha256"] is None
    assert "There is no" in told["model"]["problem"]
