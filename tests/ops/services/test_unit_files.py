from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.jobs.errors import BadInput
from ops.services import unit_files
from ops.services.unit_files import Unit
from tests.ops.services.test_env_files import CASES as ENVIRONMENT_FILES

SANDBOX = Path(__file__).resolve().parents[2] / "fakes" / "systemd_sandbox.sh"
# Command lines whose words real systemd is asked for too; FIRST and BOTH are variables of the unit.
COMMAND_LINES = {
    "plain": ("a b  c", ["a", "b", "c"]),
    "double quotes": ('"a b" c', ["a b", "c"]),
    "single quotes": ("'a \"b\"' c", ['a "b"', "c"]),
    "quotes in a word": ("--x='a b' --y=\"c d\"e", ["--x=a b", "--y=c de"]),
    "escapes": (r"a\x20b \t \s \101 \u00fc \\ \"", ["a b", "\t", " ", "A", "ü", "\\", '"']),
    "an unknown escape": (r"a\qb", [r"a\qb"]),
    "json": ("--json '{\"a\": [1, 2]}'", ["--json", '{"a": [1, 2]}']),
    "empty": ('"" \'\'', ["", ""]),
    "continued": ("a \\\n  b\\\n c", ["a", "b", "c"]),
    "continued over comments": ("a \\\n# no\n; no\n  b", ["a", "b"]),
    "variables": ("$BOTH ${BOTH} x${FIRST}y $$FIRST ${NONE} $NONE", ["one", "two words", "one two words", "x1y", "$FIRST", ""]),
    "a variable inside of a word stays": ("x$FIRST", ["x$FIRST"]),
    "percent": ("100%% %n", ["100%", "shape.service"]),
    "separator as a word": (r"a \; b", ["a", ";", "b"]),
    "hash": ("a #b", ["a", "#b"]),
}
VARIABLES = {"FIRST": "1", "BOTH": "one 'two words'"}


def unit(tmp_path: Path, text: str, name: str = "vllm.service", **drop_ins: str) -> Unit:
    """Reads `text` as the unit `name`, with drop-ins by file name (`a` is a.conf)."""
    (tmp_path / name).write_text(text)
    for drop_in, more in drop_ins.items():
        folder = tmp_path / f"{name}.d"
        folder.mkdir(exist_ok=True)
        (folder / f"{drop_in}.conf").write_text(more)
    return unit_files.read(name, path=[tmp_path])


@pytest.mark.parametrize("case", COMMAND_LINES)
def test_a_command_line_is_cut_into_words(case: str, tmp_path: Path) -> None:
    text, expected = COMMAND_LINES[case]
    read = unit(tmp_path, f"[Service]\nExecStart=/bin/true {text}\n", name="shape.service")
    [command] = read.commands()
    if case == "variables":  # a value in quotes is unquoted only where it is split
        expected = ["one", "two words", "one 'two words'", *expected[3:]]
    assert command.with_variables(VARIABLES)[1:] == expected and not read.problems


def test_an_empty_assignment_drops_what_stood_before(tmp_path: Path) -> None:
    read = unit(tmp_path, "[Service]\nExecStart=/a\nEnvironment=A=1\nEnvironment=B=2\n", z="[Service]\nExecStart=\nExecStart=/b\n",
                a="[Service]\nEnvironment=\nEnvironment=C=3\n")
    assert [command.argv for command in read.commands()] == [["/b"]] and read.environment() == {"C": "3"}


def test_environment_has_several_in_a_line_and_the_last_counts(tmp_path: Path) -> None:
    read = unit(tmp_path, '[Service]\nEnvironment="A=1 2" B=3 \'C=4 "5"\'\nEnvironment=B=6 D= 7=8\n')
    assert read.environment() == {"A": "1 2", "B": "6", "C": '4 "5"', "D": ""}
    assert read.problems == [f"{tmp_path}/vllm.service:3: a word of Environment= is no assignment, systemd leaves it out"]


