"""A node that lies: whatever it says is text on every page, and in the names of files to download."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.models import Job, Service, ShelvedPatch
from tests.dashboard.pages import factory

pytestmark = pytest.mark.django_db
SERVICE = "/services/practice/kimi-k25/"
OF_A_SERVICE = ("", "environment/", "environment/lock.txt", "integrity/", "shelf/", "plan/", "run/rollback/", "run/guards-apply/", "run/recipe/",
                "launch/", "smoke/", "run/restart/", "run/remove-release/", "run/start/", "run/stop/", "run/reset-failed/", "run/leftovers/")


@pytest.fixture
def visitor(db: None) -> Client:
    client = Client(raise_request_exception=True)
    client.force_login(User.objects.create_superuser("admin", password="correct horse battery"))
    return client


def pages() -> Iterator[str]:
    yield from ("/", "/nodes/practice/", "/services/", "/jobs/", "/benchmarks/", "/benchmarks/compare/", "/cleanup/", "/settings/")
    yield from (f"{SERVICE}{path}" for path in OF_A_SERVICE)
    for patch in ShelvedPatch.objects.filter(forgotten_at=None)[:4]:
        yield from (f"{SERVICE}shelf/{patch.pk}/", f"{SERVICE}shelf/{patch.pk}/download/", f"{SERVICE}run/shelf-forget/?patch={patch.pk}",
                    f"{SERVICE}shelf/saves/{patch.folder}/download/")
    yield from ("/cleanup/practice/", "/cleanup/practice/scan/", "/settings/kinds/")
    for job in Job.objects.all():
        yield from (f"/cleanup/manifests/{job.number}/", f"/cleanup/manifests/{job.number}/md/", f"/cleanup/manifests/{job.number}/csv/",
                    f"/jobs/{job.number}/", f"/jobs/{job.number}/log/", f"/jobs/{job.number}/report.md", f"/jobs/{job.number}/integrity/",
                    f"/jobs/{job.number}/recipe.json", f"/plans/{job.number}/")
    for release in Service.objects.get().releases:
        yield f"{SERVICE}run/rollback/?release={release['name']}"


def test_nothing_that_a_node_says_is_markup(visitor: Client) -> None:
    factory.hostile()
    seen = 0
    for path in dict.fromkeys(pages()):
        answer = visitor.get(path)
        assert answer.status_code in (200, 302, 400, 404, 405, 409), (path, answer.status_code)
        assert re.fullmatch(r'((attachment|inline); filename="[\w.+-]+")?', answer.headers.get("Content-Disposition", ""), re.ASCII), path
        if not answer.headers["Content-Type"].startswith("text/html"):
            assert answer.headers["X-Content-Type-Options"] == "nosniff", path
            continue
        body = answer.content.decode()
        seen += "window.canary" in body
        assert not re.search("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\x1b\x00]", body), path
        assert "<script>window" not in body and "<img src=x" not in body and "<a href=javascript" not in body, path
        assert not re.search(r"<[^>]*\s(on[a-z]+|style)=", re.sub(r'"[^"]*"', '""', body)), path
    assert seen > 15
