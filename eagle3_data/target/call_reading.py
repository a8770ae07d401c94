"""Reads the tool calls out of an answer.

Goes in: the form in which a target writes calls, and an answer after its thinking, as text in which the control tokens
of that form are single marks. Comes out: the text before the calls, and each call's name and arguments, or the reason
why it cannot be read. Nothing is repaired: a call is what the form says, or unreadable.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from eagle3_data.target.call_values import (
    NOT_IN_NAMES,
    Braces,
    FaultError,
    check_call,
    json_object,
    json_spans,
    json_value,
    plain_values,
    skip_space,
    typed_value,
)
from eagle3_data.target.calls import CallFormat, Marks, Reading, Schemas, ToolCall
from eagle3_data.target.controls import ControlTokens

_CDATA: Final = re.compile(r"\s*<!\[CDATA\[(.*)\]\]>\s*", re.DOTALL)
_NAME_IN_ID: Final = re.compile(r"\s*(?:functions\.)?(.+?):(\d+)\s*")


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
        unmarked = form.style == "json" and not form.call_begin.strip() and not form.separator
        self._again = re.compile(r"\s*;?\s*(?=\{)") if unmarked else again
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
        `｜DSML｜`), `<` and `</` distinguish a beginning from an end.
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
            except FaultError as fault:
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
                values, place = Braces(text, self.marks.literal(self.form.quote)).read(place)
                arguments = json.dumps(plain_values(values, self.marks.plain), ensure_ascii=False)
            else:
                _, end = json_object(text, place)
                arguments, place = self.marks.plain(text[skip_space(text, place) : end]), end
        inner = text[start:place]
        closed = self._call_end.match(text, place) if self.form.call_end else None
        if self.form.call_end and closed is None:
            raise FaultError(f"the call of {name!r} is not closed")
        check_call(name, arguments)
        calls.append(ToolCall(name, arguments, written, True, self.marks.plain(inner)))
        return place if closed is None else closed.end()

    def _listed(self, text: str, place: int, schemas: Schemas, calls: list[ToolCall]) -> int:
        """Read a JSON list of calls."""
        place = skip_space(text, place)
        if text[place : place + 1] != "[":
            raise FaultError("the calls are no JSON list")
        place = skip_space(text, place + 1)
        while text[place : place + 1] == "{":
            start = place
            name, arguments, written, place = self._object(text, place)
            check_call(name, arguments)
            calls.append(ToolCall(name, arguments, written, True, self.marks.plain(text[start:place])))
            place = skip_space(text, place)
            if text[place : place + 1] == ",":
                place = skip_space(text, place + 1)
        if text[place : place + 1] != "]":
            raise FaultError("the JSON list of calls is not closed")
        closed = self._call_end.match(text, place + 1) if self.form.call_end else None
        if self.form.call_end and closed is None:
            raise FaultError("the calls are not closed")
        return place + 1 if closed is None else closed.end()

    def _object(self, text: str, place: int) -> tuple[str, str, str, int]:
        spans, end = json_spans(text, place)
        name = spans.get(self.form.name_key)
        arguments = spans.get(self.form.arguments_key)
        written = spans.get("id") or spans.get("tool_call_id")
        if name is None or not isinstance(name[0], str):
            raise FaultError(f"a call without {self.form.name_key!r}")
        if arguments is not None and not isinstance(arguments[0], dict):
            raise FaultError(f"the arguments of {name[0]!r} are not a JSON object")
        unknown = spans.keys() - {self.form.name_key, self.form.arguments_key, "id", "tool_call_id", "type"}
        if unknown and self.form.bare:
            raise FaultError(f"the call of {name[0]!r} holds {min(unknown)!r}")
        raw = "{}" if arguments is None else self.marks.plain(text[arguments[1] : arguments[2]])
        return self.marks.plain(name[0]), raw, str(written[0]) if written else "", end

    def _name(self, text: str, place: int) -> tuple[str, str, int]:
        """Return name, id and where the arguments begin (for pairs without `middle`: where the name ends)."""
        written = ""
        if self.form.id_first:
            mark = self._id_mark.search(text, place)
            if mark is None:
                raise FaultError("the id of the call is cut")
            written, place = text[place : mark.start()].strip(), mark.end()
        found = self._name_end.search(text, place)
        if found is None:
            raise FaultError("the name of the call is cut")
        name, end = text[place : found.start()].strip(), found.start()
        if self.form.id_mark and not self.form.id_first and (mark := self._id_mark.match(text, end)):
            middle = self._middle.search(text, mark.end())
            if middle is None:
                raise FaultError("the id of the call is cut")
            written, end = text[mark.end() : middle.start()].strip(), middle.start()
        if self.form.middle:
            middle = self._middle.match(text, end)
            end = middle.end() if middle else end
        if self.form.name_in_id:
            named = _NAME_IN_ID.fullmatch(name)
            if named is None:
                raise FaultError(f"the id {self.marks.plain(name)[:80]!r} names no function")
            name, written = named[1], name
        return self.marks.plain(name) if not NOT_IN_NAMES.search(name) else name, written, end

    def _pairs(self, text: str, place: int, schema: Mapping[str, Any]) -> tuple[str, int]:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        values: dict[str, Any] = {}
        while (begun := self._pair_begin.match(text, place)) is not None:
            ends = [(found, typed) for end, typed in self._key_ends if (found := end.search(text, begun.end()))]
            if not ends:
                raise FaultError("the name of an argument is cut")
            found, typed = min(ends, key=lambda pair: (pair[0].start(), -pair[0].end()))
            key = self.marks.plain(text[begun.end() : found.start()]).strip()
            edge = self._value_edges[0].match(text, found.end())
            first = edge.end() if edge else found.end()
            end = self._value_end.search(text, first)
            if end is None:
                raise FaultError(f"the argument {key[:80]!r} is not closed")
            last = end.start()
            if last > first and (tail := self._value_edges[1].search(text, first, last)):
                last = tail.start()
            if key in values:
                raise FaultError(f"the argument {key[:80]!r} is written twice")
            value = self.marks.plain(text[first:last])
            if self.form.cdata and (whole := _CDATA.fullmatch(value)):
                value = whole[1].replace("]]]]><![CDATA[>", "]]>")
            told = bool(self.form.typed_key_end)
            known = properties.get(key) if isinstance(properties, Mapping) else None
            values[key] = json_value(key, value) if typed else value if told else typed_value(value, known)
            place = end.end()
        return json.dumps(values, ensure_ascii=False), place


def _edge(literal: str, *, at_end: bool) -> str:
    """Return a regular expression for the white space of a literal that stands next to a value."""
    space = literal[len(literal.rstrip()) :] if at_end else literal[: len(literal) - len(literal.lstrip())]
    if not space:
        return r"(?!)"
    return f"(?:{re.escape(space)})" if at_end else rf"(?:{re.escape(space)})\Z"
