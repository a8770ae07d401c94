"""What the caps hid: survival curves of lengths of which some are only lower bounds.

Goes in: `LengthCounts`. Comes out: `Curve`s S(x) = P(length > x) with limits, quantiles and restricted means, and
mixtures of curves for several sources with caps of their own.

The estimate is Kaplan and Meier's (1958). Its limits are the beta product confidence procedure of Fay, Brittain and
Proschan (Biostatistics 2013, method of moments), which holds its coverage in small samples and heavy censoring and is
exactly Clopper and Pearson's interval (for quantiles: order statistics) where nothing is censored. Shares carry
Wilson's interval on Dorey and Korn's effective number of rows (Statistics in Medicine 1987), exactly Wilson's where
nothing is censored. A row cut at x tokens is known to be longer than x, so it is still at risk at x itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from eagle3_data.lengths.statistics.clusters import INDEPENDENT, DesignEffect
from eagle3_data.lengths.statistics.distribution import Floats, Ints, LengthCounts
from eagle3_data.lengths.statistics.intervals import CONFIDENCE, Interval, beta_quantile, wilson

# Survival and probability are compared after products of many factors.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Moments:
    """Mean, 1 - mean and variance of a confidence distribution of S(x), float64 (k,)."""

    mean: Floats
    complement: Floats
    variance: Floats


class Curve(Protocol):
    """What one source's curve and a mixture of curves both answer. All take lengths (k,) and give float64 (k,)."""

    rows: int
    waiting: int
    steps: Ints

    def survival(self, lengths: ArrayLike) -> Floats: ...
    def optimistic(self, lengths: ArrayLike) -> Floats: ...
    def pessimistic(self, lengths: ArrayLike) -> Floats: ...
    def known_until(self) -> int | None: ...
    def lower_moments(self, lengths: ArrayLike) -> Moments: ...
    def upper_moments(self, lengths: ArrayLike) -> Moments: ...
    def binomial_variance(self, lengths: ArrayLike, *, upper: bool) -> Floats: ...
    def certain_rows(self, at: ArrayLike) -> float: ...


class _Product:
    """The Kaplan-Meier product of one table and the sums that its limits need."""

    def __init__(self, values: Ints, ended: Ints, cut: Ints, immortal: int = 0) -> None:
        self.values, self.ended, self.cut = values, ended.astype(float), cut.astype(float)
        leaving = self.ended + self.cut
        self.rows = int(leaving.sum()) + immortal
        at_risk = np.cumsum(leaving[::-1])[::-1] + immortal
        after = at_risk - self.ended
        factors = np.divide(after, at_risk, out=np.ones_like(after), where=at_risk > 0)
        untouched = np.cumsum(self.cut) - self.cut == 0  # nothing censored before: counting is exact, products are not
        self.survival = np.where(untouched, after / max(self.rows, 1), np.cumprod(factors))
        self.survival[self.survival < _ROUNDING] = 0.0
        hazard = np.zeros_like(after)
        with np.errstate(divide="ignore"):
            np.divide(self.ended, at_risk * after, out=hazard, where=self.ended > 0)
            self.log_mean = np.cumsum(np.log1p(-self.ended / (at_risk + 1)))
        self.greenwood = np.cumsum(hazard)
        # W+ is a product of Beta(at_risk - ended + 1, ended); r is the log of its second moment over its squared mean.
        self.log_ratio = np.cumsum(
            np.where(self.ended > 0, np.log1p(1 / (after + 1)) - np.log1p(1 / (at_risk + 1)), 0)
        )
        self.after_here = after  # at risk at the step itself, cut rows of the step included
        self.after_later = after - self.cut

    def at(self, column: Floats, before: float, lengths: ArrayLike) -> Floats:
        index = np.searchsorted(self.values, np.asarray(lengths), side="right")
        return np.append(before, column)[index]

    def remaining(self, lengths: ArrayLike) -> Floats:
        """Rows known to be longer than each length."""
        x = np.asarray(lengths)
        index = np.searchsorted(self.values, x, side="right")
        here = np.append(-1, self.values)[index] == x
        later = np.append(float(self.rows), self.after_later)[index]
        return np.where(here, np.append(float(self.rows), self.after_here)[index], later)

    def upper(self, lengths: ArrayLike) -> Moments:
        log_mean, log_ratio = self.at(self.log_mean, 0.0, lengths), self.at(self.log_ratio, 0.0, lengths)
        return _moments(log_mean, log_ratio)

    def lower(self, lengths: ArrayLike) -> Moments:
        left = self.remaining(lengths)
        log_mean, log_ratio = self.at(self.log_mean, 0.0, lengths), self.at(self.log_ratio, 0.0, lengths)
        safe = np.maximum(left, 1)
        moments = _moments(log_mean - np.log1p(1 / safe), log_ratio + np.log1p(1 / (safe * (safe + 2))))
        none = left <= 0
        return Moments(
            np.where(none, 0.0, moments.mean),
            np.where(none, 1.0, moments.complement),
            np.where(none, 0.0, moments.variance),
        )

    def effective(self, lengths: ArrayLike, design: Floats, *, upper: bool) -> Moments:
        """Return the moments of Clopper and Pearson's limits on the effective number of rows, for dependent rows.

        Korn and Graubard (Survey Methodology 1998): rows divided by the design effect, as if they were independent.
        """
        share, variance = self.at(self.survival, 1.0, lengths), self.binomial_variance(lengths)
        rows = np.where(variance > 0, share * (1 - share) / np.where(variance > 0, variance, 1.0), self.rows) / design
        mean = (share * rows + upper) / (rows + 1)
        complement = ((1 - share) * rows + (not upper)) / (rows + 1)
        if upper:
            return Moments(mean, complement, mean * complement / (rows + 2))
        none = self.remaining(lengths) <= 0
        mean, complement = np.where(none, 0.0, mean), np.where(none, 1.0, complement)
        return Moments(mean, complement, mean * complement / (rows + 2))

    def binomial_variance(self, lengths: ArrayLike) -> Floats:
        """Greenwood's variance of S, float64 (k,)."""
        survival = self.at(self.survival, 1.0, lengths)
        total = self.at(self.greenwood, 0.0, lengths)
        return np.where(survival > 0, survival**2 * np.where(survival > 0, total, 0.0), 0.0)


