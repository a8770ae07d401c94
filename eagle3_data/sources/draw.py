"""Drawing prompts from a source: all that looks across rows (dedupe, sampling, accounting).

Goes in: a source's name, config, files and options, `rows` and `seed`. Comes out: a memory-mapped `Dataset` of prompts
in draw order and a report in which every upstream row is accounted for.

Two streaming passes over the files: the first notes a hash, a draw key and a row number for each prompt (`index.py`);
the second reads only the rows that were drawn, and writes them. The result is kept in the `datasets` cache under a key
of the code, the files and every option, so the same draw is made once.
"""

import hashlib
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import datasets
import numpy as np
import pyarrow as pa

from eagle3_data.errors import SourceError
from eagle3_data.run_folder import machine_errors, write_json
from eagle3_data.schema import PROMPT_FEATURES
from eagle3_data.sources.base import Outcome
from eagle3_data.sources.dialogue import STRUCTURAL, Reject
from eagle3_data.sources.index import HASH, FileIndex, Hashes, Index, Positions, draw_key, hashes_of_ids, sorted_hashes
from eagle3_data.sources.registry import builder
from eagle3_data.sources.report import ORIGINS_SHOWN, SourceReport, Tally
from eagle3_data.sources.upstream import (
    HubFiles,
    SourceFile,
    downloaded,
    file_revision,
    hub_files,
    hub_urls,
    local_files,
    sample_files,
)

_WRITE_ROWS: Final = 1024
_WRITE_CHARACTERS: Final = 1 << 24
_GATHER_ROWS: Final = 256
_GROUPS_EACH: Final = 4
_SCHEMA: Final = pa.schema(list(PROMPT_FEATURES.arrow_schema))


@dataclass(frozen=True)
class Drawn:
    """The prompts of a draw, its report, and the folder that holds them."""

    prompts: datasets.Dataset
    report: SourceReport
    path: Path

    def pool(self) -> Hashes:
        """Return the content hashes of all distinct prompts that could have been drawn, sorted by their heads."""
        return sorted_hashes(np.load(self.path / "pool.npy", mmap_mode="r"))


def load_source(name: str, config: str | None = None, data_files: Any = None, **arguments: Any) -> datasets.Dataset:
    """Return the prompts of a source in draw order; arguments and errors as `draw`.

    Returns:
        A memory-mapped `datasets.Dataset` with the columns of `schema.PROMPT_FEATURES`.
    """
    return draw(name, config, data_files, **arguments).prompts


def draw(
    name: str,
    config: str | None = None,
    data_files: Any = None,
    rows: int | None = None,
    seed: int = 0,
    *,
    entry: str | None = None,
    turns: str = "first",
    revision: str | None = None,
    filter: dict[str, Any] | None = None,
    split: str | None = None,
    num_proc: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    dedupe_against: Any = None,
    **options: Any,
) -> Drawn:
    """Draw prompts from a source.

    Args:
        name: a name in SOURCES.
        config: one of the source's configs; its default if None.
        data_files: a path, glob, folder or hf:// URL, a list of these, {split: these}, or `samples` for the rows that
            are shipped with the package; the source's data set on the Hub if None.
        rows: how many prompts, a seeded uniform sample of the distinct prompts of the whole split; all if None. A
            larger number contains the smaller.
        seed: of the sample.
        entry: value of the column `source` and prefix of sample_id; the source's name if None.
        turns: `first`, `prefix` or `last`.
        revision: of the Hub data set; the newest if None. The commit is recorded either way.
        filter: {origin, license, not_origin, not_license: a text, a list of texts, wildcards allowed}; an origin such
            as `math:camel-ai` is matched whole or by one of its parts.
        split: of the upstream data set.
        num_proc: processes, each with its own files; the result does not depend on it.
        cache_dir: instead of the `datasets` cache.
        dedupe_against: earlier draws, data sets with a `sample_id` column, or lists of sample_ids (one of these, or a
            list of them): their contents count as duplicates here. An earlier `Drawn` counts with all prompts that it
            could have drawn, so that this draw does not change when that one grows.
        **options: of the source, see SOURCES[name].options; `repo` names another Hub data set of the same schema.

    Raises:
        SourceError: unknown name, config or option; a file that is not what the source expects.
        HubError: the Hub refused.
        MachineError: the cache cannot be written.
    """
    source = builder(name)
    samples = isinstance(data_files, str) and data_files == "samples"
    if samples and config is None:
        config = source.INFO.default_config
    given = {
        "entry": entry,
        "turns": turns,
        "revision": revision,
        "filter": filter,
        "split": split,
        **options,
    }
    made = source.make_config(config, **{key: value for key, value in given.items() if value is not None})
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 0):
        raise SourceError(f"{name}: rows must be a number of prompts, not {rows!r}")
    files, upstream = _files(source, made, data_files, cache_dir)
    against = _known_hashes(dedupe_against)

    key = _cache_key(source, made, files, rows, seed, against)
    root = Path(cache_dir or datasets.config.HF_DATASETS_CACHE) / "eagle3_data" / name / key
    if not (root / "report.json").exists():
        report = SourceReport(
            source=made.entry or name,
            builder=name,
            config=made.name,
            turns=made.turns,
            upstream=upstream.repo if upstream else "",
            revision=upstream.revision if upstream else "",
            seed=seed,
            requested=rows,
            filter=dict(made.filter or {}),
            options=options,
        )
        with machine_errors(root):
            root.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root.parent, prefix=".draw-") as folder:
                _draw(source, made, files, rows, seed, num_proc or 1, against, report, Path(folder))
                try:
                    Path(folder).rename(root)
                except OSError:
                    if not (root / "report.json").exists():  # else another process made the same draw first
                        raise
                Path(folder).mkdir(exist_ok=True)
    return _opened(root)


