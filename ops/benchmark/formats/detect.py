"""What a file is, and its runs in our form: `read` is the one way in, for pages and the command line."""

from __future__ import annotations

import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from ops.benchmark.comparing.sides import SCHEMA
from ops.benchmark.formats import aiperf, guidellm, inference_perf, inferencex, roundhouse, sglang, vllm_bench, vllm_sweep
from ops.benchmark.formats.source import MAX_BYTES, Content, clean, content_of, shown_name
from ops.jobs.errors import BadInput

KNOWN = ("vllm bench serve", "vllm bench sweep serve", "guidellm", "aiperf", "inference-perf", "SGLang's bench_serving", "InferenceX", "Roundhouse")
FILES_MOST = 200  # in a zip
SECRET_NAMES = frozenset({"api_key", "apikey", "api-key", "authorization", "token", "hf_token", "access_token", "password"})
_OBJECTS = {"roundhouse": roundhouse.fits, "guidellm": guidellm.fits, "inference-perf": inference_perf.fits, "aiperf lines": aiperf.fits_line,
            "aiperf": aiperf.fits, "inferencex": inferencex.fits, "sglang": sglang.fits, "vllm sweep": vllm_sweep.fits, "vllm": vllm_bench.fits}
_READERS = {"roundhouse": roundhouse.read, "guidellm": guidellm.read, "aiperf lines": aiperf.read_lines, "inferencex": inferencex.read,
            "sglang": sglang.read, "vllm sweep": vllm_sweep.read, "vllm": vllm_bench.read}
_TOGETHER = {"inferencex": "inferencex", "sglang": "sglang", "vllm": "vllm", "vllm sweep": "vllm"}  # a file a point: together they are a sweep


def read(name: str, content: bytes, *, beside: Mapping[str, bytes] | None = None) -> list[dict[str, Any]]:
    """The runs of a file, each as `SweepResult.as_dict()` (docs/reference/formats.md). gzip is unpacked, of a zip all files are read.

    `beside`: other files by name: more points of the same sweep (`vllm bench serve`, SGLang, InferenceX), the other stages of inference-perf,
    aiperf's `profile_export.jsonl`. Raises BadInput, in words for the person who brought the file, for one that is too large, of no known form, or
    without anything that was measured.
    """
    files = _files(name, content)
    for other, found in (beside or {}).items():
        files |= _files(other, found)
    told: dict[str, tuple[Content, str]] = {}
    problems: list[BadInput] = []
    for one, raw in files.items():
        try:
            known = content_of(one, raw)
            told[one] = (known, _kind(one, known))
        except BadInput as error:
            problems.append(error)
    if not told:
        raise problems[0] if problems else BadInput(f"`{shown_name(name)}` holds no result", hint=f"Known: {', '.join(KNOWN)}")
    made = _runs(told, files)
    left_out = [f"A file was left out: {problem.what}" for problem in problems[:10]]
    secrets = sorted({place for known, _ in told.values() for value in known.values for place in _secrets(value)})[:3]
    left_out += [f"The file seems to hold a secret (`{clean(one, 80)}`): whoever may see this run can download the file as it came"
                 for one in secrets]
    for document in made:
        document["warnings"] += left_out
    return made


