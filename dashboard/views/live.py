"""GET /live/: the one event stream of a page.

`?job=<uuid>&after=<seq>` (or Last-Event-ID, which a browser sends when it comes back) adds a job's events. Events: `hello`, `job` (id: seq,
data: the event), `telemetry` (data: one node's reading), `jobs` (data: `{"running", "job"}`), `bye` (the session ended: do not come back),
comments as pings every 15 s. Answers 503 with the console's JSON error when too many streams are open.
"""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit

from asgiref.sync import SyncToAsync, sync_to_async
from django.contrib.auth import get_user
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.views.decorators.http import require_GET

from dashboard import live as streams
from dashboard import permissions
from dashboard.models import Job
from ops.jobs.errors import BadInput, OpsError


@require_GET
async def live(request: HttpRequest) -> HttpResponseBase:
    """One stream. It holds no database connection while it waits, and gives the thread back that Django took for it."""
    user = request.user
    await sync_to_async(permissions.require)(user, "live")
    user_id: int = user.pk  # type: ignore[assignment]  # required above: nobody anonymous
    if not _is_ours(request.headers.get("Origin"), request.get_host()):
        return _refusal(403, OpsError("Another site may not listen to this console", kind="refused"))
    try:
        job_id, after = _wanted(request)
    except BadInput as error:
        return _refusal(400, error)
    if job_id and not await Job.objects.filter(pk=job_id).aexists():
        return _refusal(404, OpsError(f"There is no job `{job_id}`", kind="not_found"))
    hub = streams.Hub.current()
    try:
        hub.reserve(user_id)
    except streams.TooManyStreams as error:
        refusal = _refusal(503, error)
        refusal.headers["Retry-After"] = "5"
        return refusal
    session_key = request.session.session_key
    store = type(request.session)

    async def still_valid() -> bool:
        """Whether the session is still there and its user still active, with the password of then."""
        probe = HttpRequest()
        probe.session = store(session_key)

        return bool(await streams.in_database(lambda: get_user(probe).is_authenticated))

    # The thread is given back by the stream itself: middleware on the way out asks for one once more.
    response = StreamingHttpResponse(streams.stream(user_id, job_id=job_id, after=after, still_valid=still_valid, begun=_give_back_thread),
                                     content_type="text/event-stream; charset=utf-8")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _is_ours(origin: str | None, host: str) -> bool:
    """Whether a request with this Origin (browsers leave it out for pages of the same site) comes from the console's own pages."""
    try:
        return not origin or urlsplit(origin).netloc == host
    except ValueError:  # no address at all, such as `http://[`
        return False


def _wanted(request: HttpRequest) -> tuple[str | None, int]:
    """Job id (or None) and the number after which to send. Raises BadInput."""
    job_id = request.GET.get("job") or None
    if job_id:
        try:
            job_id = str(uuid.UUID(job_id))
        except ValueError as error:
            raise BadInput("`job` is not a job id") from error
    text = request.headers.get("Last-Event-ID") or request.GET.get("after") or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise BadInput("`after` is not a number of an event")
    return job_id, int(text)


def _refusal(status: int, error: OpsError) -> HttpResponse:
    return JsonResponse({"error": error.as_dict()}, status=status)  # always JSON: an EventSource shows no page


async def _give_back_thread() -> None:
    """Ends the thread, and its database connection, in which Django looked up session and user: it would wait there as long as the stream is open.
    (Django makes another one should it need it again.)"""
    await sync_to_async(connections.close_all)()
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = SyncToAsync.context_to_thread_executor.pop(context, None) if context else None
    if executor is not None:
        executor.shutdown(wait=False)
