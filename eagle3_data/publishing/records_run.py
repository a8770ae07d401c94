"""Run folders made for publishing: of a data set of records, and of a run without some of its sources.

Goes in: records from `eagle3_data.records` (RECORD_FEATURES), or a run folder. Comes out: a run folder with record
files, lengths and a manifest, which says what is known.
"""

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc

from eagle3_data.errors import DataError, UsageError
from eagle3_data.run_folder import ROWS_PER_FILE, ROWS_PER_GROUP, RunFolder, write_json, write_parquet
from eagle3_data.schema import RECORD_FEATURES, arrow_schema

if TYPE_CHECKING:
    from eagle3_data.target import Target


def run_of_records(records: datasets.Dataset, folder: Path, *, target: "Target | None" = None) -> RunFolder:
    """Write records as a finished run.

    Args:
        records: every column of a record, in order; rows of all sources mixed as they may be.
        folder: where the run folder is made.
        target: its identity goes into the manifest.

    Raises:
        DataError: a column is missing or strange, a row carries an error, or there are no rows.
    """
    missing = [name for name in RECORD_FEATURES if name not in records.column_names]
    if missing:
        raise DataError(f"these rows are no records: column {missing[0]} is missing; publish eagle3_data.records(out)")
    if "error" in records.column_names and any(records["error"]):
        raise DataError("some rows carry an error; publish eagle3_data.records(out), which leaves them out")
    if not len(records):
        raise DataError("there are no records to publish")
    run = RunFolder(folder)
    counts = _count(records)
    identity = {"target": target.identity() if target is not None else {}}
    metadata = {"eagle3_data": json.dumps(identity, sort_keys=True)}
    schema = arrow_schema(RECORD_FEATURES)
    for name, rows in counts.items():
        files = -(-rows // ROWS_PER_FILE)
        tables = _pieces(_of_source(records, name))
        for index in range(files):
            path = run.records_path(name) / f"train-{index:05d}-of-{files:05d}.parquet"
            write_parquet(path, _take(tables, ROWS_PER_FILE), schema, metadata)
    run.write_manifest(
        {
            "name": "records",
            "identity": identity,
            "extent": {"sources": {name: {"source": name} for name in counts}},
            "stages": {"prepare": True, "generate": True},
            "recipe": json.dumps({"name": "records", "sources": {name: {} for name in counts}}),
        }
    )
    write_json(run.lengths_path, _measure(run))
    return run


def run_without(run: RunFolder, drop: Sequence[str], folder: Path) -> RunFolder:
    """Make a run folder of what is left without some sources: links to its files, and lengths and figures of its own.

    Raises:
        UsageError: the run has no such source, or none is left.
    """
    from eagle3_data.lengths import measure_lengths

    names = run.sources()
    if unknown := [name for name in drop if name not in names]:
        raise UsageError(f"{run.path}: no source {unknown[0]!r} to drop; it has {', '.join(names) or 'none'}")
    kept = [name for name in names if name not in drop]
    if not kept:
        raise UsageError(f"{run.path}: all of its sources would be dropped; leave one")
    made = RunFolder(folder)
    shared = [run.failures_path, run.skipped_path]
    files = [*run.path.glob("records/*/*.parquet"), *(run.prompts_path(name) for name in kept)]
    for path in [*(file for file in files if {file.stem, file.parent.name} & {*kept}), *shared]:
        if path.is_file():
            link = made.path / path.relative_to(run.path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
    manifest = run.read_manifest()
    made.write_manifest(
        {
            **manifest,
            **{key: _only(manifest[key], kept) for key in ("sources", "generation") if key in manifest},
            "extent": {"sources": _only(manifest.get("extent", {}).get("sources", {}), kept)},
        }
    )
    report = measure_lengths(made)
    report.write(made.lengths_path)
    if run.page_path.is_file():
        from eagle3_data.lengths.views.page import write_page

        write_page(report, made.page_path, f"Lengths of {run.path.name}")
    if run.figures_path.is_dir() and importlib.util.find_spec("matplotlib") is not None:
        from eagle3_data.lengths.views.figures import write_figures

        write_figures(report, made.figures_path)
    return made


def _only(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _measure(run: RunFolder) -> Mapping[str, Any]:
    from eagle3_data.lengths import measure_lengths

    return measure_lengths(run).to_dict()


def _tables(records: datasets.Dataset) -> Iterator[pa.Table]:
    yield from records.select_columns(list(RECORD_FEATURES)).with_format("arrow").iter(ROWS_PER_GROUP)


def _count(records: datasets.Dataset) -> dict[str, int]:
    """Count the rows of each source, sources sorted."""
    counts: Counter[str] = Counter()
    for table in records.select_columns(["source"]).with_format("arrow").iter(65_536):
        counts.update({entry["values"]: entry["counts"] for entry in pc.value_counts(table["source"]).to_pylist()})
    return dict(sorted(counts.items()))


def _of_source(records: datasets.Dataset, name: str) -> Iterator[pa.Table]:
    for table in _tables(records):
        kept = table.filter(pc.equal(table["source"], name))
        if kept.num_rows:
            yield kept


def _pieces(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Cut tables into pieces of exactly ROWS_PER_GROUP rows, the last one aside."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        while rows >= ROWS_PER_GROUP:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, ROWS_PER_GROUP)
            waiting, rows = [whole.slice(ROWS_PER_GROUP)], rows - ROWS_PER_GROUP
    if rows:
        yield pa.concat_tables(waiting)


def _take(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    for _ in range(rows // ROWS_PER_GROUP):
        table = next(tables, None)
        if table is None:
            return
        yield table
