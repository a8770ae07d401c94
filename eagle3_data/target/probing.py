"""Reads what a chat template does by rendering sentinel words through it.

Goes in: a template, the control tokens of its tokenizer and the end ids of the model's configuration. Comes out: the
rules for preparing chats and the token profile. Nothing is typed in for a model: what cannot be read off is one
error that names the fields to give in the recipe.
"""

import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from eagle3_data.errors import DataError, TargetError
from eagle3_data.target.call_formats import CALL_FORMATS, HARMONY
from eagle3_data.target.call_probing import CONTENT, PROBE_TOOLS, Call, find_call_format
from eagle3_data.target.calls import CallFormat
from eagle3_data.target.chats import Chat, ChatRules, prepare_tools
from eagle3_data.target.controls import ControlTokens
from eagle3_data.target.messages import Joints
from eagle3_data.target.profile import ThinkingState, TokenProfile
from eagle3_data.target.template import ChatTemplate

# The markers of thinking that models in use have; the first pair whose two strings are single added tokens counts.
THINK_MARKERS: Final = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
THINKING_SWITCHES: Final = ("thinking", "enable_thinking")
_HARMONY: Final = ("<|start|>", "<|channel|>", "<|message|>")

_USER, _CONTENT, _REASON, _RESULT = "Zquestion", CONTENT, "Zreason", "Zresult"
_NAMES, _VALUES, _IDS = ("zfirst", "zsecond"), ("Zone", "Ztwo"), ("Zcallone1", "Zcalltwo2")

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class EndIds:
    """Ids that end an answer by the model's files: config.json, generation_config.json, the tokenizer."""

    generation_config: tuple[int, ...] = ()
    config: tuple[int, ...] = ()
    tokenizer: tuple[int, ...] = ()


@dataclass
class _Calls:
    """What rendering tool calls showed."""

    mapping: bool = False
    shows_ids: bool = False
    shows_names: bool = False
    before: list[int] = field(default_factory=list)
    separator: int | None = None
    between: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    messages: list[dict[str, Any]] | None = None


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


