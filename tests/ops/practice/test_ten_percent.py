"""The real engine against practice servers at speed 20, one of them ten percent slower. Does the verdict find it, and nothing else?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from ops.benchmark import presets, sweep
from ops.benchmark.comparing.sides import Side, compare
from ops.practice.model_folder import NAME

from .conftest import PracticeBox, Server, end, start_server

SPEED, SLOWER = 20.0, 0.9
SEEDS = 20
ORDER = ("A", "B", "C", "C", "B", "A", "A", "B", "C")  # A and C are the same server, B is the slower one; each as often early as late


@pytest.fixture(scope="module")
def servers(practice_box: PracticeBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    folder = tmp_path_factory.mktemp("ten-percent")
    fast, slow = (start_server(practice_box, folder, speed=speed) for speed in (SPEED, SPEED * SLOWER))
    try:
        for one in (fast, slow):
            one.wait_healthy()
        yield {"A": fast, "B": slow, "C": fast}
    finally:
        for one in (fast, slow):
            end(one)


def verdicts(servers: dict[str, Server], seed: int, level_seconds: float = 5.0) -> dict[str, str]:
    """Three interleaved runs a side of one level: what is said of the slower server (B) and of the same one again (C)."""
    sides: dict[str, list[dict[str, object]]] = {"A": [], "B": [], "C": []}
    for place, name in enumerate(ORDER):
        settings = presets.settings("custom", base_url=servers[name].url, model=NAME, concurrencies=[8], requests=2000, max_tokens=64,
                                    level_seconds=level_seconds, warmup_per_slot=1.0, seed=100 * seed + place)
        sides[name].append(sweep.run(settings, emit=lambda type, data: None).as_dict())
    (level,) = compare([Side(name, runs) for name, runs in sides.items()]).as_dict()["levels"]
    return {name: level["verdicts"][place]["output_tok_s"]["word"] for place, name in ((1, "B"), (2, "C"))}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_percent_slower_is_found_and_the_same_server_is_not_called_different(servers: dict[str, Server]) -> None:
    """20 seeds take 17 minutes: 180 runs of five seconds."""
    found = [verdicts(servers, seed) for seed in range(SEEDS)]
    slower, same = (Counter(one[name] for one in found) for name in ("B", "C"))
    assert slower["worse"] >= SEEDS - 1, slower
    assert same["better"] + same["worse"] <= 1, same
