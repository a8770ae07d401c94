"""Which rows of a run need an answer: one pass over a few columns of the prompts against the journal's index.

Goes in: the prompts of every source and a Generator. Comes out: for each source its waiting rows, its rendered prompts
and how many rows stand already.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from datasets import Dataset

from eagle3_data.generation.generator import Generator
from eagle3_data.generation.journal.index import keys_of
from eagle3_data.generation.progress import SourceProgress, count
from eagle3_data.generation.prompts.queue import SourceQueue, dialogues
from eagle3_data.generation.prompts.rendered import RenderedPrompts
from eagle3_data.generation.prompts.table import PromptTable
from eagle3_data.outcome import flags, of_code

_PLAN_ROWS: Final = 50_000
_COLUMNS: Final = ("sample_id", "expected_tokens", "source_file", "source_row", "source_turn")


@dataclass(slots=True)
class PendingSource:
    """A source of a run: `seen_ready` rows are rendered, `opened` of them are in the queue."""

    name: str
    table: PromptTable
    rendered: RenderedPrompts
    queue: SourceQueue
    progress: SourceProgress
    seen_ready: int = 0
    opened: int = 0


def pending_sources(
    prompts: Mapping[str, Path | Dataset], step: Generator, only_truncated: bool
) -> list[PendingSource]:
    """Find the rows that need an answer, in bounded memory.

    Args:
        prompts: for each source its prompts in draw order.
        step: whose journal and caps decide.
        only_truncated: leave rows alone that have no answer.

    Raises:
        UsageError: a source has no cap.
        DataError: prompts that cannot be read.
    """
    sources = []
    for name, given in prompts.items():
        table, caps, progress = PromptTable(given), step.caps(name), SourceProgress()
        parts: list[tuple[Any, ...]] = []
        start = 0
        for batch in table.batches(_COLUMNS, size=_PLAN_ROWS):
            parts.append(_waiting(batch, start, caps, progress, step, only_truncated))
            start += batch.num_rows
        waiting: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        queue = SourceQueue(name, caps[-1], *waiting) if waiting else _empty_queue(name)
        rendered = RenderedPrompts(step.journal.path / "prompts", name, table, step.target)
        sources.append(PendingSource(name, table, rendered, queue, progress))
    return sources


def _waiting(
    batch: Any, start: int, caps: list[int], progress: SourceProgress, step: Generator, only_truncated: bool
) -> tuple[Any, ...]:
    """Return number, expected tokens, dialogue and turn of the rows of a batch that wait; count the others."""
    journal, (shard, shards) = step.journal, step.shard
    keys = keys_of(batch.column("sample_id").to_pylist())
    positions = journal.look_up(keys)
    codes = journal.index.column("outcome", positions)
    answered = flags(codes, "answered")
    mine = keys[:, 1] % np.uint64(shards) == np.uint64(shard)
    progress.total += int(mine.sum())
    for code, rows in zip(*np.unique(codes[mine], return_counts=True), strict=True):
        outcome = of_code(int(code))
        if outcome.answered or only_truncated:
            count(progress, outcome, int(rows))
    waiting = mine & ~answered if not only_truncated else np.zeros(len(mine), bool)
    if step.extends:
        # The budget already sent lies in the frames; a cut row's own tokens say nearly the same without reading
        # them: a row cut by its cap holds as many tokens as were asked for.
        tokens = journal.index.column("tokens", positions)
        waiting |= mine & flags(codes, "cut_by_cap") & (tokens < caps[-1])
    at = np.flatnonzero(waiting)
    expected = np.zeros(len(at), np.float32)
    if "expected_tokens" in batch.column_names:
        expected = batch.column("expected_tokens").to_numpy().astype(np.float32)[at]
    turn = np.zeros(len(at), np.int32)
    if "source_turn" in batch.column_names:
        turn = batch.column("source_turn").to_numpy().astype(np.int32)[at]
    return ((at + start).astype(np.uint32), expected, dialogues(batch, start)[at], turn)


def _empty_queue(name: str) -> SourceQueue:
    return SourceQueue(
        name,
        1,
        np.zeros(0, np.uint32),
        np.zeros(0, np.float32),
        np.zeros(0, np.uint64),
        np.zeros(0, np.int32),
    )
