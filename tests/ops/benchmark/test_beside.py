"""GPUs beside the load: energy over a window, what is not known, and the thread that looks."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from ops.benchmark.beside import Beside, BesideLevel, GpuSample, energy_j, total_power
from ops.benchmark.server_metrics import Snapshot
from ops.jobs.errors import OpsError

S = 1_000_000_000


@pytest.mark.parametrize(("rows", "start", "end", "joules"), [
    ([(0, 100.0), (10 * S, 100.0)], 0, 10 * S, 1000.0),
    ([(0, 0.0), (10 * S, 100.0)], 0, 10 * S, 500.0),  # a straight line between looks
    ([(0, 0.0), (10 * S, 100.0)], 5 * S, 10 * S, 375.0),  # a window that begins between two
    ([(0, 100.0), (1 * S, 300.0), (2 * S, 300.0)], S // 2, 2 * S, 425.0),
    ([(5 * S, 200.0)], 4 * S, 6 * S, 400.0),  # one look stands for the little around it
    ([(0, 100.0), (11 * S, 100.0)], 0, 11 * S, None),  # nobody looked for too long
    ([(0, 100.0), (1 * S, None), (2 * S, 100.0)], 0, 2 * S, None),
    ([], 0, S, None), ([(0, 100.0)], S, S, None)], ids=range(9))
def test_energy_is_the_integral_of_power_over_the_window(rows: list[tuple[int, float | None]], start: int, end: int, joules: float | None) -> None:
    assert energy_j(rows, start, end) == (joules if joules is None else pytest.approx(joules))


def test_the_power_of_all_is_not_known_where_one_does_not_say() -> None:
    assert total_power([GpuSample(0, 100.0), GpuSample(1, 50.0)]) == 150.0
    assert total_power([GpuSample(0, 100.0), GpuSample(1)]) is None
    assert total_power([]) is None


def test_a_level_tells_each_gpu_and_the_whole_of_its_window() -> None:
    level = BesideLevel(gpus=[(at * S, (GpuSample(2, 100.0 * at, 10.0 * at, at), GpuSample(3, 50.0, None, None))) for at in range(5)],
                        server=[Snapshot(at=0, running=0.0), Snapshot(at=4 * S, running=8.0)])
    told = level.of_window(1 * S, 3 * S)
    assert told["energy_j"] == pytest.approx(500.0) and told["power_mean_w"] == pytest.approx(250.0)
    assert told["gpus"] == [{"index": 2, "power_mean_w": pytest.approx(200.0), "utilization_mean": pytest.approx(20.0), "used_bytes_max": 4},
                            {"index": 3, "power_mean_w": pytest.approx(50.0), "utilization_mean": None, "used_bytes_max": None}]
    assert told["server"]["running_max"] == 8.0
    assert level.latest_gpus() == [{"index": 2, "power_w": 400.0, "utilization": 40.0, "used_bytes": 4},
                                   {"index": 3, "power_w": 50.0, "utilization": None, "used_bytes": None}]
    whole = level.of_window(None, None)
    assert whole["energy_j"] == pytest.approx(1000.0)
    assert BesideLevel().of_window(None, None) == {"energy_j": None, "power_mean_w": None, "gpus": None, "server": None}


def test_the_thread_looks_at_both_ends_and_in_between_and_ends() -> None:
    beside = Beside(lambda: [GpuSample(0, 10.0)], every_s=0.02)
    beside.start()
    time.sleep(0.1)
    level = beside.stop()
    assert 3 <= len(level.gpus) <= 12
    assert level.gpus[0][0] < level.gpus[-1][0] and level.power_w == 10.0
    assert beside._thread is not None and not beside._thread.is_alive()


def test_gpus_that_cannot_be_read_are_told_and_stop_nothing() -> None:
    def broken() -> Sequence[GpuSample]:
        raise OpsError("GPU is lost")

    beside = Beside(broken, every_s=0.01)
    beside.start()
    level = beside.stop()
    assert "GPU is lost" in level.problem and level.latest_gpus() is None and level.of_window(0, S)["energy_j"] is None


def test_nothing_to_look_at_starts_no_thread() -> None:
    beside = Beside()
    beside.start()
    assert beside._thread is None and beside.stop().latest_server() is None
