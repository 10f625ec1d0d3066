"""Whether the console works, for load balancers and people with curl. Says no more than that: anybody may ask."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from dashboard import redis_clients
from dashboard.views.errors import wants_json
from ops.jobs.errors import OpsError


@login_not_required
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """200 `ok` if all is well, else 503; one line each for the database, Redis and the recorder ("ok", "away", "unknown")."""
    found = {"database": _database(), **_redis_and_recorder()}
    well = all(state == "ok" for state in found.values())
    status = 200 if well else 503
    if wants_json(request):
        return JsonResponse({"ok": well, **found}, status=status)
    lines = ["ok" if well else "not ok", *(f"{name}: {state}" for name, state in found.items())]
    return HttpResponse("\n".join(lines) + "\n", status=status, content_type="text/plain; charset=utf-8")


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    except DatabaseError:
        return "away"
    return "ok"


def _redis_and_recorder() -> dict[str, str]:
    try:
        client = redis_clients.connect(timeout_s=2)
        try:
            return {"redis": "ok", "recorder": "ok" if client.exists(redis_clients.RECORDER_ALIVE) else "away"}
        finally:
            client.close()
    except (RedisError, OpsError):
        return {"redis": "away", "recorder": "unknown"}
