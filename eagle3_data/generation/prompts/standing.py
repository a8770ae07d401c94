"""How far the prompts of a batch have got, from the journal's index alone: no content is read.

Goes in: a batch of prompts (each of one turn, or the script of several), a journal, which sample. Comes out: for each
prompt how many turns are answered from the first on, and how the turn after them and the last answer stand.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3_data.generation.journal.index import U64, keys_of
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.outcome import flags

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Standing:
    """How one sample of each prompt stands; arrays of shape (prompts,) unless said otherwise.

    Attributes:
        starts: where the turns of a prompt begin in the flat arrays, shape (prompts + 1,).
        keys, positions: of every turn of every prompt in the journal, flat.
        answered: turns answered from the first on.
        next_code: outcome of the turn after those; 0 where every turn is answered.
        last_code, last_tokens: outcome and tokens of the last answered turn; 0 where there is none.
    """

    starts: Ints
    keys: U64
    positions: Ints
    answered: Ints
    next_code: npt.NDArray[np.uint8]
    last_code: npt.NDArray[np.uint8]
    last_tokens: Ints

    @property
    def turns(self) -> Ints:
        """Scripted turns."""
        return np.diff(self.starts)

    @property
    def whole(self) -> Flags:
        """Whether every turn is answered."""
        return np.equal(self.answered, self.turns)

    @property
    def stale(self) -> Flags:
        """Whether the dialogue ended at a cut answer that is no longer cut, so that it can go on."""
        return flags(self.next_code, "ended_by_cut") & ~flags(self.last_code, "cut")

    @property
    def open(self) -> Flags:
        """Whether the next run has to look at the prompt again."""
        return ~self.whole & (flags(self.next_code, "tried_again") | self.stale)

    @property
    def missing(self) -> Flags:
        """Whether the prompt has no outcome yet, or its dialogue goes on."""
        return ~self.whole & (flags(self.next_code, "missing") | self.stale)

    def counted(self) -> Ints:
        """Return the positions, in the flat arrays, of the answered turns, in order."""
        at = np.arange(len(self.keys))
        rows = np.repeat(np.arange(len(self.answered)), self.turns)
        return np.flatnonzero(at - self.starts[rows] < self.answered[rows])


def turn_ids(batch: Any) -> tuple[list[str], Ints]:
    """Return the sample_ids of every turn of every prompt of an Arrow table, flat, and where each prompt's begin."""
    names = batch.column("sample_id").to_pylist()
    later = batch.column("later_turns").to_pylist() if "later_turns" in batch.column_names else []
    if not any(later):
        return names, np.arange(len(names) + 1)
    flat = [name for first, rest in zip(names, later, strict=True) for name in (first, *(rest or ()))]
    return flat, np.concatenate([[0], np.cumsum([1 + len(rest or ()) for rest in later])])


def standing(names: list[str], starts: Ints, journal: Journal, sample: int = 0) -> Standing:
    """Look up every turn of some prompts.

    Args:
        names, starts: as `turn_ids` returns them.
        journal: where to look.
        sample: which of several answers.
    """
    keys = keys_of(names, sample)
    positions = journal.look_up(keys)
    codes = journal.index.column("outcome", positions)
    rows = len(starts) - 1
    open_at = np.where(flags(codes, "answered"), len(names), np.arange(len(names)))
    first_open = np.minimum.reduceat(open_at, starts[:-1]) if rows else np.zeros(0, np.int64)
    answered = np.minimum(first_open, starts[1:]) - starts[:-1]
    zero = np.zeros(rows, codes.dtype)
    more, some = answered < np.diff(starts), answered > 0
    following, last = np.minimum(starts[:-1] + answered, len(names) - 1), starts[:-1] + answered - 1
    tokens = journal.index.column("tokens", positions)
    return Standing(
        starts,
        keys,
        positions,
        answered,
        np.where(more, codes[following], zero) if rows else zero,
        np.where(some, codes[last], zero) if rows else zero,
        np.where(some, tokens[last], 0).astype(np.int64) if rows else np.zeros(0, np.int64),
    )
