"""What a stamped response says: server-sent events cut out of its bytes, and the chat completion that they tell.

Runs after the stream has ended. `read_in_steps` is a generator that stops every few events, so that the load engine can serve its
sockets in between. Times: a chunk's time is the stamp of the segment that brought the last byte of its event.
"""

from __future__ import annotations

import json
import math
import re
import time
from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from ops.benchmark.request_record import CONTENT, REASONING, TOOL, ErrorKind, RequestRecord
from ops.benchmark.stamped_connection import RawResponse, chunk_size

EVENTS_PER_STEP = 100  # about 0.2 ms of work

# A delta with exactly one text and nothing else to learn, as most events are; anything else goes through the JSON parser. A quote inside a
# JSON string is escaped, so this text cannot stand inside a string.
_PLAIN_DELTA = re.compile(rb'"delta":\s?\{"(content|reasoning|reasoning_content)":\s?"(?:[^"\\]++|\\.)++"\}')
_NOT_FINISHED = re.compile(rb'"finish_reason":\s?null')


@dataclass(slots=True)
class ChatStream:
    """A chat completion read out of its events. `times` and `kinds` per chunk; texts only if they were asked for."""

    times: array[int] = field(default_factory=lambda: array("q"))
    kinds: list[str] = field(default_factory=list)
    chunk_tokens: list[int] | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    events: int = 0
    done: bool = False
    error: str = ""
    broken_event: str = ""
    content: str = ""
    reasoning: str = ""
    tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def into(self, record: RequestRecord) -> None:
        """Moves what was measured into the request's record."""
        record.times, record.kinds, record.chunk_tokens = self.times, "".join(self.kinds), self.chunk_tokens
        record.output_tokens, record.reasoning_tokens, record.prompt_tokens = self.output_tokens, self.reasoning_tokens, self.prompt_tokens
        record.finish_reason = self.finish_reason


def body_spans(blob: bytes, raw: RawResponse) -> Iterator[tuple[int, int]]:
    """Where the body's bytes lie in `blob` (all segments joined): (start, end) of each HTTP chunk's data, or the one rest."""
    if raw.framing != "chunked":
        if raw.framing:
            yield raw.body_start, len(blob)
        return
    pos, total = raw.body_start, len(blob)
    while pos < total:
        line_end = blob.find(b"\r\n", pos)
        if line_end < 0:
            return
        try:
            size = chunk_size(blob[pos:line_end])
        except ValueError:
            return  # the connection has already failed for it, or it was cut inside this line
        if size == 0:
            return
        start = line_end + 2
        yield start, min(start + size, total)
        pos = start + size + 2


def body(raw: RawResponse) -> bytes:
    """The response's body, as far as it arrived."""
    blob = b"".join(raw.pieces)
    return b"".join(blob[a:b] for a, b in body_spans(blob, raw))


def events(raw: RawResponse) -> Iterator[tuple[int, bytes]]:
    """(stamp, data) of every event that has data. Comments and other fields are passed over; several `data:` lines join with a newline."""
    blob = b"".join(raw.pieces)
    spans = list(body_spans(blob, raw))
    if any(blob.find(b"\r", a, b) >= 0 for a, b in spans):
        yield from _events_any_newline(blob, spans, raw)
        return
    ends, at = [], 0
    for piece in raw.pieces:
        at += len(piece)
        ends.append(at)
    stamps, segment, carry = raw.stamps, 0, b""
    for a, b in spans:
        piece = carry + blob[a:b] if carry else blob[a:b]
        shift, pos = a - len(carry), 0  # an event always ends in this span, where piece[i] is blob[shift + i]
        while (end := piece.find(b"\n\n", pos)) >= 0:
            last = shift + end + 1
            while ends[segment] <= last:
                segment += 1
            one_line = piece.startswith(b"data:", pos) and piece.find(b"\n", pos, end) < 0
            data = piece[pos + 5:end] if one_line else _data_of(piece[pos:end].split(b"\n"))
            if data is not None:
                yield stamps[segment], data
            pos = end + 2
        carry = piece[pos:]
    if carry and raw.complete and (data := _data_of(carry.split(b"\n"))) is not None:
        yield stamps[-1], data  # servers that leave out the last blank line