def test_command_prefixes_and_a_name_of_its_own(tmp_path: Path) -> None:
    [command] = unit(tmp_path, "[Service]\nExecStart=-@:/bin/a name $X\n").commands()
    assert (command.prefixes, command.argv, command.with_variables({"X": "1"})) == ("-@:", ["/bin/a", "$X"], ["/bin/a", "$X"])


def test_two_commands_in_a_line(tmp_path: Path) -> None:
    assert [command.argv for command in unit(tmp_path, "[Service]\nExecStart=/a b ; /c d\n").commands()] == [["/a", "b"], ["/c", "d"]]


def test_a_quote_without_its_end_is_a_problem_with_its_line(tmp_path: Path) -> None:
    read = unit(tmp_path, "[Service]\n\nExecStart=/a 'b\n")
    assert read.commands() == [] and read.problems == [f"{tmp_path}/vllm.service:3: ExecStart= cannot be read: a ' has no end"]


def test_environment_files_keep_their_dash(tmp_path: Path) -> None:
    read = unit(tmp_path, "[Service]\nEnvironmentFile=/a\nEnvironmentFile=-/b/%N.env\nEnvironmentFile=c\n")
    assert read.environment_files() == ["/a", "-/b/vllm.env"] and "no absolute path" in read.problems[0]


@pytest.mark.parametrize(("text", "expected"), [
    ("%n|%N|%p|%i|%I|%j", "vllm@kimi-k2.service|vllm@kimi-k2|vllm|kimi-k2|kimi/k2|vllm"), ("%h %u %U %s", "/root root 0 /bin/bash"),
    ("%t %S %C %L %E %T %V", "/run /var/lib /var/cache /var/log /etc /tmp /var/tmp"), ("%%h", "%h"), ("%f", "/kimi/k2")])
def test_specifiers(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "vllm@.service").write_text("[Service]\nExecStart=/bin/true\n")
    assert unit_files.read("vllm@kimi-k2", path=[tmp_path]).expand(text) == expected


def test_an_unknown_specifier_is_told(tmp_path: Path) -> None:
    read = unit(tmp_path, "[Service]\nExecStart=/bin/a %Z\n")
    assert read.commands()[0].argv == ["/bin/a", "%Z"] and read.problems == ["The specifier `%Z` is not known here"]


def test_the_search_path_decides_and_drop_ins_come_from_everywhere(tmp_path: Path) -> None:
    etc, lib = tmp_path / "etc", tmp_path / "lib"
    for folder in (etc, lib):
        (folder / "vllm-a.service.d").mkdir(parents=True)
        (folder / "vllm-a.service").write_text(f"[Service]\nExecStart=/{folder.name}\n")
    (lib / "vllm-a.service.d" / "10.conf").write_text("[Service]\nEnvironment=A=lib\n")
    (etc / "vllm-a.service.d" / "10.conf").write_text("[Service]\nEnvironment=A=etc\n")
    (lib / "vllm-a.service.d" / "05.conf").write_text("[Service]\nEnvironment=A=first B=lib\n")
    (etc / "vllm-.service.d").mkdir()
    (etc / "vllm-.service.d" / "20.conf").write_text("[Service]\nEnvironment=C=prefix\n")
    (lib / "service.d").mkdir()
    (lib / "service.d" / "30.conf").write_text("[Service]\nEnvironment=D=all\n")
    read = unit_files.read("vllm-a", path=[etc, lib])
    assert [str(path.relative_to(tmp_path)) for path in read.files] == [
        "etc/vllm-a.service", "lib/vllm-a.service.d/05.conf", "etc/vllm-a.service.d/10.conf", "etc/vllm-.service.d/20.conf", "lib/service.d/30.conf"]
    assert read.environment() == {"A": "etc", "B": "lib", "C": "prefix", "D": "all"} and read.commands()[0].argv == ["/etc"]


