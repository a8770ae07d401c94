"""Reads outputs in the harmony format (gpt-oss), in which messages stand in channels.

Goes in: a token profile with channel fields and the `output_ids` of one answer. Comes out: how many tokens are
thinking (messages in the analysis channel), how many calls were begun (messages with a recipient), and the parts of
the output as text. `<|start|>assistant` is the prompt's, so that an output begins inside a header:
`<|channel|>analysis<|message|>…<|end|>`, then `<|start|>assistant<|channel|>final<|message|>…<|return|>` or
`<|start|>assistant to=functions.look<|channel|>commentary json<|message|>{…}<|call|>`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from eagle3_data.target.call_values import read_arguments
from eagle3_data.target.calls import ToolCall
from eagle3_data.target.profile import TokenProfile
from eagle3_data.target.segments import Ids, Segments

_RECIPIENT: Final = re.compile(r"\bto=(\S+)")


@dataclass(frozen=True)
class HarmonyMessage:
    """One message of an output: places in its ids.

    Attributes:
        start, stop: all of it, `<|start|>` and `<|end|>` (or the stop token) included.
        header: where its header begins and ends, `<|start|>` and `<|message|>` left out.
        body: where its text begins and ends.
        thinking: it stands in the analysis channel and has no recipient.
        calls: it has a recipient.
        closed: it was ended, by `<|end|>` or a stop token.
    """

    start: int
    stop: int
    header: tuple[int, int]
    body: tuple[int, int]
    thinking: bool
    calls: bool
    closed: bool


def harmony_messages(ids: Sequence[int], profile: TokenProfile) -> list[HarmonyMessage]:
    """Return the messages of an output (n,), in order."""
    found: list[HarmonyMessage] = []
    ends = {profile.message_end_id, *profile.end_of_turn_ids}
    size, place = len(ids), 0
    while place < size:
        start = place
        begin = place + (ids[place] == profile.turn_begin_id)
        head = _next(ids, begin, {profile.message_begin_id, profile.turn_begin_id, *ends})
        body = head + (head < size and ids[head] == profile.message_begin_id)
        last = _next(ids, body, {profile.turn_begin_id, *ends}) if body > head else head
        closed = last < size and ids[last] in ends
        place = last + closed
        header = list(ids[begin:head])
        calls = _holds(header, profile.recipient_ids)
        channel = header.index(profile.channel_begin_id) + 1 if profile.channel_begin_id in header else len(header)
        words = profile.thinking_channel_ids
        thinking = not calls and bool(words) and tuple(header[channel : channel + len(words)]) == words
        found.append(HarmonyMessage(start, place, (begin, head), (body, last), thinking, calls, closed))
        if place == start:
            place += 1
    return found


def harmony_counts(ids: Sequence[int], profile: TokenProfile) -> tuple[int, int]:
    """Return the tokens of thinking of an output (n,), headers and end tokens included, and the calls it begins."""
    messages = harmony_messages(ids, profile)
    return sum(one.stop - one.start for one in messages if one.thinking), sum(one.calls for one in messages)


def _next(ids: Sequence[int], place: int, wanted: set[int | None]) -> int:
    while place < len(ids) and ids[place] not in wanted:
        place += 1
    return place


def _holds(ids: Sequence[int], wanted: tuple[int, ...]) -> bool:
    size = len(wanted)
    return bool(size) and any(tuple(ids[at : at + size]) == wanted for at in range(len(ids) - size + 1))


class HarmonySplitter:
    """Splits harmony outputs by one profile; the methods are those of `segments.Splitter`."""

    def __init__(self, profile: TokenProfile, decode: Callable[[Sequence[int]], str]) -> None:
        self._profile = profile
        self._decode = decode

    def reasoning_tokens(self, ids: Ids, prompt: Ids | None = None) -> int:
        """Return how many tokens of `ids` (n,) are messages in the analysis channel."""
        return harmony_counts(ids.tolist(), self._profile)[0]

    def tool_calls(self, ids: Ids, prompt: Ids | None = None) -> int:
        """Return how many messages of `ids` (n,) have a recipient."""
        return harmony_counts(ids.tolist(), self._profile)[1]

    def split(self, ids: Ids, prompt: Ids | None = None, schemas: object = None) -> Segments:
        """Split an output (n,): analysis is reasoning; final, and commentary without a recipient, is the answer."""
        values = ids.tolist()
        stop = values[-1] if values and values[-1] in self._profile.end_of_turn_ids else -1
        thoughts: list[str] = []
        answers: list[str] = []
        calls: list[ToolCall] = []
        fault, tokens, closed = "", 0, False
        for one in harmony_messages(values, self._profile):
            text = self._decode(values[slice(*one.body)])
            if one.thinking:
                thoughts.append(text)
                tokens, closed = tokens + one.stop - one.start, one.closed
            elif one.calls:
                call, wrong = self._call(self._decode(values[slice(*one.header)]), text, one.closed)
                calls.append(call)
                fault = fault or wrong
            elif one.body[0] == one.header[1] and self._profile.channel_begin_id not in values[slice(*one.header)]:
                answers.append(self._decode(values[slice(*one.header)]))  # text without a header
            else:
                answers.append(text)
        return Segments(
            reasoning="\n".join(thoughts),
            answer="\n".join(answers),
            tool_calls=tuple(calls),
            reasoning_tokens=tokens,
            reasoning_closed=closed,
            stop_token_id=stop,
            unreadable=fault,
        )

    def _call(self, header: str, text: str, closed: bool) -> tuple[ToolCall, str]:
        found = _RECIPIENT.search(header)
        recipient = found[1].split("<|")[0] if found else ""
        name = recipient.removeprefix("functions.")
        fault = "" if recipient.startswith("functions.") else f"a call to {recipient[:80]!r}, which is not a function"
        if not closed:
            fault = fault or f"the call of {name!r} is not closed"
        fault = fault or read_arguments(name, text)
        return ToolCall(name, text.strip(), "", closed and not fault, text), fault