class Prober:
    """Renders sentinel chats through one template."""

    def __init__(self, template: ChatTemplate, controls: ControlTokens) -> None:
        self._template = template
        self._controls = controls
        self.writing = self._probe_writing()
        self.calls = self._probe_calls()

    # ---- rendering

    def _text(
        self, messages: list[dict[str, Any]], tools: bool = False, prompt: bool = False, **variables: Any
    ) -> str:
        template = (
            self._template.with_variables({**self._template.variables, **variables}) if variables else self._template
        )
        schemas, declaration = prepare_tools(PROBE_TOOLS, template.takes_typescript) if tools else (None, None)
        return template.text(Chat(messages, schemas, declaration), generation_prompt=prompt)

    def _try(self, messages: list[dict[str, Any]], tools: bool = False, prompt: bool = False) -> str | None:
        try:
            return self._text(messages, tools, prompt)
        except DataError:
            return None

    def _ids(self, text: str) -> list[int]:
        return [index for _, index in self._controls.cut(text) if index >= 0]

    # ---- calls

    def _probe_writing(self) -> "Writing":
        """Find how calls must be given to the template, and the form in which it writes them."""
        for null_content in (False, True):
            for mapping in (False, True):
                for named_ids in (False, True):
                    writing = Writing(None, mapping, null_content, named_ids)
                    form = find_call_format(functools.partial(self._turn, writing=writing), self._controls)
                    if form is not None:
                        return replace(writing, form=form)
        return Writing(None, False, False, False)

    def _turn(self, calls: Sequence[Call], content: str, writing: "Writing") -> str | None:
        """Render calls and a content as one assistant turn, without its header and end; None if it cannot be."""
        made = [
            {
                "id": f"functions.{name}:{index}" if writing.named_ids else _IDS[index],
                "type": "function",
                "function": {"name": name, "arguments": values if writing.mapping else json.dumps(values)},
            }
            for index, (name, values) in enumerate(calls)
        ]
        given = None if writing.null_content and not content else content
        text = self._try([_user(), {"role": "assistant", "content": given, "tool_calls": made}], tools=True)
        plain = self._try([_user(), _assistant()], tools=True)
        if text is None or plain is None or _CONTENT not in plain:
            return None
        header, end = plain[: plain.rfind(_CONTENT)], plain[plain.rfind(_CONTENT) + len(_CONTENT) :]
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, header, strict=False))
        turn = text[sum(1 for _ in shared) :]
        closing = next((self._controls.strings[index] for _, index in self._controls.cut(end) if index >= 0), "")
        return turn[: turn.find(closing)] if closing and closing in turn else turn

    def _probe_calls(self) -> _Calls:
        plain = self._try([_user(), _assistant()]) or ""
        seen = set(self._ids(plain))
        for content, count in ((_CONTENT, 2), ("", 2), ("", 1)):
            for mapping in (False, True):
                messages = [_user(), _calling(content, count, mapping)]
                text = self._try(messages, tools=True)
                if text is None:
                    continue
                start = text.rfind(content or _USER)
                tail = text[max(start, 0) :]
                shown = [_json(index) if not mapping else _VALUES[index] for index in range(count)]
                if all(piece in tail for piece in shown):
                    return self._read_calls(tail, count, mapping, seen, messages)
        return _Calls()

    def _read_calls(
        self, tail: str, count: int, mapping: bool, seen: set[int], messages: list[dict[str, Any]]
    ) -> _Calls:
        def where(words: Sequence[str], index: int) -> int:
            return tail.find(words[index])

        names = [where(_NAMES, index) for index in range(count)]
        ids = [where(_IDS, index) for index in range(count)]
        calls = _Calls(mapping, shows_ids=ids[0] >= 0, shows_names=names[0] >= 0, messages=messages)
        heads = [
            min(place for place in (names[index], ids[index]) if place >= 0)
            for index in range(count)
            if names[index] >= 0 or ids[index] >= 0
        ]
        if len(heads) != count:
            return calls
        values = [where(_VALUES, index) for index in range(count)]
        calls.before = [index for index in self._ids(tail[: heads[0]]) if index not in seen]
        if heads[0] < values[0]:
            between = self._ids(tail[heads[0] : values[0]])
            calls.separator = between[0] if between else None
        if count == 2:
            calls.between = self._ids(tail[values[0] : heads[1]])
        calls.after = [index for index in self._ids(tail[values[-1] :]) if index not in seen]
        return calls

    # ---- rules

    def rules(self) -> ChatRules:
        """Return how chats must be prepared for this template."""
        named = self._try([{**_user(), "name": "Zname"}])
        unnamed = self._try([_user()])
        replaces = bool(named and unnamed and "Zname" in named and named.replace("Zname", "user") == unnamed)
        return ChatRules(
            mapping_arguments=self.writing.mapping if self.writing.form else self.calls.mapping,
            canonical_call_ids=self.writing.named_ids or (self.calls.shows_ids and not self.calls.shows_names),
            null_content=self.writing.null_content,
            name_replaces_role=replaces,
            typescript_tools=self._template.takes_typescript,
        )

    # ---- thinking

    def switch(self) -> str | None:
        """Return the template variable that turns thinking on and off, None if neither known one changes anything."""
        for name in THINKING_SWITCHES:
            try:
                on = self._text([_user()], prompt=True, **{name: True})
                off = self._text([_user()], prompt=True, **{name: False})
            except DataError:
                continue
            if on != off:
                return name
        return None

    def think_ids(self) -> tuple[int | None, int | None]:
        """Return the ids of the thinking markers that the template can write, (None, None) if there are none."""
        sources = "\n".join(self._template.sources())
        for begin, end in THINK_MARKERS:
            if begin in self._controls.ids and end in self._controls.ids and (end in sources or begin in sources):
                return self._controls.ids[begin], self._controls.ids[end]
        return None, None

    def generation_prompt(self) -> str:
        """Return the text that the template adds after a final user message.

        Raises:
            TargetError: asking for a generation prompt changes the chat before it, or adds nothing.
        """
        without = self._text([_user()])
        with_prompt = self._text([_user()], prompt=True)
        if not with_prompt.startswith(without) or with_prompt == without:
            raise TargetError(
                "the chat template adds no generation prompt of its own (add_generation_prompt changes "
                f"{'nothing' if with_prompt == without else 'the chat before it'}), so the target cannot be asked to "
                "answer; mend chat_template.jinja"
            )
        return with_prompt[len(without) :]

    def tool_turn(self, default: str) -> str:
        """Return the text after a final tool result, generation prompt included; `default` if none can be rendered."""
        if self.calls.messages is None:
            return default
        results = [
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": _RESULT}
            for call in self.calls.messages[-1]["tool_calls"]
        ]
        text = self._try([*self.calls.messages, *results], tools=True, prompt=True)
        if text is None or _RESULT not in text:
            return default
        tail = text[text.rfind(_RESULT) + len(_RESULT) :]
        # Ordinary text before the first control token may merge with the end of the result, so it proves nothing.
        first = self._controls.first(tail)
        return tail if first is None else tail[first:]

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
        answer = {**_assistant(), "reasoning_content": _REASON}
        last, history = self._try([_user(), answer]), self._try([_user(), answer, _user()])
        return bool(last and _REASON in last), bool(history and _REASON in history)

    def joints(self) -> Joints:
        """Return the white space that the template writes around the parts of an answer."""
        begin, end = self.think_ids()
        strings = self._controls.strings
        reasoned = self._try([_user(), {**_assistant(), "reasoning_content": _REASON}]) or ""
        joints = Joints()
        if begin is not None and end is not None and _REASON in reasoned and _CONTENT in reasoned:
            before, rest = reasoned.rsplit(_REASON, 1)
            opened, closed = before.rsplit(strings[begin], 1)[-1], rest.split(strings[end], 1)
            content = closed[-1].split(_CONTENT, 1)[0]
            spaces = (opened, closed[0], content if len(closed) == 2 else "")
            joints = Joints(*(space if not space.strip() else "" for space in spaces))
        turn = self._turn([(_NAMES[0], {"zkey": _VALUES[0]})], _CONTENT, self.writing)
        tail = turn.split(_CONTENT, 1)[-1] if turn else ""
        return replace(joints, before_calls=tail[: len(tail) - len(tail.lstrip())])

    def shows_tools(self) -> bool:
        """Tell whether the template prints the tools at all."""
        text = self._try([_user()], tools=True)
        return bool(text and _NAMES[0] in text)

    # ---- end of turn

    def end_of_turn(self) -> int | None:
        """Return the control token that the template puts right after an answer, None if it puts none."""
        text = self._try([_user(), _assistant()])
        if text is None or _CONTENT not in text:
            return None
        pieces = self._controls.cut(text[text.rfind(_CONTENT) + len(_CONTENT) :])
        between, index = pieces[0]
        return index if index >= 0 and not between.strip() else None

    def openers(self) -> set[int]:
        """Return the control tokens around a system text, a question and in the generation prompt."""
        system = {"role": "system", "content": _CONTENT}
        texts = (self._try([system, _user()], prompt=True), self._try([_user()], prompt=True))
        return {index for text in texts if text for index in self._ids(text)}

    def call_format(self) -> str:
        """Return `tool_call_format` of the profile."""
        if self.is_harmony():
            return HARMONY
        if self.writing.form is not None:
            return self.writing.form.name
        return "none" if self.calls.messages is None else "unknown"

    def is_harmony(self) -> bool:
        """Tell whether the template writes the harmony format (gpt-oss), which marks no thinking but channels."""
        sources = "\n".join(self._template.sources())
        return all(marker in self._controls.ids and marker in sources for marker in _HARMONY)


