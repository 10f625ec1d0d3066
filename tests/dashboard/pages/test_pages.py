"""Every page is complete as the server sends it, before any script runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.models import BenchmarkRun, Job, JobLock, Node, Service
from tests.dashboard.pages import factory
from tests.dashboard.pages.reading import text

PAGES = ("/", "/services/", "/jobs/", "/benchmarks/", "/benchmarks/compare/", "/diagnose/", "/cleanup/", "/settings/")
SERVICE = "/services/practice/kimi-k25/"


@pytest.mark.parametrize("path", PAGES)
def test_a_page_of_an_empty_console_teaches(visitor: Client, path: str) -> None:
    assert "Roundhouse" in text(visitor.get(path))


def test_the_empty_fleet_names_the_command_that_brings_a_node(visitor: Client) -> None:
    assert "make demo" in text(visitor.get("/"))


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("world", [factory.full, factory.failing])
def test_every_page_holds_no_inline_style_and_no_inline_script(visitor: Client, world: Any, path: str) -> None:
    world()
    body = visitor.get(path).content.decode()
    assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:", body)
    assert not re.search(r"<script(?![^>]*(?:src=|type=\"application/json\"))", body)


def test_fleet_says_what_needs_a_person_worst_first(visitor: Client) -> None:
    story = factory.failing()
    story.service(state="failed", mismatch=True, detail="The process ended with exit code 1")
    seen = text(visitor.get("/"))
    assert seen.index("kimi-k25 is down") < seen.index("kimi-k25 cannot start") < seen.index("failed")


def test_fleet_says_that_nothing_needs_a_person(visitor: Client, story: factory.Story) -> None:
    assert "Nothing needs you" in text(visitor.get("/"))


@pytest.mark.parametrize(("left", "needs"), [
    ({"free_bytes": 0}, "0 B are free."), ({"free_bytes": 9 * 10**9}, "9.0 GB are free."),
    ({"used_bytes": 10**9, "inodes_free": 10}, "100 % of its inodes are taken."),
    ({"free_bytes": 21 * 10**9}, ""), ({"free_bytes": None, "used_bytes": None, "inodes": None}, "")],
    ids=["no-byte", "little", "no-inode", "some", "not-read"])
def test_fleet_says_that_a_disk_is_nearly_full_and_leads_to_its_cleanup(
        visitor: Client, story: factory.Story, left: dict[str, Any], needs: str) -> None:
    disk = {"path": "/<i>", "what": "models", "total_bytes": 10**12, "used_bytes": 991 * 10**9, "free_bytes": 10**9, "inodes": 10**6,
            "inodes_free": 10**6, **left}
    Node.objects.filter(pk=story.the_node.pk).update(telemetry={**story.the_node.telemetry, "disks": [disk]})
    seen = text(visitor.get("/"))
    assert ("nearly full" in seen) is bool(needs) and needs in seen.replace("\u202f", " ")
    assert ('href="/cleanup/practice/">Clean up' in visitor.get("/").content.decode()) is bool(needs)


def test_fleet_shows_a_silent_node(visitor: Client) -> None:
    story = factory.Story()
    story.node(silent=True)
    story.service()
    assert "practice is silent" in text(visitor.get("/"))


def test_fleet_shows_memory_by_service_and_unclaimed(visitor: Client) -> None:
    factory.full()
    response = visitor.get("/")
    assert "unclaimed: python3, pid 41877, user llm, 0.9 GiB on GPU 7" in text(response)
    assert response.content.decode().split("disk-strip")[0].count('class="b-service"') == 8


def test_unknown_readings_are_not_shown_as_zero(visitor: Client, story: factory.Story) -> None:
    node = story.the_node
    for gpu in node.telemetry["gpus"]["gpus"]:
        gpu.update(used_bytes=None, utilization=None, power_w=None, temperature_c=None)
    node.save()
    seen = text(visitor.get("/"))
    assert "not read" in seen
    assert "not known" in seen
    assert " 0.0 GiB" not in seen


def test_a_mismatch_is_one_chip_of_two_halves(visitor: Client, story: factory.Story) -> None:
    story.service(mismatch=True)
    assert "flashinfer-python 0.6.4 ≠ flashinfer-cubin 0.6.3" in text(visitor.get("/")).replace("  ", " ")


@pytest.mark.parametrize("fragment", ["needs", "facts", "recent", "services"])
def test_fleet_fragments_are_the_parts_of_the_page(visitor: Client, fragment: str) -> None:
    factory.full()
    part = visitor.get(f"/fragments/{fragment}/?node=practice").content.decode()
    page = visitor.get("/").content.decode()
    tidy = [re.sub(r'name="(csrfmiddlewaretoken|idempotency_key)" value="[^"]*"|data-(since|ago)="[^"]*">[^<]*|width="[^"]*"|x="[^"]*"', "", t)
            for t in (part, page)]
    assert tidy[0].strip() in tidy[1]


def test_redeploy_starts_a_plan_and_goes_to_it(visitor: Client, story: factory.Story, redis_url: str) -> None:
    response = visitor.post(f"{SERVICE}plan/", {"idempotency_key": "a" * 32})
    job = Job.objects.get(type="plan")
    assert response.url == f"/plans/{job.number}/"
    assert job.params == {"channel": "practice", "version": None, "coupling": True, "mode": "full", "options": {}}


def test_pressing_redeploy_twice_makes_one_plan(visitor: Client, story: factory.Story, redis_url: str) -> None:
    first, second = (visitor.post(f"{SERVICE}plan/", {"idempotency_key": "a" * 32}).url for _ in range(2))
    assert first == second


def test_a_plan_may_choose_the_interpreter_and_another_cuda_build(visitor: Client, story: factory.Story, redis_url: str) -> None:
    visitor.post(f"{SERVICE}plan/", {"python": "3.12", "allow_variant_change": "on"})
    job = Job.objects.get(type="plan")
    assert job.params["options"] == {"python": "3.12", "allow_variant_change": True}
    planned = story.plan_job()
    Job.objects.filter(pk=planned.pk).update(params=job.params)
    assert 'value="3.12"' in visitor.get(f"/plans/{planned.number}/").content.decode()


@pytest.mark.parametrize("python", ["-x", "python3", "3", "3.12.1", "4.0", "3.1$(x)", "/usr/bin/python", "3.1\n2"])
def test_an_interpreter_that_is_none_is_refused(visitor: Client, story: factory.Story, python: str) -> None:
    assert visitor.post(f"{SERVICE}plan/", {"python": python}).status_code == 400
    assert not Job.objects.exists()


@pytest.mark.parametrize("version", ["-x", "--index-url=http://a", "1.0;rm", "a @ file:///etc", "../../x", "1\n2", "x" * 200])
def test_a_version_that_is_none_is_refused(visitor: Client, story: factory.Story, version: str) -> None:
    assert visitor.post(f"{SERVICE}plan/", {"version": version}).status_code == 400
    assert not Job.objects.exists()


def test_the_plan_page_shows_what_will_change_and_asks_once(visitor: Client, story: factory.Story) -> None:
    job = story.plan_job()
    response = visitor.get(f"/plans/{job.number}/")
    seen = text(response)
    assert "flashinfer-cubin coupled 0.6.3 0.6.4 coupled with flashinfer-python" in seen  # the first word on narrow pages only
    assert "35 debug tensors" in seen
    assert "no estimate yet" in seen
    assert response.content.decode().count("btn-primary") == 1
    assert "the live release serves on" in seen
    Service.objects.filter(name="kimi-k25").update(state="failed")
    assert "the live release serves on" not in text(visitor.get(f"/plans/{job.number}/"))


def test_the_expected_downtime_comes_from_earlier_redeploys(visitor: Client, story: factory.Story) -> None:
    story.redeploy(ago_s=9000)
    job = story.plan_job()
    assert "Redeploy, about 12:58 min down" in text(visitor.get(f"/plans/{job.number}/"))


def test_confirming_a_plan_starts_the_redeploy_with_its_hash(visitor: Client, story: factory.Story, redis_url: str) -> None:
    plan = story.plan_job()
    response = visitor.post(f"/plans/{plan.number}/redeploy/", {"plan_hash": "f" * 64, "smoke": "on", "rollback": "on", "preset": "quick"})
    job = Job.objects.get(type="redeploy")
    assert response.url == f"/jobs/{job.number}/"
    assert job.params["plan_hash"] == "f" * 64
    assert (job.params["smoke"], job.params["sweep"], job.params["purge"], job.params["rollback"]) == (True, False, False, True)


def test_a_plan_that_was_not_looked_at_is_refused(visitor: Client, story: factory.Story) -> None:
    plan = story.plan_job()
    assert visitor.post(f"/plans/{plan.number}/redeploy/", {"plan_hash": "0" * 64, "preset": "quick"}).status_code == 400
    assert not Job.objects.filter(type="redeploy").exists()


def test_coupling_off_says_what_follows(visitor: Client, story: factory.Story) -> None:
    job = story.plan_job(coupling=False)
    assert "The new release will crash at its start" in text(visitor.get(f"/plans/{job.number}/"))


def test_a_running_plan_shows_its_steps(visitor: Client, story: factory.Story) -> None:
    job = story.plan_job(end=False)
    assert "looking for patched files" in text(visitor.get(f"/plans/{job.number}/"))


def test_a_job_that_warms_up_shows_phases_downtime_and_log(visitor: Client, story: factory.Story) -> None:
    story.redeploy(ago_s=90000)
    job = story.running_warmup()
    response = visitor.get(f"/jobs/{job.number}/")
    seen = text(response)
    assert "Service down" in seen
    assert "119 of 119 shards" in seen
    assert "1:52" in seen  # torch.compile's usual time
    assert "data-after=" in response.content.decode()


def test_log_text_is_text(visitor: Client, story: factory.Story) -> None:
    body = visitor.get(f"/jobs/{story.running_warmup().number}/").content.decode()
    assert "&lt;script&gt;alert(&#x27;a log line is text&#x27;)&lt;/script&gt;" in body
    assert "\u202e" not in body
    assert "\x1b" not in body


def test_ansi_colours_become_classes(visitor: Client, story: factory.Story) -> None:
    body = visitor.get(f"/jobs/{story.redeploy().number}/?step=build").content.decode()
    assert '<span class="a-bold a-cyan">Creating virtual environment</span>' in body


def test_a_failed_job_names_the_decisive_line_the_fix_and_the_rollback(visitor: Client, story: factory.Story) -> None:
    job = story.failed_redeploy()
    response = visitor.get(f"/jobs/{job.number}/")
    seen = text(response)
    assert "kimi-k25 is healthy again on" in seen
    assert "does not match flashinfer version (0.6.4). Please install the same version of both packages." in seen
    assert "uv pip install --python ENV flashinfer-cubin==0.6.4" in seen
    assert "current is 0.16.0rc2.dev313 again" in seen
    assert response.content.decode().count('<li class="decisive">') == 1


def test_a_failed_rollback_asks_for_a_person(visitor: Client, story: factory.Story) -> None:
    story.service(state="failed")
    job = story.failed_redeploy(rollback="failed")
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "A person has to look" in seen
    type(job).objects.filter(pk=job.pk).update(downtime_s=None)
    assert "Service down since then it did not answer when the job ended" in text(visitor.get(f"/jobs/{job.number}/"))


def test_the_report_has_four_parts_and_its_markdown(visitor: Client, story: factory.Story) -> None:
    job = story.redeploy()
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    for part in ("1 Reinstall", "2 Cleanup", "3 Service verified", "4 Benchmark", "1,239 tok/s", "35 debug tensors deleted, 65.2"):
        assert part in seen, part
    assert visitor.get(f"/jobs/{job.number}/report.md").content.decode().startswith("# Redeploy kimi-k25 on practice (PRACTICE")


def test_a_running_sweep_carries_its_levels_and_seconds(visitor: Client, story: factory.Story) -> None:
    story.redeploy(ago_s=90000)
    job = story.running_sweep()
    response = visitor.get(f"/jobs/{job.number}/")
    data = response.context["panels"]["sweep"]["data"]
    assert [p["tput"] for p in data["points"]] == [61.0, 277.0]
    assert data["seconds"]["c"] == 32
    assert len(data["seconds"]["x"]) == 40
    assert data["before"]["points"][-1]["tput"] == 1239.0
    assert "61 tok/s target 40–50 met" in text(response)
    assert "All of its numbers" not in text(response)


def test_a_sweep_that_ended_leads_to_its_run_and_says_which_repeat_it_shows(visitor: Client, story: factory.Story) -> None:
    job = story.running_sweep()
    run = job.runs.get()
    type(run).objects.filter(pk=run.pk).update(state="done", group_index=2, settings={**run.settings, "repeats": 3})
    page = visitor.get(f"/jobs/{job.number}/?step=sweep")
    assert f'href="/benchmarks/{run.pk}/"' in page.content.decode()
    assert "run 3 of 3 All of its numbers" in text(page)


@pytest.mark.parametrize("kind", ["smoke", "integrity", "cancelled", "partial", "lost", "interrupted", "queued"])
def test_every_state_of_a_job_has_its_page(visitor: Client, story: factory.Story, kind: str) -> None:
    job = story.small_jobs()[kind]
    job.refresh_from_db()
    words = {"failed": "Failed", "succeeded": "Succeeded", "cancelled": "Cancelled", "partial": "Partly done", "lost": "Lost contact",
             "interrupted": "Interrupted",
             "queued": "Queued"}
    assert words[job.state] in text(visitor.get(f"/jobs/{job.number}/"))


@pytest.mark.parametrize("name", ["head", "notice", "facts", "steps", "panels"])
def test_job_fragments_say_how_far_they_know(visitor: Client, story: factory.Story, name: str) -> None:
    job = story.running_warmup()
    response = visitor.get(f"/jobs/{job.number}/fragments/{name}/")
    assert response.status_code == 200
    assert response.headers["X-Job-Seq"] == str(job.last_seq)


def test_the_log_comes_whole_with_the_event_up_to_which_it_goes(visitor: Client, story: factory.Story) -> None:
    job = story.running_warmup()
    told = visitor.get(f"/jobs/{job.number}/log/?step=warmup&format=json").json()
    assert told["seq"] == job.last_seq
    assert told["text"] == factory.warmup_log()


def test_the_log_downloads_as_text(visitor: Client, story: factory.Story) -> None:
    response = visitor.get(f"/jobs/{story.running_warmup().number}/log/?step=warmup")
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert response.headers["Content-Disposition"].endswith('-warmup.log"')


def test_cancel_says_what_it_will_do_and_then_does_it(visitor: Client, story: factory.Story, redis_url: str) -> None:
    job = story.running_warmup()
    assert "It is started again on the last good release" in text(visitor.get(f"/jobs/{job.number}/cancel/"))
    visitor.post(f"/jobs/{job.number}/cancel/")
    job.refresh_from_db()
    assert job.state == "cancelling"


def test_jobs_are_filtered(visitor: Client) -> None:
    factory.failing()
    assert {row["job"].state for row in visitor.get("/jobs/?state=failed").context["rows"]} == {"failed", "interrupted"}
    assert {row["job"].type for row in visitor.get("/jobs/?type=integrity").context["rows"]} == {"integrity"}


def test_jobs_are_found_by_typed_words_and_by_number(visitor: Client) -> None:
    factory.failing()
    failed = Job.objects.filter(type="redeploy", state="failed").first()
    assert failed is not None
    assert [row["job"] for row in visitor.get("/jobs/", {"q": f"#{failed.number}"}).context["rows"]] == [failed]
    assert {row["job"].type for row in visitor.get("/jobs/?q=redeploy+kimi").context["rows"]} == {"redeploy"}
    assert visitor.get("/jobs/?q=nothing-like-it").context["rows"] == []
    assert visitor.get("/jobs/", {"q": "9" * 80}).context["rows"] == []


@pytest.mark.parametrize(("path", "query"), [("/jobs/", {"q": "a&b", "state": "", "type": ""}), ("/benchmarks/", {"q": "a&b", "kind": ""})])
def test_htmx_gets_the_list_alone_and_a_short_address(visitor: Client, path: str, query: dict[str, str]) -> None:
    factory.full()
    answer = visitor.get(path, query, headers={"HX-Request": "true", "HX-Trigger": "filters"})
    assert "<html" not in answer.content.decode()
    assert answer.headers["HX-Push-Url"] == f"{path}?q=a%26b"
    assert 'id="clear"' in answer.content.decode()
    paged = visitor.get(path, headers={"HX-Request": "true"})
    assert "HX-Push-Url" not in paged.headers
    assert "<table" in paged.content.decode()
    assert "<html" in visitor.get(path, headers={"HX-Request": "true", "HX-History-Restore-Request": "true"}).content.decode()


def test_pages_of_a_list_keep_its_filter(visitor: Client, story: factory.Story, admin: User) -> None:
    for n in range(51):
        Job.objects.create(number=900 + n, type="integrity", node=story.the_node, by=admin, reason="a&b")
    seen = visitor.get("/jobs/?q=a%26b&type=integrity").content.decode()
    assert 'href="?q=a%26b&amp;type=integrity&amp;page=2"' in seen
    assert len(visitor.get("/jobs/?q=a%26b&type=integrity&page=2").context["rows"]) == 1


def test_a_run_has_a_table_beside_its_charts(visitor: Client) -> None:
    factory.full()
    run = BenchmarkRun.objects.filter(state="done").first()
    assert run is not None
    seen = text(visitor.get(f"/benchmarks/{run.pk}/"))
    assert "PRACTICE" in seen
    assert "1,239" in seen
    assert "52.8" in seen


@pytest.mark.parametrize("action", ["restart", "sweep", "smoke", "integrity", "practice-reset", "warmup"])
def test_an_action_is_explained_and_started_by_post_only(visitor: Client, story: factory.Story, redis_url: str, action: str) -> None:
    assert "kimi-k25" in text(visitor.get(f"{SERVICE}run/{action}/"))
    assert not Job.objects.exists()
    response = visitor.post(f"{SERVICE}run/{action}/", {"idempotency_key": "b" * 32, "preset": "quick"})
    assert response.url == f"/jobs/{Job.objects.get(type=action).number}/"


def test_a_real_service_cannot_be_reset(visitor: Client, story: factory.Story) -> None:
    story.the_service.practice = False
    story.the_service.save()
    assert visitor.post(f"{SERVICE}run/practice-reset/").status_code == 404


def test_a_busy_service_is_refused_with_its_job(visitor: Client, story: factory.Story, redis_url: str) -> None:
    story.running_warmup()
    holder = Job.objects.get()
    visitor.post(f"{SERVICE}run/smoke/")
    response = visitor.post(f"{SERVICE}run/restart/")
    assert response.status_code == 409
    number = response.context["facts"]["number"]
    assert f'href="/jobs/{number}/"' in response.content.decode() and "`" not in response.content.decode()
    assert f"#{holder.number}" in response.content.decode() or "busy" in response.content.decode()


def test_a_pasted_log_is_diagnosed(visitor: Client) -> None:
    response = visitor.post("/diagnose/", {"text": factory.crash_log()})
    assert "flashinfer-cubin version (0.6.3) does not match" in text(response)
    assert '<li class="decisive">' in response.content.decode()


def test_a_healthy_log_is_not_called_a_fault(visitor: Client) -> None:
    log = "(APIServer pid=1) INFO 03-02 10:26:31 [api_server.py:1346] vLLM API server version 0.16.0\nINFO:     Application startup complete.\n"
    assert "No fault was found" in text(visitor.post("/diagnose/", {"text": log}))


def test_a_too_big_log_is_refused_in_words(visitor: Client) -> None:
    assert visitor.post("/diagnose/", {"text": "x" * 700_001}).status_code == 400


def test_one_primary_button_a_page(visitor: Client) -> None:
    story = factory.failing()
    story.service(state="failed", mismatch=True)
    for path in ("/", "/jobs/", "/services/", f"/jobs/{Job.objects.filter(type='redeploy').first().number}/"):  # type: ignore[union-attr]
        assert visitor.get(path).content.decode().count("btn-primary") <= 2, path


def test_practice_is_marked_wherever_its_numbers_show(visitor: Client) -> None:
    factory.full()
    run, job = BenchmarkRun.objects.filter(state="done").first(), Job.objects.filter(type="redeploy").first()
    assert run is not None and job is not None
    for path in ("/", "/services/", SERVICE, "/jobs/", f"/jobs/{job.number}/", "/benchmarks/", f"/benchmarks/{run.pk}/"):
        assert "PRACTICE" in text(visitor.get(path)), path


@pytest.mark.parametrize("odd", [
    {"gpus": [{"index": "GPU-1", "used_bytes": 1}, {"index": 0, "used_bytes": "much", "total_bytes": True, "processes": ["x", {"pid": "?"}]}, None]},
    {"gpus": {"index": 0}}, {"gpus": "none"}, {"gpus": [{"index": 2, "name": 7, "utilization": [], "pcie_gen": "5", "throttle": 3}]}, "text", [1]])
def test_odd_readings_of_a_node_are_left_out_and_said(visitor: Client, story: factory.Story, odd: Any) -> None:
    story.the_node.telemetry = {"node": "practice", "gpus": odd, "services": "?"}
    story.the_node.save()
    for path in ("/", "/nodes/practice/", "/fragments/services/?node=practice", "/fragments/facts/", SERVICE):
        assert visitor.get(path).status_code == 200
    if isinstance(odd, dict) and isinstance(odd["gpus"], list) and len(odd["gpus"]) == 3:
        assert "2 readings were left out" in text(visitor.get("/"))


@pytest.fixture
def lost(story: factory.Story) -> Job:
    job = story.job("restart", params={"rollback": True}, steps=factory.STEPS[5:7])
    Job.objects.filter(pk=job.pk).update(state="lost")
    JobLock.objects.filter(job=job).update(held=True)
    job.refresh_from_db()
    return job


def test_a_lost_job_is_abandoned_by_typing_the_name_of_its_service(visitor: Client, lost: Job, redis_url: str) -> None:
    address = f"/jobs/{lost.number}/abandon/"
    assert address in visitor.get(f"/jobs/{lost.number}/").content.decode()
    asked = text(visitor.get(address))
    assert "may still run" in asked
    assert "Type kimi-k25" in asked
    for typed in ("", "kimi", "practice"):
        refused = visitor.post(address, {"name": typed})
        assert refused.status_code == 400
        assert "kimi-k25" in refused.content.decode()
    lost.refresh_from_db()
    assert lost.state == "lost"
    assert visitor.post(address, {"name": " kimi-k25 "}).url == f"/jobs/{lost.number}/"
    lost.refresh_from_db()
    assert lost.state == "interrupted"
    assert not JobLock.objects.filter(held=True).exists()
    assert "only a job whose node fell silent" in text(visitor.get(address))


def test_an_operator_may_not_abandon_a_lost_job(lost: Job, operator: User) -> None:
    client = Client()
    client.force_login(operator)
    page = client.get(f"/jobs/{lost.number}/").content.decode()
    assert "/abandon/" not in page
    assert "an admin can abandon" in page
    assert client.get(f"/jobs/{lost.number}/abandon/").status_code == 403
    assert client.post(f"/jobs/{lost.number}/abandon/", {"name": "kimi-k25"}).status_code == 403
    lost.refresh_from_db()
    assert lost.state == "lost"


def test_a_lock_kept_for_a_person_offers_the_restart_that_frees_it(visitor: Client, story: factory.Story) -> None:
    job = story.job("redeploy", params={"rollback": True}, steps=factory.STEPS)
    story.end(job, "failed", reason="It did not come up", rollback="failed")
    JobLock.objects.get_or_create(job=job, lock="service:kimi-k25", defaults={"node": story.the_node, "fence": 1, "held": True})
    page = visitor.get(f"/jobs/{job.number}/").content.decode()
    assert f"{SERVICE}run/restart/" in page
    assert "a restart that succeeds frees it" in page
    JobLock.objects.filter(job=job).update(held=False)
    assert f'{SERVICE}run/restart/"' not in visitor.get(f"/jobs/{job.number}/fragments/notice/").content.decode()


def test_a_plan_shows_what_was_edited_by_hand(visitor: Client) -> None:
    factory.full()
    plan = next(job for job in Job.objects.filter(type="plan", state="succeeded") if (job.result or {}).get("plan"))
    body = visitor.get(f"/plans/{plan.number}/")
    seen = text(body)
    assert "deepseek_v2.py +38 −2" in seen
    assert "Show differences" in seen
    assert "torch.save(hidden_states" in seen
    assert "50 more lines" in seen
    assert "Its lines are not shown" in seen
    assert seen.count("will not be in") == 1
