"""The statistics of one population of rows as plain JSON values, each estimate with its interval.

Goes in: tallies and curves. Comes out: the dictionaries that `lengths.json`, the card, the page and the terminal all
print, so that they cannot differ.
"""

import math
from collections.abc import Sequence
from typing import Any

from eagle3_data.lengths.reading import SourceTally, Sums, Unfinished
from eagle3_data.lengths.statistics.censoring import Curve, MixtureCurve, SourceCurve, quantile, share_above
from eagle3_data.lengths.statistics.clusters import INDEPENDENT, DesignEffect
from eagle3_data.lengths.statistics.distribution import QUANTILES, THRESHOLDS, LengthCounts, Tally
from eagle3_data.lengths.statistics.intervals import (
    CONFIDENCE,
    Interval,
    mean_interval,
    normal_quantile,
    rounded,
    share_interval,
)
from eagle3_data.manifest import SourceExtent
from eagle3_data.outcome import FINISH_REASONS

Weighted = Sequence[tuple[float, SourceTally]]


def quantile_name(p: float) -> str:
    """Return p99.9 for 0.999."""
    return f"p{p * 100:.10g}"


def distribution(
    parts: Sequence[tuple[float, LengthCounts]],
    confidence: float = CONFIDENCE,
    designs: Sequence[DesignEffect] | None = None,
) -> tuple[Curve, dict[str, Any]]:
    """Return the curve and the statistics of one measure over one source or a weighted mixture of several.

    All but `total_tokens` and `stuck` is of the rows that may end. `count`, `min`, `max`, `mean` and `sd` are of the
    recorded lengths, so lower bounds where rows were cut; quantiles and shares are estimates of the lengths that the
    rows would have without a cap. The mean has limits only where its normal approximation can be trusted (`mean_ok`).

    Args:
        parts: weight and table of each source.
        confidence: of the intervals.
        designs: the design effect of each source; by default rows are independent.
    """
    effects = designs or [INDEPENDENT] * len(parts)
    curves = [(weight, SourceCurve(counts, effect)) for (weight, counts), effect in zip(parts, effects, strict=True)]
    curve: Curve = curves[0][1] if len(curves) == 1 else MixtureCurve(curves)
    counted = [
        (weight, counts.ending(), effect)
        for (weight, counts), effect in zip(parts, effects, strict=True)
        if counts.ending().rows
    ]
    tables = [counts for _, counts, _ in counted]
    cut = sum(int(counts.cut.sum()) for counts in tables)
    loose = sum(int(counts.loose.sum()) for counts in tables)
    waiting = sum(counts.waiting for _, counts in parts)
    mean, sd = _moments(counted, confidence)
    sure = all(is_mean_normal(counts) for counts in tables)
    until = curve.known_until()
    limits = (mean.low, None if cut + loose + waiting else mean.high) if sure else (None, None)
    return curve, {
        "count": sum(counts.rows for counts in tables),
        "total_tokens": sum(counts.total for _, counts in parts),
        "mean": Interval(mean.value, *limits).to_dict(),
        "mean_ok": sure,
        "sd": rounded(sd),
        "min": min((counts.extreme(0) for counts in tables), default=None),
        "max": max((counts.extreme(-1) for counts in tables), default=None),
        "quantiles": {quantile_name(p): quantile(curve, p, confidence).to_dict() for p in QUANTILES},
        "under": {str(limit): _complement(share_above(curve, limit - 1, confidence)) for limit in THRESHOLDS},
        "at_or_over": {str(limit): share_above(curve, limit - 1, confidence).to_dict() for limit in THRESHOLDS},
        "cut": cut,
        "lower_bounds_only": loose,
        "stuck": sum(int(counts.stuck.sum()) for _, counts in parts),
        "waiting": waiting,
        "known_until": None if until is None or until < 0 else until,
    }


def is_mean_normal(counts: LengthCounts) -> bool:
    """Whether the mean's interval can be trusted: more than 25 rows for each unit of squared skewness.

    Cochran's rule (Sampling Techniques, 3rd edition, 2.15). A heavy tail fails it at any number of rows, as it should:
    its few longest answers decide the mean.
    """
    rows, variance = counts.rows, counts.variance
    if rows < 2 or not variance:
        return rows >= 2
    deviations = counts.values - counts.mean
    skewness = float((deviations**3 * counts.recorded).sum() / rows / variance**1.5)
    return rows > 25 * skewness**2


def _moments(
    counted: Sequence[tuple[float, LengthCounts, DesignEffect]], confidence: float
) -> tuple[Interval, float | None]:
    if not counted:
        return Interval(None, None, None), None
    if len(counted) == 1:
        _, counts, effect = counted[0]
        interval = mean_interval(counts.mean, counts.variance * effect.mean, counts.rows, confidence)
        return interval, math.sqrt(counts.variance)
    scale = sum(weight for weight, _, _ in counted)
    shares = [(weight / scale, counts, effect) for weight, counts, effect in counted]
    mean = sum(share * counts.mean for share, counts, _ in shares)
    square = sum(share * counts.squares / counts.rows for share, counts, _ in shares)
    rows = sum(counts.rows for _, counts, _ in shares)
    variance = max(square - mean * mean, 0.0) * rows / max(rows - 1, 1)
    error = math.sqrt(sum(share**2 * counts.variance * effect.mean / counts.rows for share, counts, effect in shares))
    half = normal_quantile(confidence) * error
    return Interval(mean, max(0.0, mean - half), mean + half), math.sqrt(variance)


def _complement(above: Interval) -> dict[str, Any]:
    below = [None if side is None else 1 - side for side in (above.value, above.high, above.low)]
    return Interval(*below).to_dict()


