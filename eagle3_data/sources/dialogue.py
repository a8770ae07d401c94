"""From one upstream row to prompts: what all sources share once a row has been understood.

Goes in: a `Dialogue` (the messages of one row, made lazily so that damage behind the prompt does no harm) and a turn
policy. Comes out: prompts that end on a user or tool turn, each with its content hash, or a `Reject` with the reason.
What the prompt of `turns: rollout` holds is said in `script.py`.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from eagle3_data.schema import canonical_json, content_hash
from eagle3_data.sources.script import answered

TURN_POLICIES: Final = ("first", "prefix", "last", "rollout")
CHARACTERS_PER_TOKEN: Final = 3.5
_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
_LOOKED_AT: Final = 4  # times the length of an excerpt, so that a long text costs no more than a short one
_INT32_MAX: Final = 2**31 - 1

REASONS: Final[dict[str, str]] = {
    # the row as it lies in its file
    "not_json": "the line or file is not JSON",
    "not_utf8": "the bytes are not UTF-8",
    "not_object": "the row is not a JSON object",
    "missing_column": "a column that the source needs is absent or null",
    "wrong_type": "a column holds another type than the source expects",
    # the dialogue
    "no_user_turn": "no turn that could be answered",
    "empty_turn": "a turn without text",
    "unknown_role": "a role that is not system, user, assistant or tool",
    "content_not_text": "the content of a turn is not text",
    "lone_surrogate": "a text holds half of a UTF-16 pair, which no UTF-8 file can carry",
    "filter": "left out by the filter of the recipe",
    "template": "the target's chat template refuses the prompt",
    "benchmark": "a user turn shares a passage with a benchmark",
    # tools and calls
    "tools_not_json": "the tool schemas cannot be read",
    "name_twice": "a function is declared twice with different definitions",
    "undeclared": "a function is called that is not declared",
    "call_form": "a call that is cut off or not of the form {name, arguments}",
    "arguments_not_json": "the arguments of a call are not JSON",
    "arguments_not_object": "the arguments of a call are no JSON object",
    "text_before_call": "words before the call in the same turn",
    "response_without_call": "a tool result that follows no call",
    "call_without_response": "a call that gets no result before the next turn",
    "tool_ids": "the results of a turn cannot be matched with its calls",
    # damaged text
    "unclosed_thinking": "thinking that never closes in an answer of the history",
    "header": "text before the first turn header",
    "stray_end": "an end marker or turn header inside a user turn or a tool result",
    "assistant_end": "an end marker inside an assistant turn",
    "two_user_turns": "two user turns running, of which one prompt cannot be made with certainty",
    "two_assistant_turns": "two assistant turns running",
}
STRUCTURAL: Final = frozenset({"not_json", "not_utf8", "not_object", "missing_column", "wrong_type"})


class Reject(Exception):
    """One upstream row, or one turn of it, that cannot become a prompt.

    Args:
        reason: a key of REASONS.
        detail: the evidence, for people, at most a line.
        role: the role of the faulty turn where one is known; a faulty answer or result behind the prompt is forgiven.
    """

    def __init__(self, reason: str, detail: str = "", role: str = "") -> None:
        super().__init__(reason, detail, role)
        self.reason = reason
        self.detail = excerpt(detail, 300)  # whatever the row held, a report can carry it
        self.role = role


@dataclass(slots=True)
class Dialogue:
    """An upstream row, understood: its messages in order (raising Reject where one is damaged) and its labels."""

    messages: Iterator[dict[str, Any]]  # a list is taken as well
    tools: str = "[]"
    origin: str = ""
    license: str = "unknown"
    answer_tokens: int = 0  # upstream's own count for the answer, 0 if unknown


@dataclass(slots=True)
class Prompt:
    """What is sent to the target, and the hash that names it."""

    messages: list[dict[str, Any]]
    tools: str
    origin: str
    license: str
    expected_tokens: int
    digest: str  # 64 hex digits of the content hash; of a script, that of its first turn
    turn: int  # 0-based index of the message that is to be answered first
    damage: str = ""  # of a script: why it ends before upstream's dialogue does


def excerpt(text: object, length: int = 120) -> str:
    """Return `text` on one line, printable and cut to `length` characters, for reports and errors."""
    given = str(text)
    shown = " ".join(given[: _LOOKED_AT * length].encode("utf-8", "replace").decode("utf-8").split())
    if not shown.isprintable():
        shown = "".join(char for char in shown if char.isprintable())
    if len(given) > _LOOKED_AT * length:
        shown += "…"
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Make one message of plain text.

    Raises:
        Reject: unknown role, content that is not text, or a user turn without text.
    """
    if role not in _ROLES:
        raise Reject("unknown_role", excerpt(role), "")
    if isinstance(content, list):  # OpenAI's list of parts, as long as all of them are text
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if not parts or len(texts) < len(parts):
            raise Reject("content_not_text", f"{role}: a list with parts that are not text", role)
        content = "".join(texts)
    if content is None and more.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise Reject("content_not_text", f"{role}: {type(content).__name__}", role)
    if role == "user" and not content.strip():
        raise Reject("empty_turn", role, role)
    return {"role": role, "content": content, **more}


