"""Files that were made to hurt, or got hurt on their way: a word for the person, never a crash, and no number that is none."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from ops.benchmark.formats import detect, exports, source
from ops.jobs.errors import BadInput
from tests.ops.benchmark.formats import samples
from tests.ops.benchmark.formats.samples import AIPERF, AIPERF_LINES, GUIDELLM, INFERENCE_PERF, INFERENCEX, SGLANG, SWEEP, VLLM

ALL = (VLLM, SWEEP, GUIDELLM, AIPERF, AIPERF_LINES, INFERENCE_PERF, SGLANG, INFERENCEX)
STRANGE: tuple[Any, ...] = (None, True, -1, 0, 1e308, -1e308, math.nan, math.inf, 10**30, "", "x" * 5000, "\x00\u202e=cmd()", "12", [], {}, [None],
                            {"a": 1}, [[1, "2"]], 0.1, [1e400])


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def harmless(documents: list[dict[str, Any]]) -> None:
    """What every page may rely on, whatever the file was."""
    for document in documents:
        for path, number in numbers(document["levels"]):
            assert math.isfinite(number) and number >= 0, path
        assert document["levels"] and isinstance(document["model"], str) and len(document["warnings"]) <= 60
        text = exports.to_json(document)
        assert "\\u202e" not in text and "\u202e" not in text and "\\u0000" not in text, document["warnings"]
        exports.to_csv(document)
        exports.to_markdown(document)
        for level in document["levels"]:
            json.dumps(exports.to_vllm_bench(document, level), allow_nan=False)


def changed(value: Any, chance: random.Random) -> Any:
    """The value with one strange thing somewhere in it."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        return {**{key: one for key, one in value.items() if key != name or chance.random() < 0.9}, name: changed(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], changed(value[at], chance), *value[at + 1:]]
    return chance.choice(STRANGE)


@pytest.mark.parametrize("name", ALL)
def test_a_strange_value_anywhere_is_never_a_crash(name: str) -> None:
    chance = random.Random(name)
    whole = samples.value(name)
    read = 0
    for _ in range(60):
        told = whole
        for _ in range(chance.randrange(1, 4)):
            told = changed(told, chance)
        try:
            harmless(samples.read(told, name.rsplit("/", 1)[-1]))
            read += 1
        except BadInput as error:
            assert error.what and "Traceback" not in str(error)
    assert read > 10, "most files with a strange field are still read"


