"""The security requirements that hold from the first day, each tried from outside."""

from __future__ import annotations

import ast
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from dashboard.asgi import application
from dashboard.models import Job, Service
from tests.dashboard.conftest import new_job

REPOSITORY = Path(__file__).resolve().parents[2]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
OPEN = {"sign_in", "sign_in_by_link", "health"}
BANNED_CALLS = {"eval", "exec", "os.system", "os.popen", "torch.load", "yaml.load", "subprocess.getoutput", "subprocess.getstatusoutput"}
EXAMPLES = {"int": "1", "uuid": str(uuid.uuid4()), "str": "practice", "slug": "practice", "path": "a/b"}

pytestmark = pytest.mark.django_db


def addresses(patterns: list[URLPattern | URLResolver] | None = None, before: str = "") -> Iterator[tuple[str, str]]:
    """(name, path with example values) of everything in the URL map."""
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        here = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from addresses(pattern.url_patterns, here)
        else:
            yield str(pattern.name), "/" + re.sub(r"<(?:(\w+):)?\w+>", lambda found: EXAMPLES[found.group(1) or "str"], here)


def test_the_walk_knows_the_pages() -> None:
    assert {"fleet", "job", "live", "sign_in", "health"} <= {name for name, _ in addresses()}


@pytest.mark.parametrize("forged", [{}, {"HTTP_X_FORWARDED_FOR": "127.0.0.1", "HTTP_X_REAL_IP": "127.0.0.1"}], ids=["plain", "forged"])
@pytest.mark.parametrize("checks", [False, True], ids=["", "csrf"])
def test_s1_nothing_but_sign_in_and_health_answers_anonymous(service: Service, forged: dict[str, str], checks: bool) -> None:
    new_job(service)
    client = Client(enforce_csrf_checks=checks, raise_request_exception=False)
    for name, path in addresses():
        for method in METHODS:
            answer = client.generic(method, path, **forged)
            if name in OPEN:
                assert answer.status_code in (200, 403, 405, 410, 503), (method, path, answer.status_code)
                continue
            sent_away = answer.status_code == 302 and answer.headers["Location"].startswith("/sign-in/?next=")
            assert sent_away or answer.status_code in (401, 403, 405), (method, path, answer.status_code)
            assert b"kimi-k25" not in answer.content, (method, path)
    assert Job.objects.get().state == "queued"


def test_s3_a_foreign_origin_is_refused_for_every_unsafe_method(operator: User, service: Service) -> None:
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(operator)
    new_job(service)
    for name, path in addresses():
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            answer = client.generic(method, path, HTTP_ORIGIN="https://evil.example")
            assert answer.status_code == 403, (name, method, answer.status_code)


def test_s3_a_foreign_host_is_refused(client: Client) -> None:
    for path in ("/", "/health/", "/sign-in/", "/live/"):
        assert client.get(path, HTTP_HOST="evil.example").status_code == 400


def test_s4_every_answer_has_the_policy(client: Client, operator: User) -> None:
    for path in ("/sign-in/", "/health/", "/nowhere/", "/", "/sign-in/nonsense/"):
        answer = client.get(path)
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"], path
        assert "unsafe-inline" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"].startswith(("no-store", "max-age=0")), path


def test_s8_no_shell_and_s11_no_unpickling_in_our_own_code() -> None:
    """A gate on words, and on calls: `pickle`, `torch.load`, `eval`, `exec`, `os.system`, `shell=True`. The practice box only writes bait."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py"], cwd=REPOSITORY, text=True,
                            capture_output=True, check=True).stdout.split("\0")
    found = []
    for name in listed:
        path = REPOSITORY / name
        if not name or name.startswith("tests/") or not path.is_file():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                found += [f"{name}:{node.lineno} {module}" for module in modules if module.split(".")[0] in
                          {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}]
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in BANNED_CALLS:
                    found.append(f"{name}:{node.lineno} {called}")
                found += [f"{name}:{node.lineno} shell=" for word in node.keywords if word.arg == "shell" and ast.unparse(word.value) != "False"]
    assert found == []


async def send(body: list[bytes], *headers: tuple[bytes, bytes]) -> list[dict]:
    """What the application answers to a POST to /sign-in/ with this body."""
    said: list[dict] = []
    parts = [{"type": "http.request", "body": part, "more_body": True} for part in body] + [{"type": "http.request", "body": b""}]

    async def receive() -> dict:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def answer(message: dict) -> None:
        said.append(message)

    scope: dict = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/sign-in/", "raw_path": b"/sign-in/",
             "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
             "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/x-www-form-urlencoded"), *headers]}
    await application(scope, receive, answer)
    return said


async def test_s18_a_body_that_says_it_is_too_big_is_not_read() -> None:
    said = await send([b"x"], (b"content-length", b"99999999999"))
    assert said[0]["status"] == 413
    assert b"too big for the console" in said[1]["body"] and b"1,048,576" in said[1]["body"]
    assert {b"content-security-policy", b"connection"} <= {name.lower() for name, _ in said[0]["headers"]}


async def test_s18_a_body_that_grows_too_big_is_cut() -> None:
    said = await send([b"x" * 65_536] * 40, (b"transfer-encoding", b"chunked"))
    assert [message.get("status") for message in said][:2] == [413, None]


async def test_s18_a_body_that_is_somewhat_too_big_is_thrown_away_so_that_the_browser_reads_the_answer() -> None:
    parts = [b"x" * 65_536] * 40
    assert (await send(parts, (b"content-length", str(40 * 65_536).encode())))[0]["status"] == 413


def test_s18_a_form_with_thousands_of_fields_is_refused(client: Client) -> None:
    assert client.post("/sign-in/", {f"f{n}": "x" for n in range(1000)}).status_code == 400


def test_s17_the_limits_are_what_was_promised() -> None:
    from dashboard import settings

    assert (settings.STREAMS_PER_USER, settings.STREAMS_PER_PROCESS) == (6, 1000)


def test_a_wrong_method_gets_a_page_of_ours(client: Client, operator: User) -> None:
    client.force_login(operator)
    for method in ("POST", "OPTIONS"):
        answer = client.generic(method, "/jobs/")
        assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")
        assert f"does not take {method}" in answer.content.decode()
    told = client.delete("/health/", headers={"accept": "application/json"}).json()
    assert told["error"]["what"] == "This address does not take DELETE"


@pytest.mark.parametrize("address", ["/jobs/?service=a%00b", "/nodes/a%00b/", "/sign-in/?next=/%00"])
def test_a_nul_is_refused_before_a_database_sees_it(client: Client, operator: User, address: str) -> None:
    client.force_login(operator)
    assert client.get(address).status_code == 400


def test_answers_from_before_the_views_are_not_framed_either(client: Client) -> None:
    assert client.get("/jobs").status_code == 301
    assert client.get("/jobs").headers["X-Frame-Options"] == "DENY"


def test_a_log_nested_thousands_deep_is_read_as_text(client: Client, operator: User) -> None:
    client.force_login(operator)
    assert client.post("/diagnose/", {"text": '{"a":' * 20_000}).status_code == 200
