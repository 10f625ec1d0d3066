"""`manage.py up`: starts everything, says what it starts, stays until Ctrl-C."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    help = "Starts Redis, web, recorder and agent; with --practice the practice box too. Ctrl-C ends them all."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        from dashboard.launcher.start import DEFAULT_PORT

        parser.add_argument("--practice", action="store_true", help="this machine as practice node: simulated GPUs and model, one redeploy")
        parser.add_argument("--once", action="store_true", help="with --practice: end after the redeploy; exit code 0 if every step succeeded")
        parser.add_argument("--port", default=os.environ.get("ROUNDHOUSE_PORT") or str(DEFAULT_PORT), help="web address (default: %(default)s)")
        parser.add_argument("--no-job", action="store_true", help="with --practice: do not run the redeploy")

    def handle(self, *args: Any, **options: Any) -> None:
        from dashboard.launcher.start import Options, up

        if options["once"] and not options["practice"]:
            raise CommandError("--once goes with --practice")
        port = options["port"]
        if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
            raise CommandError(f"`{port}` is no port: a number from 1 to 65535")
        sys.exit(up(Options(practice=options["practice"], once=options["once"], port=int(port), job=not options["no_job"])))
