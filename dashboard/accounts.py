"""How people come in: one-time links, of which only the hash is kept. There is no default password."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from dashboard.models import AuditEntry, SignInToken
from ops.jobs.errors import BadInput


def first_admin(username: str = "admin") -> User:
    """The user of that name; made as superuser, with no usable password, if this console has no user at all. Raises BadInput otherwise."""
    users = get_user_model()
    with transaction.atomic():
        if found := users.objects.filter(username=username).first():
            return found
        if users.objects.exists():
            names = ", ".join(users.objects.order_by("username").values_list("username", flat=True)[:10])
            raise BadInput(f"There is no user `{username}`", hint=f"Known users: {names}")
        made = users(username=username, is_staff=True, is_superuser=True)
        made.set_unusable_password()
        made.full_clean(exclude=["password"])
        made.save()
        AuditEntry.objects.create(action="account.created", subject=username, data={"superuser": True, "by": "command line"})
    return made


def make_token(user: User) -> str:
    """A new one-time token (256 bit); valid for `SIGN_IN_LINK_MINUTES`. Tokens that have passed are removed."""
    token = secrets.token_urlsafe(32)
    now = timezone.now()
    SignInToken.objects.filter(expires_at__lt=now - timedelta(days=1)).delete()
    SignInToken.objects.create(user=user, sha256=_hash(token), expires_at=now + timedelta(minutes=settings.SIGN_IN_LINK_MINUTES))
    AuditEntry.objects.create(action="account.link_made", subject=user.username)
    return token


def link_path(token: str) -> str:
    """The path of the sign-in link, to be put behind the console's address."""
    return reverse("sign_in_by_link", args=[token])


def is_usable(token: str) -> bool:
    """True if using the token now would work; does not use it."""
    return SignInToken.objects.filter(sha256=_hash(token), used_at=None, expires_at__gt=timezone.now(), user__is_active=True).exists()


def use_token(token: str) -> User | None:
    """The token's user, once: a conditional update decides, so that two requests cannot both win."""
    now = timezone.now()
    with transaction.atomic():
        if not SignInToken.objects.filter(sha256=_hash(token), used_at=None, expires_at__gt=now, user__is_active=True).update(used_at=now):
            return None
        return SignInToken.objects.select_related("user").get(sha256=_hash(token)).user


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
