"""Reads what a chat template does by rendering sentinel words through it.

Goes in: a template and the control tokens of its tokenizer. Comes out: what the template writes around questions,
answers, thinking, calls and results, what it leaves out, and the rules for preparing chats. Nothing is typed in for a
model.
"""

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from eagle3_data.errors import DataError
from eagle3_data.target.call_formats import CALL_FORMATS
from eagle3_data.target.call_probing import CONTENT, Call, find_call_format
from eagle3_data.target.calls import CallFormat
from eagle3_data.target.chats import ChatRules
from eagle3_data.target.messages import Joints
from eagle3_data.target.profile import ThinkingState
from eagle3_data.target.turn_probing import REASON, REASONING_KEYS, TurnProber, assistant, shared, user

# The markers of thinking that models in use have; the first pair whose two strings are single added tokens counts.
THINK_MARKERS: Final = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
THINKING_SWITCHES: Final = ("thinking", "enable_thinking")
_HARMONY: Final = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")

_SYSTEM, _RESULT, _NAME = "Zsystem", "Zresult", "Zname"
_IDS: Final = ("Zcallone1", "Zcalltwo2")
_CALLS: Final[tuple[Call, ...]] = (("zfirst", {"zkey": "Zone"}), ("zsecond", {"zkey": "Ztwo"}))


@dataclass(frozen=True)
class Writing:
    """How a template takes and writes calls.

    Attributes:
        form: the form in which it writes them, None if it writes none that can be read back.
        mapping: arguments must be a mapping; as JSON text they are not printed as an object.
        null_content: calls are only written where the content of their message is null.
        named_ids: what is written of a call is its id, which must hold the name.
    """

    form: CallFormat | None
    mapping: bool
    null_content: bool
    named_ids: bool


