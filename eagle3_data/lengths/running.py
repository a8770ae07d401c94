"""Read the lengths of a run under way out of its journal: no lock, nothing written, no record needed.

Goes in: a run folder. Comes out: one `SourceTally` a source, and the prompts without an answer. A row in flight has no
length that anyone knows (servers answer whole), so it counts as waiting. Reasoning and tool calls need the target's
tokenizer and are left to the records.
"""

from typing import Final

import numpy as np
import pyarrow.parquet as pq

from eagle3_data.generation.journal.entry import Entry
from eagle3_data.generation.journal.index import keys_of
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.lengths.reading import SourceTally, Unfinished, drawn_rows
from eagle3_data.loops import loop_tokens
from eagle3_data.manifest import Manifest
from eagle3_data.outcome import FINISH_REASONS
from eagle3_data.run_folder import RunFolder

_BATCH: Final = 1000  # rows whose ids are held at once


def read_journal(folder: RunFolder, manifest: Manifest) -> tuple[dict[str, SourceTally], dict[str, Unfinished]]:
    """Count what the journal of a run holds by now.

    Raises:
        DataError: a frame is damaged.
    """
    tallies: dict[str, SourceTally] = {}
    unfinished: dict[str, Unfinished] = {}
    if not folder.journal_path.is_dir():
        return tallies, unfinished
    with Journal(folder.journal_path, readonly=True) as journal:
        for path in sorted(folder.path.glob("prompts/*.parquet")):
            samples = max(1, int(getattr(manifest.extent_of(path.stem), "samples", 1) or 1))
            tally, waiting = SourceTally(), Unfinished(expected_known=drawn_rows(path)[1])
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=_BATCH, columns=["sample_id"]):
                    ids = batch.column(0).to_pylist()
                    for sample in range(samples):
                        _add(tally, waiting, journal.read_many(journal.look_up(keys_of(ids, sample))))
            tally.wait_for(waiting.rows)
            tallies[path.stem], unfinished[path.stem] = tally, waiting
    return tallies, unfinished


def _add(tally: SourceTally, waiting: Unfinished, entries: list[Entry | None]) -> None:
    answered = [entry for entry in entries if entry is not None and entry.outcome.answered]
    for entry in entries:
        if entry is None:
            waiting.waiting += 1
        elif entry.outcome.skipped:
            waiting.skipped += 1
        elif entry.outcome.failed:
            waiting.timed_out += "timeout" in entry.reason
            waiting.failed += "timeout" not in entry.reason
    if not answered:
        return
    nothing = np.zeros(len(answered), np.int64)
    columns = {
        "prompt_tokens": np.array([entry.prompt_tokens for entry in answered], np.int64),
        "completion_tokens": np.array([len(entry.output_ids) for entry in answered], np.int64),
        "reasoning_tokens": nothing,
        "tool_calls": nothing,
        "max_new_tokens": np.array([entry.budget for entry in answered], np.int64),
        "loop_tokens": np.array(
            [loop_tokens(entry.output_ids) if entry.outcome.cut else 0 for entry in answered], np.int64
        ),
    }
    ends = np.array([FINISH_REASONS.index(entry.outcome.label) for entry in answered], np.int64)
    tally.add(columns, ends, list(FINISH_REASONS))
