"""How much a request may hold: a log of somebody who is signed in more than anything else, and each refusal says its limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from dashboard.asgi import FORM_BYTES, application

pytestmark = pytest.mark.django_db(transaction=True)
LINE = b"INFO 03-02 10:00:00 [core.py:1] step\n"
LOG = LINE * 60_000  # twice what any other request may hold


async def sent(client: Client, body: bytes, *, path: str = "/diagnose/", length: int | None = None) -> tuple[int, str]:
    """Status and page of a form with this file."""
    token = "a" * 32
    part = b"--X\r\nContent-Disposition: form-data; name="
    whole = b"".join([part, b'"csrfmiddlewaretoken"\r\n\r\n', token.encode(), b"\r\n", part, b'"file"; filename="vllm.log"\r\n\r\n', body,
                      b"\r\n--X--\r\n"])
    parts = [whole[at:at + 262_144] for at in range(0, len(whole), 262_144)]
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()  # a browser waits for its answer
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def answer(message: dict[str, Any]) -> None:
        said.append(message)

    cookies = "; ".join([*(f"{name}={one.value}" for name, one in client.cookies.items()), f"roundhouse_csrf={token}"])
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode(),
             "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
             "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"multipart/form-data; boundary=X"), (b"cookie", cookies.encode()),
                         (b"content-length", str(len(whole) if length is None else length).encode())]}
    await application(scope, receive, answer)
    return said[0]["status"], b"".join(message.get("body", b"") for message in said[1:]).decode()


@pytest.fixture
def person(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client


async def test_a_log_may_be_larger_than_other_requests(person: Client) -> None:
    status, page = await sent(person, LOG)
    assert status == 200 and "No fault was found in 60,000 lines" in page


async def test_who_is_not_signed_in_may_not_send_as_much(person: Client) -> None:
    forged = Client()
    forged.cookies[settings.SESSION_COOKIE_NAME] = "a" * 32
    for client in (Client(), forged):
        assert (await sent(client, LOG))[0] == 413
    await sync_to_async(person.logout)()
    assert (await sent(person, LOG))[0] == 413


async def test_other_pages_take_no_more_than_before(person: Client) -> None:
    status, page = await sent(person, LOG, path="/services/")
    assert status == 413 and f"{settings.MAX_BODY_BYTES:,} bytes" in page


async def test_a_log_beyond_the_limit_is_refused_with_that_limit(person: Client) -> None:
    status, page = await sent(person, LINE, length=settings.DIAGNOSE_MAX_BYTES + FORM_BYTES + 1)
    assert status == 413 and f"{settings.DIAGNOSE_MAX_BYTES + FORM_BYTES:,} bytes" in page
