from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from redis.exceptions import ConnectionError as RedisAway

from dashboard.middleware import ExpectedErrors, SignInRequired
from dashboard.views import errors
from ops.jobs.errors import BadInput, Busy, OpsError, Refused, Timeout

pytestmark = pytest.mark.django_db


def as_json(error: Exception) -> HttpResponse:
    middleware = ExpectedErrors(lambda request: HttpResponse())
    answer = middleware.process_exception(RequestFactory().get("/x/", headers={"Accept": "application/json"}), error)
    assert answer is not None
    return answer


@pytest.mark.parametrize(("error", "status"), [
    (BadInput("a"), 400), (Refused("a"), 403), (Busy("a"), 409), (Timeout("a"), 504), (OpsError("a"), 502),
    (RedisAway("x"), 503), (OperationalError("database is locked"), 503)])
def test_an_expected_failure_has_its_status_and_the_one_json_shape(error: Exception, status: int) -> None:
    answer = as_json(error)
    assert answer.status_code == status
    assert set(json.loads(answer.content)["error"]) == {"kind", "what", "why", "hint", "facts"}


def test_a_bug_is_not_dressed_as_an_expected_failure() -> None:
    assert ExpectedErrors(lambda request: HttpResponse()).process_exception(RequestFactory().get("/"), KeyError("x")) is None


@pytest.mark.parametrize(("status", "view"), [
    (400, lambda request: errors.bad_request(request, ValueError())), (403, lambda request: errors.permission_denied(request, PermissionError())),
    (403, lambda request: errors.csrf_failure(request, "Origin checking failed")), (404, lambda request: errors.not_found(request, Http404())),
    (500, errors.server_error)])
def test_every_page_says_what_happened_and_what_to_do(status: int, view: object, rf: RequestFactory, operator: User) -> None:
    request: HttpRequest = rf.get("/x/")
    request.user = operator
    answer = view(request)  # type: ignore[operator]
    assert answer.status_code == status and len(answer.content.decode()) > 50 and "None" not in answer.content.decode()


def test_text_in_an_error_is_text(rf: RequestFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(names: list[str]) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(errors, "select_template", broken)
    answer = errors.error_response(rf.get("/"), 400, BadInput("<script>alert(1)</script>", hint="do it"))
    assert "<script>" not in answer.content.decode() and "do it" in answer.content.decode()


def test_programs_and_htmx_are_told_that_they_are_not_signed_in(client: Client) -> None:
    answer = client.get("/", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["error"]["kind"]) == (401, "not_signed_in")
    assert client.get("/", headers={"HX-Request": "true"}).headers["HX-Redirect"] == "/sign-in/"
    assert issubclass(SignInRequired, object)


def test_a_database_that_is_away_before_any_view_is_a_503(client: Client, operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*arguments: object, **more: object) -> None:
        raise OperationalError("database is locked")

    client.force_login(operator)
    client.raise_request_exception = False
    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", away)
    answer = client.get("/", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["error"]["kind"]) == (503, "unavailable")
