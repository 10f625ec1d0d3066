"""Streams as vLLM sent them (recordings), as other servers send them, cut into segments at any byte."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path

import pytest

from ops.benchmark.chat_stream import ChatStream, error_text, events, read_in_steps, retry_after, settle
from ops.benchmark.request_record import RequestRecord
from ops.benchmark.stamped_connection import RawResponse
from tests.fakes.scripted_server import DONE, STREAM_END, STREAM_HEAD, chunk, event, usage

RECORDINGS = Path(__file__).resolve().parents[2] / "fixtures" / "vllm"


def received(*pieces: bytes, complete: bool = True, framing: str = "chunked", failure: tuple[str, str] | None = None) -> RawResponse:
    """A response whose i-th segment came at i x 1000 ns (from 1)."""
    stamps = array("q", [1000 * (i + 1) for i in range(len(pieces))])
    head, _, _ = b"".join(pieces).partition(b"\r\n\r\n")
    return RawResponse(stamps=stamps, pieces=list(pieces), status=200, headers={"content-type": "text/event-stream"}, body_start=len(head) + 4,
                       framing=framing, complete=complete, failure=failure, ended_at=stamps[-1])


def stream_of(*events_: bytes) -> bytes:
    return STREAM_HEAD + b"".join(chunk(e) for e in events_) + STREAM_END


def read(raw: RawResponse, *, keep_text: bool = False) -> ChatStream:
    steps = read_in_steps(raw, keep_text=keep_text)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def settled(raw: RawResponse) -> RequestRecord:
    record = RequestRecord(index=0, slot=0, t_sched=0, t_send=10)
    for _ in settle(record, raw):
        pass
    return record


def recording(name: str) -> RawResponse:
    """A recording whose body curl had already unwrapped: head, then plain events."""
    blob = (RECORDINGS / name).read_bytes()
    _, _, body = blob.partition(b"\r\n\r\n") if b"\r\n\r\n" in blob else blob.partition(b"\n\n")
    return received(STREAM_HEAD.split(b"\r\n\r\n")[0] + b"\r\n\r\n", body, framing="close")


def test_a_recorded_reasoning_stream_is_read_whole() -> None:
    stream = read(recording("chat-stream-reasoning.txt"), keep_text=True)
    assert (stream.output_tokens, stream.reasoning_tokens, stream.prompt_tokens, stream.finish_reason) == (38, 25, 23, "stop")
    assert stream.content.strip() == "The capital of France is Paris."
    assert stream.reasoning.strip() == "The user asks for a capital city. It is Paris."
    assert stream.done and not stream.error


def test_a_recorded_tool_call_is_put_together() -> None:
    stream = read(recording("chat-stream-tools.txt"), keep_text=True)
    assert stream.finish_reason == "tool_calls"
    assert [(call["name"], json.loads(call["arguments"])) for call in stream.tool_calls.values()] == [("get_weather", {"city": "Paris"})]
    assert "t" in stream.kinds and set(stream.kinds) <= {"r", "t", "c"}


def test_usage_in_every_event_gives_the_tokens_of_each_chunk() -> None:
    stream = read(recording("chat-stream-continuous-usage.txt"))
    assert stream.chunk_tokens is not None and len(stream.chunk_tokens) == len(stream.times)
    assert sum(stream.chunk_tokens) <= (stream.output_tokens or 0)


def test_an_engine_that_dies_in_the_stream_is_a_stream_error_even_with_done() -> None:
    record = settled(recording("chat-stream-engine-died.txt"))
    assert record.error_kind == "stream_error"
    assert record.error.startswith("EngineCore encountered an issue")


@pytest.mark.parametrize("name", ["chat-stream-reasoning.txt", "chat-stream-tools.txt", "chat-stream-continuous-usage.txt"])
def test_the_fast_path_sees_what_the_json_parser_sees(name: str) -> None:
    fast, whole = read(recording(name)), read(recording(name), keep_text=True)
    assert (fast.kinds, fast.times) == (whole.kinds, whole.times)
    assert (fast.output_tokens, fast.finish_reason) == (whole.output_tokens, whole.finish_reason)


EVENTS = [event({"role": "assistant", "content": ""}), event({"reasoning": "hm"}), event({"content": "a \"quoted\" {text}"}), event({"content": ""}),
          event({"content": "b"}, finish="stop"), usage(4, 1), DONE]


def test_a_chunk_has_the_stamp_of_the_segment_that_completed_its_event() -> None:
    whole = stream_of(*EVENTS)
    at = whole.index(b'"hm"') + 2  # cut within the reasoning event: it is complete with the second segment
    stream = read(received(whole[:at], whole[at:at + 300], whole[at + 300:]))
    assert stream.kinds == ["r", "c", "c"]
    assert stream.times[0] == 2000


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("seed", range(6))
def test_any_cut_into_chunks_and_segments_reads_the_same(newline: bytes, seed: int) -> None:
    draw = random.Random(seed)
    body = b"".join([b": ping\n\n", *EVENTS]).replace(b"\n", newline)
    cuts = sorted(draw.sample(range(1, len(body)), 12))
    chunks = [chunk(body[a:b]) for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    wire = STREAM_HEAD + b"".join(chunks) + STREAM_END
    cuts = sorted(draw.sample(range(1, len(wire)), 40))
    stream = read(received(*(wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True))))
    assert (stream.kinds, stream.output_tokens, stream.reasoning_tokens, stream.finish_reason, stream.done) == (["r", "c", "c"], 4, 1, "stop", True)
    assert list(stream.times) == sorted(stream.times)


def test_every_cut_gives_the_stamp_of_its_segment() -> None:
    """Byte by byte, the stamp is the one of the event's last newline."""
    wire = stream_of(*EVENTS)
    found = [stamp for stamp, _ in events(received(*(wire[i:i + 1] for i in range(len(wire)))))]
    ends, at = [], wire.index(b"\r\n\r\n") + 4
    for one in EVENTS:
        at = wire.index(one, at) + len(one)
        ends.append(1000 * at)
    assert found == ends


