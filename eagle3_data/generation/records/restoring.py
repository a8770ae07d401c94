"""Records against the journal: which answers only the records hold, and how they get back into the journal.

Goes in: a run folder and its open journal. Comes out: by source, how many rows the record files hold, how many of
their answers the journal lacks, and which files cannot be read in full; or those answers, appended to the journal. A
record holds everything that an entry of the journal needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.generation.journal.entry import Entry, prompt_crc
from eagle3_data.generation.journal.index import keys_of
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.outcome import flags, of_reason
from eagle3_data.run_folder import RunFolder

_ROWS: Final = 10_000
_KEY: Final = ("sample_id", "sample", "completion_tokens")
_ANSWER: Final = ("input_ids", "output_ids", "finish_reason", "stop_token_id", "max_new_tokens", "rounds")


@dataclass(slots=True)
class Held:
    """What the record files of a source hold.

    Attributes:
        rows: rows that could be read.
        lost: of those, answers that the journal does not hold, or holds shorter.
        unread: rows of damaged parts, as far as a file still states them.
        damaged: files that cannot be read in full.
    """

    rows: int = 0
    lost: int = 0
    unread: int = 0
    damaged: list[Path] = field(default_factory=list)


def compare_with_journal(run: RunFolder, journal: Journal) -> dict[str, Held]:
    """Compare every record with the journal; only three columns are read, a bounded number of rows at a time."""
    return {name: held for name, held, _ in _pass(run, journal, _KEY)}


def restore_entries(run: RunFolder, journal: Journal) -> dict[str, Held]:
    """Append to the journal every answer that only the records hold; what can be read of damaged files too.

    Raises:
        DiskFull, MachineError: as the journal.
    """
    found: dict[str, Held] = {}
    for name, held, lost in _pass(run, journal, (*_KEY, *_ANSWER)):
        found[name] = held
        for row in lost:
            journal.append(row)
            if journal.backlog_full:
                journal.flush()
    journal.flush()
    return found


def _pass(run: RunFolder, journal: Journal, columns: tuple[str, ...]) -> Iterator[tuple[str, Held, Iterator[Entry]]]:
    held: dict[str, Held] = {}
    for path in sorted(run.path.glob("records/[!.]*/*.parquet")):
        source = held.setdefault(path.parent.name, Held())
        yield path.parent.name, source, iter(())
        for table in _tables(path, columns, source):
            only_here = ~_in_journal(table, journal)
            source.rows += table.num_rows
            source.lost += int(only_here.sum())
            if "output_ids" in columns:
                yield path.parent.name, source, _entries(table.filter(pa.array(only_here)))


def _tables(path: Path, columns: tuple[str, ...], held: Held) -> Iterator[pa.Table]:
    """Yield the rows of every row group that is whole; damage costs no more than its own group."""
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError):
        held.damaged.append(path)
        return
    with file:
        for group in range(file.num_row_groups):
            try:
                for batch in file.iter_batches(_ROWS, row_groups=[group], columns=list(columns)):
                    yield pa.Table.from_batches([batch])
            except (pa.ArrowException, OSError):
                held.unread += file.metadata.row_group(group).num_rows
                if path not in held.damaged:
                    held.damaged.append(path)


def _in_journal(table: pa.Table, journal: Journal) -> npt.NDArray[np.bool_]:
    samples = table["sample"].to_numpy()
    ids = np.asarray(table["sample_id"].to_pylist(), object)
    known = np.zeros(table.num_rows, bool)
    for sample in np.unique(samples).tolist():
        rows = np.flatnonzero(samples == sample)
        positions = journal.look_up(keys_of(ids[rows].tolist(), sample))
        answered = flags(journal.index.column("outcome", positions), "answered")
        tokens = journal.index.column("tokens", positions)
        known[rows] = answered & (tokens >= table["completion_tokens"].to_numpy()[rows])
    return known


def _entries(table: pa.Table) -> Iterator[Entry]:
    for batch in table.to_batches():
        for row in batch.to_pylist():
            yield _entry(row)


def _entry(row: dict[str, Any]) -> Entry:
    prompt = np.asarray(row["input_ids"], np.int32)
    return Entry(
        sample_id=row["sample_id"],
        outcome=of_reason(row["finish_reason"]),
        prompt_tokens=len(prompt),
        prompt_crc=prompt_crc(prompt),
        output_ids=np.asarray(row["output_ids"], np.int32),
        budget=row["max_new_tokens"],
        rounds=row["rounds"],
        stop_token_id=row["stop_token_id"],
        sample=row["sample"],
    )