def _files(source: Any, config: Any, data_files: Any, cache_dir: Any) -> tuple[list[SourceFile], HubFiles | None]:
    name = source.INFO.name
    if data_files is None:
        found = hub_files(source.INFO, config)
        return downloaded(found, os.fspath(cache_dir) if cache_dir else None), found
    if isinstance(data_files, str) and data_files == "samples":
        data_files = sample_files(name, config.name)
    urls = local_files(name, data_files, config.split)
    pinned = hub_urls(urls)
    if pinned is not None:
        return downloaded(pinned, os.fspath(cache_dir) if cache_dir else None), pinned
    named = SourceFile.named(urls, urls)
    return [SourceFile(file.path, file.name, file.revision or file_revision(file.path)) for file in named], None


def _known_hashes(against: Any) -> Hashes:
    if against is None:
        return np.empty(0, HASH)
    if isinstance(against, Drawn):
        return against.pool()
    if isinstance(against, datasets.Dataset):
        ids = against.select_columns(["sample_id"]).with_format("arrow")
        parts = [hashes_of_ids(batch["sample_id"].to_pylist()) for batch in ids.iter(10_000)]
        return sorted_hashes(np.concatenate([np.empty(0, HASH), *parts]))
    if isinstance(against, Iterable) and not isinstance(against, str | bytes | dict):
        members = list(against)
        if all(isinstance(member, str) for member in members):
            try:
                return sorted_hashes(hashes_of_ids(members))
            except ValueError as error:
                raise SourceError(f"dedupe_against: a sample_id ends on 24 hex digits ({error})") from error
        return sorted_hashes(np.concatenate([np.empty(0, HASH), *(_known_hashes(member) for member in members)]))
    raise SourceError(f"dedupe_against: {type(against).__name__} is no draw, data set or list of sample_ids")


