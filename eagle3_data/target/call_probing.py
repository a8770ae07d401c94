"""Finds the form in which a template writes tool calls, by rendering calls and reading them back.

Goes in: a function that renders an assistant message as the last of a chat. Comes out: a `CallFormat` that reads
back what was rendered: a known one, or one whose literal texts were taken from between the words of the probes.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from eagle3_data.target.call_formats import CALL_FORMATS
from eagle3_data.target.call_reading import CallReader
from eagle3_data.target.calls import CallFormat, Marks
from eagle3_data.target.controls import ControlTokens

CONTENT: Final = "Zanswer"
_NAMES: Final = ("zfirst", "zsecond")
_IDS: Final = ("Zcallone1", "Zcalltwo2")

Call = tuple[str, dict[str, Any]]
Turn = Callable[[Sequence[Call], str], str | None]

_CHUNKS: Final = re.compile(r"[\ud800-\udfff]|</?[\w:.|｜▁-]*|\s+|\w+|.", re.DOTALL)
_ONE: Final[Call] = (_NAMES[0], {"zkey": "Zone"})
_TWO: Final[Call] = (_NAMES[1], {"zkey": "Ztwo"})

PROBE_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Zdescription",
            "parameters": {
                "type": "object",
                "properties": {
                    "zkey": {"type": "string", "description": "Zmeaning"},
                    "zlast": {"type": "string", "description": "Zmeaning"},
                    "zcount": {"type": "integer", "description": "Zmeaning"},
                },
                "required": ["zkey"],
            },
        },
    }
    for name in _NAMES
]
_SCHEMAS: Final[dict[str, Any]] = {tool["function"]["name"]: tool["function"]["parameters"] for tool in PROBE_TOOLS}  # type: ignore[index]


def find_call_format(turn: Turn, controls: ControlTokens, *, strict: bool) -> CallFormat | None:
    """Return the form in which calls are written, None if none reads back what is rendered.

    Args:
        turn: renders calls and a content as one assistant turn, without its header and end; None if it cannot.
        controls: the control tokens of the tokenizer.
        strict: nothing may follow the calls; else control tokens and the content may.
    """
    rendered = "".join(turn([_ONE], content) or "" for content in (CONTENT, ""))
    if _ONE[0] not in rendered:
        return None
    written = set(controls.spelled(rendered))
    for form in (*CALL_FORMATS.values(), *_learned(turn, controls)):
        if not written.issuperset(controls.spelled(form.call_begin)):
            continue
        if not _reads_back(CallReader(form, controls), turn, strict):
            continue
        for one in (form, replace(form, cdata=True)):
            if form.style != "pairs" or _reads_markup(CallReader(one, controls), turn):
                return one
    return None


def _reads_markup(reader: CallReader, turn: Turn) -> bool:
    """Tell whether a text that looks like markup, which a template may escape, is given back as it was."""
    calls: list[Call] = [(_NAMES[0], {"zkey": "Z<1> & Z"})]
    text = turn(calls, "")
    read = reader.read(reader.marks.literal(text), _SCHEMAS) if text else None
    return read is None or [(call.name, json.loads(call.arguments)) for call in read.calls if call.complete] == calls


def _samples() -> Iterator[tuple[list[Call], str]]:
    for content in (CONTENT, ""):
        yield [_ONE], content
        yield [_ONE, _TWO], content
    yield [(_NAMES[0], {"zkey": "Z1", "zlast": "Z 2"})], ""
    yield [(_NAMES[0], {"zkey": "7", "zcount": 7})], ""


def _reads_back(reader: CallReader, turn: Turn, strict: bool) -> bool:
    """Tell whether a reader gives back every call that the template renders."""
    seen = 0
    for calls, content in _samples():
        text = turn(calls, content)
        if text is None or not all(str(value) in text for _, values in calls for value in values.values()):
            continue
        read = reader.read(reader.marks.literal(text), _SCHEMAS)
        after = read.after if strict else "".join(piece for piece, _ in reader.controls.cut(read.after))
        shown = content in read.content or (not strict and content == after.strip())
        if (after.strip() and after.strip() != content) or read.fault or (content in text and not shown):
            return False
        if [(call.name, json.loads(call.arguments)) for call in read.calls] != calls:
            return False
        seen += 1
    return seen > 0


# ---- a form that is not known


def _learned(turn: Turn, controls: ControlTokens) -> Iterator[CallFormat]:
    for content in (CONTENT, ""):
        texts = [turn([_ONE], content), turn([_ONE, _TWO], content)]
        if not all(text is None or text.startswith(content) for text in texts) or texts[0] is None:
            continue
        marks = Marks(controls, [text for text in texts if text])
        one, two = (marks.literal(text)[len(content) :] if text else "" for text in texts)
        for learn in (_learn_json, _learn_named):
            form = learn(one, two)
            if form is not None:
                yield _spelled(form, marks)
        more = [turn(calls, content) for calls in ([(_NAMES[0], {"zkey": "Zone", "zlast": "Ztwo"})],)]
        if all(text and text.startswith(content) for text in more):
            marks = Marks(controls, [text for text in (*texts, *more) if text])
            one, two, pair = (marks.literal(text)[len(content) :] if text else "" for text in (*texts, *more))
            form = _learn_pairs(one, two, pair)
            if form is not None:
                yield _spelled(form, marks)


def _spelled(form: CallFormat, marks: Marks) -> CallFormat:
    texts = {
        key: marks.plain(value)
        for key, value in vars(form).items()
        if isinstance(value, str) and key not in ("name", "style")
    }
    return replace(form, **texts)  # type: ignore[arg-type]


def _framed(form: CallFormat, begin: str, between: str, end: str) -> CallFormat:
    """Return a form with the literals of section and call, from what stands before, between and after calls."""
    if not between:
        return replace(form, call_begin=begin.strip(), call_end=end.strip())
    call_begin = _common_suffix(begin, between)
    call_end = _common_prefix(between, end)
    return replace(
        form,
        section_begin=begin[: len(begin) - len(call_begin)].strip(),
        call_begin=call_begin.strip(),
        call_end=call_end.strip(),
        section_end=end[len(call_end) :].strip(),
        separator=between[len(call_end) : max(len(call_end), len(between) - len(call_begin))].strip(),
    )


def _learn_json(one: str, two: str) -> CallFormat | None:
    for place in (at for at, letter in enumerate(one[: one.find(_NAMES[0]) + 1]) if letter in "[{"):
        read = _decoded(one, place)
        if read is None:
            continue
        value, end = read
        listed = isinstance(value, list)
        entry = value[0] if listed and value and isinstance(value[0], dict) else value
        if not isinstance(entry, dict):
            continue
        names = [key for key, item in entry.items() if item == _NAMES[0]]
        arguments = [key for key, item in entry.items() if item == _ONE[1]]
        if len(names) != 1 or len(arguments) != 1:
            continue
        second = two.find("{", two.find("}}") + 1)
        first_end = _decoded(two, place)
        between = two[first_end[1] : second] if first_end and second > 0 else ""
        last = _decoded(two, second) if second > 0 else None
        tail = two[last[1] :] if last else one[end:]
        keys = {"name_key": names[0], "arguments_key": arguments[0]}
        form = CallFormat("template", "json", listed=listed, bare=not one[:place].strip(), **keys)
        return _framed(form, one[:place], "" if listed else between, one[end:] if listed else tail)
    return None


@dataclass(frozen=True)
class _Parts:
    """One call that is a name and a JSON object: where it begins and ends, and the literals inside it."""

    start: int
    stop: int
    middle: str
    id_mark: str
    id_first: bool
    name_in_id: bool


def _learn_named(one: str, two: str) -> CallFormat | None:
    parts = _parts(one, 0, 0)
    if parts is None:
        return None
    again = _parts(two, 1, parts.stop) if two.startswith(one[: parts.stop]) else None
    between, tail = (two[parts.stop : again.start], two[again.stop :]) if again else ("", one[parts.stop :])
    form = CallFormat(
        "template",
        "named",
        middle=parts.middle,
        id_mark=parts.id_mark,
        id_first=parts.id_first,
        name_in_id=parts.name_in_id,
    )
    return _framed(form, one[: parts.start], between, tail)


def _parts(text: str, index: int, after: int) -> _Parts | None:
    """Return the parts of the call number `index` in `text`, looked for from `after` on."""
    name, written = _NAMES[index], f"functions.{_NAMES[index]}:{index}"
    start = text.find(name, after)
    in_id = start >= 0 and text.startswith(written, start - len("functions."))
    start, stop = (
        (start - len("functions."), start - len("functions.") + len(written))
        if in_id
        else (
            start,
            start + len(name),
        )
    )
    brace = text.find("{", stop)
    read = _decoded(text, brace) if start >= 0 and brace >= 0 else None
    if read is None or read[0] != (_ONE, _TWO)[index][1]:
        return None
    middle, id_mark = text[stop:brace], ""
    identity = text.find(_IDS[index], after)
    if 0 <= identity < start:
        return _Parts(identity, read[1], middle, text[identity + len(_IDS[index]) : start], True, in_id)
    if stop <= identity < brace:
        id_mark, middle = middle.split(_IDS[index], 1)
    return _Parts(start, read[1], middle, id_mark, False, in_id)


def _learn_pairs(one: str, two: str, pair: str) -> CallFormat | None:
    name, key, value = (one.find(word) for word in (_NAMES[0], "zkey", "Zone"))
    if not 0 <= name < key < value:
        return None
    stop = name + len(_NAMES[0])
    middle, key_end = one[stop:key], one[key + 4 : value]
    following, second = pair.find("zlast"), pair.find("Ztwo")
    if not pair.startswith(one[: value + 4]) or not value < following < second:
        return None
    step = pair[value + 4 : following]
    pair_begin = _common_suffix(middle, step)
    value_end = step[: len(step) - len(pair_begin)]
    after = one[value + 4 :]
    if not value_end or not after.startswith(value_end):
        value_end = _common_prefix(step, after)
        pair_begin = step[len(value_end) :]
    if not middle.endswith(pair_begin):
        return None
    again = two.find(_NAMES[1])
    between = two[value + 4 : again] if two.startswith(one[: value + 4]) and again > 0 else ""
    tail = two[two.find("Ztwo") + 4 :] if between else after
    if between and not between.startswith(value_end):
        return None
    form = CallFormat(
        "template",
        "pairs",
        middle=middle[: len(middle) - len(pair_begin)].strip(),
        pair_begin=pair_begin.strip(),
        key_end=key_end,
        value_end=value_end,
    )
    return _framed(form, one[:name], between[len(value_end) :], tail[len(value_end) :])


def _decoded(text: str, place: int) -> tuple[Any, int] | None:
    try:
        return json.JSONDecoder().raw_decode(text, place)
    except (ValueError, RecursionError):
        return None


def _common_prefix(one: str, other: str) -> str:
    """Return what two texts begin with, cut at whole chunks: marks, tags, words, white space."""
    return "".join(_shared(_CHUNKS.findall(one), _CHUNKS.findall(other)))


def _common_suffix(one: str, other: str) -> str:
    return "".join(_shared(_CHUNKS.findall(one)[::-1], _CHUNKS.findall(other)[::-1])[::-1])


def _shared(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return what two sequences begin with."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [first for first, _ in pairs]