def test_an_instance_has_the_drop_ins_of_its_template_and_an_alias_those_of_both(tmp_path: Path) -> None:
    (tmp_path / "vllm@.service").write_text("[Service]\nExecStart=/bin/%i\n")
    (tmp_path / "kimi.service").symlink_to("vllm@.service")
    for folder, value in (("vllm@.service.d", "A=template"), ("vllm@k.service.d", "B=instance")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{value[0]}.conf").write_text(f"[Service]\nEnvironment={value}\n")
    read = unit_files.read("vllm@k.service", path=[tmp_path])
    assert read.environment() == {"A": "template", "B": "instance"} and read.commands()[0].argv == ["/bin/k"]
    (tmp_path / "real.service").write_text("[Service]\nExecStart=/bin/real\n")
    (tmp_path / "other.service").symlink_to("real.service")
    (tmp_path / "real.service.d").mkdir()
    (tmp_path / "real.service.d" / "x.conf").write_text("[Service]\nEnvironment=R=1\n")
    assert unit_files.read("other", path=[tmp_path]).environment() == {"R": "1"}


def test_a_masked_drop_in_does_not_count(tmp_path: Path) -> None:
    read = unit(tmp_path, "[Service]\nExecStart=/a\n", a="[Service]\nEnvironment=A=1\n")
    read.files[1].unlink()
    read.files[1].symlink_to("/dev/null")
    assert unit_files.read("vllm", path=[tmp_path]).environment() == {}


def test_what_stands_outside_of_a_section_is_left_out(tmp_path: Path) -> None:
    read = unit(tmp_path, "\ufeffExecStart=/a\n[Unit]\nExecStart=/b\n[Service]\r\nnothing\nExecStart = /c\r\n")
    assert [command.argv for command in read.commands()] == [["/c"]] and len(read.problems) == 2


@pytest.mark.parametrize(("make", "what"), [
    (lambda folder: None, "There is no unit `vllm.service`"),
    (lambda folder: (folder / "vllm.service").symlink_to("/dev/null"), "The unit `vllm.service` is masked"),
    (lambda folder: (folder / "vllm.service").touch(), "The unit `vllm.service` is masked"),
    (lambda folder: (folder / "vllm.service").symlink_to("/nowhere/x.service"), "points nowhere"),
])
def test_units_that_cannot_be_read(make: Callable[[Path], None], what: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(BadInput) as raised:
        unit_files.read("vllm", path=[tmp_path])
    assert what in raised.value.what


@pytest.mark.parametrize("name", ["-x", "a b", "../a", "a\nb", "x@.service", "", "a/b", "x.service\n"])
def test_what_is_no_unit_name(name: str) -> None:
    with pytest.raises(BadInput):
        unit_files.unit_name(name)


# ---- the real one ----


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """A real systemd in namespaces of its own; calls run inside. /tmp is shared with it by its own overlay: what it writes stays inside."""
    shared = tmp_path_factory.mktemp("sandbox")
    name = f"rh-{shared.name}"
    if not (Path("/lib/systemd/systemd").exists() and Path("/usr/bin/python3").exists() and shutil.which("unshare")):
        pytest.skip("Debian's systemd and python3 are not installed here")
    started = subprocess.run([str(SANDBOX), "start", name, "--share", str(shared)], capture_output=True, text=True, check=False, timeout=60)
    if started.returncode:
        pytest.skip(f"no systemd sandbox here (it needs root and overlayfs): {started.stderr.strip()[-200:]}")

    def call(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(SANDBOX), "exec", name, *argv], capture_output=True, text=True, check=False, timeout=60)

    call.shared = shared  # type: ignore[attr-defined]
    yield call
    subprocess.run([str(SANDBOX), "stop", name], capture_output=True, check=False, timeout=60)


def test_real_systemd_cuts_words_and_reads_files_the_same(systemd: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    shared: Path = systemd.shared  # type: ignore[attr-defined]
    tell = shared / "tell.py"
    tell.write_text("import json, os, sys\njson.dump({'argv': sys.argv[2:], 'env': dict(os.environ)}, open(sys.argv[1], 'w'))\n")
    names = []
    for number, (text, _) in enumerate(COMMAND_LINES.values()):
        names.append(name := f"shape{number}.service")
        (shared / name).write_text("[Service]\nType=oneshot\nEnvironment=FIRST=1 \"BOTH=one 'two words'\"\n"
                                   f"ExecStart=/usr/bin/python3 {tell} {shared}/{name}.json {text}\n")
    for number, (text, _) in enumerate(ENVIRONMENT_FILES.values()):
        names.append(name := f"file{number}.service")
        (shared / f"{name}.env").write_bytes(text.encode())
        (shared / name).write_text(f"[Service]\nType=oneshot\nEnvironmentFile={shared}/{name}.env\n"
                                   f"ExecStart=/usr/bin/python3 {tell} {shared}/{name}.json\n")
    done = systemd("sh", "-c", f"cp {shared}/*.service /etc/systemd/system/ && systemctl daemon-reload && systemctl start {' '.join(names)}")
    assert done.returncode == 0, done.stderr + systemd("journalctl", "-n", "60", "--no-pager").stdout
    wrong: dict[str, object] = {}
    for number, (case, _) in enumerate(COMMAND_LINES.items()):
        read = unit_files.read(f"shape{number}", path=[shared])
        ours = read.commands()[0].with_variables(read.environment())[3:]
        theirs = json.loads((shared / f"shape{number}.service.json").read_text())["argv"]
        if ours != theirs:
            wrong[case] = (ours, theirs)
    for number, (case, (_, expected)) in enumerate(ENVIRONMENT_FILES.items()):
        env = json.loads((shared / f"file{number}.service.json").read_text())["env"]
        given = {name: value for name, value in env.items() if name in "ABCDE" or name in expected}
        if given != expected:
            wrong[case] = (expected, given)
    assert wrong == {}


def test_a_unit_of_real_systemd_is_adopted_with_its_drop_in(systemd: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The whole way: systemd runs the unit, it is adopted as root from inside, the drop-in is installed, systemd starts the launcher."""
    shared: Path = systemd.shared  # type: ignore[attr-defined]
    env, model, state = shared / "env", shared / "model", shared / "node"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(env)], check=True, timeout=60)
    site = next(env.glob("lib/python3*/site-packages"))
    (site / "vllm-0.17.1.dist-info").mkdir()
    (site / "vllm-0.17.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.17.1\n")
    (site / "vllm-0.17.1.dist-info" / "RECORD").write_text("")
    told = shared / "server.json"
    (env / "bin" / "vllm").write_text(f"#!{env}/bin/python\nimport json, os, sys, time\n"
                                      f"json.dump({{'argv': sys.argv, 'env': dict(os.environ)}}, open('{told}.new', 'w'))\n"
                                      f"os.replace('{told}.new', '{told}')\ntime.sleep(600)\n")
    (env / "bin" / "vllm").chmod(0o755)
    model.mkdir()
    (model / "config.json").write_text("{}")
    (shared / "secret.env").write_text("HF_TOKEN='canary one'\n")
    (shared / "secret.env").chmod(0o600)
    state.mkdir(mode=0o700)
    (state / "node.toml").write_text(f'name = "gpu01"\nservice_roots = ["{state}"]\nmodel_roots = ["{shared}"]\nunits = ["kimi.service"]\n')
    (shared / "kimi.unit").write_text(
        f"[Service]\nEnvironment=A=1 'B=2 3'\nEnvironmentFile={shared}/secret.env\n"
        f"ExecStart=/bin/bash -c 'source {env}/bin/activate && exec vllm serve {model} \\\n  --port 8123 --json \\'{{\"a\": 1}}\\' $${{MORE:-}}'\n")
    start = systemd("sh", "-c", f"cp {shared}/kimi.unit /etc/systemd/system/kimi.service && systemctl daemon-reload && systemctl start kimi")
    assert start.returncode == 0, start.stderr
    before = _server(told)
    adopt = ["env", f"ROUNDHOUSE_NODE_STATE={state}", sys.executable, "-m", "ops", "adopt", "--unit", "kimi", "--json"]
    done = systemd("env", "--chdir", str(SANDBOX.parents[2]), *adopt[1:], "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads(done.stdout)
    assert made["applied"] and made["node_toml"] == [] and "canary" not in done.stdout + done.stderr
    assert made["record"]["unit"] == "kimi.service" and made["record"]["base_url"] == "http://127.0.0.1:8123"
    (shared / "drop-in").write_text(made["drop_in"]["text"])
    told.unlink()
    again = systemd("sh", "-c", f"install -D -m 0644 {shared}/drop-in {made['drop_in']['path']} && systemctl daemon-reload && systemctl restart kimi"
                    " && systemctl show -p ExecStart --value kimi")
    assert again.returncode == 0 and f"{state}/services/kimi/launch" in again.stdout, again.stderr
    after = _server(told)
    release = str(state / "services" / "kimi" / "releases" / "adopted")
    assert after["argv"][1:] == before["argv"][1:] and Path(after["argv"][0]).resolve() == Path(before["argv"][0]).resolve()
    for name in ("A", "B", "HF_TOKEN", "HOME"):
        assert after["env"].get(name) == before["env"].get(name), name
    assert release in after["env"]["VIRTUAL_ENV"] or after["env"]["VIRTUAL_ENV"] == str(env)
    twice = json.loads(systemd("env", "--chdir", str(SANDBOX.parents[2]), *adopt[1:]).stdout)
    assert twice["record"] == made["record"] and twice["adopted_before"], "the unit with the drop-in reads the same"


def _server(told: Path) -> dict[str, Any]:
    """What the unit's process said when it started."""
    deadline = time.monotonic() + 30
    while not told.exists():
        assert time.monotonic() < deadline, "the unit did not start its server"
        time.sleep(0.05)
    return dict(json.loads(told.read_text()))


def test_real_systemd_names_the_files_that_count(systemd: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    shared: Path = systemd.shared  # type: ignore[attr-defined]
    script = """set -e
run=/run/systemd/system
cd /etc/systemd/system
printf '[Service]\\nExecStart=/bin/sleep 1\\n' > vllm-kimi@.service
for f in service.d/05.conf vllm-.service.d/10.conf vllm-@.service.d/15.conf vllm-@a.service.d/16.conf vllm-kimi@.service.d/20.conf \\
    vllm-kimi@.service.d/30.conf vllm-kimi@a.service.d/30.conf vllm-kimi.service.d/40.conf $run/vllm-kimi@a.service.d/25.conf \\
    $run/vllm-kimi@a.service.d/30.conf; do
  mkdir -p $(dirname $f); printf '[Service]\\nEnvironment=X=%s\\n' "$f" > "$f"; done
systemctl daemon-reload
systemctl show -p FragmentPath,DropInPaths vllm-kimi@a.service
mkdir -p SHARED/etc SHARED/run; cp -r . SHARED/etc/; cp -r $run/. SHARED/run/
"""
    made = systemd("sh", "-c", script.replace("SHARED", str(shared)))
    assert made.returncode == 0, made.stderr
    told = dict(line.split("=", 1) for line in made.stdout.splitlines())
    theirs = [told["FragmentPath"], *told["DropInPaths"].split()]
    ours = [str(path).replace(f"{shared}/etc", "/etc/systemd/system").replace(f"{shared}/run", "/run/systemd/system")
            for path in unit_files.read("vllm-kimi@a", path=[shared / "etc", shared / "run"]).files]
    assert ours == theirs
