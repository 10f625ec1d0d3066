"""The practice server's HTTP, byte by byte: what clients other than httpx may send."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from ops.practice.model_folder import NAME

from .conftest import Server, Start, exit_code, wait_for

BODY = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "Say ok."}]}).encode()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def talk(server: Server, sent: bytes, *, pieces: int = 1) -> bytes:
    """All that comes back until the server closes; the last request must ask for that."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        step = -(-len(sent) // pieces)
        for begin in range(0, len(sent), step):
            connection.sendall(sent[begin : begin + step])
        received = b""
        while data := connection.recv(65536):
            received += data
    return received


def test_requests_in_one_write_are_answered_in_order(server: Server) -> None:
    received = talk(server, b"GET /version HTTP/1.1\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.index(b'{"version"') < received.index(b'{"object":"list"')


def test_a_request_may_come_in_any_pieces(server: Server) -> None:
    request = POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
    assert b'"content":"ok"' in talk(server, request, pieces=40)


def test_a_body_may_come_in_chunks(server: Server) -> None:
    chunked = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (10, BODY[:10], len(BODY) - 10, BODY[10:])
    assert b'"content":"ok"' in talk(server, POST + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + chunked)


def test_a_client_that_waits_for_100_continue_gets_it(server: Server) -> None:
    received = talk(server, POST + b"connection: close\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY)
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_head_has_no_body(server: Server) -> None:
    received = talk(server, b"HEAD /version HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET /health HTTP/1.1\r\ncontent-length: -1\r\n\r\n", b"\x16\x03\x01 tls\r\n\r\n"])
def test_what_is_no_http_is_refused_and_closed(server: Server, sent: bytes) -> None:
    assert talk(server, sent).startswith(b"HTTP/1.1 400 Bad Request")


def test_json_of_the_wrong_kind_is_a_400_and_no_traceback(server: Server) -> None:
    for body in (b"[]", b"1", b'"text"', b"\xff", b'{"messages": 1}', b'{"messages": [1]}', b'{"messages": [{"role": "user"}], "max_tokens": 1e400}',
                 b'{"messages": [{"role": "user"}], "tools": [1]}', b'{"messages": [{"role": "user"}], "tool_choice": {}, "tools": [{}]}'):
        received = talk(server, POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert received.startswith(b"HTTP/1.1 400 Bad Request"), (body, received)
    assert "Traceback" not in server.log


def test_an_api_key_is_asked_for_where_one_was_set(start: Start) -> None:
    server = start(flags=["--api-key", "secret-key"])
    assert server.chat().status_code == 401
    assert b"200 OK" in talk(server, b"GET /v1/models HTTP/1.1\r\nauthorization: Bearer secret-key\r\nconnection: close\r\n\r\n")
    assert "secret-key" not in server.log


def test_a_stop_cuts_open_streams_and_does_not_wait_for_their_clients(start: Start) -> None:
    server = start(speed=10.0)
    body = json.dumps({"messages": [{"role": "user", "content": "Tell me a story"}], "stream": True, "max_tokens": 8000, "ignore_eos": True}).encode()
    received: list[bytes] = []
    client = threading.Thread(target=lambda: received.append(talk(server, POST + b"content-length: %d\r\n\r\n" % len(body) + body)))
    client.start()
    wait_for(lambda: "vllm:num_requests_running" in _metrics(server) and 'model_name="Kimi-K2.5-NVFP4"} 1.0' in _metrics(server), "the stream")
    server.process.terminate()
    assert exit_code(server) == 0
    client.join(10)
    assert b"data: [DONE]" not in received[0]


def _metrics(server: Server) -> str:
    text = talk(server, b"GET /metrics HTTP/1.1\r\nconnection: close\r\n\r\n").decode()
    return next(line for line in text.splitlines() if line.startswith("vllm:num_requests_running{"))