LIKE_VLLM = [
    b'data: {"id":"c-1","object":"chat.completion.chunk","created":17,"model":"m","choices":[{"index":0,"delta":%s,"logprobs":null,'
    b'"finish_reason":null,"token_ids":null}]}\n\n' % delta
    for delta in [b'{"role":"assistant","content":""}', *(b'{"reasoning":" r%d"}' % i for i in range(4)),
                  *(b'{"content":" \\u00e9 \\"%s\\" \xc3\xa9"}' % (b"y" * i) for i in range(40)), b'{"content":""}',
                  b'{"content":"x","reasoning":"y"}',
                  b'{"content":"a","tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}', b'{"content":"z"}']
]
LIKE_A_COMPLETION = [b'data: {"id":"c-1","choices":[{"index":0,"text":"%s","logprobs":null,"finish_reason":null}],"usage":null}\n\n' % text
                     for text in [b"", b" a", b'\\"text\\":', b" b", b" c"]]


@pytest.mark.parametrize(("name", "kinds"), [("chat", "rrrr" + "c" * 43), ("completions", "cccc")])
def test_events_alike_in_segments_of_their_own_are_read_as_by_the_json_parser(name: str, kinds: str) -> None:
    """Most segments pass by their likeness to one before; any cut and any whole must give the same."""
    parts = [STREAM_HEAD, *map(chunk, LIKE_VLLM if name == "chat" else LIKE_A_COMPLETION), chunk(event({}, finish="stop")), chunk(DONE), STREAM_END]
    fast, whole = read(received(*parts)), read(received(*parts), keep_text=True)
    assert "".join(fast.kinds) == "".join(whole.kinds) == kinds
    assert (list(fast.times), fast.finish_reason, fast.done) == (list(whole.times), "stop", True)
    for seed in range(20):
        draw = random.Random(seed)
        cuts = [(part, draw.randrange(40)) for part in parts]
        torn = [piece for part, at in cuts for piece in (part[:at], part[at:]) if piece]
        assert "".join(read(received(*torn)).kinds) == kinds


def test_a_segment_that_only_looks_like_the_ones_before_is_taken_apart() -> None:
    good = LIKE_VLLM[1]
    wrong_size = b"%x\r\n%s\r\n" % (len(good) + 1, good)  # its chunk goes on with the next segment's first byte
    stream = read(received(STREAM_HEAD, chunk(good), chunk(good), wrong_size, b"\r\n", chunk(DONE)[:-2]))
    assert stream.kinds[:2] == ["r", "r"] and len(stream.kinds) <= 3
    two = good.replace(b'" r0"', b'" r0"},"logprobs":null,"finish_reason":null,"token_ids":null},{"index":1,"delta":{"reasoning":"s"')
    fast, whole = (read(received(STREAM_HEAD, chunk(good), chunk(two), chunk(good), STREAM_END), keep_text=keep) for keep in (False, True))
    assert fast.kinds == whole.kinds


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_an_event_of_megabytes_in_small_segments_takes_no_longer_for_each_byte(newline: bytes) -> None:
    """Segments of 1 kB: were what is there looked at anew with each, this would take minutes."""
    big = event({"content": "x" * 16_000_000}).replace(b"\n", newline)
    wire = STREAM_HEAD + chunk(big) + STREAM_END
    assert read(received(*(wire[i:i + 1024] for i in range(0, len(wire), 1024)))).kinds == ["c"]


