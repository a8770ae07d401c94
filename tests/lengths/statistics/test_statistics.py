"""Intervals, survival curves and tail models against numpy, scipy and exact sums."""

import numpy as np
import pytest
from scipy import stats
from support.coverage import wilson_coverage

from eagle3_data.errors import DataError
from eagle3_data.lengths import LengthCounts, choose_cap, rows_for_cap, rows_for_quantile, rows_for_share
from eagle3_data.lengths.statistics.censoring import (
    MixtureCurve,
    SourceCurve,
    band,
    quantile,
    restricted_mean,
    share_above,
)
from eagle3_data.lengths.statistics.distribution import QUANTILES, Tally
from eagle3_data.lengths.statistics.intervals import mean_interval, order_statistics, share_interval
from eagle3_data.lengths.statistics.tail import fit_tail


def sample(rows: int, cap: int | np.ndarray, seed: int = 0, median: float = 800) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.ceil(np.random.default_rng(seed).lognormal(np.log(median), 1.0, rows)).astype(int)
    return np.minimum(lengths, cap), lengths > cap


def test_uncensored_quantiles_are_numpys_and_their_limits_order_statistics():
    lengths, _ = sample(1000, 10**9)
    curve, ordered = SourceCurve(LengthCounts.from_arrays(lengths)), np.sort(lengths)
    for p in QUANTILES:
        found = quantile(curve, p)
        assert found.value == np.quantile(lengths, p, method="inverted_cdf")
        low, high = order_statistics(p, 1000)
        assert (found.low, found.high) == tuple(None if rank is None else ordered[rank - 1] for rank in (low, high))


@pytest.mark.parametrize(("p", "rows"), [(0.5, 20), (0.99, 200), (0.99, 368), (0.01, 368), (0.999, 10_000)])
def test_order_statistics_hold_their_confidence_exactly(p, rows):
    low, high = order_statistics(p, rows)
    below = stats.binom(rows, p)
    assert low is None or below.cdf(low - 1) <= 0.025 < below.cdf(low)
    assert high is None or below.sf(high - 1) <= 0.025 < below.sf(high - 2)
    if rows == 200:
        assert high is None, "200 rows cannot bound p99 from above"


def test_wilson_agrees_with_scipy_and_its_exact_coverage_is_known():
    for hits, rows in ((0, 20), (1, 200), (70, 200), (20, 20)):
        theirs = stats.binomtest(hits, rows).proportion_ci(0.95, "wilson")
        ours = share_interval(hits, rows)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert wilson_coverage(0.005, 200) == pytest.approx(0.920, abs=5e-4)
    theirs = stats.t.interval(0.95, 19, 75, 60 / np.sqrt(20))
    ours = mean_interval(75, 60**2, 20)
    assert (ours.low, ours.high) == pytest.approx(theirs)


def test_kaplan_meier_agrees_with_scipy_under_mixed_caps():
    caps = np.random.default_rng(1).choice([512, 1024, 4096], 3000)
    lengths, cut = sample(3000, caps)
    curve = SourceCurve(LengthCounts.from_arrays(lengths, cut))
    theirs = stats.ecdf(stats.CensoredData(uncensored=lengths[~cut], right=lengths[cut])).sf
    np.testing.assert_allclose(curve.survival(theirs.quantiles), theirs.probabilities, rtol=1e-12)
    greenwood = theirs.confidence_interval(0.95, method="linear")
    error = (theirs.probabilities - greenwood.low.probabilities) / stats.norm.ppf(0.975)
    inner = (theirs.probabilities > 0.1) & (theirs.probabilities < 0.9)
    ours = np.sqrt(curve.binomial_variance(theirs.quantiles, upper=True))
    np.testing.assert_allclose(ours[inner], error[inner], rtol=1e-9)


def test_kaplan_meier_agrees_with_lifelines():
    lifelines = pytest.importorskip(
        "lifelines", reason="lifelines is not installed; scipy's estimate is compared above"
    )
    caps = np.random.default_rng(1).choice([512, 1024, 4096], 3000)
    lengths, cut = sample(3000, caps)
    theirs = lifelines.KaplanMeierFitter().fit(lengths, ~cut)
    at = np.unique(lengths)
    ours = SourceCurve(LengthCounts.from_arrays(lengths, cut)).survival(at)
    np.testing.assert_allclose(ours, theirs.survival_function_at_times(at).to_numpy(), rtol=1e-12)


def test_band_is_clopper_pearson_below_the_only_cap_and_wide_after_it():
    lengths, cut = sample(200, 2048, median=1500)
    curve = SourceCurve(LengthCounts.from_arrays(lengths, cut))
    low, high = band(curve, [500, 2048, 2049])
    for at, x in ((0, 500), (1, 2048)):
        theirs = stats.binomtest(int((lengths > x).sum() + (cut.sum() if x == 2048 else 0)), 200).proportion_ci(0.95)
        assert (low[at], high[at]) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert low[2] == 0 and high[2] == high[1], "beyond the cap nothing is known but an upper limit"
    assert share_above(curve, 2048).value == cut.mean() and share_above(curve, 2049).value is None
    assert quantile(curve, 0.99).value is None and quantile(curve, 0.99).low == 2049


