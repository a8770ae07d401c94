"""Lengths as counts: how many rows ended at a length, and how many are only known to be longer.

Lengths are small integers, so a table of counts holds ten million rows exactly in some kilobytes, and every statistic
of this package is computed from it. Goes in: arrays of lengths and flags, batch by batch. Comes out: `LengthCounts`.
"""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eagle3_data.errors import DataError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

QUANTILES: Final = (0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 0.999)
THRESHOLDS: Final = (100, 250, 500, 1000, 2000, 4000, 8000)
CUTOFFS: Final = (2048, 4096, 8192, 16384, 32768)
# Longer than any context window there is. Count tables are indexed by length, so a damaged row must not reach them.
LONGEST: Final = 1 << 24


@dataclass(frozen=True)
class LengthCounts:
    """A table of lengths in tokens.

    Attributes:
        values: int64 (k,), the distinct lengths, ascending.
        ended: int64 (k,), rows whose length is exactly that.
        cut: int64 (k,), rows cut there by a cap: their length is greater, and where they were cut says nothing more
            about it (independent censoring).
        loose: int64 (k,), rows at least that long whose censoring may depend on their length, such as an answer cut by
            a cap that its own thinking used up, or by a context that a longer prompt leaves less of. They widen the
            bounds of an estimate.
        stuck: int64 (k,), rows of that recorded length that would never end, such as a loop. The population of every
            estimate is the answers that end, so these are counted and kept apart.
        waiting: rows of which nothing is known: not answered yet, timed out, failed. They widen the bounds too.
    """

    values: Ints
    ended: Ints
    cut: Ints
    loose: Ints
    stuck: Ints
    waiting: int = 0

    @classmethod
    def from_arrays(
        cls,
        lengths: ArrayLike,
        censored: ArrayLike | None = None,
        *,
        loose: ArrayLike | None = None,
        stuck: ArrayLike | None = None,
        waiting: int = 0,
    ) -> Self:
        """Count an array of lengths.

        Args:
            lengths: integers (n,), tokens.
            censored: booleans (n,), True where the length is a lower bound because a cap cut the row.
            loose, stuck: booleans (n,), rows of these kinds; they win over `censored`.
            waiting: rows of which nothing is known.

        Raises:
            DataError: a length is negative, fractional or absurd, or the arrays differ in shape.
        """
        array = checked_lengths(lengths)
        flags = [
            np.zeros(array.shape, bool) if given is None else np.asarray(given, dtype=bool)
            for given in (censored, loose, stuck)
        ]
        for flag in flags:
            if array.shape != flag.shape:
                raise DataError(f"lengths have shape {array.shape} and censored {flag.shape}; give one flag a length")
        kind = np.zeros(len(array), np.int8)
        for code, flag in enumerate(flags, start=1):
            kind[flag] = code
        values, index = np.unique(array, return_inverse=True)
        index = index.reshape(-1)
        columns = [np.bincount(index[kind == code], minlength=len(values)).astype(np.int64) for code in range(4)]
        ended, cut, loose, stuck = columns
        return cls(values, ended, cut, loose, stuck, waiting)

    @property
    def recorded(self) -> Ints:
        """int64 (k,), rows with that recorded length, whether it is the whole or a part."""
        return self.ended + self.cut + self.loose + self.stuck

    @property
    def rows(self) -> int:
        """Rows with a recorded length."""
        return int(self.recorded.sum())

    @property
    def total(self) -> int:
        """Tokens recorded."""
        return int((self.values * self.recorded).sum())

    @property
    def squares(self) -> float:
        """Sum of the squared recorded lengths."""
        values = self.values.astype(np.float64)
        return float((values * values * self.recorded).sum())

    @property
    def mean(self) -> float:
        """Mean recorded length in tokens; 0 when there are no rows."""
        return self.total / self.rows if self.rows else 0.0

    @property
    def variance(self) -> float:
        """Variance of the recorded lengths, with n - 1 below; 0 for fewer than two rows."""
        if self.rows < 2:
            return 0.0
        deviations = self.values - self.mean
        return float((deviations * deviations * self.recorded).sum() / (self.rows - 1))

    def extreme(self, which: int) -> int:
        """Return the smallest (`which` 0) or largest (-1) recorded length; 0 when there are no rows."""
        present = self.values[self.recorded > 0]
        return int(present[which]) if len(present) else 0

    def cut_at(self, cap: int) -> "LengthCounts":
        """Return what these rows would look like, had none been given more than `cap` tokens."""
        keep = self.values <= cap
        longer = int(self.recorded[~keep].sum())
        values = np.append(self.values[keep], cap)
        columns = (self.ended, self.cut, self.loose, self.stuck)
        ended, cut, loose, stuck = (np.append(part[keep], 0) for part in columns)
        stuck[-1] = int(self.stuck[~keep].sum())
        cut[-1] = longer - stuck[-1]
        values, ended, cut, loose, stuck = merge(values, ended, cut, loose, stuck)
        return LengthCounts(values, ended, cut, loose, stuck, self.waiting)

    def ending(self) -> "LengthCounts":
        """Return these rows without those that would never end: the population of every estimate."""
        if not self.stuck.any():
            return self
        return replace(self, stuck=np.zeros_like(self.stuck))


