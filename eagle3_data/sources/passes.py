"""The two streaming passes of a draw, and the processes they run in.

Goes in: a source, its files, `rows` and `seed`. Comes out: a folder with `prompts.arrow` (in draw order), `pool.npy`
(the content hashes of all distinct prompts) and `report.json`. The first pass notes a hash, a draw key and a row
number for each prompt (`index.py`); the second reads only the rows that were drawn. No row is held beyond a buffer.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from eagle3_data.errors import MachineError, SourceError
from eagle3_data.run_folder import write_json
from eagle3_data.schema import PROMPT_FEATURES, clean_messages
from eagle3_data.sources.base import Outcome
from eagle3_data.sources.dialogue import STRUCTURAL, Prompt, Reject, excerpt
from eagle3_data.sources.index import FileIndex, Flags, Hashes, Index, Positions, draw_key
from eagle3_data.sources.report import ORIGINS_SHOWN, SourceReport, Tally, differences
from eagle3_data.sources.screening import Screen
from eagle3_data.sources.upstream import SourceFile

Progress = Callable[[str, int], None]
_WRITE_ROWS: Final = 1024
_WRITE_CHARACTERS: Final = 1 << 24
_GATHER_ROWS: Final = 256
_PROGRESS_ROWS: Final = 1000
_GROUPS_EACH: Final = 4
_TOP_UP: Final = 256
_SCHEMA: Final = pa.schema(list(PROMPT_FEATURES.arrow_schema))
_PART_SCHEMA: Final = _SCHEMA.append(pa.field("damage", pa.string()))  # of a script: why it ends early


@dataclass(frozen=True)
class Work:
    """What a draw is made from: the builder class, its configuration, the files and the sample that is wanted."""

    source: Any
    config: Any
    files: Sequence[SourceFile]
    rows: int | None
    seed: int
    num_proc: int
    against: Hashes  # contents that are known from elsewhere
    whole: bool  # whether the files are all of the split that INFO describes
    screens: Sequence[Screen] = ()  # what may refuse drawn prompts

    @property
    def entry(self) -> str:
        """Value of the column `source`, and prefix of sample_id."""
        return str(self.config.entry or self.source.INFO.name)


@dataclass(frozen=True)
class _Wanted:
    """The drawn prompts of one file, ascending: row, place among the row's prompts, content hash."""

    file: SourceFile
    rows: Positions
    places: Positions
    hashes: Hashes


def make_draw(work: Work, report: SourceReport, folder: Path, progress: Progress | None) -> None:
    """Run both passes and write their results into `folder`; `report` is filled in.

    Raises:
        SourceError: a file is not what the source expects, or changed between the passes.
        MachineError: a worker process died.
    """
    report_progress = progress or (lambda stage, rows: None)
    inside = progress if work.num_proc == 1 else None  # other processes report when a group of files is done
    groups = _groups(len(work.files), work.num_proc)
    index = _index(work, groups, report, inside, report_progress)
    kept = index.first_of_each()
    _, report.duplicates = index.row_flags(kept)
    if len(work.against):
        kept &= ~index.known(work.against)
        _, both = index.row_flags(kept)
        report.duplicates, report.duplicates_elsewhere = both, both - report.duplicates
    report.kept = report.read - report.duplicates - sum(report.rejected.values())
    report.prompts = int(kept.sum())
    if work.whole:
        report.differences = differences(work.source.INFO.configs[work.config.name], report)
    index.save_pool(kept, folder / "pool.npy")

    tally = Tally()
    refused = _write_drawn(work, index, kept, folder, tally, inside, report_progress)
    _account(index, kept, refused, work, report)
    report.drawn = tally.drawn
    report.licenses = dict(tally.licenses.most_common())
    report.origins = dict(sorted(tally.origins.items(), key=lambda item: (-item[1], item[0]))[:ORIGINS_SHOWN])
    report.unclosed = tally.unclosed
    report.turns_scripted, report.cut_short = tally.turns_scripted, dict(sorted(tally.cut_short.items()))
    write_json(folder / "report.json", report.to_dict())


def _index(
    work: Work,
    groups: Sequence[Sequence[int]],
    report: SourceReport,
    inside: Progress | None,
    report_progress: Progress,
) -> Index:
    parts: list[FileIndex] = []
    tally = Tally()
    jobs = [
        (work.source, work.config, [work.files[i] for i in group], work.seed, work.entry, inside) for group in groups
    ]
    for part, counts in _run(_index_files, jobs, work.num_proc):
        parts.extend(part)
        tally.add(counts)
        report_progress("read", sum(one.rows for one in parts))
    report.files = [
        {"path": file.name, "revision": file.revision, "rows": part.rows}
        for file, part in zip(work.files, parts, strict=True)
    ]
    report.read = sum(part.rows for part in parts)
    report.rejected = dict(sorted(tally.rejected.items()))
    report.reject_examples = dict(sorted(tally.examples.items()))
    _refuse_foreign(work, report)
    _refuse_nothing(work, report, tally)
    return Index.of(parts)