def test_a_row_that_is_waited_for_moves_the_limits_and_not_the_estimate():
    lengths, _ = sample(300, 10**9)
    alone, waited = (SourceCurve(LengthCounts.from_arrays(lengths, waiting=w)) for w in (0, 100))
    assert quantile(waited, 0.5).value == quantile(alone, 0.5).value
    assert (
        quantile(waited, 0.5).low < quantile(alone, 0.5).low < quantile(alone, 0.5).high < quantile(waited, 0.5).high
    )
    assert quantile(waited, 0.9).high is None, "a quarter of the rows may be of any length"
    share = share_above(waited, 800)
    assert share.low < (lengths > 800).sum() / 400 and share.high > ((lengths > 800).sum() + 100) / 400


def test_mixture_weighs_curves_instead_of_pooling_rows():
    short, long = sample(2000, 10**9, median=200), sample(2000, 1024, seed=1, median=2000)
    curves = [SourceCurve(LengthCounts.from_arrays(*part)) for part in (short, long)]
    mixed = MixtureCurve([(3, curves[0]), (1, curves[1])])
    at = np.array([100, 500, 1024])
    expected = 0.75 * curves[0].survival(at) + 0.25 * curves[1].survival(at)
    np.testing.assert_allclose(mixed.survival(at), expected)
    assert mixed.known_until() == 1024
    beyond = share_above(mixed, 3000)
    assert beyond.value is None and beyond.low <= 0.02 and beyond.high >= 0.25 * long[1].mean()
    alone = MixtureCurve([(1, curves[1])])
    np.testing.assert_allclose(band(alone, at), band(curves[1], at))


def test_restricted_mean_is_the_mean_of_capped_lengths():
    lengths, _ = sample(5000, 10**9)
    curve = SourceCurve(LengthCounts.from_arrays(lengths))
    assert restricted_mean(curve, 1500) == pytest.approx(np.minimum(lengths, 1500).mean())
    capped, cut = sample(5000, 1500)
    assert restricted_mean(SourceCurve(LengthCounts.from_arrays(capped, cut)), 1500) == pytest.approx(capped.mean())


def test_batches_add_up_to_the_same_table():
    lengths, cut = sample(10_000, 2048)
    tally = Tally()
    for start in range(0, 10_000, 777):
        tally.add(lengths[start : start + 777], cut[start : start + 777])
    ours, whole = tally.counts(), LengthCounts.from_arrays(lengths, cut)
    for column in ("values", "ended", "cut", "loose"):
        np.testing.assert_array_equal(getattr(ours, column), getattr(whole, column))
    assert ours.mean == lengths.mean() and ours.variance == pytest.approx(lengths.var(ddof=1))


@pytest.mark.parametrize("bad", [[-1, 5], [1 << 60], [0.5], [[1, 2]]])
def test_impossible_lengths_are_refused(bad):
    with pytest.raises(DataError, match="length"):
        LengthCounts.from_arrays(np.array(bad))


def test_rows_that_a_precision_needs():
    assert rows_for_cap(0.01) == 299 and rows_for_quantile(0.99) == 368
    for rows in (rows_for_share(0.35, 0.05),):
        assert share_interval(0.35 * rows, rows).high - share_interval(0.35 * rows, rows).low <= 0.1
        assert share_interval(0.35 * (rows - 2), rows - 2).high - share_interval(0.35 * (rows - 2), rows - 2).low > 0.1
    longest = np.arange(1, 300)
    assert choose_cap(LengthCounts.from_arrays(longest), 0.01, multiple=1).cap == 299
    assert choose_cap(LengthCounts.from_arrays(longest[:-1]), 0.01).reason == "too_few_rows"


@pytest.mark.parametrize(
    ("name", "draw", "truth"),
    [
        ("pareto", lambda r, n: 2000 * r.pareto(2.5, n), 2000 * (0.01 ** (-1 / 2.5) - 1)),
        ("exponential", lambda r, n: r.exponential(2000, n), 2000 * np.log(100)),
        ("lognormal", lambda r, n: r.lognormal(np.log(1500), 1, n), 1500 * np.exp(stats.norm.ppf(0.99))),
    ],
)
def test_tail_model_finds_the_cap_of_tails_of_its_kind(name, draw, truth):
    lengths = np.ceil(draw(np.random.default_rng(3), 20_000)).astype(int)
    counts = LengthCounts.from_arrays(np.minimum(lengths, 8192), lengths > 8192)
    tail = fit_tail(counts, SourceCurve(counts))
    value, low, high = tail.cap(0.01)
    assert low <= truth <= high and value == pytest.approx(truth, rel=0.25)
    assert tail.p_value > 0.05 and value <= tail.trusted_until
    again = fit_tail(counts, SourceCurve(counts))
    assert again.to_dict() == tail.to_dict(), "a fixed seed makes the figures of card and page the same"


def test_tail_model_does_not_pretend():
    few = LengthCounts.from_arrays(np.minimum(np.arange(1, 101), 45), np.arange(1, 101) > 45)
    assert fit_tail(few, SourceCurve(few)) is None
    random = np.random.default_rng(0)
    two_humps = np.ceil(np.where(random.random(5000) < 0.6, random.normal(500, 40, 5000), 9000)).astype(int)
    steps = np.where(two_humps == 9000, 9000, 64 * (two_humps // 64))  # ends on a grid: no smooth tail
    counts = LengthCounts.from_arrays(np.minimum(steps, 2048), steps > 2048)
    tail = fit_tail(counts, SourceCurve(counts))
    assert tail.p_value < 0.05 and tail.trusted_until == 2048
