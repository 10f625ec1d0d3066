"""What is asked of a server before load is sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ops.benchmark import endpoint
from ops.benchmark.endpoint import Endpoint, inspect, normalise, only_model, require_model, require_practice
from ops.jobs.errors import BadInput, OpsError
from tests.fakes.scripted_server import CLOSE, response, scripted


def no_chat(number: int, body: object) -> list[object]:
    return [CLOSE]


@pytest.mark.parametrize(("given", "base"), [
    ("http://h:8000", "http://h:8000"), ("http://h:8000/", "http://h:8000"), ("http://h:8000/v1", "http://h:8000"),
    ("https://h/api/v1/chat/completions", "https://h/api"), (" http://[::1]:8000/v1/models ", "http://[::1]:8000"),
])
def test_addresses_lose_what_we_add_ourselves(given: str, base: str) -> None:
    assert normalise(given) == base


@pytest.mark.parametrize("given", ["", "localhost:8000", "ftp://h", "file:///etc/passwd", "http://", "http://h:99999", "http://u:p@h", "http://h/?x=1"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(BadInput):
        normalise(given)


def test_the_completions_endpoint_is_refused_with_the_right_one() -> None:
    """The story's script pointed there, and hid the model's thinking."""
    with pytest.raises(BadInput) as told:
        normalise("http://h:8000/v1/completions")
    assert told.value.hint.startswith("Use http://h:8000;")


def test_models_version_and_practice_are_read() -> None:
    with scripted(no_chat, models=("a", "b"), version="0.16.0rc2.dev344+practice") as server:
        found = inspect(server.url)
    assert (found.models, found.practice, found.max_model_len["a"]) == (["a", "b"], True, 4096)


def test_a_server_without_version_is_of_unknown_kind() -> None:
    with scripted(no_chat) as server:
        found = inspect(server.url)
    assert (found.version, found.practice) == (None, None)


def test_nobody_there_is_told_with_the_address() -> None:
    with pytest.raises(OpsError, match=r"No answer from http://127.0.0.1:9") as told:
        inspect("http://127.0.0.1:9")
    assert told.value.kind == "unreachable" and "refused" in told.value.why


def test_https_to_a_port_without_tls_names_the_plain_address() -> None:
    with scripted(no_chat) as server, pytest.raises(OpsError) as told:
        inspect(server.url.replace("http:", "https:"), timeout_s=0.3)
    assert told.value.kind == "unreachable" and told.value.hint.endswith(server.url)


@pytest.mark.parametrize(("answer", "kind"), [
    (response(401, {"error": {"message": "Invalid key"}}), "unauthorized"), (response(404, {"detail": "Not Found"}), "not_openai"),
    (response(200, b"<html>hi</html>", content_type="text/html"), "not_openai"), (response(200, {"models": []}), "not_openai"),
    (b"SSH-2.0-OpenSSH\r\n\r\n", "unreachable"), (response(302, b"", extra="location: http://10.0.0.1/\r\n"), "not_openai"),
])
def test_a_server_of_another_kind_is_told_apart(answer: bytes, kind: str) -> None:
    with scripted(no_chat, paths={"/v1/models": answer}) as server, pytest.raises(OpsError) as told:
        inspect(server.url, timeout_s=2)
    assert told.value.kind == kind


def test_a_web_page_is_told_by_its_title_alone() -> None:
    page = response(404, b"<!doctype html><html><title>\n Not Found &amp; gone</title><script>x()</script>", content_type="text/html")
    with scripted(no_chat, paths={"/v1/models": page}) as server, pytest.raises(OpsError) as told:
        inspect(server.url, timeout_s=2)
    assert told.value.why == 'HTTP 404: a web page, "Not Found & gone"'


def test_a_wrong_model_is_told_with_the_right_ones() -> None:
    with pytest.raises(BadInput) as told:
        require_model(Endpoint("http://h", ["a", "b"]), "c")
    assert told.value.hint == "It serves: a, b" and told.value.facts["valid"] == ["a", "b"]


def test_the_only_model_needs_no_name() -> None:
    assert only_model(Endpoint("http://h", ["a"])) == "a"
    with pytest.raises(BadInput):
        only_model(Endpoint("http://h", ["a", "b"]))


@pytest.mark.parametrize(("server", "record", "practice"), [
    (True, None, True), (True, True, True), (False, False, False), (None, True, True), (None, None, False), (None, False, False),
])
def test_practice_is_what_the_server_says_else_what_the_record_says(server: bool | None, record: bool | None, practice: bool) -> None:
    assert require_practice(Endpoint("http://h", [], practice=server), record) is practice


@pytest.mark.parametrize("server", [True, False])
def test_a_record_that_contradicts_the_server_is_an_error(server: bool) -> None:
    with pytest.raises(OpsError) as told:
        require_practice(Endpoint("http://h", [], version="1", practice=server), not server)
    assert told.value.kind == "practice_mismatch"


def test_an_answer_that_drips_without_end_and_one_beyond_all_measure_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def drips(body: object) -> Iterator[bytes | float]:
        yield b"HTTP/1.1 200 OK\r\nx-long: "
        while True:
            yield b"a"
            yield 0.02

    with scripted(no_chat, paths={"/v1/models": drips}) as server, pytest.raises(OpsError, match="No answer") as told:
        inspect(server.url, timeout_s=0.15)
    assert told.value.why == "No whole answer within 0.3 s"
    monkeypatch.setattr(endpoint, "MAX_ANSWER", 1000)
    with scripted(no_chat, paths={"/v1/models": response(200, b" " * 2000)}) as server, pytest.raises(OpsError) as told:
        inspect(server.url)
    assert "longer than" in told.value.why


def test_names_and_lengths_that_cannot_be_are_left_out() -> None:
    entries = [1, None, {"id": {"a": 1}}, {"id": "\ud800"}, {"id": "m", "max_model_len": -5}, {"id": "n", "max_model_len": True}]
    with scripted(no_chat, paths={"/v1/models": response(200, {"data": entries})}) as server:
        found = inspect(server.url)
    assert (found.models, found.max_model_len) == (["m", "n"], {})
