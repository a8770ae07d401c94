"""Raw rows out of upstream files, one at a time, whatever happens to be wrong with one of them.

Goes in: a JSON, JSON Lines, Parquet or .traj file (local, or any URL that fsspec opens; .gz, .bz2, .xz and .zst too).
Comes out: (row number, row) pairs in file order, a row being a dictionary or a `BadRow`. Nothing is held but the row
itself and one read buffer. The files are opened here, through fsspec, and not in the builders' modules, because
`datasets` replaces `open` there.
"""

import io
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

import fsspec  # type: ignore[import-untyped]
import orjson
import pyarrow as pa

from eagle3_data.errors import SourceError
from eagle3_data.sources.columns import (
    LARGEST_ROW,
    MOST_EXPANSION,
    BadRow,
    Column,
    Numbers,
    Rows,
    Wanted,
    expands,
    row_too_long,
)
from eagle3_data.sources.dialogue import excerpt
from eagle3_data.sources.json_array import array_rows
from eagle3_data.sources.parquet import parquet_rows

_CHUNK: Final = 1 << 20
_COMPRESSIONS: Final = (".gz", ".bz2", ".xz", ".zst")
# What readers of damaged files raise; EOFError and the decompressors' errors are no OSErrors.
_DAMAGE: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
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
            yield from parquet_rows(path, name, columns, wanted)
            return
        with _opened(path) as file:
            if suffix == ".traj":
                rows = _whole(file, name)
            elif suffix in (".jsonl", ".ndjson"):
                rows = _lines(file, name, _most_bytes(path, name), wanted)
            elif suffix == ".json":
                rows = _json(file, name, _most_bytes(path, name), wanted)
            else:
                raise SourceError(f"{name}: its name has no known ending; a source reads {', '.join(SUFFIXES)} files")
            if wanted is None:
                yield from rows
            else:
                yield from _only(rows, wanted)
    except _DAMAGE as error:
        raise SourceError(
            f"{name}: cannot be read ({excerpt(error)}); fetch the file again or correct its path"
        ) from error


@contextmanager
def _opened(path: str) -> Iterator[io.BufferedReader]:
    # fsspec's remote files read lines without a bound only, so lines are cut out of a buffer of our own.
    if path.lower().endswith(".zst"):  # fsspec knows it only with another package
        with fsspec.open(path, "rb") as raw, pa.CompressedInputStream(raw, "zstd") as file, _buffered(file) as reader:
            yield reader
        return
    with fsspec.open(path, "rb", compression="infer") as file, _buffered(file) as reader:
        yield reader


def _buffered(file: Any) -> io.BufferedReader:
    return cast("io.BufferedReader", io.BufferedReader(file, _CHUNK))


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
    return max(1 << 30, MOST_EXPANSION * Path(path).stat().st_size)


def _whole(file: IO[bytes], name: str) -> Rows:
    data = file.read(LARGEST_ROW + 1)
    if len(data) > LARGEST_ROW:
        raise row_too_long(name, 0)
    yield 0, _row(parse(data.removeprefix(b"\xef\xbb\xbf")))


def _lines(reader: io.BufferedReader, name: str, most: int | None, wanted: Wanted) -> Rows:
    # Only \n ends a line: str.splitlines would also break rows at U+0085 and U+2028, which occur inside texts.
    skipped = BadRow("", "")
    number, following, read = 0, 0, 0
    while line := reader.readline(LARGEST_ROW + 1):
        read += len(line)
        if len(line) > LARGEST_ROW:
            raise row_too_long(name, number)
        if most is not None and read > most:
            raise expands(name)
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


def _json(file: io.BufferedReader, name: str, most: int | None, wanted: Wanted) -> Rows:
    """Read a .json file: an array of objects, JSON Lines under another name, or one object."""
    start = file.peek(_CHUNK).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] == b"[":
        yield from ((number, _row(value)) for number, value in array_rows(file, name, most))
        return
    line = start.split(b"\n", 1)[0]
    if isinstance(parse(line), BadRow) and len(line) < len(start):
        yield from _whole(file, name)
    else:
        yield from _lines(file, name, most, wanted)
