from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser, User

from dashboard.permissions import ACTIONS, ADMIN_ACTIONS, OPERATOR_ACTIONS, VIEW_ACTIONS, may
from ops.jobs.kinds import KINDS


def test_every_kind_of_job_has_an_action_for_operators_but_those_that_bring_a_service() -> None:
    assert {f"job.{kind}" for kind in KINDS} - OPERATOR_ACTIONS == {"job.adopt", "job.adopt-apply"} <= ADMIN_ACTIONS


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_who_may_do_what(action: str) -> None:
    assert not may(AnonymousUser(), action)
    assert may(User(is_superuser=True), action)
    assert may(User(), action) == (action in OPERATOR_ACTIONS | VIEW_ACTIONS)
    assert not may(User(is_superuser=True, is_active=False), action)


def test_an_action_that_nobody_defined_opens_no_door() -> None:
    with pytest.raises(ValueError, match="no such action"):
        may(User(is_superuser=True), "job.destroy")
    assert not ADMIN_ACTIONS & OPERATOR_ACTIONS
