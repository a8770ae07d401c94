"""Strict models of what users write (recipes, sampling), and every mistake as one sentence with its place.

Goes in: plain values (of YAML or Python) and a subclass of `Strict`. Comes out: a frozen object, or the list of all
mistakes: a path into the values, and a sentence that names the key, what was found and what is right.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
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
    """A frozen model whose every key is known and whose every value has its own type: nothing is converted.

    The context of a validation may say where keys belong that users write in the wrong place: {key: place}.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_right_key(cls, values: Any, handler: Any, info: ValidationInfo) -> Any:
        known = cls.user_keys()
        if isinstance(values, Mapping):
            # an empty value reads as "not given", as YAML users expect of `revision:`
            values = {key: value for key, value in values.items() if value is not None or key not in known}
        try:
            return handler(values)
        except ValidationError as error:
            errors = []
            for item in error.errors(include_url=False):
                if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
                    hint = key_hint(str(item["loc"][0]), known, info.context or {})
                    errors.append(_detail(wrong(f"unknown key; {hint}"), item["loc"], item["input"]))
                else:
                    errors.append(_passed_on(item))
            raise ValidationError.from_exception_data(cls.__name__, errors) from None

    @classmethod
    def user_keys(cls) -> list[str]:
        """Return the keys that users may write."""
        return [name for name, field in cls.model_fields.items() if field.alias is None]


def wrong(message: str) -> PydanticCustomError:
    """Return the error that a validator raises to say `message` of its value."""
    # the message is a value of its template, so that braces in it stay what they are
    return PydanticCustomError("said", "{message}", {"message": message})


def mistake_at(key: str, message: str) -> ValidationError:
    """Return the error that a validator of a whole model raises to say `message` of one of its keys."""
    return joined({key: wrong(message)})


def joined(errors: Mapping[str, Exception]) -> ValidationError:
    """Return the errors of several keys as one."""
    details: list[InitErrorDetails] = []
    for key, error in errors.items():
        if isinstance(error, ValidationError):
            details += [_passed_on(item, key) for item in error.errors(include_url=False)]
        else:
            assert isinstance(error, PydanticCustomError)
            details.append(_detail(error, (key,), None))
    return ValidationError.from_exception_data("values", details)


def _passed_on(item: ErrorDetails, *above: str) -> InitErrorDetails:
    loc = (*above, *item["loc"])
    if item["type"] in _EXPECTED or item["type"] in ("missing", "literal_error"):
        return InitErrorDetails(type=item["type"], loc=loc, input=item["input"], ctx=item.get("ctx", {}))
    return _detail(wrong(item["msg"]), loc, item["input"])


def _detail(error: PydanticCustomError, loc: tuple[str | int, ...], found: Any) -> InitErrorDetails:
    return InitErrorDetails(type=error, loc=loc, input=found)


def key_hint(name: str, known: Sequence[str], places: Mapping[str, str]) -> str:
    """Return what to write instead of an unknown key: the nearest one, where it belongs, or all there are."""
    elsewhere = {key: place for key, place in places.items() if key not in known}
    typo = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
    if not typo and name in elsewhere:
        return f"it belongs {elsewhere[name]}"
    near = typo or difflib.get_close_matches(name, [*known, *elsewhere], n=1, cutoff=0.55)
    if not near:
        return f"known keys: {', '.join(known)}"
    place = "" if near[0] in known else f", which belongs {elsewhere[near[0]]}"
    return f"did you mean {near[0]!r}{place}?"


def not_known(word: str, choices: Sequence[str]) -> str:
    """Return what to say of a word that is not one of the choices."""
    near = difflib.get_close_matches(word, choices, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it must be one of {', '.join(choices)}"
    return f"{shortened(word)} is not known; {hint}"


@dataclass(frozen=True)
class Within:
    """The interval that a number must lie in; whole numbers from `low` where only that is given."""

    low: float
    high: float = WHOLE_MAX
    open_low: bool = False
    open_high: bool = False
    also: tuple[float, ...] = ()  # values outside the interval that mean something

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        if not self.also:
            found["exclusiveMinimum" if self.open_low else "minimum"] = self.low
        if self.high != WHOLE_MAX:
            found["exclusiveMaximum" if self.open_high else "maximum"] = self.high
        return found

    def check(self, value: float) -> float:
        """Return the value, or raise the error that says which values there are."""
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
    private: bool = False  # what is wrong may hold a password: do not show it

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}

    def check(self, value: str) -> str:
        """Return the value, or raise the error that says what it must be."""
        if not re.fullmatch(self.pattern, value):
            shown = "" if self.private else f"{shortened(value)} "
            raise wrong(f"{shown}{self.otherwise}" if value.strip() else "is empty")
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
        return f"{dotted(path)}: {not_known(first['input'], choices)}"
    expected = [_EXPECTED[item["type"]] for item in items if item["type"] in _EXPECTED] + choices
    return f"{dotted(path)}: {not_that(expected, first['input'])}"


def not_that(expected: Iterable[str], found: Any) -> str:
    """Return `expected …, found …` for a value of the wrong type."""
    words = " or ".join(dict.fromkeys(expected))
    hint = ""
    if words == "text" and not isinstance(found, Mapping | list | tuple | None):
        hint = "; put it in quotes"
    elif words == "a number" and isinstance(found, str) and re.fullmatch(r"[+-]?\d+e[+-]?\d+", found, re.IGNORECASE):
        hint = f"; YAML reads it as a number when written {re.sub('e', '.0e', found.lower())}"
    return f"expected {words}, found {shortened(found)}{hint}"


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
