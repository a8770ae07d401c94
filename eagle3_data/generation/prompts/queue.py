"""Which prompts come next: the longest expected first, dialogue by dialogue.

Goes in: for each source the rows that need an answer, what is expected of them, and which are rendered so far; then
what the answers really took. Comes out: one unit of work after another: the prompts of one dialogue, in the order of
its turns. Holds 20 bytes a waiting row.
"""

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

_PRIOR_TOKENS = 1000.0  # how much evidence it takes to move a source's ratio away from 1


@dataclass(slots=True)
class Learned:
    """What the run itself learned of a source's lengths."""

    rows: int = 0
    tokens: int = 0
    expected: float = 0.0
    taken: float = 0.0

    def note(self, expected: float, tokens: int) -> None:
        """Take in one finished answer."""
        self.rows += 1
        self.tokens += tokens
        if expected > 0:
            self.expected += expected
            self.taken += tokens

    @property
    def ratio(self) -> float:
        """Real tokens for one expected token."""
        return (self.taken + _PRIOR_TOKENS) / (self.expected + _PRIOR_TOKENS)

    @property
    def mean(self) -> float:
        """Tokens of a row of which nothing is expected."""
        return (self.tokens + _PRIOR_TOKENS) / (self.rows + 1)


class _Run:
    """Ready units of a queue, best first. `unit` is the next one, of `size` rows and `expected` tokens."""

    def __init__(self, units: npt.NDArray[np.uint32], queue: "SourceQueue") -> None:
        self._units = units
        self._queue = queue
        self._taken = 0
        self._look()

    def _look(self) -> None:
        self.unit = unit = int(self._units[self._taken])
        self.first, end = self._queue.bounds(unit)
        self.size = end - self.first
        self.expected = self._queue.expected_of(unit)

    def advance(self) -> bool:
        """Go on to the next unit; whether there is one."""
        self._taken += 1
        if self._taken == len(self._units):
            return False
        self._look()
        return True

    @property
    def rest(self) -> npt.NDArray[np.uint32]:
        """The units that were not taken."""
        return self._units[self._taken :]


