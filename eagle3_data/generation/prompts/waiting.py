"""Which rows of a run need an answer: one pass over a few columns of the prompts against the journal's index.

Goes in: the prompts of every source, a journal, caps and a shard. Comes out: for each source its waiting rows, its
rendered prompts and how many rows have an outcome already.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from datasets import Dataset

from eagle3_data.generation.asked_target import AskedTarget
from eagle3_data.generation.journal.index import keys_of
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.generation.progress import SourceProgress, count
from eagle3_data.generation.prompts.queue import SourceQueue, dialogues
from eagle3_data.generation.prompts.rendered import RenderedPrompts
from eagle3_data.generation.prompts.standing import Ints, standing, turn_ids
from eagle3_data.generation.prompts.table import PromptTable
from eagle3_data.outcome import flags, of_code

_PLAN_ROWS: Final = 50_000
_COLUMNS: Final = (
    "sample_id",
    "dialogue",
    "later_turns",
    "expected_tokens",
    "source_file",
    "source_row",
    "source_turn",
)


class Asking(Protocol):
    """What decides which rows wait: `Generator`."""

    journal: Journal
    shard: tuple[int, int]

    @property
    def extends(self) -> bool:
        """Whether cut rows go on."""

    def caps(self, source: str) -> list[int]:
        """Return the caps a row of `source` is taken to, round by round."""

    def samples_of(self, source: str) -> int:
        """Return how many answers each prompt of a source gets."""

    def target_of(self, source: str) -> AskedTarget:
        """Return the target under the thinking switch of a source."""


@dataclass(slots=True)
class PendingSource:
    """A source of a run: `seen_ready` rows are rendered, `opened` of them are in the queue."""

    name: str
    table: PromptTable
    rendered: RenderedPrompts
    queue: SourceQueue
    progress: SourceProgress
    samples: int = 1
    seen_ready: int = 0
    opened: int = 0


def pending_sources(prompts: Mapping[str, Path | Dataset], step: Asking, only_truncated: bool) -> list[PendingSource]:
    """Find the rows that need an answer, in bounded memory.

    Args:
        prompts: for each source its prompts in draw order.
        step: whose journal and caps decide.
        only_truncated: leave rows alone that have no answer at all.

    Raises:
        UsageError: a source has no cap.
        DataError: prompts that cannot be read.
    """
    sources = []
    for name, given in prompts.items():
        table, caps, progress = PromptTable(given), step.caps(name), SourceProgress()
        parts: list[tuple[Any, ...]] = []
        start, longest, samples = 0, 1, step.samples_of(name)
        for batch in table.batches(_COLUMNS, size=_PLAN_ROWS):
            names, starts = turn_ids(batch)
            longest = max(longest, int(np.diff(starts).max(initial=1)))
            parts.append(_waiting(batch, names, starts, start, caps, progress, step, samples, only_truncated))
            start += batch.num_rows
        waiting: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        queue = SourceQueue(name, caps[-1] * longest * samples, *waiting) if waiting else _empty_queue(name)
        rendered = RenderedPrompts(step.journal.path / "prompts", name, table, step.target_of(name))
        sources.append(PendingSource(name, table, rendered, queue, progress, samples))
    return sources


def _waiting(
    batch: Any,
    names: list[str],
    starts: Ints,
    start: int,
    caps: list[int],
    progress: SourceProgress,
    step: Asking,
    samples: int,
    only_truncated: bool,
) -> tuple[Any, ...]:
    """Return number, expected tokens, dialogue and turn of the prompts of a batch that wait; count the others."""
    shard, shards = step.shard
    # Whole dialogues go to one shard, so that their prefix is in one cache.
    owners = batch.column("dialogue" if "dialogue" in batch.column_names else "sample_id").to_pylist()
    mine = keys_of(owners)[:, 1] % np.uint64(shards) == np.uint64(shard) if shards > 1 else np.ones(len(owners), bool)
    scripted = np.diff(starts) > 1
    waiting = np.zeros(len(owners), bool)
    for sample in range(samples):
        stands = standing(names, starts, step.journal, sample)
        progress.total += int(mine.sum())
        waits = stands.open
        if only_truncated:
            waits &= stands.answered > 0
        if step.extends:
            # The budget already sent lies in the frames; a cut row's own tokens say nearly the same without reading
            # them: a row cut by its cap holds as many tokens as were asked for.
            waits |= flags(stands.last_code, "extendable") & (stands.last_tokens < caps[-1])
        waiting |= waits & mine
        # A row that waits to be extended has an answer all the same; a dialogue is done when it is over.
        for code, rows in _tally(np.where(stands.whole, stands.last_code, stands.next_code)[mine & ~scripted]):
            if of_code(code).answered or only_truncated:
                count(progress, of_code(code), rows)
        for code, rows in _tally(stands.last_code[mine & scripted & ~waits & (stands.answered > 0)]):
            count(progress, of_code(code), rows)
    at = np.flatnonzero(waiting)
    expected = np.zeros(len(at), np.float32)
    if "expected_tokens" in batch.column_names:
        expected = batch.column("expected_tokens").to_numpy().astype(np.float32)[at]
    turn = np.zeros(len(at), np.int32)
    if "source_turn" in batch.column_names:
        turn = batch.column("source_turn").to_numpy().astype(np.int32)[at]
    return ((at + start).astype(np.uint32), expected, dialogues(batch, start)[at], turn)


def _tally(codes: Any) -> list[tuple[int, int]]:
    values, rows = np.unique(codes, return_counts=True)
    return list(zip(values.tolist(), rows.tolist(), strict=True))


def _empty_queue(name: str) -> SourceQueue:
    return SourceQueue(
        name,
        1,
        np.zeros(0, np.uint32),
        np.zeros(0, np.float32),
        np.zeros(0, np.uint64),
        np.zeros(0, np.int32),
    )
