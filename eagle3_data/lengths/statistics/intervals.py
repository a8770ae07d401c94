"""What a sample is worth: intervals for shares, means and ratios, and the rows that a wanted precision needs.

Goes in: counts and sums. Comes out: `Interval`s and numbers of rows. Every function is exact arithmetic over its
arguments; nothing here is random.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, betaincinv, ndtri, stdtrit

from eagle3_data.lengths.statistics.distribution import Floats

CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence limits; None where the data give no estimate or no limit."""

    value: float | None
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return {value, low, high}, rounded so that the JSON is the same on every machine."""
        return {"value": rounded(self.value), "low": rounded(self.low), "high": rounded(self.high)}


def rounded(value: float | None, digits: int = 10) -> float | int | None:
    """Round to `digits` significant digits; whole numbers become integers."""
    if value is None or not math.isfinite(value):
        return None
    if value == int(value):
        return int(value)
    return float(f"{value:.{digits}g}")


def normal_quantile(confidence: float) -> float:
    """Return z such that a standard normal lies within ±z with probability `confidence`."""
    return float(ndtri(0.5 + confidence / 2))


def wilson(share: ArrayLike, rows: ArrayLike, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """Wilson's score interval for a share (Wilson 1927).

    Args:
        share: shares in [0, 1].
        rows: rows behind each; may be fractional (an effective number of rows). 0 rows give [0, 1].
        confidence: such as 0.95.

    Returns:
        Lower and upper limits, float64, shaped as the arguments.
    """
    p, n = np.broadcast_arrays(np.asarray(share, float), np.asarray(rows, float))
    z2 = normal_quantile(confidence) ** 2
    centre = n * p + z2 / 2
    spread = np.sqrt(z2 * (n * p * (1 - p) + z2 / 4))
    low, high = (centre - spread) / (n + z2), (centre + spread) / (n + z2)
    # Exact at the ends, where rounding would leave 1e-17 instead of 0.
    return np.where(p <= 0, 0.0, np.clip(low, 0, 1)), np.where(p >= 1, 1.0, np.clip(high, 0, 1))


def share_interval(hits: float, rows: float, confidence: float = CONFIDENCE) -> Interval:
    """Return a share of rows with its Wilson interval; no value when there are no rows."""
    if rows <= 0:
        return Interval(None, None, None)
    low, high = wilson(hits / rows, rows, confidence)
    return Interval(hits / rows, float(low), float(high))


def order_statistics(p: float, rows: int, confidence: float = CONFIDENCE) -> tuple[int | None, int | None]:
    """Return the ranks (1-based) of the order statistics that bound the p-quantile of any distribution.

    The number of rows at or below the quantile is binomial (David and Nagaraja, Order Statistics, 7.1), so the limits
    hold at least `confidence`, each side missing at most half of the rest.

    Returns:
        Lower and upper rank; None where the sample is too small to give that limit (p99 of 200 rows has no upper one).
    """
    alpha = (1 - confidence) / 2
    ranks = np.arange(rows + 1)
    at_most = bdtr(ranks, rows, p)  # P(at most k rows lie at or below the quantile)
    lower = int(np.searchsorted(at_most, alpha, side="right"))  # largest l with P(B <= l - 1) <= alpha
    upper = int(np.searchsorted(at_most, 1 - alpha, side="left")) + 1  # smallest u with P(B >= u) <= alpha
    return (lower or None), (upper if upper <= rows else None)


def mean_interval(mean: float, variance: float, rows: int, confidence: float = CONFIDENCE) -> Interval:
    """Return a mean with Student's interval; without limits below two rows."""
    if rows < 2:
        return Interval(mean if rows else None, None, None)
    half = float(stdtrit(rows - 1, 0.5 + confidence / 2)) * math.sqrt(variance / rows)
    return Interval(mean, max(0.0, mean - half), mean + half)


def beta_quantile(mean: Floats, complement: Floats, variance: Floats, q: float) -> Floats:
    """Return the q-quantile of the beta distributions with these moments.

    Args:
        mean, complement: float64 (k,), the mean and 1 - mean, given apart because near 1 their difference is lost.
        variance: float64 (k,); 0 means a point.
        q: probability.
    """
    mean, complement, variance = np.broadcast_arrays(mean, complement, variance)
    out = np.array(mean, float)
    spread = (variance > 0) & (mean > 0) & (complement > 0)
    m, c = mean[spread], complement[spread]
    size = np.maximum(m * c / variance[spread] - 1, 1e-9)
    out[spread] = betaincinv(m * size, c * size, q)
    return out


def rows_for_share(share: float, half_width: float, confidence: float = CONFIDENCE) -> int:
    """Return the rows after which a share near `share` is known to ± `half_width` (Wilson's interval)."""
    if not (0 <= share <= 1 and 0 < half_width < 0.5):
        raise ValueError(f"share must lie in [0, 1] and half_width in (0, 0.5), got {share} and {half_width}")
    low, high = 1, 2
    while not _narrow(share, high, half_width, confidence):
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _narrow(share, middle, half_width, confidence) else (middle + 1, high)
    return low


def _narrow(share: float, rows: int, half_width: float, confidence: float) -> bool:
    low, high = wilson(share, rows, confidence)
    return bool((high - low) / 2 <= half_width)


def rows_for_quantile(p: float, confidence: float = CONFIDENCE) -> int:
    """Return the fewest rows whose order statistics bound the p-quantile on both sides (368 for p99 at 95 %)."""
    alpha = (1 - confidence) / 2
    return math.ceil(max(math.log(alpha) / math.log(p), math.log(alpha) / math.log1p(-p)) - 1e-9)


def rows_for_cap(truncation_target: float, confidence: float = CONFIDENCE, *, allowed: int = 0) -> int:
    """Return the fewest rows that can show a truncation of at most `truncation_target` with `confidence`.

    Args:
        truncation_target: largest share of rows to be cut, such as 0.01.
        confidence: one-sided.
        allowed: rows above the cap that the sample may hold; with 0 the advised cap is the longest row of the sample
            (299 rows for 1 % at 95 %), with more it lies closer to the true quantile.
    """
    if not 0 < truncation_target < 1:
        raise ValueError(f"truncation_target must lie between 0 and 1, got {truncation_target}")
    rows = max(allowed + 1, math.ceil(math.log1p(-confidence) / math.log1p(-truncation_target) - 1e-9))
    while bdtr(allowed, rows, truncation_target) > 1 - confidence:
        rows += max(1, rows // 200)
    return rows