@dataclass(slots=True)
class SourceQueue:
    """The waiting rows of one source.

    Args:
        source: its name.
        cap: the longest an answer can get.
        rows: row numbers, uint32, shape (waiting,).
        expected: expected answer tokens of each, 0 if unknown.
        dialogue: which rows belong together.
        turn: their order within a dialogue.
    """

    source: str
    cap: int
    rows: npt.NDArray[np.uint32]
    expected: npt.NDArray[np.float32]
    dialogue: npt.NDArray[np.uint64]
    turn: npt.NDArray[np.int32]
    learned: Learned = field(default_factory=Learned)
    ready: int = 0
    _starts: npt.NDArray[np.uint32] = field(init=False)
    _sums: npt.NDArray[np.float32] = field(init=False)
    _last: npt.NDArray[np.uint32] = field(init=False)
    _order: npt.NDArray[np.uint32] = field(init=False)
    _seen: int = 0
    _known: list[_Run] = field(default_factory=list)
    _unknown: list[_Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        order = np.lexsort((self.turn, self.dialogue))
        self.rows, self.expected = self.rows[order], np.minimum(self.expected[order], np.float32(self.cap))
        sorted_dialogues = self.dialogue[order]
        first = np.ones(len(order), bool)
        first[1:] = sorted_dialogues[1:] != sorted_dialogues[:-1]
        starts = np.flatnonzero(first)
        self._sums = np.add.reduceat(self.expected, starts).astype(np.float32) if len(starts) else self.expected
        self._last = np.maximum.reduceat(self.rows, starts) if len(starts) else self.rows
        self._starts = np.append(starts, len(order)).astype(np.uint32)
        self._order = np.argsort(self._last, kind="stable").astype(np.uint32)
        self.dialogue = np.zeros(0, np.uint64)
        self.turn = np.zeros(0, np.int32)

    @property
    def units(self) -> tuple[int, npt.NDArray[np.float32]]:
        """The longest that a unit's answers can get together, and the expected tokens of each, 0 where unknown."""
        largest = int(np.diff(self._starts).max()) if len(self._starts) > 1 else 1
        return self.cap * largest, self._sums

    def open_to(self, ready: int) -> None:
        """Take in that the first `ready` rows of the source are rendered."""
        self.ready = ready
        upto = int(np.searchsorted(self._last[self._order], ready)) if ready else 0
        fresh = self._order[self._seen : upto]
        self._seen = max(self._seen, upto)
        if len(fresh):
            known = self._sums[fresh] > 0
            self._known = self._joined(self._known, fresh[known])
            self._unknown = self._joined(self._unknown, fresh[~known])

    def _joined(self, runs: list[_Run], fresh: npt.NDArray[np.uint32]) -> list[_Run]:
        """Add ready units as a run of their own; many small runs are merged into one."""
        if not len(fresh):
            return runs
        if len(runs) >= 16:
            fresh = np.concatenate([fresh, *(run.rest for run in runs)])
            runs = []
        # Stable, so that units of equal length keep their draw order.
        return [*runs, _Run(fresh[np.argsort(-self._sums[fresh], kind="stable")], self)]

    def bounds(self, unit: int) -> tuple[int, int]:
        """Return where the rows of a unit begin and end."""
        return int(self._starts[unit]), int(self._starts[unit + 1])

    def expected_of(self, unit: int) -> float:
        """Return the tokens that are expected of a unit, 0 if unknown."""
        return float(self._sums[unit])

    def best(self) -> tuple[float, _Run | None]:
        """Return the expected tokens of the longest ready unit (-1 when none is ready), and where it stands first."""
        best, chosen = -1.0, None
        ratio, mean = self.learned.ratio, self.learned.mean
        for runs, known in ((self._known, True), (self._unknown, False)):
            for run in runs:
                value = run.expected * ratio if known else mean * run.size
                value = min(value, float(self.cap * run.size))
                if value > best:
                    best, chosen = value, run
        return best, chosen

    def take(self, run: _Run) -> tuple[list[int], list[float]]:
        """Take the first unit of `run`: its row numbers in the order of turns, and what is expected of each."""
        part = slice(run.first, run.first + run.size)
        if not run.advance():
            for runs in (self._known, self._unknown):
                if run in runs:
                    runs.remove(run)
        return self.rows[part].tolist(), self.expected[part].tolist()

    @property
    def exhausted(self) -> bool:
        """Whether every unit was taken."""
        return self._seen == len(self._order) and not self._known and not self._unknown


class Queues:
    """The waiting rows of all sources in one window."""

    def __init__(self, queues: list[SourceQueue]) -> None:
        self.all = queues

    def take(self) -> tuple[SourceQueue, list[int], list[float]] | None:
        """Take the unit that is expected to last longest over all sources; None when none is ready."""
        longest, best, chosen = -1.0, None, None
        for queue in self.all:
            value, run = queue.best()
            if run is not None and value > longest:
                longest, best, chosen = value, queue, run
        return (best, *best.take(chosen)) if best is not None and chosen is not None else None

    @property
    def exhausted(self) -> bool:
        """Whether nothing waits any more, rendered or not."""
        return all(queue.exhausted for queue in self.all)


def dialogues(table: Any, start: int) -> npt.NDArray[np.uint64]:
    """Return a number for each row of an Arrow table that is equal for prompts of one upstream dialogue.

    Args:
        table: with source_file and source_row where known; without, every row stands alone.
        start: number of the first row.
    """
    if "source_row" not in table.column_names or "source_file" not in table.column_names:
        return np.arange(start, start + table.num_rows, dtype=np.uint64)
    encoded = table.column("source_file").combine_chunks().dictionary_encode()
    parts = encoded.chunks if hasattr(encoded, "chunks") else [encoded]
    files = np.concatenate(
        [
            np.array([zlib.crc32((name or "").encode()) for name in part.dictionary.to_pylist()], np.uint64)[
                part.indices.to_numpy()
            ]
            if len(part)
            else np.zeros(0, np.uint64)
            for part in parts
        ]
    )
    rows = table.column("source_row").to_numpy().astype(np.uint64)
    return np.asarray((files << np.uint64(32)) ^ rows, np.uint64)
