"""How long a run will still take: from what finished, what is in flight and what waits.

Goes in: rows as they start and end, with what upstream's answer lets expect of them. Comes out: seconds left. Rows in
flight count as censored at the tokens they have by now, so that the short answers, which end first, do not decide; the
cap bounds every length; rows are grouped by their expected length, because the longest expected start first. The rest
of the run is then played through on as many places as are in use, since at its end the longest row decides.
Memory goes with the groups and the rows in flight, never with the rows.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]

_CELLS: Final = 8  # per doubling of a length
_GROUPS: Final = 2  # per doubling of an expected length
_MOST: Final = 24  # doublings
_PRIOR_SLOPE: Final = 0.9  # of log length over log expected length, where no two groups show it
_PRIOR_ROWS: Final = 5.0  # how many rows of a group outweigh what the other groups say of it
_WINDOW_SECONDS: Final = 120.0
_PLACES: Final = 256  # played through; more places and rows are scaled down
_ROWS_A_PLACE: Final = 20  # the last rows of the run that are played through one by one
_SPREAD: Final = 0.5  # of log length within a group of which too little is known
_ENOUGH: Final = 20
_UNSETTLED: Final = 0.5
_BEYOND: Final = 1.3  # how much longer than the longest that ended those are that are longer

_LENGTHS: Final[Floats] = 2 ** ((np.arange(_MOST * _CELLS) + 0.5) / _CELLS)


def _cell(tokens: Floats) -> Groups:
    cells = np.floor(np.log2(np.maximum(tokens, 1)) * _CELLS).astype(np.int64)
    return np.asarray(np.minimum(cells, len(_LENGTHS) - 1), np.int64)


def _group(expected: Floats) -> Groups:
    """Return 0 where nothing is expected, else one more than the half doublings of the expected tokens."""
    found = np.floor(np.log2(np.maximum(expected, 1)) * _GROUPS).astype(np.int64) + 1
    found[expected <= 0] = 0
    return np.asarray(np.minimum(found, _MOST * _GROUPS), np.int64)


class SourceForecast:
    """The lengths of one source.

    Args:
        cap: the longest an answer can get.
        expected: expected tokens of the rows that wait, float (n,), 0 where unknown.
    """

    def __init__(self, cap: int, expected: npt.ArrayLike) -> None:
        self.cap = max(1, cap)
        groups = _group(np.minimum(np.asarray(expected, float), self.cap))
        self.waiting = np.bincount(groups, minlength=_MOST * _GROUPS + 1).astype(np.int64)
        self.ended = np.zeros((len(self.waiting), len(_LENGTHS)), np.int64)
        self.flying: dict[Hashable, tuple[int, float]] = {}  # row -> group, when it started

    def survival(self, censored: Floats, groups: Groups) -> dict[int, Floats]:
        """Return P(length >= cell) of each group in which rows ended, float64 (cells + 1,), by Kaplan and Meier."""
        found = {}
        for group in np.flatnonzero(self.ended.any(axis=1)).tolist():
            ended = self.ended[group]
            cut = np.bincount(_cell(censored[groups == group]), minlength=len(_LENGTHS))
            at_risk = np.cumsum((ended + cut)[::-1])[::-1]
            stay = np.divide(at_risk - ended, at_risk, out=np.ones(len(_LENGTHS)), where=at_risk > 0)
            found[group] = np.concatenate(([1.0], np.cumprod(stay)))
        return found


class Forecast:
    """The rest of a run.

    Args:
        clock: seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.sources: dict[str, SourceForecast] = {}
        self._recent: deque[tuple[float, float, float]] = deque()  # when, tokens, seconds
        self._random = np.random.default_rng(0)

    def add(self, source: str, cap: int, expected: npt.ArrayLike) -> None:
        """Take in the waiting rows of a source; see `SourceForecast`."""
        self.sources[source] = SourceForecast(cap, expected)

    def start(self, source: str, row: Hashable, expected: float) -> None:
        """Take note that a row was sent."""
        one = self.sources[source]
        group = int(_group(np.array([min(expected, float(one.cap))]))[0])
        one.waiting[group] = max(0, one.waiting[group] - 1)
        one.flying[row] = (group, self._clock())

    def end(self, source: str, row: Hashable, tokens: int | None) -> None:
        """Take note of a row's outcome: its new tokens, None where it has no answer."""
        one = self.sources[source]
        group, began = one.flying.pop(row)
        if tokens is None:
            return
        now = self._clock()
        one.ended[group, int(_cell(np.array([float(tokens)]))[0])] += 1
        self._recent.append((now, float(tokens), now - began))
        while len(self._recent) > 50 and now - self._recent[0][0] > _WINDOW_SECONDS:
            self._recent.popleft()

    def seconds_left(self, places: int) -> float:
        """Return the seconds until every row has its outcome, -1 before any row has ended.

        Args:
            places: requests that the servers take at once.
        """
        seconds = sum(took for _, _, took in self._recent)
        if not self._recent or seconds <= 0:
            return -1.0
        speed = sum(tokens for _, tokens, _ in self._recent) / seconds  # of one place
        rest, waiting = self._lengths(speed)
        return self._play(rest, waiting, max(places, len(rest), 1)) / speed

    def _lengths(self, speed: float) -> tuple[Floats, list[tuple[int, Floats]]]:
        """Return the tokens that rows in flight still take, and (rows, a sample of lengths) of the waiting groups."""
        now = self._clock()
        rest: list[Floats] = []
        waiting: list[tuple[int, Floats]] = []
        for one in self.sources.values():
            flying = list(one.flying.values())
            groups = np.array([group for group, _ in flying], np.int64)
            sofar = np.array([min((now - began) * speed, one.cap - 1) for _, began in flying], float)
            survival = one.survival(sofar, groups)
            samples = {
                group: self._sample(one, group, survival)
                for group in np.flatnonzero(one.waiting + np.bincount(groups, minlength=len(one.waiting))).tolist()
            }
            for group, tokens in zip(groups.tolist(), sofar.tolist(), strict=True):
                longer = samples[group][samples[group] > tokens]
                drawn = self._random.choice(longer) if len(longer) else min(1.5 * tokens, float(one.cap))
                rest.append(np.array([max(drawn - tokens, 0.0)]))
            waiting += [(int(one.waiting[group]), sample) for group, sample in samples.items() if one.waiting[group]]
        return np.concatenate(rest) if rest else np.zeros(0), waiting

    def _sample(self, one: SourceForecast, group: int, survival: dict[int, Floats]) -> Floats:
        """Return 200 evenly spread quantiles of the lengths of a group."""
        levels = (np.arange(200) + 0.5) / 200
        ended = int(one.ended[group].sum())
        # A group whose rows are mostly in flight is known by its shortest alone.
        settled = {known: curve for known, curve in survival.items() if curve[-1] <= _UNSETTLED} or survival
        means = {known: self._mean(one, curve) for known, curve in settled.items()}
        spread = np.exp(_SPREAD * _normal(levels) - _SPREAD**2 / 2)
        guess = self._expected(one, group, means)
        if ended < _ENOUGH or group not in settled:
            weight = ended if group in means else 0
            mean = (weight * means.get(group, 0.0) + _PRIOR_ROWS * guess) / (weight + _PRIOR_ROWS)
            return np.asarray(np.minimum(mean * spread, one.cap), float)
        curve = survival[group]
        cells = np.searchsorted(-curve[1:], -(1 - levels))
        last = int(np.flatnonzero(np.diff(curve))[-1])
        beyond = min(_BEYOND * _LENGTHS[last], float(one.cap))  # of those in flight, longer than all that ended
        found = np.where(cells < len(_LENGTHS), _LENGTHS[np.minimum(cells, len(_LENGTHS) - 1)], beyond)
        return np.asarray(np.minimum(found, one.cap), float)

    @staticmethod
    def _mean(one: SourceForecast, curve: Floats) -> float:
        last = int(np.flatnonzero(np.diff(curve))[-1])
        inside = float((-np.diff(curve) * np.minimum(_LENGTHS, one.cap)).sum())
        return inside + float(curve[-1]) * float(min(_BEYOND * _LENGTHS[last], float(one.cap)))

    def _expected(self, one: SourceForecast, group: int, means: dict[int, float]) -> float:
        """Return what the other groups say of the mean length of this one.

        A line through their logarithms, which before anything ended is upstream's own length.
        """
        rows = {known: float(one.ended[known].sum()) for known in means}
        if not group:
            if means:
                return sum(rows[known] * mean for known, mean in means.items()) / sum(rows.values())
            return one.cap / 2
        x = {known: (known - 0.5) / _GROUPS * np.log(2) for known in (*means, group)}
        # Groups that the cap bounds say nothing of how length follows expectation, and near ones say most of the mean.
        known = [name for name in means if name]
        if not known:
            return min(float(np.exp(x[group])), float(one.cap))
        sloped = [name for name in known if means[name] < one.cap / 2]
        weight = {name: min(rows[name], 50.0) for name in known}
        total = sum(weight[name] for name in sloped) or 1.0
        middle = sum(weight[name] * x[name] for name in sloped) / total
        height = sum(weight[name] * np.log(means[name]) for name in sloped) / total
        spread = sum(weight[name] * (x[name] - middle) ** 2 for name in sloped)
        slope = sum(weight[name] * (x[name] - middle) * (np.log(means[name]) - height) for name in sloped)
        steep = min(1.2, max(0.0, (slope + _PRIOR_ROWS * _PRIOR_SLOPE) / (spread + _PRIOR_ROWS)))
        near = {name: weight[name] * np.exp(-4 * abs(x[name] - x[group])) for name in known}
        guesses = sum(near[name] * (np.log(means[name]) + steep * (x[group] - x[name])) for name in known)
        return float(min(np.exp(guesses / sum(near.values())), one.cap))

    def _play(self, rest: Floats, waiting: list[tuple[int, Floats]], places: int) -> float:
        """Return the tokens that the busiest place still writes, when free places take the longest row that waits."""
        order = sorted(waiting, key=lambda part: -float(part[1].mean()))
        scale = max(1.0, places / _PLACES)
        used = max(1, round(places / scale))
        flying = np.sort(self._random.permutation(rest)[: max(1, round(len(rest) / scale))]) if len(rest) else rest
        ends = [*flying.tolist()[:used], *([0.0] * (used - len(flying)))]
        many = max(0.0, sum(rows for rows, _ in order) / scale - _ROWS_A_PLACE * used)
        bulk = 0.0
        tail: list[float] = []
        for rows, sample in order:
            scaled = rows / scale
            whole = min(many, scaled)
            many -= whole
            bulk += whole * float(sample.mean())
            tail += self._random.choice(sample, round(scaled - whole)).tolist()
        ends = [end + bulk / used for end in ends]
        heapq.heapify(ends)
        for length in tail:
            heapq.heappushpop(ends, ends[0] + length)
        return float(max(ends))


def _normal(levels: Floats) -> Floats:
    from scipy.special import ndtri

    return np.asarray(ndtri(levels), float)
