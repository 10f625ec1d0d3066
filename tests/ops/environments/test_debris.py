from __future__ import annotations

import difflib
import textwrap
from pathlib import Path

import pytest

from ops.environments import debris
from ops.interpreter import REPOSITORY
from ops.practice import hand_patches

MODEL = '''\
import torch
from torch import nn


def main():
    parser = make_parser()
    args = parser.parse_args()


def load_weights(model, weights):
    for name, weight in weights:
        model.get(name).copy_(weight)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def forward(self, positions, hidden_states, residual=None):
        """One layer.

        Shapes: tokens x hidden.
        """
        if residual is None:
            residual = hidden_states
        hidden_states = self.self_attn(positions, hidden_states)
        hidden_states = self._mix(hidden_states)
        return hidden_states, residual

    def _mix(self, x):
        scale = self.config.scale
        return x * scale

    def __repr__(self):
        return "Layer"
'''
Found = list[tuple[int, str]]


def patched(after: str, *lines: str, text: str = MODEL) -> tuple[str, str]:
    """The diff, and the new text, of lines put after the line `after`, indented as that one."""
    old = text.splitlines(keepends=True)
    place = next(number for number, line in enumerate(old) if line.strip() == after.strip())
    indent = old[place][:len(old[place]) - len(old[place].lstrip())]
    new = [*old[:place + 1], *(f"{indent}{line}\n" for line in lines), *old[place + 1:]]
    return "".join(difflib.unified_diff(old, new, "a/vllm/model.py", "b/vllm/model.py")), "".join(new)


def both(after: str, *lines: str, text: str = MODEL) -> Found:
    """What is found with the whole file at hand, after asserting that the diff alone gives the same."""
    diff, new = patched(after, *lines, text=text)
    by_tree = [(one["line"], one["what"]) for one in debris.look(diff, content=new)]
    by_lines = [(one["line"], one["what"]) for one in debris.look(diff)]
    assert by_lines == by_tree
    return by_tree


IN_FORWARD = "hidden_states = self.self_attn(positions, hidden_states)"


@pytest.mark.parametrize(("line", "word"), [
    ('torch.save(hidden_states, "/tmp/h.pt")', "`torch.save` writes data"),
    ('np.save("/tmp/h", hidden_states.cpu().numpy())', "`np.save` writes data"),
    ('open("/tmp/log", "a").write(str(hidden_states))', "`open` writes data"),
    ("print(hidden_states.mean())", "`print` prints"),
    ('sys.stderr.write("here")', "`sys.stderr.write` prints"),
    ('logger.info("h %s", hidden_states.abs().max().item())', "`logger.info` prints"),
    ("breakpoint()", "a breakpoint"),
    ("import pdb; pdb.set_trace()", "a breakpoint"),
    ("from IPython import embed; IPython.embed()", "a breakpoint"),
    ("self.call_count += 1", "`self.call_count` counts"),
    ("self._dbg_calls = self._dbg_calls + 1", "`self._dbg_calls` counts"),
    ('if os.environ.get("DUMP"): pass', "`os.environ.get` reads an environment variable"),
    ('if os.getenv("DUMP"): pass', "`os.getenv` reads an environment variable"),
    ('if "DUMP" in os.environ: pass', "`os.environ` reads an environment variable"),
    ('path = os.environ["DUMP"]', "`os.environ` reads an environment variable"),
    ("t0 = time.time()", "`time.time` takes the time"),
    ("t0 = time.perf_counter()", "`time.perf_counter` takes the time"),
    ("torch.cuda.synchronize()", "`torch.cuda.synchronize` waits for the GPU"),
    ("assert not torch.isnan(hidden_states).any()", "`isnan` waits for the GPU"),
])
def test_debug_code_in_a_forward_path_is_found(line: str, word: str):
    found = both(IN_FORWARD, line)
    assert len(found) == 1 and found[0][0] == 28 and found[0][1].startswith(word), found


@pytest.mark.parametrize("line", [
    "hidden_states = hidden_states.contiguous()", "# print(hidden_states)", 'text = "print(x); breakpoint()"', "index += 1", "total += hidden_states",
    "self.offset += 2", 'logger.info("once")', "hidden_states = torch.where(torch.isnan(hidden_states), 0, hidden_states)", "self.print_nothing()",
    'open("/etc/hosts").close()', "blueprint(hidden_states)", "x = self.time(hidden_states)"])
def test_ordinary_code_in_a_forward_path_is_nothing(line: str):
    assert both(IN_FORWARD, line) == []


@pytest.mark.parametrize("after", ["args = parser.parse_args()", "model.get(name).copy_(weight)", "self.config = config", 'return "Layer"'])
def test_what_stands_elsewhere_is_no_hot_path(after: str):
    assert both(after, 'print("loaded")', 'torch.save({}, "/tmp/x")', "t0 = time.time()", 'os.environ.get("X")', "self.count += 1") == []


def test_a_breakpoint_is_told_wherever_it_stands():
    assert [line for line, _ in both("args = parser.parse_args()", "breakpoint()")] == [8]


def test_a_counter_of_the_module_and_what_depends_on_it():
    assert both(IN_FORWARD, "global _CALLS", "_CALLS += 1", "if _CALLS % 100 == 0:", '    print(f"call {_CALLS}", flush=True)') == [
        (29, "`_CALLS` counts the calls of a forward pass"), (31, "`print` prints during a forward pass")]


