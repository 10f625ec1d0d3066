"""The console's settings for tests: a state folder of its own for each test process, plain static files, one database file."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

_folder = tempfile.mkdtemp(prefix="rh-state-")
_owner = os.getpid()
os.environ["ROUNDHOUSE_STATE"] = _folder
for _name in ("ROUNDHOUSE_REDIS_URL", "ROUNDHOUSE_DATABASE_URL", "ROUNDHOUSE_HOSTS", "ROUNDHOUSE_HTTPS", "ROUNDHOUSE_NODE_STATE"):
    os.environ.pop(_name, None)


@atexit.register
def _remove() -> None:
    if os.getpid() == _owner:  # not in a forked child
        shutil.rmtree(_folder, ignore_errors=True)


from dashboard.settings import *  # noqa: E402, F403
from dashboard.settings import DATABASES, STATE, STORAGES  # noqa: E402

# A file, not memory: async views and threads need a database that several connections can open
DATABASES["default"]["TEST"] = {"NAME": str(STATE / "test.sqlite3")}
DATABASES["default"]["OPTIONS"]["init_command"] = DATABASES["default"]["OPTIONS"]["init_command"].replace("synchronous=FULL", "synchronous=OFF")
STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick, for tests only
STATE.joinpath("static").mkdir(exist_ok=True)
