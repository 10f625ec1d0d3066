"""Arguments of `vllm serve`, looked at without vLLM: the model, and the values of the few flags that say what a service is.

vLLM's parser takes `--name value` and `--name=value`, `_` for `-` in names, and single dashes for a few short ones.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size", "-q": "--quantization",
         "-dpl": "--data-parallel-size-local", "-n": "--nnodes"}
# Flags without a value, as far as their names do not say it (--enable-..., --disable-..., --no-...)
_SWITCHES = {"--trust-remote-code", "--enforce-eager", "--headless", "--async-scheduling", "--skip-tokenizer-init", "--calculate-kv-scales",
             "--return-tokens-as-token-ids", "--use-tqdm-on-load", "--api-server-count-auto", "--disable-log-stats", "--language-model-only",
             "--skip-mm-profiling", "--data-parallel-hybrid-lb", "--data-parallel-external-lb", "--allow-credentials", "--ssl-cert-reqs-none"}
CONFIG_LIMIT = 256 * 1024  # bytes


def name_of(word: str) -> str:
    """The flag's usual name (`--tensor_parallel_size=8` is `--tensor-parallel-size`), or "" for a word that is no flag."""
    if not word.startswith("-") or re.fullmatch(r"-[0-9.]+", word):
        return ""
    head = word.partition("=")[0]
    if head.startswith("--"):
        return "--" + head[2:].replace("_", "-")
    short = re.match(r"-[a-z]+", head)
    return SHORT.get(short.group(), head) if short else head


def is_switch(name: str) -> bool:
    """Whether the flag takes no value."""
    return name in _SWITCHES or name.startswith(("--enable-", "--disable-", "--no-", "--use-"))


def values(flags: list[str], name: str) -> list[str] | None:
    """The values of the flag's last occurrence; [] if it has none there; None if the flag is not there."""
    found: list[str] | None = None
    for place, word in enumerate(flags):
        if name_of(word) != name:
            continue
        if "=" in word:
            found = [word.partition("=")[2]]
        elif (glued := re.fullmatch(r"-(?:tp|pp|dp)([0-9]+)", word)):
            found = [glued.group(1)]
        else:
            end = place + 1
            while end < len(flags) and not name_of(flags[end]):
                end += 1
            found = flags[place + 1:end]
    return found


def value(flags: list[str], name: str) -> str | None:
    """The first value of the flag's last occurrence; None if it has none."""
    found = values(flags, name)
    return found[0] if found else None


def number(flags: list[str], name: str) -> int | None:
    """The flag's value as a whole number; None if it has none, or another one."""
    text = value(flags, name)
    return int(text) if text and text.isdigit() else None


def without(flags: list[str], name: str) -> list[str]:
    """The flags without every occurrence of one, and of its values."""
    kept: list[str] = []
    dropping = False
    for word in flags:
        flag = name_of(word)
        if flag:
            dropping = flag == name and "=" not in word
        if flag != name and not (dropping and not flag):
            kept.append(word)
    return kept


def split_model(arguments: list[str], *, positional: bool) -> tuple[str, list[str]]:
    """The model and the other flags; the model is "" if none is named. `positional`: it may stand without --model, as for `vllm serve`."""
    if positional and arguments and not name_of(arguments[0]):
        return arguments[0], without(arguments[1:], "--model")
    if (named := value(arguments, "--model")) is not None:
        rest = without(arguments, "--model")
        extra = (values(arguments, "--model") or [])[1:]
        return named, [*rest, *extra]
    if positional:  # options first, the model behind them
        for place in range(len(arguments) - 1, -1, -1):
            before = name_of(arguments[place - 1]) if place else ""
            if not name_of(arguments[place]) and (not before or is_switch(before) or "=" in arguments[place - 1]):
                return arguments[place], arguments[:place] + arguments[place + 1:]
    return "", list(arguments)


def read_config(path: str) -> dict[str, str]:
    """Top-level `key: value` lines of the YAML that `--config` names, as vLLM's flags would be named; what is nested is left out.

    Raises OSError.
    """
    with Path(path).open("rb") as file:
        text = file.read(CONFIG_LIMIT).decode(errors="replace")
    found = {}
    for line in text.splitlines():
        if match := re.match(r"([A-Za-z][A-Za-z0-9_-]*):\s+([^#\s][^#]*?|\"[^\"]*\"|'[^']*')\s*(?:#.*)?\Z", line):
            found["--" + match.group(1).replace("_", "-")] = match.group(2).strip().strip("\"'")
    return found


def absolute(flags: list[str], cwd: str) -> tuple[list[str], list[str]]:
    """The flags with relative paths of files that are there made absolute, and which flags these were."""
    made, changed, flag = [], [], ""
    for word in flags:
        flag = name_of(word) or flag
        head, sign, text = word.partition("=") if name_of(word) else ("", "", word)
        path = os.path.normpath(Path(cwd, text)) if text else ""
        looks_like = "/" in text or re.search(r"\.(jinja2?|json|ya?ml|py|pem|txt)\Z", text)
        if flag and path and looks_like and not text.startswith(("/", "{", "[")) and "://" not in text and Path(path).is_file():
            made.append(f"{head}{sign}{path}")
            changed.append(flag)
        else:
            made.append(word)
    return made, changed
