"""Raw rows out of upstream files, one at a time, whatever happens to be wrong with one of them.

Goes in: a JSON, JSON Lines, Parquet or .traj file (local, or any URL that fsspec opens; .gz, .bz2, .xz and .zst too).
Comes out: (row number, row) pairs in file order, a row being a dictionary or a `BadRow`. Nothing is held but the row
itself and one read buffer. The files are opened here, through fsspec, and not in the builders' modules, because
`datasets` replaces `open` there.
"""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

import fsspec  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.errors import SourceError
from eagle3_data.sources.columns import BadRow, Column, Decoder, decoder, schema_fault
from eagle3_data.sources.dialogue import excerpt

Rows = Iterator[tuple[int, "dict[str, Any] | BadRow"]]
Numbers = npt.NDArray[np.integer[Any]]
Wanted = Numbers | None
_CHUNK: Final = 1 << 20
# Bounds, each far above what is real: the longest rows known are agents' trajectories of about 2 MB, the largest row
# groups hold about 1 GB of text, and text shrinks to a tenth.
_LARGEST_ROW: Final = 1 << 26  # bytes, or characters of JSON
_LARGEST_GROUP: Final = 1 << 33  # bytes of one column in a row group, uncompressed
_MOST_EXPANSION: Final = 1000  # of a compressed file, once it has given more than a gigabyte
_MOST_VALUES: Final = 1 << 24  # of one column in a row group, or so many a row:
_MOST_VALUES_EACH: Final = 10_000
_DICTIONARY: Final = 1 << 30  # bytes that rows may repeat out of one dictionary page, held at once
_BATCH_ROWS: Final = 256
_COMPRESSIONS: Final = (".gz", ".bz2", ".xz", ".zst")
SUFFIXES: Final = (".jsonl", ".json", ".ndjson", ".parquet", ".traj")


def suffix_of(name: str) -> str:
    """Return the lower-case file suffix without a compression suffix."""
    name = name.split("?")[0].lower()
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    return name[name.rfind(".") :] if "." in name.rsplit("/", 1)[-1] else ""


def read_rows(path: str, name: str, columns: Sequence[Column], wanted: Wanted = None) -> Rows:
    """Yield the rows of one file.

    Args:
        path: local path or URL.
        name: upstream name of the file, for its format and for errors.
        columns: the columns to take out of a Parquet file, and to check its schema for.
        wanted: ascending row numbers, to yield those alone (a second pass over the file); None for all.

    Yields:
        0-based row number within the file (blank lines are no rows), and the row.

    Raises:
        SourceError: the file cannot be opened, is not what its name says, or its schema lacks a column.
    """
    suffix = suffix_of(name)
    try:
        if suffix == ".parquet":
            yield from _parquet(path, name, columns, wanted)
            return
        with _opened(path) as file:
            if suffix == ".traj":
                rows = _whole(file, name)
            elif suffix in (".jsonl", ".ndjson"):
                rows = _lines(file, name, _most_bytes(path, name), wanted)
            elif suffix == ".json":
                rows = _json(file, name, _most_bytes(path, name), wanted)
            else:
                raise SourceError(f"{name}: cannot tell its format; a source reads {', '.join(SUFFIXES)} files")
            if wanted is None:
                yield from rows
            else:
                yield from _only(rows, wanted)
    except (OSError, pa.ArrowInvalid, EOFError) as error:
        raise SourceError(f"{name}: cannot be read ({error}); fetch the file again or correct its path") from error


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    with fsspec.open(path, "rb", compression="infer") as file:
        yield file


def _only(rows: Rows, wanted: Numbers) -> Rows:
    following = 0
    for number, row in rows:
        if following >= len(wanted):
            return
        if number == wanted[following]:
            following += 1
            yield number, row


def parse(data: bytes) -> Any:
    """Parse one JSON value; orjson first, the standard library for what orjson refuses (surrogates, NaN)."""
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRow("not_utf8", str(error)[:120])
    except (ValueError, RecursionError) as error:
        return BadRow("not_json", f"{error}"[:120])


def _row(value: Any) -> "dict[str, Any] | BadRow":
    if isinstance(value, dict | BadRow):
        return value
    return BadRow("not_object", f"a {type(value).__name__} where an object was expected")


def _most_bytes(path: str, name: str) -> int | None:
    """Return how much a compressed local file may give; None for others, whose size bounds them."""
    if not name.split("?")[0].lower().endswith(_COMPRESSIONS) or "://" in path:
        return None
    return max(1 << 30, _MOST_EXPANSION * Path(path).stat().st_size)


def _too_long(name: str, number: int) -> SourceError:
    return SourceError(f"{name}: row {number} is longer than {_LARGEST_ROW >> 20} MiB, the most that a row may hold")


def _whole(file: IO[bytes], name: str) -> Rows:
    data = file.read(_LARGEST_ROW + 1)
    if len(data) > _LARGEST_ROW:
        raise _too_long(name, 0)
    yield 0, _row(parse(data.removeprefix(b"\xef\xbb\xbf")))


