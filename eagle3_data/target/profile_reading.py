"""Reads the token profile of a target off its template.

Goes in: a prober over the template, the end ids of the model's configuration, and fields of the recipe. Comes out: the
token profile; what cannot be read off is one error that names the fields to give.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_data.errors import TargetError
from eagle3_data.target.call_formats import CALL_FORMATS, HARMONY
from eagle3_data.target.calls import CallFormat
from eagle3_data.target.controls import ControlTokens
from eagle3_data.target.probing import Prober, thinking_markers
from eagle3_data.target.profile import TokenProfile

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class EndIds:
    """Ids that end an answer by the model's files: config.json, generation_config.json, the tokenizer."""

    generation_config: tuple[int, ...] = ()
    config: tuple[int, ...] = ()
    tokenizer: tuple[int, ...] = ()


@dataclass(frozen=True)
class Vocabulary:
    """What is known of the tokenizer: ids are below `size`, `bos` may be None, `family` is as in a profile."""

    size: int
    bos: int | None
    family: str
    controls: ControlTokens
    encode: Encode
    encode_plain: Encode


def build_profile(
    prober: Prober, vocabulary: Vocabulary, ends: EndIds, tools_format: str, given: Mapping[str, Any]
) -> TokenProfile:
    """Read the token profile off a template.

    Args:
        prober: the template, with the thinking switch set as it will be used.
        vocabulary: of the tokenizer.
        ends: end ids by the model's files.
        tools_format: as in TokenProfile, for a template that shows tools.
        given: fields of the recipe, which win over what is read.

    Raises:
        TargetError: something cannot be read off and `given` does not hold it.
    """
    begin, end = thinking_markers(prober, given)
    suffix = prober.generation_prompt()
    known = [*ends.generation_config, *ends.config, *ends.tokenizer]
    own_end = prober.end_of_turn(known)
    if own_end is None and not (ends.generation_config or ends.config or "end_of_turn_ids" in given):
        raise TargetError(
            "the chat template writes no end of turn, and there is no config.json or generation_config.json beside "
            "the tokenizer that names it; give target.profile.end_of_turn_ids in the recipe (ids that end an answer)"
        )
    harmony = prober.is_harmony()
    if harmony:  # <|end|> ends a message, not the answer
        ids = vocabulary.controls.ids
        listed = [*(ids[name] for name in ("<|return|>", "<|call|>") if name in ids), *known]
    else:
        listed = [*([] if own_end is None else [own_end]), *prober.ends_of_calls(), *known]
    form = given_format(prober, given)
    calls = _call_ids(form, vocabulary)
    last, history = prober.keeps_reasoning()
    if end is None and not harmony and "thinking_state" not in given and (shown := prober.unmarked_reasoning()):
        raise TargetError(
            f"the chat template shows reasoning (after {shown!r}), but not between two control tokens that mark it "
            "alone, so thinking cannot be told from answers; give target.profile.think_begin_id and think_end_id, or "
            "thinking_state: none to take thinking for a part of the answer"
        )
    state, tool_turn = prober.state(prober.before_answer(), begin, end), prober.tool_turn(suffix)
    tool_state = state if tool_turn.endswith(suffix) else prober.state(tool_turn, begin, end)
    markers = {*listed, begin, end, *_all_controls(form, vocabulary.controls)}
    profile = TokenProfile(
        vocabulary_size=vocabulary.size,
        bos=vocabulary.bos,
        end_of_turn_ids=tuple(dict.fromkeys(listed)),
        generation_prompt_ids=tuple(int(index) for index in vocabulary.encode(suffix)) if suffix else (),
        tool_turn_ids=tuple(int(index) for index in vocabulary.encode(tool_turn)) if tool_turn else (),
        thinking_state="model" if harmony else state,
        tool_turn_state=tool_state if tool_state != state else None,
        thinking_switch=prober.switch(),
        think_begin_id=begin,
        think_end_id=end,
        template_only_ids=() if harmony else tuple(sorted(prober.openers(listed) - markers)),
        keeps_reasoning_last=last,
        keeps_reasoning_history=history,
        tools_format=tools_format if prober.shows_tools() else "none",
        tool_call_format=_format_name(prober, form),
        family=vocabulary.family,
        **calls,
        **(_channels(vocabulary) if harmony else {}),
    )
    return profile.overridden(given)


def given_format(prober: Prober, given: Mapping[str, Any]) -> CallFormat | None:
    """Return the form of calls that a recipe names, else the one that was found, None if there is none."""
    name = given.get("tool_call_format", "template")
    return prober.writing.form if name == "template" else CALL_FORMATS.get(name)


def _format_name(prober: Prober, form: CallFormat | None) -> str:
    if prober.is_harmony():
        return HARMONY
    if form is not None:
        return form.name
    return "unknown" if prober.writes_calls() else "none"


def _call_ids(form: CallFormat | None, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the control tokens that begin, part and end calls, by the literal texts of their form."""
    if form is None:
        return {}
    controls = vocabulary.controls

    def ids(literal: str) -> list[int]:
        return [index for _, index in controls.cut(literal) if index >= 0]

    opening, begin, end = ids(form.section_begin), ids(form.call_begin), ids(form.call_end)
    inside = ids(form.middle) + ids(form.id_mark) + ids(form.pair_begin)
    found: dict[str, Any] = {}
    if begin and begin[0] in {*end, *inside, *ids(form.value_end), *ids(form.section_end)}:
        # One token marks every part (DeepSeek-V4's ｜DSML｜): it begins a call where these words follow it.
        piece = controls.cut(form.call_begin)[1][0]
        words = piece.rstrip("\"'=:> \n")
        found = {"tool_call_begin_id": begin[0], "tool_call_begin_tail_ids": tuple(vocabulary.encode_plain(words))}
        return found
    if opening:
        found["tool_section_begin_id"] = opening[0]
        found["tool_section_end_id"] = next(iter(ids(form.section_end)), None)
    if begin:
        found["tool_call_begin_id"] = begin[0]
        found["tool_call_end_id"] = end[-1] if end else None
        found["tool_separator_id"] = next(iter(inside), None)
    elif opening:  # calls inside the section are plain text, so that its token begins one
        found["tool_call_begin_id"], found["tool_call_end_id"] = opening[0], found["tool_section_end_id"]
        found["tool_section_begin_id"] = found["tool_section_end_id"] = None
    return found


def _all_controls(form: CallFormat | None, controls: ControlTokens) -> set[int]:
    literals = form.literals() if form else []
    return {index for literal in literals for _, index in controls.cut(literal) if index >= 0}


def _channels(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the fields of a harmony profile."""
    ids = vocabulary.controls.ids
    return {
        "turn_begin_id": ids["<|start|>"],
        "channel_begin_id": ids["<|channel|>"],
        "message_begin_id": ids["<|message|>"],
        "message_end_id": ids["<|end|>"],
        "thinking_channel_ids": tuple(int(index) for index in vocabulary.encode_plain("analysis")),
        "recipient_ids": tuple(int(index) for index in vocabulary.encode_plain(" to")),
    }