class Prober(TurnProber):
    """Reads calls, rules and thinking off one template."""

    # ---- calls

    @functools.cached_property
    def writing(self) -> Writing:
        """How calls must be given to the template, and the form in which it writes them.

        Arguments stay the JSON text that they are where a mapping is printed the same or refused; else they become a
        mapping, which is what the template prints as an object.
        """
        for strict, null_content, mapping, named_ids in itertools.product((True, False), *[(False, True)] * 3):
            writing = Writing(None, mapping, null_content, named_ids)
            turn = functools.partial(self._turn, writing=writing)
            form = find_call_format(turn, self._controls, strict=strict)
            if form is None:
                continue
            if not mapping:
                other = replace(writing, mapping=True)
                texts = [self._turn(_CALLS[:1], "", one) for one in (writing, other)]
                if texts[1] not in (None, texts[0]):
                    turn = functools.partial(self._turn, writing=other)
                    better = find_call_format(turn, self._controls, strict=strict)
                    writing, form = (writing, form) if better is None else (other, better)
            return replace(writing, form=self._without_end(_without_thinking(form), writing))
        return Writing(self._named_in_source(), self._shows_mapping(), False, False)

    def _named_in_source(self) -> CallFormat | None:
        """Return the known form whose control strings the template's source holds, if calls cannot be rendered."""
        turns = [self._turn(_CALLS[:1], content, Writing(None, True, False, False)) for content in (CONTENT, "")]
        if any(_CALLS[0][0] in (turn or "") for turn in turns):
            return None
        source = "\n".join(self._template.sources())
        for form in CALL_FORMATS.values():
            controls = set(self._controls.spelled(form.section_begin + form.call_begin + form.call_end))
            if controls and all(control in source for control in controls):
                return form
        return None

    def _shows_mapping(self) -> bool:
        texts = [self._turn(_CALLS[:1], "", Writing(None, mapping, False, False)) for mapping in (False, True)]
        return "Zone" in (texts[1] or "") and json.dumps(_CALLS[0][1]) not in (texts[0] or "")

    def calling(self, calls: Sequence[Call], content: str, writing: Writing | None = None) -> dict[str, Any]:
        """Return an assistant message with calls, as the template must be given it."""
        writing = writing or self.writing
        made = [
            {
                "id": f"functions.{name}:{index}" if writing.named_ids else _IDS[index],
                "type": "function",
                "function": {"name": name, "arguments": values if writing.mapping else json.dumps(values)},
            }
            for index, (name, values) in enumerate(calls)
        ]
        given = None if writing.null_content and not content else content
        return {"role": "assistant", "content": given, "tool_calls": made}

    def _turn(self, calls: Sequence[Call], content: str, writing: Writing | None = None) -> str | None:
        """Render calls and a content as one assistant turn, without its header and end; None if it cannot be."""
        message = self.calling(calls, content, writing)
        for tools in (True, False):
            text = self._try([user(), message], tools)
            plain = self._try([user(), assistant()], tools)
            if text is None or plain is None or CONTENT not in plain:
                continue
            header = self._controls.before(text, shared(text, plain[: plain.rfind(CONTENT)]))
            tail, text = plain[plain.rfind(CONTENT) + len(CONTENT) :].rstrip(), text.rstrip()
            ending = text[len(text) - shared(text[::-1], tail[::-1]) :]
            first = self._controls.first(ending)
            return text[header : len(text) - (0 if first is None else len(ending) - first)]
        return None

    def writes_calls(self) -> bool:
        """Tell whether anything of a call is written at all."""
        contents = (CONTENT, "")
        turns = [self._turn(_CALLS[:1], content) for content in contents]
        return any(turn is not None and _CALLS[0][0] in turn for turn in turns)

    # ---- rules

    def rules(self) -> ChatRules:
        """Return how chats must be prepared for this template."""
        named = self._try([{**user(), "name": _NAME}])
        unnamed = self._try([user()])
        replaces = bool(named and unnamed and _NAME in named and named.replace(_NAME, "user") == unnamed)
        return ChatRules(
            mapping_arguments=self.writing.mapping,
            text_arguments=not self.writing.mapping and not self._takes_mapping(),
            canonical_call_ids=self.writing.named_ids,
            short_call_ids=self._wants_short_ids(),
            name_replaces_role=replaces,
            null_content=self.writing.null_content,
            reasoning_key=self._reasoning_key(),
            typescript_tools=self._template.takes_typescript,
            drops=self._drops(replaces),
        )

    def _takes_mapping(self) -> bool:
        """Tell whether arguments that are a mapping are printed as their JSON text is."""
        turns = [self._turn(_CALLS[:1], "", replace(self.writing, mapping=mapping)) for mapping in (False, True)]
        return turns[0] == turns[1]

    def _wants_short_ids(self) -> bool:
        """Tell whether ids of calls must be nine letters and digits (Mistral's templates refuse others)."""
        if self.writing.named_ids or self._try([user(), self.calling(_CALLS[:1], "")], True) is None:
            return False
        message = self.calling(_CALLS[:1], "")
        message["tool_calls"][0]["id"] = "call_of_another_length"
        return self._try([user(), message], True) is None

    def _reasoning_key(self) -> str:
        """Return the key of a message whose text is shown as its reasoning."""
        for key in REASONING_KEYS:
            for answer in (assistant(), self.calling(_CALLS[:1], "")):
                text = self._try([user(), {**answer, key: REASON}], tools="tool_calls" in answer)
                if text is not None and REASON in text:
                    return key
        return REASONING_KEYS[0]

    def _drops(self, replaces_role: bool) -> frozenset[str]:
        """Return the parts of a chat that the template leaves out; a chat that it refuses does not count."""
        found: set[str] = set()

        def note(part: str, messages: list[dict[str, Any]], word: str) -> None:
            # Calls come with tools, for which a tokenizer may have a template of its own (Hermes).
            text = self._try(messages, tools=len(messages) > 1 and messages[1]["role"] == "assistant")
            text = self._try(messages) if text is None else text
            if text is not None and word not in text:
                found.add(part)

        note("system messages", [{"role": "system", "content": _SYSTEM}, user()], _SYSTEM)
        if not replaces_role:
            note("names", [{**user(), "name": _NAME}], _NAME)
        one, two = (str(values["zkey"]) for _, values in _CALLS)
        for content, part in (("", "tool calls"), (CONTENT, "tool calls beside content")):
            message = self.calling(_CALLS[:1], content)
            note(part, [user(), message], one)
            if content and part not in found:
                note("content beside tool calls", [user(), message], content)
        several = self.calling(_CALLS, "")
        if "tool calls" not in found:
            note("tool calls after the first", [user(), several], two)
        if "tool calls" in found:
            found.discard("tool calls beside content")
        answered = [user(), self.calling(_CALLS[:1], ""), *self._results(1)]
        note("tool results", answered, _RESULT)
        return frozenset(found)

    def _results(self, count: int) -> list[dict[str, Any]]:
        calls = self.calling(_CALLS[:count], "")["tool_calls"]
        return [
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": _RESULT}
            for call in calls
        ]

    # ---- thinking

    def switch(self) -> str | None:
        """Return the template variable that turns thinking on and off, None if neither known one changes anything."""
        for name in THINKING_SWITCHES:
            try:
                on = self._text([user()], prompt=True, **{name: True})
                off = self._text([user()], prompt=True, **{name: False})
            except DataError:
                continue
            if on != off:
                return name
        return None

    @functools.cached_property
    def think_ids(self) -> tuple[int | None, int | None]:
        """The ids of the thinking markers that the template can write, (None, None) if there are none.

        A pair that is known by name counts if the template's source holds it; else the tokens between which a
        rendered reasoning stands, if they stand in no answer without reasoning.
        """
        sources = "\n".join(self._template.sources())
        for begin, end in THINK_MARKERS:
            if begin in self._controls.ids and end in self._controls.ids and (end in sources or begin in sources):
                return self._controls.ids[begin], self._controls.ids[end]
        return (None, None) if self.is_harmony() else self._paired_around_reasoning()

    def _paired_around_reasoning(self) -> tuple[int | None, int | None]:
        """Return the tokens between which a reasoning stands, if the turn has each of them once.

        An answer without reasoning may hold the pair around nothing, or its end alone before the content.
        """
        for text, plain in self._with_and_without_reasoning():
            before, rest = text.rsplit(REASON, 1)
            opened, closed = self._ids(before)[-1:], self._ids(rest)[:1]
            if not opened or not closed or opened == closed:
                continue
            begin, end = opened[0], closed[0]
            shown, plainly = self._ids(text), self._ids(plain)
            if shown.count(begin) != 1 or shown.count(end) != 1 or not rest.find(CONTENT) > 0:
                continue
            kept = [index for index in plainly if index in (begin, end)]
            empty = f"{self._controls.strings[begin]}{self._controls.strings[end]}" in "".join(plain.split())
            ends_early = end in self._ids(plain[: plain.find(CONTENT)])
            if not kept or (kept == [begin, end] and empty) or (kept == [end] and ends_early):
                return begin, end
        return None, None

    def _with_and_without_reasoning(self) -> Iterator[tuple[str, str]]:
        """Yield the turns of answers whose reasoning is shown, each with the same answer without any."""
        key = self._reasoning_key()
        for answer, tools in ((assistant(), False), (self.calling(_CALLS[:1], CONTENT), True)):
            text, plain = self._answered({**answer, key: REASON}, tools), self._answered(answer, tools)
            if REASON in text and plain:
                yield text, plain

    def unmarked_reasoning(self) -> str:
        """Return what stands before a reasoning that the template shows, "" if it shows none."""
        for text, _ in self._with_and_without_reasoning():
            return text[: text.find(REASON)].strip()[-60:] or "nothing"
        return ""

    def tool_turn(self, default: str) -> str:
        """Return the text after a final tool result, generation prompt included; `default` if none can be rendered."""
        for count, content in ((2, CONTENT), (2, ""), (1, "")):
            chat = [user(), self.calling(_CALLS[:count], content), *self._results(count)]
            text = self._try(chat, tools=True, prompt=True) or self._try(chat, prompt=True)
            if text is not None and _RESULT in text and _CALLS[0][0] in text:
                tail = text[text.rfind(_RESULT) + len(_RESULT) :]
                # Ordinary text before the first control token may merge with the end of the result, so it proves
                # nothing.
                first = self._controls.first(tail)
                return tail if first is None else tail[first:]
        return default

    def state(self, suffix: str, begin: int | None, end: int | None) -> ThinkingState:
        """Tell whether the generation prompt `suffix` leaves thinking open, closed, or to the model."""
        if end is None:
            return "none"
        marks = [index for index in self._ids(suffix) if index in (begin, end)]
        if not marks:
            return "model"
        return "open" if marks[-1] == begin else "closed"

    def keeps_reasoning(self) -> tuple[bool, bool]:
        """Tell whether reasoning shows in the last answer, and in an earlier one, when a chat is rendered again."""
        answer = {**assistant(), self._reasoning_key(): REASON}
        last, history = self._try([user(), answer]), self._try([user(), answer, user()])
        return bool(last and REASON in last), bool(history and REASON in history)

    def joints(self) -> Joints:
        """Return the white space that the template writes around the parts of an answer."""
        begin, end = self.think_ids
        strings = self._controls.strings
        joints = Joints()
        for answer in (assistant(), self.calling(_CALLS[:1], CONTENT)):
            reasoned = self._try([user(), {**answer, self._reasoning_key(): REASON}], "tool_calls" in answer) or ""
            if begin is None or end is None or REASON not in reasoned or CONTENT not in reasoned:
                continue
            before, rest = reasoned.rsplit(REASON, 1)
            opened, closed = before.rsplit(strings[begin], 1)[-1], rest.split(strings[end], 1)
            content = closed[-1].split(CONTENT, 1)[0] if len(closed) == 2 else ""
            joints = Joints(opened, closed[0], "" if content.strip() else content)
            break
        turn = self._turn(_CALLS[:1], CONTENT)
        tail = turn.split(CONTENT, 1)[-1] if turn else ""
        return replace(joints, before_calls=tail[: len(tail) - len(tail.lstrip())])

    def shows_tools(self) -> bool:
        """Tell whether the template prints the tools at all."""
        text = self._try([user()], tools=True)
        return bool(text and _CALLS[0][0] in text)

    # ---- end of turn

    def ends_of_calls(self) -> list[int]:
        """Return the control tokens that end an answer which calls, where that differs from other answers'.

        Such a token stands last in the turn, is no part of the form of the calls, and nothing that ends other answers
        follows it (harmony's `<|call|>`, Gemma's `<|tool_response>`).
        """
        literals = self.writing.form.literals() if self.writing.form else []
        own = {index for literal in literals for index in self._ids(literal)}
        return [index for index in self._last_of_calls(self.writing) if index not in own]

    def _last_of_calls(self, writing: Writing) -> list[int]:
        """Return the last control token of a turn that calls, if nothing there is written after other answers."""
        called = self._try([user(), self.calling(_CALLS[:1], "", writing)], tools=True)
        ending = [index for _, index in self._after_answer()]
        if called is None or "Zone" not in called or not ending:
            return []
        tail = self._ids(called[called.rfind("Zone") :])
        return [] if set(ending) & set(tail) else tail[-1:]

    def _without_end(self, form: CallFormat, writing: Writing) -> CallFormat:
        """Return a form that was read off without the end of the turn, if something else still ends its calls."""
        if form.name != "template":
            return form
        ends = {*self._last_of_calls(writing), *(index for _, index in self._after_answer())}
        for key in ("section_end", "call_end"):
            for end in (self._controls.strings[index] for index in ends):
                literal = getattr(form, key)
                rest = replace(form, **{key: literal.removesuffix(end).strip()})
                if literal.endswith(end) and rest.call_end + rest.section_end:
                    form = rest
        return form

    def call_opening(self) -> str:
        """Return the first word that stands between an answer's content and its calls, "" if there is none."""
        turn = self._turn(_CALLS[:1], CONTENT) or ""
        between = turn[len(CONTENT) : turn.find(_CALLS[0][0])] if turn.startswith(CONTENT) else ""
        return between.split()[0] if between.split() else ""

    def is_harmony(self) -> bool:
        """Tell whether the template writes the harmony format (gpt-oss), which marks no thinking but channels."""
        sources = "\n".join(self._template.sources())
        return all(marker in self._controls.ids and marker in sources for marker in _HARMONY)


def thinking_markers(prober: Prober, given: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the ids of the thinking markers, those that a recipe gives before those that are read off."""
    begin, end = prober.think_ids
    return given.get("think_begin_id", begin), given.get("think_end_id", end)


def _without_thinking(form: CallFormat) -> CallFormat:
    """Return a form whose beginning holds no end of thinking: some templates write content there (Command-R)."""
    section, call = form.section_begin, form.call_begin
    for _, end in THINK_MARKERS if form.name == "template" else ():
        section, call = section.rpartition(end)[2].strip(), call.rpartition(end)[2].strip()
    return replace(form, section_begin=section, call_begin=call)
