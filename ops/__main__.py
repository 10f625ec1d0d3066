"""`python -m ops`."""

from __future__ import annotations

import sys

from ops import interpreter

COMMAND = f"-m ops {sys.argv[1] if len(sys.argv) > 1 else '--help'}"

if __name__ == "__main__":
    interpreter.require(COMMAND)
    try:
        from ops.command_line.main import main

        sys.exit(main())
    except ModuleNotFoundError as error:
        sys.exit(interpreter.lacks(error, COMMAND))
    except KeyboardInterrupt:  # before there was anything to interrupt
        sys.exit(130)
