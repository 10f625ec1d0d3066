"""Who may open and send what of cleanup: every address with every method, for nobody, for an operator, without the form's token; and that a long
history of purges costs a page no more than a short one."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.models import ArtifactKind, Job
from tests.dashboard.pages import cleanup_data, factory

pytestmark = pytest.mark.django_db
READ = ("/cleanup/", "/cleanup/practice/", "/cleanup/practice/rows/", "/cleanup/manifests/{purge}/", "/cleanup/manifests/{purge}/csv/",
        "/cleanup/manifests/{purge}/json/", "/cleanup/manifests/{purge}/md/", "/settings/kinds/")
SENT = ("/cleanup/practice/scan/", "/cleanup/practice/purge/")
ADMINS = ("/settings/kinds/new/", "/settings/kinds/bench-scratch/", "/settings/kinds/bench-scratch/remove/")
METHODS = ("get", "head", "post", "put", "patch", "delete", "options")


@pytest.fixture
def purge(story: factory.Story) -> Job:
    job, found = cleanup_data.scan_job(story)
    ArtifactKind.objects.create(name="bench-scratch", record=cleanup_data.OWN_KIND)
    return cleanup_data.purge_job(story, job, found)


def answers(client: Client, purge: Job, path: str, *methods: str) -> dict[str, int]:
    return {method: getattr(client, method)(path.format(purge=purge.number)).status_code for method in methods or METHODS}


def test_nobody_anonymous_sees_or_sends_any_of_it(client: Client, purge: Job) -> None:
    jobs = Job.objects.count()
    for path in (*READ, *SENT, *ADMINS):
        for method in METHODS:
            response = getattr(client, method)(path.format(purge=purge.number))
            assert response.status_code in (302, 401, 403, 405), (path, method, response.status_code)
            assert response.status_code != 302 or response["Location"].startswith("/sign-in/"), (path, method)
            assert b"practice" not in response.content, (path, method)
    assert Job.objects.count() == jobs and ArtifactKind.objects.exists()


def test_an_operator_reads_and_purges_but_manages_no_kinds_and_no_address_takes_a_method_that_it_does_not_know(member: Client, purge: Job) -> None:
    for path in READ:
        told = answers(member, purge, path)
        assert (told["get"], told["head"]) == (200, 200), path
        assert all(told[method] == 405 for method in ("put", "patch", "delete", "options")), (path, told)
        assert told["post"] == (200 if path == "/cleanup/practice/" else 405), path  # a form without scripts brings the page back
    for path in ADMINS:
        assert answers(member, purge, path, "get", "post") == {"get": 403, "post": 403}
    assert answers(member, purge, SENT[1], "get", "put", "delete") == {"get": 405, "put": 405, "delete": 405}
    assert answers(member, purge, SENT[0], "put", "delete", "options") == {"put": 405, "delete": 405, "options": 405}
    assert ArtifactKind.objects.exists()


def test_without_the_forms_token_nothing_starts(admin: User, purge: Job) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin)
    jobs = Job.objects.count()
    form = {"scan": str(purge.number - 1), "kinds": "core-dump", "step": "start"}
    for path in (*SENT, *ADMINS, "/cleanup/practice/"):
        assert client.post(path, form).status_code == 403, path
    assert Job.objects.count() == jobs


def test_a_long_history_of_purges_costs_a_page_no_more_than_a_short_one(visitor: Client, purge: Job) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert visitor.get("/cleanup/").status_code == 200
        return len(seen)

    queries()  # what is asked once for all pages is known by then
    short = queries()
    made: list[Any] = [Job(id=uuid.uuid4(), number=10_000 + n, type="purge" if n % 3 else "redeploy", node=purge.node, state="succeeded",
                           result=purge.result if n % 3 else {}, params=purge.params) for n in range(1000)]
    Job.objects.bulk_create(made)
    long = queries()
    assert long <= short + 40, (short, long)