def checked_lengths(lengths: ArrayLike) -> Ints:
    """Return lengths as int64 (n,).

    Raises:
        DataError: they are not one row of whole numbers between 0 and LONGEST.
    """
    array = np.asarray(lengths)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise DataError(f"lengths must be a flat array of integers, got {array.dtype} of shape {array.shape}")
    whole = array.astype(np.int64)
    if whole.size and not (whole.min() >= 0 and whole.max() <= LONGEST):
        raise DataError(f"a length of {whole.min() if whole.min() < 0 else whole.max()} tokens cannot be right")
    return whole


def merge(values: Ints, *columns: Ints) -> tuple[Ints, ...]:
    """Sort a table by `values` and add up the rows that share one."""
    distinct, index = np.unique(values, return_inverse=True)
    index = index.reshape(-1)
    summed = []
    for column in columns:
        total = np.zeros(len(distinct), np.int64)
        np.add.at(total, index, column)
        summed.append(total)
    return (distinct.astype(np.int64), *summed)


class Tally:
    """Adds lengths up, batch by batch, into dense counts; memory goes with the longest length, never with the rows."""

    def __init__(self) -> None:
        self._counts = [np.zeros(0, np.int64)] * 4  # ended, cut, loose, stuck; index is the length
        self.waiting = 0

    def add(
        self, lengths: Ints, cut: Flags | None = None, loose: Flags | None = None, stuck: Flags | None = None
    ) -> None:
        """Count a batch.

        Args:
            lengths: int64 (n,), tokens, checked by the caller with `checked_lengths`.
            cut, loose, stuck: booleans (n,), see `LengthCounts`; of several the last one counts, and a row of none has
                ended.
        """
        if not len(lengths):
            return
        kind = np.zeros(len(lengths), np.int8)
        for code, flags in enumerate((cut, loose, stuck), start=1):
            if flags is not None:
                kind[flags] = code
        for row in range(4):
            part = lengths[kind == row]
            if not len(part):
                continue
            counted, before = np.bincount(part), self._counts[row]
            longer, shorter = (counted, before) if len(counted) > len(before) else (before, counted)
            longer[: len(shorter)] += shorter
            self._counts[row] = longer

    def counts(self) -> LengthCounts:
        """Return the table counted so far."""
        present = [np.flatnonzero(counted) for counted in self._counts]
        values = np.unique(np.concatenate(present)).astype(np.int64)
        columns = [np.zeros(len(values), np.int64) for _ in self._counts]
        for column, counted, at in zip(columns, self._counts, present, strict=True):
            column[np.searchsorted(values, at)] = counted[at]
        ended, cut, loose, stuck = columns
        return LengthCounts(values, ended, cut, loose, stuck, self.waiting)
