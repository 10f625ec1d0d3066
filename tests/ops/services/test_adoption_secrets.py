"""Adoption reads whatever a unit and its files hold, and prints none of the secrets among it; nor is a unit able to keep it busy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ops.agent.config import NodePaths
from ops.jobs.errors import OpsError
from ops.services import adoption

SECRET = "canary-value-of-a-secret-42"
VLLM = f"{sys.prefix}/bin/vllm serve /models/x"

UNITS = {
    "in two commands": f"ExecStart={VLLM} --api-key {SECRET}\nExecStart=/bin/other --token {SECRET}\n",
    "beside its name": f"Environment=API_KEY = {SECRET}\nExecStart={VLLM}\n",
    "on a line of its own": f"{SECRET} without a sign\nExecStart={VLLM}\n{SECRET}\n",
    "in quotes without an end": f'ExecStart={VLLM} --api-key "{SECRET}\n',
    "in a variable and a flag": f"Environment=HF_TOKEN={SECRET}\nExecStart={VLLM} --api-key {SECRET}\n",
    "as two keys": f"ExecStart={VLLM} --api-key {SECRET} {SECRET}-b\n",
    "in an address": f"ExecStart={sys.prefix}/bin/vllm serve s3://user:{SECRET}@bucket/x\n",
    "in a program before it": f"ExecStart=/bin/sh -c \"curl -H 'X-Auth: {SECRET}' http://x; exec {VLLM}\"\n",
    "in a command that decides": f'ExecStart=/bin/sh -c "if test {SECRET}; then {VLLM}; fi"\n',
    "in another server": f"ExecStart=/usr/bin/docker run -e HF_TOKEN={SECRET} vllm/vllm-openai\n",
    "passed on": f"PassEnvironment=A={SECRET}\nUnsetEnvironment=B={SECRET}\nEnvironmentFile={SECRET}\nExecStart={VLLM}\n",
    "in a file": f"EnvironmentFile=FOLDER/secret.env\nExecStart={VLLM} --api-key ${{OPENAI_KEY}}\n",
}


@pytest.mark.parametrize("where", UNITS)
def test_no_secret_of_a_unit_is_printed(tmp_path: Path, where: str):
    (tmp_path / "secret.env").write_text(f"OPENAI_KEY={SECRET}\n{SECRET}\nHF_TOKEN='{SECRET}'\n")
    (tmp_path / "vllm.service").write_text("[Service]\n" + UNITS[where].replace("FOLDER", str(tmp_path)))
    try:
        told = json.dumps(adoption.read("vllm", unit_path=[tmp_path], paths=NodePaths(tmp_path / "node")).as_dict())
    except OpsError as error:
        told = f"{error} {json.dumps(error.as_dict())}"
    assert SECRET not in told


def test_a_file_that_holds_no_variables_is_not_repeated(tmp_path: Path):
    (tmp_path / "shadow").write_text(f"root:$6${SECRET}:19000:0:99999:7:::\n")
    (tmp_path / "vllm.service").write_text(f"[Service]\nEnvironmentFile={tmp_path}/shadow\nExecStart={VLLM}\n")
    made = adoption.read("vllm", unit_path=[tmp_path], paths=NodePaths(tmp_path / "node"))
    assert SECRET not in json.dumps(made.as_dict()) and made.record.env_files == [f"{tmp_path}/shadow"]


def test_a_pattern_of_environment_files_searches_one_folder_not_the_disk(tmp_path: Path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "deep.env").write_text("DEEP=1\n")
    (tmp_path / "here.env").write_text("HERE=1\n")
    (tmp_path / "vllm.service").write_text(f"[Service]\nEnvironmentFile=-{tmp_path}/**x\nEnvironmentFile=-{tmp_path}/**.env\nExecStart={VLLM}\n")
    made = adoption.read("vllm", unit_path=[tmp_path], paths=NodePaths(tmp_path / "node"))
    assert made.record.env_files == [f"-{tmp_path}/here.env"]
