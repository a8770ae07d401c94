"""The rows of a Parquet file, read a part of a row group at a time.

Goes in: a file and the columns that a source looks at. Comes out: rows as Python values, in the form in which they
were stored (`columns.py`). A few kilobytes of Parquet can stand for gigabytes, so sizes are judged before anything is
read.
"""

from collections.abc import Sequence
from typing import Any, Final

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.errors import SourceError
from eagle3_data.sources.columns import (
    LARGEST_ROW,
    BadRow,
    Column,
    Decoder,
    Rows,
    Wanted,
    decoder,
    row_too_long,
    schema_fault,
)
from eagle3_data.sources.dialogue import excerpt

# Bounds, each far above what is real: the largest row groups hold about 1 GB of text, and text shrinks to a tenth.
_LARGEST_GROUP: Final = 1 << 33  # bytes of one column in a row group, uncompressed
_MOST_VALUES: Final = 1 << 24  # of one column in a row group, or so many a row:
_MOST_VALUES_EACH: Final = 10_000
_DICTIONARY: Final = 1 << 30  # bytes that rows may repeat out of one dictionary page, held at once
_BATCH_ROWS: Final = 256


def parquet_rows(path: str, name: str, columns: Sequence[Column], wanted: Wanted) -> Rows:
    """Yield the rows of a file; the arguments are those of `reading.read_rows`.

    Raises:
        SourceError: its schema lacks a column, or a column is larger than any real one.
    """
    with fsspec.open(path, "rb") as file, pq.ParquetFile(file) as parquet:
        schema = parquet.schema_arrow
        if wrong := schema_fault(schema, columns):
            raise SourceError(f"{name}: {wrong}")
        names = [column.name for column in columns if column.name in schema.names]
        kinds = {column.name: column.kind for column in columns}
        typed = {name: decoder(schema.field(name).type, kinds[name] in ("list", "object")) for name in names}
        decoders = {name: decode for name, decode in typed.items() if decode}
        start = 0
        for group in range(parquet.num_row_groups):
            size = parquet.metadata.row_group(group).num_rows
            chosen = None
            if wanted is not None:
                low, high = np.searchsorted(wanted, [start, start + size])
                chosen = wanted[low:high] - start
            if chosen is None or len(chosen):
                size_at_once = _batch_rows(parquet, group, set(names), name)
                try:
                    yield from _group(parquet, group, decoders, names, start, chosen, size_at_once)
                except _RowTooLong as error:
                    raise row_too_long(name, error.number) from None
            start += size


class _RowTooLong(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _batch_rows(parquet: pq.ParquetFile, group: int, names: set[str], name: str) -> int:
    """Return how many rows of a row group are decoded at once.

    A few kilobytes can hold gigabytes: nulls are counted, not stored, and rows may repeat one long dictionary value.

    Raises:
        SourceError: a column of it is larger than any real one.
    """
    metadata, rows = parquet.metadata.row_group(group), _BATCH_ROWS
    for index in range(metadata.num_columns):
        column = metadata.column(index)
        if column.path_in_schema.split(".")[0] not in names:
            continue
        size, stored = column.total_uncompressed_size, max(1, column.total_compressed_size)
        where = f"{name}: row group {group}, column '{excerpt(column.path_in_schema)}'"
        if size > _LARGEST_GROUP:
            raise SourceError(f"{where}: {size >> 20:,} MiB; the most that is read is {_LARGEST_GROUP >> 20:,}")
        if column.num_values > max(_MOST_VALUES, _MOST_VALUES_EACH * metadata.num_rows):
            raise SourceError(
                f"{where}: {column.num_values:,} values in {metadata.num_rows:,} rows; the most that is read is "
                f"{_MOST_VALUES_EACH:,} a row"
            )
        if column.has_dictionary_page:
            if size > 4 * LARGEST_ROW and size > 100 * stored:
                raise SourceError(f"{where}: expands from {stored:,} to {size:,} bytes; the most is 100 times")
            # Text shrinks to a tenth or so; where a column shrinks more, its dictionary may hold one huge value.
            rows = min(rows, max(8 if size < 20 * stored else 1, _DICTIONARY // max(1, size)))
    return rows


def _check_size(batch: pa.RecordBatch, first: int) -> None:
    """Raise where a row is too long to be made into Python values."""
    if batch.nbytes > LARGEST_ROW:
        for index in range(batch.num_rows):
            if batch.slice(index, 1).nbytes > LARGEST_ROW:
                raise _RowTooLong(first + index)


def _group(
    parquet: pq.ParquetFile,
    group: int,
    decoders: dict[str, Decoder],
    names: list[str],
    start: int,
    chosen: Wanted,
    size_at_once: int,
) -> Rows:
    offset = 0
    for batch in parquet.iter_batches(batch_size=size_at_once, row_groups=[group], columns=names, use_threads=False):
        _check_size(batch, start + offset)
        if chosen is None:
            numbers = range(batch.num_rows)
            table = batch
        else:
            low, high = np.searchsorted(chosen, [offset, offset + batch.num_rows])
            numbers = (chosen[low:high] - offset).tolist()
            table = batch.take(pa.array(numbers, pa.int64())) if len(numbers) else batch.slice(0, 0)
        if len(numbers):
            for number, row in zip(numbers, _python_rows(table), strict=True):
                if decoders and isinstance(row, dict):
                    row.update({name: decode(row[name]) for name, decode in decoders.items()})
                yield start + offset + number, row
        offset += batch.num_rows


def _python_rows(batch: pa.RecordBatch) -> "list[dict[str, Any] | BadRow]":
    try:
        rows: list[dict[str, Any] | BadRow] = batch.to_pylist()
    except UnicodeDecodeError:
        rows = []
        for index in range(batch.num_rows):
            try:
                rows.extend(batch.slice(index, 1).to_pylist())
            except UnicodeDecodeError as error:
                rows.append(BadRow("not_utf8", str(error)[:120]))
    return rows
