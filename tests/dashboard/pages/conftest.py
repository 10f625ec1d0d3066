"""Who looks at the pages, and the console that they look at."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.dashboard.pages import factory


@pytest.fixture
def visitor(db: None, admin: User) -> Client:
    """An admin."""
    client = Client()
    client.force_login(admin)
    return client


@pytest.fixture
def member(db: None, operator: User) -> Client:
    """An operator."""
    client = Client()
    client.force_login(operator)
    return client


@pytest.fixture
def story(db: None, admin: User) -> factory.Story:
    made = factory.Story()
    made.node()
    made.service()
    return made
