"""At speed 1, with 512 output tokens, the practice box gives the published figures: 61, 277 and 1,239 tok/s at 1, 8 and 128."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.agent.config import NodePaths
from ops.benchmark import presets, sweep
from ops.practice import box
from ops.services.manager import manager_for
from tests.walks.practice_stack import free_port, wait_until


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_practice_box_paces_the_story_within_three_percent(short_path: Path) -> None:
    paths = NodePaths(short_path / "node").make()
    record = box.set_up(paths, short_path / "box", speed=1, port=free_port())
    manager = manager_for(record)
    manager.start()
    try:
        wait_until(lambda: manager.status().state == "healthy", 120, "the practice service answers")
        settings = presets.settings("custom", base_url=record.base_url, model=record.served_model_name, concurrencies=[1, 8, 128],
                                    requests=[4, 40, 512], max_tokens=512, warmup_per_slot=0, practice=True)
        result = sweep.run(settings, emit=lambda type, data: None)
    finally:
        manager.terminate()
        wait_until(lambda: not manager.pids(), 20, "the practice service ends")
    measured = {level["concurrency"]: level for level in result.levels}
    assert [level["errors"] for level in result.levels] == [0, 0, 0]
    for concurrency, expected in {1: 61, 8: 277, 128: 1239}.items():
        assert measured[concurrency]["output_tok_s"] == pytest.approx(expected, rel=0.03)
    assert measured[1]["e2e_mean_s"] == pytest.approx(8.4, rel=0.03)
    assert measured[128]["e2e_mean_s"] == pytest.approx(52.8, rel=0.05)