def without_thinking(content: str) -> tuple[str, str, bool]:
    """Split `<think>…</think>answer` into (reasoning, answer, closed); reasoning is "" where there is none.

    A lone `</think>` ends thinking that the prompt began, as templates do that write `<think>` themselves.
    """
    # No regular expression: a lazy one walks through answers of 50,000 characters step by step.
    start = content.lstrip()
    if start.startswith("<think>"):
        reasoning, end, answer = start.removeprefix("<think>").partition("</think>")
        return reasoning.strip(), answer.lstrip(), bool(end)
    reasoning, end, answer = content.partition("</think>")
    if not end or "<think>" in reasoning or reasoning[-1:] in ("`", "'", '"'):  # a text about the tags
        return "", content, True
    return reasoning.strip(), answer.lstrip(), True


def assistant(
    content: Any,
    tool_calls: list[dict[str, Any]] | None = None,
    reasoning: str = "",
    *,
    keep_unclosed: bool = False,
) -> dict[str, Any]:
    """Make an assistant message for the history, with its thinking moved into reasoning_content.

    Args:
        content: the text, in which thinking may stand in `<think>` tags.
        tool_calls: in OpenAI form.
        reasoning: the thinking, where upstream has it apart.
        keep_unclosed: whether thinking that never closes is kept as thinking without an answer.

    Raises:
        Reject: neither text, nor thinking, nor a call; or thinking that never closes, unless it is kept.
    """
    made = message("assistant", content, **({"tool_calls": tool_calls} if tool_calls else {}))
    if not reasoning:
        reasoning, made["content"], closed = without_thinking(made["content"])
        if not closed and not keep_unclosed:
            raise Reject("unclosed_thinking", excerpt(reasoning), "assistant")
    if not made["content"].strip() and not reasoning and not tool_calls:
        raise Reject("empty_turn", "assistant", "assistant")
    if reasoning:
        made["reasoning_content"] = reasoning
    return made


