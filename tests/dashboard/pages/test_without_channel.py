"""A node of its own has no channel yet: its service's pages say what can be done without one."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.models import Channel
from tests.dashboard.pages import factory

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(admin: User) -> Client:
    """Signed in to a console with one service and no channel."""
    story = factory.Story()
    story.node()
    story.service()
    Channel.objects.all().delete()
    signed_in = Client()
    signed_in.force_login(admin)
    return signed_in


def test_a_redeploy_without_a_channel_is_told_what_works_without_one(client: Client) -> None:
    response = client.post("/services/practice/kimi-k25/plan/")
    assert response.status_code == 400
    page = response.content.decode()
    assert "An admin says in Settings where wheels come from" in page
    assert "need no channel" in page


@pytest.mark.parametrize("path", ["/", "/services/practice/kimi-k25/"])
def test_pages_offer_no_redeploy_that_could_only_be_refused(client: Client, path: str) -> None:
    text = client.get(path).content.decode()
    assert "Redeploy…" not in text
    assert "No redeploy: there is no channel" in text
