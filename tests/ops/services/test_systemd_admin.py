"""What an admin installs: the drop-in of an adoption, the polkit rule, the agent's own unit. With a real systemd, inside of a sandbox."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ops.agent.config import NodePaths
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import systemctl
from ops.services.systemd import SystemdManager
from tests.ops.command_line.run import error_of, ops
from tests.ops.services.conftest import free_port
from tests.ops.services.systemd_box import SystemdBox, box, is_real
from tests.ops.services.test_adoption import make_environment

__all__ = ["box"]
DOCS = Path(__file__).resolve().parents[3] / "docs" / "systemd"
SERVER = """import http.server, sys

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answers).serve_forever()
"""
real_only = pytest.mark.skipif(not is_real(), reason="needs a real systemd; the sandbox's run of this file has it")


def test_the_agents_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    text = (DOCS / "roundhouse.service").read_text()
    assert "/opt/roundhouse/.venv/bin/python" in text
    (tmp_path / "roundhouse.service").write_text(text.replace("/opt/roundhouse/.venv/bin/python", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / "roundhouse.service"], capture_output=True, text=True, check=False,
                          timeout=60)
    assert done.returncode == 0 and "roundhouse.service" not in done.stderr, done.stderr


@real_only
def test_the_drop_in_is_installed_once_and_the_unit_then_runs_the_launcher(box: SystemdBox) -> None:
    root, port = box.folder, free_port()
    environment = make_environment(root / "env")
    (environment / "bin" / "vllm").write_text(f"#!{environment}/bin/python -IS\n" + SERVER)
    (environment / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\nversion_info = 3.{sys.version_info.minor}.1\n")
    model = root / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    box.write("rh-tiny", "", text=f"[Service]\nRestart=on-failure\nExecStart=-/usr/bin/env X=1 {environment}/bin/vllm serve {model} --port {port}\n"
              "[Install]\nWantedBy=multi-user.target\n")
    paths = NodePaths(root / "node").make()
    paths.node_toml.write_text(f'name = "gpu01"\nservice_roots = ["{paths.services}"]\nmodel_roots = ["{model.parent}"]\n'
                               'units = ["rh-tiny.service"]\n')
    adopt, state = ["adopt", "--unit", "rh-tiny", "--json"], {"ROUNDHOUSE_NODE_STATE": str(paths.root)}
    assert "no service yet" in error_of(*adopt[:-1], "--install", code=2, **state)["what"]
    only = json.loads(ops(*adopt, "--apply", **state).stdout)
    notes = {finding["title"]: finding for finding in only["findings"] if finding["level"] == "note"}
    assert only["installed"] is None and any("Restart=on-failure" in title for title in notes)
    assert "--unit rh-tiny.service --apply --install" in notes["Until its drop-in is installed, the unit starts what it started before"]["fix"]
    manager = SystemdManager(ServiceRecord.from_dict(json.loads((paths.announced / "rh-tiny.json").read_text())))
    assert not manager.launcher_installed()
    manager.start()
    assert box.until(manager, lambda status: status.state == "healthy").release == "adopted", "it runs from the adopted environment"
    for _ in range(2):  # a second time changes nothing
        told = json.loads(ops(*adopt, "--apply", "--install", **state).stdout)
        assert told["installed"] == "/etc/systemd/system/rh-tiny.service.d/50-roundhouse.conf" and manager.launcher_installed()
    assert Path(told["installed"]).stat().st_mode & 0o777 == 0o644 and manager.status().state == "healthy", "what runs is not touched"
    manager.terminate()
    box.until(manager, lambda status: status.state == "stopped")
    manager.start()
    healthy = box.until(manager, lambda status: status.state == "healthy")
    assert healthy.release == "adopted" and manager.facts()["problem"] == "" and manager.facts()["enabled"] is False
    later = Path(told["installed"]).with_name("90-own.conf")
    later.write_text(f"[Service]\nExecStart=\nExecStart={environment}/bin/vllm serve {model}\n")
    box.systemctl("daemon-reload")
    refused = error_of("adopt", "--unit", "rh-tiny", "--install", **state)
    assert "does not start the launcher" in refused["what"] and "90-own.conf" in refused["why"]
    shutil.rmtree(later.parent)


@real_only
def test_the_polkit_rule_lets_the_agents_user_control_its_units_and_nothing_else(box: SystemdBox) -> None:
    if not Path("/usr/lib/polkit-1/polkitd").exists():
        pytest.skip("polkitd is not installed here")
    for path, line in (("/etc/passwd", "roundhouse:x:4242:4242::/nonexistent:/bin/sh"), ("/etc/group", "roundhouse:x:4242:")):
        with open(path, "a") as file:  # noqa: PTH123  (the sandbox's own copies)
            file.write(line + "\n")
    shutil.copy(DOCS / "50-roundhouse.rules", "/etc/polkit-1/rules.d/50-roundhouse.rules")
    for name in ("vllm", "ssh", "rh-foreign"):
        box.write(name, "exec sleep 1000")
    box.systemctl("start", "ssh.service")

    def agent(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["setpriv", "--reuid=roundhouse", "--regid=roundhouse", "--clear-groups", *words], capture_output=True, text=True,
                              check=False, timeout=30, env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"})

    for verb in ("start", "restart", "reset-failed", "stop"):
        done = agent("systemctl", "--no-ask-password", verb, "--", "vllm.service")
        assert done.returncode == 0, (verb, done.stderr)
    agent("systemctl", "--no-ask-password", "start", "vllm.service")
    forbidden = [
        *(["systemctl", "--no-ask-password", *words] for words in (
            ["stop", "ssh.service"], ["start", "rh-foreign.service"], ["restart", "ssh"], ["kill", "vllm.service"], ["daemon-reload"],
            ["set-property", "vllm.service", "CPUWeight=5"], ["mask", "vllm.service"], ["enable", "vllm.service"], ["isolate", "rescue.target"])),
        ["systemd-run", "--no-ask-password", "id"], ["systemd-run", "--no-ask-password", "--unit=vllm.service", "id"]]
    for words in forbidden:
        done = agent(*words)
        assert done.returncode != 0 and ("denied" in done.stderr or "authentication" in done.stderr), (words, done.stdout, done.stderr)
        assert systemctl.refusal([words[-2], words[-1]], done.returncode, done.stderr).kind == "not_permitted"
    assert box.systemctl("is-active", "ssh.service").stdout == box.systemctl("is-active", "vllm.service").stdout == "active\n"
    drop_ins = Path("/etc/systemd/system/vllm.service.d")
    assert agent("mkdir", str(drop_ins)).returncode != 0 and not drop_ins.exists()


@pytest.mark.skipif(is_real(), reason="the double takes any folder for the host's")
def test_who_may_not_write_the_drop_in_is_told_what_to_do(box: SystemdBox) -> None:
    from ops.services import adoption

    record = box.record("rh-no")
    (record.folder / "launch").touch()
    (box.folder / "file").touch()
    made = adoption.Adoption(record=record, unit="rh-no.service", files=[], unit_text="", user="root", drop_in="[Service]\n",
                             drop_in_path=str(box.folder / "file" / "rh-no.service.d" / "50-roundhouse.conf"))
    with pytest.raises(OpsError) as caught:
        adoption.install(made)
    assert caught.value.kind == "not_permitted" and "[Service]" in caught.value.hint and "50-roundhouse.conf" in caught.value.what
