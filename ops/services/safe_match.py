"""Regular expressions that a person wrote, held against text that a model wrote: in a process of its own, with limits of time and memory, as a few
characters of either are enough to keep Python's matcher busy for years."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from ops.jobs.errors import BadInput, OpsError

PATTERN_LENGTH = 500
TEXT_LENGTH = 100_000
LIMIT_S = 5.0
_PROGRAM = """
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
asked = json.load(sys.stdin)
found = re.search(asked["pattern"], asked["text"])
json.dump(None if found is None else found.group()[:200], sys.stdout)
"""


def check(pattern: str) -> None:
    """Raises BadInput for what is no regular expression, or a long one."""
    if not pattern or len(pattern) > PATTERN_LENGTH:
        raise BadInput(f"A regular expression here has 1 to {PATTERN_LENGTH} characters")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(f"`{pattern[:100]}` is no regular expression", why=str(error)) from error


def search(pattern: str, text: str) -> str | None:
    """What of the text the pattern finds (at most 200 characters), or None. Raises BadInput for a bad pattern, OpsError if it takes too long."""
    check(pattern)
    try:
        done = subprocess.run([sys.executable, "-I", "-S", "-c", _PROGRAM], input=json.dumps({"pattern": pattern, "text": text[:TEXT_LENGTH]}),
                              capture_output=True, text=True, timeout=LIMIT_S, check=False, env={"LC_ALL": "C.UTF-8"})
    except subprocess.TimeoutExpired as error:
        raise OpsError(f"The regular expression `{pattern[:100]}` was not done within {LIMIT_S:g} s",
                       hint="Write it without repetitions inside repetitions") from error
    if done.returncode != 0:
        raise OpsError(f"The regular expression `{pattern[:100]}` cannot be held against the answer", why=done.stderr.strip()[-300:],
                       hint="Write it simpler")
    found = json.loads(done.stdout)
    return found if isinstance(found, str) else None
