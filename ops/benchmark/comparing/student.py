"""Student's t distribution, Welch's interval and Fisher's exact test, without numpy or scipy.

The distribution function is the regularised incomplete beta function, by its continued fraction (Lentz's method; Abramowitz and Stegun 26.5.8 and
26.7.1). Held against published tables in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_TINY = 1e-300
_TURNS = 500
_TABLES = 20_000


def incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b) for a, b > 0: the share of a beta distribution below x."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):  # the fraction converges fast on this side only
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _TURNS):
        for numerator in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 + numerator * d
            d = 1 / (d if abs(d) > _TINY else _TINY)
            c = 1 + numerator / c
            c = c if abs(c) > _TINY else _TINY
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def two_sided(t: float, df: float) -> float:
    """The chance of a |T| at least this large, with `df` degrees of freedom (need not be whole)."""
    if math.isinf(t):
        return 0.0
    return incomplete_beta(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def quantile(level: float, df: float) -> float:
    """The t that a |T| stays below with chance `level` (two-sided): quantile(0.95, 4) is 2.776."""
    wanted = 1 - level
    low, high = 0.0, 2.0
    while two_sided(high, df) > wanted:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high) or high - low < 1e-11 * high:
            break
        if two_sided(middle, df) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Of a sample (n - 1); needs two values."""
    middle = mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two means: the second minus the first, its interval, and the chance of one as large if there were none."""

    effect: float
    low: float
    high: float
    p: float
    df: float


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean; needs two values."""
    middle = mean(values)
    half = quantile(level, len(values) - 1) * math.sqrt(variance(values) / len(values))
    return middle - half, middle + half


def geometric(values: Sequence[float], level: float = 0.95) -> tuple[float, float | None, float | None]:
    """The geometric mean of positive numbers and Student's interval of it, by their logs. One value is its own mean, as it is written (61, not
    61.00000000000001), without an interval; that of wild numbers may be wider than any float: then it is as wide as one."""
    if len(values) < 2:
        return values[0], None, None
    logs = [math.log(value) for value in values]
    low, high = interval(logs, level)
    return math.exp(mean(logs)), math.exp(max(-700.0, low)), math.exp(min(700.0, high))


def welch(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Difference:
    """Welch's t of b minus a, two values a side at least. Without any spread on both sides the interval is the difference itself."""
    effect = mean(b) - mean(a)
    share_a, share_b = variance(a) / len(a), variance(b) / len(b)
    squared = share_a + share_b
    if squared < 1e-24:  # equal to the last digit: what is left is rounding
        return Difference(effect, effect, effect, 1.0 if abs(effect) < 1e-12 else 0.0, float(len(a) + len(b) - 2))
    df = squared**2 / (share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1))
    error = math.sqrt(squared)
    half = quantile(level, df) * error
    return Difference(effect, effect - half, effect + half, two_sided(effect / error, df), df)


def fisher(bad_a: int, all_a: int, bad_b: int, all_b: int) -> float:
    """Two-sided p of Fisher's exact test: the tables at least as unlikely as this one, of all with the same sums. With more than `_TABLES` of
    those the normal approximation, which is then close."""
    bad, everything = bad_a + bad_b, all_a + all_b
    if not all_a or not all_b or not bad or bad == everything:
        return 1.0
    least, most = max(0, bad - all_b), min(bad, all_a)
    if most - least > _TABLES:
        expected = bad * all_a / everything
        spread = math.sqrt(expected * (all_b / everything) * ((everything - bad) / (everything - 1)))
        return math.erfc(abs(bad_a - expected) / spread / math.sqrt(2)) if spread else 1.0

    def log_chance(k: int) -> float:
        return _log_choose(all_a, k) + _log_choose(all_b, bad - k) - _log_choose(everything, bad)

    seen = log_chance(bad_a)
    return min(1.0, math.fsum(math.exp(chance) for k in range(least, most + 1) if (chance := log_chance(k)) <= seen + 1e-7))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def holm(chances: Sequence[float]) -> list[float]:
    """The p values after Holm's step-down correction, in the order given."""
    adjusted = [0.0] * len(chances)
    running = 0.0
    for place, index in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        running = max(running, min(1.0, (len(chances) - place) * chances[index]))
        adjusted[index] = running
    return adjusted
