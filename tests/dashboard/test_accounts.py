from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from dashboard import accounts
from dashboard.by_hand import by_hand
from dashboard.launcher.earlier import Start
from dashboard.models import AuditEntry, SignInToken
from ops.agent.config import REPOSITORY
from ops.jobs.errors import BadInput

pytestmark = pytest.mark.django_db


def link() -> str:
    out = StringIO()
    call_command("sign_in_link", stdout=out)
    return urlsplit(out.getvalue().strip()).path


def test_there_is_no_user_before_the_first_link() -> None:
    assert not User.objects.exists()


def test_the_first_link_makes_a_superuser_without_password() -> None:
    link()
    admin = User.objects.get()
    assert (admin.username, admin.is_superuser, admin.has_usable_password()) == ("admin", True, False)


def test_only_the_hash_of_a_token_is_kept() -> None:
    token = accounts.make_token(accounts.first_admin())
    stored = SignInToken.objects.get()
    assert len(token) >= 43  # 256 bits
    assert token not in str(stored.__dict__) and len(stored.sha256) == 64


def test_looking_at_a_link_uses_nothing_up(client: Client) -> None:
    path = link()
    for _ in range(3):
        page = client.get(path)
        assert page.status_code == 200 and "sessionid" not in client.cookies and "<form" in page.content.decode()
    assert client.post(path).status_code == 302
    assert client.session["_auth_user_id"]


def test_a_link_works_once(client: Client) -> None:
    path = link()
    assert client.post(path).status_code == 302
    assert Client().post(path).status_code == 410
    assert Client().get(path).status_code == 410


def test_a_link_ends_after_its_time(client: Client) -> None:
    path = link()
    SignInToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.post(path).status_code == 410


def test_the_link_of_a_locked_user_does_not_work(client: Client) -> None:
    path = link()
    User.objects.update(is_active=False)
    assert client.post(path).status_code == 410


def test_a_nonsense_token_is_refused(client: Client) -> None:
    assert client.post("/sign-in/nonsense/").status_code == 410


@pytest.mark.django_db(transaction=True)
def test_of_two_that_use_a_link_at_once_one_wins() -> None:
    token = accounts.make_token(accounts.first_admin())
    together, won = Barrier(2), []

    def use() -> None:
        together.wait()
        won.append(accounts.use_token(token))
        connection.close()

    threads = [Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(user is None for user in won) == [False, True]


def test_a_link_for_an_unknown_user_is_refused_once_there_is_an_admin(admin: User) -> None:
    with pytest.raises(BadInput):
        call_command("sign_in_link", user="nobody")


def test_a_password_signs_in_where_one_was_set(client: Client, operator: User) -> None:
    answer = client.post("/sign-in/", {"username": "olga", "password": "correct horse battery", "next": "/jobs/"})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/jobs/")
    assert AuditEntry.objects.filter(action="account.signed_in", by=operator).exists()


def test_a_wrong_password_is_refused_and_noted(client: Client, operator: User) -> None:
    answer = client.post("/sign-in/", {"username": "olga", "password": "guess"})
    assert answer.status_code == 403 and "_auth_user_id" not in client.session
    assert AuditEntry.objects.filter(action="account.sign_in_refused", subject="olga").exists()


def test_an_unusable_password_is_no_password(client: Client) -> None:
    accounts.first_admin()
    for password in ("", "!", "admin"):
        assert client.post("/sign-in/", {"username": "admin", "password": password}).status_code == 403


@pytest.mark.parametrize("elsewhere", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "%2f%2fevil.example", "jobs",
                                       "/\\evil.example"])
def test_signing_in_leads_nowhere_else(client: Client, operator: User, elsewhere: str) -> None:
    answer = client.post("/sign-in/", {"username": "olga", "password": "correct horse battery", "next": elsewhere})
    assert answer.headers["Location"] == "/"
    assert client.get("/sign-in/", {"next": elsewhere}).headers["Location"] == "/"


def test_the_session_gets_a_new_key_at_sign_in(client: Client, operator: User) -> None:
    client.get("/sign-in/")
    session = client.session
    session["x"] = 1
    session.save()
    before = session.session_key
    client.post("/sign-in/", {"username": "olga", "password": "correct horse battery"})
    assert client.session.session_key != before


def test_signing_out_needs_a_post_and_ends_the_session(client: Client, operator: User) -> None:
    client.force_login(operator)
    assert client.get("/sign-out/").status_code == 405
    assert client.post("/sign-out/").status_code == 302
    assert "_auth_user_id" not in client.session


def test_a_link_leads_to_the_console_that_runs(settings: Any, tmp_path: Path) -> None:
    settings.STATE = tmp_path
    start = Start(tmp_path)
    start.write(address="http://127.0.0.1:8599")
    out, said = StringIO(), StringIO()
    call_command("sign_in_link", stdout=out, stderr=said)
    assert out.getvalue().startswith("http://127.0.0.1:8599/") and said.getvalue() == ""
    start.release()
    call_command("sign_in_link", stdout=out, stderr=said)
    assert "No console runs" in said.getvalue()


def test_a_folder_without_a_database_is_told_without_a_traceback(tmp_path: Path) -> None:
    environment = {**os.environ, "ROUNDHOUSE_STATE": str(tmp_path / "state"), "ROUNDHOUSE_DATABASE_URL": ""}
    done = subprocess.run([sys.executable, "manage.py", "sign_in_link"], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("No console has run with the state folder") and "hint: " in done.stderr


@pytest.mark.parametrize(("state", "public", "private"), [
    ("var", "", ""), ("var/practice", "ROUNDHOUSE_STATE=var/practice ", "ROUNDHOUSE_STATE=var/practice "),
    ("/srv/my state", "ROUNDHOUSE_STATE=STATE_FOLDER ", "ROUNDHOUSE_STATE='/srv/my state' ")])
def test_commands_on_pages_name_the_state_folder(monkeypatch: pytest.MonkeyPatch, state: str, public: str, private: str) -> None:
    monkeypatch.setenv("ROUNDHOUSE_STATE", str(REPOSITORY / state))
    monkeypatch.setattr(sys, "executable", str(REPOSITORY / ".venv" / "bin" / "python"))
    assert by_hand("manage.py sign_in_link", tell_paths=False) == f"{public}.venv/bin/python manage.py sign_in_link"
    assert by_hand("manage.py sign_in_link") == f"{private}.venv/bin/python manage.py sign_in_link"