def build_profile(
    prober: Prober,
    encode: Encode,
    ends: EndIds,
    *,
    vocabulary_size: int,
    bos: int | None,
    tools_format: str,
    given: Mapping[str, Any],
) -> TokenProfile:
    """Read the token profile off a template.

    Args:
        prober: the template, with the thinking switch set as it will be used.
        encode: rendered text to ids, control strings live.
        ends: end ids by the model's files.
        vocabulary_size, bos, tools_format: as in TokenProfile.
        given: fields of the recipe, which win over what is read.

    Raises:
        TargetError: something cannot be read off and `given` does not hold it.
    """
    if prober.is_harmony() and not {"end_of_turn_ids", "thinking_state"} <= given.keys():
        raise TargetError(
            "this template writes the harmony format, whose thinking stands in channels that no single token closes, "
            "so the profile cannot be read off it; give target.profile in the recipe: end_of_turn_ids (ids that end "
            "an answer: <|return|>, <|call|>), thinking_state (none, or open), and think_begin_id and think_end_id if "
            "thinking is to be counted"
        )
    begin, end = prober.think_ids()
    suffix = prober.generation_prompt()
    own_end = prober.end_of_turn()
    if own_end is None and not (ends.generation_config or ends.config or "end_of_turn_ids" in given):
        raise TargetError(
            "the chat template writes no end of turn, and there is no config.json or generation_config.json beside "
            "the tokenizer that names it; give target.profile.end_of_turn_ids in the recipe (ids that end an answer)"
        )
    listed = [*([] if own_end is None else [own_end]), *ends.generation_config, *ends.config, *ends.tokenizer]
    before, between, after = prober.calls.before, prober.calls.between, prober.calls.after
    call_begin = before[-1] if before else None
    call_end, outer_end = _call_ends(before, between, after)
    last, history = prober.keeps_reasoning()
    state, tool_turn = prober.state(suffix, begin, end), prober.tool_turn(suffix)
    tool_state = state if tool_turn.endswith(suffix) else prober.state(tool_turn, begin, end)
    ends_and_markers = {*listed, begin, end, *before, *between, *after}
    profile = TokenProfile(
        vocabulary_size=vocabulary_size,
        bos=bos,
        end_of_turn_ids=tuple(dict.fromkeys(listed)),
        generation_prompt_ids=tuple(int(index) for index in encode(suffix)),
        tool_turn_ids=tuple(int(index) for index in encode(tool_turn)),
        thinking_state=state,
        tool_turn_state=tool_state if tool_state != state else None,
        thinking_switch=prober.switch(),
        think_begin_id=begin,
        think_end_id=end,
        tool_section_begin_id=before[0] if len(before) > 1 else None,
        tool_section_end_id=outer_end if len(before) > 1 else None,
        tool_call_begin_id=call_begin,
        tool_call_end_id=call_end if call_begin is not None else None,
        tool_separator_id=prober.calls.separator if call_begin is not None else None,
        template_only_ids=tuple(sorted(prober.openers() - ends_and_markers)),
        keeps_reasoning_last=last,
        keeps_reasoning_history=history,
        tools_format=tools_format if prober.shows_tools() else "none",
        tool_call_format=prober.call_format(),
    )
    return profile.overridden(given)