@pytest.mark.parametrize("name", ALL)
def test_a_file_that_was_cut_is_said_to_be_none(name: str) -> None:
    content = samples.raw(name)
    chance = random.Random(name)
    for at in [1, len(content) // 2, *(chance.randrange(len(content)) for _ in range(8))]:
        try:
            harmless(detect.read(name, content[:at]))
        except BadInput as error:
            assert error.what


def bomb() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(3):
            archive.writestr(f"{n}.json", b" " * (30 << 20))
    return packed.getvalue()


@pytest.mark.parametrize(("content", "word"), [
    (b"", "is empty"), (b" \n\t ", "is empty"), (b"\xff\xfe{}", "no UTF-8 text"), (b"{", "no JSON"), (b"hello", "no JSON"), (b"[]", "no result"),
    (b"null", "no result"), (b"3", "no result"), (b'"x"', "no result"), (b'{"a": 1}', "It begins with `a`"), (b"[" * 100_000, "nested too deep"),
    (b"[" * 80 + b"]" * 80, "more than 64 deep"), (b'{"a":' * 3000 + b"1" + b"}" * 3000, "nested"), (b'{"benchmarks": []}', "no report of guidellm"),
    (b'{"elapsed_time": 1, "requests_per_second": 2}', "vllm bench throughput"), (b'{"avg_latency": 1, "latencies": [1]}', "vllm bench latency"),
    (b'{"run_number": 0, "error_type": "X"}', "failed run"), (b"\x1f\x8bxxxx", "damaged gzip"), (gzip.compress(b"{}" * 99)[:-20], "cut"),
    (gzip.compress(b" " * (65 << 20)), "when unpacked"), (b"PK\x03\x04xx", "cannot be unpacked"),
    (b'{"schema": "roundhouse.sweep/9", "levels": [{}]}', "Update this console"), (b'{"schema": "roundhouse.sweep/2"}', "no level"),
    (b'{"schema": "roundhouse.sweep/2", "levels": [{}]}', "does not say its load")], ids=range(24))
def test_what_is_no_result_is_refused_in_words(content: bytes, word: str) -> None:
    with pytest.raises(BadInput) as raised:
        detect.read("../../x\u202e.json", content)
    assert word in str(raised.value) and "\u202e" not in str(raised.value) and ".." not in str(raised.value)


def test_a_zip_cannot_fill_the_memory() -> None:
    with pytest.raises(BadInput, match="64 MiB when unpacked"):
        detect.read("x.zip", bomb())


def test_a_zip_of_packed_files_cannot_fill_the_memory_either() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for n in range(3):
            archive.writestr(f"{n}.json.gz", gzip.compress(b" " * (30 << 20), 1))
    with pytest.raises(BadInput, match="64 MiB when unpacked"):
        detect.read("x.zip", packed.getvalue())


def test_facts_of_a_run_hold_nothing_that_no_database_can_hold() -> None:
    whole = json.loads(exports.to_json(samples.read(samples.raw(VLLM))[0]))
    text = json.dumps(whole | {"settings": {"a\ud800": ["b\x00", "@"], "c": 10**30, "d": 5, "e": "two\nlines"}}).replace('"@"', "1e999")
    [document] = detect.read("x.json", text.encode())
    assert document["settings"] == {"a\ufffd": ["b\ufffd", None], "c": None, "d": 5, "e": "two\nlines"}
    assert source.number(1e-320) == 0.0


def test_too_many_measurements_are_refused() -> None:
    one = samples.value(SWEEP)[0]
    with pytest.raises(BadInput, match="500 measurements"):
        samples.read([one] * 500)
    with pytest.raises(BadInput, match="has 70 levels"):
        samples.read([one | {"max_concurrency": c} for c in range(1, 71)])


def test_notes_are_bounded_and_each_is_said_once() -> None:
    notes = source.Notes()
    for n in range(100):
        notes.add(f"note {n}")
        notes.add(f"note {n}")
    assert len(notes.told()) == source.MAX_NOTES + 1 and notes.told()[-1] == "60 more notes of this kind"


def test_strange_fields_are_named() -> None:
    told = samples.value(VLLM) | {"completed": "many", "duration": -1, "median_ttft_ms": [3], "date": "yesterday", "errors": "none"}
    words = samples.read(told)[0]["warnings"]
    for word in ('`completed` is `"many"`, not a count: not imported', "`duration` is `-1`, not a number: not imported",
                 "`median_ttft_ms` is a list, not a number: not imported", "`errors` is `\"none\"`, not a list: not imported"):
        assert word in words
    assert any(word.startswith("`date` is `\"yesterday\"`, not a time") for word in words)


def test_a_run_of_our_own_schema_is_believed_no_more_than_others() -> None:
    chance = random.Random(5)
    whole = json.loads(exports.to_json(samples.read(samples.raw(VLLM))[0]))
    for _ in range(150):
        told = whole
        for _ in range(chance.randrange(1, 4)):
            told = changed(told, chance)
        try:
            for document in samples.read(told):
                harmless([document])
        except BadInput as error:
            assert error.what
    strange = {"marks": "short", "server": [1], "gpus": [{"index": 0, "power_mean_w": "hot"}], "detail": {"ecdf": {"ttft_ms": [1, 2]}}}
    [document] = samples.read(whole | {"origin": "made up", "settings": {"x": "y" * 300_000}, "practice": "no",
                                       "levels": [whole["levels"][0] | strange]})
    level = document["levels"][0]
    assert (document["origin"], document["settings"], document["practice"]) == ("imported", {}, False)
    assert (level["marks"], level["server"], level["gpus"]) == ([], None, [{"index": 0.0}]) and level["detail"]["ecdf"]["ttft_ms"] is None
