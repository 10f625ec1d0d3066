"""Units as people write them, read and adopted: real files, an environment folder with real metadata."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodePaths
from ops.jobs import claim
from ops.jobs.errors import BadInput, Busy
from ops.services import adoption
from ops.services.adoption import Adoption

SECRET = "hf_canary0123456789abcdef"


@dataclass
class Host:
    """A little host: an environment, a model folder, a hub cache, a place for units, a node's state."""

    root: Path
    paths: NodePaths

    @property
    def env(self) -> Path:
        return self.root / "env"

    @property
    def model(self) -> Path:
        return self.root / "models" / "Kimi"

    def write(self, text: str, name: str = "vllm.service") -> Path:
        units = self.root / "units"
        (units / name).parent.mkdir(parents=True, exist_ok=True)
        (units / name).write_text(text.replace("ENV", str(self.env)).replace("MODEL", str(self.model)).replace("ROOT", str(self.root)))
        return units / name

    def read(self, text: str, name: str = "vllm.service", **options: Any) -> Adoption:
        """Reads `text` as a unit; ENV, MODEL and ROOT in it are this host's folders. A lone command line becomes a unit."""
        if "[Service]" not in text:
            text = f"[Service]\nUser={os.getuid()}\nExecStart={text}\n"
        self.write(text, name)
        return adoption.read(name, unit_path=[self.root / "units"], paths=self.paths, **options)

    def allow(self) -> None:
        """A node.toml that allows all of it."""
        self.paths.make()
        self.paths.node_toml.write_text(f'name = "gpu01"\nservice_roots = ["{self.paths.services}"]\nmodel_roots = ["{self.root}/models"]\n'
                                        f'environment_roots = ["{self.root}"]\nunits = ["vllm.service"]\n')


def make_environment(folder: Path, vllm: str = "0.17.1", **packages: str) -> Path:
    """An environment folder as packages.read and the launcher see one: an interpreter, bin/vllm, metadata."""
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (folder / "bin").mkdir(parents=True)
    site.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion_info = 3.{sys.version_info.minor}.1\n")
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "bin" / "vllm").write_text(f"#!{folder}/bin/python\nprint('vllm')\n")
    (folder / "bin" / "vllm").chmod(0o755)
    for name, version in {"vllm": vllm, **packages}.items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("")
    return folder


@pytest.fixture
def host(short_path: Path) -> Host:
    made = Host(short_path, NodePaths(short_path / "state"))
    make_environment(made.env)
    made.model.mkdir(parents=True)
    (made.model / "config.json").write_text("{}")
    snapshot = short_path / "home" / ".cache/huggingface/hub/models--moonshotai--Kimi/snapshots/abc123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc123")
    made.allow()
    return made


def titles(made: Adoption, level: str) -> list[str]:
    return [finding["title"] for finding in made.findings if finding["level"] == level]


def seen(made: Adoption, host: Host) -> dict[str, Any]:
    """The parts of a record that a command line decides, with this host's folders by name."""
    record = made.record
    short = json.dumps({"environment": record.environment, "model": record.model_path, "flags": record.flags, "env": record.env})
    return dict(json.loads(short.replace(str(host.env), "ENV").replace(str(host.model), "MODEL").replace(str(host.root), "ROOT")))