def call_format(profile: TokenProfile, prober: Prober) -> CallFormat | None:
    """Return the form of calls that a profile names, None if it is none that can be read."""
    if profile.tool_call_format == "template":
        return prober.writing.form
    return CALL_FORMATS.get(profile.tool_call_format)


def _call_ends(before: list[int], between: list[int], after: list[int]) -> tuple[int | None, int | None]:
    """Return the tokens that end a call and all calls.

    A template may mark each argument as well (GLM's `</arg_value>`), so what ends a call is the last token before the
    next call begins. Where only one call can be rendered, its end is as far from the tail's end as its beginning is
    from the head's.
    """
    call_end: int | None = None
    rest = between[: between.index(before[-1])] if before and before[-1] in between else between
    if rest:
        call_end = rest[-1]
    elif after:
        call_end = after[-len(before)] if 0 < len(before) <= len(after) else after[0]
    beyond = after[after.index(call_end) + 1 :] if call_end in after else after
    return call_end, beyond[0] if beyond else None


def _user() -> dict[str, Any]:
    return {"role": "user", "content": _USER}


def _assistant() -> dict[str, Any]:
    return {"role": "assistant", "content": _CONTENT}


def _json(index: int) -> str:
    return json.dumps({"zkey": _VALUES[index]})


def _calling(content: str, count: int, mapping: bool) -> dict[str, Any]:
    calls = [
        {
            "id": _IDS[index],
            "type": "function",
            "function": {
                "name": _NAMES[index],
                "arguments": {"zkey": _VALUES[index]} if mapping else _json(index),
            },
        }
        for index in range(count)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}
