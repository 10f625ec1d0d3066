"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.contrib.staticfiles.apps import StaticFilesConfig


class StaticFiles(StaticFilesConfig):
    """Leaves out what no page loads: Plotly's 30 MB of examples, and htmx's unminified sources (an import in a comment stops the hashing)."""

    ignore_patterns = (*StaticFilesConfig.ignore_patterns, "datasets", "widgetbundle.js", "templates", "htm*x-?.js", "hx-*-?.js", "htmx-*-?.js")


class DashboardConfig(AppConfig):
    name = "dashboard"
    verbose_name = "Roundhouse"

    def ready(self) -> None:
        from dashboard import checks  # noqa: F401 (registers the checks)
