#!/usr/bin/env python
"""Django's command line for Roundhouse: `manage.py up`, `migrate`, `record_events`, `sign_in_link`, `check` and so on."""

from __future__ import annotations

import os
import sys

from ops import interpreter
from ops.jobs.errors import OpsError

INTERRUPTED = 130

def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    command = " ".join(["manage.py", *sys.argv[1:2]])
    interpreter.require(command)
    try:
        try:
            from django.core.management import execute_from_command_line
        except ModuleNotFoundError as error:
            sys.exit(interpreter.lacks(error, command))
        execute_from_command_line(sys.argv)
    except OpsError as error:  # expected: a state folder that cannot be used, a wrong address. One sentence, no traceback
        sys.exit(f"{error}")
    except KeyboardInterrupt:  # while a command is being imported; `up` takes Ctrl-C itself as soon as it has started something
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
