from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import plotly
import pytest

from dashboard.middleware import content_security_policy, inline_style_of_plotly
from ops.jobs.errors import BadInput

REPOSITORY = Path(__file__).resolve().parents[2]


def manage(*arguments: str, state: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    cleaned = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "DJANGO_"))}
    return subprocess.run([sys.executable, "-W", "error", "manage.py", *arguments], cwd=REPOSITORY, text=True, capture_output=True, timeout=60,
                          env={**cleaned, "ROUNDHOUSE_STATE": str(state), **environment})


def test_the_deploy_check_is_clean_on_loopback(tmp_path: Path) -> None:
    done = manage("check", "--deploy", "--fail-level", "WARNING", state=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_deploy_check_is_clean_behind_https(tmp_path: Path) -> None:
    done = manage("check", "--deploy", "--fail-level", "WARNING", state=tmp_path, ROUNDHOUSE_HTTPS="1", ROUNDHOUSE_HOSTS="gpu.example")
    assert done.returncode == 0, done.stderr


def test_another_host_without_https_is_told(tmp_path: Path) -> None:
    done = manage("check", "--deploy", "--fail-level", "WARNING", state=tmp_path, ROUNDHOUSE_HOSTS="gpu.example")
    assert done.returncode == 1
    assert "roundhouse.W001" in done.stderr


def test_starting_makes_one_private_secret_key_and_keeps_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    manage("check", state=state)
    key = (state / "secret_key").read_text()
    assert stat.S_IMODE((state / "secret_key").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    manage("check", state=state)
    assert (state / "secret_key").read_text() == key
    assert sorted(path.name for path in state.iterdir()) == ["secret_key"]


def test_a_state_folder_that_cannot_be_made_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = manage("check", state=tmp_path / "file" / "state")
    assert done.returncode == 1
    assert done.stderr.startswith("The state folder `")
    assert "Traceback" not in done.stderr
    assert "ROUNDHOUSE_STATE" in done.stderr


def test_a_database_address_that_is_none_is_refused(tmp_path: Path) -> None:
    done = manage("check", state=tmp_path, ROUNDHOUSE_DATABASE_URL="mysql://u:secret-pw@h/db")
    assert done.returncode == 1
    assert "PostgreSQL" in done.stderr and "secret-pw" not in done.stderr


def test_a_postgresql_address_is_read_with_all_its_parts(tmp_path: Path) -> None:
    program = "import json, dashboard.settings as s; print(json.dumps(s.DATABASES['default']))"
    environment = {"PATH": os.environ["PATH"], "ROUNDHOUSE_STATE": str(tmp_path),
                   "ROUNDHOUSE_DATABASE_URL": "postgresql://me:p%40ss@db.example:5433/round?sslmode=require"}
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, env=environment, text=True, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert (found["ENGINE"], found["NAME"], found["USER"], found["PASSWORD"], found["HOST"], found["PORT"], found["OPTIONS"]) == (
        "django.db.backends.postgresql", "round", "me", "p@ss", "db.example", "5433", {"sslmode": "require"})


def test_the_policy_allows_the_style_text_that_the_installed_plotly_inserts() -> None:
    """Computed here from the file, in another way than the product does."""
    script = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_text()
    start = script.index(".textContent='.maplibregl-map{") + len(".textContent='")
    style = script[start:script.index("'", start)]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in content_security_policy()
    assert "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='" in content_security_policy()  # of the empty string


def test_the_policy_has_no_unsafe_word_and_no_foreign_source() -> None:
    policy = content_security_policy()
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy
    assert re.search(r"default-src 'self';", policy) and re.search(r"frame-ancestors 'none'", policy)


@pytest.mark.parametrize("script", ["no style here", "a.textContent='x{}';b.textContent='y{}'"])
def test_a_plotly_that_inserts_styles_otherwise_is_noticed(script: str) -> None:
    with pytest.raises(BadInput):
        inline_style_of_plotly(script)


def test_the_migrations_say_what_the_models_say(tmp_path: Path) -> None:
    done = manage("makemigrations", "--check", "--dry-run", state=tmp_path)
    assert done.returncode == 0, done.stdout
