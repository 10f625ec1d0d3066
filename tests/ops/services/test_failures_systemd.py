"""Ends of units: each one of a restart loop is told, with the lines and the exit code of its own run. Against the double; in a sandbox systemd."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ops.services import failures, state
from ops.services.failures import Watch
from tests.ops.services.conftest import wait_for
from tests.ops.services.systemd_box import SystemdBox, box

__all__ = ["box"]


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch(settle_s=0.1).start()
    yield made
    made.stop()


@pytest.mark.slow  # a real systemd does it in the fast run (test_systemd.py)
def test_each_run_of_a_restart_loop_is_told_with_its_own_lines_and_a_stop_is_not(box: SystemdBox, watch: Watch) -> None:
    count = box.folder / "count"
    box.write("rh-loops", f'echo x >> {count}; echo "Traceback (most recent call last):"; n=$(wc -l < {count}); '
                          'echo "ValueError: no weights in shard $n"; sleep 0.4; exit 3', "Restart=always", "RestartSec=0.2",
              unit="StartLimitIntervalSec=0")
    manager = box.manager("rh-loops")
    manager.start()

    def look() -> bool:
        time.sleep(0.5)  # longer than a pause between two tries: some ends are seen, others only leave another run
        watch.look(manager.record, manager.status(), manager)
        return len(failures.kept(state.read(manager.record))) >= 3

    wait_for(look, 30)
    manager.terminate()
    # A stop that comes between two tries leaves the last one's failure standing
    box.until(manager, lambda status: status.state in ("stopped", "failed") and not status.restarting)
    watch.look(manager.record, manager.status(), manager)
    wait_for(watch.idle, 60)
    found = failures.kept(state.read(manager.record))
    watch.look(manager.record, manager.status(), manager)
    assert failures.kept(state.read(manager.record)) == found
    known = [one for one in found if one["invocation"]]  # on a busy machine two may end between two looks: then only one is told with its lines
    assert known and [one["exit_code"] for one in known] == [3] * len(known) and len({one["invocation"] for one in known}) == len(known)
    assert [one["diagnosis"]["text"][:31] for one in known] == ["ValueError: no weights in shard"] * len(known)
    ended = [one["ended_at"] for one in known]
    assert ended == sorted(ended) and all(at is not None and at <= one["at"] for at, one in zip(ended, known, strict=True))
    assert all(one["problem"] for one in found if not one["invocation"])
