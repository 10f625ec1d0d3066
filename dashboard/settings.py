"""The console's settings. All come from the state folder and from `ROUNDHOUSE_*` variables; there is no file to edit.

| variable | meaning | default |
| --- | --- | --- |
| `ROUNDHOUSE_STATE` | the state folder | `var/` beside the code |
| `ROUNDHOUSE_DATABASE_URL` | `postgresql://user:password@host:port/name` | SQLite in the state folder |
| `ROUNDHOUSE_REDIS_URL` | a running Redis | the embedded one, by `<state>/redis/redis.json` |
| `ROUNDHOUSE_HOSTS` | more host names under which people reach the console, separated by commas | none: loopback only |
| `ROUNDHOUSE_HTTPS` | `1`: people come by HTTPS, through a proxy that sets X-Forwarded-Proto | plain HTTP, for loopback |
| `ROUNDHOUSE_STREAMS_PER_USER` | live streams that one user may hold open in one web process | 6 |
| `ROUNDHOUSE_STREAMS_PER_PROCESS` | live streams in one web process | 1000 |
| `ROUNDHOUSE_MAX_BODY_BYTES` | largest request body | 1 MiB |
| `ROUNDHOUSE_DIAGNOSE_MAX_BYTES` | largest file that a signed-in person may upload: a log to diagnose, results to import | 64 MiB |

Importing this makes the state folder and its `secret_key` (both private to this user) and touches nothing else on disk.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import plotly

from ops.agent.config import REPOSITORY, make_private, state_folder
from ops.jobs.errors import BadInput

BASE_DIR = REPOSITORY
STATE = state_folder()
PLOTLY_ASSETS = Path(plotly.__file__).parent / "package_data"


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        number = int(text) if text else default
    except ValueError:
        number = 0
    if number < 1:
        raise BadInput(f"`{name}` must be a whole number above 0, not `{text}`")
    return number


def _secret_key() -> str:
    """Made once, at the first start, and kept in the state folder with mode 0600."""
    kept = STATE / "secret_key"
    hint = "Make it writable for this user, or choose another one with ROUNDHOUSE_STATE"
    try:
        make_private(STATE)
        if not kept.exists():
            made = STATE / f".secret_key.{os.getpid()}"
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(secrets.token_urlsafe(64))
                os.link(made, kept)  # whoever links first wins: two processes that start together read one key
            except FileExistsError:
                pass  # the other process was quicker; its key is read below
            finally:
                made.unlink()
        key = kept.read_text().strip()
    except OSError as error:
        raise BadInput(f"The state folder `{STATE}` cannot be used: {error.strerror or error}", hint=hint) from error
    if len(key) < 50:
        raise BadInput(f"`{kept}` holds no usable key", hint="Delete the file: the next start makes a new one, and everybody signs in again")
    return key


def _database() -> dict[str, Any]:
    url = os.environ.get("ROUNDHOUSE_DATABASE_URL", "")
    if not url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(STATE / "db.sqlite3"),
            "OPTIONS": {
                "timeout": 20,
                "transaction_mode": "IMMEDIATE",  # a writer waits its turn at BEGIN, and never fails half way with "database is locked"
                # FULL: what the recorder has told the node that it stored is on the disk, also after a power cut
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-16000; PRAGMA temp_store=MEMORY",
            },
        }
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"} or not parts.path.strip("/"):
        raise BadInput("ROUNDHOUSE_DATABASE_URL is not a PostgreSQL address", hint="Use postgresql://user:password@host:5432/name")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
        "CONN_HEALTH_CHECKS": True,
    }


SECRET_KEY = _secret_key()
DEBUG = False
HTTPS = os.environ.get("ROUNDHOUSE_HTTPS", "") == "1"
EXTRA_HOSTS = [name.strip() for name in os.environ.get("ROUNDHOUSE_HOSTS", "").split(",") if name.strip()]
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *EXTRA_HOSTS]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.humanize",
    "dashboard.apps.StaticFiles",
    "django_htmx",
    "dashboard.apps.DashboardConfig",
]
MIDDLEWARE = [
    "dashboard.middleware.SecurityHeaders",
    "django.middleware.security.SecurityMiddleware",
    "dashboard.middleware.StaticFiles",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "dashboard.middleware.VisibleText",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "dashboard.middleware.SignInRequired",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "dashboard.middleware.ExpectedErrors",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "dashboard.urls"
ASGI_APPLICATION = "dashboard.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "dashboard.permissions.context",
                "dashboard.context_processors.shell",
            ],
        },
    },
]

DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

STATIC_URL = "static/"
STATIC_ROOT = STATE / "static"
STATICFILES_DIRS = [BASE_DIR / "static", ("plotly", PLOTLY_ASSETS)]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "dashboard.middleware.HashedStaticFiles"},
}
WHITENOISE_ALLOW_ALL_ORIGINS = False  # nobody else needs our scripts and fonts

LANGUAGE_CODE = "en"
USE_I18N = False
TIME_ZONE = "UTC"
USE_TZ = True

# Accounts
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "sign_in"
LOGIN_REDIRECT_URL = "fleet"
LOGOUT_REDIRECT_URL = "sign_in"
SIGN_IN_LINK_MINUTES = 15

# Security. Cookies are Secure, and HTTP leads to HTTPS, where people come by HTTPS; on loopback there is none.
SESSION_COOKIE_NAME = "roundhouse_session"
CSRF_COOKIE_NAME = "roundhouse_csrf"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Strict"
SESSION_COOKIE_AGE = 14 * 24 * 3600
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
CSRF_FAILURE_VIEW = "dashboard.views.errors.csrf_failure"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# W005, W021: subdomains and the browsers' preload list are for the owner of the domain to decide, not for one console on it
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
if HTTPS:
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_REDIRECT_EXEMPT = [r"^health/$"]
    CSRF_TRUSTED_ORIGINS = [f"https://{name}" for name in EXTRA_HOSTS if not name.startswith(".")]
else:
    # HSTS, the redirect, Secure cookies: impossible on plain HTTP, which is right on loopback only. `checks.py` warns if
    # there are other hosts (roundhouse.W001).
    SILENCED_SYSTEM_CHECKS += ["security.W004", "security.W008", "security.W012", "security.W016"]

MAX_BODY_BYTES = _number("ROUNDHOUSE_MAX_BODY_BYTES", 1 << 20)
DIAGNOSE_MAX_BYTES = _number("ROUNDHOUSE_DIAGNOSE_MAX_BYTES", 64 << 20)
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
FILE_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
DATA_UPLOAD_MAX_NUMBER_FIELDS = 900  # a service may have 500 variables, or 50 own smoke questions of a dozen fields
DATA_UPLOAD_MAX_NUMBER_FILES = 4
STREAMS_PER_USER = _number("ROUNDHOUSE_STREAMS_PER_USER", 6)
STREAMS_PER_PROCESS = _number("ROUNDHOUSE_STREAMS_PER_PROCESS", 1000)

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "django": {"handlers": ["console"], "level": "WARNING", "propagate": False},
        "django.security.DisallowedHost": {"handlers": ["console"], "level": "ERROR", "propagate": False},
        "httpx": {"level": "WARNING"},
    },
}
