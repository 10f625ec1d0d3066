"""Addresses of the pages. Fragments are parts of pages that scripts fetch again when something changed."""

from __future__ import annotations

from django.urls import path

from dashboard.views import adoption, benchmarks, channels, diagnose, environments, fleet, guards, jobs, launch, pages, plans, services, shelf, smoke

urlpatterns = [
    path("", fleet.fleet, name="fleet"),
    path("fragments/<str:name>/", fleet.fragment, name="fleet_fragment"),
    path("nodes/<str:name>/", pages.node, name="node"),
    path("nodes/<str:name>/adopt/", adoption.adopt, name="adopt"),
    path("services/", services.services, name="services"),
    path("services/<str:node>/<str:name>/", services.service, name="service"),
    path("services/<str:node>/<str:name>/plan/", services.plan_start, name="plan_start"),
    path("services/<str:node>/<str:name>/run/<str:action>/", services.service_run, name="service_run"),
    path("services/<str:node>/<str:name>/environment/", environments.environment, name="environment"),
    path("services/<str:node>/<str:name>/environment/lock.txt", environments.environment_lock, name="environment_lock"),
    path("services/<str:node>/<str:name>/guards/", guards.guards_set, name="guards_set"),
    path("services/<str:node>/<str:name>/integrity/", environments.service_integrity, name="service_integrity"),
    path("services/<str:node>/<str:name>/launch/", launch.launch_settings, name="launch_settings"),
    path("services/<str:node>/<str:name>/smoke/", smoke.smoke_suite, name="smoke_suite"),
    path("services/<str:node>/<str:name>/shelf/", shelf.shelf, name="shelf"),
    path("services/<str:node>/<str:name>/shelf/<int:id>/", shelf.shelf_patch, name="shelf_patch"),
    path("services/<str:node>/<str:name>/shelf/<int:id>/download/", shelf.shelf_download, name="shelf_download"),
    path("services/<str:node>/<str:name>/shelf/saves/<str:folder>/download/", shelf.shelf_save_download, name="shelf_save_download"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/<int:number>/", jobs.job, name="job"),
    path("jobs/<int:number>/fragments/<str:name>/", jobs.fragment, name="job_fragment"),
    path("jobs/<int:number>/log/", jobs.job_log, name="job_log"),
    path("jobs/<int:number>/report.md", jobs.job_report, name="job_report"),
    path("jobs/<int:number>/integrity/", environments.integrity_result, name="integrity_result"),
    path("jobs/<int:number>/recipe.json", environments.recipe_download, name="recipe_download"),
    path("jobs/<int:number>/adopt/", adoption.adopt_apply, name="adopt_apply"),
    path("jobs/<int:number>/abandon/", jobs.job_abandon, name="job_abandon"),
    path("jobs/<int:number>/cancel/", jobs.job_cancel, name="job_cancel"),
    path("plans/<int:number>/", plans.plan, name="plan"),
    path("plans/<int:number>/redeploy/", plans.plan_redeploy, name="plan_redeploy"),
    path("benchmarks/", benchmarks.benchmarks, name="benchmarks"),
    path("benchmarks/compare/", pages.compare, name="compare"),
    path("benchmarks/<uuid:id>/", benchmarks.benchmark_run, name="benchmark_run"),
    path("diagnose/", diagnose.diagnose, name="diagnose"),
    path("cleanup/", pages.cleanup, name="cleanup"),
    path("settings/", pages.settings, name="settings"),
    path("settings/channels/new/", channels.channel_new, name="channel_new"),
    path("settings/channels/new/<str:preset>/", channels.channel_new_from, name="channel_new_from"),
    path("settings/channels/<str:name>/", channels.channel_edit, name="channel_edit"),
    path("settings/channels/<str:name>/remove/", channels.channel_remove, name="channel_remove"),
]