def _lines(file: IO[bytes], name: str, most: int | None, wanted: Wanted) -> Rows:
    # Only \n ends a line: str.splitlines would also break rows at U+0085 and U+2028, which occur inside texts.
    skipped = BadRow("", "")
    number, following, read = 0, 0, 0
    reader = io.BufferedReader(cast("io.RawIOBase", file), _CHUNK)  # remote files read lines without a bound only
    while line := reader.readline(_LARGEST_ROW + 1):
        read += len(line)
        if len(line) > _LARGEST_ROW:
            raise _too_long(name, number)
        if most is not None and read > most:
            raise SourceError(f"{name}: expands to more than {_MOST_EXPANSION} times its size; not read further")
        line = line.strip(b" \t\r\n")
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            continue
        if wanted is None:
            yield number, _row(parse(line))
        elif following < len(wanted) and number == wanted[following]:
            following += 1
            yield number, _row(parse(line))
        else:
            yield number, skipped
        number += 1


def _json(file: IO[bytes], name: str, most: int | None, wanted: Wanted) -> Rows:
    """Read a .json file: an array of objects, JSON Lines under another name, or one object."""
    head = file.read(_CHUNK)
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] == b"[":
        file.seek(0)
        yield from _array(file, name)
        return
    line = start.split(b"\n", 1)[0]
    file.seek(0)
    if isinstance(parse(line), BadRow) and len(line) < len(start):
        yield from _whole(file, name)
    else:
        yield from _lines(file, name, most, wanted)


def _array(file: IO[bytes], name: str) -> Rows:
    """Read an array of objects one element at a time, through a buffer that grows only for a long element."""
    decoder = json.JSONDecoder()
    decode = _utf8_pieces(file, name)
    text, position, consumed, number, ended = "", 0, 0, 0, False
    expect_value, opened = True, False

    def fail(what: str) -> SourceError:
        return SourceError(
            f"{name}: not a JSON array of rows ({what} at character {consumed + position}, row {number})"
        )

    while True:
        while position < len(text) and text[position] in " \t\r\n":
            position += 1
        if position >= len(text):
            piece = None if ended else next(decode, None)
            if piece is None:
                raise fail("the file ends before the array does")
            consumed += len(text)
            text, position = piece, 0
            continue
        mark = text[position]
        if not opened:
            opened, position = True, position + 1  # the opening bracket, seen by the caller
        elif mark == "]" and (not expect_value or number == 0):
            if text[position + 1 :].strip() or any(piece.strip() for piece in decode):
                position += 1
                raise fail("text after the array")
            return
        elif not expect_value:
            if mark != ",":
                raise fail("no comma between two rows")
            expect_value, position = True, position + 1
        else:
            try:
                value, end = decoder.raw_decode(text, position)
                if end >= len(text) - 1 and not ended:
                    raise json.JSONDecodeError("more may follow", text, len(text))
            except RecursionError:
                raise fail("a row is nested too deeply") from None
            except json.JSONDecodeError as error:
                # The decoder cannot say "incomplete": a string without its end, or a fault at the very end, is.
                incomplete = error.msg.startswith("Unterminated string") or error.pos >= len(text) - 16
                if len(text) - position > _LARGEST_ROW:
                    raise _too_long(name, number) from None
                if ended or not incomplete:
                    raise fail(error.msg) from None
                text, consumed = text[position:], consumed + position
                position = 0
                pieces, grown = [text], 0
                while grown <= len(text):  # doubling keeps the cost of a long row linear
                    piece = next(decode, None)
                    if piece is None:
                        ended = True
                        break
                    pieces.append(piece)
                    grown += len(piece)
                text = "".join(pieces)
                continue
            if end - position > _LARGEST_ROW:
                raise _too_long(name, number)
            yield number, _row(value)
            number += 1
            position, expect_value = end, False


def _utf8_pieces(file: IO[bytes], name: str) -> Iterator[str]:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        while data := file.read(_CHUNK):
            yield decoder.decode(data)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise SourceError(f"{name}: not UTF-8 text ({error}); fetch the file again") from error


def _parquet(path: str, name: str, columns: Sequence[Column], wanted: Wanted) -> Rows:
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
                    raise _too_long(name, error.number) from None
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
            if size > 4 * _LARGEST_ROW and size > 100 * stored:
                raise SourceError(f"{where}: expands from {stored:,} to {size:,} bytes; the most is 100 times")
            # Text shrinks to a tenth or so; where a column shrinks more, its dictionary may hold one huge value.
            rows = min(rows, max(8 if size < 20 * stored else 1, _DICTIONARY // max(1, size)))
    return rows


def _check_size(batch: pa.RecordBatch, first: int) -> None:
    """Raise where a row is too long to be made into Python values."""
    if batch.nbytes > _LARGEST_ROW:
        for index in range(batch.num_rows):
            if batch.slice(index, 1).nbytes > _LARGEST_ROW:
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