def _cache_key(
    source: Any, config: Any, files: Sequence[SourceFile], rows: int | None, seed: int, against: Any
) -> str:
    from eagle3_data.sources.base import code_hash

    inherited = {item.name for item in fields(datasets.BuilderConfig)} - {"name"} | {"revision"}  # the files carry it
    chosen = {key: value for key, value in asdict(config).items() if key not in inherited}
    content = {
        "code": code_hash(),
        "module": Path(importlib_file(source)).read_text("utf-8"),
        "config": chosen,
        "files": [(file.name, file.revision or file.path) for file in files],
        "rows": rows,
        "seed": seed,
        "against": hashlib.sha256(np.ascontiguousarray(against).tobytes()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def importlib_file(source: Any) -> str:
    """Return the file that defines a source."""
    import sys

    return str(sys.modules[source.__module__].__file__)


def _opened(root: Path) -> Drawn:
    report = SourceReport(**json.loads((root / "report.json").read_text("utf-8")))
    prompts = datasets.Dataset.from_file(
        str(root / "prompts.arrow"), info=datasets.DatasetInfo(features=PROMPT_FEATURES), split=datasets.Split.TRAIN
    )
    return Drawn(prompts, report, root)


def _draw(
    source: Any,
    config: Any,
    files: Sequence[SourceFile],
    rows: int | None,
    seed: int,
    num_proc: int,
    against: Hashes,
    report: SourceReport,
    folder: Path,
) -> None:
    groups = _groups(len(files), num_proc)
    parts: list[FileIndex] = []
    tally = Tally()
    jobs = [(source, config, [files[i] for i in group], seed) for group in groups]
    for part, counts in _run(_index_files, jobs, num_proc):
        parts.extend(part)
        tally.add(counts)
    report.files = [
        {"path": file.name, "revision": file.revision, "rows": part.rows}
        for file, part in zip(files, parts, strict=True)
    ]
    report.read = sum(part.rows for part in parts)
    report.rejected = dict(sorted(tally.rejected.items()))
    report.reject_examples = dict(sorted(tally.examples.items()))
    _refuse_foreign(source, config, report)

    index = Index.of(parts)
    kept = index.first_of_each()
    _, report.duplicates = index.row_flags(kept)
    if len(against):
        kept &= ~index.known(against)
        _, both = index.row_flags(kept)
        report.duplicates, report.duplicates_elsewhere = both, both - report.duplicates
    report.kept = report.read - report.duplicates - sum(report.rejected.values())
    report.prompts = int(kept.sum())
    index.save_pool(kept, folder / "pool.npy")

    drawn = index.draw(kept, rows)
    report.drawn = len(drawn)
    emitted = np.sort(drawn)
    order = np.searchsorted(emitted, drawn).astype(np.uint32)
    del drawn, kept
    writes = []
    for number, group in enumerate(groups):
        wanted = []
        for i in group:
            low, high = np.searchsorted(emitted, [index.starts[i], index.starts[i + 1]])
            span = emitted[low:high]
            if len(span):
                rows_wanted, places = index.local(i, span)
                wanted.append((files[i], rows_wanted, places, index.hashes[span]))
        if wanted:
            writes.append((source, config, wanted, folder / f"part-{number:05d}.arrow"))
    del index, emitted
    for counts in _run(_write_part, writes, num_proc):
        tally.add(counts)
    report.licenses = dict(tally.licenses.most_common())
    report.origins = dict(sorted(tally.origins.items(), key=lambda item: (-item[1], item[0]))[:ORIGINS_SHOWN])
    _reorder([job[3] for job in writes], order, folder / "prompts.arrow")
    write_json(folder / "report.json", report.to_dict())


def _groups(files: int, num_proc: int) -> list[list[int]]:
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
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _index_files(source: Any, config: Any, files: Sequence[SourceFile], seed: int) -> tuple[list[FileIndex], Tally]:
    entry = config.entry or source.INFO.name
    parts, tally = [], Tally()
    for file in files:
        part = FileIndex()
        for outcome in source.outcomes(file.path, file.name, config):
            part.rows += 1
            if outcome.reject is not None:
                tally.reject(file.name, outcome.row, outcome.reject)
            for prompt in outcome.prompts:
                key = draw_key(seed, f"{entry}-{prompt.digest[:24]}")
                part.add(outcome.row, prompt.digest, key)
        parts.append(part)
    return parts, tally


def _refuse_foreign(source: Any, config: Any, report: SourceReport) -> None:
    """Refuse files in which not one row looks like the source's (single .traj files are not probed)."""
    if not report.read:
        names = ", ".join(file["path"] for file in report.files[:3]) or "no files"
        raise SourceError(f"{source.INFO.name}: no rows in {names}")
    if sum(count for reason, count in report.rejected.items() if reason in STRUCTURAL) == report.read:
        reason, examples = next(iter(report.reject_examples.items()))
        held = [Outcome(examples[0]["row"], [], Reject(reason, examples[0]["detail"]))]
        raise source.not_this_source(examples[0]["file"], held, config)


def _write_part(
    source: Any, config: Any, wanted: Sequence[tuple[SourceFile, Positions, Positions, Hashes]], path: Path
) -> Tally:
    tally = Tally()

    def chosen() -> Iterator[dict[str, Any]]:
        for file, rows, places, hashes in wanted:
            names = hashes.view(np.uint8).data
            outcomes = source.outcomes(file.path, file.name, config, _distinct(rows))
            outcome: Outcome | None = None
            made: list[dict[str, Any]] = []
            for number in range(len(rows)):
                row, place = int(rows[number]), int(places[number])
                if outcome is None or outcome.row != row:
                    outcome = next(outcomes, None)
                    made = list(source.rows_of(outcome, file, config)) if outcome is not None else []
                if outcome is None or outcome.row != row or place >= len(made):
                    raise SourceError(f"{source.INFO.name}: {file.name}: changed while it was read; run again")
                if bytes.fromhex(made[place]["sample_id"][-24:]) != names[12 * number : 12 * number + 12]:
                    raise SourceError(f"{source.INFO.name}: {file.name}: changed while it was read; run again")
                tally.origins[made[place]["origin"]] += 1
                tally.licenses[made[place]["license"]] += 1
                yield made[place]

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as writer:
        batch: list[dict[str, Any]] = []
        size = 0
        for row in chosen():
            batch.append(row)
            size += sum(len(message["content"]) for message in row["messages"])
            if len(batch) == _WRITE_ROWS or size > _WRITE_CHARACTERS:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=_SCHEMA))
                batch, size = [], 0
        if batch:
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=_SCHEMA))
    return tally


def _distinct(rows: Positions) -> Positions:
    """Return ascending rows without their repetitions, the same array where there are none."""
    repeated = rows[1:] == rows[:-1]
    return rows[np.concatenate([[True], ~repeated])] if repeated.any() else rows


def _reorder(parts: Sequence[Path], order: Positions, path: Path) -> None:
    """Write the rows of the parts in draw order, and remove the parts."""
    # Memory maps, so the batches cost address space only; rows are gathered one by one out of them.
    batches = [batch for part in parts for batch in pa.ipc.open_stream(pa.memory_map(str(part)))]
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as writer:
        for start in range(0, len(order), _GATHER_ROWS):
            rows = order[start : start + _GATHER_ROWS]
            places = np.searchsorted(starts, rows, "right") - 1
            pieces = [
                batches[p].slice(r, 1) for p, r in zip(places.tolist(), (rows - starts[places]).tolist(), strict=True)
            ]
            writer.write_table(pa.Table.from_batches(pieces, _SCHEMA).combine_chunks())
    for part in parts:
        part.unlink()