def _refuse_foreign(work: Work, report: SourceReport) -> None:
    """Refuse files in which not one row looks like the source's (single .traj files are not probed)."""
    name = work.source.INFO.name
    if not report.read:
        names = ", ".join(file["path"] for file in report.files[:3]) or "no files"
        raise SourceError(f"{name}: no rows in {names}")
    if sum(count for reason, count in report.rejected.items() if reason in STRUCTURAL) == report.read:
        reason, examples = next(iter(report.reject_examples.items()))
        held = [Outcome(examples[0]["row"], [], Reject(reason, examples[0]["detail"]))]
        raise work.source.not_this_source(examples[0]["file"], held, work.config)


def _refuse_nothing(work: Work, report: SourceReport, tally: Tally) -> None:
    """Refuse a source of which no row gives a prompt: it would be missed only when it is trained on."""
    if sum(report.rejected.values()) < report.read:
        return
    reasons = ", ".join(f"{reason} {rows:,}" for reason, rows in report.rejected.items())
    _, examples = next(iter(report.reject_examples.items()))
    first = examples[0]
    why = f"for example {first['file']}, row {first['row']}: {first['detail']}; correct its options"
    if tally.filtered:
        why = f"the filter leaves out {tally.labels()}; correct the filter"
    raise SourceError(f"{work.entry}: none of {report.read:,} rows gives a prompt ({reasons}): {why}")


def _groups(files: int, num_proc: int) -> list[list[int]]:
    """Cut the files into runs, several for each process, because files differ in size."""
    count = 1 if num_proc == 1 else min(files, num_proc * _GROUPS_EACH)
    return [part.tolist() for part in np.array_split(np.arange(files), count)] if files else []