def _moments(log_mean: Floats, log_ratio: Floats) -> Moments:
    mean = np.exp(log_mean)
    return Moments(mean, -np.expm1(log_mean), mean**2 * np.expm1(log_ratio))


class SourceCurve:
    """The survival curve of one population of rows.

    `survival` is the estimate, in which a row of unknown length stands for the others. `optimistic` ends such rows at
    what is known of them and `pessimistic` never ends them: the truth of *these* rows lies between, whatever it is.
    Rows that would never end are left out: the population is the answers that end. Where rows are not independent,
    `design` says how much larger variances are.
    """

    def __init__(self, counts: LengthCounts, design: DesignEffect | None = None) -> None:
        counts = counts.ending()
        self.counts, self.design = counts, design or INDEPENDENT
        values, ended, cut, loose = counts.values, counts.ended, counts.cut, counts.loose
        if counts.waiting and (not len(values) or values[0] > 0):
            values, ended, cut, loose = (np.concatenate(([0], part)) for part in (values, ended, cut, loose))
        unknown = loose.copy()
        if counts.waiting:
            unknown[0] += counts.waiting
        # A waiting row may have ended at 0 tokens or be alive; in the estimate it is censored at 0, before everything.
        informative = int(unknown.sum())
        self._estimate = _Product(counts.values, counts.ended, counts.cut + counts.loose)
        self._optimistic = self._pessimistic = self._estimate
        if informative:
            self._optimistic = _Product(values, ended + unknown, cut)
            self._pessimistic = _Product(values, ended, cut, immortal=informative)
        self.rows, self.waiting = counts.rows, counts.waiting
        # The lower limit falls just after a step where rows were cut, the upper one only at steps.
        self.steps: Ints = np.union1d(values, counts.values[counts.cut + counts.loose > 0] + 1)

    def survival(self, lengths: ArrayLike) -> Floats:
        """Return the estimate of P(length > x); beyond `known_until` it stays where it was and means "at most"."""
        return self._estimate.at(self._estimate.survival, 1.0, lengths)

    def optimistic(self, lengths: ArrayLike) -> Floats:
        """Return the smallest P(length > x) that the unknown rows allow, beyond the caps 0."""
        inside = self._optimistic.at(self._optimistic.survival, 1.0, lengths)
        until = self.known_until()
        return inside if until is None else np.where(np.asarray(lengths) > until, 0.0, inside)

    def pessimistic(self, lengths: ArrayLike) -> Floats:
        """Return the greatest P(length > x) that the unknown rows allow."""
        return self._pessimistic.at(self._pessimistic.survival, 1.0, lengths)

    @cached_property
    def _known_until(self) -> int | None:
        if not self.counts.rows:
            return -1
        if not len(self._estimate.survival) or self._estimate.survival[-1] <= 0:
            return None
        return int(self._estimate.values[-1])

    def known_until(self) -> int | None:
        """Return the length up to which the curve is estimated; None when it reaches 0, -1 without rows."""
        return self._known_until

    def lower_moments(self, lengths: ArrayLike) -> Moments:
        """Return the moments of the distribution whose quantile is the lower limit of S."""
        if self.design is not INDEPENDENT:
            return self._optimistic.effective(lengths, self.design.at(lengths), upper=False)
        return self._optimistic.lower(lengths)

    def upper_moments(self, lengths: ArrayLike) -> Moments:
        """Return the moments of the distribution whose quantile is the upper limit of S."""
        if self.design is not INDEPENDENT:
            return self._pessimistic.effective(lengths, self.design.at(lengths), upper=True)
        return self._pessimistic.upper(lengths)

    def binomial_variance(self, lengths: ArrayLike, *, upper: bool) -> Floats:
        """Return Greenwood's variance of the pessimistic (`upper`) or optimistic curve, times the design effect."""
        product = self._pessimistic if upper else self._optimistic
        return product.binomial_variance(lengths) * self.design.at(lengths)

    def certain_rows(self, at: ArrayLike) -> float:
        """Return the rows behind a share of 1 (those still seen at `at`) or of 0 (all), where no variance tells."""
        effect = float(np.max(self.design.at(at)))
        if float(np.min(self.survival(at))) < 1:
            return max(self.rows, 1) / effect
        return max(float(np.min(self._estimate.remaining(at))), 0.0) / effect


