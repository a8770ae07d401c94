"""Rows that never end: how many of those that reached the end of what was tried are stuck, and not just long.

Goes in: a table of completion lengths. Comes out: the table in which rows that are known to be stuck stand apart, and
the evidence, an `Endless`.

A model that is stuck repeats itself until any cap, so the lengths are a cure mixture: a share that never ends, and the
distribution of those that end (Maller and Zhou, Survival Analysis with Long-Term Survivors, 1996). Two things show it.
A loop at the end of the ids (`loop_tokens`), found row by row. And the plateau: of the rows that go on at c tokens, at
least 1 - g^-0.8 end before g x c even where the tail is a Pareto one of index 0.8, heavier than any measured here
(43 % for twice, 67 % for four times), so where far fewer end, some cannot. That holds in the tail alone: a plateau is
looked for only beyond the 95th percentile of the rows that ended, and only among a quarter of the rows, since a second
mode of long answers would look the same.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from scipy.special import bdtr

from eagle3_data.lengths.statistics.distribution import LengthCounts
from eagle3_data.lengths.statistics.intervals import CONFIDENCE, Interval, rounded, wilson

HEAVIEST: Final = 0.8  # index of the heaviest Pareto tail that answers may have
_STEPS: Final = (2, 4, 8)
_TAIL: Final = 0.95
_LARGEST: Final = 0.25
_MAX_ROWS: Final = 1 << 20  # of a plateau; with more the binomial sum decides nothing that a sample of them does not


@dataclass(frozen=True)
class Endless:
    """What is known of the rows of a source that would never end.

    Attributes:
        looping: rows cut while they repeated themselves.
        plateau: of the rows that reached the largest cap without a visible loop, how many are stuck at least.
        plateau_most: and how many at most (all of them, where there is a plateau; else 0).
        followed: rows that went on at `start` tokens and were followed to `until`; `ended` of them ended.
        p_value: chance of so few ends under the heaviest tail; 1 where nothing was tested.
        share: of all rows, with its interval.
    """

    looping: int
    plateau: int
    plateau_most: int
    followed: int
    ended: int
    start: int
    until: int
    p_value: float
    share: Interval

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**self.__dict__, "p_value": rounded(self.p_value, 6), "share": self.share.to_dict()}


def split_endless(counts: LengthCounts, confidence: float = CONFIDENCE) -> tuple[LengthCounts, Endless]:
    """Set the rows apart that are stuck at the largest cap.

    Rows of the plateau that may still end stay among the cut ones: as many as the heaviest tail allows with
    `confidence`, so that an estimate from the table is never shorter than the truth.

    Args:
        counts: completion lengths; looping rows are `stuck` already.
        confidence: of the test and of the interval.
    """
    looping, rows = int(counts.stuck.sum()), counts.rows
    best = _plateau(counts, 1 - confidence)
    if best is None:
        low, high = wilson(looping / rows, rows, confidence) if rows else (0.0, 1.0)
        share = Interval(looping / rows, float(low), float(high)) if rows else Interval(None, None, None)
        return counts, Endless(looping, 0, 0, 0, 0, 0, 0, 1.0, share)
    start, until, followed, ended, p_value, may_end = best
    at = int(np.searchsorted(counts.values, until))
    most = int(counts.cut[at])
    least = max(0, most - may_end)
    moved = np.zeros_like(counts.cut)
    moved[at] = least
    apart = replace(counts, cut=counts.cut - moved, stuck=counts.stuck + moved)
    expected = max(least, min(most, round(most - ended * _ratio(start, until))))
    low = float(wilson((looping + least) / rows, rows, confidence)[0])
    high = float(wilson((looping + most) / rows, rows, confidence)[1])
    share = Interval((looping + expected) / rows, low, high)
    return apart, Endless(looping, least, most, followed, ended, start, until, p_value, share)


def _ratio(start: int, until: int) -> float:
    """Return how many end beyond `until` for one that ends between, under the heaviest tail."""
    survive = (until / start) ** -HEAVIEST
    return float(survive / (1 - survive))


def _plateau(counts: LengthCounts, alpha: float) -> tuple[int, int, int, int, float, int] | None:
    """Return (start, until, followed, ended, p, rows that may still end) of the clearest plateau, None without one."""
    if not counts.cut.any():
        return None
    until = int(counts.values[counts.cut > 0][-1])
    if counts.ended[counts.values > until].any():  # then the largest cap is not the end of what was tried
        return None
    at_end = int(counts.cut[counts.values == until].sum())
    ends_below = np.cumsum(counts.ended)
    if not ends_below[-1]:
        return None
    tail_begins = int(counts.values[np.searchsorted(ends_below, _TAIL * ends_below[-1])])
    best: tuple[int, int, int, int, float, int] | None = None
    for step in _STEPS:
        start = until // step
        if start < max(1, tail_begins):
            break
        ended = int(counts.ended[(counts.values > start) & (counts.values <= until)].sum())
        followed = ended + at_end
        ends = 1 - (until / start) ** -HEAVIEST
        if followed > min(_MAX_ROWS, _LARGEST * counts.rows):
            break
        p_value = float(bdtr(ended, followed, ends))
        if p_value >= alpha / len(_STEPS):
            continue
        # The most rows that can have been going to end: with more, so few ends by now would be too rare a chance.
        tried = np.arange(ended, followed + 1)
        possible = tried[bdtr(ended, tried, ends) > alpha / len(_STEPS)]
        may_end = int(possible[-1]) - ended
        if best is None or may_end < best[-1]:
            best = (start, until, followed, ended, min(1.0, p_value * len(_STEPS)), may_end)
    return best
