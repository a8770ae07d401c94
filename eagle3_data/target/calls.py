"""Reads the tool calls out of an answer.

Goes in: the form in which a target writes calls (`CallFormat`), and an answer after its thinking, as text in which
the control tokens of that form are single marks. Comes out: the text before the calls, and each call's name and
arguments, or the reason why it cannot be read. Nothing is repaired: a call is what the form says, or unreadable.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from eagle3_data.target.controls import ControlTokens

_NAME_IN_ID: Final = re.compile(r"\s*(?:functions\.)?(.+?):(\d+)\s*")
_NOT_IN_NAMES: Final = re.compile(r"[\s\"'<>{}\[\]()\ud800-\udfff]")
_LONGEST_NAME: Final = 256
_DEEPEST: Final = 100

Style = Literal["json", "named", "pairs", "braces"]
Schemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class CallFormat:
    """How a target writes calls, as literal texts with control strings spelled out.

    White space at the ends of a literal and inside it matches any white space; next to a value it is cut off once.

    Attributes:
        name: as in `TokenProfile.tool_call_format`.
        style: `json` (one object holds name and arguments), `named` (name, `middle`, a JSON object), `pairs` (name,
            then each argument between literals), `braces` (name, then `{key:value}` with texts between `quote`).
        section_begin, section_end: around all calls of an answer, "" if there is nothing.
        call_begin, call_end: around one call.
        middle: between the name (or id) and the arguments.
        name_in_id: the name stands inside an id, as in `functions.look:0` (Kimi).
        id_mark: between the name and an id of the call, which `middle` follows; "" if there is no id.
        id_first: the id stands before the name instead, `id_mark` between them.
        name_key, arguments_key: in the object of `json`.
        listed: the objects of `json` stand in one JSON list.
        separator: between two calls, where that is more than white space.
        pair_begin, key_end, value_end: around an argument of `pairs`. `key_end` follows the key of a text or of any
            value whose type the tool's schema says; `typed_key_end` that of a JSON value, "" if nothing tells.
        quote: around the texts of `braces`.
        bare: nothing marks a call, so an answer is either one call (or several) or no call at all.
        content_last: the template writes the content of a message after its calls (Gemma).
    """

    name: str
    style: Style
    section_begin: str = ""
    section_end: str = ""
    call_begin: str = ""
    call_end: str = ""
    middle: str = ""
    name_in_id: bool = False
    id_mark: str = ""
    id_first: bool = False
    name_key: str = "name"
    arguments_key: str = "arguments"
    listed: bool = False
    separator: str = ""
    pair_begin: str = ""
    key_end: str = ""
    typed_key_end: str = ""
    value_end: str = ""
    quote: str = ""
    bare: bool = False
    content_last: bool = False

    def literals(self) -> list[str]:
        """Return every literal text of the form."""
        return [
            value
            for key, value in vars(self).items()
            if isinstance(value, str) and value and key not in ("name", "style", "name_key", "arguments_key")
        ]


@dataclass(frozen=True)
class ToolCall:
    """One call that the model began.

    Attributes:
        name: of the function, "" if it was cut before the name was there.
        arguments: JSON text of an object as the model wrote it; of a call that cannot be read, what there is of it.
        id: the id that the model wrote, "" where its format has none.
        complete: whether the call was read to its end.
        text: the call as it was written, without what begins and ends it.
    """

    name: str
    arguments: str
    id: str
    complete: bool
    text: str


@dataclass(frozen=True)
class Reading:
    """An answer with its calls taken out.

    Attributes:
        content: text before the calls; all of it where there are none.
        after: text after them.
        calls: the calls begun, in order.
        fault: why the last of them, or what stands in a call's place, cannot be read; "" if all can.
    """

    content: str
    after: str = ""
    calls: tuple[ToolCall, ...] = ()
    fault: str = ""


class Marks:
    """Control tokens as single characters that no decoded text holds (lone surrogates)."""

    def __init__(self, controls: ControlTokens, literals: Iterable[str]) -> None:
        found = dict.fromkeys(
            control for literal in literals for control in controls.spelled(literal) if control in controls.ids
        )
        self._marks = {control: chr(0xD800 + place) for place, control in enumerate(found)}
        self._strings = {mark: control for control, mark in self._marks.items()}
        self.ids = {controls.ids[control]: mark for control, mark in self._marks.items()}
        self._controls = controls

    def literal(self, text: str) -> str:
        """Return a literal text with its control strings as marks."""
        pieces = self._controls.cut(text)
        strings = self._controls.strings
        marked = ((piece, strings[index] if index >= 0 else "") for piece, index in pieces)
        return "".join(piece + self._marks.get(control, control) for piece, control in marked)

    def plain(self, text: str) -> str:
        """Return text with its marks spelled out again."""
        return re.sub("[\ud800-\udfff]", lambda mark: self._strings.get(mark[0], ""), text)

    def text(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> str:
        """Return the text of ids, the marked control tokens as marks."""
        parts: list[str] = []
        start = 0
        for place, index in enumerate(ids):
            mark = self.ids.get(index)
            if mark is not None:
                parts += [decode(ids[start:place]), mark]
                start = place + 1
        parts.append(decode(ids[start:]))
        return "".join(parts)


class _FaultError(Exception):
    """A call that cannot be read; the text says why."""


def _flexible(literal: str) -> str:
    """Return a regular expression for a literal in which white space is any white space."""
    return r"\s*".join(re.escape(chunk) for chunk in literal.split())


class CallReader:
    """Reads the calls of one format out of marked text."""

    def __init__(self, form: CallFormat, controls: ControlTokens) -> None:
        self.form = form
        self.controls = controls
        self.marks = Marks(controls, form.literals())
        literal = self.marks.literal
        self._value_edges = (
            re.compile(_edge(literal(form.key_end), at_end=True)),
            re.compile(_edge(literal(form.value_end), at_end=False)),
        )

        def pattern(*texts: str) -> re.Pattern[str]:
            return re.compile(r"\s*" + r"\s*".join(_flexible(literal(text)) for text in texts if text))

        begin = form.section_begin + form.call_begin
        self._begin = pattern(form.section_begin, form.call_begin) if begin.strip() else re.compile(r"(?=\s*[\[{])")
        again = pattern(form.separator, form.call_begin)
        # Calls that nothing marks stand one after the other, some models put a semicolon between (Llama).
        self._again = re.compile(r"\s*;?\s*(?=\{)") if form.bare and not form.separator else again
        self._call_begins = re.compile(self._opening(literal(form.call_begin)))
        self._call_end = pattern(form.call_end)
        self._section_end = pattern(form.section_end)
        self._middle = pattern(form.middle)
        self._id_mark = pattern(form.id_mark)
        self._pair_begin = pattern(form.pair_begin)
        self._key_ends = [
            (re.compile(_flexible(literal(text))), typed)
            for text, typed in ((form.key_end, False), (form.typed_key_end, True))
            if text
        ]
        after = "|".join(_flexible(literal(text)) for text in (form.pair_begin, form.call_end) if text)
        self._value_end = re.compile(rf"{_flexible(literal(form.value_end))}(?=\s*(?:{after}|\Z))")
        stops = [form.middle] if form.middle else [form.pair_begin, form.call_end]
        if form.id_mark and not form.id_first:
            stops.append(form.id_mark)
        braces = form.style == "braces" or (form.style == "named" and not form.middle)
        self._name_end = (
            re.compile(r"(?=\{)")
            if braces
            else re.compile("|".join(rf"\s*{_flexible(literal(text))}" for text in stops if text) or r"\Z")
        )
        self._trigger = re.compile(self._opening(literal(form.section_begin + form.call_begin)))

    def _opening(self, begin: str) -> str:
        """Return a regular expression for what shows that a call begins: a mark, else the first word of the begin.

        What stands directly before a mark belongs to it: where one token marks every part of a call (DeepSeek-V4's
        `｜DSML｜`), `<` and `</` tell a beginning from an end.
        """
        marks = re.findall("[^\\s\ud800-\udfff]*[\ud800-\udfff]", begin)
        if marks:
            return "|".join(re.escape(mark) for mark in dict.fromkeys(marks))
        return re.escape(begin.split()[0]) if begin.split() else r"(?!)"

    # ---- reading

    def read(self, text: str, schemas: Schemas | None) -> Reading:
        """Read an answer.

        Args:
            text: the answer after its thinking, marked.
            schemas: parameters of each tool by name, from which the types of untyped arguments are taken; None if the
                tools are not known. Without any tool a format that nothing marks (`bare`) has no calls.

        Returns:
            The calls and the text around them. After a call that cannot be read nothing is read any more; it holds
            the rest.
        """
        calls: list[ToolCall] = []
        plain = self.marks.plain
        start = self._looks_bare(text) if self.form.bare else self._next(text, 0)
        if start is None or (self.form.bare and schemas == {}):
            return Reading(plain(text))
        content, place, fault = text[:start], start, ""
        begins: int | None = start
        while begins is not None and not fault and not text[place:begins].strip():
            place, fault = self._section(text, begins, schemas or {}, calls)
            begins = None if self.form.bare else self._next(text, place)
        if self.form.content_last and not fault:
            return Reading(plain(content + text[place:]), "", tuple(calls))
        return Reading(plain(content), plain(text[place:]), tuple(calls), fault)

    def _next(self, text: str, place: int) -> int | None:
        found = self._trigger.search(text, place)
        return None if found is None else found.start()

    def _looks_bare(self, text: str) -> int | None:
        """Return where the calls of an answer begin that is nothing but calls, None if it is text."""
        begun = self._begin.match(text)
        place = begun.end() if begun else 0
        head = re.compile(r"\s*\[?\s*\{\s*\"" + re.escape(self.form.name_key) + r"\"\s*:")
        return 0 if head.match(text, place) else None

    def _section(self, text: str, start: int, schemas: Schemas, calls: list[ToolCall]) -> tuple[int, str]:
        """Read the calls that begin at `start` into `calls`; return where they end and what is wrong with them."""
        begun = self._begin.match(text, start)
        if begun is None:
            if self._call_begins.search(text, start):
                calls.append(self._unread(text[start:]))
            return len(text), "a call does not begin as this target's calls do"
        place = begun.end()
        read = self._listed if self.form.listed else self._one
        while True:
            try:
                place = read(text, place, schemas, calls)
            except _FaultError as fault:
                calls.append(self._unread(text[place:]))
                return len(text), str(fault)
            again = None if self.form.listed else self._again.match(text, place)
            if again is None:
                break
            place = again.end()
        closed = self._section_end.match(text, place) if self.form.section_end else None
        return (place if closed is None else closed.end()), ""

    def _unread(self, text: str) -> ToolCall:
        """Return what there is of a call that cannot be read, for people to look at."""
        begun = self._begin.match(text)
        inner = text[begun.end() :] if begun else text
        plain = self.marks.plain(inner)
        name, arguments, written = "", "", ""
        if self.form.style == "json":
            found = re.search(rf'"{re.escape(self.form.name_key)}"\s*:\s*"([^"]*)"', plain)
            rest = re.search(rf'"{re.escape(self.form.arguments_key)}"\s*:\s*(.*)', plain, re.DOTALL)
            name, arguments = found[1] if found else "", rest[1] if rest else ""
        else:
            end = self._name_end.search(inner)
            if end is not None:
                name, arguments = self.marks.plain(inner[: end.start()]).strip(), self.marks.plain(inner[end.end() :])
            if self.form.name_in_id and (named := _NAME_IN_ID.fullmatch(name)):
                name, written = named[1], name
        return ToolCall(name, arguments, written, False, plain)

    # ---- one call

    def _one(self, text: str, place: int, schemas: Schemas, calls: list[ToolCall]) -> int:
        """Read the call whose inner text begins at `place`; return where it ends, its end literal included."""
        start = place
        written = ""
        if self.form.style == "json":
            name, arguments, written, place = self._object(text, place)
        else:
            name, written, place = self._name(text, place)
            if self.form.style == "pairs":
                arguments, place = self._pairs(text, place, schemas.get(name, {}))
            elif self.form.style == "braces":
                values, place = _Braces(text, self.marks.literal(self.form.quote)).read(place)
                arguments = json.dumps(_plain_values(values, self.marks.plain), ensure_ascii=False)
            else:
                _, end = _json_object(text, place)
                arguments, place = self.marks.plain(text[_skip(text, place) : end]), end
        inner = text[start:place]
        closed = self._call_end.match(text, place) if self.form.call_end else None
        if self.form.call_end and closed is None:
            raise _FaultError(f"the call of {name!r} is not closed")
        _check(name, arguments)
        calls.append(ToolCall(name, arguments, written, True, self.marks.plain(inner)))
        return place if closed is None else closed.end()

    def _listed(self, text: str, place: int, schemas: Schemas, calls: list[ToolCall]) -> int:
        """Read a JSON list of calls."""
        place = _skip(text, place)
        if text[place : place + 1] != "[":
            raise _FaultError("the calls are no JSON list")
        place = _skip(text, place + 1)
        while text[place : place + 1] == "{":
            start = place
            name, arguments, written, place = self._object(text, place)
            _check(name, arguments)
            calls.append(ToolCall(name, arguments, written, True, self.marks.plain(text[start:place])))
            place = _skip(text, place)
            if text[place : place + 1] == ",":
                place = _skip(text, place + 1)
        if text[place : place + 1] != "]":
            raise _FaultError("the JSON list of calls is not closed")
        closed = self._call_end.match(text, place + 1) if self.form.call_end else None
        if self.form.call_end and closed is None:
            raise _FaultError("the calls are not closed")
        return place + 1 if closed is None else closed.end()

    def _object(self, text: str, place: int) -> tuple[str, str, str, int]:
        spans, end = _json_spans(text, place)
        name = spans.get(self.form.name_key)
        arguments = spans.get(self.form.arguments_key)
        written = spans.get("id") or spans.get("tool_call_id")
        if name is None or not isinstance(name[0], str):
            raise _FaultError(f"a call without {self.form.name_key!r}")
        if arguments is not None and not isinstance(arguments[0], dict):
            raise _FaultError(f"the arguments of {name[0]!r} are not a JSON object")
        unknown = spans.keys() - {self.form.name_key, self.form.arguments_key, "id", "tool_call_id", "type"}
        if unknown and self.form.bare:
            raise _FaultError(f"the call of {name[0]!r} holds {min(unknown)!r}")
        raw = "{}" if arguments is None else self.marks.plain(text[arguments[1] : arguments[2]])
        return self.marks.plain(name[0]), raw, str(written[0]) if written else "", end

    def _name(self, text: str, place: int) -> tuple[str, str, int]:
        """Return name, id and where the arguments begin (for pairs without `middle`: where the name ends)."""
        written = ""
        if self.form.id_first:
            mark = self._id_mark.search(text, place)
            if mark is None:
                raise _FaultError("the id of the call is cut")
            written, place = text[place : mark.start()].strip(), mark.end()
        found = self._name_end.search(text, place)
        if found is None:
            raise _FaultError("the name of the call is cut")
        name, end = text[place : found.start()].strip(), found.start()
        if self.form.id_mark and not self.form.id_first and (mark := self._id_mark.match(text, end)):
            middle = self._middle.search(text, mark.end())
            if middle is None:
                raise _FaultError("the id of the call is cut")
            written, end = text[mark.end() : middle.start()].strip(), middle.start()
        if self.form.middle:
            middle = self._middle.match(text, end)
            end = middle.end() if middle else end
        if self.form.name_in_id:
            named = _NAME_IN_ID.fullmatch(name)
            if named is None:
                raise _FaultError(f"the id {self.marks.plain(name)[:80]!r} names no function")
            name, written = named[1], name
        return self.marks.plain(name) if not _NOT_IN_NAMES.search(name) else name, written, end

    def _pairs(self, text: str, place: int, schema: Mapping[str, Any]) -> tuple[str, int]:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        values: dict[str, Any] = {}
        while (begun := self._pair_begin.match(text, place)) is not None:
            ends = [(found, typed) for end, typed in self._key_ends if (found := end.search(text, begun.end()))]
            if not ends:
                raise _FaultError("the name of an argument is cut")
            found, typed = min(ends, key=lambda pair: (pair[0].start(), -pair[0].end()))
            key = self.marks.plain(text[begun.end() : found.start()]).strip()
            edge = self._value_edges[0].match(text, found.end())
            first = edge.end() if edge else found.end()
            end = self._value_end.search(text, first)
            if end is None:
                raise _FaultError(f"the argument {key[:80]!r} is not closed")
            last = end.start()
            if last > first and (tail := self._value_edges[1].search(text, first, last)):
                last = tail.start()
            if key in values:
                raise _FaultError(f"the argument {key[:80]!r} is written twice")
            value = self.marks.plain(text[first:last])
            told = bool(self.form.typed_key_end)
            known = properties.get(key) if isinstance(properties, Mapping) else None
            values[key] = _json_value(key, value) if typed else value if told else typed_value(value, known)
            place = end.end()
        return json.dumps(values, ensure_ascii=False), place


def _edge(literal: str, *, at_end: bool) -> str:
    """Return a regular expression for the white space of a literal that stands next to a value."""
    space = literal[len(literal.rstrip()) :] if at_end else literal[: len(literal) - len(literal.lstrip())]
    if not space:
        return r"(?!)"
    return f"(?:{re.escape(space)})" if at_end else rf"(?:{re.escape(space)})\Z"


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def read_arguments(name: str, arguments: str) -> str:
    """Return why a call of this name with these arguments cannot be read, "" if it can."""
    try:
        _check(name, arguments)
    except _FaultError as fault:
        return str(fault)
    return ""


def _check(name: str, arguments: str) -> None:
    """Refuse a call whose name or arguments no other program would take."""
    if not name or len(name) > _LONGEST_NAME or _NOT_IN_NAMES.search(name):
        raise _FaultError(f"{name[:80]!r} is not the name of a function")
    value = _loads(arguments)
    if not isinstance(value, dict):
        raise _FaultError(f"the arguments of {name!r} are not a JSON object")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _FaultError(f"the arguments of {name!r} hold a lone surrogate") from None


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
        return _DECODER.raw_decode(text, _skip(text, place))
    except RecursionError:
        raise _FaultError("the arguments are nested too deep") from None
    except ValueError as error:
        raise _FaultError(f"the call is not JSON ({str(error)[:120]})") from None


def _loads(text: str) -> Any:
    value, end = _decode(text, 0)
    if text[end:].strip():
        raise _FaultError("the arguments are not one JSON value")
    return value


def _json_object(text: str, place: int) -> tuple[dict[str, Any], int]:
    value, end = _decode(text, place)
    if not isinstance(value, dict):
        raise _FaultError("the arguments are not a JSON object")
    return value, end


def _json_spans(text: str, place: int) -> tuple[dict[str, tuple[Any, int, int]], int]:
    """Return the values of the JSON object at `place` with where each stands, and where the object ends."""
    whole, end = _json_object(text, place)
    spans: dict[str, tuple[Any, int, int]] = {}
    at = _skip(text, place) + 1
    for _ in whole:
        key, at = _decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        value, stop = _decode(text, at)
        spans[key] = (value, at, stop)
        at = _skip(text, stop) + 1
    return spans, end


def _json_value(key: str, text: str) -> Any:
    try:
        return _loads(text)
    except _FaultError:
        raise _FaultError(f"the value of {key[:80]!r} is not JSON") from None


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
    except _FaultError:
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


class _Braces:
    """Reads `{key:<quote>text<quote>,n:3,list:[…],deep:{…}}` (Gemma)."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote

    def read(self, place: int) -> tuple[dict[str, Any], int]:
        value, end = self._value(_skip(self._text, place), 0)
        if not isinstance(value, dict):
            raise _FaultError("the arguments do not stand in braces")
        return value, end

    def _value(self, place: int, depth: int) -> tuple[Any, int]:
        text, quote = self._text, self._quote
        if depth > _DEEPEST:
            raise _FaultError("the arguments are nested too deep")
        if text.startswith(quote, place):
            end = text.find(quote, place + len(quote))
            if end < 0:
                raise _FaultError("a text in the arguments is not closed")
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
        place = _skip(text, place + 1)
        while not text.startswith(close, place):
            if close == "}":
                key, place = self._key(place)
                if key in values:
                    raise _FaultError(f"the argument {key[:80]!r} is written twice")
                values[key], place = self._value(_skip(text, place), depth + 1)
            else:
                value, place = self._value(place, depth + 1)
                items.append(value)
            place = _skip(text, place)
            if text.startswith(",", place):
                place = _skip(text, place + 1)
            elif not text.startswith(close, place):
                raise _FaultError("the arguments are cut")
        return (values if close == "}" else items), place + 1

    def _key(self, place: int) -> tuple[str, int]:
        text, quote = self._text, self._quote
        if text.startswith(quote, place):
            end = text.find(quote, place + len(quote))
            if end < 0 or not text.startswith(":", end + len(quote)):
                raise _FaultError("the name of an argument is cut")
            return text[place + len(quote) : end], end + len(quote) + 1
        end = text.find(":", place)
        if end < 0:
            raise _FaultError("the name of an argument is cut")
        return text[place:end], end + 1


def _plain_values(value: Any, plain: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(key): _plain_values(item, plain) for key, item in value.items()}
    return [_plain_values(item, plain) for item in value] if isinstance(value, list) else value
