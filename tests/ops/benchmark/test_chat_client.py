"""The client on its own: TLS, keys, time-outs, texts."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from ops.benchmark.chat_client import ChatClient
from ops.benchmark.endpoint import inspect
from ops.jobs.errors import OpsError
from tests.fakes.scripted_server import STREAM_HEAD, chunk, event, good_stream, scripted


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A certificate for 127.0.0.1 that our process trusts through SSL_CERT_FILE."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key),
                    "-out", str(cert), "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    return context


def test_a_stream_over_tls_is_stamped_and_read(certificate: ssl.SSLContext) -> None:
    with scripted(lambda n, body: good_stream(4), tls=certificate) as server:
        assert inspect(server.url).models == ["m"]
        record, stream = asyncio.run(ChatClient(server.url, "m").complete({"messages": []}))
    assert record.ok and record.kinds == "cccc" and stream.content == " w0 w1 w2 end"


def test_an_unknown_certificate_is_refused(certificate: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with scripted(lambda n, body: good_stream(4), tls=certificate) as server:
        with pytest.raises(OpsError, match="No answer") as told:
            asyncio.run(ChatClient(server.url, "m").complete({}))
        assert "certificate" in told.value.why.lower()


def test_a_key_goes_into_the_header_only() -> None:
    client = ChatClient("http://h:1/prefix/v1", "m", api_key="sk-1")
    sent = client.request_bytes({"a": "ä"})
    assert sent.startswith(b"POST /prefix/v1/chat/completions HTTP/1.1\r\nhost: h:1\r\n") and sent.count(b"sk-1") == 1
    assert sent.endswith('content-length: 10\r\n\r\n{"a":"ä"}'.encode())


def test_a_stream_that_never_ends_times_out() -> None:
    with scripted(lambda n, body: [STREAM_HEAD, chunk(event({"content": "a"})), 0.6]) as server:
        began = time.monotonic()
        record, _ = asyncio.run(ChatClient(server.url, "m").complete({}, timeout_s=0.2))
    assert record.error_kind == "timeout" and list(record.kinds) == ["c"] and time.monotonic() - began < 5


def test_a_host_that_is_no_host_is_unreachable() -> None:
    with pytest.raises(OpsError) as told:
        asyncio.run(ChatClient("http://no-such-host.invalid", "m").connect())
    assert told.value.kind == "unreachable"
