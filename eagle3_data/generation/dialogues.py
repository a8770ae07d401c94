"""One dialogue with the target: its next prompt from its own earlier answers, until the script or the dialogue ends.

Goes in: the script of a prompt drawn with `turns: rollout`, and the target's answers turn by turn. Comes out: the
messages of the next prompt, or the outcome that says why there is none. Nothing is spliced by hand: an answer becomes
a message by `Target.message`, and the template renders the whole history anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from eagle3_data.errors import UsageError
from eagle3_data.generation.asked_target import AskedTarget
from eagle3_data.generation.journal.entry import Entry, Ids
from eagle3_data.outcome import Outcome
from eagle3_data.schema import clean_messages
from eagle3_data.sources.script import Script

TOOL_RESULTS: Final = ("match", "any", "stop")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """How one source is asked where it differs from the rest of the run.

    Attributes:
        samples: answers to each prompt, or dialogues to each script.
        sampling: parameters in place of the run's; None for those.
        target: the target under this source's own thinking switch; None for the run's.
        tool_results: who gets upstream's results of calls: `match` (the same names in the same order), `any` (as many
            calls, by place) or `stop` (nobody: a call ends the dialogue).

    Raises:
        UsageError: an impossible value.
    """

    samples: int = 1
    sampling: Mapping[str, float | int] | None = None
    target: AskedTarget | None = None
    tool_results: str = "match"

    def __post_init__(self) -> None:
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or not 1 <= self.samples <= 10_000:
            raise UsageError(f"samples: {self.samples!r} must be a whole number from 1 to 10,000")
        if self.tool_results not in TOOL_RESULTS:
            raise UsageError(f"tool_results: {self.tool_results!r} is none of {', '.join(TOOL_RESULTS)}")


@dataclass(frozen=True, slots=True)
class ScriptedPrompt:
    """A script with the sample_ids of its turns after the first, as it is kept beside the rendered prompts."""

    script: Script
    later_turns: Sequence[str]

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self | None:
        """Return the script of a row of prompts; None where it is an ordinary prompt."""
        later = row.get("later_turns")
        if later is None or not len(later):
            return None
        messages = clean_messages(row["messages"])
        return cls(Script(messages, row.get("tools") or "[]", int(row["source_turn"])), list(later))

    @classmethod
    def of_one(cls, row: Mapping[str, Any]) -> Self:
        """Return an ordinary prompt as a script of one turn."""
        messages = clean_messages(row["messages"])
        return cls(Script(messages, row.get("tools") or "[]", len(messages) - 1), [])

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        script = self.script
        return orjson.dumps([list(script.messages), script.tools, script.source_turn, list(self.later_turns)])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` gave."""
        messages, tools, source_turn, later = orjson.loads(data)
        return cls(Script(messages, tools, source_turn), later)

    @property
    def first(self) -> list[dict[str, Any]]:
        """The messages of the first prompt."""
        return clean_messages(self.script.messages[: self.script.source_turn + 1])


@dataclass(slots=True)
class Turn:
    """One answered (or failed) turn of a dialogue."""

    sample_id: str
    number: int
    input_ids: Ids
    entry: Entry


class Conversation:
    """A dialogue under way.

    Args:
        target: reads answers.
        prompt: the script.
        tool_results: as in `SourceSettings`.
    """

    def __init__(self, target: AskedTarget, prompt: ScriptedPrompt, tool_results: str) -> None:
        self._target = target
        self._script = prompt.script
        self._tool_results = tool_results
        self._turns = prompt.script.turns
        self._calls = 0  # made by the target so far, for ids that count them
        self.number = 0
        self.messages: list[Any] = prompt.first
        self._calls = sum(len(message.get("tool_calls") or ()) for message in self.messages)

    @property
    def tools(self) -> str:
        """JSON text of the tool schemas."""
        return self._script.tools

    @property
    def answers(self) -> int:
        """Index, in the script, of the message that the current turn answers."""
        return self._turns[self.number]

    def advance(self, outcome: Outcome, output_ids: Ids, input_ids: Ids) -> Outcome | None:
        """Take in the answer to the current turn, and go on to the next.

        Returns:
            Why there is no next prompt, or None.
        """
        if outcome.cut:
            return Outcome.ENDED_LOOP if outcome.loops else Outcome.ENDED_CUT
        read = self._target.message(output_ids, input_ids, tools=self._script.tools, first_call=self._calls)
        if read.unreadable:
            return Outcome.ENDED_CALL_UNREADABLE
        scripted = self._script.calls(self.answers)
        if ended := self._misfit([call.name for call in read.tool_calls], [name for _, name in scripted]):
            return ended
        self._calls += len(read.tool_calls)
        ids = {known: call.id for (known, _), call in zip(scripted, read.tool_calls, strict=True)}
        self.messages.append(read.to_dict())
        for message in self._script.messages[self.answers + 2 : self._turns[self.number + 1] + 1]:
            known = message.get("tool_call_id")
            self.messages.append({**message, "tool_call_id": ids.get(known, known)} if known else message)
        self.number += 1
        return None

    def _misfit(self, called: list[str], scripted: list[str]) -> Outcome | None:
        if scripted and not called:
            return Outcome.ENDED_NO_CALL
        if called and self._tool_results == "stop":
            return Outcome.ENDED_AT_CALL
        same = called == scripted if self._tool_results == "match" else len(called) == len(scripted)
        return None if same else Outcome.ENDED_OTHER_CALL
