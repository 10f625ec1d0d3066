"""GPUs beside the load: energy over a window, what is not known, and the thread that looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from ops.benchmark.beside import BesideLevel, GpuSample, GpusAndServer, energy_j, total_power
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
    looks = [(at * S, (GpuSample(2, 100.0 * at, 10.0 * at, at, 2600.0 - 100 * at), GpuSample(3, 50.0, None, None))) for at in range(5)]
    level = BesideLevel(gpus=looks,
                        server=[Snapshot(at=0, running=0.0), Snapshot(at=4 * S, running=8.0)])
    told = level.of_window(1 * S, 3 * S)
    assert told["energy_j"] == pytest.approx(500.0) and told["power_mean_w"] == pytest.approx(250.0)
    assert told["gpus"] == [{"index": 2, "power_mean_w": pytest.approx(200.0), "utilization_mean": pytest.approx(20.0), "used_bytes_max": 4,
                              "clock_mean_mhz": pytest.approx(2400.0)},
                            {"index": 3, "power_mean_w": pytest.approx(50.0), "utilization_mean": None, "used_bytes_max": None,
                             "clock_mean_mhz": None}]
    assert told["server"]["running_max"] == 8.0
    assert level.latest_gpus() == [{"index": 2, "power_w": 400.0, "utilization": 40.0, "used_bytes": 4},
                                   {"index": 3, "power_w": 50.0, "utilization": None, "used_bytes": None}]
    assert BesideLevel().of_window(0, S) == {"energy_j": None, "power_mean_w": None, "gpus": None, "server": None}


def test_a_level_begins_with_the_look_made_just_before_it_and_each_read_adds_one() -> None:
    beside = GpusAndServer(lambda: [GpuSample(0, 10.0)])
    beside.start(time.perf_counter_ns())
    beside.read()
    beside.start(time.perf_counter_ns())  # the level
    assert len(beside.level.gpus) == 1
    told = beside.read()
    assert told == {"gpus": [{"index": 0, "power_w": 10.0, "utilization": None, "used_bytes": None}], "server": None, "power_w": 10.0,
                    "power_so_far_w": pytest.approx(10.0)}
    stamps = [at for at, _ in beside.level.gpus]
    assert len(stamps) == 2
    assert beside.summary(stamps[0], stamps[1])["power_mean_w"] == pytest.approx(10.0)
    beside.start(stamps[1] + 60 * S)
    assert not beside.level.gpus  # too long ago to tell of this one's beginning
    beside.close()


def test_gpus_that_do_not_answer_hold_nothing_up_and_are_not_asked_twice() -> None:
    answer, asked = threading.Event(), []

    def slow() -> Sequence[GpuSample]:
        asked.append(1)
        answer.wait(10)
        return [GpuSample(0, 10.0)]

    beside = GpusAndServer(slow, waits_s=0.01)
    assert beside.read()["power_w"] is None and beside.read()["power_w"] is None
    assert len(asked) == 1
    answer.set()
    beside.close()
    assert beside.level.power_w == 10.0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("beside")]


def test_gpus_that_cannot_be_read_are_told_and_stop_nothing() -> None:
    def broken() -> Sequence[GpuSample]:
        raise OpsError("GPU is lost")

    beside = GpusAndServer(broken)
    assert beside.read() == {"gpus": None, "server": None, "power_w": None, "power_so_far_w": None}
    assert "GPU is lost" in beside.level.problem and beside.summary(0, S)["energy_j"] is None
    beside.close()
