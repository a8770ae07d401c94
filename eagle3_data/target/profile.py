"""What a target's control tokens mean, in one record that is stored with the data.

Goes in: the findings of `probing`, or a mapping from a manifest or recipe. Comes out: a frozen TokenProfile, which the
splitter, the record checks and the card read.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from eagle3_data.errors import TargetError
from eagle3_data.target.call_formats import CALL_FORMATS, HARMONY

ThinkingState = Literal["open", "closed", "model", "none"]
THINKING_STATES: Final = ("open", "closed", "model", "none")


@dataclass(frozen=True)
class TokenProfile:
    """The token profile of a target under one setting of its thinking switch. All ids are token ids.

    Attributes:
        vocabulary_size: ids are below this; a larger one is never sent.
        bos: the begin-of-sequence id, None if there is none.
        end_of_turn_ids: every id that ends an answer, the template's own first.
        generation_prompt_ids: what the template puts after the last user message.
        tool_turn_ids: what it puts after the text of a final tool result; some templates add no generation prompt
            there.
        thinking_state: `open` (the prompt opened the thinking), `closed` (the prompt closed it), `model` (the model
            opens it or not), `none` (no thinking).
        tool_turn_state: the same after a final tool result, where it may differ: DeepSeek-V3.1 adds nothing there that
            opens the thinking. None if it is `thinking_state`.
        thinking_switch: name of the template variable that turns thinking on and off, None if there is none.
        think_begin_id, think_end_id: the thinking markers, None without thinking.
        tool_section_begin_id, tool_section_end_id: around all calls of an answer, None if there are no such tokens.
        tool_call_begin_id, tool_call_end_id: around one call, None if calls are plain text.
        tool_separator_id: between the name (or id) of a call and its arguments, None if that is text.
        tool_call_begin_tail_ids: ids that must follow `tool_call_begin_id` for it to begin a call; empty where that
            token alone does.
        turn_begin_id, channel_begin_id, message_begin_id, message_end_id: the tokens of harmony (gpt-oss), None
            elsewhere: `<|start|>`, `<|channel|>`, `<|message|>`, `<|end|>`. With them thinking is the messages in the
            channel whose name is `thinking_channel_ids`, and calls are the messages whose header holds
            `recipient_ids`.
        thinking_channel_ids, recipient_ids: see above, empty elsewhere.
        template_only_ids: control tokens that open turns (headers, begin of sequence): an answer that holds one has
            run into another turn.
        keeps_reasoning_last, keeps_reasoning_history: whether re-rendering a chat shows the reasoning of its last
            answer and of earlier ones.
        tools_format: `typescript`, `json`, or `none` where the template ignores tools.
        tool_call_format: how calls are written: a name of `call_formats.CALL_FORMATS` (SGLang's names of tool call
            parsers), `gpt-oss` (harmony), `template` (read off the template's own literal texts), `none` (the template
            writes no calls), or `unknown` (it does, in a form that could not be read off).
        family: the known vocabulary that the tokenizer was compared with (`canaries.FAMILIES`), `other` if none.
    """

    vocabulary_size: int
    bos: int | None
    end_of_turn_ids: tuple[int, ...]
    generation_prompt_ids: tuple[int, ...]
    tool_turn_ids: tuple[int, ...]
    thinking_state: ThinkingState
    tool_turn_state: ThinkingState | None = None
    thinking_switch: str | None = None
    think_begin_id: int | None = None
    think_end_id: int | None = None
    tool_section_begin_id: int | None = None
    tool_section_end_id: int | None = None
    tool_call_begin_id: int | None = None
    tool_call_end_id: int | None = None
    tool_separator_id: int | None = None
    template_only_ids: tuple[int, ...] = ()
    keeps_reasoning_last: bool = False
    keeps_reasoning_history: bool = False
    tools_format: str = "none"
    tool_call_format: str = "none"
    tool_call_begin_tail_ids: tuple[int, ...] = ()
    turn_begin_id: int | None = None
    channel_begin_id: int | None = None
    message_begin_id: int | None = None
    message_end_id: int | None = None
    thinking_channel_ids: tuple[int, ...] = ()
    recipient_ids: tuple[int, ...] = ()
    family: str = "other"

    @property
    def has_channels(self) -> bool:
        """Whether outputs are messages in channels (harmony)."""
        return self.channel_begin_id is not None

    def state_after(self, prompt_ids: Sequence[int] | npt.NDArray[np.integer[Any]] | None) -> ThinkingState:
        """Return how a prompt (n,) leaves thinking; without one, how the generation prompt does."""
        if prompt_ids is None or self.tool_turn_state in (None, self.thinking_state):
            return self.thinking_state
        ending = self.generation_prompt_ids
        if not ending:
            return self.thinking_state
        asked = tuple(int(index) for index in prompt_ids[-len(ending) :]) == ending
        return self.thinking_state if asked or self.tool_turn_state is None else self.tool_turn_state

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as JSON-ready values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TokenProfile":
        """Read a profile that `to_dict` wrote; keys of newer versions are ignored.

        Raises:
            TargetError: a field is missing or has a wrong type.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            return cls(**checked_fields({key: value for key, value in values.items() if key in known}))
        except TypeError as error:
            raise TargetError(f"token profile: {error}") from error

    def replaced(self, fields: Mapping[str, Any]) -> "TokenProfile":
        """Return the profile with the fields that a recipe gives.

        Raises:
            TargetError: an unknown field or a wrong type.
        """
        return dataclasses.replace(self, **checked_fields(fields))

    def overridden(self, fields: Mapping[str, Any]) -> "TokenProfile":
        """Return the profile that was read, with the fields that a recipe gives on top.

        What a recipe calls an end or a marker is no longer one of the tokens that only a template writes.

        Raises:
            TargetError: an unknown field, a wrong type, or an id outside the vocabulary.
        """
        whole = self.replaced(fields)
        markers: set[int | None] = set(whole.end_of_turn_ids)
        for key in fields:
            value = getattr(whole, key)
            ids = value if key in _LISTS else (value,) if key.endswith("_id") or key == "bos" else ()
            wrong = [index for index in ids if index is not None and index >= whole.vocabulary_size]
            if wrong:
                raise TargetError(
                    f"target.profile.{key}: {wrong[0]} is not in the vocabulary, whose ids are below "
                    f"{whole.vocabulary_size:,}"
                )
            markers.update(ids if key.endswith("_id") else ())
        if "template_only_ids" in fields:
            return whole
        kept = tuple(index for index in whole.template_only_ids if index not in markers)
        return dataclasses.replace(whole, template_only_ids=kept)


