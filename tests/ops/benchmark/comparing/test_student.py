"""Our own t distribution and Fisher's test, against published tables and examples worked by hand."""

from __future__ import annotations

import math

import pytest

from ops.benchmark.comparing import student


@pytest.mark.parametrize(("df", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)])
def test_the_quantiles_are_those_of_the_table_of_student(df: int, t: float) -> None:
    assert student.quantile(0.95, df) == pytest.approx(t, abs=0.0005)
    assert student.two_sided(t, df) == pytest.approx(0.05, abs=0.0001)


def test_a_quantile_at_another_level_and_with_broken_degrees_of_freedom() -> None:
    assert student.quantile(0.99, 4) == pytest.approx(4.604, abs=0.0005)
    assert student.quantile(0.95, 2) > student.quantile(0.95, 2.5) > student.quantile(0.95, 3)


def test_the_incomplete_beta_function_where_it_has_a_closed_form() -> None:
    assert student.incomplete_beta(1, 1, 0.3) == pytest.approx(0.3)
    assert student.incomplete_beta(2, 3, 0.5) == pytest.approx(0.6875)  # 6x² - 8x³ + 3x⁴
    assert student.incomplete_beta(0.5, 0.5, 0.25) == pytest.approx(1 / 3)  # 2/π asin √x


def test_welch_on_three_values_a_side_by_hand() -> None:
    """Means 2 and 4, variances 1: error √(2/3), four degrees of freedom, t = 2.449."""
    found = student.welch([1, 2, 3], [3, 4, 5])
    assert (found.effect, found.df) == (2, pytest.approx(4))
    assert found.high - found.effect == pytest.approx(2.776 * math.sqrt(2 / 3), abs=0.001)
    assert found.p == pytest.approx(0.0705, abs=0.0001)


def test_sides_without_any_spread_differ_by_what_they_differ() -> None:
    assert student.welch([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == student.Difference(0, 0, 0, 1, 4)
    assert student.welch([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]).p == 0


def test_fishers_exact_test_on_the_examples_of_the_books() -> None:
    assert student.fisher(3, 4, 1, 4) == pytest.approx(0.4857, abs=0.0001)  # the lady tasting tea
    assert student.fisher(1, 12, 9, 12) == pytest.approx(0.002759, abs=0.000001)
    assert student.fisher(0, 5000, 0, 5000) == 1
    assert student.fisher(20, 20_000, 60, 20_000) < 1e-5


def test_of_very_many_requests_the_normal_approximation_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = student.fisher(30_000, 1_000_000, 30_600, 1_000_000)
    monkeypatch.setattr(student, "_TABLES", 10**9)
    assert exact == pytest.approx(student.fisher(30_000, 1_000_000, 30_600, 1_000_000), rel=0.02)
    assert 0 < exact < 0.05


def test_holms_correction_by_hand() -> None:
    assert student.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
