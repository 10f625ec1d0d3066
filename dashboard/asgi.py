"""The console under ASGI: `uvicorn dashboard.asgi:application`.

Around Django stand a limit on request bodies (Django writes a body to disk before anybody looks at it) and the server's lifespan,
by which open live streams end when the server stops.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application

from ops.jobs.errors import OpsError

Message = Any  # a dictionary of the ASGI specification
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

THROWN_AWAY_BYTES = 16 << 20  # of a body that is too big; more is not even read
UPLOADS = ("/diagnose/", "/benchmarks/import/")  # take files: more than other addresses, of people who are signed in
FORM_BYTES = 1 << 20  # of a form around a file
THROWN_AWAY_S = 10
DEAD_PEER_MS = 12_000  # and a ping every 15 s: a dead stream is gone within 30 s

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
try:
    django_application = get_asgi_application()
except OpsError as error:  # expected: a state folder that cannot be used. One sentence, no traceback
    sys.exit(str(error))


async def application(scope: Message, receive: Receive, send: Send) -> None:
    """Django, and what the server itself says."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] == "http":
        await _http(scope, receive, send)
    else:
        raise ValueError(f"no {scope['type']} here")


async def _http(scope: Message, receive: Receive, send: Send) -> None:
    from django.conf import settings

    limit, thrown_away = settings.MAX_BODY_BYTES, THROWN_AWAY_BYTES
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > limit and scope["path"] in UPLOADS and await _is_signed_in(headers):
        limit = settings.DIAGNOSE_MAX_BYTES + FORM_BYTES
        thrown_away = 4 * limit
    if not length.isdigit() or int(length) > limit:
        if length.isdigit() and int(length) <= thrown_away:
            await _throw_away(receive, thrown_away)
        await _refuse(scope, send, limit)
        return
    if scope["path"] == "/live/":
        _give_up_on_dead_peers(send)
    if b"transfer-encoding" not in headers:  # the server itself holds a body to its Content-Length
        await django_application(scope, receive, send)
        return
    seen, started = 0, False

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            return {"type": "http.disconnect"}  # Django then throws away what it has, and answers nothing
        return message

    async def noted(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    await django_application(scope, counted, noted)
    if seen > limit and not started:
        await _throw_away(receive, thrown_away)
        await _refuse(scope, send, limit)


async def _is_signed_in(headers: dict[bytes, bytes]) -> bool:
    """Whether the request's cookie is that of a session with a user; its views ask again, and for more."""
    return await sync_to_async(_session_has_user, thread_sensitive=False)(headers.get(b"cookie", b"").decode("latin-1"))


def _session_has_user(cookies: str) -> bool:
    from django.conf import settings
    from django.contrib.auth import SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore
    from django.db import DatabaseError, connections
    from django.http import parse_cookie

    key = parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME)
    try:
        return key is not None and SESSION_KEY in SessionStore(key)
    except DatabaseError:  # Django says so when it looks itself; until then nobody is known
        return False
    finally:
        connections.close_all()  # this thread's: no request ends here that would close them


async def _throw_away(receive: Receive, most: int) -> None:
    """Reads what still comes of a body, up to a limit: browsers show an answer only once they have sent everything."""
    seen = 0
    try:
        async with asyncio.timeout(THROWN_AWAY_S):
            while seen <= most:
                message = await receive()
                seen += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
    except TimeoutError:
        return


async def _refuse(scope: Message, send: Send, limit: int) -> None:
    """413 as one of the console's own pages (or JSON): Django gets the request without its body."""
    from dashboard.middleware import TOO_BIG

    bodies: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def empty() -> Message:
        if bodies:
            return bodies.pop()
        await asyncio.Event().wait()  # until Django has answered, and cancels this
        return None

    async def last(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    plain = [(name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")]
    await django_application({**scope, "headers": plain, TOO_BIG: limit}, empty, last)


def _give_up_on_dead_peers(send: Send) -> None:
    """A live stream whose browser vanished without a word (or does not read) is closed within DEAD_PEER_MS of the next ping; the system's own
    limit is a quarter of an hour. ASGI has no word for it: this asks uvicorn's connection, and does nothing under another server."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)


async def _lifespan(receive: Receive, send: Send) -> None:
    import threading

    from dashboard.live import Hub, end_streams_on_signals

    hub = Hub.current()
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            if threading.current_thread() is threading.main_thread():
                end_streams_on_signals()
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await hub.aclose()
            await send({"type": "lifespan.shutdown.complete"})
            return
