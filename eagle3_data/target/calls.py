"""The form in which a target writes tool calls, and what is read by it.

Goes in: literal texts. Comes out: `CallFormat`, `ToolCall` and `Reading`, and `Marks`, with which control tokens stand
in text as single characters.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle3_data.target.controls import ControlTokens

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
            value whose type the tool's schema says; `typed_key_end` that of a JSON value, "" if nothing shows it.
        cdata: a text of `pairs` may stand in `<![CDATA[` and `]]>`, which are no part of it.
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
    cdata: bool = False
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
