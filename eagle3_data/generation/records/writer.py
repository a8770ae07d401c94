"""The record files of a run, from its prompts, their rendered ids and the journal: in draw order, in flat memory.

Goes in: the prompts of every source, a target and a journal. Comes out: `records/<source>/train-*.parquet` and
`validation-*.parquet`, `failures.parquet`, `skipped.parquet`, and counts for the manifest. The files depend on the
answers alone: the same journal content gives the same bytes, however often a run was killed on the way. A source
whose files already hold what they should is left as it is.
"""

import contextlib
import hashlib
import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3_data.errors import DataError
from eagle3_data.generation.asked_target import AskedTarget
from eagle3_data.generation.journal.entry import Entry
from eagle3_data.generation.journal.index import keys_of
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.generation.prompts.queue import dialogues
from eagle3_data.generation.prompts.rendered import Chunk, RenderedPrompts
from eagle3_data.generation.prompts.table import PromptTable
from eagle3_data.generation.records.columns import Answered, record_columns
from eagle3_data.generation.records.holdout import Holdout
from eagle3_data.generation.records.parquet import RecordFiles
from eagle3_data.outcome import flags
from eagle3_data.run_folder import RunFolder, read_json, write_json, write_parquet
from eagle3_data.schema import FAILURE_FEATURES, RECORD_FEATURES, SKIPPED_FEATURES, arrow_schema

logger = logging.getLogger(__name__)

_CHUNK: Final = 1000
_SCAN: Final = 50_000
_FORMAT: Final = 2
_FINGERPRINTED: Final = ("outcome", "crc", "prompt_crc", "tokens", "rounds")
_ORIGIN: Final = (
    "sample_id",
    "source",
    "config",
    "source_revision",
    "source_file",
    "source_row",
    "source_turn",
    "origin",
    "license",
)


@dataclass(slots=True)
class SourceCounts:
    """What became of a source's prompts; tokens are those of its records. `missing` have no outcome yet.

    `forged` are records in whose messages or tools a text spells a control token of the target.
    """

    records: int = 0
    validation: int = 0
    failed: int = 0
    skipped: int = 0
    missing: int = 0
    truncated: int = 0
    forged: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True)
class _Scan:
    """The first, light pass over a source: how its rows stand, without their content."""

    counts: SourceCounts = field(default_factory=SourceCounts)
    failures: list[Entry] = field(default_factory=list)
    skips: list[Entry] = field(default_factory=list)
    fingerprint: str = ""


def write_records(
    prompts: Mapping[str, Path | Any],
    run: RunFolder,
    target: AskedTarget,
    *,
    holdout: Mapping[str, int] | None = None,
    metadata: Mapping[str, str] | None = None,
    journal: Journal | None = None,
    on_rows: Callable[[str, int], None] = lambda source, rows: None,
) -> dict[str, SourceCounts]:
    """Write the records, failures and skipped rows of a run.

    Args:
        prompts: for each source its prompts in draw order, as a Parquet file or a Dataset.
        run: where the files go.
        target: counts thinking and tool calls; renders what no earlier step rendered.
        holdout: how many prompts of a source go to the split `validation`.
        metadata: key-value metadata of every record file.
        journal: an open journal of this run (a Generator's); None to read the run's own, all shards merged.
        on_rows: called with the source and the rows written so far.

    Returns:
        Counts by source.

    Raises:
        DataError: an answer belongs to another prompt, or bytes on disk are damaged.
        DiskFull, MachineError: a file cannot be written; those of before stay.
    """
    opened = Journal(run.journal_path, readonly=True) if journal is None else journal
    written_path = run.journal_path / "written.json"
    written = read_json(written_path) if written_path.exists() else {}
    counts: dict[str, SourceCounts] = {}
    failures: list[tuple[str, Entry]] = []
    skips: list[tuple[str, Entry]] = []
    try:
        for name, given in prompts.items():
            table = PromptTable(given)
            rendered = RenderedPrompts(run.journal_path / "prompts", name, table, target)
            with contextlib.closing(rendered):
                rendered.advance(lambda rows: None, threading.Event())
                held = (holdout or {}).get(name, 0)
                scan = _scan(table, rendered, opened, [_FORMAT, held, dict(metadata or {})])
                files = RecordFiles(run.records_path(name), dict(metadata or {}))
                failures += [(name, entry) for entry in scan.failures]
                skips += [(name, entry) for entry in scan.skips]
                present = {"fingerprint": scan.fingerprint, "files": files.present()}
                known = written.get(name, {})
                if {key: known.get(key) for key in present} == present:
                    counts[name] = SourceCounts(**known["counts"])
                    on_rows(name, table.rows)
                    continue
                _write_source(name, table, rendered, opened, target, Holdout(held), files, scan.counts, on_rows)
                counts[name] = scan.counts
                written[name] = {**present, "files": files.present(), "counts": asdict(scan.counts)}
                write_json(written_path, written)
        _write_outcomes(run, failures, skips)
    finally:
        if journal is None:
            opened.close()
    return counts


