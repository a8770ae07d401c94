"""Cuts what a model wrote into reasoning, answer and tool calls.

Goes in: a token profile and the `output_ids` of one answer, never prompt + output (a prompt can hold an end of
thinking of its own). Of the prompt only its ending matters, where a template ends otherwise after a tool result.
Comes out: where the reasoning ends, how many calls were begun, and text views decoded from the ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from eagle3_data.target.call_reading import CallReader
from eagle3_data.target.calls import Reading, Schemas, ToolCall
from eagle3_data.target.profile import TokenProfile

Ids = npt.NDArray[np.int32]
Decode = Callable[[Sequence[int]], str]

_UNKNOWN_FORMAT: Final = (
    "the form of this target's calls cannot be read off its chat template; give target.profile.tool_call_format"
)
_LEADING: Final = 3  # how many tokens of white space a model may write before it opens its thinking


@dataclass(frozen=True)
class Segments:
    """The parts of one output; texts are decoded from the ids, thinking markers and stop token left out.

    Attributes:
        reasoning: text of the thinking, "" if there is none.
        answer: text between the thinking and the first call; a second end of thinking stands in it.
        tool_calls: the calls begun, in order.
        after_calls: text after the last call, "" in a usual answer.
        unreadable: why a call cannot be read, "" if all can.
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
    after_calls: str = ""
    unreadable: str = ""


def call_begins(ids: Ids, begin: int, tail: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return a bool array (n,), True where an id of `ids` (n,) is `begin` and the ids after it are `tail`."""
    found: npt.NDArray[np.bool_] = ids == begin
    for offset, wanted in enumerate(tail, 1):
        found[: len(found) - offset] &= ids[offset:] == wanted
        found[max(len(found) - offset, 0) :] = False
    return found


class Splitter:
    """Splits outputs by one profile.

    `calls` reads the calls; without it an answer that holds `opening`, if there is one, has calls that cannot be read.
    """

    def __init__(
        self, profile: TokenProfile, decode: Decode, calls: CallReader | None = None, opening: str = ""
    ) -> None:
        self._profile = profile
        self._decode = decode
        self._calls = calls
        self._opening = opening
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

    def reasoning_tokens(self, ids: Ids, prompt: Ids | None = None) -> int:
        """Return how many leading tokens of `ids` (n,) are thinking."""
        return self.reasoning_end(ids, prompt)[0]

    def tool_calls(self, ids: Ids, prompt: Ids | None = None) -> int:
        """Return how many tool calls `ids` (n,) begins after its thinking."""
        begin = self._profile.tool_call_begin_id
        if begin is None:
            return 0
        end, _ = self.reasoning_end(ids, prompt)
        return int(np.count_nonzero(call_begins(ids[end:], begin, self._profile.tool_call_begin_tail_ids)))

    def split(self, ids: Ids, prompt: Ids | None = None, schemas: Schemas | None = None) -> Segments:
        """Split an output (n,), the answer to `prompt` (m,), into its parts; `schemas` as `CallReader.read`."""
        profile = self._profile
        end, closed = self.reasoning_end(ids, prompt)
        stop = int(ids[-1]) if len(ids) and int(ids[-1]) in profile.end_of_turn_ids else -1
        last = len(ids) - (stop >= 0)
        thought = ids[: min(end - closed, last)]
        if len(thought) and profile.think_begin_id is not None:
            opened = np.flatnonzero(thought[: _LEADING + 1] == profile.think_begin_id)
            if len(opened) and not self._decode(thought[: opened[0]].tolist()).strip():
                thought = thought[opened[0] + 1 :]
        read = self._answer(ids[min(end, last) : last], schemas)
        return Segments(
            reasoning=self._decode(thought.tolist()),
            answer=read.content,
            tool_calls=read.calls,
            reasoning_tokens=end,
            reasoning_closed=closed,
            stop_token_id=stop,
            after_calls=read.after,
            unreadable=read.fault,
        )

    def _answer(self, ids: Ids, schemas: Schemas | None) -> Reading:
        """Take the calls out of what follows the thinking."""
        if self._calls is not None:
            return self._calls.read(self._calls.marks.text(ids.tolist(), self._decode), schemas)
        text = self._decode(ids.tolist())
        place = text.find(self._opening) if self._opening else -1
        if place < 0:
            return Reading(text)
        return Reading(text[:place], "", (ToolCall("", "", "", False, text[place:]),), _UNKNOWN_FORMAT)
