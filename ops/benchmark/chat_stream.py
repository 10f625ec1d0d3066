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
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from itertools import pairwise
from typing import Any

from ops.benchmark.event_cutter import EventCutter
from ops.benchmark.request_record import CONTENT, REASONING, TOOL, ErrorKind, RequestRecord
from ops.benchmark.stamped_connection import RawResponse, chunk_size

EVENTS_PER_STEP = 200  # about 0.2 ms of work
HARD_EVENTS_PER_STEP = 25  # of those that do not look like the one before

# A delta with exactly one text (or a completion's text) and nothing else to learn, as most events are; anything else goes through the JSON
# parser. A quote inside a JSON string is escaped, so this text cannot stand inside a string.
_STRING = rb'"(?:[^"\\\x00-\x1f]++|\\.)++"'
_PLAIN_DELTA = re.compile(rb'"delta":\s?\{"(?P<field>content|reasoning|reasoning_content)":\s?(?P<text>' + _STRING + rb")\}")
_PLAIN_COMPLETION = re.compile(rb'"choices":\s?\[\{(?:"index":\s?0,\s?)?"text":\s?(?P<text>' + _STRING + rb")[,}]")
_fits_text = re.compile(_STRING).fullmatch
_NOT_FINISHED = re.compile(rb'"finish_reason":\s?null')
_USAGE = re.compile(rb'"usage":\s?[^\sn]')


@dataclass(slots=True)
class ChatStream:
    """A chat completion read out of its events. `times` and (joined) `kinds` per chunk; texts only if they were asked for."""

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


def segments(raw: RawResponse) -> Iterator[tuple[int, bytes]]:
    """(stamp, body's bytes) of every segment that has any."""
    skip = raw.body_start
    for stamp, piece in zip(raw.stamps, raw.pieces, strict=False):  # a stream in flight grows meanwhile
        if not skip:
            yield stamp, piece
        elif len(piece) > skip:
            yield stamp, piece[skip:]
            skip = 0
        else:
            skip -= len(piece)


def _body_pieces(raw: RawResponse) -> tuple[array[int], list[bytes]]:
    """As `segments`, in two lists."""
    first, skip = 0, raw.body_start
    while skip and first < len(raw.pieces) and len(raw.pieces[first]) <= skip:
        skip -= len(raw.pieces[first])
        first += 1
    pieces = raw.pieces[first:]
    if skip and pieces:
        pieces[0] = pieces[0][skip:]
    return raw.stamps[first:], pieces


def events(raw: RawResponse) -> Iterator[tuple[int, bytes]]:
    """(stamp, data) of every event that has data; the stamp is of the segment that brought the event's end."""
    if not raw.framing:
        return
    cutter = EventCutter(chunked=raw.framing == "chunked")
    for stamp, segment in segments(raw):
        for data in cutter.feed(segment):
            yield stamp, data
    if raw.complete and raw.stamps:
        for data in cutter.finish():
            yield raw.stamps[-1], data


class _Pattern:
    """What the events of one stream have in common: all but their text, as the first of them showed.

    Servers repeat id, time, model and fields in each event, and send each in an HTTP chunk and a segment of its own. A segment that begins and
    ends as that one did, with a JSON string between, is such an event: known by two comparisons, with nothing taken apart.
    """

    __slots__ = ("_begin", "_begins", "_chunked", "_end", "kind")

    def __init__(self, begin: bytes, end: bytes, kind: str, *, chunked: bool) -> None:
        self._begin, self._end, self.kind, self._chunked = begin, end, kind, chunked
        self._begins: dict[int, bytes] = {}  # by the segment's length: size line and beginning

    @classmethod
    def of(cls, segment: bytes, data: bytes, plain: re.Match[bytes], *, chunked: bool) -> _Pattern | None:
        """From a segment that was one event with plain text; None where it was more, or less."""
        event = b"data:" + data + b"\n\n"
        framed = b"%x\r\n%s\r\n" % (len(event), event) if chunked else event
        if segment != framed:
            return None
        text_start, text_end = plain.span("text")
        return cls(event[:5 + text_start], event[5 + text_end:] + (b"\r\n" if chunked else b""), _kind(plain), chunked=chunked)

    def fits_until(self, segments: list[bytes], start: int, stop: int) -> int:
        """The first place from `start` on whose segment does not fit, or `stop`."""
        begins, end, end_size = self._begins, self._end, len(self._end)
        for at in range(start, stop):
            segment = segments[at]
            size = len(segment)
            try:
                begin = begins[size]
            except KeyError:
                begin = begins[size] = self._begin_for(size)
            if not (segment.startswith(begin) and segment.endswith(end) and _fits_text(segment, len(begin), size - end_size)):
                return at
        return stop

    def _begin_for(self, size: int) -> bytes:
        """The beginning of a segment of this size: with its HTTP chunk's size line, whose own digits count."""
        if not self._chunked:
            return self._begin
        for digits in range(1, 9):
            line = b"%x\r\n" % max(size - digits - 4, 0)
            if len(line) == digits + 2:
                return line + self._begin
        return b"\n"  # fits nothing