_LISTS: Final = (
    "end_of_turn_ids",
    "generation_prompt_ids",
    "tool_turn_ids",
    "template_only_ids",
    "tool_call_begin_tail_ids",
    "thinking_channel_ids",
    "recipient_ids",
)
_FLAGS: Final = ("keeps_reasoning_last", "keeps_reasoning_history")
_TEXTS: Final = ("thinking_switch", "tools_format", "family")
CALL_FORMAT_NAMES: Final = (*CALL_FORMATS, HARMONY, "template", "none", "unknown")


def checked_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a TokenProfile with lists as tuples.

    Raises:
        TargetError: an unknown field or a wrong type.
    """
    known = [field.name for field in dataclasses.fields(TokenProfile)]
    checked: dict[str, Any] = {}
    for key, value in fields.items():
        if key not in known:
            raise TargetError(f"target.profile: unknown field {key!r}; known fields are {', '.join(known)}")
        if key in _LISTS:
            if isinstance(value, int) and not isinstance(value, bool):
                value = [value]
            good = isinstance(value, (list, tuple)) and all(_is_id(item) for item in value)
            value = tuple(value) if good else value
        elif key in ("thinking_state", "tool_turn_state"):
            good = value in THINKING_STATES or (value is None and key == "tool_turn_state")
        elif key in _FLAGS:
            good = isinstance(value, bool)
        elif key == "tool_call_format":
            if value not in CALL_FORMAT_NAMES:
                raise TargetError(
                    f"target.profile.tool_call_format: {value!r} is not one of {', '.join(CALL_FORMAT_NAMES)}"
                )
            good = True
        elif key in _TEXTS:
            good = value is None or isinstance(value, str)
        else:
            good = _is_id(value) or (value is None and key != "vocabulary_size")
        if not good:
            raise TargetError(f"target.profile.{key}: {value!r} is not a value of this field")
        checked[key] = value
    return checked


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
