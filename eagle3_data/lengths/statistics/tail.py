"""What may lie beyond the largest cap: a model of the tail, how well it fits, and how far it can be trusted.

Goes in: the completion lengths of one source, some of them cut. Comes out: a `TailModel`, or None where too little is
known to fit one. The model is the generalised Pareto distribution over a high threshold (Pickands 1975), fitted by
maximum likelihood with cut rows as lower bounds; its fit is judged by a parametric bootstrap of the largest distance
between model and Kaplan–Meier curve. A lognormal tail is fitted beside it: where the two part, the data do not choose,
and the model says no more. The bootstrap's seed is fixed, so the same rows give the same numbers.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_ndtr, ndtri

from eagle3_data.lengths.statistics.censoring import SourceCurve
from eagle3_data.lengths.statistics.distribution import Floats, Ints, LengthCounts
from eagle3_data.lengths.statistics.intervals import rounded

MIN_ENDED: Final = 50  # rows that end above the threshold; with fewer the shape is a guess
MAX_ENDED: Final = 1500  # more say little about the far tail, and the threshold may lie higher instead
SHARE_ENDED: Final = 0.2
REPETITIONS: Final = 200
# Limits further apart than this factor, or two models that differ by its root, are no forecast.
TRUST_FACTOR: Final = 4.0
_REJECTED: Final = 0.05
_LIGHTEST: Final = -0.5  # below this shape the likelihood has no regular maximum


@dataclass(frozen=True)
class Exceedances:
    """Lengths above a threshold: float64 (k,), tokens above it, with how many rows ended or were cut there."""

    above: Floats
    ended: Floats
    cut: Floats

    @property
    def rows(self) -> float:
        """Rows above the threshold."""
        return float(self.ended.sum() + self.cut.sum())


@dataclass(frozen=True)
class TailModel:
    """A generalised Pareto tail: P(length > x) = beyond × (1 + shape × (x − threshold) / scale)^(−1 / shape).

    Attributes:
        threshold: tokens; the model speaks of lengths above it.
        beyond: P(length > threshold).
        shape, scale: the parameters; the mean is infinite from shape 1 on.
        ended, cut: rows above the threshold.
        distance: largest distance between model and Kaplan–Meier curve above the threshold.
        p_value: share of samples of the model itself that lie further from their own fit; small means a bad fit.
        lognormal: mu and sigma of the lognormal tail fitted beside it.
        draws: float64 (REPETITIONS, 3), beyond, shape and scale of the bootstrap.
        trusted_until: tokens; the length up to which the limits and the two models stay together, or the largest cap.
    """

    threshold: int
    beyond: float
    shape: float
    scale: float
    ended: int
    cut: int
    distance: float
    p_value: float
    lognormal: tuple[float, float]
    draws: Floats
    trusted_until: int

    @property
    def fits(self) -> bool:
        """Whether the data do not reject the model."""
        return self.p_value >= _REJECTED

    def survival(self, lengths: Ints | Floats) -> Floats:
        """Return P(length > x) for lengths above the threshold, float64 (k,)."""
        return self.beyond * _pareto(np.asarray(lengths, float) - self.threshold, self.shape, self.scale)

    def survival_limits(self, lengths: Ints | Floats, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Return limits of P(length > x) if the model is right."""
        x = np.asarray(lengths, float) - self.threshold
        drawn = np.stack([beyond * _pareto(x, shape, scale) for beyond, shape, scale in self.draws])
        low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
        return low, high

    def survival_lognormal(self, lengths: Ints | Floats) -> Floats:
        """Return P(length > x) under the lognormal tail."""
        mu, sigma = self.lognormal
        x = np.log(np.asarray(lengths, float))
        start = np.log(self.threshold) if self.threshold > 0 else -np.inf
        given: Floats = np.exp(log_ndtr((mu - x) / sigma) - log_ndtr((mu - start) / sigma))
        return self.beyond * given

    def cap(self, target: float, confidence: float = 0.95) -> tuple[int, int, int]:
        """Return the cap that leaves `target` of the rows cut, with limits, if the model is right."""
        values = [_inverse(target / beyond, shape, scale) for beyond, shape, scale in self.draws]
        low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
        value = _inverse(target / self.beyond, self.shape, self.scale)
        return tuple(int(np.ceil(min(self.threshold + v, 1e12))) for v in (value, low, high))  # type: ignore[return-value]

    def cap_lognormal(self, target: float) -> int:
        """Return the cap that leaves `target` of the rows cut under the lognormal tail."""
        mu, sigma = self.lognormal
        start = np.log(self.threshold) if self.threshold > 0 else -np.inf
        share = np.exp(log_ndtr((mu - start) / sigma)) * target / self.beyond
        return int(np.ceil(min(np.exp(mu - sigma * float(ndtri(share))), 1e12)))

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values."""
        return {
            "model": "generalised Pareto",
            "threshold": self.threshold,
            "beyond": rounded(self.beyond),
            "shape": rounded(self.shape, 6),
            "scale": rounded(self.scale, 6),
            "ended": self.ended,
            "cut": self.cut,
            "distance": rounded(self.distance, 6),
            "p_value": rounded(self.p_value, 6),
            "lognormal": {"mu": rounded(self.lognormal[0], 6), "sigma": rounded(self.lognormal[1], 6)},
            "trusted_until": self.trusted_until,
        }


def fit_tail(counts: LengthCounts, curve: SourceCurve) -> TailModel | None:
    """Fit the tail of lengths of which some were cut.

    Returns:
        None where nothing was cut, or where fewer than MIN_ENDED rows end above any threshold.
    """
    until = curve.known_until()
    if until is None or until <= 0 or not counts.cut.sum():
        return None
    threshold = _threshold(counts)
    if threshold is None:
        return None
    beyond = float(curve.survival(np.array([threshold]))[0])
    data = _exceedances(counts, threshold)
    shape, scale = _fit_pareto(data)
    distance = _distance(data, shape, scale)
    random = np.random.default_rng(0)
    draws, distances = _bootstrap(data, beyond, curve.rows, shape, scale, random)
    model = TailModel(
        threshold=threshold,
        beyond=beyond,
        shape=shape,
        scale=scale,
        ended=int(data.ended.sum()),
        cut=int(data.cut.sum()),
        distance=distance,
        p_value=float((np.sum(distances >= distance) + 1) / (REPETITIONS + 1)),
        lognormal=_fit_lognormal(data, threshold),
        draws=draws,
        trusted_until=until,
    )
    return TailModel(**{**model.__dict__, "trusted_until": _trusted_until(model, until)})


def _threshold(counts: LengthCounts) -> int | None:
    ended = int(counts.ended.sum())
    wanted = min(MAX_ENDED, max(MIN_ENDED, int(SHARE_ENDED * ended)))
    above = np.cumsum(counts.ended[::-1])[::-1] - counts.ended  # rows that end above each value
    enough = np.flatnonzero(above >= wanted)
    return int(counts.values[enough[-1]]) if len(enough) else None


def _exceedances(counts: LengthCounts, threshold: int) -> Exceedances:
    over = counts.values > threshold
    values = (counts.values[over] - threshold).astype(float)
    ended, cut = counts.ended[over].astype(float), counts.cut[over].astype(float)
    # A length of x tokens stands for the interval (x - 1, x]; a row cut at x is longer than x.
    above = np.concatenate((values - 0.5, values))
    nothing = np.zeros_like(ended)
    order = np.argsort(above, kind="stable")
    merged = np.concatenate((ended, nothing))[order], np.concatenate((nothing, cut))[order]
    used = (merged[0] + merged[1]) > 0
    return Exceedances(above[order][used], merged[0][used], merged[1][used])


def _pareto(x: Floats, shape: float, scale: float) -> Floats:
    if abs(shape) < 1e-9:
        return np.exp(-x / scale)
    base = np.maximum(1 + shape * x / scale, 0.0)
    with np.errstate(divide="ignore"):
        return np.where(base > 0, np.exp(-np.log(np.maximum(base, 1e-300)) / shape), 0.0)


def _inverse(share: float, shape: float, scale: float) -> float:
    if share >= 1:
        return 0.0
    with np.errstate(over="ignore"):
        return float(
            -scale * np.log(share) if abs(shape) < 1e-9 else scale * (np.exp(-shape * np.log(share)) - 1) / shape
        )


def _fit_pareto(data: Exceedances) -> tuple[float, float]:
    """Maximise the likelihood over theta = shape / scale; the best shape for a theta is known (Grimshaw 1993)."""
    ended = data.ended.sum()
    weight = data.ended + data.cut
    mean = float((data.above * weight).sum() / weight.sum())
    longest = float(data.above.max())

    def profile(theta: float) -> tuple[float, float]:
        logs = np.log1p(theta * data.above)
        shape = float((logs * weight).sum() / ended)
        if shape < _LIGHTEST or shape == 0:
            return -1e300, shape
        return float(ended * np.log(theta / shape) - (logs * data.ended).sum() - ended), shape

    grid = np.concatenate(
        (-np.geomspace(0.999, 1e-3, 8) / longest, np.geomspace(1e-3, 1e3, 16) / mean),
    )
    heights = [profile(theta)[0] for theta in grid]
    best = int(np.argmax(heights))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(
        lambda t: -profile(t)[0], bounds=(low, high), method="bounded", options={"xatol": 1e-6 * abs(high)}
    )
    theta = float(found.x) if -found.fun >= heights[best] else float(grid[best])
    shape = profile(theta)[1]
    return shape, shape / theta


def _fit_lognormal(data: Exceedances, threshold: int) -> tuple[float, float]:
    logs = np.log(threshold + data.above)
    start = np.log(threshold) if threshold > 0 else -np.inf

    def loss(parameters: Floats) -> float:
        mu, sigma = parameters[0], np.exp(np.clip(parameters[1], -6, 4))
        z = (logs - mu) / sigma
        density = -0.5 * z * z - np.log(sigma) - logs
        given = log_ndtr((mu - start) / sigma)
        total = (data.ended * density + data.cut * log_ndtr(-z)).sum() - data.rows * given
        return float(-total / data.rows) if np.isfinite(total) else 1e12

    spread = max(float(np.sqrt(np.average((logs - logs.mean()) ** 2, weights=data.ended + data.cut))), 0.1)
    starts = [np.array([logs.min(), np.log(2 * spread)]), np.array([logs.mean(), np.log(spread)])]
    fits = [minimize(loss, x0, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9}) for x0 in starts]
    best = min(fits, key=lambda fit: float(fit.fun))
    return float(best.x[0]), float(np.exp(np.clip(best.x[1], -6, 4)))


def _distance(data: Exceedances, shape: float, scale: float) -> float:
    """Return the largest distance between the Kaplan-Meier curve of the exceedances and the model."""
    weight = data.ended + data.cut
    at_risk = np.cumsum(weight[::-1])[::-1]
    after = np.cumprod(1 - data.ended / at_risk)
    before = np.concatenate(([1.0], after[:-1]))
    model = _pareto(data.above, shape, scale)
    steps = data.ended > 0
    return float(np.max(np.maximum(np.abs(after - model), np.abs(before - model))[steps]))


def _bootstrap(
    data: Exceedances, beyond: float, rows: int, shape: float, scale: float, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """Draw samples of the model, cut them as the rows were cut, and fit them again."""
    above = round(data.rows)
    weight = data.ended + data.cut
    at_risk = np.cumsum(weight[::-1])[::-1] - data.ended  # a row that ends is not there any more to be cut
    free = np.cumprod(1 - np.divide(data.cut, at_risk, out=np.zeros_like(at_risk), where=at_risk > 0))
    draws, distances = np.empty((REPETITIONS, 3)), np.empty(REPETITIONS)
    for repetition in range(REPETITIONS):
        share = np.clip(random.random(above), 1e-12, None)
        length = -scale * np.log(share) if abs(shape) < 1e-9 else scale * np.expm1(-shape * np.log(share)) / shape
        index = np.searchsorted(-free, -random.random(above))  # first place where the free share has fallen below
        limit = np.append(data.above, np.inf)[index]
        cut = length > limit
        seen = np.where(cut, limit, length)
        order = np.argsort(seen)
        sample = Exceedances(seen[order], (~cut)[order].astype(float), cut[order].astype(float))
        if sample.ended.sum() < 10:
            draws[repetition], distances[repetition] = (beyond, shape, scale), np.inf
            continue
        fitted = _fit_pareto(sample)
        draws[repetition] = (random.beta(beyond * rows + 0.5, (1 - beyond) * rows + 0.5), *fitted)
        distances[repetition] = _distance(sample, *fitted)
    return draws, distances


def _trusted_until(model: TailModel, until: int) -> int:
    if not model.fits:
        return until
    lengths = until * np.geomspace(1.0, 16.0, 200)
    low, high = model.survival_limits(lengths)
    pareto, lognormal = model.survival(lengths), model.survival_lognormal(lengths)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = (high / low > TRUST_FACTOR) | (np.abs(np.log(pareto / lognormal)) > np.log(TRUST_FACTOR) / 2)
    bad = np.flatnonzero(apart | ~np.isfinite(high / np.where(low > 0, low, np.nan)))
    return int(lengths[bad[0]]) if len(bad) and bad[0] > 0 else until if len(bad) else int(lengths[-1])
