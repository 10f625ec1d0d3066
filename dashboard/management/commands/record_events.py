"""`manage.py record_events`: the recorder. Runs until SIGTERM or Ctrl-C; one per console."""

from __future__ import annotations

import fcntl
import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from dashboard.recorder import Recorder
from ops.jobs.errors import BadInput


class Command(BaseCommand):
    help = "Turns what nodes say into rows, sends again what was lost, and watches over silent jobs."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        with (settings.STATE / "recorder.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BadInput("Another recorder runs with this state folder", hint="One is enough; stop the other one first") from error
            self.stdout.write("recorder: ready")
            self.stdout.flush()
            Recorder(stop).run()