PLAIN = {"environment": "ENV", "model": "MODEL", "flags": ["--port", "8001"], "env": {}}
# Command line, and what its record differs in from PLAIN. Each comes to `ENV/bin/vllm serve MODEL --port 8001`.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm serve": ("ENV/bin/vllm serve MODEL --port 8001", {}),
    "model behind the flags": ("ENV/bin/vllm serve --enforce-eager --port 8001 MODEL", {"flags": ["--enforce-eager", "--port", "8001"]}),
    "model by --model": ("ENV/bin/vllm serve --model MODEL --port 8001", {}),
    "quoted json": ("ENV/bin/vllm serve MODEL --port 8001 --x '{\"a\": \"b c\"}'", {"flags": ["--port", "8001", "--x", '{"a": "b c"}']}),
    "api_server": ("ENV/bin/python -u -m vllm.entrypoints.openai.api_server --model MODEL --port 8001", {}),
    "api_server with =": ("ENV/bin/python3 -m vllm.entrypoints.openai.api_server --port 8001 --model=MODEL", {}),
    "python with the script": ("ENV/bin/python ENV/bin/vllm serve MODEL --port 8001", {}),
    "python -m of the cli": ("ENV/bin/python -m vllm.entrypoints.cli.main serve MODEL --port 8001", {}),
    "bash -c with activate": ("/bin/bash -c 'source ENV/bin/activate && exec vllm serve MODEL --port 8001'", {}),
    "bash -lc": ("/bin/bash -lc '. ENV/bin/activate; cd ROOT; vllm serve MODEL --port 8001'", {}),
    "bash -euo pipefail -c": ("/bin/bash -euo pipefail -c 'exec ENV/bin/vllm serve MODEL --port 8001 >> /var/log/v.log 2>&1'", {}),
    "bash with arguments": ("/bin/bash -c 'exec \"$0\" serve \"$@\"' ENV/bin/vllm MODEL --port 8001", {}),
    "env": ("/usr/bin/env A=b C='d e' ENV/bin/vllm serve MODEL --port 8001", {"env": {"A": "b", "C": "d e"}}),
    "env finds it on its PATH": ("/usr/bin/env PATH=ENV/bin:/usr/bin:/bin vllm serve MODEL --port 8001", {"env": {"PATH": "/usr/bin:/bin"}}),
    "env -u -S": ("/usr/bin/env -u A -S 'B=1 ENV/bin/vllm serve' MODEL --port 8001", {"env": {"B": "1"}}),
    "numactl": ("/usr/bin/numactl --cpunodebind=0 --membind=0 ENV/bin/vllm serve MODEL --port 8001", {}),
    "nice and taskset": ("/usr/bin/nice -n -5 /usr/bin/taskset -c 0-31 ENV/bin/vllm serve MODEL --port 8001", {}),
    "ignored exit code": ("-ENV/bin/vllm serve MODEL --port 8001", {}),
    "a name of its own": ("@ENV/bin/vllm kimi serve MODEL --port 8001", {}),
    "uv run with an environment's python": ("/usr/local/bin/uv run --no-project --python ENV/bin/python vllm serve MODEL --port 8001", {}),
    "uv run in a project": ("/usr/local/bin/uv --directory ROOT run --project ROOT/project --frozen -- vllm serve MODEL --port 8001",
                            {"environment": "ROOT/project/.venv"}),
    "conda run": ("/usr/bin/conda run --no-capture-output -p ROOT/conda/envs/kimi vllm serve MODEL --port 8001",
                  {"environment": "ROOT/conda/envs/kimi"}),
    "conda by its own program": ("ROOT/conda/envs/kimi/bin/vllm serve MODEL --port 8001", {"environment": "ROOT/conda/envs/kimi"}),
    "conda activate by name": ("/bin/bash -c 'source ROOT/conda/etc/profile.d/conda.sh; conda activate kimi; exec vllm serve MODEL --port 8001'",
                               {"environment": "ROOT/conda/envs/kimi", "env": {"CONDA_EXE": "ROOT/conda/bin/conda"}}),
    "a link to the program": ("ROOT/bin/vllm serve MODEL --port 8001", {}),
    "start script": ("ROOT/start.sh 8001", {"env": {"CUDA_VISIBLE_DEVICES": "0,1"}}),
    "start script with its shell": ("/bin/bash ROOT/start.sh 8001", {"env": {"CUDA_VISIBLE_DEVICES": "0,1"}}),
    "relative model": ("/bin/sh -c 'cd ROOT/models && exec ENV/bin/vllm serve ./Kimi --port 8001'",
                       {"flags": ["--served-model-name", "./Kimi", "--port", "8001"]}),
    "underscores": ("ENV/bin/vllm serve MODEL --port=8001 --tensor_parallel_size=2", {"flags": ["--port=8001", "--tensor_parallel_size=2"]}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_command_line_is_read(shape: str, host: Host) -> None:
    root = host.root
    make_environment(root / "project" / ".venv")
    (root / "project" / "pyproject.toml").touch()
    conda = make_environment(root / "conda" / "envs" / "kimi")
    (conda / "pyvenv.cfg").unlink()
    (conda / "conda-meta").mkdir()
    (root / "bin").mkdir()
    (root / "bin" / "vllm").symlink_to(host.env / "bin" / "vllm")
    (root / "start.sh").write_text(f'#!/bin/bash\nset -euo pipefail\nexport CUDA_VISIBLE_DEVICES=0,1\nPORT="${{1:-8000}}"\n# go\n'
                                   f'exec {host.env}/bin/vllm serve \\\n  "{host.model}" --port "$PORT"\n')
    (root / "start.sh").chmod(0o755)
    command, other = SHAPES[shape]
    text = f"[Service]\nUser={os.getuid()}\nExecStart={command}\n"
    if "conda activate" in command:
        text += "Environment=CONDA_EXE=ROOT/conda/bin/conda\n"
    made = host.read(text)
    assert seen(made, host) == PLAIN | other and made.stops == [] and made.record.base_url == "http://127.0.0.1:8001"


REFUSED = {
    "docker": ("/usr/bin/docker run --gpus all vllm/vllm-openai --model x", "starts a container (`docker`)"),
    "podman in a shell": ("/bin/sh -c 'exec podman run vllm'", "starts a container (`podman`)"),
    "uvx": ("/usr/bin/uvx vllm serve MODEL", "runs vLLM by `uvx`"),
    "uv run --with": ("/usr/bin/uv run --with vllm vllm serve MODEL", "`uv run --with`"),
    "another user": ("/usr/bin/sudo -u vllm ENV/bin/vllm serve MODEL", "changes its user by `sudo`"),
    "another command of vllm": ("ENV/bin/vllm bench serve", "runs `vllm bench`, no server"),
    "another server": ("/usr/bin/nginx -g x", "no vLLM server"),
    "a Python program": ("ENV/bin/python ROOT/serve.py", "no vLLM server"),
    "a script that decides": ("/bin/sh -c 'if true; then ENV/bin/vllm serve MODEL; fi'", "Line 1 of the `sh -c` command"),
    "a script with a pipe": ("/bin/sh -c 'ENV/bin/vllm serve MODEL | grep x'", "cannot be followed"),
    "a script without a server": ("/bin/sh -c 'cd /'", "ends in no command"),
    "two commands": ("/bin/true ; ENV/bin/vllm serve MODEL", "starts 2 commands"),
    "forking": ("[Service]\nType=forking\nExecStart=ENV/bin/vllm serve MODEL", "is of Type=forking"),
    "nothing": ("[Service]\nUser=root", "has no ExecStart="),
    "a template": ("[Service]\nExecStart=ENV/bin/vllm serve MODEL", "is a template"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_adopted_is_refused_with_a_reason(case: str, host: Host) -> None:
    text, what = REFUSED[case]
    with pytest.raises(BadInput) as raised:
        host.read(text, name="vllm@.service" if case == "a template" else "vllm.service")
    assert what in raised.value.what and raised.value.hint


STOPPED = {
    "no model": ("ENV/bin/vllm serve --port 1", "names no model"),
    "model is gone": ("ENV/bin/vllm serve ROOT/none", "is not there"),
    "model in a store": ("ENV/bin/vllm serve s3://bucket/model", "no folder on this host"),
    "model not in the cache": ("ENV/bin/vllm serve org/other", "not in the hub's cache"),
    "environment is gone": ("ROOT/gone/bin/vllm serve MODEL", "`ROOT/gone/bin/vllm` is not there"),
    "the system's Python": ("/usr/bin/python3 -m vllm.entrypoints.openai.api_server --model MODEL", "the system's own Python"),
    "a socket": ("ENV/bin/vllm serve MODEL --uds /run/v.sock", "listens on the socket"),
    "no vllm in it": ("[Service]\nExecStart=ROOT/bare/bin/vllm serve MODEL", "has no vllm"),
    "practice": ("ROOT/practice/bin/vllm serve MODEL", "practice packages"),
    "its Python is gone": ("ROOT/dead/bin/vllm serve MODEL", "The interpreter of `ROOT/dead` is gone"),
    "a missing file": ("[Service]\nEnvironmentFile=ROOT/none.env\nExecStart=ENV/bin/vllm serve MODEL", "`ROOT/none.env` is not there"),
    "files in an image": ("[Service]\nRootDirectory=/srv\nExecStart=ENV/bin/vllm serve MODEL", "has RootDirectory="),
}


@pytest.mark.parametrize("case", STOPPED)
def test_what_is_missing_stops_it_and_nothing_is_stored(case: str, host: Host) -> None:
    bare = make_environment(host.root / "bare")
    next(bare.glob("lib/*/site-packages/vllm-*")).rename(bare / "moved")
    make_environment(host.root / "practice", vllm="0.17.1+practice")
    dead = make_environment(host.root / "dead")
    (dead / "bin" / "python").unlink()
    (dead / "bin" / "python").symlink_to("/nowhere/python")
    text, what = STOPPED[case]
    made = host.read(text)
    assert [title for title in titles(made, "stop") if what.replace("ROOT", str(host.root)) in title], made.findings
    with pytest.raises(BadInput):
        adoption.apply(host.paths, made)
    assert list(host.paths.announced.iterdir()) == list(host.paths.services.iterdir()) == []


# ---- model, address, GPUs ----


def test_a_hub_name_becomes_its_folder_and_keeps_its_name(host: Host) -> None:
    made = host.read(f"[Service]\nUser={os.getuid()}\nEnvironment=HOME=ROOT/home\nExecStart=ENV/bin/vllm serve moonshotai/Kimi\n")
    assert made.record.model_path == f"{host.root}/home/.cache/huggingface/hub/models--moonshotai--Kimi/snapshots/abc123"
    assert made.record.served_model_name == "moonshotai/Kimi" and made.record.flags == ["--served-model-name", "moonshotai/Kimi"]


@pytest.mark.parametrize("more", ["Environment=HF_HOME=ROOT/hf", "Environment=HF_HUB_CACHE=ROOT/hf/hub", "EnvironmentFile=ROOT/hf.env"])
def test_the_cache_is_where_the_unit_says(more: str, host: Host) -> None:
    (host.root / "home/.cache/huggingface").rename(host.root / "hf")
    (host.root / "hf.env").write_text(f"HF_HOME={host.root}/hf\n")
    made = host.read(f"[Service]\nUser={os.getuid()}\n{more}\nExecStart=ENV/bin/vllm serve moonshotai/Kimi --revision main\n")
    assert made.record.model_path.startswith(f"{host.root}/hf/hub/models--") and made.stops == []


@pytest.mark.parametrize(("flags", "url"), [
    ("", "http://127.0.0.1:8000"), ("--host 0.0.0.0 --port 9000", "http://127.0.0.1:9000"), ("--host 10.1.2.3", "http://10.1.2.3:8000"),
    ("--host :: --port=9", "http://[::1]:9"), ("--host fe80::1", "http://[fe80::1]:8000"), ("--ssl-certfile /c --host gpu01", "https://gpu01:8000"),
    ("--port 1 --port 2", "http://127.0.0.1:2"), ("--config ROOT/serve.yaml", "http://127.0.0.1:7777"),
    ("--config ROOT/serve.yaml --port 5", "http://127.0.0.1:5")])
def test_its_address(flags: str, url: str, host: Host) -> None:
    (host.root / "serve.yaml").write_text("# settings\nport: 7777\nhost: \"0.0.0.0\"  # all\nlora-modules:\n  - name: x\n    port: 1\n")
    assert host.read(f"ENV/bin/vllm serve MODEL {flags}").record.base_url == url


@pytest.mark.parametrize(("flags", "visible", "gpus", "warned"), [
    ("", None, [0], 0), ("-tp 4", None, [0, 1, 2, 3], 0), ("--tensor-parallel-size 2 --pipeline-parallel-size=2", None, [0, 1, 2, 3], 0),
    ("-tp8", None, list(range(8)), 0), ("--tensor-parallel-size 2", "4,5,6", [4, 5], 0), ("-tp 2", "GPU-1234", [], 1), ("-tp 4", "0,1", [0, 1], 1),
    ("--data-parallel-size 2", "3, 1", [3, 1], 0)])
def test_its_gpus(flags: str, visible: str | None, gpus: list[int], warned: int, host: Host) -> None:
    more = f"Environment='CUDA_VISIBLE_DEVICES={visible}'\n" if visible else ""
    made = host.read(f"[Service]\nUser={os.getuid()}\n{more}ExecStart=ENV/bin/vllm serve MODEL {flags}\n")
    assert made.record.gpus == gpus and len(titles(made, "warning")) == warned


def test_a_build_for_the_cpu_uses_no_gpu(host: Host, short_path: Path) -> None:
    made = host.read(f"{make_environment(short_path / 'cpu', '0.32.0+cpu')}/bin/vllm serve MODEL --tensor-parallel-size 2")
    assert made.record.gpus == []
    assert ("It uses no GPU", "Its vllm 0.32.0+cpu is a build for the CPU") in [(found["title"], found["why"]) for found in made.findings]


def test_an_environment_whose_programs_start_another_one_is_told(host: Host, short_path: Path) -> None:
    (host.env / "bin" / "vllm").write_text("#!/opt/elsewhere/bin/python3\nprint('vllm')\n")
    (found,) = [found for found in host.read("ENV/bin/vllm serve MODEL").findings if "/opt/elsewhere" in found["title"]]
    assert found["level"] == "warning" and "copied or renamed" in found["why"]


def test_relative_files_are_made_absolute(host: Host) -> None:
    (host.root / "tool.jinja").touch()
    made = host.read(f"[Service]\nUser={os.getuid()}\nWorkingDirectory=ROOT\n"
                     "ExecStart=ENV/bin/vllm serve models/Kimi --chat-template tool.jinja --x=none.jinja")
    assert made.record.flags[2:] == ["--chat-template", f"{host.root}/tool.jinja", "--x=none.jinja"] and made.record.model_path == str(host.model)


# ---- variables and secrets ----


def test_secrets_stay_in_their_files_and_are_never_shown(host: Host) -> None:
    (host.root / "vllm.env").write_text(f"HF_TOKEN={SECRET}1\nVLLM_API_KEY={SECRET}2\nNCCL_DEBUG=INFO\n")
    made = host.read(f"""[Service]
User={os.getuid()}
Environment=WANDB_API_KEY={SECRET}3 OMP_NUM_THREADS=8
EnvironmentFile=ROOT/vllm.env
EnvironmentFile=-ROOT/none.env
ExecStart=ENV/bin/vllm serve MODEL --api-key ${{VLLM_API_KEY}} --hf-token {SECRET}4
""")
    record = made.record
    assert record.env == {"WANDB_API_KEY": f"{SECRET}3", "OMP_NUM_THREADS": "8"} | {"HF_TOKEN": f"{SECRET}4"}
    assert record.env_files == [f"{host.root}/vllm.env", f"-{host.root}/none.env"] and record.flags == []
    assert SECRET not in json.dumps(made.as_dict() | {"text": ""})
    assert any("`WANDB_API_KEY` stands in the unit in clear text" in title for title in titles(made, "warning"))
    stored = adoption.apply(host.paths, made)
    kept = [path for path in host.paths.root.rglob("*") if path.is_file() and not path.is_symlink() and SECRET in path.read_text(errors="replace")]
    assert {path.name for path in kept} == {"env.json", "record.json", stored.name}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept)
    assert not [path for path in kept if f"{SECRET}1" in path.read_text() or f"{SECRET}2" in path.read_text()]


def test_a_file_that_a_script_sources_is_kept_as_a_file(host: Host) -> None:
    (host.root / "env.sh").write_text(f"# all\nHF_TOKEN='{SECRET}'\nA=\"b c\"\n")
    made = host.read("/bin/bash -c 'set -a; source ROOT/env.sh; set +a; exec ENV/bin/vllm serve MODEL'")
    assert made.record.env_files == [f"{host.root}/env.sh"] and made.record.env == {}


def test_what_points_into_the_environment_is_told(host: Host) -> None:
    made = host.read(f"[Service]\nUser={os.getuid()}\nEnvironment=LD_LIBRARY_PATH=ENV/lib PYTHONPATH=/opt/x\n"
                     "Environment=PATH=ENV/bin:/usr/local/cuda/bin:/usr/bin\nExecStart=ENV/bin/vllm serve MODEL\n")
    assert made.record.env["PATH"] == "/usr/local/cuda/bin:/usr/bin"
    assert [title.split(" ")[0] for title in titles(made, "warning")] == ["`LD_LIBRARY_PATH`", "`PYTHONPATH`"]


def test_what_a_script_does_before_is_told(host: Host) -> None:
    made = host.read("/bin/bash -c 'ulimit -n 65536; nvidia-smi -pm 1; sleep 2; exec ENV/bin/vllm serve MODEL 2>&1 | tee /tmp/log'")
    assert [title.split(" runs")[0] for title in titles(made, "warning")] == ["`nvidia-smi -pm 1`", "`sleep 2`"]
    assert len([title for title in titles(made, "note") if "ulimit" in title or "piped" in title]) == 2


def test_coupled_packages_that_differ_are_told(host: Host) -> None:
    make_environment(host.root / "other", **{"flashinfer-python": "0.6.4", "flashinfer-cubin": "0.6.3"})
    made = host.read("ROOT/other/bin/vllm serve MODEL")
    assert any("flashinfer" in title for title in titles(made, "warning"))


# ---- the unit, drop-in, node.toml ----


def test_drop_ins_and_instances_count(host: Host) -> None:
    host.write(f"[Service]\nUser={os.getuid()}\nExecStart=/bin/false\n", name="vllm@.service")
    host.write("[Service]\nExecStart=\nExecStart=ENV/bin/vllm serve MODEL --served-model-name %i --port 80%i\n", name="vllm@.service.d/a.conf")
    made = adoption.read("vllm@01", unit_path=[host.root / "units"], paths=host.paths)
    assert (made.record.name, made.record.unit, made.record.served_model_name) == ("vllm-01", "vllm@01.service", "01")
    assert made.record.base_url == "http://127.0.0.1:8001" and [path.name for path in made.files] == ["vllm@.service", "a.conf"]
    assert made.drop_in_path == "/etc/systemd/system/vllm@01.service.d/50-roundhouse.conf"


def test_the_drop_in_starts_the_launcher_and_keeps_what_stands_in_front(host: Host) -> None:
    made = host.read("-/usr/bin/numactl --membind=0 'ENV/bin/vllm' serve MODEL")
    assert made.drop_in.splitlines()[-3:] == [
        "[Service]", "ExecStart=", f"ExecStart=-/usr/bin/numactl --membind=0 {host.paths.services}/vllm/launch"]
    assert not Path(made.drop_in_path).exists()


def test_a_unit_with_the_drop_in_is_read_as_it_was(host: Host) -> None:
    first = host.read("ENV/bin/vllm serve MODEL --port 8001")
    adoption.apply(host.paths, first)
    host.write(first.drop_in, name="vllm.service.d/50-roundhouse.conf")
    again = adoption.read("vllm", unit_path=[host.root / "units"], paths=host.paths)
    assert again.record == first.record and any("launcher" in title for title in titles(again, "ok")) and again.drop_in == first.drop_in


def test_node_toml_lines_are_whole(host: Host) -> None:
    assert host.read("ENV/bin/vllm serve MODEL").node_toml == []
    host.paths.node_toml.write_text('name = "gpu01"\nunits = ["other.service"]\nmodel_roots = ["/data"]\n')
    made = host.read("ENV/bin/vllm serve MODEL", in_place=True)
    assert made.node_toml == [f'service_roots = ["{host.paths.services}"]', f'model_roots = ["/data", "{host.model.parent.resolve()}"]',
                              f'environment_roots = ["{host.root.resolve()}"]', 'units = ["other.service", "vllm.service"]']
    assert any("does not allow it yet" in title for title in titles(made, "warning")) and made.record.in_place
    host.paths.node_toml.unlink()
    assert any("no node yet" in title for title in titles(host.read("ENV/bin/vllm serve MODEL"), "warning"))


def test_a_practice_node_takes_no_real_service(host: Host) -> None:
    host.paths.node_toml.write_text('name = "practice"\npractice = true\n')
    assert "`practice` is a practice node" in titles(host.read("ENV/bin/vllm serve MODEL"), "stop")


def test_another_user_than_the_agents_is_told(host: Host) -> None:
    made = host.read("[Service]\nUser=nobody\nExecStart=ENV/bin/vllm serve MODEL\n")
    assert made.user == "nobody" and any("runs as `nobody`" in title for title in titles(made, "warning"))


def test_a_unit_that_may_not_look_into_homes_is_told(host: Host) -> None:
    text = f"[Service]\nUser={os.getuid()}\nProtectHome=yes\nExecStart=ENV/bin/vllm serve MODEL\n"
    assert not [title for title in titles(host.read(text), "warning") if "may not look into" in title]
    host.paths = NodePaths(Path("/home/rh/state"))
    assert [title for title in titles(host.read(text), "warning") if "may not look into `/home/rh/state`" in title]


def test_an_environment_can_be_given(host: Host) -> None:
    made = host.read("/usr/bin/python3 -m vllm.entrypoints.openai.api_server --model MODEL", environment=str(host.env))
    assert made.stops == [] and made.record.environment == str(host.env)


# ---- apply ----


def everything(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Every file below: mode, time of its last change, content."""
    return {str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
            for path in sorted(folder.rglob("*")) if not path.is_symlink() or stat.S_ISLNK(path.lstat().st_mode)}


def test_apply_stores_the_service_and_touches_neither_unit_nor_environment_nor_model(host: Host) -> None:
    made = host.read("ENV/bin/vllm serve MODEL --port 8001")
    before = {folder: everything(host.root / folder) for folder in ("env", "models", "units")}
    stored = adoption.apply(host.paths, made)
    assert {folder: everything(host.root / folder) for folder in ("env", "models", "units")} == before
    assert stored == host.paths.announced / "vllm.json" and stored.stat().st_mode & 0o777 == 0o600
    assert json.loads(stored.read_text()) == made.record.as_dict()
    assert made.record.current.resolve() == host.env.resolve() and os.access(made.record.folder / "launch", os.X_OK)
    state = everything(host.paths.root)
    adoption.apply(host.paths, host.read("ENV/bin/vllm serve MODEL --port 8001"))
    assert everything(host.paths.root) == state, "again is the same"


def test_a_second_adoption_keeps_what_people_added(host: Host) -> None:
    adoption.apply(host.paths, host.read("ENV/bin/vllm serve MODEL"))
    file = host.paths.announced / "vllm.json"
    guard = {"kind": "file_present", "file": "config.json", "key": "", "value": None}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"guards": [guard], "target_tok_s": [40, 50]}))
    made = host.read("ENV/bin/vllm serve MODEL --port 9")
    assert made.record.guards == [guard] and made.record.target_tok_s == [40, 50] and made.record.base_url.endswith(":9") and made.stops == []


def test_another_service_of_that_name_is_not_overwritten(host: Host) -> None:
    adoption.apply(host.paths, host.read("ENV/bin/vllm serve MODEL"))
    made = host.read("ENV/bin/vllm serve MODEL --port 2", name="kimi.service")
    named = adoption.read("kimi", unit_path=[host.root / "units"], paths=host.paths, name="vllm")
    assert any("another one" in title for title in titles(named, "stop")) and made.stops == []
    twice = adoption.read("vllm", unit_path=[host.root / "units"], paths=host.paths, name="second")
    assert "`vllm.service` is adopted already, as service `vllm`" in titles(twice, "stop")


def test_a_busy_service_is_told(host: Host) -> None:
    made = host.read("ENV/bin/vllm serve MODEL")
    held = claim.lock_all(host.paths, ["service:vllm"])
    try:
        with pytest.raises(Busy):
            adoption.apply(host.paths, made)
    finally:
        claim.release(held)
    assert list(host.paths.announced.iterdir()) == []


def test_a_disk_that_cannot_be_written_leaves_nothing_announced(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    made = host.read("ENV/bin/vllm serve MODEL")

    def full(*arguments: Any, **settings: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(adoption, "write_file", full)
    with pytest.raises(Exception, match="cannot be stored"):
        adoption.apply(host.paths, made)
    assert list(host.paths.announced.iterdir()) == []