def _run(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], num_proc: int) -> Iterator[Any]:
    """Yield the results of the jobs in order, in `num_proc` processes."""
    if num_proc == 1 or len(jobs) < 2:
        for job in jobs:
            yield function(*job)
        return
    with ProcessPoolExecutor(min(num_proc, len(jobs)), multiprocessing.get_context("fork")) as pool:
        futures = [pool.submit(function, *job) for job in jobs]
        try:
            for future in futures:
                yield future.result()
        except BrokenProcessPool as error:
            raise MachineError(
                "a process that read a source was killed, perhaps for memory; lower num_proc"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _index_files(
    source: Any, config: Any, files: Sequence[SourceFile], seed: int, entry: str, progress: Progress | None
) -> tuple[list[FileIndex], Tally]:
    parts: list[FileIndex] = []
    tally = Tally()
    read = 0
    for file in files:
        part = FileIndex()
        for outcome in source.outcomes(file.path, file.name, config):
            part.rows += 1
            read += 1
            if progress and read % _PROGRESS_ROWS == 0:
                progress("read", read)
            if outcome.reject is not None:
                tally.reject(file.name, outcome.row, outcome.reject)
            for prompt in outcome.prompts:
                part.add(outcome.row, prompt.digest, draw_key(seed, f"{entry}-{prompt.digest[:24]}"))
        parts.append(part)
    return parts, tally


def _wanted(index: Index, number: int, file: SourceFile, emitted: Positions) -> _Wanted:
    low, high = np.searchsorted(emitted, [index.starts[number], index.starts[number + 1]])
    span = emitted[low:high]
    rows, places = index.local(number, span)
    return _Wanted(file, rows, places, index.hashes[span])


def _chosen(source: Any, config: Any, wanted: _Wanted) -> Iterator[tuple[Prompt, dict[str, Any]]]:
    """Yield the drawn prompts of a file and their rows, having compared each with what the first pass saw."""
    file = wanted.file
    hashes = wanted.hashes.view(np.uint8).data
    repeated = wanted.rows[1:] == wanted.rows[:-1]
    rows = wanted.rows[np.concatenate([[True], ~repeated])] if repeated.any() else wanted.rows
    outcomes = source.outcomes(file.path, file.name, config, rows)
    outcome: Outcome | None = None
    made: list[tuple[Prompt, dict[str, Any]]] = []
    for number in range(len(wanted.rows)):
        row, place = int(wanted.rows[number]), int(wanted.places[number])
        if outcome is None or outcome.row != row:
            outcome = next(outcomes, None)
            made = list(zip(outcome.prompts, source.rows_of(outcome, file, config), strict=True)) if outcome else []
        same = outcome is not None and outcome.row == row and place < len(made)
        if not same or bytes.fromhex(made[place][1]["sample_id"][-24:]) != hashes[12 * number : 12 * number + 12]:
            raise SourceError(f"{source.INFO.name}: {file.name}: changed while it was read; run again")
        yield made[place]


def _write_drawn(
    work: Work,
    index: Index,
    kept: Flags,
    folder: Path,
    tally: Tally,
    inside: Progress | None,
    report_progress: Progress,
) -> list[tuple[int, Reject]]:
    """Write the drawn prompts in draw order; return those that a screen refused, whose places the next ones took."""
    order = index.draw(kept, None if work.screens else work.rows)
    count = len(order) if work.rows is None else min(work.rows, len(order))
    refused: list[tuple[int, Reject]] = []
    start = 0
    with pa.OSFile(str(folder / "prompts.arrow"), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as writer:
        while tally.drawn < count and start < len(order):
            short = count - tally.drawn
            drawn = order[start : start + (short if not start else max(short, _TOP_UP))]
            emitted = np.sort(drawn)
            jobs: list[tuple[Any, ...]] = []
            for number, group in enumerate(_groups(len(work.files), work.num_proc)):
                wanted = [_wanted(index, i, work.files[i], emitted) for i in group]
                wanted = [one for one in wanted if len(one.rows)]
                if wanted:
                    jobs.append((work.source, work.config, wanted, folder / f"part-{number:05d}.arrow", inside))
            written = 0
            for rows in _run(_write_part, jobs, work.num_proc):
                written += rows
                report_progress("write", tally.drawn + written)
            places = np.searchsorted(emitted, drawn).astype(np.uint32)
            refused += _gather([job[3] for job in jobs], places, drawn, count, writer, work, tally)
            start += len(drawn)
    return refused


def _account(
    index: Index, kept: Flags, refused: Sequence[tuple[int, Reject]], work: Work, report: SourceReport
) -> None:
    """Move rows of which every prompt was refused from the kept to the rejected."""
    by_row: dict[tuple[int, int], list[Reject]] = {}
    for position, reject in refused:
        file = int(np.searchsorted(index.starts, position, "right")) - 1
        by_row.setdefault((file, int(index.rows[position])), []).append(reject)
        report.screened[reject.detail] = report.screened.get(reject.detail, 0) + 1
    report.prompts -= len(refused)
    tally = Tally()
    for (file, row), rejects in by_row.items():
        low, high = index.starts[file], index.starts[file + 1]
        first, end = low + np.searchsorted(index.rows[low:high], [row, row + 1])
        if int(kept[first:end].sum()) == len(rejects):
            tally.reject(work.files[file].name, row, rejects[0])
    report.kept -= sum(tally.rejected.values())
    report.rejected = dict(sorted({**report.rejected, **tally.rejected}.items()))
    report.reject_examples = dict(sorted({**report.reject_examples, **tally.examples}.items()))
    report.screened = dict(sorted(report.screened.items(), key=lambda item: (-item[1], item[0]))[:ORIGINS_SHOWN])
    if refused and not report.prompts:
        reasons = "; ".join(f"{reason} ({count:,})" for reason, count in report.screened.items())
        raise SourceError(f"{work.entry}: every prompt is refused: {excerpt(reasons, 500)}")


def _write_part(source: Any, config: Any, wanted: Sequence[_Wanted], path: Path, progress: Progress | None) -> int:
    written = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, _PART_SCHEMA) as writer:
        batch: list[dict[str, Any]] = []
        size = 0
        for prompt, row in (drawn for one in wanted for drawn in _chosen(source, config, one)):
            batch.append({**row, "damage": prompt.damage})
            for message in row["messages"]:
                size += len(message["content"] or "") + len(message["reasoning_content"] or "")
            if len(batch) == _WRITE_ROWS or size > _WRITE_CHARACTERS:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=_PART_SCHEMA))
                written += len(batch)
                batch, size = [], 0
                if progress:
                    progress("write", written)
        if batch:
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=_PART_SCHEMA))
    return written + len(batch)


def _gather(
    parts: Sequence[Path], order: Positions, drawn: Positions, count: int, writer: Any, work: Work, tally: Tally
) -> list[tuple[int, Reject]]:
    """Write the rows of the parts in draw order until there are `count`, and remove the parts."""
    # Memory maps, so the batches cost address space only; rows are gathered one by one out of them.
    batches = [batch for part in parts for batch in pa.ipc.open_stream(pa.memory_map(str(part)))]
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    refused: list[tuple[int, Reject]] = []
    for start in range(0, len(order), _GATHER_ROWS):
        rows = order[start : start + _GATHER_ROWS]
        places = np.searchsorted(starts, rows, "right") - 1
        inside = (rows - starts[places]).tolist()
        pieces = [batches[place].slice(row, 1) for place, row in zip(places.tolist(), inside, strict=True)]
        table = pa.Table.from_batches(pieces, _PART_SCHEMA).combine_chunks()
        if work.screens:
            chosen: list[int] = []
            for place, row in enumerate(table.drop_columns("damage").to_pylist()):
                if tally.drawn + len(chosen) == count:
                    break
                row["messages"] = clean_messages(row["messages"])
                reject = next((found for screen in work.screens if (found := screen(row))), None)
                if reject is None:
                    chosen.append(place)
                else:
                    refused.append((int(drawn[start + place]), reject))
            table = table.take(pa.array(chosen, pa.int64()))
        tally.draw(table, scripts=work.config.turns == "rollout")
        writer.write_table(table.drop_columns("damage"))
        if tally.drawn == count:
            break
    for part in parts:
        part.unlink()
    return refused