def tool_call(name: str, arguments: str, index: int) -> dict[str, Any]:
    """Make a call with the id that Kimi's tools use: `functions.<name>:<index over the conversation>`."""
    return {
        "id": f"functions.{name}:{index}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def strict_json(text: str) -> Any:
    """Parse JSON as the standard has it: no NaN, no Infinity.

    Raises:
        ValueError: not JSON, or nested too deeply to read.
    """
    try:
        return STRICT.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


STRICT: Final = json.JSONDecoder(parse_constant=_no_constant)


def expected_tokens(answer: Mapping[str, Any]) -> int:
    """Estimate the length of an upstream answer in tokens, at 3.5 characters a token."""
    size = len(answer.get("content") or "") + len(answer.get("reasoning_content") or "")
    for call in answer.get("tool_calls") or ():
        size += len(call["function"]["name"]) + len(call["function"]["arguments"])
    return min(math.ceil(size / CHARACTERS_PER_TOKEN), _INT32_MAX)


def _first(turns: Iterator[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any] | Reject | None]:
    """Return the messages up to the end of the first run of user turns, and what follows: a turn, damage, nothing."""
    history: list[dict[str, Any]] = []
    while True:
        asked = bool(history) and history[-1]["role"] == "user"
        try:
            turn = next(turns, None)
        except Reject as reject:
            if asked and reject.role in ("assistant", "tool"):
                return history, reject
            raise
        if turn is None:
            if asked:
                return history, None
            raise Reject("no_user_turn", f"{len(history)} messages")
        if asked and turn["role"] != "user":
            return history, turn
        history.append(turn)


def prompts(dialogue: Dialogue, turns: str, max_turns: int = 0) -> list[Prompt]:
    """Cut a dialogue into prompts by the turn policy.

    Args:
        dialogue: its messages are consumed, as far as the policy needs them.
        turns: `first` (system text, tools and first user turn), `prefix` (one prompt for each user or tool turn, the
            upstream history kept), `last` (only the last of those) or `rollout` (the script of the whole dialogue).
        max_turns: of a script, the most turns to be answered; 0 for all.

    Returns:
        At least one prompt, in the order of the turns.

    Raises:
        Reject: the row has no prompt, or the part of it that would be sent is damaged. `prefix` and `last` send
            history, so a damaged turn anywhere rejects the row; `first` forgives what follows the first user turn,
            and a script ends before a damaged turn.
    """
    if turns in ("first", "rollout"):
        history, following = _first(dialogue.messages)
        if turns == "rollout":
            return [_script(dialogue, history, following, max_turns)]
        answer = following if isinstance(following, dict) and following["role"] == "assistant" else None
        return [_prompt(dialogue, history, dialogue.answer_tokens or (expected_tokens(answer) if answer else 0))]
    history = list(dialogue.messages)
    cuts = answered(history)
    if not cuts:
        raise Reject("no_user_turn", f"{len(history)} messages")
    made = []
    for cut in cuts if turns == "prefix" else cuts[-1:]:
        following = history[cut + 1] if cut + 1 < len(history) else {}
        expected = expected_tokens(following) if following.get("role") == "assistant" else 0
        if len(cuts) == 1:
            expected = dialogue.answer_tokens or expected
        made.append(_prompt(dialogue, history[: cut + 1], expected))
    return made


def _script(
    dialogue: Dialogue, first: list[dict[str, Any]], following: dict[str, Any] | Reject | None, max_turns: int
) -> Prompt:
    """Return the script whose first prompt is `first`, behind which upstream goes on with `following`."""
    made = _prompt(dialogue, first, 0)
    upstream, behind = [*first], len(first)
    while isinstance(following, dict):
        try:
            _check_encodable(following)
            if following["role"] == "tool" and len(upstream) == behind:
                raise Reject("response_without_call", excerpt(following["content"]), "tool")
            upstream.append(following)
            following = next(dialogue.messages, None)
        except Reject as reject:
            following = reject
    made.damage = following.reason if following is not None else ""
    cuts = answered(upstream, made.turn)
    kept = cuts[:max_turns] if max_turns else cuts
    for cut, after in itertools.pairwise(kept):
        between = upstream[cut + 1 : after + 1]
        calls = [call for turn in between for call in turn.get("tool_calls") or ()]
        made.messages.append({"role": "assistant", **({"tool_calls": calls} if calls else {})})
        made.messages.extend(turn for turn in between if turn["role"] != "assistant")
    answers = upstream[behind : cuts[len(kept)] if len(cuts) > len(kept) else None]
    expected = sum(expected_tokens(turn) for turn in answers if turn["role"] == "assistant")
    made.expected_tokens = min((len(cuts) == 1 and dialogue.answer_tokens) or expected, _INT32_MAX)
    return made


def _prompt(dialogue: Dialogue, messages: list[dict[str, Any]], expected: int) -> Prompt:
    try:
        dialogue.origin.encode()
        digest = content_hash(messages, dialogue.tools)
    except UnicodeEncodeError as error:
        raise _lone_surrogate(error) from error
    turn = len(messages) - 1
    return Prompt(messages, dialogue.tools, dialogue.origin, dialogue.license, expected, digest, turn)


def _check_encodable(turn: Mapping[str, Any]) -> None:
    try:
        canonical_json([turn], "[]")
    except UnicodeEncodeError as error:
        raise _lone_surrogate(error) from error


def _lone_surrogate(error: UnicodeEncodeError) -> Reject:
    return Reject("lone_surrogate", excerpt(error.object[max(0, error.start - 20) : error.end + 20]))
