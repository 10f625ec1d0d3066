"""The Diagnose page: a log pasted, uploaded, or read where it lies; what is no log is told, and nothing is kept."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard import log_uploads
from dashboard.models import Job, Service
from ops.jobs.errors import BadInput
from tests.dashboard.pages import factory
from tests.dashboard.pages.reading import text

PAGE = "/diagnose/"
HEALTHY = "INFO 03-02 10:26:31 [api_server.py:1346] vLLM API server version 0.16.0\nINFO:     Application startup complete.\n"


@pytest.fixture
def visitor(member: Client) -> Client:
    return member


def uploaded(data: bytes, name: str = "vllm.log") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, data)


def sent(visitor: Client, data: bytes, **more: Any) -> Any:
    return visitor.post(PAGE, {"text": "", "file": uploaded(data, more.pop("name", "vllm.log")), **more})


@pytest.mark.parametrize(("pack", "said"), [
    (lambda log: log.encode(), "105 lines, 11"), (lambda log: gzip.compress(log.encode()), "packed with gzip"),
    (lambda log: log.encode("utf-16"), "105 lines"), (lambda log: log.replace("\n", "\r\n").encode(), "105 lines"),
    (lambda log: b"\0" * 900 + log.encode("latin-1", "replace") + b"\xff\xfe\x80", "lines"),
    (lambda log: log.encode() + b"x" * 3_000_000, "lines"),
], ids=["plain", "gzip", "utf-16", "crlf", "broken", "a-line-without-end"])
def test_an_uploaded_log_is_diagnosed_whatever_its_form(visitor: Client, pack: Any, said: str) -> None:
    seen = text(sent(visitor, pack(factory.crash_log()))).replace("\u202f", " ")
    assert "flashinfer-cubin version (0.6.3) does not match" in seen and said in seen and "vllm.log" in seen and "Line 44 of 1" in seen
    assert "layout: vLLM's own lines" in seen and "this could have been seen before the start" in seen


@pytest.mark.parametrize(("data", "said"), [
    (b"", "This file is empty"), (b"\x28\xb5\x2f\xfd" + b"x" * 99, "packed with zstd"), (b"PK\x03\x04" + b"x" * 99, "packed with zip"),
    (b"ab\0\0" * 3000, "no text"), (gzip.compress(gzip.compress(b"x", mtime=0), mtime=0), "twice"),
    (b"\x1f\x8b\x08 this is no gzip at all", "cannot be unpacked"),
])
def test_what_is_no_log_is_said(visitor: Client, data: bytes, said: str) -> None:
    answer = sent(visitor, data)
    assert answer.status_code == 400 and said in answer.content.decode() and "No fault" not in answer.content.decode()


def test_a_file_over_the_limit_is_refused_with_the_command_that_has_none(visitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "DIAGNOSE_MAX_BYTES", 100)
    answer = sent(visitor, b"x" * 101)
    assert answer.status_code == 400 and "larger than 100" in answer.content.decode() and "python -m ops diagnose LOGFILE" in answer.content.decode()


def test_a_small_file_that_unpacks_to_a_disk_full_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_uploads, "UNPACKED_BYTES", 4 << 20)
    for filling in (b"\0", b"x", b"x\n"):
        packed = gzip.compress(b"log\n" * 3000 + filling * (6 << 20))
        with pytest.raises(BadInput, match="Unpacked"):
            log_uploads.read_upload(uploaded(packed), limit=1 << 20)


def test_gzip_that_was_cut_is_read_to_where_it_was_cut() -> None:
    noise = "".join(f"{n * 7919 % 100_003}\n" for n in range(4000))
    whole = gzip.compress(f"{factory.crash_log()}{noise}".encode())
    assert log_uploads.read_upload(uploaded(whole[:len(whole) * 3 // 4]), limit=1 << 20).found.fault


def test_nothing_pasted_is_told_and_a_healthy_log_calmly(visitor: Client) -> None:
    answer = visitor.post(PAGE, {"text": " \n"})
    assert answer.status_code == 400 and "There is nothing to read" in answer.content.decode()
    seen = text(visitor.post(PAGE, {"text": HEALTHY}))
    assert "No fault was found in 2 lines The server was answering where this log ends." in seen and "Read: 2 lines" in seen


def test_what_no_server_wrote_is_not_said_to_be_starting(visitor: Client) -> None:
    seen = text(visitor.post(PAGE, {"text": "Dear diary,\nall is well.\n"}))
    assert "No fault was found in 2 lines These lines tell of no start" in seen and "; layout:" not in seen


def test_more_text_than_a_form_may_hold_is_refused_in_words(visitor: Client) -> None:
    answer = visitor.post(PAGE, {"text": "ä" * 600_000})
    assert answer.status_code == 413 and "a long log can be chosen as a file" in answer.content.decode()


def test_with_its_service_the_job_that_helps_is_offered(visitor: Client, story: factory.Story) -> None:
    body = visitor.post(PAGE, {"text": factory.crash_log(), "about": "practice/kimi-k25"}).content.decode()
    assert "/services/practice/kimi-k25/plan/" in body and body.count("btn-primary") == 1
    assert "/plan/" not in visitor.post(PAGE, {"text": factory.crash_log()}).content.decode()


def test_the_log_of_a_service_is_read_by_a_job(visitor: Client, story: factory.Story, redis_url: str) -> None:
    answer = visitor.post(PAGE, {"own": "practice/kimi-k25"})
    job = Job.objects.get()
    assert (answer.url, job.type, job.service) == (f"/jobs/{job.number}/", "diagnose", Service.objects.get())
    assert "no such service" in visitor.post(PAGE, {"own": "practice/gone"}).content.decode()


def test_a_file_name_and_lines_are_text(visitor: Client) -> None:
    body = sent(visitor, b"ValueError: <script>alert(1)</script>\n", name="<img src=x onerror=alert(1)>.log").content.decode()
    assert "<script>alert" not in body and "<img" not in body


@pytest.mark.parametrize(("line", "words"), [
    ('{"log":"INFO 03-02\\n","stream":"stderr"}', "docker's JSON lines"), ('{"__CURSOR":"s=1","MESSAGE":"x"}', "journal entries as JSON"),
    ("vllm-1  | INFO 03-02 10:00:00 [core.py:1] x", "docker compose"), ("Mar  2 04:11:07 gpu01 vllm[12]: INFO x", "a journal"),
    ("2026-03-02T04:11:07.1Z stdout F x", "kubernetes (CRI)"), ("(RayWorkerWrapper pid=12, ip=10.0.0.2) INFO 03-02 10:00:00 [x.py:1] a", "Ray"),
    ("\x1b[0;36m(EngineCore_DP0 pid=1)\x1b[0;0m INFO 03-02 10:00:00 [core.py:1] x", "vLLM's own lines"), ("Dear diary", ""), ("", ""),
])
def test_the_layout_is_told_where_it_is_known(line: str, words: str) -> None:
    assert log_uploads.layout("\n".join([line] * 5)) == words


def test_a_big_upload_lies_in_a_file_and_is_gone_afterwards(visitor: Client, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "FILE_UPLOAD_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(settings, "FILE_UPLOAD_MAX_MEMORY_SIZE", 1000)
    seen: list[int] = []
    whole = log_uploads.read_upload
    monkeypatch.setattr(log_uploads, "read_upload", lambda upload, limit: seen.append(len(list(tmp_path.iterdir()))) or whole(upload, limit=limit))
    assert "No fault was found in 30,000 lines" in text(sent(visitor, b"INFO 03-02 10:00:00 [core.py:1] step\n" * 30_000))
    assert seen == [1] and not list(tmp_path.iterdir())
