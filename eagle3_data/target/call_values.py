"""Reads the arguments of calls: JSON, bare text with a type from the tool's schema, and Gemma's braces.

Goes in: text, and where the arguments begin in it. Comes out: the value and where it ends, or a `FaultError` that
says why it cannot be read.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

NOT_IN_NAMES: Final = re.compile(r"[\s\"'<>{}\[\]()\ud800-\udfff]")
_LONGEST_NAME: Final = 256
_DEEPEST: Final = 100


class FaultError(Exception):
    """A call that cannot be read; the text says why."""


def skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def read_arguments(name: str, arguments: str) -> str:
    """Return why a call of this name with these arguments cannot be read, "" if it can."""
    try:
        check_call(name, arguments)
    except FaultError as fault:
        return str(fault)
    return ""


def check_call(name: str, arguments: str) -> None:
    """Refuse a call whose name or arguments no other program would take."""
    if not name or len(name) > _LONGEST_NAME or NOT_IN_NAMES.search(name):
        raise FaultError(f"{name[:80]!r} is not the name of a function")
    value = _loads(arguments)
    if not isinstance(value, dict):
        raise FaultError(f"the arguments of {name!r} are not a JSON object")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise FaultError(f"the arguments of {name!r} hold a lone surrogate") from None


# ---- JSON, strictly


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is written twice")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _decode(text: str, place: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, skip_space(text, place))
    except RecursionError:
        raise FaultError("the arguments are nested too deep") from None
    except ValueError as error:
        raise FaultError(f"the call is not JSON ({str(error)[:120]})") from None


def _loads(text: str) -> Any:
    value, end = _decode(text, 0)
    if text[end:].strip():
        raise FaultError("the arguments are not one JSON value")
    return value


def json_object(text: str, place: int) -> tuple[dict[str, Any], int]:
    value, end = _decode(text, place)
    if not isinstance(value, dict):
        raise FaultError("the arguments are not a JSON object")
    return value, end


def json_spans(text: str, place: int) -> tuple[dict[str, tuple[Any, int, int]], int]:
    """Return the values of the JSON object at `place` with where each stands, and where the object ends."""
    whole, end = json_object(text, place)
    spans: dict[str, tuple[Any, int, int]] = {}
    at = skip_space(text, place) + 1
    for _ in whole:
        key, at = _decode(text, at)
        at = skip_space(text, skip_space(text, at) + 1)
        value, stop = _decode(text, at)
        spans[key] = (value, at, stop)
        at = skip_space(text, stop) + 1
    return spans, end


def json_value(key: str, text: str) -> Any:
    try:
        return _loads(text)
    except FaultError:
        raise FaultError(f"the value of {key[:80]!r} is not JSON") from None


_LITERALS: Final = {"True": True, "False": False, "None": None}
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def typed_value(text: str, schema: Any) -> Any:
    """Return an argument that was written as bare text, by the type that the tool's schema gives it.

    Without a type it stays text, as it does where the schema allows text, and where the text is no value of the type.
    """
    kinds = _kinds(schema)
    value: Any
    try:
        value = _loads(text)
    except FaultError:
        value = _python_value(text.strip())
    if value is None and "null" in kinds and text.strip() in ("null", "None"):
        return None
    if not kinds or "string" in kinds:
        return text
    for kind in kinds:
        if isinstance(value, _KINDS.get(kind, ())) and (kind == "boolean" or not isinstance(value, bool)):
            return value
    return text


def _python_value(text: str) -> Any:
    """Return a value that a template printed as Python does (`True`, `{'a': 1}`), the text itself if it is none."""
    if text in _LITERALS:
        return _LITERALS[text]
    if text[:1] not in ("{", "["):
        return text
    try:
        value: Any = ast.literal_eval(text)
        return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    found: set[str] = set()
    declared = schema.get("type")
    found.update([declared] if isinstance(declared, str) else declared if isinstance(declared, list) else ())
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        for option in options if isinstance(options, list) else ():
            found |= _kinds(option)
    if not found and isinstance(schema.get("enum"), list):
        names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
        found = {names.get(type(value), "string") for value in schema["enum"]}
    if schema.get("nullable") is True:
        found.add("null")
    return {kind for kind in found if isinstance(kind, str)}


# ---- braces: {key:value,…} without quotes around keys, texts between quote marks


class Braces:
    """Reads `{key:<quote>text<quote>,n:3,list:[…],deep:{…}}` (Gemma)."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote

    def read(self, place: int) -> tuple[dict[str, Any], int]:
        value, end = self._value(skip_space(self._text, place), 0)
        if not isinstance(value, dict):
            raise FaultError("the arguments do not stand in braces")
        return value, end

    def _value(self, place: int, depth: int) -> tuple[Any, int]:
        text, quote = self._text, self._quote
        if depth > _DEEPEST:
            raise FaultError("the arguments are nested too deep")
        if text.startswith(quote, place):
            end = text.find(quote, place + len(quote))
            if end < 0:
                raise FaultError("a text in the arguments is not closed")
            return text[place + len(quote) : end], end + len(quote)
        if text[place : place + 1] == "{":
            return self._items(place, "}", depth)
        if text[place : place + 1] == "[":
            return self._items(place, "]", depth)
        found = re.compile(r"[^,{}\[\]\ud800-\udfff]*").match(text, place)
        end = found.end() if found else place
        written = text[place:end].strip()
        return (_LITERALS[written] if written in _LITERALS else _loads(written)), end

    def _items(self, place: int, close: str, depth: int) -> tuple[Any, int]:
        text = self._text
        values: dict[str, Any] = {}
        items: list[Any] = []
        place = skip_space(text, place + 1)
        while not text.startswith(close, place):
            if close == "}":
                key, place = self._key(place)
                if key in values:
                    raise FaultError(f"the argument {key[:80]!r} is written twice")
                values[key], place = self._value(skip_space(text, place), depth + 1)
            else:
                value, place = self._value(place, depth + 1)
                items.append(value)
            place = skip_space(text, place)
            if text.startswith(",", place):
                place = skip_space(text, place + 1)
            elif not text.startswith(close, place):
                raise FaultError("the arguments are cut")
        return (values if close == "}" else items), place + 1

    def _key(self, place: int) -> tuple[str, int]:
        text, quote = self._text, self._quote
        if text.startswith(quote, place):
            end = text.find(quote, place + len(quote))
            if end < 0 or not text.startswith(":", end + len(quote)):
                raise FaultError("the name of an argument is cut")
            return text[place + len(quote) : end], end + len(quote) + 1
        end = text.find(":", place)
        if end < 0:
            raise FaultError("the name of an argument is cut")
        return text[place:end], end + 1


def plain_values(value: Any, plain: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(key): plain_values(item, plain) for key, item in value.items()}
    return [plain_values(item, plain) for item in value] if isinstance(value, list) else value