def test_what_a_forward_pass_calls_in_the_same_file_is_hot_too():
    diff, new = patched("scale = self.config.scale", "print(scale)")
    assert [one["line"] for one in debris.look(diff, content=new)] == [33]


def test_a_function_within_a_forward_pass_is_hot():
    diff, new = patched(IN_FORWARD, "def dump(x):", "    torch.save(x, '/tmp/x')", "dump(hidden_states)")
    assert [one["line"] for one in debris.look(diff, content=new)] == [29]


@pytest.mark.parametrize(("name", "is_hot"), [
    ("forward", True), ("forward_cuda", True), ("_forward_decode", True), ("execute_model", True), ("apply", True), ("__call__", True),
    ("apply_weights", True), ("compute_logits", True), ("_sample", True), ("decode_step", True), ("main", False), ("load_weights", False),
    ("forwarded_port", False), ("__init__", False), ("prefillable", False)])
def test_functions_are_hot_by_their_names(name: str, is_hot: bool):
    text = f"import torch\n\n\nclass A:\n    def {name}(self, x):\n        y = x\n        return y\n"
    diff, new = patched("y = x", "print(y)", text=text)
    assert bool(debris.look(diff, content=new)) is is_hot


def test_a_call_method_without_tensors_is_no_hot_path():
    text = "import argparse\n\n\nclass Show(argparse.Action):\n    def __call__(self, parser, namespace, values, option=None):\n        x = 1\n"
    assert both("x = 1", "print(x)", text=text) == []


def test_a_line_that_was_there_and_only_moved_is_nothing():
    text = MODEL.replace("        if residual is None:", "        print(positions)\n        if residual is None:")
    moved = text.replace("        print(positions)\n", "").replace("            residual = hidden_states", "            print(positions)\n"
                                                                  "            residual = hidden_states")
    diff = "".join(difflib.unified_diff(text.splitlines(True), moved.splitlines(True), "a/m.py", "b/m.py"))
    assert debris.look(diff, content=moved) == debris.look(diff) == []


def test_the_hand_patches_of_the_practice_box_are_told():
    """The story's: dumps, a counter and a print in deepseek_v2.py; stale patches elsewhere, which are no debug code."""
    told = {}
    for name, edits in hand_patches.PATCHES.items():
        old = new = (REPOSITORY / "ops/practice/stack/vllm" / name).read_text()
        for before, after in edits:
            new = new.replace(before, after)
        diff = "".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{name}", f"b/{name}"))
        found = debris.look(diff)
        assert found == debris.look(diff, content=new.encode())
        told[Path(name).name] = [one["what"].split("`")[1] for one in found]
    assert told == {"deepseek_v2.py": ["os.environ.get", "torch.save"] * 3 + ["_FORWARD_CALLS", "print"], "gguf_loader.py": [],
                    "weight_utils.py": [], "config.py": []}


def test_a_file_that_does_not_parse_is_looked_at_by_its_lines():
    diff, new = patched(IN_FORWARD, 'torch.save(hidden_states, "/tmp/h.pt")', "if (")
    assert [one["line"] for one in debris.look(diff, content=new)] == [28] == [one["line"] for one in debris.look(diff)]


def test_a_new_file_is_looked_at_as_a_whole():
    text = "import torch\n\n\ndef forward(x):\n    torch.save(x, 'x')\n    return x\n\n\ndef main():\n    print('fine')\n"
    diff = "".join(difflib.unified_diff([], text.splitlines(True), "/dev/null", "b/vllm/debug.py"))
    assert debris.look(text) == debris.look(diff) == [
        {"line": 5, "text": "torch.save(x, 'x')", "what": "`torch.save` writes data to disk during a forward pass"}]


def test_the_head_of_a_hunk_as_git_writes_it_names_the_function():
    diff = textwrap.dedent('''\
        --- a/vllm/layer.py
        +++ b/vllm/layer.py
        @@ -100,3 +100,4 @@ def {name}(self, x):
                 y = x
        +        print(y)
                 z = y
                 w = z
        ''')
    assert [one["line"] for one in debris.look(diff.format(name="forward"))] == [101]
    assert debris.look(diff.format(name="main")) == []


@pytest.mark.parametrize("diff", [
    "--- a/x.cu\n+++ b/x.cu\n@@ -1 +1,2 @@ void forward(\n x\n+    breakpoint();\n",
    "--- a/c.json\n+++ b/c.json\n@@ -1 +1,2 @@\n x\n+  breakpoint()\n",
    "", "Binary files a/x and b/x differ\n", "@@ -1 +1 @@", "\0\0"])
def test_what_is_no_python_is_nothing(diff: str):
    assert debris.look(diff) == []


def test_odd_python_is_no_error():
    deep = "def forward(x):\n    return " + "(" * 3000 + "x" + ")" * 3000 + "\n"
    assert debris.look(deep) == []
    assert debris.look("def forward(x):\n    y = '\\d'\n    print(y)\n")[0]["line"] == 3
    long = "def forward(hidden_states):\n" + "    hidden_states = hidden_states + 1\n" * 60_000 + "    breakpoint()\n"
    assert [one["line"] for one in debris.look(long)] == [60_002]