def test_several_data_lines_and_other_fields_make_one_event() -> None:
    whole = b'event: message\nid: 7\ndata: {"choices":[{"index":0,\ndata: "delta":{"content":"x"},"finish_reason":"stop"}]}\nretry: 5\n\n'
    assert read(received(stream_of(whole, DONE))).kinds == ["c"]


def test_a_last_event_without_its_blank_line_still_counts() -> None:
    record = settled(received(stream_of(event({"content": "x"}, finish="stop"), b"data: [DONE]\n")))
    assert record.ok


def test_invalid_utf8_in_a_text_is_a_chunk_like_any_other() -> None:
    broken = event({"content": "PLACE"}).replace(b"PLACE", b"\xff\xfe")
    assert settled(received(stream_of(broken, event({}, finish="stop"), DONE))).kinds == "c"


def test_escaped_quotes_cannot_pass_for_fields() -> None:
    text = '"finish_reason":null,"delta":{"reasoning":"x"} \\" "usage"'
    record = settled(received(stream_of(event({"content": text}), event({}, finish="stop"), usage(5), DONE)))
    assert (record.kinds, record.output_tokens) == ("c", 5)


def test_an_enormous_chunk_is_read() -> None:
    big = event({"content": "x" * 3_000_000})
    wire = stream_of(big, event({}, finish="length"), DONE)
    assert settled(received(*(wire[i:i + 65536] for i in range(0, len(wire), 65536)))).kinds == "c"


@pytest.mark.parametrize(("events_", "kind"), [
    ([event({"content": "x"}, finish="stop")], "no_done"),
    ([event({"content": "x"}), DONE], "no_finish_reason"),
    ([event({"role": "assistant", "content": ""}), event({}, finish="stop"), usage(0), DONE], "no_chunk"),
    ([b"data: not json\n\n", DONE], "protocol"),
    ([b"data: [1, 2]\n\n", DONE], "protocol"),
    ([b'data: {"error": "boom"}\n\n', DONE], "stream_error"),
    ([b'data: {"object": "error", "message": "old form", "code": 500}\n\n'], "stream_error"),
])
def test_a_stream_that_is_not_whole_is_an_error(events_: list[bytes], kind: str) -> None:
    assert settled(received(stream_of(*events_))).error_kind == kind


def test_a_cut_after_done_is_no_error() -> None:
    wire = stream_of(event({"content": "x"}, finish="stop"), DONE).removesuffix(STREAM_END)
    assert settled(received(wire, complete=False, failure=("cut", "gone"))).ok


def test_error_bodies_of_vllm_are_understood() -> None:
    cases = [case for case in json.loads((RECORDINGS / "errors.json").read_text()) if case["status"] >= 400]
    assert all(error_text(case["body"]) for case in cases)
    assert error_text(cases[0]["body"]) == "The model `nope` does not exist. Valid aliases: tiny."
    assert error_text(json.loads((RECORDINGS / "chat-reasoning.json").read_text())) == ""


def test_usage_that_does_not_count_up_tells_no_tokens_of_chunks() -> None:
    """A server that says 90, then 10 tokens so far would make a chunk of -80."""
    each = [event({"content": "a"}, usage={"completion_tokens": count}) for count in (90, 10, 50)]
    stream = settled(received(stream_of(*each, event({}, finish="stop"), usage(3), DONE)))
    assert (stream.chunk_tokens, stream.output_tokens) == (None, 3)


def test_a_stream_that_is_packed_though_nobody_asked_is_told() -> None:
    packed = received(STREAM_HEAD + chunk(b"\x1f\x8b") + STREAM_END)
    packed.headers["content-encoding"] = "gzip"
    record = settled(packed)
    assert record.error_kind == "not_a_stream" and "packed (gzip)" in record.error


@pytest.mark.parametrize("said", ["Mon, 01 Jan 2020 00:00:00 +99999999999", "Fri, 31 Dec 9999 23:59:59 -9999", "9" * 5000, "nan", ", : 0 \xe9", ""],
                         ids=range(6))
def test_a_retry_after_that_no_clock_has_is_none(said: str) -> None:
    assert retry_after(said) is None