def ratio_interval(parts: Sequence[tuple[float, Sums]], confidence: float = CONFIDENCE) -> Interval:
    """Return a ratio of sums, such as the share of tokens that a cut-off leaves, with its interval.

    Linearised variance of a ratio estimator (Cochran, Sampling Techniques, 6.4), sources being independent strata.
    """
    filled = [(weight, sums) for weight, sums in parts if sums.rows]
    whole = sum(weight * sums.whole / sums.rows for weight, sums in filled)
    if not whole:
        return Interval(None, None, None)
    ratio = sum(weight * sums.part / sums.rows for weight, sums in filled) / whole
    variance = 0.0
    for weight, sums in filled:
        residual = sums.part - ratio * sums.whole
        square = sums.part2 - 2 * ratio * sums.cross + ratio * ratio * sums.whole2
        spread = max(square - residual * residual / sums.rows, 0.0) / max(sums.rows - 1, 1)
        variance += weight**2 * spread / sums.rows
    if not variance:  # every row alike: the linearised interval would be a point, which no sample can show
        return Interval(ratio, None, None)
    half = normal_quantile(confidence) * math.sqrt(variance) / whole
    return Interval(ratio, max(0.0, ratio - half), ratio + half)


def _kept(parts: Sequence[tuple[float, Sums]], confidence: float) -> dict[str, Any]:
    found = ratio_interval(parts, confidence)
    return Interval(found.value, found.low, None if found.high is None else min(1.0, found.high)).to_dict()


def composition(
    parts: Weighted,
    unfinished: Sequence[Unfinished],
    confidence: float = CONFIDENCE,
    design: DesignEffect = INDEPENDENT,
) -> dict[str, Any]:
    """Return what kinds of rows a source or a mixture holds: finish reasons, tool calls, thinking, caps, cut-offs.

    Shares are of the records that are there, as they are there; `design` widens their intervals.
    """
    tallies = [tally for _, tally in parts]
    rows = sum(tally.rows for tally in tallies)

    def share(hits: int, effect: float = design.typical) -> dict[str, Any]:
        return {"rows": hits, "share": share_interval(hits / effect, rows / effect, confidence).to_dict()}

    tokens = {name: sum(tally.lengths[name].counts().total for tally in tallies) for name in tallies[0].lengths}
    completion = tokens["completion"]
    return {
        "rows": rows,
        "unfinished": {
            "waiting": sum(part.waiting for part in unfinished),
            "timed_out": sum(part.timed_out for part in unfinished),
            "failed": sum(part.failed for part in unfinished),
            "skipped": sum(part.skipped for part in unfinished),
            "expected_known": any(part.expected_known for part in unfinished),
        },
        "finish_reasons": {
            kind: share(sum(t.finish_reasons[kind] for t in tallies), design.cut) for kind in FINISH_REASONS
        },
        "truncated": share(sum(tally.truncated for tally in tallies), design.cut),
        "looping": share(sum(tally.looping for tally in tallies), design.cut),
        "dependence": design.to_dict(),
        "tool_calls": {
            **share(sum(tally.with_tool_calls for tally in tallies)),
            "calls": sum(tally.tool_calls for tally in tallies),
        },
        "thinking": {
            **share(sum(tally.with_thinking for tally in tallies)),
            "unfinished": share(sum(tally.thinking_unfinished for tally in tallies)),
            "share_of_completion_tokens": rounded(tokens["reasoning"] / completion) if completion else None,
        },
        "tokens": {**tokens, "total": tokens["prompt"] + completion},
        "cutoffs": _cutoffs(parts, rows, confidence),
        "budgets": _budgets([tally.caps for tally in tallies]),
        "budgets_of_cut": _budgets([tally.caps_of_cut for tally in tallies]),
    }


def _cutoffs(parts: Weighted, rows: int, confidence: float) -> dict[str, Any]:
    out = {}
    for cutoff in parts[0][1].survival:
        whole = 0
        for _, tally in parts:
            counts = tally.total.counts()
            whole += int(counts.recorded[counts.values <= cutoff].sum())
        out[str(cutoff)] = {
            "rows_whole": {"rows": whole, "share": share_interval(whole, rows, confidence).to_dict()},
            "tokens_kept": _kept([(w, t.survival[cutoff][0]) for w, t in parts], confidence),
            "completion_tokens_kept": _kept([(w, t.survival[cutoff][1]) for w, t in parts], confidence),
        }
    return out


def _budgets(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Return the budgets that were sent: smallest, largest, and how many rows had each of the commonest."""
    rows: dict[int, int] = {}
    for tally in tallies:
        counts = tally.counts()
        for value, count in zip(counts.values.tolist(), counts.recorded.tolist(), strict=True):
            rows[value] = rows.get(value, 0) + count
    if not rows:
        return {"min": None, "max": None, "distinct": 0, "commonest": {}}
    top = sorted(rows.items(), key=lambda item: (-item[1], item[0]))[:5]
    return {
        "min": min(rows),
        "max": max(rows),
        "distinct": len(rows),
        "commonest": {str(cap): count for cap, count in top},
    }


def present_cap(tally: SourceTally, extent: SourceExtent) -> int | None:
    """Return a source's cap: the highest that the run states or has sent (it may have been extended); None if unknown.

    Where nothing is stated, budgets that the context shortened do not count, if any row was cut by the cap itself.
    """
    sent = [counts.extreme(-1) for tallied in (tally.caps_of_cut, tally.caps) if (counts := tallied.counts()).rows]
    stated = extent.furthest
    highest = max([stated, *sent]) if stated else next((cap for cap in sent if cap > 0), 0)
    return highest or None
