"""Where each row's best outcome lies in the journal: sorted arrays of 41 bytes a row, and a small table of new ones.

Goes in: the heads of journal frames, in the order they were written. Comes out: for one sample_id or for a whole array
of keys, where the outcome that counts is stored and how it stands. Holds no content.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from eagle3_data.generation.journal.entry import Head, hash_of
from eagle3_data.outcome import flags

U64 = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.void]

# A packed Head, its key in two halves. Little-endian, unpadded.
ROW: Final = np.dtype(
    [
        ("hi", "<u8"),
        ("lo", "<u8"),
        ("offset", "<u8"),
        ("crc", "<u4"),
        ("prompt_crc", "<u4"),
        ("tokens", "<u4"),
        ("segment", "<u2"),
        ("rounds", "<u2"),
        ("outcome", "u1"),
    ]
)
_FIELDS: Final = ROW.names or ()
_MERGE_AT: Final = 1 << 16


def keys_of(sample_ids: Iterable[str], sample: int = 0) -> U64:
    """Return the keys of many rows of one `sample`, shape (rows, 2), uint64 (the two halves of `row_key`)."""
    joined = b"".join(hash_of(sample_id, sample) for sample_id in sample_ids)
    return np.frombuffer(joined, "<u8").reshape(-1, 2)


def rows_of(heads: Iterable[bytes]) -> Rows:
    """Return packed heads as index rows."""
    return np.frombuffer(b"".join(heads), ROW)


def _rank(rounds: npt.NDArray[Any], codes: npt.NDArray[Any], sequence: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Rank outcomes of one row: an answer beats none, more rounds beat fewer, then the first; of failures the last."""
    answered = (
        (1 << 62)
        + (rounds.astype(np.int64) << 45)
        + (flags(codes, "relabels").astype(np.int64) << 44)
        + ((1 << 43) - sequence)
    )
    return np.where(flags(codes, "answered"), answered, sequence).astype(np.int64)


def _first_counts(first: bytes, second: bytes) -> bool:
    rows = rows_of([first, second])
    ranks = _rank(rows["rounds"], rows["outcome"], np.arange(2))
    return bool(ranks[0] > ranks[1])


class JournalIndex:
    """The outcome that counts of every row. Not thread-safe: one thread adds and asks."""

    def __init__(self) -> None:
        # Sorted by `hi`. One array a field, so that sorting and growing copy one of them at a time.
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.zeros(0, ROW[name]) for name in _FIELDS}
        self._recent: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        self.settle()
        return len(self._columns["hi"])

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return sum(column.nbytes for column in self._columns.values())

    def add(self, key: bytes, head: bytes) -> None:
        """Take in one new frame by its packed head."""
        known = self._recent.get(key)
        if known is not None and _first_counts(known, head):
            return
        self._recent[key] = head
        if len(self._recent) >= _MERGE_AT:
            self.settle()

    def load(self, parts: Iterable[Rows]) -> None:
        """Fill an empty index with the frames of whole segments, in the order they were written.

        Each part is let go of before the next is asked for; sorting takes some 25 bytes a row for as long as it lasts.
        """
        pieces: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _FIELDS}
        for rows in _gathered(parts):
            for name, column in pieces.items():
                column.append(np.ascontiguousarray(rows[name]))
        if not pieces["hi"]:
            return
        columns = {name: np.concatenate(pieces.pop(name)) for name in _FIELDS}
        hi = columns["hi"]
        order = np.argsort(hi)
        ordered = hi[order]
        last = np.ones(len(hi), bool)
        np.not_equal(ordered[1:], ordered[:-1], out=last[:-1])
        del ordered
        again = ~last  # rows with several outcomes, but for the last place of each
        again[1:] |= again[:-1]
        if again.any():
            several = order[again]
            ranks = _rank(columns["rounds"][several], columns["outcome"][several], several)
            order[again] = several[np.lexsort((ranks, hi[several]))]
        winners = order[last]
        del order, last, again, hi
        for name in _FIELDS:
            columns[name] = columns[name][winners]
        self._columns = columns

    def settle(self) -> None:
        """Merge the table of new frames into the arrays."""
        if not self._recent:
            return
        rows = rows_of(self._recent.values())
        self._recent = {}
        hi = self._columns["hi"]
        if not len(hi):
            self.load([rows])
            return
        rows = rows[np.argsort(rows["hi"])]
        at = np.searchsorted(hi, rows["hi"])
        known = hi[np.minimum(at, len(hi) - 1)] == rows["hi"]
        place, later = at[known], rows[known]
        before = {name: self._columns[name][place] for name in ("rounds", "outcome")}
        zero = np.zeros(len(place), np.int64)
        wins = _rank(later["rounds"], later["outcome"], zero + 1) > _rank(before["rounds"], before["outcome"], zero)
        at, fresh = at[~known], rows[~known]
        for name in _FIELDS:
            self._columns[name][place[wins]] = later[name][wins]
            self._columns[name] = np.insert(self._columns[name], at, fresh[name])

    def count(self, holds: str) -> int:
        """Return of how many rows the property of `Outcome` named `holds` is true."""
        self.settle()
        return int(flags(self._columns["outcome"], holds).sum())

    def find(self, key: bytes) -> Head | None:
        """Return the head of a row's outcome, or None."""
        found = self._at(key)
        recent = self._recent.get(key)
        if recent is None:
            return found
        if found is not None and _first_counts(found.packed(), recent):
            return found
        return Head.unpacked(recent)

    def _at(self, key: bytes) -> Head | None:
        hi = self._columns["hi"]
        if not len(hi):
            return None
        halves = np.frombuffer(key, "<u8")
        at = int(hi.searchsorted(halves[0]))
        if at == len(hi) or hi[at] != halves[0] or self._columns["lo"][at] != halves[1]:
            return None
        return Head(key, **{name: int(self._columns[name][at]) for name in Head._fields[1:]})

    def positions(self, keys: U64) -> npt.NDArray[np.int64]:
        """Return where each key's row is in the arrays, or -1: int64, shape (rows,). Valid until the next addition."""
        self.settle()
        hi = self._columns["hi"]
        if not len(hi):
            return np.full(len(keys), -1, np.int64)
        at = np.searchsorted(hi, keys[:, 0])
        at[at == len(hi)] = 0
        same = (hi[at] == keys[:, 0]) & (self._columns["lo"][at] == keys[:, 1])
        return np.where(same, at, -1).astype(np.int64)

    def column(self, name: str, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return one field of the rows at `positions`, 0 where a position is -1."""
        column = self._columns[name]
        if not len(column):
            return np.zeros(len(positions), ROW[name])
        values = column[np.maximum(positions, 0)]
        return np.where(positions >= 0, values, values.dtype.type(0))


def _gathered(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Join small parts: a segment is written in many."""
    held: list[Rows] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= _MERGE_AT:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)
