from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from ops.environments import fingerprint, releases
from ops.gpus.source import GpuReading, GpuSnapshot
from ops.records import ServiceRecord
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import library, make_wheelhouse

GPUS = GpuSnapshot(gpus=[GpuReading(index=index, uuid=f"u{index}", name="RTX", power_limit_w=600.0, pcie_width=16, pcie_max_width=16)
                         for index in range(2)], driver="580.1", cuda="13.0")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with vllm dev313, as pip installs it; read only."""
    folder = tmp_path_factory.mktemp("fingerprint")
    wheels = make_wheelhouse(folder / "wheels")
    env = folder / "env"
    uv = find_uv_bin()
    for arguments in (["venv", "--python", sys.executable, str(env)],
                      ["pip", "install", "--python", str(env / "bin/python"), "--offline", "--no-index", "--find-links", str(wheels),
                       "--link-mode", "copy", "--prerelease", "allow", "vllm==0.16.0rc2.dev313+practice", "flashinfer-cubin==0.6.3"]):
        subprocess.run([uv, "--quiet", "--no-config", "--no-cache", *arguments], check=True)
    return env


@pytest.fixture
def live(record: ServiceRecord, installed: Path, tmp_path: Path) -> Path:
    """A copy of it as a release, to be edited."""
    release = record.releases / "20260101-000000-dev313"
    shutil.copytree(installed, release, symlinks=True)
    return release


def make(record: ServiceRecord, live: Path | None, gpus: GpuSnapshot = GPUS) -> dict:
    return fingerprint.fingerprint(record, release=live, gpus=gpus)


def told(before: dict, after: dict) -> list[str]:
    return fingerprint.words(fingerprint.differences(before, after))


def test_it_names_what_could_explain_a_number(record: ServiceRecord, live: Path):
    found = make(record, live)
    assert found["versions"]["vllm"] == "0.16.0rc2.dev313+practice" and found["packages"]["torch"] == "2.10.0+practice"
    assert found["gpus"]["driver"] == "580.1" and found["gpus"]["count"] == 2 and found["gpus"]["power_limit_w"] == [600.0, 600.0]
    assert found["gpus"]["pcie_width"] == [16, 16] and found["gpus"]["uuids"] == ["u0", "u1"]
    assert found["model"]["quantization"]["quant_method"] == "modelopt" and found["model"]["architecture"] == "DeepseekV3ForCausalLM"
    assert found["model"]["files"]["config.json"] == hashlib.sha256(Path(record.model_path, "config.json").read_bytes()).hexdigest()
    assert found["model"]["files"]["tokenizer_config.json"] is None and found["model"]["weights"] == {"files": 0, "bytes": 0}
    assert found["patched"] == {"digest": None, "files": 0, "packages": {}} and found["host"]["cpus"] and found["host"]["kernel"]
    assert found["tools"]["uv"] and found["tools"]["roundhouse"] and found["launcher"]["manager"] == "process"
    assert make(record, live)["hash"] == found["hash"]


def test_the_hash_is_the_same_in_another_process_and_after_a_way_through_json(record: ServiceRecord, live: Path):
    found = make(record, live)
    code = "import json,sys; from ops.environments import fingerprint; print(fingerprint.digest(json.load(sys.stdin)))"
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(found), text=True, capture_output=True, check=True,
                          env={**os.environ, "PYTHONHASHSEED": "4"}, cwd=Path(__file__).parents[3])
    assert done.stdout.strip() == found["hash"] == fingerprint.digest(dict(reversed(found.items())))
    assert fingerprint.canonical({"b": [600.0, 0.1, float("nan")], "a": None}) == '{"a":null,"b":[600,0.1,null]}'


def test_the_same_content_in_another_release_has_the_same_hash(record: ServiceRecord, live: Path):
    before = make(record, live)
    live.rename(live.with_name("20260202-000000-dev313"))
    after = make(record, live.with_name("20260202-000000-dev313"))
    assert before["hash"] == after["hash"]
    assert told(before, after) == ["the release went from 20260101-000000-dev313 to 20260202-000000-dev313"]


def test_a_patch_or_a_flag_makes_another_one_and_the_difference_is_named(record: ServiceRecord, live: Path):
    before = make(record, live)
    (library(live) / "vllm/config.py").write_text("DEBUG = True\n")
    after = make(dataclasses.replace(record, flags=["--max-num-seqs", "128"]), live)
    assert before["hash"] != after["hash"]
    keys = {change["key"] for change in fingerprint.differences(before, after)}
    assert keys == {"flags", "patched.digest", "patched.files", "patched.packages.vllm"}
    assert told(before, after) == ["1 file of vllm was edited", "the flag --max-num-seqs was added: 128"]


def test_values_that_could_be_secret_are_hidden(record: ServiceRecord):
    canary = "sk-canary"
    told = make(dataclasses.replace(
        record, env={"HF_TOKEN": canary, "VLLM_API_KEY": canary, "OTHER": canary, "VLLM_USE_V1": "1", "NCCL_P2P_DISABLE": "1",
                     "VLLM_PROXY": f"http://u:{canary}@host/", "TOKENIZERS_PARALLELISM": "false", "LD_LIBRARY_PATH": "/x"},
        flags=["--api-key", canary, canary, "--max-model-len=8", f"--hf-token={canary}", "--max-num-batched-tokens", "512"]), None)
    assert canary not in str(told) and hashlib.sha256(canary.encode()).hexdigest() not in str(told)
    assert told["env"]["VLLM_USE_V1"] == "1" and told["env"]["NCCL_P2P_DISABLE"] == "1" and told["env"]["OTHER"] == "hidden"
    assert told["env"]["TOKENIZERS_PARALLELISM"] == "false" and told["env"]["LD_LIBRARY_PATH"] == "/x"
    assert told["flags"][-2:] == ["--max-num-batched-tokens", "512"]


def test_a_changed_file_of_variables_shows_without_its_content(record: ServiceRecord, tmp_path: Path):
    secret = tmp_path / "vllm.env"
    secret.write_text("HF_TOKEN=hf_canary_one\n")
    given = dataclasses.replace(record, env_files=[f"-{secret}", str(tmp_path / "none.env")])
    before = make(given, None)
    secret.write_text("HF_TOKEN=hf_canary_two\n")
    os.utime(secret, ns=(1, 1))
    after = make(given, None)
    assert "canary" not in str(before) and after["env_files"][str(tmp_path / "none.env")] is None
    assert told(before, after) == [f"the environment file {secret} was changed"]
    (tmp_path / "none.env").write_text("A=1\n")
    assert told(after, make(given, None)) == [f"the environment file {tmp_path / 'none.env'} is new"]


def test_what_cannot_be_read_is_null_and_says_why(record: ServiceRecord):
    Path(record.model_path, "config.json").unlink()
    told = fingerprint.fingerprint(record, release=None, gpus=None)
    assert told["packages"] is None and told["gpus"] is None and told["model"]["config_sha256"] is None
    assert "There is no" in told["model"]["problem"]


def test_hashes_of_wheels_are_those_of_the_manifest_as_long_as_the_version_is_the_same(record: ServiceRecord, live: Path):
    known = {"packages": [{"name": "vllm", "version": "0.16.0rc2.dev313+practice", "sha256": "a" * 64},
                          {"name": "torch", "version": "2.9", "sha256": "b" * 64}, {"name": "flashinfer-cubin", "version": "0.6.3", "sha256": None}]}
    (live / releases.MANIFEST).write_text(json.dumps(known))
    before = make(record, live)
    assert before["wheels"] == {"vllm": "a" * 64}
    known["packages"][0]["sha256"] = "c" * 64
    (live / releases.MANIFEST).write_text(json.dumps(known))
    assert told(before, make(record, live)) == ["vllm is another build of the same version"]


# ---- in words ----


BEFORE = {
    "release": "one", "python": "3.12.3", "packages": {"vllm": "0.16.0", "aiohttp": "3.0", "old": "1"}, "wheels": {"vllm": "a"},
    "versions": {"vllm": "0.16.0"}, "coupling": [], "patched": {"digest": "x", "files": 4, "packages": {"vllm": 3, "torch": 1}},
    "flags": ["--tensor-parallel-size", "8", "--api-key", "hidden", "--enable-prefix-caching"],
    "env": {"VLLM_USE_V1": "1", "HF_TOKEN": "hidden", "NCCL_DEBUG": "INFO"},
    "model": {"path": "/m", "config_sha256": "1", "files": {"config.json": "1", "generation_config.json": None}, "dtype": "bfloat16", "problem": None,
              "quantization": {"quant_method": "modelopt", "kv_cache_scheme": "{}", "sha256": "1"}, "weights": {"files": 64, "bytes": 1000}},
    "gpus": {"driver": "580.1", "cuda": "13.0", "count": 2, "power_limit_w": [600.0, 600.0], "clock_max_mhz": [2430, 2430],
             "pcie_width": [16, 16], "names": ["RTX"]},
    "host": {"kernel": "6.8.0-1", "name": "gpu01"}, "tools": {"uv": "0.13.9", "roundhouse": "0.1.0"}, "launcher": {"sha256": "1"},
}


def changed(**parts: object) -> list[str]:
    after = json.loads(json.dumps(BEFORE))
    for path, value in parts.items():
        *outer, name = path.split("__")
        place = after
        for part in outer:
            place = place[part]
        if value is ...:
            del place[name]
        else:
            place[name] = value
    return told(BEFORE, after)


@pytest.mark.parametrize(("parts", "sentences"), [
    ({"packages__vllm": "0.17.1", "versions__vllm": "0.17.1", "wheels__vllm": "b"}, ["vllm went from 0.16.0 to 0.17.1"]),
    ({"packages__zlib": "2", "packages__old": ..., "packages__vllm": "2"}, ["vllm went from 0.16.0 to 2", "old 1 was removed", "zlib 2 was added"]),
    ({"flags": ["--tensor-parallel-size=4", "--max-model-len", "131072", "--api-key", "hidden"]},
     ["the flag --enable-prefix-caching was removed", "the flag --max-model-len was added: 131072",
      "the flag --tensor-parallel-size went from 8 to 4"]),
    ({"flags": ["--api-key=hidden", "--enable-prefix-caching", "--tensor-parallel-size", "8"]},
     ["the flags stand in another order, or are written in another way"]),
    ({"env__VLLM_USE_V1": "0", "env__HF_TOKEN": ..., "env__NCCL_DEBUG": ..., "env__OMP_NUM_THREADS": "4"},
     ["the variable HF_TOKEN was removed", "the variable NCCL_DEBUG was removed (it was INFO)", "the variable OMP_NUM_THREADS was added: 4",
      "the variable VLLM_USE_V1 went from 1 to 0"]),
    ({"patched": {"digest": "y", "files": 6, "packages": {"vllm": 5, "torch": 1}}}, ["5 files of vllm are edited now, 3 were before"]),
    ({"patched": {"digest": None, "files": 0, "packages": {}}},
     ["1 file of torch is not edited any more", "3 files of vllm are not edited any more"]),
    ({"patched": {"digest": "y", "files": 4, "packages": {"vllm": 3, "torch": 1}}}, ["the edits of installed files are other ones"]),
    ({"patched": None}, ["the check of the installed files could not be read now"]),
    ({"gpus__driver": "590.2", "gpus__cuda": "13.1"}, ["the driver's CUDA version went from 13.0 to 13.1", "the driver went from 580.1 to 590.2"]),
    ({"gpus__clock_max_mhz": None}, []),
    ({"gpus__clock_max_mhz": [2430, 1800]}, ["the highest clock of GPU 1 of the service went from 2430 MHz to 1800 MHz"]),
    ({"gpus__power_limit_w": [450, 450]}, ["the power limit of all 2 GPUs went from 600 W to 450 W"]),
    ({"gpus__power_limit_w": [600, 450], "gpus__pcie_width": [8, 16]},
     ["the PCIe link of GPU 0 of the service went from 16 lanes to 8 lanes", "the power limit of GPU 1 of the service went from 600 W to 450 W"]),
    ({"gpus__count": 1, "gpus__power_limit_w": [600], "gpus__pcie_width": [16]}, ["the number of GPUs went from 2 to 1"]),
    ({"gpus": None}, ["the GPUs could not be read now"]),
    ({"model__files__config.json": "2", "model__config_sha256": "2", "model__quantization__sha256": "2", "model__quantization__kv_cache_scheme": ...},
     ["the model's config.json was changed", "the model's kv_cache_scheme was removed (it was {})"]),
    ({"model__files__generation_config.json": "1", "model__weights__bytes": 1200},
     ["the model's generation_config.json was added", "the size of the weight files went from 1,000 to 1,200 bytes"]),
    ({"model__quantization": None, "model__problem": "There is no file"},
     ["the model's settings cannot be read: There is no file", "the model is not quantized any more"]),
    ({"host__kernel": "6.8.0-2", "tools__uv": "0.14.0", "python": "3.13.1", "launcher__sha256": "2"},
     ["the kernel went from 6.8.0-1 to 6.8.0-2", "Python went from 3.12.3 to 3.13.1", "the launcher's own text is another one",
      "uv went from 0.13.9 to 0.14.0"]),
    ({"coupling": [{"title": "Packages do not agree"}]}, ["new: packages do not agree"]),
    ({"wheels": None, "packages": None}, ["the installed packages could not be read now"]),
    ({"something_new": 5}, ["`something_new` is 5 now (it was not known)"]),
    ({}, []),
])
def test_a_difference_is_said_in_plain_sentences(parts: dict, sentences: list[str]):
    assert changed(**parts) == sentences


def test_flags_are_read_as_pairs():
    assert fingerprint.parsed_flags(["--a", "1", "--b", "--c=2", "--d", "x", "y", "-tp", "8", "--e", "-1", "--c", "3"]) == {
        "--a": "1", "--b": None, "--c": "2 3", "--d": "x y", "-tp": "8", "--e": "-1"}


# ---- the last good start ----


def test_what_changed_since_the_last_good_start(record: ServiceRecord, live: Path):
    assert fingerprint.changed_since_good(record, make(record, live)) is None
    fingerprint.remember_good_start(record, make(record, live), release=live.name, job="job-1")
    kept = fingerprint.last_good_start(record)
    assert kept is not None and kept["release"] == live.name and kept["job"] == "job-1" and kept["at"] > 0
    unchanged = fingerprint.changed_since_good(record, make(record, live))
    assert unchanged is not None and unchanged["words"] == [] and unchanged["since"] == kept["at"]
    changed = fingerprint.changed_since_good(record, make(dataclasses.replace(record, flags=["--max-model-len", "131072"]), live))
    assert changed is not None and changed["words"] == ["the flag --max-model-len was added: 131072"]


def test_a_package_of_another_version_is_named(record: ServiceRecord, live: Path, tmp_path: Path):
    before = make(record, live)
    wheel = make_wheel(tmp_path, "flashinfer-cubin", "0.6.4+practice")
    subprocess.run([find_uv_bin(), "--quiet", "--no-config", "--no-cache", "pip", "install", "--offline", "--no-deps",
                    "--python", str(live / "bin/python"), str(wheel)], check=True)
    sentences = told(before, make(record, live))
    assert sentences[0] == "flashinfer-cubin went from 0.6.3+practice to 0.6.4+practice"
    assert any(sentence.startswith("new: ") for sentence in sentences)
