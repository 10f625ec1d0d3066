"""A node of its own has no channel yet: its service's page says what can be done without one."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.models import Channel
from tests.dashboard.pages import factory


@pytest.mark.django_db
def test_a_redeploy_without_a_channel_is_told_what_works_without_one(admin: User) -> None:
    story = factory.Story()
    story.node()
    story.service()
    Channel.objects.all().delete()
    client = Client()
    client.force_login(admin)
    response = client.post("/services/practice/kimi-k25/plan/")
    assert response.status_code == 400
    assert "Only the practice box has a channel today" in response.content.decode()


@pytest.mark.django_db
def test_pages_offer_no_redeploy_that_could_only_be_refused(admin: User) -> None:
    story = factory.Story()
    story.node()
    story.service()
    Channel.objects.all().delete()
    client = Client()
    client.force_login(admin)
    for path in ("/", "/services/practice/kimi-k25/"):
        text = client.get(path).content.decode()
        assert "Redeploy…" not in text
        assert "No redeploy: there is no channel" in text
