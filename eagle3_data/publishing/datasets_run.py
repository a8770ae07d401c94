"""Records of a data set as a run folder, so that they are published like those of a run.

Goes in: records from `eagle3_data.records` or `load_version` (RECORD_FEATURES). Comes out: a run folder with record
files, lengths and a manifest, which says what is known of them.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc

from eagle3_data.errors import DataError
from eagle3_data.publishing.card.facts import SPLITS
from eagle3_data.publishing.merged_manifest import only_sources
from eagle3_data.publishing.staging import measure, with_counts
from eagle3_data.run_folder import ROWS_PER_FILE, ROWS_PER_GROUP, RunFolder, write_parquet
from eagle3_data.schema import RECORD_FEATURES, arrow_schema

if TYPE_CHECKING:
    from eagle3_data.target import Target


def run_of_records(
    splits: Mapping[str, datasets.Dataset],
    folder: Path,
    manifest: Mapping[str, Any] | None = None,
    *,
    target: "Target | None" = None,
) -> RunFolder:
    """Write records as a finished run.

    Args:
        splits: "train" and "validation" -> records with every column, in order; sources mixed as they may be.
        folder: where the run folder is made.
        manifest: of the version that the records were loaded from; its identity, recipe and source reports stay.
        target: its identity goes into the manifest, where there is no other.

    Raises:
        DataError: a column is missing or strange, a row carries an error, or there are no rows.
    """
    if unknown := [name for name in splits if name not in SPLITS]:
        raise DataError(f"split {unknown[0]!r}: a version has the splits {' and '.join(SPLITS)}")
    for records in splits.values():
        missing = [name for name in RECORD_FEATURES if name not in records.column_names]
        if missing:
            raise DataError(
                f"these rows are no records: column {missing[0]} is missing; publish eagle3_data.records(out)"
            )
        if "error" in records.column_names and any(records["error"]):
            raise DataError("some rows carry an error; publish eagle3_data.records(out), which leaves them out")
    if not sum(map(len, splits.values())):
        raise DataError("there are no records to publish")
    run = RunFolder(folder)
    counts = {split: _count(records) for split, records in splits.items()}
    names = sorted({name for count in counts.values() for name in count})
    known = dict(manifest or {})
    identity = known.get("identity") or {"target": target.identity() if target is not None else {}}
    metadata = {"eagle3_data": json.dumps(identity, sort_keys=True)}
    for split in SPLITS:
        for name in names:
            rows = counts.get(split, {}).get(name, 0)
            if rows or split == "train":
                _write(run, splits.get(split), name, split, rows, metadata)
    if known:
        known = {**only_sources(known, names), "stages": {"prepare": True, "generate": True}}
        known["selected_from"] = {"version": known.pop("version", ""), "rows": sum(map(len, splits.values()))}
    else:
        extent = {"sources": {name: {"source": name} for name in names}}
        known = {"name": "records", "identity": identity, "extent": extent}
        known["stages"] = {"prepare": True, "generate": True}
    run.write_manifest(with_counts(run, known))
    measure(run)
    return run


def _write(
    run: RunFolder,
    records: datasets.Dataset | None,
    name: str,
    split: str,
    rows: int,
    metadata: Mapping[str, str],
) -> None:
    files = max(1, -(-rows // ROWS_PER_FILE))
    tables = _pieces(_of_source(records, name)) if records is not None else iter(())
    for index in range(files):
        path = run.records_path(name) / f"{split}-{index:05d}-of-{files:05d}.parquet"
        write_parquet(path, _take(tables, ROWS_PER_FILE), arrow_schema(RECORD_FEATURES), metadata)


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
