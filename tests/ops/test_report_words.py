"""The parts of a report that say what was installed and what was deleted."""

from __future__ import annotations

from typing import Any

from ops import report
from ops.jobs.events import EventType


def lines(changed: list[dict[str, Any]], patched: list[dict[str, Any]]) -> str:
    part = {"changed": changed, "same_count": 148, "files_checked": 34_880, "patched": patched, "cache_leaks": [], "mode": "full"}
    whole = {"kind": "redeploy", "in_place": True, "release": {"before": "adopted", "after": "new"}, "reinstall": part}
    return "\n".join(report._reinstall_lines(whole))


def test_a_redeploy_of_the_same_versions_has_no_empty_table_and_one_file_is_one() -> None:
    told = lines([], [{"path": "lib/vllm/config.py"}])
    assert "|" not in told and "0 changed, 148 stayed. 34,880 files match RECORD." in told
    assert "1 patched file of the old release is on the patch shelf: `config.py`." in told


def test_a_change_is_a_row_of_the_table() -> None:
    told = lines([{"name": "vllm", "old": "0.16.0", "new": None, "why": "asked for"}], [{"path": "a"}, {"path": "b"}])
    assert "| package | before | after | why |\n| --- | --- | --- | --- |\n| vllm | 0.16.0 | removed | asked for |\n\n1 changed" in told
    assert "2 patched files of the old release are on the patch shelf" in told


def test_a_level_stands_in_the_report_with_its_errors_and_what_its_numbers_are_not_good_for() -> None:
    level = {"load": "closed", "value": 8, "concurrency": 8, "output_tok_s": 1239.4, "e2e_mean_s": 8.42, "e2e_p50_s": 8.4, "e2e_p99_s": None,
             "ttft_p50_ms": 51.0, "finished": 78, "errors": 2, "marks": ["short", "errors"]}
    told = report._benchmark_lines({"benchmark": {"levels": [level], "max_tokens": 64, "preset": "quick", "short": True, "baseline": {
        "label": "r13", "release": "0.15.1", "words": ["C=8: within the noise floor"]}}})
    assert "| 8 | 1,239 | 8.4 s | 8.4 s | n/a | 51 ms | 78 | 2 | short, errors |" in told
    assert told[-3:] == ["Against the baseline r13 (release `0.15.1`), not interleaved:", "", "- C=8: within the noise floor"]


def test_a_purge_stands_in_the_report_by_kind_with_why_something_stayed_and_its_manifest() -> None:
    kind = {"kind": "debug-tensor", "title": "Debug | tensors", "one": "x", "chosen": 3, "deleted": 2, "kept": 1, "freed_bytes": 65_000_000}
    said = {
        EventType.PURGE_RESULT: {
            "deleted": {"count": 2, "files": 2, "size_bytes": 65_000_000}, "kept": {"count": 1}, "freed_bytes": 65_000_000, "kinds": [kind],
            "why_kept": [{"why": "Open in python3", "count": 1, "example": "/tmp/`a`.pt"}], "cancelled": False,
            "manifest": {"path": "/m/1.jsonl", "entries": 3, "told": 3}},
        EventType.PURGE_ENTRIES: [{"path": "/tmp/`a`.pt", "size_bytes": 4096, "result": "kept", "why": "Open in python3"},
                                  {"path": "/tmp/b|c.pt", "size_bytes": 65_000_000, "result": "deleted", "why": ""}]}
    part = report._cleanup(said)
    assert part is not None and (part["deleted_count"], part["kept_count"], part["more"]) == (2, 1, 1) and report._cleanup({}) is None
    told = report._cleanup_lines({"cleanup": part, "pruned": ["old"]})
    assert told[0] == "2 files deleted, 65 MB freed." and "| Debug \\| tensors | 3 | 2 | 1 | 65.0 MB |" in told
    assert "- Kept 1: Open in python3, such as `/tmp/'a'.pt`" in told and "| `/tmp/b\\|c.pt` | 65.00 MB | deleted |" in told
    assert told[-3:] == ["The manifest has 1 more.", "", "Old releases removed: `old`."]


def test_of_a_large_manifest_the_report_keeps_the_first_lines() -> None:
    facts: dict[str, Any] = {}
    collector = report.Collector(lambda type, data: None, facts)
    for number in range(3):
        collector(EventType.PURGE_ENTRIES, {"scan": "s", "entries": [{"number": 60 * number + n} for n in range(60)]})
    assert [line["number"] for line in facts["said"][EventType.PURGE_ENTRIES]] == list(range(report.MANIFEST_SHOWN))