def _runs(told: Mapping[str, tuple[Content, str]], files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    together: dict[str, list[str]] = {}
    for name, (known, kind) in told.items():
        if kind in _TOGETHER:
            together.setdefault(_TOGETHER[kind], []).append(name)
        elif kind == "aiperf":
            if "phases/" in name and any(its == "aiperf" and "phases/" not in other for other, (_, its) in told.items()):
                continue  # a phase's own copy of what stands in the file of the whole run
            folder = name.rpartition("/")[0]
            made += aiperf.read(known, files[name], {other: files[other] for other, (_, its) in told.items()
                                                     if its == "aiperf lines" and other.rpartition("/")[0] == folder})
        elif kind in _READERS and not (kind == "aiperf lines" and any(its == "aiperf" for _, its in told.values())):
            made += _READERS[kind](known, files[name])
    for kind, names in together.items():
        several = Content([value for name in names for value in told[name][0].values], any(told[name][0].lines for name in names),
                          sum(told[name][0].bad_lines for name in names), max(told[name][0].first_bad for name in names))
        swept = kind == "vllm" and any(told[name][1] == "vllm sweep" for name in names)
        made += _READERS["vllm sweep" if swept else kind](several, b"".join(files[name] for name in sorted(names)))
    stages = [name for name, (_, kind) in told.items() if kind == "inference-perf"]
    if stages:
        first = next((name for name in stages if "summary_lifecycle_metrics" in name), stages[0])
        made += inference_perf.read(first, told[first][0], files[first], {name: files[name] for name in stages if name != first})
    return made


def _files(name: str, content: bytes) -> dict[str, bytes]:
    """The file by its name; of a zip, all that are in it. Raises BadInput for one that is damaged, or too large when unpacked."""
    if content.startswith(b"\x1f\x8b"):
        return {name.removesuffix(".gz"): _unzipped(name, content)}
    if not content.startswith(b"PK\x03\x04"):
        return {name: content}
    shown = shown_name(name)
    found: dict[str, bytes] = {}
    left = MAX_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
            if len(members) > FILES_MOST:
                raise BadInput(f"`{shown}` holds {len(members):,} files", hint=f"At most {FILES_MOST}: only the results")
            for one in members:
                with archive.open(one) as file:
                    data = file.read(left + 1)
                if data.startswith(b"\x1f\x8b"):
                    data = _unzipped(one.filename, data)
                left -= len(data)  # unpacked twice, where it was packed twice
                if left < 0:
                    raise BadInput(f"`{shown}` is larger than {MAX_BYTES >> 20} MiB when unpacked")
                found[one.filename] = data
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, NotImplementedError, OSError,  # encrypted: RuntimeError
            ValueError) as error:
        raise BadInput(f"`{shown}` cannot be unpacked", why=str(error)[:200]) from error
    return found


def _unzipped(name: str, content: bytes) -> bytes:
    machine = zlib.decompressobj(wbits=31)
    try:
        found = machine.decompress(content, MAX_BYTES + 1)
    except zlib.error as error:
        raise BadInput(f"`{shown_name(name)}` is a damaged gzip file", why=str(error)) from error
    if len(found) > MAX_BYTES:
        raise BadInput(f"`{shown_name(name)}` is larger than {MAX_BYTES >> 20} MiB when unpacked")
    if not machine.eof:
        raise BadInput(f"`{shown_name(name)}` is a gzip file that was cut")
    return found


def _kind(name: str, told: Content) -> str:
    """The first form that any object of the file has. Raises BadInput for none."""
    objects = told.objects
    kind = next((kind for kind, fits in _OBJECTS.items() if any(map(fits, objects))), "")
    if kind:
        return kind
    raise _unknown(name, told)


def _unknown(name: str, told: Content) -> BadInput:
    first = next(iter(told.objects), {})
    shown = shown_name(name)
    if inference_perf.fits_requests(told):
        return BadInput(f"`{shown}` holds single requests of inference-perf, without their load",
                        hint="Give stage_0_lifecycle_metrics.json and the others")
    if isinstance(first.get("benchmarks"), list):
        return BadInput(f"`{shown}` has `benchmarks`, but is no report of guidellm", why="Its metadata name no `guidellm_version`")
    if first.get("error_type") and "run_number" in first:
        return BadInput(f"`{shown}` tells of a failed run of `vllm bench sweep`, and has no numbers")
    if "elapsed_time" in first and "requests_per_second" in first:
        return BadInput(f"`{shown}` is a result of `vllm bench throughput`", why="It measures a batch without a server: no latencies, no concurrency")
    if "avg_latency" in first and "latencies" in first:
        return BadInput(f"`{shown}` is a result of `vllm bench latency`", why="It measures one batch without a server")
    if first.get("schema") == SCHEMA:
        return BadInput(f"`{shown}` is a comparison, without the runs that were compared", hint="Give the runs: `bench --against --json` prints both")
    begins = ", ".join(f"`{clean(key, 40)}`" for key in list(first)[:6])
    return BadInput(f"`{shown}` is no result that is known here", why=f"It begins with {begins}" if begins else "There is no object in it",
                    hint=f"Known: {', '.join(KNOWN)}")


def _secrets(value: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    """Places whose names say that a secret stands there. Lists of requests are not looked through."""
    if isinstance(value, dict) and depth < 8:
        for key, inner in value.items():
            place = f"{path}.{key}" if path else key
            if key.lower() in SECRET_NAMES and isinstance(inner, str) and inner.strip() and set(inner) != {"*"}:
                yield place[:120]
            elif isinstance(inner, dict):
                yield from _secrets(inner, place, depth + 1)
