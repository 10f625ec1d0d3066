"""Is a patch debug code that somebody forgot in a hot path? Tensor dumps, prints, breakpoints, counters, clocks added to a forward pass.

Such lines cost time for every token (a `print` of a tensor, `torch.save` and `torch.isnan(x).any()` each wait for the GPU), and nobody
knows afterwards which of them matter. What is looked at are the lines that a diff adds. Where the whole file is at hand and parses,
functions are known by its syntax tree: `forward`, `__call__`, `apply`, `execute_model` and the like, what is defined in them, and what
they call in the same file. Else by the lines of the diff around: the nearest `def`, or, where the diff does not reach it, the words of
a forward pass (`hidden_states`, `residual`, ...). A breakpoint is told wherever it stands.

A `print` in a `main`, in a loader or in a test is nothing. Comments and strings are no code.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

HOT_PATH = "debug code in a hot path"

# Functions that run for every batch. The second group only in files that have to do with tensors.
_HOT = re.compile(r"_?forward(_\w+)?|\w+_forward|_?execute_(dummy_batch|model\w*)|_?model_forward|compute_logits|_?run_model")
_HOT_WITH_TENSORS = re.compile(r"__call__|_?apply(_\w+)?|_?sample(_\w+)?|_?(decode|prefill)(_\w+)?|propose(_\w+)?|step|"
                               r"_?(attn|attention|mlp|moe)_\w+")
_TENSORS = re.compile(r"\b(import torch|from torch|import triton|torch\.Tensor|hidden_states)\b")
# What a diff shows of a forward pass where it does not show the function's head
_WORDS = re.compile(r"\b(hidden_states|residual|positions|logits|attn_metadata|intermediate_tensors|inputs_embeds|input_ids|kv_caches?|q_pe|k_pe|"
                    r"kv_c_normed|self\.self_attn|self\.mlp|attn_output|topk_ids|topk_weights|gate_up)\b")

_BREAKPOINT = "a breakpoint: the process stops there and waits for a person"
_WHAT = {
    "dump": "`{0}` writes data to disk during a forward pass",
    "print": "`{0}` prints during a forward pass",
    "counter": "`{0}` counts the calls of a forward pass",
    "environment": "`{0}` reads an environment variable during a forward pass",
    "clock": "`{0}` takes the time during a forward pass",
    "wait": "`{0}` waits for the GPU during a forward pass",
}
_CALLS: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"(torch|th)\.save|(np|numpy)\.(save\w*|savetxt)|pickle\.dump|joblib\.dump|json\.dump|(safetensors\.torch\.)?save_file|"
                r"(.*\.)?(tofile|to_csv|write_text|write_bytes)"), "dump"),
    (re.compile(r"print|pprint|pprint\.pprint|rich\.print|sys\.(stdout|stderr|__stdout__|__stderr__)\.write|traceback\.print_\w+"), "print"),
    (re.compile(r"os\.getenv|os\.environ\.get|getenv|environ\.get"), "environment"),
    (re.compile(r"(time\.)?(time|perf_counter|monotonic|process_time)(_ns)?|datetime\.(datetime\.)?now"), "clock"),
    (re.compile(r"torch\.cuda\.synchronize|cuda\.synchronize|torch\.cuda\.Event"), "wait"),
]
_STOPS = re.compile(r"breakpoint|(i?pdb|pudb|bdb|wdb|remote_pdb|sys)\.(set_trace|post_mortem|breakpointhook)|set_trace|debugpy\.breakpoint|"
                    r"debugpy\.wait_for_client|(IPython\.)?embed_kernel|IPython\.embed|code\.interact")
_LOGS = re.compile(r"(\w+\.)*_?log(ger|ging)?\.(debug|info|warning|error|critical|exception)")
_LOOKS_AT_DATA = re.compile(r"\.(item|tolist|cpu|numpy|mean|std|norm|sum|max|min|amax|amin)\(|\bis(nan|inf|finite)\(")
_BAD_NUMBERS = re.compile(r"\bis(nan|inf|finite)\(.*\)\s*\.\s*(any|all|sum)\(|\b(any|all)\(.*\bis(nan|inf|finite)\(")
_COUNTER = re.compile(r"(?i).*(call|count|cnt|counter|step|iter|dump|dbg|debug|pass|seen|hits?|idx|num|tick)s?\w*")
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@(?P<head>.*)")
_DEF = re.compile(r"(\s*)(?:async\s+)?def\s+(\w+)|(\s*)class\s+(\w+)")
_STRINGS = re.compile(r"""[rbfuRBFU]{0,2}("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
MOST_BYTES = 4_000_000  # of a file that is parsed


@dataclass(slots=True)
class _Hunk:
    """The new side of a part of a diff: (line number, text, whether it was added), and what its head names."""

    lines: list[tuple[int, str, bool]] = field(default_factory=list)
    head: str = ""


def look(diff_or_text: str, *, content: str | bytes | None = None) -> list[dict[str, Any]]:
    """[{line (of the new file), text (stripped), what (in words)}] of added lines that are debug code in a hot path; in order of the lines.

    `diff_or_text`: a unified diff, or a whole new file. `content`: the whole file as it is after the diff, if it is at hand.
    """
    if _is_diff(diff_or_text):
        if not _is_python(diff_or_text):
            return []
        hunks, removed = _hunks(diff_or_text)
        text = _decoded(content) if content is not None else _whole(diff_or_text, hunks)
    else:
        text, removed = diff_or_text, set()
        hunks = [_Hunk([(number, line, True) for number, line in enumerate(text.splitlines(), 1)])]
    added = {number: line for hunk in hunks for number, line, is_new in hunk.lines if is_new and line.strip() and line.strip() not in removed}
    found = _by_tree(text, added) if text is not None else None
    if found is None:
        found = [hit for hunk in hunks for hit in _by_lines(hunk, added)]
    told = {(line, what): {"line": line, "text": added[line].strip(), "what": what} for line, what in found if line in added}
    return [finding for _, finding in sorted(told.items())]


def _is_diff(text: str) -> bool:
    return re.search(r"^@@ -\d+(,\d+)? \+\d+(,\d+)? @@", text, re.MULTILINE) is not None


def _is_python(diff: str) -> bool:
    """By the names in the diff's head; a diff without names may be."""
    names = re.findall(r"^(?:\+\+\+|---) ([^\t\n]+)", diff, re.MULTILINE)
    real = [name.strip() for name in names if name.strip() != "/dev/null"]
    return not real or any(name.endswith((".py", ".pyi")) or "." not in name.rsplit("/", 1)[-1] for name in real)


def _decoded(content: str | bytes) -> str:
    return content.decode(errors="replace") if isinstance(content, bytes) else content


def _hunks(diff: str) -> tuple[list[_Hunk], set[str]]:
    """The hunks' new sides, and the removed lines (stripped): a line that only moved, or is indented anew, was not added."""
    hunks: list[_Hunk] = []
    removed: set[str] = set()
    number = 0
    for line in diff.split("\n"):
        if match := _HUNK.match(line):
            hunks.append(_Hunk(head=match["head"].strip()))
            number = int(match[1])
        elif not hunks:
            continue
        elif line.startswith("-"):
            removed.add(line[1:].strip())
        elif line.startswith(("+", " ")):
            hunks[-1].lines.append((number, line[1:].rstrip("\r"), line.startswith("+")))
            number += 1
    return hunks, removed


def _whole(diff: str, hunks: list[_Hunk]) -> str | None:
    """The new file, where the diff has all of it (it made the file)."""
    if len(hunks) == 1 and re.search(r"^@@ -0,0 \+1", diff, re.MULTILINE):
        return "\n".join(line for _, line, _ in hunks[0].lines)
    return None


# By the syntax tree


def _by_tree(text: str, added: dict[int, str]) -> list[tuple[int, str]] | None:
    """None if the file cannot be parsed."""
    if len(text) > MOST_BYTES:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of somebody else's invalid escapes
            tree = ast.parse(text)
        hot = _hot_functions(tree, tensors=_TENSORS.search(text) is not None)
        return [hit for hit in _hits(tree, hot) if hit[0] in added]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _hot_functions(tree: ast.Module, *, tensors: bool) -> set[ast.AST]:
    """Functions that run in a forward pass: by their name, and what these call of the same file (by name, as `f()` or `self.f()`)."""
    functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
    by_name: dict[str, list[_Function]] = {}
    for function in functions:
        by_name.setdefault(function.name, []).append(function)
    hot: set[ast.AST] = {function for function in functions
                         if _HOT.fullmatch(function.name) or (tensors and _HOT_WITH_TENSORS.fullmatch(function.name))}
    pending = list(hot)
    while pending:
        for node in ast.walk(pending.pop()):
            if not isinstance(node, ast.Call):
                continue
            name = _name(node.func)
            called = name.removeprefix("self.").removeprefix("cls.")
            for function in by_name.get(called, []) if called and "." not in called else []:
                if function not in hot:
                    hot.add(function)
                    pending.append(function)
    return hot


def _hits(tree: ast.Module, hot: set[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, what) of everything that looks like debug code."""
    pending: list[tuple[ast.AST, bool, frozenset[str]]] = [(tree, False, frozenset())]
    while pending:
        node, is_hot, shared = pending.pop()
        if isinstance(node, _Function):
            is_hot = is_hot or node in hot
            shared = frozenset(name for one in ast.walk(node) if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names)
        if isinstance(node, ast.Call):
            yield from _hits_of_call(node, is_hot)
        elif is_hot and (counted := _counted(node, shared)) is not None:
            yield node.lineno, _WHAT["counter"].format(counted)  # type: ignore[attr-defined]  # a statement has one
        elif is_hot and isinstance(node, ast.Subscript | ast.Compare):
            looked_in = [node.value] if isinstance(node, ast.Subscript) else node.comparators
            if any(_name(one) in ("os.environ", "environ") for one in looked_in):
                yield node.lineno, _WHAT["environment"].format("os.environ")
        pending += [(child, is_hot, shared) for child in ast.iter_child_nodes(node)]


def _hits_of_call(node: ast.Call, is_hot: bool) -> Iterator[tuple[int, str]]:
    name = _name(node.func)
    if _STOPS.fullmatch(name):
        yield node.lineno, _BREAKPOINT
        return
    if not is_hot:
        return
    for pattern, kind in _CALLS:
        if pattern.fullmatch(name):
            yield node.lineno, _WHAT[kind].format(name)
            return
    source = ast.unparse(node)
    if name in ("open", "io.open") and re.search(r", (mode=)?'[^']*[wax]", source):
        yield node.lineno, _WHAT["dump"].format(name)
    elif _LOGS.fullmatch(name) and _LOOKS_AT_DATA.search(source):
        yield node.lineno, _WHAT["print"].format(name)
    elif _BAD_NUMBERS.search(source) and isinstance(node.func, ast.Attribute) and node.func.attr in ("any", "all", "sum"):
        yield node.lineno, _WHAT["wait"].format("isnan" if "isnan" in source else "isfinite" if "isfinite" in source else "isinf")


def _counted(node: ast.AST, shared: frozenset[str]) -> str | None:
    """The name that a statement counts up by 1: a global, or an attribute that sounds like a counter."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and _is_one(node.value):
        target: ast.expr = node.target
    elif (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add)
          and _is_one(node.value.right) and ast.unparse(node.value.left) == ast.unparse(node.targets[0])):
        target = node.targets[0]
    else:
        return None
    inner = target.value if isinstance(target, ast.Subscript) else target
    name = _name(inner)
    if isinstance(inner, ast.Name):
        return name if name in shared or (isinstance(target, ast.Subscript) and name.isupper()) else None
    return name if name and _COUNTER.fullmatch(name.rsplit(".", 1)[-1]) else None


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def _name(node: ast.expr) -> str:
    """A dotted name; "" for what is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


# By the lines of a diff


def _by_lines(hunk: _Hunk, added: dict[int, str]) -> Iterator[tuple[int, str]]:
    lines = _code(hunk)
    sounds_hot = any(_WORDS.search(code) for _, code in lines)
    globals_ = (match[1].split(",") for _, code in lines if (match := re.match(r"\s*(?:global|nonlocal)\s+(.+)", code)))
    shared = {name.strip() for names in globals_ for name in names}
    for place, (number, code) in enumerate(lines):
        if number not in added or not code.strip():
            continue
        calls = re.findall(r"(?<![\w.])((?:\w+\.)*\w+)\s*\(", code)
        if any(_STOPS.fullmatch(name) for name in calls):
            yield number, _BREAKPOINT
            continue
        function = _enclosing(lines, place, hunk.head)
        is_hot = sounds_hot if function is None else bool(_HOT.fullmatch(function) or (sounds_hot and _HOT_WITH_TENSORS.fullmatch(function)))
        if is_hot and code[:1].isspace():
            yield from _hits_of_line(number, code, added[number], calls, shared)


def _hits_of_line(number: int, code: str, line: str, calls: list[str], shared: set[str]) -> Iterator[tuple[int, str]]:
    for name in calls:
        for pattern, kind in _CALLS:
            if pattern.fullmatch(name):
                yield number, _WHAT[kind].format(name)
        if _LOGS.fullmatch(name) and _LOOKS_AT_DATA.search(line):
            yield number, _WHAT["print"].format(name)
        if name == "open" and re.search(r"""open\(.*,\s*(mode\s*=\s*)?["'][^"']*[wax]""", line):
            yield number, _WHAT["dump"].format(name)
    if re.search(r"\bos\.environ\s*\[|\bin\s+os\.environ\b", code):
        yield number, _WHAT["environment"].format("os.environ")
    if _BAD_NUMBERS.search(code):
        yield number, _WHAT["wait"].format("isnan" if "isnan" in code else "isfinite" if "isfinite" in code else "isinf")
    counted = re.match(r"\s+([A-Za-z_][\w.]*)(?:\[[^\]]*\])?\s*(?:\+=\s*1|=\s*\1\s*\+\s*1)\s*\Z", code)
    if counted and (counted[1] in shared or ("." in counted[1] and _COUNTER.fullmatch(counted[1].rsplit(".", 1)[-1]))
                    or ("." not in counted[1] and counted[1].isupper())):
        yield number, _WHAT["counter"].format(counted[1])


def _code(hunk: _Hunk) -> list[tuple[int, str]]:
    """The lines without comments and without what strings hold, also of strings over several lines that begin in the hunk."""
    found = []
    inside: str | None = None
    for number, line, _ in hunk.lines:
        code = line
        if inside is not None:
            _, end, code = code.partition(inside)
            inside = None if end else inside
            code = code if end else ""
        code = re.sub(r"('''|\"\"\").*?\1", '""', code)
        if (start := re.search(r"'''|\"\"\"", code)) is not None:
            inside, code = start[0], code[:start.start()]
        code = _STRINGS.sub('""', code).split("#", 1)[0].rstrip()
        found.append((number, code))
    return found


def _enclosing(lines: list[tuple[int, str]], place: int, head: str) -> str | None:
    """The function that a line stands in, as far as the hunk, or its head as git writes it, tells; "" at the level of a class or module."""
    indent = len(lines[place][1]) - len(lines[place][1].lstrip())
    for _, code in reversed(lines[:place]):
        if not code.strip():
            continue
        here = len(code) - len(code.lstrip())
        if here < indent:
            if match := _DEF.match(code):
                return match[2] or ""
            indent = here
    if indent and (match := _DEF.match(head)):
        return match[2] or None  # a class: its method's head is not shown
    return None if indent else ""
