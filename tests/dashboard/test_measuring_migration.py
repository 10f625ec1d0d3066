"""What the migration makes of runs that were stored before there were rates, groups and summaries."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from tests.dashboard.pages import run_data

BEFORE = [("dashboard", "0003_services")]
AT = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.mark.django_db(transaction=True)
def test_runs_from_before_get_their_places_and_summaries() -> None:
    try:
        MigrationExecutor(connection).migrate(BEFORE)
        old = MigrationExecutor(connection).loader.project_state(BEFORE).apps
        node = old.get_model("dashboard", "Node").objects.create(name="practice", practice=True)
        job = old.get_model("dashboard", "Job").objects.create(number=1, type="sweep", node=node, state="interrupted", finished_at=AT)
        run_model, level_model = old.get_model("dashboard", "BenchmarkRun"), old.get_model("dashboard", "BenchmarkLevel")
        good = run_model.objects.create(model="m", endpoint="e", preset="quick", state="done", started_at=AT, settings=run_data.settings(),
                                        fingerprint={"hash": "h" * 64}, service_name="kimi-k25", node_name="practice")
        level_model.objects.create(run=good, concurrency=1, state="done", output_tok_s=61.0, metrics={"tpot_p50_ms": 16.0})
        level_model.objects.create(run=good, concurrency=8, state="done", output_tok_s=277.0, e2e_p99_s=15.3, errors=2, metrics={"tpot_p50_ms": "?"})
        left = run_model.objects.create(model="m", endpoint="e", preset="quick", state="running", started_at=AT, job=job)
        level_model.objects.create(run=left, concurrency=1, state="running")
    finally:
        executor = MigrationExecutor(connection)
        executor.migrate(executor.loader.graph.leaf_nodes("dashboard"))
    from dashboard.models import BenchmarkRun

    run = BenchmarkRun.objects.get(pk=good.pk)
    assert [(level.load, level.value, level.tpot_p50_ms) for level in run.levels.all()] == [("closed", 1, 16.0), ("closed", 8, None)]
    assert (run.single_tok_s, run.peak_tok_s, run.peak_at, run.peak_p99_s, run.errors, run.levels_measured) == (61, 277, "8", 15.3, 2, 2)
    assert run.stack == "h" * 64
    assert "practice/kimi-k25" in run.search
    assert len(run.sweep_key) == 64
    ended = BenchmarkRun.objects.get(pk=left.pk)
    assert (ended.state, ended.finished_at) == ("failed", AT)
    assert ended.levels.get().state == "failed"