def _events_any_newline(blob: bytes, spans: list[tuple[int, int]], raw: RawResponse) -> Iterator[tuple[int, bytes]]:
    """As `events`, for streams with CR LF or CR as newline: slower, and rare."""
    text = b"".join(blob[a:b] for a, b in spans)
    span_starts, total = [], 0
    for a, b in spans:
        span_starts.append(total)
        total += b - a
    ends, at = [], 0
    for piece in raw.pieces:
        at += len(piece)
        ends.append(at)

    def stamp(offset: int) -> int:
        span = bisect_right(span_starts, offset) - 1
        return raw.stamps[bisect_right(ends, spans[span][0] + offset - span_starts[span])]

    lines: list[bytes] = []
    start = 0
    for newline in re.finditer(rb"\r\n|\n|\r", text):
        line, start = text[start:newline.start()], newline.end()
        if line:
            lines.append(line)
            continue
        if (data := _data_of(lines)) is not None:
            yield stamp(newline.end() - 1), data
        lines = []
    if start < len(text):
        lines.append(text[start:])
    if raw.complete and (data := _data_of(lines)) is not None:
        yield raw.stamps[-1], data


def _data_of(lines: list[bytes]) -> bytes | None:
    """The event's data, or None if it has no `data` line."""
    found = [line[6:] if line.startswith(b"data: ") else line[5:] for line in lines if line.startswith(b"data:")]
    return b"\n".join(found) if found else None


def read_in_steps(raw: RawResponse, *, keep_text: bool = False) -> Generator[None, None, ChatStream]:
    """Reads the whole stream; gives control back every `EVENTS_PER_STEP` events; returns the ChatStream."""
    stream = ChatStream()
    times, kinds = stream.times, stream.kinds
    per_chunk: list[int] = []
    for stamp, data in events(raw):
        stream.events += 1
        if stream.events % EVENTS_PER_STEP == 0:
            yield
        plain = None if keep_text or b'"usage"' in data or b'"error"' in data else _PLAIN_DELTA.search(data)
        if plain and _NOT_FINISHED.search(data):
            times.append(stamp)
            kinds.append(CONTENT if plain[1] == b"content" else REASONING)
            continue
        if data.strip() == b"[DONE]":
            stream.done = True
            break
        _read_event(stream, stamp, data, per_chunk, keep_text)
    if per_chunk and len(per_chunk) == len(times):
        stream.chunk_tokens = [now - before for before, now in zip([0, *per_chunk], per_chunk, strict=False)]
    return stream


def _read_event(stream: ChatStream, stamp: int, data: bytes, per_chunk: list[int], keep_text: bool) -> None:
    """One event that is more than a piece of text; `per_chunk` collects completion tokens so far where events tell them."""
    try:
        event = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        stream.broken_event = stream.broken_event or data[:200].decode("utf-8", "replace")
        return
    if not isinstance(event, dict):
        stream.broken_event = stream.broken_event or data[:200].decode("utf-8", "replace")
        return
    if said := error_text(event):
        stream.error = stream.error or said
        return
    usage = event.get("usage")
    if isinstance(usage, dict):
        _read_usage(stream, usage)
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    if isinstance(choice.get("finish_reason"), str):
        stream.finish_reason = choice["finish_reason"]
    delta = choice.get("delta")
    if delta is None and isinstance(choice.get("text"), str):
        delta = {"content": choice["text"]}  # a completions endpoint
    if not isinstance(delta, dict):
        return
    kind = _read_delta(stream, delta, keep_text)
    if kind:
        stream.times.append(stamp)
        stream.kinds.append(kind)
        if isinstance(usage, dict) and _count(usage.get("completion_tokens")):
            per_chunk.append(usage["completion_tokens"])