def _kind(plain: re.Match[bytes]) -> str:
    return REASONING if plain.re is _PLAIN_DELTA and plain["field"] != b"content" else CONTENT


def read_in_steps(raw: RawResponse, *, keep_text: bool = False) -> Generator[None, None, ChatStream]:
    """Reads the whole stream; gives control back every `EVENTS_PER_STEP` events; returns the ChatStream."""
    stream = ChatStream()
    times, kinds = stream.times, stream.kinds
    per_chunk: list[int] = []
    pattern: _Pattern | None = None
    chunked = raw.framing == "chunked"
    cutter = EventCutter(chunked=chunked)
    stamps, pieces = _body_pieces(raw) if raw.framing else (array("q"), [])
    here, count, hard = 0, len(pieces), 0
    while here < count:
        alone = cutter.between
        if pattern is not None and alone:
            until = pattern.fits_until(pieces, here, min(here + EVENTS_PER_STEP, count))
            if until > here:
                times.extend(stamps[here:until])
                kinds.append(pattern.kind * (until - here))
                stream.events += until - here
                if until - here == EVENTS_PER_STEP:
                    yield
                here = until
                continue
        found, stamp = cutter.feed(pieces[here]), stamps[here]
        here += 1
        for data in found:
            hard += 1
            stream.events += 1
            if hard % HARD_EVENTS_PER_STEP == 0:
                yield
            plain = None if keep_text else _plain(data)
            if plain is None:
                if not _read_event(stream, stamp, data, per_chunk, keep_text):
                    return _with_chunk_tokens(stream, per_chunk)
                continue
            times.append(stamp)
            kinds.append(_kind(plain))
            if alone and len(found) == 1:
                pattern = _Pattern.of(pieces[here - 1], data, plain, chunked=chunked)
    if raw.complete and raw.framing and raw.stamps:
        for data in cutter.finish():
            stream.events += 1
            if not _read_event(stream, raw.stamps[-1], data, per_chunk, keep_text):
                break
    return _with_chunk_tokens(stream, per_chunk)


def _with_chunk_tokens(stream: ChatStream, per_chunk: list[int]) -> ChatStream:
    if per_chunk and len(per_chunk) == len(stream.times) and all(before <= now for before, now in pairwise(per_chunk)):  # they count up, or are not
        stream.chunk_tokens = [now - before for before, now in zip([0, *per_chunk], per_chunk, strict=False)]
    return stream


def _plain(data: bytes) -> re.Match[bytes] | None:
    """The text of an event that has nothing but one: no usage, no error, no end."""
    if b'"error"' in data or _USAGE.search(data) or not _NOT_FINISHED.search(data):
        return None
    return _PLAIN_DELTA.search(data) or (_PLAIN_COMPLETION.search(data) if b'"delta"' not in data else None)


def _read_event(stream: ChatStream, stamp: int, data: bytes, per_chunk: list[int], keep_text: bool) -> bool:
    """One event, whatever it is; False for the one that ends the stream. `per_chunk` collects completion tokens so far where events tell them."""
    if data.strip() == b"[DONE]":
        stream.done = True
        return False
    _read_json(stream, stamp, data, per_chunk, keep_text)
    return True


def _read_json(stream: ChatStream, stamp: int, data: bytes, per_chunk: list[int], keep_text: bool) -> None:
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
            place, name, arguments = call.get("index"), function.get("name"), function.get("arguments")
            kept = stream.tool_calls.setdefault(place if isinstance(place, int) else 0, {"name": "", "arguments": ""})
            kept["name"] += name if isinstance(name, str) else ""
            kept["arguments"] += arguments if isinstance(arguments, str) else ""
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
    try:
        if isinstance(error, dict):
            return str(error.get("message") or error.get("type") or error)
        if error:
            return str(error)
        if document.get("object") == "error":
            return str(document.get("message") or document)
        if "detail" in document and "choices" not in document:
            return str(document["detail"])
    except RecursionError:  # it could be read, and cannot be printed
        return "An error that is nested too deep to be told"
    return ""


def retry_after(text: str) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or a date (HTTP's form). None if it says neither."""
    try:
        return max(0.0, float(text)) if math.isfinite(float(text)) else None
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(text)
        return max(0.0, at.timestamp() - time.time())
    except (ValueError, OverflowError):  # the latter: a year or a zone that no clock has
        return None


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
    packing = raw.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("", "identity"):
        record.fail(ErrorKind.NOT_A_STREAM, f"The stream is packed ({packing[:40]}) although that was not asked for: its chunks have no times")
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
