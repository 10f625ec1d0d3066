"""Querysets that leave large columns where they are until somebody asks for them: an order with the pins of a whole channel has 400 KB, the packages
of one environment 60 KB, a fingerprint 20 KB, a level's curves 25 KB, an imported file up to 64 MB, and a list of fifty jobs shows none of them.
Reading such an attribute later is one more query."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from django.db import models

LARGE = {"job": ("envelope", "fingerprint"), "service": ("environment", "failures", "warmups"), "channel": ("record",), "imported": ("content",),
         "benchmarklevel": ("detail",)}
M = TypeVar("M", bound=models.Model)


class LeanQuerySet(models.QuerySet[M]):
    def select_related(self, *fields: Any) -> Self:
        """As Django's; the large columns of what comes along stay behind."""
        found = super().select_related(*fields)
        first = {str(field).partition("__")[0] for field in fields if field}
        names = [f"{relation}__{column}" for relation in sorted(first & LARGE.keys()) for column in LARGE[relation]]
        return found.defer(*names) if names else found


class LeanManager(models.Manager[M]):
    def get_queryset(self) -> LeanQuerySet[M]:
        return LeanQuerySet(self.model, using=self._db).defer(*LARGE.get(self.model._meta.model_name or "", ()))