def _scan(table: PromptTable, rendered: RenderedPrompts, journal: Journal, settings: list[Any]) -> _Scan:
    scan = _Scan()
    content = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode())
    start = 0
    for batch in table.batches(["sample_id"], size=_SCAN):
        keys = keys_of(batch.column("sample_id").to_pylist())
        positions = journal.look_up(keys)
        columns = {
            name: journal.index.column(name, positions)
            for name in ("outcome", "crc", "prompt_crc", "tokens", "rounds")
        }
        for part in (keys, *columns.values()):
            content.update(np.ascontiguousarray(part).tobytes())
        codes = columns["outcome"]
        done = flags(codes, "answered")
        counts = scan.counts
        counts.records += int(done.sum())
        counts.truncated += int(flags(codes, "cut").sum())
        counts.missing += int(flags(codes, "missing").sum())
        counts.completion_tokens += int(columns["tokens"][done].sum())
        tokens, forged = rendered.counts(start, batch.num_rows)
        counts.prompt_tokens += int(tokens[done].sum())
        counts.forged += int((forged[done] > 0).sum())
        others = np.flatnonzero(flags(codes, "failed") | flags(codes, "skipped"))
        for entry in journal.read_many(positions[others]):
            assert entry is not None
            (scan.failures if entry.outcome.failed else scan.skips).append(entry)
        start += batch.num_rows
    scan.counts.failed, scan.counts.skipped = len(scan.failures), len(scan.skips)
    scan.fingerprint = content.hexdigest()[:32]
    return scan


def _write_source(
    name: str,
    table: PromptTable,
    rendered: RenderedPrompts,
    journal: Journal,
    target: AskedTarget,
    holdout: Holdout,
    files: RecordFiles,
    counts: SourceCounts,
    on_rows: Callable[[str, int], None],
) -> None:
    start = 0
    with files:
        for batch in table.batches((*_ORIGIN, "dialogue", "turn"), size=_CHUNK):
            held = holdout.choose(dialogues(batch, start))
            chunk = rendered.chunk(start, batch.num_rows)
            positions = journal.look_up(keys_of(batch.column("sample_id").to_pylist()))
            done = flags(journal.index.column("outcome", positions), "answered")
            positions[~done] = -1
            entries = journal.read_many(positions)
            _check(name, batch, chunk, entries)
            for split, chosen in (("train", done & ~held), ("validation", done & held)):
                at = np.flatnonzero(chosen)
                if len(at):
                    files.add(split, _table(batch, _answered(batch, chunk, entries, at), at, target))
                if split == "validation":
                    counts.validation += len(at)
            start += batch.num_rows
            on_rows(name, start)


def _check(source: str, batch: pa.Table, chunk: Chunk, entries: list[Entry | None]) -> None:
    names = batch.column("sample_id").to_pylist()
    lengths = np.diff(chunk.offsets).tolist()
    for sample_id, tokens, crc, entry in zip(names, lengths, chunk.crcs.tolist(), entries, strict=True):
        if entry is None:
            continue
        if entry.sample_id != sample_id:
            raise DataError(f"{source}: the journal holds {entry.sample_id} where {sample_id} should be")
        if entry.prompt_tokens != tokens or entry.prompt_crc != crc:
            raise DataError(
                f"{source}: {sample_id} was answered for a prompt of {entry.prompt_tokens} ids, and is now "
                f"rendered to {tokens} (or others); the template or the prompts changed: use another run name"
            )


def _answered(batch: pa.Table, chunk: Chunk, entries: list[Entry | None], at: npt.NDArray[np.int64]) -> list[Answered]:
    names = batch.column("dialogue" if "dialogue" in batch.column_names else "sample_id").to_pylist()
    turns = batch.column("turn").to_pylist() if "turn" in batch.column_names else [0] * batch.num_rows
    rows = []
    for row in at.tolist():
        entry = entries[row]
        assert entry is not None
        ids = chunk.values[chunk.offsets[row] : chunk.offsets[row + 1]]
        rows.append(Answered(ids, entry, names[row], turns[row]))
    return rows


def _table(batch: pa.Table, rows: list[Answered], at: npt.NDArray[np.int64], target: AskedTarget) -> pa.Table:
    schema = arrow_schema(RECORD_FEATURES)
    taken = batch.take(pa.array(at))
    made = record_columns(target, rows)
    columns = {field.name: made[field.name] if field.name in made else taken.column(field.name) for field in schema}
    return pa.table(columns).cast(schema)


def _write_outcomes(run: RunFolder, failures: list[tuple[str, Entry]], skips: list[tuple[str, Entry]]) -> None:
    failed = [
        {
            "sample_id": entry.sample_id,
            "source": source,
            "reason": entry.reason,
            "http_status": entry.http_status,
            "message": entry.message,
            "attempts": entry.attempts,
        }
        for source, entry in failures
    ]
    skipped = [
        {
            "sample_id": entry.sample_id,
            "source": source,
            "reason": entry.reason,
            "prompt_tokens": entry.prompt_tokens,
            "limit_tokens": entry.budget,
        }
        for source, entry in skips
    ]
    for path, rows, features in (
        (run.failures_path, failed, FAILURE_FEATURES),
        (run.skipped_path, skipped, SKIPPED_FEATURES),
    ):
        schema = arrow_schema(features)
        write_parquet(path, _thousands(rows, schema), schema)


def _thousands(rows: list[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.Table]:
    for start in range(0, len(rows), _CHUNK):
        yield pa.Table.from_pylist(rows[start : start + _CHUNK], schema=schema)


def remove_leftovers(run: RunFolder) -> None:
    """Remove what a process killed while writing records left beside them."""
    for path in (run.path / "records").glob(".*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
