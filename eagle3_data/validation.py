"""Strict models of what users write (recipes, sampling), and every mistake as one sentence with its place.

Goes in: plain values (of YAML or Python) and a subclass of `Strict`. Comes out: a frozen object, or the list of all
mistakes: a path into the values, and a sentence that names the key, what was found and what is right.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

WHOLE_MAX: Final = 2**31 - 1
_EXPECTED: Final = {
    "bool_type": "true or false",
    "dict_type": "keys and values",
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "list_type": "a list",
    "mapping_type": "keys and values",
    "model_attributes_type": "keys and values",
    "model_type": "keys and values",
    "string_type": "text",
    "tuple_type": "a list",
}


class Mistake(NamedTuple):
    """One thing that is wrong: where (keys and list indices), and a sentence that begins with the key."""

    path: tuple[str | int, ...]
    sentence: str


class Strict(BaseModel):
    """A frozen model whose every key is known and whose every value has its own type: nothing is converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    # keys that users write here and that belong elsewhere, with the place
    BELONGS: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_right_key(cls, values: Any, handler: Any) -> Any:
        try:
            return handler(values)
        except ValidationError as error:
            errors = [cls._renamed(item) for item in error.errors(include_url=False)]
            raise ValidationError.from_exception_data(cls.__name__, errors) from None

    @classmethod
    def _renamed(cls, item: ErrorDetails) -> InitErrorDetails:
        loc, kind = item["loc"], item["type"]
        if kind == "extra_forbidden" and len(loc) == 1:
            hint = key_hint(str(loc[0]), list(cls.model_fields), cls.BELONGS)
            return _custom("unknown_key", f"unknown key; {hint}", item)
        if kind in _EXPECTED or kind in ("missing", "literal_error"):
            return InitErrorDetails(type=kind, loc=loc, input=item["input"], ctx=item.get("ctx", {}))
        return _custom(kind, item["msg"], item)


def _custom(kind: str, message: str, item: ErrorDetails) -> InitErrorDetails:
    # the message is a value of its template, so that braces in it stay what they are
    error = PydanticCustomError("said", "{message}", {"message": message, "kind": kind})
    return InitErrorDetails(type=error, loc=item["loc"], input=item["input"])


def wrong(message: str) -> PydanticCustomError:
    """Return the error that a validator raises to say `message` of its value."""
    return PydanticCustomError("said", "{message}", {"message": message})


def key_hint(name: str, known: Sequence[str], belongs: Mapping[str, str] | None = None) -> str:
    """Return what to write instead of an unknown key: where it belongs, the nearest one, or all there are."""
    if belongs and name in belongs:
        return f"it belongs {belongs[name]}"
    near = difflib.get_close_matches(name, [*known, *(belongs or ())], n=1, cutoff=0.55)
    if near and near[0] not in known:
        return f"did you mean {near[0]!r}, which belongs {(belongs or {})[near[0]]}?"
    return f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"


@dataclass(frozen=True)
class Within:
    """The interval that a number must lie in; whole numbers from `low` where only that is given."""

    low: float
    high: float = WHOLE_MAX
    open_low: bool = False
    open_high: bool = False
    also: tuple[float, ...] = ()  # values outside the interval that mean something

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        if not self.also:
            found["exclusiveMinimum" if self.open_low else "minimum"] = self.low
        if self.high != WHOLE_MAX:
            found["exclusiveMaximum" if self.open_high else "maximum"] = self.high
        return found

    def _check(self, value: float) -> float:
        above = self.low < value if self.open_low else self.low <= value
        below = value < self.high if self.open_high else value <= self.high
        if value not in self.also and not (above and below and math.isfinite(value)):
            raise wrong(f"{value:g} is impossible; it must {self.words}")
        return value

    @property
    def words(self) -> str:
        """The interval in words, as after "it must"."""
        if self.high == WHOLE_MAX:
            bound = f"be at least {self.low:g}"
        else:
            bound = (
                f"lie in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}{')' if self.open_high else ']'}"
            )
        return bound + "".join(f", or be {value:g}" for value in self.also)


@dataclass(frozen=True)
class Like:
    """The form that a text must have: a pattern for all of it, and what to say where it has another."""

    pattern: str
    otherwise: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}

    def _check(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise wrong(f"{shortened(value)} {self.otherwise}" if value.strip() else "is empty")
        return value


def mistakes(error: ValidationError, values: Any, root: tuple[str, ...] = ()) -> list[Mistake]:
    """Return every mistake in a validation error, one for each place, in the order of the values.

    Args:
        error: what validation of `values` raised.
        values: the values themselves; list entries that are mappings with a `name` are called by it.
        root: keys above the values, for the sentence.
    """
    found: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for item in error.errors(include_url=False):
        found.setdefault(_path(item, values), []).append(item)
    return [Mistake((*root, *path), _sentence((*root, *path), items)) for path, items in found.items()]


def _path(item: ErrorDetails, values: Any) -> tuple[str | int, ...]:
    """Return where in the values an error lies; pydantic's own names of union members are left out."""
    path: list[str | int] = []
    at = values
    for part in item["loc"]:
        if isinstance(at, Mapping):
            inside = part in at
        else:
            inside = isinstance(at, list | tuple) and isinstance(part, int) and part < len(at)
        if inside:
            at = at[part]
        elif not (item["type"] == "missing" and part == item["loc"][-1]):
            continue
        path.append(part)
    return tuple(path)


def _sentence(path: tuple[str | int, ...], items: Sequence[ErrorDetails]) -> str:
    first = items[0]
    said = [item for item in items if item["type"] not in _EXPECTED and item["type"] != "literal_error"]
    if said and said[0]["type"] == "missing":
        return f"{dotted(path[:-1])}: the key {str(path[-1])!r} is missing"
    if said:
        return f"{dotted(path)}: {said[0]['msg']}"
    literals = [item for item in items if item["type"] == "literal_error"]
    choices = [word for item in literals for word in re.findall(r"'([^']*)'", str(item["ctx"]["expected"]))]
    if len(literals) == len(items) and isinstance(first["input"], str):
        near = difflib.get_close_matches(first["input"], choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it must be one of {', '.join(choices)}"
        return f"{dotted(path)}: {shortened(first['input'])} is not known; {hint}"
    expected = [_EXPECTED[item["type"]] for item in items if item["type"] in _EXPECTED] + choices
    return f"{dotted(path)}: {not_that(expected, first['input'])}"


def not_that(expected: Iterable[str], found: Any) -> str:
    """Return `expected …, found …` for a value of the wrong type."""
    words = " or ".join(dict.fromkeys(expected))
    quotes = "; put it in quotes" if words == "text" and not isinstance(found, Mapping | list | tuple | None) else ""
    return f"expected {words}, found {shortened(found)}{quotes}"


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as users write it: `sources.B1_glaive.data_files[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the recipe"


def shortened(value: Any) -> str:
    """Return a value as a message shows it: its kind where it is long, never more than some words of it."""
    if isinstance(value, Mapping):
        return "keys and values"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else str(value).lower()
    text = repr(value) if isinstance(value, str | int | float) else str(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text):,} characters)"
