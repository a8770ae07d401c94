"""Which prompts of a source are drawn: hashes and row numbers only, never what a row holds.

Goes in: one call of `IndexBuilder.add` for each prompt, in file order. Comes out: the prompts that are the first of
their content, and the N of them with the smallest draw keys. 24 bytes a prompt are kept, below 64 at the peak.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

HASH: Final = np.dtype([("high", ">u8"), ("low", ">u4")])  # the 24 hex digits of a sample_id
_STEP: Final = 1 << 20
Hashes = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.uint32]  # four bytes a prompt, as rows of one source are fewer than 2^32
Flags = npt.NDArray[np.bool_]


def draw_key(seed: int, sample_id: str) -> bytes:
    """Return the 8 bytes that order the prompts of a draw: SHA-256 of `<seed>:<sample_id>`, its head."""
    return hashlib.sha256(f"{seed}:{sample_id}".encode()).digest()[:8]


@dataclass
class FileIndex:
    """The prompts of one file, in order."""

    rows: int = 0
    hashes: bytearray = field(default_factory=bytearray)  # 12 bytes a prompt
    keys: bytearray = field(default_factory=bytearray)  # 8 bytes a prompt
    row_numbers: bytearray = field(default_factory=bytearray)  # 4 bytes a prompt

    def add(self, row: int, digest: str, key: bytes) -> None:
        """Note a prompt of row `row` with content hash `digest` (hex)."""
        self.hashes += bytes.fromhex(digest[:24])
        self.keys += key
        self.row_numbers += row.to_bytes(4, "little")


@dataclass
class Index:
    """The prompts of all files, in order, as arrays of equal length."""

    hashes: Hashes
    keys: npt.NDArray[np.uint64]
    rows: npt.NDArray[np.uint32]
    starts: Ints  # where each file's prompts begin; one more than files

    @classmethod
    def of(cls, files: list[FileIndex]) -> "Index":
        """Join the files' indices, emptying them on the way."""
        starts = np.cumsum([0, *(len(file.keys) // 8 for file in files)], dtype=np.int64)
        if len(files) == 1:
            only = files[0]
            return cls(
                np.frombuffer(only.hashes, HASH),
                np.frombuffer(only.keys, ">u8"),
                np.frombuffer(only.row_numbers, "<u4"),
                starts,
            )
        index = cls(np.empty(starts[-1], HASH), np.empty(starts[-1], ">u8"), np.empty(starts[-1], "<u4"), starts)
        for number, file in enumerate(files):
            span = slice(starts[number], starts[number + 1])
            index.hashes[span] = np.frombuffer(file.hashes, HASH)
            index.keys[span] = np.frombuffer(file.keys, ">u8")
            index.rows[span] = np.frombuffer(file.row_numbers, "<u4")
            file.hashes, file.keys, file.row_numbers = bytearray(), bytearray(), bytearray()
        return index

    def __len__(self) -> int:
        return len(self.keys)

    def first_of_each(self) -> Flags:
        """Return a flag for each prompt: nothing with the same content comes before it."""
        if not len(self):
            return np.zeros(0, np.bool_)
        high = self.hashes["high"].astype(np.uint64)
        order = np.argsort(high, kind="stable")
        sorted_high = high[order]
        del high
        same = sorted_high[1:] == sorted_high[:-1]
        del sorted_high
        # Equal heads with other tails (one chance in 10^5 at 10 million) are told apart by a full sort of those runs.
        low_equal = np.ones(len(same), np.bool_)
        at = np.flatnonzero(same)
        low_equal[at] = self.hashes["low"][order[at]] == self.hashes["low"][order[at + 1]]
        if not low_equal.all():
            order = np.lexsort((self.hashes["low"], self.hashes["high"]))
            ordered = self.hashes[order]
            same = ordered[1:] == ordered[:-1]
        first = np.ones(len(self), np.bool_)
        first[order[1:][same]] = False
        return first

    def save_pool(self, kept: Flags, path: Path) -> None:
        """Write the hashes of the kept prompts as a .npy file, a piece at a time."""
        count = int(kept.sum())
        pool = np.lib.format.open_memmap(path, mode="w+", dtype=HASH, shape=(count,))
        done = 0
        for start in range(0, len(self), _STEP):
            piece = self.hashes[start : start + _STEP][kept[start : start + _STEP]]
            pool[done : done + len(piece)] = piece
            done += len(piece)
        pool.flush()

    def known(self, others: Hashes) -> Flags:
        """Return a flag for each prompt whose content is among `others` (in the order of `sorted_hashes`)."""
        if not len(self) or not len(others):
            return np.zeros(len(self), np.bool_)
        flags = np.zeros(len(self), np.bool_)
        high, low = others["high"].astype(np.uint64), others["low"]
        for start in range(0, len(self), _STEP):
            part = self.hashes[start : start + _STEP]
            part_high = part["high"].astype(np.uint64)
            left = np.searchsorted(high, part_high, "left")
            right = np.searchsorted(high, part_high, "right")
            for offset in np.flatnonzero(right > left):
                flags[start + offset] = part["low"][offset] in low[left[offset] : right[offset]]
        return flags

    def row_flags(self, kept: Flags) -> tuple[int, int]:
        """Return how many rows have a kept prompt, and how many have none."""
        if not len(self):
            return 0, 0
        changes = np.empty(len(self), np.bool_)
        changes[0] = True
        np.not_equal(self.rows[1:], self.rows[:-1], out=changes[1:])
        starts = self.starts[:-1]
        changes[starts[starts < len(self)]] = True
        begins = np.flatnonzero(changes)
        with_kept = int(np.logical_or.reduceat(kept, begins).sum())
        return with_kept, len(begins) - with_kept

    def draw(self, kept: Flags, count: int | None) -> Positions:
        """Return the positions of the `count` kept prompts with the smallest keys, in draw order.

        Equal keys are ordered by content, so the order depends on nothing but seed and content.
        """
        candidates = np.flatnonzero(kept).astype(np.uint32)
        keys = self.keys[candidates].astype(np.uint64)
        if count is not None and count < len(candidates):
            limit = np.partition(keys, count - 1)[count - 1] if count else np.uint64(0)
            chosen = keys <= limit if count else np.zeros(len(keys), np.bool_)
            candidates, keys = candidates[chosen], keys[chosen]
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        tied = bool((ordered[1:] == ordered[:-1]).any())
        del ordered
        if tied:
            order = np.lexsort((self.hashes["low"][candidates], self.hashes["high"][candidates], keys))
        del keys
        drawn: Positions = candidates[order]
        return drawn if count is None else drawn[:count]

    def local(self, file: int, positions: Positions) -> tuple[Positions, Positions]:
        """Return, for ascending positions within a file, their rows and their places among the row's prompts."""
        rows = self.rows[self.starts[file] : self.starts[file + 1]]
        wanted = np.empty(len(positions), np.uint32)
        places = np.empty(len(positions), np.uint32)
        for start in range(0, len(positions), _STEP):
            span = slice(start, start + _STEP)
            inside = positions[span] - self.starts[file]
            wanted[span] = rows[inside]
            places[span] = inside - np.searchsorted(rows, wanted[span], "left")
        return wanted, places


def sorted_hashes(hashes: Hashes) -> Hashes:
    """Return hashes in the order that `Index.known` expects: by their heads."""
    ordered: Hashes = hashes[np.argsort(hashes["high"].astype(np.uint64), kind="stable")]
    return ordered


def hashes_of_ids(sample_ids: Any) -> Hashes:
    """Return the content hashes at the end of sample_ids."""
    return np.frombuffer(b"".join(bytes.fromhex(text[-24:]) for text in sample_ids), HASH)
