"""`manage.py demo_job [--reset]`: the practice box's main job from the terminal, while `make demo` runs elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    help = "Plans and redeploys the practice service and follows it. Exit code 0 if every step succeeded."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--reset", action="store_true", help="reset the practice box first, if it has been redeployed already")

    def handle(self, *args: Any, **options: Any) -> None:
        from dashboard.by_hand import by_hand
        from dashboard.launcher import node
        from dashboard.launcher.main_job import main_job
        from dashboard.launcher.terminal import Terminal
        from ops.agent.config import NodePaths

        record = next(node.practice_services(NodePaths.default()), None)
        if record is None:
            raise CommandError("There is no practice box in this state folder. `make demo` makes one; ROUNDHOUSE_STATE says which folder is meant.")
        try:
            succeeded = main_job(record, Terminal(), lambda: None, always=options["reset"], reset=by_hand("manage.py demo_job --reset"),
                                 ensure_service=lambda: None)  # the launcher that runs elsewhere has seen to it
        except KeyboardInterrupt:
            sys.exit("No longer followed; the job itself goes on.")
        sys.exit(0 if succeeded is not False else 1)