class MixtureCurve:
    """The weighted mixture of the curves of several sources, S(x) = sum of weight × S_source(x).

    Never the curve of the pooled rows: where caps differ by source, a pooled row's censoring tells its source, and so
    its length. Weights are taken as known.
    """

    def __init__(self, parts: Sequence[tuple[float, SourceCurve]]) -> None:
        total = sum(weight for weight, _ in parts)
        self.parts = [(weight / total, curve) for weight, curve in parts if weight > 0]
        self.rows = sum(curve.rows for _, curve in self.parts)
        self.waiting = sum(curve.waiting for _, curve in self.parts)
        self.steps: Ints = np.unique(np.concatenate([curve.steps for _, curve in self.parts]))

    def survival(self, lengths: ArrayLike) -> Floats:
        """Return the estimate; see `SourceCurve.survival`."""
        return self._sum([curve.survival(lengths) for _, curve in self.parts])

    def optimistic(self, lengths: ArrayLike) -> Floats:
        """Return the smallest P(length > x) that the data allow."""
        return self._sum([curve.optimistic(lengths) for _, curve in self.parts])

    def pessimistic(self, lengths: ArrayLike) -> Floats:
        """Return the greatest P(length > x) that the data allow."""
        return self._sum([curve.pessimistic(lengths) for _, curve in self.parts])

    def known_until(self) -> int | None:
        """Return the length up to which every source's curve is estimated."""
        ends = [end for _, curve in self.parts if (end := curve.known_until()) is not None]
        return min(ends) if ends else None

    def lower_moments(self, lengths: ArrayLike) -> Moments:
        """Return the moments of the mixed distribution; see `SourceCurve.lower_moments`."""
        return self._mix([curve.lower_moments(lengths) for _, curve in self.parts])

    def upper_moments(self, lengths: ArrayLike) -> Moments:
        """Return the moments of the mixed distribution; see `SourceCurve.upper_moments`."""
        return self._mix([curve.upper_moments(lengths) for _, curve in self.parts])

    def binomial_variance(self, lengths: ArrayLike, *, upper: bool) -> Floats:
        """Return the variance of the mixed curve, the sources being independent samples."""
        parts = [curve.binomial_variance(lengths, upper=upper) for _, curve in self.parts]
        return self._sum(parts, power=2)

    def certain_rows(self, at: ArrayLike) -> float:
        """Return the rows of a simple sample that would be worth as much as the sources' rows."""
        parts = [(weight, curve.certain_rows(at)) for weight, curve in self.parts]
        return 1 / sum(weight**2 / rows for weight, rows in parts) if all(rows > 0 for _, rows in parts) else 0.0

    def _sum(self, parts: Sequence[Floats], power: int = 1) -> Floats:
        total: Floats = np.zeros_like(parts[0])
        for (weight, _), part in zip(self.parts, parts, strict=True):
            total = total + weight**power * part
        return total

    def _mix(self, parts: Sequence[Moments]) -> Moments:
        return Moments(
            self._sum([part.mean for part in parts]),
            self._sum([part.complement for part in parts]),
            self._sum([part.variance for part in parts], power=2),
        )


