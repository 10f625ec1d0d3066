"""The page of a service: how it runs, why it failed and what helps; the questions before it is controlled; and what the jobs about it show."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard import service_story
from dashboard.diagnoses import help_for
from dashboard.models import AuditEntry, Channel, Job, JobEvent, Service
from tests.dashboard.pages import factory
from tests.dashboard.pages import service_data as ran
from tests.dashboard.pages.reading import text

SERVICE = "/services/practice/kimi-k25/"
SYSTEMD = {"manager": "systemd", "unit": "vllm-kimi.service"}


@pytest.fixture
def visitor(member: Client) -> Client:
    """An operator: services are theirs to control."""
    return member


@pytest.fixture
def looping(visitor: Client) -> factory.Story:
    """In a restart loop that no job looks after, with failures, warmups, a unit and changed launch settings; another service beside it."""
    story = factory.services()
    story.end(story.unfinished, "failed", reason="It crashes at each try")
    return story


def change(**values: Any) -> Service:
    service = Service.objects.get(name="kimi-k25")
    if "record" in values:
        values["record"] = {**service.record, **values["record"]}
    if "status" in values:
        values["status"] = {**service.status, **values["status"]}
    Service.objects.filter(pk=service.pk).update(**values)
    service.refresh_from_db()
    return service


# ---- the page ----


def test_a_healthy_service_says_since_when_and_how_often_it_was_restarted(visitor: Client, story: factory.Story) -> None:
    change(record=SYSTEMD, unit={**ran.UNIT, "restarts": 2}, launch=ran.LAUNCH)
    response = visitor.get(SERVICE)
    seen = text(response)
    assert re.search(r"Up for 2:00:\d\d h", seen) and "Restarts 2 by systemd, by itself" in seen and "pid 20533" in seen
    assert "Stop…" in seen and "Restart…" in seen and "Start…" not in seen and "Switch model…" not in seen
    assert "active (running)" in seen and "starts with the machine" in seen
    assert response.content.decode().count("btn-primary") == 1


def test_restarts_that_nobody_counts_are_not_zero(visitor: Client, story: factory.Story) -> None:
    assert "Restarts not counted only jobs start it" in text(visitor.get(SERVICE))


def test_a_restart_loop_says_so_with_the_cause_the_fix_and_the_one_button(visitor: Client, looping: factory.Story) -> None:
    response = visitor.get(SERVICE)
    seen, body = text(response), response.content.decode()
    assert "kimi-k25 crashes again and again: 7 restarts Another process holds memory of GPU 3" in seen
    assert '<li class="decisive">' in body and "See what is left over" in seen
    assert body.count("btn-primary") == 1
    assert "Stop…" in seen and "Start…" not in seen, "what systemd starts again and again can be stopped"
    assert "python -m ops adopt --unit vllm-kimi.service --apply --install" in seen and "systemctl daemon-reload" in seen


def test_a_unit_that_systemd_starts_no_more_is_no_loop_and_can_be_started_or_reset(visitor: Client, looping: factory.Story) -> None:
    change(status={"restarting": False}, unit={**ran.UNIT, "state": "failed", "sub": "failed", "result": "exit-code", "restarts": 3})
    seen = text(visitor.get(SERVICE))
    assert "kimi-k25 crashed after 7 restarts, and systemd starts it no more Another process holds memory of GPU 3" in seen
    assert "Start…" in seen and "Reset failed…" in seen and "Stop…" not in seen


def test_while_the_log_of_a_loops_last_end_is_read_the_cause_of_the_one_before_stays(visitor: Client, looping: factory.Story) -> None:
    known = Service.objects.get(name="kimi-k25").failures
    change(failures=[*known, {**known[-1], "at": known[-1]["at"] + 1, "invocation": "f" * 32, "diagnosis": None, "problem": ""}])
    assert "kimi-k25 crashes again and again: 7 restarts Another process holds memory of GPU 3" in text(visitor.get(SERVICE))


def test_while_a_job_starts_it_the_page_leads_there(visitor: Client) -> None:
    story = factory.services()
    response = visitor.get(SERVICE)
    seen = text(response)
    assert "crashes again and again" not in seen and f'href="/jobs/{story.unfinished.number}/">Watch' in response.content.decode()
    assert "about 9:22 left" in seen


def test_an_engine_that_died_with_code_0_is_a_failure_and_said(visitor: Client, story: factory.Story) -> None:
    change(state="failed", status={"state": "failed", "exit_code": 0, "detail": "Its process ended"}, failures=[
        {**ran.failures()[0], "exit_code": 0, "diagnosis": ran.diagnosis(fault=False)}])
    seen = text(visitor.get(SERVICE))
    assert "kimi-k25 does not answer" in seen and "exits with code 0 when its engine dies" in seen
    assert "Its log names no cause." in seen and "Start kimi-k25…" in seen


@pytest.mark.parametrize(("kernel", "said"), [
    ({"problem": ""}, "The kernel's log of that time was read: it names no kill for memory"),
    ({"problem": "dmesg: Operation not permitted"}, "could not be read (dmesg: Operation not permitted): journalctl -k as root shows"), (None, None)])
def test_a_killed_service_says_what_that_means_and_whether_the_kernel_was_asked(visitor: Client, story: factory.Story, kernel: Any,
                                                                               said: str | None) -> None:
    change(state="failed", status={"state": "failed", "exit_code": -9, "detail": "It ended without being asked to, by SIGKILL"}, failures=[
        {**ran.failures()[-3], "exit_code": -9, "diagnosis": ran.diagnosis(fault=False), "kernel": kernel}])
    seen = text(visitor.get(SERVICE))
    assert seen.count("SIGKILL comes from outside: from the kernel when memory has run out") == 2, "above, and in the list"
    assert said in seen if said else "kernel's log" not in seen


def test_a_log_that_is_still_read_is_not_said_to_name_no_cause(visitor: Client, story: factory.Story) -> None:
    for ago, said in ((5, "Its log is being read."), (5000, "What its log says is not known.")):
        change(state="failed", status={"state": "failed", "exit_code": 1, "detail": "It ended"}, failures=[
            {**ran.failures()[0], "at": time.time() - ago, "exit_code": 1, "diagnosis": None}])
        seen = text(visitor.get(SERVICE))
        assert said in seen and "names no cause" not in seen


def test_the_last_failures_are_listed_newest_first_with_their_causes(visitor: Client, looping: factory.Story) -> None:
    seen = text(visitor.get(SERVICE))
    listed = seen[seen.index("Last failures"):seen.index("Releases 4 kept")]
    order = ["Another process holds memory", "log could not be read", "It ended by SIGKILL", "GPU 2 fell off the bus", "an illegal memory access"]
    assert [listed.index(words) for words in order] == sorted(listed.index(words) for words in order)
    assert "may not be read: the agent's user is in none of the groups" in listed and "of the kernel's log" in listed and "3 older" in listed
    assert "found by the generic search" in listed and "vLLM exits with code 0 when its engine dies" in listed


def test_warmups_that_the_node_remembers_are_a_chart_and_a_table(visitor: Client, looping: factory.Story) -> None:
    response = visitor.get(SERVICE)
    data = response.context["warmups"]
    assert len(data["bars"]) == 6 and data["bars"][0]["cache"] == "miss" and data["bars"][0]["job"] is None
    assert [phase["phase"] for phase in data["phases"]] == list(ran.PHASES)
    seen = text(response)
    assert "last 6 starts; usual 11:24 min" in seen and "Compile cache" in seen and seen.count(" hit ") >= 4


def test_without_remembered_warmups_those_of_its_jobs_are_shown(visitor: Client, story: factory.Story) -> None:
    job = story.redeploy()
    data = visitor.get(SERVICE).context["warmups"]
    assert [(bar["job"], bar["total_s"]) for bar in data["bars"]] == [(job.number, 772.0)]


def test_launch_settings_show_no_secret_and_say_when_they_apply(visitor: Client, looping: factory.Story) -> None:
    change(launch={**ran.LAUNCH, "pending": True, "env": {**ran.LAUNCH["env"], "VLLM_API_KEY": "sk-not-hidden-by-its-node"}})
    seen = text(visitor.get(SERVICE))
    assert "Changed since its process started" in seen and "--override-generation-config" in seen
    assert "sk-not-hidden" not in seen and "HF_TOKEN secret, kept on its node" in seen and "-/etc/vllm/kimi.env" in seen


def test_the_list_and_the_fleet_say_why_a_service_is_down(visitor: Client, looping: factory.Story) -> None:
    for path in ("/", "/services/"):
        assert "Another process holds memory of GPU 3" in text(visitor.get(path)), path
    assert "kimi-k25 crashes again and again: 7 restarts" in text(visitor.get("/")) and "7 restarts" in text(visitor.get("/services/"))


@pytest.mark.parametrize("odd", [None, "x", 3, {"a": []}, [None, 3, {"at": "x", "diagnosis": "y", "phases": 4, "total_s": "z"}],
                                 [{"total_s": 1e300, "at": 1e300, "phases": {"load": "x"}, "diagnosis": {"fault": True, "context": [1, {}]}}]])
def test_what_a_node_tells_wrongly_is_left_out(visitor: Client, story: factory.Story, odd: Any) -> None:
    change(state="failed", failures=odd or [], warmups=odd or [], unit=odd, launch=odd or {}, record=SYSTEMD, status={
        "restarts": odd, "exit_code": odd, "started_at": odd, "ended_at": odd, "pid": odd, "detail": odd})
    for path in (SERVICE, "/services/", "/", f"{SERVICE}run/start/", f"{SERVICE}run/stop/", f"{SERVICE}run/reset-failed/"):
        assert visitor.get(path).status_code == 200, path


@pytest.mark.parametrize(("flags", "lines"), [
    (["--a", "1", "--b", "--c=2 3", "x y"], ["--a 1", "--b", "'--c=2 3' 'x y'"]), (["--seed", "-1", "-tp", "8"], ["--seed -1", "-tp 8"]),
    (["serve", "m"], ["serve m"]), (None, []), ("--a", [])])
def test_flags_are_shown_an_option_a_line(flags: Any, lines: list[str]) -> None:
    assert service_story.flag_lines(flags) == lines


@pytest.mark.parametrize(("code", "words"), [(1, "exit code 1"), (0, "exit code 0"), (-9, "ended by SIGKILL"), (-200, "ended by signal 200"),
                                            (None, "how it ended was not seen"), (True, "how it ended was not seen")])
def test_how_it_ended_is_said_in_words(code: Any, words: str) -> None:
    assert service_story.exit_words(code) == words


@pytest.mark.parametrize(("detail", "words"), [
    ("It ended without being asked to, with exit code 0 most likely (systemd calls it a success)", "exit code 0 most likely"),
    ("It ended without being asked to, and its exit code is not known", "how it ended was not seen"), (["x"], "how it ended was not seen")])
def test_what_a_node_knows_without_an_exit_code_is_not_contradicted(visitor: Client, story: factory.Story, detail: Any, words: str) -> None:
    assert service_story.exit_words(None, detail) == words
    change(state="failed", status={"state": "failed", "exit_code": None, "detail": detail}, failures=[])
    assert words in text(visitor.get(SERVICE))


@pytest.mark.parametrize(("tests", "without", "words"), [
    ([], [], "a fact, code, reasoning, a tool call, the same answer streamed"),
    ([{"name": "factual"}, {"name": "greets"}], ["tool", "stream"], "code, reasoning, 2 own questions"),
    ([], ["factual", "code", "reasoning", "tool", "stream"], "all questions are switched off"),
    ({"x": 1}, [{}], "a fact, code, reasoning, a tool call, the same answer streamed")])
def test_the_questions_that_a_start_asks_are_the_services_own(visitor: Client, story: factory.Story, tests: Any, without: Any, words: str) -> None:
    change(state="stopped", record={"smoke_tests": tests, "smoke_without": without})
    assert words in text(visitor.get(f"{SERVICE}run/start/"))


def test_a_failed_start_of_a_stopped_service_leaves_it_stopped_and_says_so(visitor: Client, story: factory.Story) -> None:
    job = story.job("start", steps=[("start", "Start", False)])
    story.end(job, "failed", reason="It did not come up", rollback="done")
    change(state="stopped", status={"state": "stopped", "detail": "It was stopped"})
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "kimi-k25 is stopped It did not run before, and what this job had started was ended again." in seen and "does not answer" not in seen


# ---- the button that helps ----


@pytest.mark.parametrize(("action", "how", "href"), [
    ("plan", "post", f"{SERVICE}plan/"), ("restore", "post", f"{SERVICE}plan/"), ("rollback", "dialog", f"{SERVICE}run/rollback/?release="),
    ("restart", "dialog", f"{SERVICE}run/start/"), ("end-leftovers", "post", f"{SERVICE}run/leftovers/"),
    ("guards-apply", "dialog", f"{SERVICE}run/guards-apply/"), ("reset-failed", "dialog", f"{SERVICE}run/reset-failed/")])
def test_a_diagnosis_offers_the_button_of_its_action(story: factory.Story, action: str, how: str, href: str) -> None:
    story.environment()
    releases = [{**one, "is_current": one["name"] == factory.NEW, "is_last_good": one["name"] == factory.OLD} for one in story.the_service.releases]
    service = change(state="failed", record=SYSTEMD, releases=releases)
    found = help_for(ran.diagnosis(action=action), service=service)
    assert found is not None and found["how"] == how and found["href"].startswith(href)
    assert (("mode", "restore") in found["fields"]) == (action == "restore")


def test_what_no_job_can_mend_has_no_button(story: factory.Story) -> None:
    service = change(state="failed")
    assert help_for(ran.diagnosis(action=""), service=service) is None
    assert help_for(ran.diagnosis(action="reset-failed"), service=service) is None, "a plain process has no failed state"
    Channel.objects.all().delete()
    assert help_for(ran.diagnosis(action="plan"), service=service) is None, "without a channel there is no plan"


# ---- questions and jobs ----


def test_a_stop_says_what_it_does_and_how_long_it_is_down(visitor: Client, looping: factory.Story) -> None:
    seen = text(visitor.get(f"{SERVICE}run/stop/"))
    assert "systemd asks vllm-kimi.service to end" in seen and "until somebody starts it" in seen and "about 11:24 min" in seen
    assert "starts again with the machine" in seen and "An open stream can hold the stop" in seen
    change(state="starting", record={"manager": "process"})
    seen = text(visitor.get(f"{SERVICE}run/stop/"))
    assert "does not listen to being asked to end before it is up" in seen and "by force after 30&nbsp;s" in seen


def test_a_start_by_the_units_own_command_says_so(visitor: Client, looping: factory.Story) -> None:
    change(status={"restarts": 0})
    seen = text(visitor.get(f"{SERVICE}run/start/"))
    assert "is started by its own command" in seen and "Launch settings do not reach that command" in seen
    change(unit=ran.UNIT)
    assert "with the launch settings that were changed" in text(visitor.get(f"{SERVICE}run/start/"))


@pytest.mark.parametrize("action", ["start", "stop", "restart", "leftovers", "diagnose", "reset-failed"])
def test_a_control_is_explained_and_started_by_post_only(visitor: Client, looping: factory.Story, redis_url: str, action: str) -> None:
    Job.objects.all().delete()
    assert "kimi-k25" in text(visitor.get(f"{SERVICE}run/{action}/"))
    assert not Job.objects.exists()
    response = visitor.post(f"{SERVICE}run/{action}/", {"idempotency_key": "b" * 32})
    assert response.url == f"/jobs/{Job.objects.get(type=action).number}/"
    assert AuditEntry.objects.get(action=f"job.{action}").by.username == "olga"


@pytest.mark.parametrize(("given", "params"), [({"smoke": ["off", "on"]}, {"smoke": True}), ({"smoke": ["off"]}, {"smoke": False}), ({}, {})])
def test_smoke_tests_after_a_start_are_a_choice(
        visitor: Client, story: factory.Story, redis_url: str, given: dict[str, Any], params: dict[str, Any]) -> None:
    visitor.post(f"{SERVICE}run/start/", given)
    assert Job.objects.get().params == params


def test_a_switch_names_the_other_services_of_the_node_and_what_each_takes(visitor: Client, looping: factory.Story, redis_url: str) -> None:
    Job.objects.all().delete()
    seen = text(visitor.get(f"{SERVICE}run/switch/"))
    assert "glm-5 Failed GLM-5-NVFP4; answers after about 12:52 min, from 1 warmup" in seen and "nothing is stopped" in seen
    for wrong in ({}, {"to": "kimi-k25"}, {"to": "other"}):
        assert visitor.post(f"{SERVICE}run/switch/", wrong).status_code == 400
    assert not Job.objects.exists()
    visitor.post(f"{SERVICE}run/switch/", {"to": "glm-5", "smoke": "on"})
    job = Job.objects.get()
    assert (job.type, job.params) == ("switch", {"to": "glm-5", "smoke": True})
    assert {lock.lock for lock in job.locks.all()} == {"service:kimi-k25", "service:glm-5"}
    assert "Switch kimi-k25 to glm-5" in text(visitor.get(f"/jobs/{job.number}/"))


def test_without_another_service_there_is_nothing_to_switch_to(visitor: Client, story: factory.Story) -> None:
    assert visitor.get(f"{SERVICE}run/switch/").status_code == 404
    assert visitor.get(f"{SERVICE}run/reset-failed/").status_code == 404, "a plain process has no failed state"


def test_what_belonged_to_the_service_can_be_ended_and_nothing_else(visitor: Client, looping: factory.Story, redis_url: str) -> None:
    job = Job.objects.filter(type="leftovers").order_by("number").last()
    assert job is not None
    body = visitor.get(f"/jobs/{job.number}/").content.decode()
    ask = f"{SERVICE}run/end-leftovers/?job={job.number}"
    assert ask in body and "End these 2…" in body
    page = visitor.get(ask).content.decode()
    assert re.findall(r'name="process" value="([^"]*)" checked', page) == ["20661:88121", "20662:88122"]
    assert "41877" not in page
    Job.objects.exclude(pk=job.pk).delete()
    for wrong in ([], ["41877:90211"], ["20661:1"], ["20661"], ["1:2; rm"], ["20661:88121", "41877:90211"]):
        assert visitor.post(f"{SERVICE}run/end-leftovers/", {"process": wrong}).status_code == 400, wrong
    assert not Job.objects.filter(type="end-leftovers").exists()
    visitor.post(f"{SERVICE}run/end-leftovers/", {"process": ["20662:88122"]})
    assert Job.objects.get(type="end-leftovers").params == {"processes": [{"pid": 20662, "start_ticks": 88122}]}


def test_a_job_that_found_nothing_of_the_service_offers_nothing_to_end(visitor: Client, looping: factory.Story) -> None:
    first = Job.objects.filter(type="leftovers").order_by("number").first()
    assert first is not None
    assert "Nothing is left over" in text(visitor.get(f"/jobs/{first.number}/"))
    for query in (f"?job={first.number}", "", "?job=x", "?job=99999", "?job=-1"):
        assert visitor.get(f"{SERVICE}run/end-leftovers/{query}").status_code == 404, query
    last = Job.objects.filter(type="leftovers").order_by("number").last()
    assert visitor.get(f"/services/practice/glm-5/run/end-leftovers/?job={last.number}").status_code == 404, "another service's"  # type: ignore


def test_a_page_without_its_token_controls_nothing(story: factory.Story, operator: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)
    assert client.post(f"{SERVICE}run/stop/").status_code == 403 and Client().get(f"{SERVICE}run/stop/").status_code == 302
    assert not Job.objects.exists()


# ---- pages of the jobs ----


@pytest.fixture
def starting(visitor: Client) -> factory.Story:
    """The same while a job starts it."""
    return factory.services()


def page_of(visitor: Client, kind: str, **found: Any) -> str:
    job = Job.objects.filter(type=kind, **found).first()
    assert job is not None
    return text(visitor.get(f"/jobs/{job.number}/"))


def test_a_preflight_is_one_list_by_part_with_what_is_fine_folded(visitor: Client, looping: factory.Story) -> None:
    seen = page_of(visitor, "start", reason__contains="nvcc")
    assert seen.index("The host") < seen.index("nvcc is 12.8") < seen.index("The open-file limit") < seen.index("4 checks are fine") \
        < seen.index("The release that is to start") < seen.index("2 checks are fine")
    assert "1 blocking 1 warning 6 fine" in seen


def test_a_redeploy_shows_the_looks_at_host_and_built_release_as_one_list(visitor: Client, story: factory.Story) -> None:
    job = story.job("redeploy", params={"rollback": True}, steps=factory.STEPS)
    for step, part in (("preflight", "host"), ("verify", "release")):
        story.step(job, step, end=False)
        for finding in ran.PREFLIGHT:
            if finding["part"] == part:
                story.say(job, "finding", subject="preflight", **finding)
        story.finish_step(job, step)
    story.tell(job)
    for step in ("preflight", "verify"):
        seen = text(visitor.get(f"/jobs/{job.number}/?step={step}"))
        order = [seen.index(words) for words in ("The host", "nvcc is 12.8", "The release that is to start", "2 checks are fine")]
        assert order == sorted(order), step


def test_a_warmup_in_a_restart_loop_shows_its_tries_its_stall_and_the_time_left(visitor: Client, starting: factory.Story) -> None:
    seen = page_of(visitor, "start", state="running")
    assert "try 2" in seen and "Try 1 crashed" in seen and "Another process holds memory of GPU 3" in seen and "It stalled" in seen
    assert "of about 11:08" in seen and "31 of 119 shards; about 9:22 left" in seen
    job = Job.objects.get(type="start", state="running")
    rows = {row["phase"]: row for row in visitor.get(f"/jobs/{job.number}/").context["panels"]["warmup"]["rows"]}
    first = JobEvent.objects.filter(job=job, type="warmup.phase").order_by("seq").first()
    assert first is not None and rows["start"]["since"] > first.at, "the second try's own time"


def test_a_warmup_that_ended_is_held_against_those_with_the_same_cache(visitor: Client, looping: factory.Story) -> None:
    job = Job.objects.filter(type="start", state="succeeded").first()
    assert job is not None
    seen = text(visitor.get(f"/jobs/{job.number}/?step=warmup"))
    assert "+1:52 against the usual 11:00 of 4 starts with the same compile cache; the last took 11:08" in seen
    assert re.search(r"Load weights .* \+\d+\.\d s", seen) and "Warmup 12:52 min usually 11:00 min" in seen
    job.result["warmup"]["compared"] = None
    job.result["warmup"]["phases"] = [{**phase, "usual_s": None} for phase in job.result["warmup"]["phases"]]
    job.save()
    seen = text(visitor.get(f"/jobs/{job.number}/?step=warmup"))
    assert "no earlier start with a warm compile cache to compare it with" in seen and "Usual" not in seen and "usually" not in seen


def test_smoke_tests_show_what_was_asked_and_answered(visitor: Client, looping: factory.Story) -> None:
    seen = page_of(visitor, "smoke")
    assert "What is the capital of Australia?" in seen and "def is_prime(n):" in seen and "Left out" in seen and "2 of 3 passed" in seen
    assert "max_tokens 256 is too few, 1,024 would do" in seen and "No content came back" in seen and "finish_reason length" in seen


def test_changed_launch_settings_show_the_difference_and_no_secret(visitor: Client, looping: factory.Story) -> None:
    seen = page_of(visitor, "settings-set")
    assert "− --max-model-len 131072 + --max-model-len 65536" in seen and "HF_TOKEN changed secret: its value is known to the node alone" in seen
    assert "they apply at the next start" in seen and "VLLM_USE_V1 removed 1" in seen


def test_a_stop_that_left_gpus_busy_names_who_holds_them(visitor: Client, looping: factory.Story) -> None:
    seen = page_of(visitor, "stop")
    assert "Partly done" in seen and "GPU 1 is not free" in seen and "It belonged to kimi-k25: it can be ended" in seen
    assert "anna" in seen and "Not of this service: Roundhouse ends none of these" in seen and "3 files in shared memory" in seen
    assert "Port 8000 is held by pid 20661" in seen and "cannot be looked into" in seen


def test_a_diagnosis_of_the_running_log_says_a_fault_or_none(visitor: Client, looping: factory.Story) -> None:
    assert "Another process holds memory of GPU 3" in page_of(visitor, "diagnose")
    job = looping.job("diagnose", steps=(("diagnose", "Diagnose", False),))
    looping.step(job, "diagnose", end=False)
    looping.say(job, "diagnosis", fault=False, lines=812, state="serving", diagnosis="")
    looping.finish_step(job, "diagnose", note="")
    looping.end(job)
    assert "No fault was found in the log of its current run" in text(visitor.get(f"/jobs/{job.number}/"))


@pytest.mark.parametrize(("kind", "begun", "words"), [
    ("start", ["start"], "is ended, by force if it does not end soon"), ("start", [], "Nothing of kimi-k25 has been started"),
    ("stop", ["stop"], "cannot be taken back"), ("switch", ["stop"], "kimi-k25 is started again"), ("switch", [], "Neither service"),
    ("leftovers", [], "only reads"), ("end-leftovers", [], "stays ended"), ("settings-set", [], "stored in one step")])
def test_cancelling_a_control_job_says_what_follows(visitor: Client, story: factory.Story, kind: str, begun: list[str], words: str) -> None:
    job = story.job(kind, params={"to": "glm-5"}, steps=[(name, name.capitalize(), True) for name in begun] or [("preflight", "Preflight", False)])
    for name in begun:
        story.step(job, name, end=False)
    story.tell(job)
    assert words in text(visitor.get(f"/jobs/{job.number}/cancel/"))


def test_a_start_that_was_undone_does_not_say_that_the_service_answered_all_the_time(visitor: Client, looping: factory.Story) -> None:
    change(state="healthy", status={"state": "healthy"})
    job = Job.objects.filter(type="start", state="failed").first()
    assert job is not None
    Job.objects.filter(pk=job.pk).update(rollback="done")
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "It answers now; what this job had started was ended again." in seen and "answered all the time" not in seen
