"""Wrong settings, told by `manage.py check` before somebody meets them at night."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register


@register(Tags.security, deploy=True)
def other_hosts_need_https(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Passwords and sessions must not cross a network in the clear."""
    if settings.EXTRA_HOSTS and not settings.HTTPS:
        return [Warning(f"The console is reachable as {', '.join(settings.EXTRA_HOSTS)} without HTTPS",
                        hint="Put a proxy with TLS before it and set ROUNDHOUSE_HTTPS=1", id="roundhouse.W001")]
    return []


@register(Tags.security, deploy=True)
def hosts_are_named(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    if "*" in settings.ALLOWED_HOSTS:
        return [Warning("ROUNDHOUSE_HOSTS allows every host name", hint="Name the hosts under which people reach the console", id="roundhouse.W002")]
    return []


@register(Tags.database)
def the_database_driver_is_there(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    if settings.DATABASES["default"]["ENGINE"].endswith("postgresql") and not (find_spec("psycopg") or find_spec("psycopg2")):
        return [Error("ROUNDHOUSE_DATABASE_URL names PostgreSQL, but its driver is not installed", hint="Install the package `psycopg[binary]`",
                      id="roundhouse.E001")]
    return []