def band(curve: Curve, lengths: ArrayLike, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """Return pointwise lower and upper limits of P(length > x), float64 (k,), each side missing half of the rest."""
    alpha = (1 - confidence) / 2
    return lower_limit(curve, lengths, alpha), upper_limit(curve, lengths, alpha)


def lower_limit(curve: Curve, lengths: ArrayLike, alpha: float) -> Floats:
    """Return limits that P(length > x) lies below with probability at most `alpha`."""
    low = curve.lower_moments(lengths)
    return beta_quantile(low.mean, low.complement, low.variance, alpha)


def upper_limit(curve: Curve, lengths: ArrayLike, alpha: float) -> Floats:
    """Return limits that P(length > x) lies above with probability at most `alpha`."""
    high = curve.upper_moments(lengths)
    return beta_quantile(high.mean, high.complement, high.variance, 1 - alpha)


def share_above(curve: Curve, length: int, confidence: float = CONFIDENCE) -> Interval:
    """Return P(length > `length`) with its interval.

    Beyond the caps there is no value, only the limits that what is known sets.
    """
    if not curve.rows:
        return Interval(None, None, None)
    at = np.array([length])
    optimistic, pessimistic = float(curve.optimistic(at)[0]), float(curve.pessimistic(at)[0])
    low = _wilson_limit(curve, at, optimistic, upper=False, confidence=confidence)
    high = _wilson_limit(curve, at, pessimistic, upper=True, confidence=confidence)
    until = curve.known_until()
    known = until is None or length <= until
    return Interval(float(curve.survival(at)[0]) if known else None, low, high)


def _wilson_limit(curve: Curve, at: Ints, share: float, *, upper: bool, confidence: float) -> float:
    variance = float(curve.binomial_variance(at, upper=upper)[0])
    if variance > 0:
        rows = share * (1 - share) / variance
    else:
        rows = curve.certain_rows(at)
    limits = wilson(share, rows, confidence)
    return float(limits[1 if upper else 0])


def quantile(curve: Curve, p: float, confidence: float = CONFIDENCE) -> Interval:
    """Return the p-quantile in tokens: the smallest x with P(length <= x) >= p, with its interval.

    Without censoring this is numpy's `inverted_cdf`, and the limits are order statistics. `value` is None where the
    quantile lies beyond what the caps let through, `low` or `high` where there is no such limit.
    """
    if not curve.rows:
        return Interval(None, None, None)
    steps, alpha = curve.steps, (1 - confidence) / 2
    target = 1 - p + _ROUNDING
    until = curve.known_until()
    value = first_at_most(steps, curve.survival(steps), target)
    if value is not None and until is not None and value > until:
        value = None
    low = first_limit_at_most(curve, target, alpha, upper=False)
    high = first_limit_at_most(curve, target, alpha, upper=True)
    if low == steps[0] and _no_lower_limit(curve, p, alpha):
        low = None
    return Interval(value, low, high)


def _no_lower_limit(curve: Curve, p: float, alpha: float) -> bool:
    return bool(lower_limit(curve, np.array([-1]), alpha)[0] <= 1 - p)


def first_at_most(steps: Ints, survival: Floats, target: float) -> int | None:
    """Return the first step at which a falling curve is at most `target`; None when it never is."""
    index = int(np.argmax(survival <= target)) if len(survival) else 0
    return int(steps[index]) if len(survival) and survival[index] <= target else None


def first_limit_at_most(curve: Curve, target: float, alpha: float, *, upper: bool) -> int | None:
    """Return the first step at which a limit of P(length > x) is at most `target`; None when it never is.

    Beta quantiles are dear and limits fall, so 64 steps at a time are looked at instead of all.
    """
    limit = upper_limit if upper else lower_limit
    first, last = 0, len(curve.steps) - 1
    if last < 0 or limit(curve, curve.steps[[last]], alpha)[0] > target:
        return None
    while first < last:
        tried = np.unique(np.linspace(first, last, 64).astype(int))
        index = int(np.argmax(limit(curve, curve.steps[tried], alpha) <= target))
        last = int(tried[index])
        first = int(tried[index - 1]) + 1 if index else last
    return int(curve.steps[last])


def restricted_mean(curve: Curve, cap: int) -> float:
    """Return E[min(length, cap)] in tokens, the area under the estimated curve up to `cap`.

    Beyond the known part it counts every row that reached it as going on to `cap`, so it is then an upper bound.
    """
    if cap <= 0:
        return 0.0
    inner = curve.steps[(curve.steps > 0) & (curve.steps < cap)]
    edges = np.concatenate(([0], inner, [cap]))
    return float((np.diff(edges) * curve.survival(edges[:-1])).sum())
