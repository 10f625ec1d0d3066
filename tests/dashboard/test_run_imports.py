"""Files of other tools as rows: kept whole, once, marked as theirs; and rows as the documents that comparisons and exports read."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dashboard import run_documents, run_imports
from dashboard.models import AuditEntry, BenchmarkRun, ImportedFile
from ops.benchmark.formats import detect, exports
from ops.benchmark.formats.levels import blank
from ops.jobs.errors import BadInput
from tests.dashboard.pages import factory, reading

SAMPLES = Path(__file__).resolve().parents[1] / "fixtures/bench"
VLLM = "vllm_bench_serve.detailed.json"

pytestmark = pytest.mark.django_db


def sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


def test_an_imported_file_is_kept_whole_and_its_run_says_whose_it_is(operator: User) -> None:
    content = sample(VLLM)
    [run] = run_imports.store("C:\\results\\" + VLLM, content, operator)
    file = ImportedFile.objects.get()
    assert (file.name, file.tool, file.size_bytes, file.sha256) == (VLLM, "vllm bench serve", len(content), hashlib.sha256(content).hexdigest())
    assert gzip.decompress(bytes(file.content)) == content and file.imported_by == operator
    run.refresh_from_db()
    assert (run.origin, run.tool, run.model, run.state, run.service, run.stack) == ("imported", "vllm bench serve", "org/model-a", "done", None, "")
    assert (run.peak_tok_s, run.peak_at, run.errors, run.short) == (pytest.approx(131.7078), "4", 1, True)
    level = run.levels.get()
    assert (level.load, level.value, level.concurrency, level.finished, level.e2e_p50_s) == ("closed", 4, 4, 8, pytest.approx(0.714581))
    assert level.metrics["tpot_p50_ms"] == pytest.approx(19.94721739) and len(level.detail["ecdf"]["icl_ms"]) == 101
    assert AuditEntry.objects.get(action="benchmark.import").data["runs"] == [str(run.pk)]


def test_a_page_of_an_imported_run_leaves_its_file_where_it_is(operator: User) -> None:
    [run] = run_imports.store(VLLM, sample(VLLM), operator)
    client = Client()
    client.force_login(operator)
    with CaptureQueriesContext(connection) as queries:
        assert client.get(reverse("benchmark_run", args=[run.pk])).status_code == 200
    assert not [query["sql"] for query in queries if '."content"' in query["sql"]]


def test_the_same_file_twice_says_so_and_opens_the_first(operator: User, admin: User) -> None:
    first = run_imports.store("a.json", sample(VLLM), operator)
    again = run_imports.store("b.json", sample(VLLM), admin)
    assert [run.pk for run in again] == [run.pk for run in first] and BenchmarkRun.objects.count() == ImportedFile.objects.count() == 1
    assert first.new and not again.new and "already, as a.json" in again.words


def test_repeats_of_a_sweep_are_runs_of_one_group(operator: User) -> None:
    runs = run_imports.store("summary.json", sample("vllm_bench_sweep.summary.json"), operator)
    assert [run.group_index for run in runs] == [0, 1] and runs[0].group == runs[1].group is not None
    assert runs[0].sweep_key == runs[1].sweep_key and runs.words == "2 runs of vllm bench serve were imported"


def test_files_that_belong_together_are_one_import_whichever_comes_first(operator: User) -> None:
    lines, summary = sample("aiperf/profile_export.jsonl"), sample("aiperf/profile_export_aiperf.json")
    [run] = run_imports.store("profile_export_aiperf.json", summary, operator, beside={"profile_export.jsonl": lines})
    again = run_imports.store("profile_export.jsonl", lines, operator, beside={"profile_export_aiperf.json": summary})
    assert not again.new and again[0].pk == run.pk and run.tool == "aiperf"
    assert [one["run_id"] for one in detect.read("files.zip", gzip.decompress(bytes(ImportedFile.objects.get().content)))] == [str(run.pk)]


def test_what_cannot_be_read_leaves_nothing_behind(operator: User) -> None:
    with pytest.raises(BadInput, match="no result that is known"):
        run_imports.store("x.json", b'{"a": 1}', operator)
    with pytest.raises(PermissionDenied):
        run_imports.store(VLLM, sample(VLLM), AnonymousUser())  # type: ignore[arg-type]
    assert ImportedFile.objects.count() == BenchmarkRun.objects.count() == 0


def test_a_run_that_was_measured_here_comes_back_as_itself_and_elsewhere_as_imported(admin: User) -> None:
    story = factory.Story()
    story.node()
    story.service()
    [run] = story.measured(repeats=1)
    exported = exports.to_json(run_documents.document(run)).encode()
    here = run_imports.store("run.json", exported, admin)
    assert not here.new and here[0].pk == run.pk and ImportedFile.objects.count() == 0
    told = json.loads(exported)
    run.levels.all().delete()
    run.delete()
    [other] = run_imports.store("run.json", exported, admin)
    assert (str(other.pk), other.origin, other.tool, other.practice) == (told["run_id"], "imported", "roundhouse", told["practice"])
    again = run_documents.document(other)
    known = blank("closed", 1).keys() - {"detail"}
    assert [{name: one[name] for name in known} for one in again["levels"]] == [{name: one[name] for name in known} for one in told["levels"]]
    assert [one["detail"]["ecdf"] for one in again["levels"]] == [one["detail"]["ecdf"] for one in told["levels"]]
    assert again["fingerprint"] == told["fingerprint"] and again["settings"] == told["settings"]


def test_a_document_has_every_field_whatever_a_row_lacks(admin: User) -> None:
    story = factory.Story()
    story.node()
    story.service()
    [run] = story.measured(repeats=1)
    row = run.levels.all()[0]
    row.metrics = {"output_tok_s": 60.0}
    row.save()
    told = run_documents.document(BenchmarkRun.objects.get(pk=run.pk))
    assert set(blank("closed", 1)) <= set(told["levels"][0]) and told["levels"][0]["output_tok_s"] == 60.0
    assert told["levels"][0]["ttfc_p50_ms"] is None and told["schema"].startswith("roundhouse.sweep/")
    assert run_documents.document(run, detail=False)["levels"][-1]["detail"] == {}


EVERY = ("vllm_bench_sweep.summary.json", "guidellm_report.json", "aiperf/profile_export_aiperf.json", "sglang_bench_serving.jsonl",
         "inferencex_agg.json", "inference_perf/stage_0_lifecycle_metrics.json", VLLM)


def test_every_tools_run_can_be_looked_at_compared_and_given_out(admin: User) -> None:
    client = Client()
    client.force_login(admin)
    runs = [run_imports.store(name, sample(name), admin)[0] for name in EVERY]
    for run in runs:
        page = client.get(reverse("benchmark_run", args=[run.pk]))
        assert page.status_code == 200 and run.tool in page.content.decode(), run.tool
        for form in ("csv", "json", "md", "vllm"):
            assert client.get(reverse("run_export", args=[run.pk, form]), {"level": "closed:4"}).status_code == 200, (run.tool, form)
        assert client.get(reverse("run_original", args=[run.pk])).status_code == 200
    assert client.get(reverse("benchmarks")).status_code == 200
    sides = "&".join(f"side={run.pk}" for run in runs)
    page = client.get(f"{reverse('compare')}?{sides}")
    assert page.status_code == 200 and "vllm bench serve" in page.content.decode()


def test_counts_that_a_tool_does_not_report_are_not_zero_anywhere(operator: User, client: Client) -> None:
    [run] = run_imports.store("agg.json", sample("inferencex_agg.json"), operator)
    run.refresh_from_db()
    assert run.errors is None
    client.force_login(operator)
    row = reading.text(client.get("/benchmarks/"))
    page = reading.text(client.get(f"/benchmarks/{run.pk}/"))
    assert " 0.80 n/a " in row  # P99, then errors
    assert "Errors n/a not reported" in page
    [other] = run_imports.store("other.json", sample("inferencex_agg.json").replace(b"org/model-a", b"org/model-b"), operator)
    assert "errors not reported by every side" in reading.text(client.get(f"/benchmarks/compare/?side={run.pk}&side={other.pk}"))
