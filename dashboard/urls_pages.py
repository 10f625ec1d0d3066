"""Addresses of the pages. Fragments are parts of pages that scripts fetch again when something changed."""

from __future__ import annotations

from django.urls import path

from dashboard.views import benchmarks, fleet, jobs, pages, plans, services

urlpatterns = [
    path("", fleet.fleet, name="fleet"),
    path("fragments/<str:name>/", fleet.fragment, name="fleet_fragment"),
    path("nodes/<str:name>/", pages.node, name="node"),
    path("services/", services.services, name="services"),
    path("services/<str:node>/<str:name>/", services.service, name="service"),
    path("services/<str:node>/<str:name>/plan/", services.plan_start, name="plan_start"),
    path("services/<str:node>/<str:name>/run/<str:action>/", services.service_run, name="service_run"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/<int:number>/", jobs.job, name="job"),
    path("jobs/<int:number>/fragments/<str:name>/", jobs.fragment, name="job_fragment"),
    path("jobs/<int:number>/log/", jobs.job_log, name="job_log"),
    path("jobs/<int:number>/report.md", jobs.job_report, name="job_report"),
    path("jobs/<int:number>/abandon/", jobs.job_abandon, name="job_abandon"),
    path("jobs/<int:number>/cancel/", jobs.job_cancel, name="job_cancel"),
    path("plans/<int:number>/", plans.plan, name="plan"),
    path("plans/<int:number>/redeploy/", plans.plan_redeploy, name="plan_redeploy"),
    path("benchmarks/", benchmarks.benchmarks, name="benchmarks"),
    path("benchmarks/compare/", pages.compare, name="compare"),
    path("benchmarks/<uuid:id>/", benchmarks.benchmark_run, name="benchmark_run"),
    path("diagnose/", pages.diagnose, name="diagnose"),
    path("cleanup/", pages.cleanup, name="cleanup"),
    path("settings/", pages.settings, name="settings"),
]
