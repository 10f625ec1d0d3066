"""`manage.py sign_in_link [--user NAME]`: prints a one-time sign-in link; at the first call it makes the first admin."""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from dashboard import accounts
from dashboard.launcher.earlier import running_address
from ops.agent.config import REPOSITORY
from ops.jobs.errors import BadInput


class Command(BaseCommand):
    help = "Prints a one-time sign-in link (15 minutes). Makes the first admin if there is no user yet."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--user", default="admin", help="whose link (default: admin)")
        parser.add_argument("--base-url", help="the console's address as people reach it (default: that of the console that runs)")

    def handle(self, *args: Any, **options: Any) -> None:
        if accounts.get_user_model()._meta.db_table not in connection.introspection.table_names():
            practice = REPOSITORY / "var" / "practice"
            elsewhere = practice != settings.STATE and (practice / "db.sqlite3").exists()
            raise BadInput(f"No console has run with the state folder `{settings.STATE}` yet",
                           hint="The practice box has a folder of its own: ROUNDHOUSE_STATE=var/practice before this command" if elsewhere
                           else "`make up` or `make demo` starts one, and prints a link")
        running = running_address(settings.STATE)
        if running is None and not options["base_url"]:
            self.stderr.write(f"No console runs with the state folder `{settings.STATE}` now: the link works once one is started.")
        address = options["base_url"] or running or f"http://127.0.0.1:{os.environ.get('ROUNDHOUSE_PORT') or 8470}"
        token = accounts.make_token(accounts.first_admin(options["user"]))
        self.stdout.write(address.rstrip("/") + accounts.link_path(token))