def _count(value: Any) -> bool:
    """A number of tokens that can be one."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _read_usage(stream: ChatStream, usage: dict[str, Any]) -> None:
    for name, key in (("output_tokens", "completion_tokens"), ("prompt_tokens", "prompt_tokens")):
        if _count(usage.get(key)):
            setattr(stream, name, usage[key])
    details = usage.get("completion_tokens_details")
    if isinstance(details, dict) and _count(details.get("reasoning_tokens")):
        stream.reasoning_tokens = details["reasoning_tokens"]


def _read_delta(stream: ChatStream, delta: dict[str, Any], keep_text: bool) -> str:
    """The chunk's letter, or "" for an event without text. Both reasoning fields are read: vLLM has used both names."""
    kind = ""
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        if function.get("arguments"):
            kind = TOOL
        if keep_text:
            kept = stream.tool_calls.setdefault(int(call.get("index") or 0), {"name": "", "arguments": ""})
            kept["name"] += function.get("name") or ""
            kept["arguments"] += function.get("arguments") or ""
    for key in ("reasoning", "reasoning_content"):
        if isinstance(delta.get(key), str) and delta[key]:
            kind = REASONING
            if keep_text:
                stream.reasoning += delta[key]
            break
    if isinstance(delta.get("content"), str) and delta["content"]:
        kind = CONTENT
        if keep_text:
            stream.content += delta["content"]
    return kind


def error_text(document: Any) -> str:
    """What an error body says, or "" if it is none. Forms: `{"error": {"message"}}`, `{"error": "..."}`, `{"object": "error"}`, `{"detail"}`."""
    if not isinstance(document, dict):
        return ""
    error = document.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error.get("type") or error)
    if error:
        return str(error)
    if document.get("object") == "error":
        return str(document.get("message") or document)
    if "detail" in document and "choices" not in document:
        return str(document["detail"])
    return ""


def retry_after(text: str) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or a date (HTTP's form). None if it says neither."""
    try:
        return max(0.0, float(text)) if math.isfinite(float(text)) else None
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, at.timestamp() - time.time())


def settle(record: RequestRecord, raw: RawResponse) -> Generator[None, None, ChatStream | None]:
    """Fills the record from the response, in steps: times, tokens, and the error, if it is one. None where there was no stream."""
    record.status = raw.status
    if record.t_end is None:
        record.t_end = raw.ended_at
    if raw.status is not None and (raw.status >= 300 or raw.status < 200):
        text = body(raw).decode("utf-8", "replace")
        try:
            said = error_text(json.loads(text))
        except (ValueError, RecursionError):
            said = ""
        where = raw.headers.get("location", "")
        if raw.status == 429:
            record.retry_after_s = retry_after(raw.headers.get("retry-after", ""))
        kind = ErrorKind.RATE_LIMITED if raw.status == 429 else ErrorKind.HTTP
        record.fail(kind, f"HTTP {raw.status}: {said or (f'redirect to {where}' if where else '') or text[:200] or 'no text'}")
        return None
    if raw.status is not None and raw.content_type != "text/event-stream":
        text = body(raw).decode("utf-8", "replace")
        if raw.failure:
            record.fail(*raw.failure)
        record.fail(ErrorKind.NOT_A_STREAM, f"The answer is `{raw.content_type or 'without a type'}`, not an event stream: {text[:120]}")
        return None
    stream = yield from read_in_steps(raw)
    stream.into(record)
    if stream.error:
        record.fail(ErrorKind.STREAM_ERROR, stream.error)
    elif raw.failure and not (stream.done and raw.failure[0] == ErrorKind.CUT):
        record.fail(*raw.failure)
    elif stream.broken_event:
        record.fail(ErrorKind.PROTOCOL, f"An event is not a JSON object: {stream.broken_event}")
    elif not stream.done:
        record.fail(ErrorKind.NO_DONE, "The stream ended without `[DONE]`")
    elif stream.finish_reason is None:
        record.fail(ErrorKind.NO_FINISH, "The stream ended without a finish_reason")
    elif not stream.times:
        record.fail(ErrorKind.NO_CHUNK, "The stream held no text")
    return stream
