"""`manage.py sign_in_link [--user NAME]`: prints a one-time sign-in link; at the first call it makes the first admin."""

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from dashboard import accounts


class Command(BaseCommand):
    help = "Prints a one-time sign-in link (15 minutes). Makes the first admin if there is no user yet."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--user", default="admin", help="whose link (default: admin)")
        parser.add_argument("--base-url", default=f"http://127.0.0.1:{os.environ.get('ROUNDHOUSE_PORT') or 8470}",
                            help="the console's address as people reach it")

    def handle(self, *args: Any, **options: Any) -> None:
        token = accounts.make_token(accounts.first_admin(options["user"]))
        self.stdout.write(options["base_url"].rstrip("/") + accounts.link_path(token))
