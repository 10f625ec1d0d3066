"""Pages. What several of them need stands here."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest


def signed_in(request: HttpRequest) -> User:
    """Who asks. The middleware lets nobody else through; should it ever, this raises PermissionDenied."""
    if not isinstance(request.user, User):
        raise PermissionDenied("You are not signed in")
    return request.user


def problems(form: Any) -> str:
    """What is wrong with a form, in one line."""
    told = {field: " ".join(str(error) for error in errors) for field, errors in form.errors.items()}
    return "; ".join(words if field == "__all__" else f"{field}: {words}" for field, words in told.items())
