"""Where each row's best outcome lies in the journal: sorted arrays of 41 bytes a row, and a small table of new ones.

Goes in: the heads of journal frames, in the order they were written. Comes out: for one sample_id or for a whole array
of keys, where the outcome that counts is stored and how it stands. Holds no content.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from eagle3_data.generation.entry import Head, State, hash_of

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
        ("state", "u1"),
    ]
)
_REST: Final = [name for name in ROW.names or () if name != "hi"]
_MERGE_AT: Final = 1 << 16


def keys_of(sample_ids: Iterable[str]) -> U64:
    """Return the keys of many rows, shape (rows, 2), uint64 (the two halves of `row_key`)."""
    joined = b"".join(map(hash_of, sample_ids))
    return np.frombuffer(joined, "<u8").reshape(-1, 2)


def rows_of(heads: Iterable[bytes]) -> Rows:
    """Return packed heads as index rows."""
    return np.frombuffer(b"".join(heads), ROW)


def _standing(rows: Rows) -> npt.NDArray[np.int64]:
    """Rank outcomes of one row: an answer beats none, more rounds beat fewer, then the first; of failures the last."""
    sequence = np.arange(len(rows), dtype=np.int64)
    done = (rows["state"] >= State.STOP) & (rows["state"] <= State.LENGTH_CONTEXT)
    answered = (
        (1 << 62)
        + (rows["rounds"].astype(np.int64) << 45)
        + ((rows["state"] == State.LENGTH_CONTEXT).astype(np.int64) << 44)
        + ((1 << 43) - sequence)
    )
    return np.where(done, answered, sequence)


class JournalIndex:
    """The outcome that counts of every row. Not thread-safe: one thread adds and asks."""

    def __init__(self) -> None:
        self._hi: U64 = np.zeros(0, np.uint64)
        self._rest: dict[str, npt.NDArray[Any]] = {name: np.zeros(0, ROW[name]) for name in _REST}
        self._recent: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        self.settle()
        return len(self._hi)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return self._hi.nbytes + sum(column.nbytes for column in self._rest.values())

    def add(self, key: bytes, head: bytes) -> None:
        """Take in one new frame by its packed head."""
        known = self._recent.get(key)
        if known is not None and int(np.argmax(_standing(rows_of([known, head])))) == 0:
            return
        self._recent[key] = head
        if len(self._recent) >= _MERGE_AT:
            self.settle()

    def add_rows(self, parts: Sequence[Rows]) -> None:
        """Take in frames of whole segments, in the order they were written."""
        self.settle()
        base = np.zeros(len(self._hi), ROW)
        base["hi"] = self._hi
        for name in _REST:
            base[name] = self._rest[name]
        rows = np.concatenate([base, *parts])
        del base
        order = np.lexsort((_standing(rows), rows["hi"]))
        hi = rows["hi"][order]
        last = np.ones(len(hi), bool)
        last[:-1] = hi[1:] != hi[:-1]
        winners = order[last]
        self._hi = np.ascontiguousarray(hi[last])
        self._rest = {name: np.ascontiguousarray(rows[name][winners]) for name in _REST}

    def settle(self) -> None:
        """Merge the table of new frames into the arrays."""
        if self._recent:
            recent, self._recent = self._recent, {}
            self.add_rows([rows_of(recent.values())])

    def find(self, key: bytes) -> Head | None:
        """Return the head of a row's outcome, or None."""
        found = self._at(key)
        recent = self._recent.get(key)
        if recent is None:
            return found
        if found is not None and int(np.argmax(_standing(rows_of([found.packed(), recent])))) == 0:
            return found
        return Head.unpacked(recent)

    def _at(self, key: bytes) -> Head | None:
        if not len(self._hi):
            return None
        halves = np.frombuffer(key, "<u8")
        at = int(self._hi.searchsorted(halves[0]))
        if at == len(self._hi) or self._hi[at] != halves[0] or self._rest["lo"][at] != halves[1]:
            return None
        return Head(key, **{name: int(self._rest[name][at]) for name in Head._fields[1:]})

    def positions(self, keys: U64) -> npt.NDArray[np.int64]:
        """Return where each key's row is in the arrays, or -1: int64, shape (rows,). Valid until the next addition."""
        self.settle()
        if not len(self._hi):
            return np.full(len(keys), -1, np.int64)
        at = np.searchsorted(self._hi, keys[:, 0])
        at[at == len(self._hi)] = 0
        same = (self._hi[at] == keys[:, 0]) & (self._rest["lo"][at] == keys[:, 1])
        return np.where(same, at, -1).astype(np.int64)

    def column(self, name: str, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return one field of the rows at `positions`, 0 where a position is -1."""
        if not len(self._hi):
            return np.zeros(len(positions), ROW[name])
        values = self._rest[name][np.maximum(positions, 0)]
        return np.where(positions >= 0, values, values.dtype.type(0))
