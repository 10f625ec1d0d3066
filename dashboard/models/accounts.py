"""Who may come in, and what was done by whom. Users themselves are Django's."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class SignInToken(models.Model):
    """A one-time sign-in link. Only the SHA-256 of the token is stored."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class AuditEntry(models.Model):
    """One thing that a person (or the command line) asked for. Rows are only added."""

    at = models.DateTimeField(auto_now_add=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True)
    action = models.CharField(max_length=60)
    subject = models.CharField(max_length=200, blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["-at"]
