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
import pyarrow as pa
import pyarrow.compute as pc

from eagle3_data.generation.asked_target import AskedTarget
from eagle3_data.generation.dialogues import SourceSettings
from eagle3_data.generation.journal.entry import Entry
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.generation.prompts.queue import dialogues
from eagle3_data.generation.prompts.rendered import RenderedPrompts
from eagle3_data.generation.prompts.standing import standing, turn_ids
from eagle3_data.generation.prompts.table import PromptTable
from eagle3_data.generation.records.columns import record_columns
from eagle3_data.generation.records.holdout import Holdout
from eagle3_data.generation.records.parquet import RecordFiles
from eagle3_data.generation.records.replay import Replayed, replay
from eagle3_data.outcome import flags, of_code
from eagle3_data.run_folder import RunFolder, read_json, write_json, write_parquet
from eagle3_data.schema import FAILURE_FEATURES, RECORD_FEATURES, SKIPPED_FEATURES, arrow_schema

logger = logging.getLogger(__name__)

_CHUNK: Final = 1000
_DIALOGUES_AT_ONCE: Final = 100
_SCAN: Final = 50_000
_FORMAT: Final = 4
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

    `looping` are records cut while they repeated themselves, with `looping_tokens` in their answers.
    `forged` are records in whose messages or tools a text spells a control token of the target. Where prompts are
    scripts: `dialogues` had with the target, those `complete`, those that `ended` early by reason, and the turns
    scripted in all of them; `missing`, `failed` and `skipped` then count dialogues, `records` answered turns.
    """

    records: int = 0
    validation: int = 0
    failed: int = 0
    skipped: int = 0
    missing: int = 0
    truncated: int = 0
    looping: int = 0
    looping_tokens: int = 0
    forged: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dialogues: int = 0
    complete: int = 0
    turns_scripted: int = 0
    ended: dict[str, int] = field(default_factory=dict)


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
    sources: Mapping[str, SourceSettings] | None = None,
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
        sources: how single sources were asked where that differs, as for `Generator`.
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
            table, settings = PromptTable(given), (sources or {}).get(name, SourceSettings())
            asked = settings.target or target
            rendered = RenderedPrompts(run.journal_path / "prompts", name, table, asked)
            with contextlib.closing(rendered):
                rendered.advance(lambda rows: None, threading.Event())
                held = (holdout or {}).get(name, 0)
                scan = _scan(table, rendered, opened, settings.samples, [_FORMAT, held, dict(metadata or {})])
                files = RecordFiles(run.records_path(name), dict(metadata or {}))
                failures += [(name, entry) for entry in scan.failures]
                skips += [(name, entry) for entry in scan.skips]
                present = {"fingerprint": scan.fingerprint, "files": files.present()}
                known = written.get(name, {})
                if {key: known.get(key) for key in present} == present:
                    counts[name] = SourceCounts(**known["counts"])
                    on_rows(name, table.rows)
                    continue
                job = _Job(name, table, rendered, opened, asked, settings)
                _write_source(job, Holdout(held), files, scan.counts, on_rows)
                counts[name] = scan.counts
                written[name] = {**present, "files": files.present(), "counts": asdict(scan.counts)}
                write_json(written_path, written)
        _write_outcomes(run, failures, skips)
    finally:
        if journal is None:
            opened.close()
    return counts


def _scan(table: PromptTable, rendered: RenderedPrompts, journal: Journal, samples: int, settings: list[Any]) -> _Scan:
    scan = _Scan()
    content = hashlib.blake2b(json.dumps([*settings, samples], sort_keys=True).encode())
    counts, start, scripts = scan.counts, 0, False
    for batch in table.batches(["sample_id", "later_turns"], size=_SCAN):
        names, starts = turn_ids(batch)
        prompt_tokens, forged = rendered.counts(start, batch.num_rows)
        scripts = scripts or len(names) > batch.num_rows
        for sample in range(samples):
            stands = standing(names, starts, journal, sample)
            columns = {name: journal.index.column(name, stands.positions) for name in _FINGERPRINTED}
            for part in (starts, stands.keys, *columns.values()):
                content.update(np.ascontiguousarray(part).tobytes())
            done, some = stands.counted(), stands.answered > 0
            codes = columns["outcome"][done]
            counts.records += len(done)
            counts.truncated += int(flags(codes, "cut").sum())
            counts.completion_tokens += int(columns["tokens"][done].sum())
            counts.prompt_tokens += int(prompt_tokens[some].sum())
            counts.forged += int((forged[some] > 0).sum())
            counts.missing += int(stands.missing.sum())
            counts.dialogues += int(some.sum())
            counts.complete += int(stands.whole.sum())
            counts.turns_scripted += int(stands.turns.sum())
            ended = stands.next_code[~stands.whole & ~stands.stale & flags(stands.next_code, "ended")]
            for code in ended.tolist():
                reason = of_code(code).label
                counts.ended[reason] = counts.ended.get(reason, 0) + 1
            left_out = ~stands.whole & (flags(stands.next_code, "failed") | flags(stands.next_code, "skipped"))
            for entry in journal.read_many(stands.positions[(starts[:-1] + stands.answered)[left_out]]):
                assert entry is not None
                (scan.failures if entry.outcome.failed else scan.skips).append(entry)
        start += batch.num_rows
    if not scripts:
        counts.dialogues = counts.complete = counts.turns_scripted = 0
    counts.failed, counts.skipped = len(scan.failures), len(scan.skips)
    counts.ended = dict(sorted(counts.ended.items()))
    scan.fingerprint = content.hexdigest()[:32]
    return scan


@dataclass(frozen=True, slots=True)
class _Job:
    """What the records of one source are written from."""

    name: str
    table: PromptTable
    rendered: RenderedPrompts
    journal: Journal
    target: AskedTarget
    settings: SourceSettings


def _write_source(
    job: _Job, holdout: Holdout, files: RecordFiles, counts: SourceCounts, on_rows: Callable[[str, int], None]
) -> None:
    start, size = 0, _CHUNK
    if counts.dialogues or job.settings.samples > 1:
        size = _DIALOGUES_AT_ONCE  # each holds the answers to all its turns
    with files:
        for batch in job.table.batches((*_ORIGIN, "dialogue", "turn", "later_turns"), size=size):
            held = holdout.choose(dialogues(batch, start))
            turns = list(replay(job.name, batch, start, job.rendered, job.journal, job.target, job.settings))
            counts.prompt_tokens += sum(len(one.answered.input_ids) for one in turns if one.source_turn >= 0)
            for split, chosen in (("train", ~held), ("validation", held)):
                some = [one for one in turns if chosen[one.row]]
                if some:
                    table = _table(batch, some, job.target)
                    files.add(split, table)
                    loops = table.filter(pc.greater(table["loop_tokens"], 0))
                    counts.looping += loops.num_rows
                    counts.looping_tokens += pc.sum(loops["completion_tokens"]).as_py() or 0
                if split == "validation":
                    counts.validation += len(some)
            start += batch.num_rows
            on_rows(job.name, start)


def _table(batch: pa.Table, turns: list[Replayed], target: AskedTarget) -> pa.Table:
    schema = arrow_schema(RECORD_FEATURES)
    taken = batch.take(pa.array([one.row for one in turns]))
    made = record_columns(target, [one.answered for one in turns])
    made["sample_id"] = pa.array([one.answered.entry.sample_id for one in turns])
    if any(one.source_turn >= 0 for one in turns):
        stored = taken.column("source_turn").to_pylist()
        made["source_turn"] = pa.array(
            [at if one.source_turn < 0 else one.source_turn for one, at in zip(turns, stored, strict=True)], pa.int32()
        )
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
