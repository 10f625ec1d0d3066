"""Packages, integrity, the patch shelf, releases, guards and recipes: what pages show, what they ask before, and what they refuse."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard import environment_story
from dashboard.forms import channels_for
from dashboard.models import Channel, Job, JobEvent, Service, ShelvedPatch
from tests.dashboard.pages import environment_data as said
from tests.dashboard.pages import factory
from tests.dashboard.pages.reading import text

SERVICE = "/services/practice/kimi-k25/"


@pytest.fixture
def story(story: factory.Story) -> factory.Story:
    story.environment()
    return story


def update(story: factory.Story, **values: Any) -> None:
    Service.objects.filter(pk=story.the_service.pk).update(**values)


# ---- packages ----


def test_all_packages_are_shown_with_version_size_source_and_installer(visitor: Client, story: factory.Story) -> None:
    seen = text(visitor.get(f"{SERVICE}environment/"))
    assert "vllm asked for 4 patched files 0.16.0rc2.dev313 1.0 GB wheelhouse /srv/roundhouse/wheels uv" in seen
    assert "kernel-notes 0.0.1 not told editable /home/llm/kernel-notes pip" in seen
    assert "anyio 1.0.0 1.2 MB not recorded uv" in seen
    assert "Its packages agree" in seen
    assert "3.12.1" in seen


def test_findings_stand_on_top_worst_first(visitor: Client, story: factory.Story) -> None:
    story.environment(mismatch=True, broken=True)
    seen = text(visitor.get(f"{SERVICE}environment/"))
    assert seen.index("Packages do not agree") < seen.index("has no kernels for compute capability 12.0") < seen.index("vllm needs torch==2.10.0")
    for words in ("flashinfer-python 0.6.4 ≠ flashinfer-cubin 0.6.3", "but 2.9.1+practice is installed",
                  "openai needs sniffio , which is not installed", "pillow is installed twice, once as 10.4.0", "Wheels for two CUDAs",
                  "Plan a redeploy that completes them", "has no METADATA",
                  "2 will stop a start"):
        assert words in seen, words


@pytest.mark.parametrize(("query", "names"), [
    ("show=requested", {"vllm", "flashinfer-cubin"}), ("show=patched", {"vllm"}), ("q=flashinfer", {"flashinfer-python", "flashinfer-cubin"}),
    ("q=editable", {"kernel-notes"}), ("q=flashinfer+cubin", {"flashinfer-cubin"}), ("q=no-such-package", set()),
    ("show=coupled&q=t", {"torch", "transformers", "flashinfer-python", "flashinfer-cubin"})])
def test_packages_are_filtered(visitor: Client, story: factory.Story, query: str, names: set[str]) -> None:
    rows = {row["name"] for row in visitor.get(f"{SERVICE}environment/?{query}").context["rows"]}
    assert rows == names if "coupled" not in query else rows >= names


def test_packages_with_problems_say_which(visitor: Client, story: factory.Story) -> None:
    story.environment(mismatch=True, broken=True)
    response = visitor.get(f"{SERVICE}environment/?show=problems")
    rows = {row["name"]: row["problems"] for row in response.context["rows"]}
    assert {"vllm", "torch", "flashinfer-python", "flashinfer-cubin", "pillow", "numba", "openai", "mistral-common"} == set(rows)
    assert len(rows["torch"]) == 3


def test_an_unknown_filter_shows_all(visitor: Client, story: factory.Story) -> None:
    assert len(visitor.get(f"{SERVICE}environment/?show=;drop&page=99").context["rows"]) == 58


def test_htmx_gets_the_packages_alone(visitor: Client, story: factory.Story) -> None:
    answer = visitor.get(f"{SERVICE}environment/", {"q": "vllm", "show": ""}, headers={"HX-Request": "true", "HX-Trigger": "filters"})
    assert "<html" not in answer.content.decode()
    assert answer.headers["HX-Push-Url"] == f"{SERVICE}environment/?q=vllm"


def test_an_environment_that_was_not_read_teaches(visitor: Client, story: factory.Story) -> None:
    update(story, environment={})
    assert "What is installed is not known yet" in text(visitor.get(f"{SERVICE}environment/"))
    assert visitor.get(f"{SERVICE}environment/lock.txt").status_code == 404
    update(story, environment={"path": "/srv/old", "problems": ["`/srv/old` is no Python environment"]})
    seen = text(visitor.get(f"{SERVICE}environment/"))
    assert "Nothing could be read in /srv/old" in seen
    assert "is no Python environment" in seen


def test_the_lock_file_has_hashes_of_the_wheels_that_a_plan_knows(visitor: Client, story: factory.Story) -> None:
    story.redeploy()
    update(story, environment=said.environment(release=said.NEW))
    lock = visitor.get(f"{SERVICE}environment/lock.txt")
    body = lock.content.decode()
    assert body.startswith(f"# practice/kimi-k25, {said.NEW}, Python 3.12.1\n")
    assert f"vllm==0.16.0rc2.dev344+practice \\\n    --hash=sha256:{'c' * 64}\n" in body
    assert "\nanyio==1.0.0\n" in body
    assert lock.headers["Content-Disposition"] == 'attachment; filename="kimi-k25-lock.txt"'
    assert "vllm==0.16.0rc2.dev344+practice" in visitor.get(f"{SERVICE}environment/").content.decode()


@pytest.mark.parametrize("odd", [
    {"distributions": "none"}, {"distributions": [None, {"name": 3}, {"name": "a", "version": None, "size_bytes": -1, "requested": "yes"}]},
    {"distributions": [{"name": "a"}], "coupling": [{"packages": "x"}, {"packages": ["a"]}, 7],
     "requirements": [{}, {"package": "a", "needs": "((("}], "cuda": {"a": 1}, "kernels": {"architectures": 3, "covered": [], "findings": {}},
     "duplicates": [{"name": None}], "problems": {"a": 1}, "at": "now"},
    {"distributions": [{"name": "a"}], "kernels": {"problem": "torch is not installed"}, "python": [], "path": 7}])
def test_what_a_node_says_wrongly_is_left_out(visitor: Client, story: factory.Story, odd: Any) -> None:
    update(story, environment=odd, releases=["x", {"name": 1}, {"name": "r", "size_bytes": "much", "built_at": "x", "kind": 3}], changed={"words": 3},
           model={"findings": "x"})
    for path in (f"{SERVICE}environment/", SERVICE, "/nodes/practice/", f"{SERVICE}integrity/", f"{SERVICE}shelf/"):
        assert visitor.get(path).status_code == 200, path


# ---- integrity ----


def test_an_integrity_result_shows_lines_debris_and_what_is_not_running(visitor: Client, story: factory.Story) -> None:
    story.plan_job()
    job = story.checked()
    response = visitor.get(f"/jobs/{job.number}/integrity/")
    seen = text(response)
    body = response.content.decode()
    assert "6 files differ" in seen
    assert '<span class="t-k">if</span> <span class="t-b">self</span>.layer_idx' in body
    assert body.count('<li class="add hot">') == 3
    assert seen.count("not what is running") == 1
    assert "1 after the service began" in seen
    assert "numba/core/typing/asnumbatype.py numba missing" in seen
    assert "Python runs it at every start" in seen
    assert "has no RECORD" in seen
    assert f'href="/jobs/{job.number}/integrity/"' in visitor.get(f"/jobs/{job.number}/").content.decode()


def test_lines_that_come_with_the_check_need_no_plan(visitor: Client, story: factory.Story) -> None:
    job = story.checked()
    event = JobEvent.objects.get(job=job, type="integrity")
    event.data["extra"][0].update(diff="--- /dev/null\n+++ b/zz.pth\n@@ -0,0 +1 @@\n+import os\n", added=1, removed=0)
    event.save()
    assert "import os" in text(visitor.get(f"/jobs/{job.number}/integrity/"))


def test_after_a_restart_the_edited_file_is_what_runs(visitor: Client, story: factory.Story) -> None:
    job = story.checked()
    update(story, status={**story.the_service.status, "started_at": time.time()})
    assert "not what is running" not in text(visitor.get(f"/jobs/{job.number}/integrity/"))


def test_both_ways_are_offered_with_download_time_and_downtime(visitor: Client, story: factory.Story) -> None:
    job = story.checked()
    before = text(visitor.get(f"{SERVICE}integrity/"))
    assert before.count("its plan tells") == 2
    assert before.count("no estimate yet; kimi-k25 serves on") == 2
    story.redeploy(ago_s=9000)
    update(story, status={**story.the_service.status, "release": said.OLD})
    story.shaped_plan()
    seen = text(visitor.get(f"/jobs/{job.number}/integrity/"))
    assert "nothing, all wheels are at hand" in seen
    assert "unknown: the index does not tell" in seen
    assert "about 3:20 min, while kimi-k25 serves on" in seen
    assert "about 12:58 min, from 1 earlier start" in seen
    story.shaped_plan(mode="restore", ago_s=5)
    assert text(visitor.get(f"/jobs/{job.number}/integrity/")).count("its plan tells") == 1  # that of the full way


def test_a_way_that_is_not_possible_says_why_and_has_no_button(visitor: Client, story: factory.Story) -> None:
    job, plan = story.checked(), story.shaped_plan()
    plan.result["plan"]["ways"] = [{"mode": "restore", "possible": False, "download_bytes": None, "packages": 1, "files": 4,
                                    "why": "The channel has another `vllm` by now"}, said.WAYS[1]]
    plan.save()
    seen = text(visitor.get(f"/jobs/{job.number}/integrity/"))
    assert "Not possible here: The channel has another vllm by now" in seen
    assert "Plan to restore" not in seen
    assert "not possible" in text(visitor.get(f"/plans/{plan.number}/"))


@pytest.mark.parametrize("mode", ["restore", "full"])
def test_each_way_starts_its_plan(visitor: Client, story: factory.Story, redis_url: str, mode: str) -> None:
    response = visitor.post(f"{SERVICE}plan/", {"mode": mode})
    job = Job.objects.get(type="plan")
    assert response.url == f"/plans/{job.number}/"
    assert job.params["mode"] == mode


def test_a_way_that_is_none_is_refused(visitor: Client, story: factory.Story) -> None:
    assert visitor.post(f"{SERVICE}plan/", {"mode": "magic"}).status_code == 400
    assert not Job.objects.exists()


def test_a_clean_check_says_so(visitor: Client, story: factory.Story) -> None:
    job = story.checked(clean=True)
    seen = text(visitor.get(f"/jobs/{job.number}/integrity/"))
    assert "Every file is as it was shipped" in seen
    assert "Plan to restore" not in seen


def test_an_edit_that_came_back_through_a_cache_is_told_in_one_sentence(visitor: Client, story: factory.Story) -> None:
    story.environment_jobs()
    story.checked()
    assert "came back through uv's cache" in text(visitor.get(f"{SERVICE}integrity/"))


def test_the_integrity_page_without_a_check_teaches_and_says_that_one_runs(visitor: Client, story: factory.Story) -> None:
    Service.objects.update(packages={})
    assert "No file has been checked yet" in text(visitor.get(f"{SERVICE}integrity/"))
    job = story.job("integrity", steps=(("integrity", "Integrity", False),))
    story.step(job, "integrity", end=False)
    story.tell(job)
    assert "A check is under way" in text(visitor.get(f"{SERVICE}integrity/"))
    assert visitor.get(f"/jobs/{job.number}/integrity/").url == f"/jobs/{job.number}/"


def test_before_a_check_the_integrity_page_has_what_the_agent_found_and_both_ways(visitor: Client, story: factory.Story) -> None:
    seen = text(visitor.get(f"{SERVICE}integrity/"))
    assert "4 files differ from what was installed" in seen and "vllm/model_executor/models/deepseek_v2.py" in seen
    assert "Plan to restore just the changed files" in seen and "No file has been checked yet" not in seen


def test_a_check_of_another_release_is_not_told_of_the_one_in_use(visitor: Client, story: factory.Story) -> None:
    job = story.checked()
    story.service(release=factory.NEW, patched=False)
    seen = text(visitor.get(f"{SERVICE}integrity/"))
    assert "Every file is as it was shipped" in seen and f"check #{job.number}" in seen
    assert "4 files differ" not in seen and "Plan to restore" not in seen
    assert f"Check #{job.number}" not in text(visitor.get(SERVICE))
    itself = text(visitor.get(f"/jobs/{job.number}/integrity/"))
    assert "This check looked at release" in itself and "Plan to restore" not in itself


def test_what_the_agent_found_after_a_check_is_told_beside_it(visitor: Client, story: factory.Story) -> None:
    story.checked(clean=True)
    service = Service.objects.get()
    service.packages["patched"]["checked_at"] = time.time() + 5
    service.save()
    seen = text(visitor.get(f"{SERVICE}integrity/"))
    assert "Since this check the agent has looked again" in seen and "4 files differ now" in seen
    assert "Every file is as it was shipped" not in seen


def test_an_older_check_leads_to_the_newest(visitor: Client, story: factory.Story) -> None:
    older, newer = story.checked(ago_s=900), story.checked(clean=True, ago_s=30)
    assert f"Open the newest, #{newer.number}" in text(visitor.get(f"/jobs/{older.number}/integrity/"))


def test_only_a_check_has_an_integrity_result(visitor: Client, story: factory.Story) -> None:
    assert visitor.get(f"/jobs/{story.plan_job().number}/integrity/").status_code == 404
    assert visitor.get("/jobs/99999/integrity/").status_code == 404


# ---- the shelf ----


@pytest.fixture
def shelved(story: factory.Story) -> list[ShelvedPatch]:
    job = story.job("redeploy", steps=factory.STEPS)
    story.put_on_shelf(job)
    story.tell(job)
    return list(ShelvedPatch.objects.order_by("path"))


def test_the_empty_shelf_teaches(visitor: Client, story: factory.Story) -> None:
    seen = text(visitor.get(f"{SERVICE}shelf/"))
    assert "Nothing is on the shelf" in seen
    assert "4 files are edited now" in seen


def test_the_shelf_is_grouped_by_save(visitor: Client, story: factory.Story, shelved: list[ShelvedPatch]) -> None:
    seen = text(visitor.get(f"{SERVICE}shelf/"))
    assert "from 0.16.0rc2.dev313 , by job #" in seen
    assert "vllm/model_executor/models/deepseek_v2.py debug code in a hot path vllm 0.16.0rc2.dev313 +3 −1 81.2 kB" in seen


def test_a_patch_is_shown_in_colours_with_its_debris_marked(visitor: Client, shelved: list[ShelvedPatch]) -> None:
    deepseek = next(patch for patch in shelved if "deepseek" in patch.path)
    response = visitor.get(f"{SERVICE}shelf/{deepseek.pk}/")
    assert "in a forward path" in text(response)
    assert response.content.decode().count('class="add hot"') == 1
    plain = next(patch for patch in shelved if patch.path.endswith("config.py"))
    assert "The wheel that it came from is not at hand" in text(visitor.get(f"{SERVICE}shelf/{plain.pk}/"))


def test_a_patch_downloads_as_it_was_saved(visitor: Client, shelved: list[ShelvedPatch]) -> None:
    deepseek = next(patch for patch in shelved if "deepseek" in patch.path)
    response = visitor.get(f"{SERVICE}shelf/{deepseek.pk}/download/")
    assert response.content.decode() == deepseek.diff
    assert response.headers["Content-Disposition"].startswith('attachment; filename="deepseek_v2.py-')
    assert response.headers["Content-Disposition"].endswith('.patch"')
    plain = next(patch for patch in shelved if patch.path.endswith("config.py"))
    assert visitor.get(f"{SERVICE}shelf/{plain.pk}/download/").status_code == 404
    whole = visitor.get(f"{SERVICE}shelf/saves/{deepseek.folder}/download/").content.decode()
    assert whole.count("--- a/") == 3
    assert "config.py: changed, no difference to show" in whole
    assert visitor.get(f"{SERVICE}shelf/saves/no-such/download/").status_code == 404


def test_a_patch_of_another_service_is_not_found(visitor: Client, story: factory.Story, shelved: list[ShelvedPatch]) -> None:
    Service.objects.create(node=story.the_node, name="other", record={**story.the_service.record, "name": "other"}, practice=True)
    for path in (f"shelf/{shelved[0].pk}/", f"shelf/{shelved[0].pk}/download/", f"run/shelf-forget/?patch={shelved[0].pk}"):
        assert visitor.get(f"/services/practice/other/{path}").status_code == 404, path
    assert visitor.post("/services/practice/other/run/shelf-forget/", {"patch": [shelved[0].pk]}).status_code == 400


def test_forgetting_names_the_files_and_then_asks_the_node(visitor: Client, shelved: list[ShelvedPatch], redis_url: str) -> None:
    asked = text(visitor.get(f"{SERVICE}run/shelf-forget/?folder={shelved[0].folder}"))
    assert "Forget 4 patches of kimi-k25?" in asked
    assert "for good" in asked
    response = visitor.post(f"{SERVICE}run/shelf-forget/", {"patch": [p.pk for p in shelved[:2]]})
    job = Job.objects.get(type="shelf-forget")
    assert response.url == f"/jobs/{job.number}/"
    assert job.params == {"entries": [{"folder": p.folder, "path": p.path} for p in sorted(shelved[:2], key=lambda p: p.path)]}


@pytest.mark.parametrize("chosen", [[], ["x"], ["999999"], ["-1"], ["1; drop"]])
def test_forgetting_what_is_not_there_is_refused(visitor: Client, shelved: list[ShelvedPatch], chosen: list[str]) -> None:
    assert visitor.post(f"{SERVICE}run/shelf-forget/", {"patch": chosen}).status_code == 400
    assert not Job.objects.filter(type="shelf-forget").exists()


def test_a_forgotten_patch_is_gone_from_the_shelf_and_says_so(visitor: Client, story: factory.Story) -> None:
    story.environment_jobs()
    gone = ShelvedPatch.objects.get(forgotten_at__isnull=False)
    assert "Forgotten" in text(visitor.get(f"{SERVICE}shelf/{gone.pk}/"))
    assert "1 patch was forgotten" in text(visitor.get(f"{SERVICE}shelf/"))


# ---- releases ----


def test_releases_are_what_the_node_keeps_with_what_was_measured(visitor: Client, story: factory.Story) -> None:
    story.redeploy(ago_s=9000)
    rows = {row["name"]: row for row in visitor.get(SERVICE).context["releases"]}
    assert list(rows) == [said.BUILT, said.NEW, said.OLD, "adopted"]
    assert (rows[said.NEW]["warmup_s"], rows[said.NEW]["single"], rows[said.NEW]["best"]) == (772.0, 61.0, 1239.0)
    assert rows[said.BUILT]["newer"] and not rows[said.OLD]["newer"]
    assert {name: (row["can_switch"], row["can_remove"]) for name, row in rows.items()} == {
        said.BUILT: (True, True), said.NEW: (True, True), said.OLD: (False, False), "adopted": (True, False)}
    seen = text(visitor.get(SERVICE))
    assert "0.16.0rc2.dev313 current last good" in seen
    assert "was there before Roundhouse" in seen


def test_rolling_back_to_a_release_with_edits_says_that_they_come_back(visitor: Client, story: factory.Story) -> None:
    plan = story.plan_job()
    edited = (plan.result or {})["plan"]["current"]
    story.service(release=said.NEW, patched=False)
    asked = text(visitor.get(f"{SERVICE}run/rollback/?release={edited}"))
    assert "4 files of it were edited by hand" in asked and "vllm/model_executor/models/deepseek_v2.py" in asked
    assert "edited by hand" not in text(visitor.get(f"{SERVICE}run/rollback/?release={said.NEW}"))


def test_what_differs_from_a_release_that_nobody_built_here_comes_from_the_plan_made_on_it(visitor: Client, story: factory.Story) -> None:
    plan = story.plan_job()
    before = (plan.result or {})["plan"]["current"]
    Service.objects.update(environment={}, packages={"versions": {"vllm": "0.16.0rc2.dev344+practice"}})
    differs = environment_story.what_differs(Service.objects.get(), before)
    assert differs == {"known": True, "rows": [{"name": "vllm", "now": "0.16.0rc2.dev344+practice", "then": "0.16.0rc2.dev313+practice"}]}


def test_a_plan_that_the_node_refused_says_what_to_do_and_offers_other_choices(visitor: Client, story: factory.Story) -> None:
    job = story.job("plan", params={"channel": "nightly"})
    Job.objects.filter(pk=job.pk).update(state="failed", reason="This node does not allow the index `public`", error={
        "kind": "refused", "what": "This node does not allow the index `public`", "why": "Allowed: none",
        "hint": "The node's owner sets this in node.toml (index_urls)"})
    seen = text(visitor.get(f"/plans/{job.number}/"))
    for words in ("This node does not allow the index public", "Allowed: none", "The node's owner sets this in node.toml", "Plan with other choices"):
        assert words in seen, words
    assert "no steps yet" not in seen


def test_the_usual_channel_is_the_one_of_the_last_release_not_the_first_by_name(visitor: Client, story: factory.Story) -> None:
    Channel.objects.filter(name="practice").update(announced=True)
    Channel.objects.create(name="a-recipe", practice=True, record={"name": "a-recipe"})
    service = Service.objects.get()
    assert [channel.name for channel in channels_for(service)][:1] == ["practice"]
    job = story.redeploy(ago_s=9000)
    Job.objects.filter(pk=job.pk).update(params={**job.params, "channel": "a-recipe"})
    assert channels_for(service)[0].name == "a-recipe"


def test_rolling_back_says_from_where_to_where_what_differs_and_how_long_it_is_down(visitor: Client, story: factory.Story) -> None:
    story.redeploy(ago_s=9000)
    asked = text(visitor.get(f"{SERVICE}run/rollback/?release={said.NEW}"))
    for words in ("From 0.16.0rc2.dev313 to 0.16.0rc2.dev344", "vllm 0.16.0rc2.dev313 → 0.16.0rc2.dev344", "Nothing is built or downloaded",
                  "about 12:58 min", "Smoke tests when it answers again"):
        assert words in asked, words


def test_rolling_back_starts_the_job_with_the_release(visitor: Client, story: factory.Story, redis_url: str) -> None:
    response = visitor.post(f"{SERVICE}run/rollback/", {"release": said.NEW})
    job = Job.objects.get(type="rollback")
    assert response.url == f"/jobs/{job.number}/"
    assert job.params == {"release": said.NEW, "smoke": False}


@pytest.mark.parametrize("release", ["", "../../etc", "no-such", said.OLD, "-rf", "a" * 300, "x\ny"])
def test_no_release_to_roll_back_to(visitor: Client, story: factory.Story, release: str) -> None:
    assert visitor.post(f"{SERVICE}run/rollback/", {"release": release}).status_code == 400
    assert not Job.objects.exists()


def test_asking_about_a_release_that_is_not_kept_is_not_found(visitor: Client, story: factory.Story) -> None:
    for action in ("rollback", "remove-release"):
        assert visitor.get(f"{SERVICE}run/{action}/?release=no-such").status_code == 404


def test_removing_names_the_folder_and_its_size(visitor: Client, story: factory.Story, redis_url: str) -> None:
    asked = text(visitor.get(f"{SERVICE}run/remove-release/?release={said.BUILT}"))
    assert "11.4 GB" in asked
    assert f"/releases/{said.BUILT}" in asked
    visitor.post(f"{SERVICE}run/remove-release/", {"release": said.BUILT})
    assert Job.objects.get(type="remove-release").params == {"release": said.BUILT}


def test_the_live_release_is_not_removed(visitor: Client, story: factory.Story) -> None:
    assert visitor.post(f"{SERVICE}run/remove-release/", {"release": said.OLD}).status_code == 400


def test_a_failed_job_offers_the_way_back(visitor: Client, story: factory.Story) -> None:
    job = story.failed_redeploy()
    update(story, releases=[said.release(said.NEW, built_at=1.0, current=True), said.release(said.OLD, built_at=1.0, good=True)])
    assert f"{SERVICE}run/rollback/?release={said.OLD}" in visitor.get(f"/jobs/{job.number}/").content.decode()
    update(story, releases=said.releases(said.OLD))
    assert f"{SERVICE}run/rollback/" not in visitor.get(f"/jobs/{job.number}/").content.decode()


# ---- guards, recipes ----


def test_applying_guards_names_files_keys_and_the_backup(visitor: Client, story: factory.Story, redis_url: str) -> None:
    story.environment(guards_hold=False)
    assert "run/guards-apply/" in visitor.get(SERVICE).content.decode()
    asked = text(visitor.get(f"{SERVICE}run/guards-apply/"))
    assert "The key quantization.kv_cache_quant_algo is taken out of /data/models/Kimi-K2.5-NVFP4/hf_quant_config.json" in asked
    assert "the backup stays" in asked
    visitor.post(f"{SERVICE}run/guards-apply/", {"guard": ["1"]})
    assert Job.objects.get(type="guards-apply").params == {"guards": [said.guards(holding=False)[1]["guard"]]}


@pytest.mark.parametrize("guard", ["9", "x", "-1"])
def test_a_guard_that_is_none_is_refused(visitor: Client, story: factory.Story, guard: str) -> None:
    assert visitor.post(f"{SERVICE}run/guards-apply/", {"guard": [guard]}).status_code == 400


def test_guards_that_hold_leave_nothing_to_apply(visitor: Client, story: factory.Story) -> None:
    assert "run/guards-apply/" not in visitor.get(SERVICE).content.decode()
    assert "Every guard holds: there is nothing to edit" in text(visitor.get(f"{SERVICE}run/guards-apply/"))


def test_the_model_folder_is_pointed_out(visitor: Client, story: factory.Story) -> None:
    story.environment(broken=True)
    assert "The model brings code of its own: auto_map in config.json" in text(visitor.get(SERVICE))


def test_changes_since_the_last_good_start_are_the_nodes_words(visitor: Client, story: factory.Story) -> None:
    update(story, changed={"since": 1_772_000_000.0, "words": said.WORDS, "differences": None})
    seen = text(visitor.get(SERVICE))
    assert "--max-model-len was 65536, is 131072" in seen
    update(story, changed={"since": 1_772_000_000.0, "words": [], "differences": None})
    assert "Nothing: packages, files, flags" in text(visitor.get(SERVICE))


def test_a_recipe_is_saved_and_downloaded(visitor: Client, story: factory.Story, redis_url: str) -> None:
    assert "It must have passed everything" in text(visitor.get(f"{SERVICE}run/recipe/"))
    visitor.post(f"{SERVICE}run/recipe/", {"label": "long context"})
    assert Job.objects.get(type="recipe").params["label"] == "long context"
    Job.objects.all().delete()
    job = story.environment_jobs()["recipe"]
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "Recipe: all 8 GPUs, long context" in seen
    assert "Set by hand --api-key, HF_TOKEN" in seen
    response = visitor.get(f"/jobs/{job.number}/recipe.json")
    assert json.loads(response.content) == said.RECIPE["recipe"]
    assert response.headers["Content-Disposition"] == 'attachment; filename="kimi-k25-0.16.0rc2.dev344.json"'


def test_only_a_recipe_job_has_a_recipe(visitor: Client, story: factory.Story) -> None:
    assert visitor.get(f"/jobs/{story.plan_job().number}/recipe.json").status_code == 404


# ---- plans ----


def test_in_place_both_ways_say_that_the_install_is_a_part_of_the_downtime(visitor: Client, story: factory.Story) -> None:
    service = Service.objects.get()
    Service.objects.update(record={**service.record, "in_place": True})
    seen = text(visitor.get(f"{SERVICE}integrity/"))
    assert "in place: a part of the downtime" in seen and "installed anew from the same wheel, the others stay" in seen
    assert "serves on meanwhile" not in seen


def test_where_nothing_can_be_copied_no_copy_is_announced(visitor: Client, story: factory.Story) -> None:
    assert "Fetch wheels, copy the folder" in text(visitor.get(f"/plans/{story.shaped_plan(in_place=True).number}/"))
    assert "copy the folder" not in text(visitor.get(f"/plans/{story.shaped_plan(in_place=True, way_back=False).number}/"))


def test_a_plan_in_place_says_where_the_copy_lies(visitor: Client, story: factory.Story) -> None:
    seen = text(visitor.get(f"/plans/{story.shaped_plan(in_place=True).number}/"))
    assert "This environment is changed in place" in seen
    assert "to /opt/llm/venv.roundhouse-" in seen
    assert "6.2 GB to download" in seen
    assert "Only build and verify it" not in seen


def test_a_plan_without_a_way_back_needs_a_second_confirmation(visitor: Client, story: factory.Story, redis_url: str) -> None:
    plan = story.shaped_plan(in_place=True, way_back=False, download_bytes=None)
    response = visitor.get(f"/plans/{plan.number}/")
    seen = text(response)
    assert "there is no rollback" in seen
    assert "/opt has 3.1 GB free" in seen
    assert "download size unknown" in seen
    assert 'name="accept_no_rollback" required' in response.content.decode()
    asked = {"plan_hash": "f" * 64, "preset": "quick"}
    assert visitor.post(f"/plans/{plan.number}/redeploy/", asked).status_code == 400
    assert not Job.objects.filter(type="redeploy").exists()
    visitor.post(f"/plans/{plan.number}/redeploy/", {**asked, "accept_no_rollback": "on"})
    assert Job.objects.get(type="redeploy").params["accept_no_rollback"] is True


def test_a_plan_that_restores_names_what_is_installed_anew_and_the_other_way(visitor: Client, story: factory.Story) -> None:
    seen = text(visitor.get(f"/plans/{story.shaped_plan(mode='restore', download_bytes=0).number}/"))
    assert "restores edited files" in seen
    assert "vllm is installed anew from the same wheel" in seen
    assert "nothing to download" in seen
    assert "Full clean redeploy" in seen


def test_only_to_build_is_a_job_of_its_own(visitor: Client, story: factory.Story, redis_url: str) -> None:
    plan = story.plan_job()
    visitor.post(f"/plans/{plan.number}/redeploy/", {"plan_hash": "f" * 64, "preset": "quick", "only_build": "on"})
    job = Job.objects.get(type="build")
    assert job.params["plan_hash"] == "f" * 64
    assert f"This plan was used by build #{job.number}" in text(visitor.get(f"/plans/{plan.number}/"))


def test_a_plan_without_solution_says_what_conflicts_with_what(visitor: Client, story: factory.Story) -> None:
    job = story.impossible_plan()
    seen = text(visitor.get(f"/plans/{job.number}/"))
    assert "vllm==0.17.1 needs torch==2.10.0 torch==2.9.1 is asked for" in seen
    assert "Make this plan" in seen
    Job.objects.filter(pk=job.pk).update(error={**said.CONFLICT, "facts": {}})
    assert "vllm==0.17.1 depends on torch==2.10.0 you require torch==2.9.1" in text(visitor.get(f"/plans/{job.number}/"))


def test_the_downtime_in_place_has_the_install_in_it(visitor: Client, story: factory.Story) -> None:
    story.redeploy(ago_s=9000)
    seen = text(visitor.get(f"/plans/{story.shaped_plan(in_place=True).number}/"))
    assert "about 15:39 min" in seen  # 12:58 of a start, 2:41 of a build
    assert "a start and an install, as they took apart" in seen


# ---- jobs of the new kinds ----


@pytest.mark.parametrize(("kind", "title", "line"), [
    ("build", "Build a release for kimi-k25", "0.16.0rc2.dev344 built and verified"), ("rollback", "Roll back kimi-k25",
                                                                                      "on 0.16.0rc2.dev313, down 12:41 min"),
    ("remove-release", "Remove a release of kimi-k25", "0.16.0rc2.dev350 removed"), ("guards-apply", "Apply guards of kimi-k25",
                                                                                   "1 file edited, 3 of 3 hold"),
    ("shelf-forget", "Forget patches of kimi-k25", "1 patch forgotten"), ("recipe", "Save a recipe of kimi-k25", "kimi-k25-0.16.0rc2.dev344.json")])
def test_jobs_have_their_titles_and_results(visitor: Client, story: factory.Story, kind: str, title: str, line: str) -> None:
    job = story.environment_jobs()[kind]
    assert title in text(visitor.get(f"/jobs/{job.number}/"))
    assert f"{title} #{job.number}" in text(visitor.get(f"/jobs/?type={kind}"))
    assert line in text(visitor.get("/jobs/"))


def test_a_job_shows_what_it_saved_edited_and_how_it_was_started(visitor: Client, story: factory.Story) -> None:
    made = story.environment_jobs()
    assert "4 files saved before anything overwrote them" in text(visitor.get(f"/jobs/{made['build'].number}/?step=shelf"))
    guards = visitor.get(f"/jobs/{made['guards-apply'].number}/")
    assert '<span class="sign">−</span><span class="src">' in guards.content.decode()
    assert "As it was before: /srv/roundhouse/node/services/kimi-k25/guard-backups/" in text(guards)
    rolled = text(visitor.get(f"/jobs/{made['rollback'].number}/"))
    assert "From 0.16.0rc2.dev344 to 0.16.0rc2.dev313 . Nothing was built or downloaded." in rolled
    assert "2 Service verified" in rolled
    assert "4 Benchmark" not in rolled
    assert "Fingerprint 0123456789ab" in rolled
    assert "the driver was 570.133.20, is 580.95.05" in rolled


@pytest.mark.parametrize(("kind", "words"), [
    ("rollback", "has not been touched"), ("build", "The unfinished release is removed"), ("remove-release", "The live release stays"),
    ("guards-apply", "each with its backup beside"), ("shelf-forget", "the rest stays on the shelf"), ("recipe", "It only reads")])
def test_cancelling_says_what_it_will_do(visitor: Client, story: factory.Story, kind: str, words: str) -> None:
    job = story.job(kind, params={"release": said.NEW}, steps=(("plan", "Plan", False),))
    story.step(job, "plan", end=False)
    story.tell(job)
    assert words in text(visitor.get(f"/jobs/{job.number}/cancel/"))


# ---- who, and how ----


PAGES = ("environment/", "environment/lock.txt", "integrity/", "shelf/", f"run/rollback/?release={said.NEW}", "run/guards-apply/", "run/recipe/")


@pytest.mark.parametrize("path", PAGES)
def test_nobody_sees_these_pages_without_signing_in(story: factory.Story, path: str) -> None:
    response = Client().get(f"{SERVICE}{path}")
    assert response.status_code == 302
    assert "/sign-in/" in response.url


@pytest.mark.parametrize("path", PAGES)
def test_an_operator_may_see_and_do_all_of_it(story: factory.Story, operator: User, path: str) -> None:
    client = Client()
    client.force_login(operator)
    assert client.get(f"{SERVICE}{path}").status_code == 200


@pytest.mark.parametrize("path", [*PAGES[:4], "shelf/1/", "shelf/1/download/"])
def test_pages_that_only_show_take_no_other_method(visitor: Client, story: factory.Story, path: str) -> None:
    assert visitor.post(f"{SERVICE}{path}").status_code == 405


@pytest.mark.parametrize("path", ["environment/", "integrity/", "shelf/", "environment/lock.txt"])
def test_a_service_that_is_not_there_is_not_found(visitor: Client, story: factory.Story, path: str) -> None:
    assert visitor.get(f"/services/practice/other/{path}").status_code == 404


def test_new_pages_hold_no_inline_style_and_no_inline_script(visitor: Client) -> None:
    factory.environments()
    numbers = [(job.number, job.type) for job in Job.objects.all()]
    patch = ShelvedPatch.objects.filter(forgotten_at=None).first()
    assert patch is not None
    paths = [f"{SERVICE}{path}" for path in (*PAGES, f"shelf/{patch.pk}/", f"run/shelf-forget/?patch={patch.pk}")]
    paths += [f"/plans/{number}/" if kind == "plan" else f"/jobs/{number}/" for number, kind in numbers]
    for path in [path for path in paths if not path.endswith(".txt")]:
        body = visitor.get(path).content.decode()
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:", body), path
        assert not re.search(r"<script(?![^>]*(?:src=|type=\"application/json\"))", body), path
        assert body.count("btn-primary") <= 2, path


def test_a_page_of_packages_costs_few_queries(visitor: Client, story: factory.Story, django_assert_max_num_queries: Any) -> None:
    for _ in range(3):
        story.redeploy()
    with django_assert_max_num_queries(25):
        visitor.get(f"{SERVICE}environment/")


def test_the_node_page_lists_its_environments(visitor: Client, story: factory.Story) -> None:
    story.environment(mismatch=True, broken=True)
    seen = text(visitor.get("/nodes/practice/"))
    assert "3.12.1 58 2 blocking 4 patched files" in seen
    assert environment_story.packages(Service.objects.get())["stops"] == 2
