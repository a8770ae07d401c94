"""Cuts what a model wrote into reasoning, answer and tool calls.

Goes in: a token profile and the `output_ids` of one answer, never prompt + output (a prompt can hold an end of
thinking of its own). Of the prompt only its ending matters, where a template ends otherwise after a tool result.
Comes out: where the reasoning ends, how many calls were begun, and text views decoded from the ids.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from eagle3_data.target.profile import TokenProfile

Ids = npt.NDArray[np.int32]
Decode = Callable[[Sequence[int]], str]

_NAME_IN_ID: Final = re.compile(r"\s*(?:functions\.)?(.+?):(\d+)\s*")
_LEADING: Final = 3  # how many tokens of white space a model may write before it opens its thinking


@dataclass(frozen=True)
class ToolCall:
    """One call that the model began.

    Attributes:
        name: of the function, "" if it was cut before the name was there.
        arguments: JSON text as the model wrote it, maybe cut.
        id: the id that the model wrote, "" where its format has none.
        complete: whether the call was closed.
        text: everything between the tokens that begin and end the call.
    """

    name: str
    arguments: str
    id: str
    complete: bool
    text: str


@dataclass(frozen=True)
class Segments:
    """The parts of one output; texts are decoded from the ids, thinking markers and stop token left out.

    Attributes:
        reasoning: text of the thinking, "" if there is none.
        answer: text outside thinking and tool calls; a second end of thinking stands in it.
        tool_calls: the calls begun, in order.
        reasoning_tokens: tokens of thinking, its end token included; all of them if it never closed.
        reasoning_closed: whether an end of thinking was written; False too if a tool call ended it.
        stop_token_id: the end-of-turn id at the end, −1 if the output ends without one.
    """

    reasoning: str
    answer: str
    tool_calls: tuple[ToolCall, ...]
    reasoning_tokens: int
    reasoning_closed: bool
    stop_token_id: int


class Splitter:
    """Splits outputs by one profile."""

    def __init__(self, profile: TokenProfile, decode: Decode) -> None:
        self._profile = profile
        self._decode = decode
        openers = (profile.tool_section_begin_id, profile.tool_call_begin_id)
        self._tool_begins = [index for index in openers if index is not None]

    def reasoning_end(self, ids: Ids, prompt: Ids | None = None) -> tuple[int, bool]:
        """Return how many leading tokens of `ids` (n,) are thinking, and whether its end token was written.

        `prompt` (m,) is what was answered; None stands for one that ends in the generation prompt.

        The thinking runs to its first end token, that one included; to the first tool token if it never closed; else
        to the end of the output. Where the prompt did not open it, it must begin the output.
        """
        profile = self._profile
        state = profile.state_after(prompt)
        if profile.think_end_id is None or state == "none" or not len(ids):
            return 0, False
        if state != "open" and not self._opens(ids):
            return 0, False
        closed = np.flatnonzero(ids == profile.think_end_id)
        if len(closed):
            return int(closed[0]) + 1, True
        begun = [places[0] for places in (np.flatnonzero(ids == index) for index in self._tool_begins) if len(places)]
        return (int(min(begun)), False) if begun else (len(ids), False)

    def _opens(self, ids: Ids) -> bool:
        places = np.flatnonzero(ids[: _LEADING + 1] == self._profile.think_begin_id)
        return bool(len(places)) and not self._decode(ids[: places[0]].tolist()).strip()

    def tool_calls(self, ids: Ids, prompt: Ids | None = None) -> int:
        """Return how many tool calls `ids` (n,) begins after its thinking."""
        begin = self._profile.tool_call_begin_id
        if begin is None:
            return 0
        end, _ = self.reasoning_end(ids, prompt)
        return int(np.count_nonzero(ids[end:] == begin))

    def split(self, ids: Ids, prompt: Ids | None = None) -> Segments:
        """Split an output (n,), the answer to `prompt` (m,), into its parts."""
        profile = self._profile
        end, closed = self.reasoning_end(ids, prompt)
        stop = int(ids[-1]) if len(ids) and int(ids[-1]) in profile.end_of_turn_ids else -1
        last = len(ids) - (stop >= 0)
        thought = ids[: min(end - closed, last)]
        if len(thought) and profile.think_begin_id is not None:
            opened = np.flatnonzero(thought[: _LEADING + 1] == profile.think_begin_id)
            if len(opened) and not self._decode(thought[: opened[0]].tolist()).strip():
                thought = thought[opened[0] + 1 :]
        answer, calls = self._answer(ids[min(end, last) : last])
        return Segments(self._decode(thought.tolist()), answer, calls, end, closed, stop)

    def _answer(self, ids: Ids) -> tuple[str, tuple[ToolCall, ...]]:
        """Take the calls out of what follows the thinking; what is left is the answer."""
        profile = self._profile
        if profile.tool_call_begin_id is None:
            return self._decode(ids.tolist()), ()
        kept: list[str] = []
        calls: list[ToolCall] = []
        ends = {profile.tool_call_end_id, profile.tool_call_begin_id, profile.tool_section_end_id} - {None}
        sections = {profile.tool_section_begin_id, profile.tool_section_end_id} - {None}
        start = place = 0
        values = ids.tolist()
        while place < len(values):
            token = values[place]
            if token == profile.tool_call_begin_id:
                kept.append(self._decode(values[start:place]))
                close = next((at for at in range(place + 1, len(values)) if values[at] in ends), len(values))
                complete = close < len(values) and values[close] == profile.tool_call_end_id
                calls.append(self._call(values[place + 1 : close], complete))
                place = start = close + complete
            elif token in sections:
                kept.append(self._decode(values[start:place]))
                place = start = place + 1
            else:
                place += 1
        kept.append(self._decode(values[start:]))
        return "".join(kept), tuple(calls)

    def _call(self, ids: list[int], complete: bool) -> ToolCall:
        text = self._decode(ids)
        separator = self._profile.tool_separator_id
        if separator is not None and separator in ids:
            cut = ids.index(separator)
            head, arguments = self._decode(ids[:cut]).strip(), self._decode(ids[cut + 1 :])
            named = _NAME_IN_ID.fullmatch(head)
            return ToolCall(named[1] if named else head, arguments, head if named else "", complete, text)
        return _json_call(text, complete)


def _json_call(text: str, complete: bool) -> ToolCall:
    """Read a call that is one JSON object with a name and arguments; what is cut or of another form stays text."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        found = re.search(r'"name"\s*:\s*"([^"]*)"', text)
        rest = re.search(r'"(?:arguments|parameters)"\s*:\s*(.*)', text, re.DOTALL)
        return ToolCall(found[1] if found else "", rest[1] if rest else "", "", complete, text)
    if not isinstance(value, dict):
        return ToolCall("", "", "", complete, text)
    arguments = value.get("arguments", value.get("parameters", {}))
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(value.get("name", "")), written, str(value.get("id", "")), complete, text)
