"""The upstream columns that a source looks at, and their values in whichever form they were stored.

Goes in: what a source expects (`Column`), and a row as it was read: from JSON, from Arrow structs, from columns of
JSON (datasets' `Json()`, which Arrow hands out as text), or from text that holds JSON. Comes out: the same Python
values for each of these forms, or what is wrong with the row or the file.

Arrow gives every struct every key that any row of the column has, filled with nulls. Inside the values of a column
such nulls are dropped, except for keys that no row sets (their Arrow type is null): those can only have been written.
A null that was written where other rows of the column set the key is dropped with them, because the two look
the same; JSON, in all its forms, keeps every null.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from eagle3_data.errors import SourceError
from eagle3_data.sources.dialogue import excerpt, strict_json

_SHOWN: Final = 12
_JSON_TYPE: Final = "arrow.json"
# Far above what is real: the longest rows known are agents' trajectories of about 2 MB.
LARGEST_ROW: Final = 1 << 26  # bytes, or characters of JSON
MOST_EXPANSION: Final = 1000  # of a compressed file, once it has given more than a gigabyte
Decoder = Callable[[Any], Any]
Numbers = npt.NDArray[np.integer[Any]]
Wanted = Numbers | None  # ascending row numbers of a file, or all rows


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be read: a key of `dialogue.REASONS` and the evidence."""

    reason: str
    detail: str


Rows = Iterator[tuple[int, "dict[str, Any] | BadRow"]]


def row_too_long(name: str, number: int) -> SourceError:
    """Return the error for a row above the bound."""
    return SourceError(f"{name}: row {number} is longer than {LARGEST_ROW >> 20} MiB, the most that a row may hold")


def expands(name: str) -> SourceError:
    """Return the error for a compressed file that gives far more than its size."""
    return SourceError(f"{name}: expands to more than {MOST_EXPANSION} times its size; not read further")


@dataclass(frozen=True, slots=True)
class Column:
    """An upstream column: its name, its kind (`text`, `list`, `object`, `integer`), and whether rows must have it.

    A `nullable` column must be there, so that a renamed one is noticed, but single rows may hold a null. Lists and
    objects may be stored as JSON text.
    """

    name: str
    kind: str = "text"
    required: bool = True
    nullable: bool = False


_PYTHON: Final[dict[str, type]] = {"text": str, "list": list, "object": dict, "integer": int}


def found_and_expected(found: Sequence[Any], columns: Sequence[Column]) -> str:
    """Return the columns that there are beside those that a source reads, for an error."""
    names = sorted(map(str, found))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    expected = ", ".join(f"{column.name} ({column.kind})" for column in columns if column.required)
    expected = expected or f"one of {', '.join(column.name for column in columns)}"
    return f"found {excerpt(', '.join(names[:_SHOWN]) or 'no columns', 300)}{more}; expected {expected}"


def fault(row: "dict[str, Any] | BadRow", columns: Sequence[Column]) -> BadRow | None:
    """Return what is wrong with a row's columns, or None."""
    if isinstance(row, BadRow):
        return row
    for column in columns:
        value = row.get(column.name)
        if value is None:
            if column.required and not (column.nullable and column.name in row):
                missing = f"missing: {found_and_expected(list(row), columns)}"
                state = f"null, expected {column.kind}" if column.name in row else missing
                return BadRow("missing_column", f"column '{column.name}' is {state}")
        elif column.required and not isinstance(value, _PYTHON[column.kind]):
            kind = type(value).__name__
            return BadRow("wrong_type", f"column '{column.name}' is {kind}, expected {column.kind}")
    return None


def unpacked(row: dict[str, Any], columns: Sequence[Column]) -> "dict[str, Any] | BadRow":
    """Return a row whose lists and objects are such, also where they are stored as JSON text."""
    made = row
    for column in columns:
        value = row.get(column.name)
        if column.kind not in ("list", "object") or value is None:
            continue
        opened = value
        if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            try:
                opened = json_value(value)
            except ValueError as error:
                return BadRow("not_json", f"column '{column.name}': {excerpt(error)}")
        if column.kind == "list" and isinstance(opened, list) and any(isinstance(item, str) for item in opened):
            opened = [_object(item) for item in opened]
        if opened is not value:
            made = {**made, column.name: opened}
    return made


def _object(item: Any) -> Any:
    if isinstance(item, str) and item.lstrip()[:1] == "{":
        try:
            return json_value(item)
        except ValueError:
            return item
    return item


def json_value(text: str) -> Any:
    """Parse JSON as the standard has it, fast where the text is ordinary.

    Raises:
        ValueError: not JSON, or nested too deeply to read.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        return strict_json(text)  # takes lone surrogates and long integers too, which are judged later


def _is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == _JSON_TYPE


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):  # what pandas writes for categories
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


_ARROW: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "text": _is_text,
    "list": lambda kind: _is_list(kind) or _is_text(kind),
    "object": lambda kind: pa.types.is_struct(kind) or _is_text(kind),
    "integer": pa.types.is_integer,
}


def schema_fault(schema: pa.Schema, columns: Sequence[Column]) -> str:
    """Return what is wrong with the schema of a Parquet file, "" if nothing is."""
    for column in columns:
        if len(schema.get_all_field_indices(column.name)) > 1:
            return f"column '{column.name}' occurs twice; rename one of them"
        index = schema.get_field_index(column.name)
        if not column.required:
            continue
        if index < 0:
            return f"column '{column.name}' is missing: {found_and_expected(schema.names, columns)}"
        kind = schema.field(index).type
        if not (_ARROW[column.kind](kind) or _is_json(kind) or (column.nullable and pa.types.is_null(kind))):
            return f"column '{column.name}' is {excerpt(kind)}, expected {column.kind}"
    return ""


def decoder(kind: pa.DataType, top: bool = True) -> Decoder | None:
    """Return what turns a value that Arrow hands out into the value that was stored; None where they are the same.

    Args:
        kind: the Arrow type of the column.
        top: whether the value is the column's own or one of its list, as a message is: such objects keep their nulls.
    """
    if _is_json(kind):
        return json_value_or_text
    if _is_list(kind):
        return _each(decoder(kind.value_type, top))
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        inner = {field.name: found for field in fields if (found := decoder(field.type, False))}
        written = {field.name for field in fields if pa.types.is_null(field.type)}
        return _struct(inner, None if top else written)
    return None


def json_value_or_text(value: Any) -> Any:
    """Return the value of JSON text, or the text itself where it is not JSON."""
    try:
        return value if value is None else json_value(value)
    except ValueError:
        return value


def _each(inner: Decoder | None) -> Decoder | None:
    if inner is None:
        return None
    return lambda values: values if values is None else [inner(value) for value in values]


def _struct(inner: dict[str, Decoder], written: set[str] | None) -> Decoder | None:
    if written is None and not inner:
        return None

    def decode(value: Any) -> Any:
        if value is None:
            return None
        made = {key: inner[key](item) if key in inner else item for key, item in value.items()}
        if written is None:
            return made
        return {key: item for key, item in made.items() if item is not None or key in written}

    return decode
