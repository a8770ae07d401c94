"""The script of a dialogue: what upstream says in it, with a place for each answer that the target will give.

Goes in: the `messages` and `source_turn` of a prompt drawn with `turns: rollout`. Comes out: which messages are to be
answered, what upstream called at each place, and the sample_id of each turn, none of which depends on an answer.

In the messages of a script everything up to `source_turn` is the prompt of the first turn, exactly as `turns: first`
gives it. After it, each assistant message stands for an answer of the target: its content is null, and its
`tool_calls` are those that upstream made there, whose results follow as tool messages. The last message is the last
one to be answered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_data.schema import prefix_hashes, sample_id

Message = Mapping[str, Any]
ASKING = frozenset({"user", "tool"})


def answered(messages: Sequence[Message], start: int = 0) -> list[int]:
    """Return the indices from `start` on of the turns that get an answer: user or tool turns that end their run."""
    last = len(messages) - 1
    return [
        index
        for index in range(start, len(messages))
        if messages[index]["role"] in ASKING and (index == last or messages[index + 1]["role"] not in ASKING)
    ]


def first_answered(messages: Sequence[Message]) -> int:
    """Return the index of the message that the prompt of `turns: first` ends on; -1 if there is none."""
    asked = [index for index, message in enumerate(messages) if message["role"] == "user"][:1]
    if not asked:
        return -1
    index = asked[0]
    while index + 1 < len(messages) and messages[index + 1]["role"] == "user":
        index += 1
    return index


def dialogue_id(source: str, messages: Sequence[Message], tools: str) -> str:
    """Return the sample_id of the first turn of the dialogue that a prompt belongs to.

    Args:
        source: name of the recipe's source entry.
        messages: of a prompt by any turn policy.
        tools: JSON text, as in the prompt.
    """
    return sample_id(source, messages[: first_answered(messages) + 1], tools)


@dataclass(frozen=True, slots=True)
class Script:
    """One dialogue to be had with the target.

    Attributes:
        messages: of a row drawn with `turns: rollout`, null-valued keys or not.
        tools: JSON text, as in the row.
        source_turn: of the row: the index of the message that the first turn ends on.
    """

    messages: Sequence[Message]
    tools: str
    source_turn: int

    @property
    def turns(self) -> list[int]:
        """Indices of the messages that are answered, in order; turn k of the dialogue answers the k-th of them."""
        return answered(self.messages, self.source_turn)

    def calls(self, index: int) -> list[tuple[str, str]]:
        """Return (id, name) of the calls that upstream made in its answer to message `index`, in order.

        The ids are those that the tool messages after it carry as `tool_call_id`.
        """
        following = self.messages[index + 1] if index + 1 < len(self.messages) else {}
        return [(call["id"], call["function"]["name"]) for call in following.get("tool_calls") or ()]

    def sample_id(self, source: str, index: int) -> str:
        """Return the sample_id of the turn that answers message `index`: the script up to it, answers empty."""
        first = self.messages[: self.source_turn + 1]
        later = [
            {"role": "assistant"} if message["role"] == "assistant" else message
            for message in self.messages[self.source_turn + 1 : index + 1]
        ]
        return sample_id(source, [*first, *later], self.tools)

    def later_ids(self, source: str) -> list[str]:
        """Return the sample_ids of the turns after the first, in order."""
        later = self.turns[1:]
        if not later:
            return []
        reduced = [
            {"role": "assistant"} if index > self.source_turn and message["role"] == "assistant" else message
            for index, message in enumerate(self.messages)
        ]
        return [f"{source}-{digest[:24]}" for digest in prefix_hashes(reduced, self.tools, [at + 1 for at in later])]
