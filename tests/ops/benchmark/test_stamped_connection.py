"""The end of a response is seen at its last byte, whatever the segments are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ops.benchmark.stamped_connection import RawResponse, StampedConnection, chunk_size
from tests.fakes.scripted_server import STREAM_END, STREAM_HEAD, chunk, good_stream, response


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = self.ended = False

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.ended = True


def connection() -> tuple[StampedConnection, Wire, list[RawResponse]]:
    made, wire, got = StampedConnection(), Wire(), []
    made.connection_made(wire)
    made.send(b"POST / HTTP/1.1\r\n\r\n", got.append)
    return made, wire, got


TRAILERS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"x" * 20) + b"0;ext=1\r\nx-sum: 1\r\n\r\n"
RESPONSES = {
    "stream": b"".join(good_stream(3)),
    "json": response(200, {"a": 1}),
    "continue first": b"HTTP/1.1 100 Continue\r\n\r\n" + response(404, {"detail": "Not Found"}),
    "trailers": TRAILERS,
    "payload that looks like an end": STREAM_HEAD.replace(b"text/event-stream", b"text/plain") + chunk(b"1\r\n0\r\n\r\n0\r\n\r\n") + STREAM_END,
    "events with CR LF": STREAM_HEAD + chunk(b"data: 0\r\n\r\n") + chunk(b"data: 1\r\n\r\n") + STREAM_END,
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "empty": response(200, b""),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_it_ends_at_the_last_byte_and_not_before_for_every_cut(name: str) -> None:
    whole = RESPONSES[name]
    for cut in range(1, len(whole)):
        made, _, got = connection()
        made.data_received(whole[:cut])
        assert not got, f"ended after {cut} of {len(whole)} bytes"
        made.data_received(whole[cut:])
        assert len(got) == 1 and got[0].complete, f"no end when cut at {cut}"


@pytest.mark.parametrize("name", RESPONSES)
def test_it_ends_at_the_last_byte_fed_byte_by_byte(name: str) -> None:
    whole = RESPONSES[name]
    made, _, got = connection()
    for i in range(len(whole)):
        assert not got
        made.data_received(whole[i:i + 1])
    assert got[0].complete and b"".join(got[0].pieces) == whole


def test_the_next_request_may_be_sent_from_within_the_end_of_the_last_one() -> None:
    made, wire, got = StampedConnection(), Wire(), []
    made.connection_made(wire)
    made.send(b"one", lambda raw: (got.append(raw), made.send(b"two", got.append)))
    made.data_received(RESPONSES["stream"])
    made.data_received(RESPONSES["json"])
    assert wire.written == b"onetwo" and [raw.status for raw in got] == [200, 200]


def test_a_response_without_length_ends_with_the_connection() -> None:
    made, _, got = connection()
    made.data_received(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert not got
    made.connection_lost(None)
    assert got[0].complete and got[0].framing == "close"


def test_a_lost_connection_in_the_middle_is_a_cut() -> None:
    made, _, got = connection()
    made.data_received(RESPONSES["stream"][:200])
    made.connection_lost(ConnectionResetError())
    assert got[0].failure is not None and got[0].failure[0] == "cut" and made.closed


@pytest.mark.parametrize("bad", [
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"HTTP/1.1 huh OK\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n", b"x" * 70_000,
    STREAM_HEAD + b"zz\r\nabc\r\n", STREAM_HEAD + b"-5\r\nabc\r\n\r\n",
    b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n", b"HTTP/1.1 000 OK\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: \xb2\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
    STREAM_HEAD + b"0" * 70_000, STREAM_HEAD + b"0\r\n" + b"t: v\r\n" * 20_000,
], ids=range(13))
def test_what_is_not_http_fails_as_protocol(bad: bytes) -> None:
    made, wire, got = connection()
    made.data_received(bad)
    if not got:  # seen when more comes
        made.data_received(b"\r\n\r\n")
    assert got[0].failure is not None and got[0].failure[0] == "protocol" and wire.aborted


def test_connection_close_ends_its_use() -> None:
    made, wire, _ = connection()
    made.data_received(response(200, {"a": 1}, extra="connection: close\r\n"))
    assert made.closed and wire.ended


@pytest.mark.parametrize("line", [b"", b"+5", b"-5", b"0x5", b"5_0", b"g", b"5 5"])
def test_a_chunk_size_is_hex_digits_only(line: bytes) -> None:
    with pytest.raises(ValueError, match="chunk size"):
        chunk_size(line)


def test_a_chunk_size_may_have_extensions() -> None:
    assert chunk_size(b"1A;name=value") == 26
