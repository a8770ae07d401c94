"""What a model wrote as a chat message, for the history of its next prompt.

Goes in: the parts of an output. Comes out: content, reasoning and calls as a client would send them back, without the
white space that the template itself writes between them; or the reason why a call cannot be read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle3_data.target.calls import ToolCall
from eagle3_data.target.segments import Ids, Segments


@dataclass(frozen=True)
class FunctionCall:
    """One call of a message: id, name, and arguments as JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class AssistantMessage:
    """An output as a chat message in OpenAI form.

    Attributes:
        content: the answer, "" if there is none.
        reasoning_content: the thinking, "" if there is none.
        tool_calls: the calls, in order.
        unreadable: why a call (or the answer) cannot be read, "" if all can. Then `tool_calls` is empty, and there is
            no message.
    """

    content: str
    reasoning_content: str
    tool_calls: tuple[FunctionCall, ...] = ()
    unreadable: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the message: role, content, and reasoning_content and tool_calls where there are any.

        Raises:
            ValueError: it is unreadable.
        """
        if self.unreadable:
            raise ValueError(f"there is no message: {self.unreadable}")
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


@dataclass(frozen=True)
class Joints:
    """White space that a template writes around the parts of an answer, found by rendering one.

    Attributes:
        before_reasoning, after_reasoning: inside the thinking markers.
        before_content: between thinking and content.
        before_calls: between content and the first call.
    """

    before_reasoning: str = ""
    after_reasoning: str = ""
    before_content: str = ""
    before_calls: str = ""


def call_ids(calls: Sequence[ToolCall], names_in_ids: bool, first: int) -> list[str]:
    """Return the canonical id of each call; `first` counts the calls of earlier messages.

    Kimi's are `functions.<name>:<index>` (SGLang numbers them so over the whole conversation), others nine letters
    and digits, which every template takes (Mistral's refuse others). An id of that kind that the model wrote stays.
    """
    if names_in_ids:
        return [f"functions.{call.name}:{first + index}" for index, call in enumerate(calls)]
    return [
        call.id if re.fullmatch(r"[A-Za-z0-9]{9}", call.id) else f"call{(first + index) % 100_000:05d}"
        for index, call in enumerate(calls)
    ]


def to_message(parts: Segments, joints: Joints, *, names_in_ids: bool, first_call: int) -> AssistantMessage:
    """Return the message that the parts of an output are.

    Args:
        parts: the output.
        joints: white space that is the template's, cut off.
        names_in_ids, first_call: as `call_ids` takes them.
    """
    reasoning = parts.reasoning.removeprefix(joints.before_reasoning).removesuffix(joints.after_reasoning)
    content = parts.answer.removeprefix(joints.before_content)
    if parts.tool_calls:
        content = content.removesuffix(joints.before_calls)
        content = content if content.strip() else ""
    fault = parts.unreadable
    if not fault and parts.tool_calls and parts.after_calls.strip():
        fault = f"text follows the calls ({parts.after_calls.strip()[:60]!r})"
    if fault:
        return AssistantMessage(content, reasoning, (), fault)
    ids = call_ids(parts.tool_calls, names_in_ids, first_call)
    made = [
        FunctionCall(identity, call.name, call.arguments) for identity, call in zip(ids, parts.tool_calls, strict=True)
    ]
    return AssistantMessage(content, reasoning, tuple(made))


def joins(
    input_ids: Sequence[int] | Ids, output_ids: Sequence[int] | Ids, next_input_ids: Sequence[int] | Ids
) -> bool:
    """Tell whether the next turn's prompt goes on where a turn ended, so that the two can be one training row.

    The only rule that is safe: the ids are equal. Many templates change history (old thinking goes at the next user
    turn), and which do so cannot be told from their profile.

    Args:
        input_ids, output_ids: prompt (m,) and output (n,) of a turn.
        next_input_ids: the prompt (k,) of the next turn of the same dialogue.
    """
    whole = np.concatenate([np.asarray(input_ids, dtype=np.int32), np.asarray(output_ids, dtype=np.int32)])
    return bool(np.array_equal(np.asarray(next_input_ids, dtype=np.int32)[: len(whole)], whole))
