"""B1: Glaive function calling v2, dialogues with functions written as text.

Goes in: rows of `system` (a lead-in and pretty-printed function schemas one after another) and `chat` (turns under
`USER: `, `ASSISTANT: ` and `FUNCTION RESPONSE: `). Comes out: chat messages with OpenAI tools, calls and results.
Also a loading script for datasets 3.6.
"""

import functools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_data.errors import SourceError
from eagle3_data.sources.base import SourceBuilder
from eagle3_data.sources.columns import Column
from eagle3_data.sources.description import ConfigInfo, SourceConfig, SourceInfo
from eagle3_data.sources.dialogue import STRICT, Dialogue, Reject, assistant, excerpt, message, strict_json, tool_call

_LEAD_IN = re.compile(
    r"You are a helpful assistant with access to the following functions\. Use them if required -?\Z"
)
# A header counts only at the start or after a blank line: the words occur inside texts as well.
_HEADER = re.compile(r"(?:\A\s*|\n\n+)(USER|ASSISTANT|FUNCTION RESPONSE): ")
_INNER_HEADER = re.compile(r"(?:\A|\n)(?:USER|ASSISTANT|FUNCTION RESPONSE):")
_END = "<|endoftext|>"
_CALL = "<functioncall>"
_CALL_HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')
_EDGES = " \t\r\n"

INFO = SourceInfo(
    name="B1_glaive",
    title="Glaive function calling v2",
    license="Apache-2.0",
    configs={
        "default": ConfigInfo("glaiveai/glaive-function-calling-v2", rows=112_960, license="Apache-2.0"),
    },
    default_config="default",
    quirks=(
        "functions in the system text become OpenAI tools; 34,598 rows have none and are ordinary chats",
        "turn headers count only at the start or after a blank line",
        "call arguments in single quotes, plain or pretty-printed, with apostrophes inside",
        "about 725 rows have no faithful form (twice-declared names, cut calls, 'AI:' turned into an end marker …)",
        "about 15 % of the prompts repeat an earlier one",
    ),
    options={"tools_in_system": "leave the functions as text in the system message, and calls as text in the history"},
    homepage="https://huggingface.co/datasets/glaiveai/glaive-function-calling-v2",
    terms="Apache-2.0, stated in the metadata of its card only",
    notes=(
        "Changed here: the functions in the system text became tool schemas, and only prompts are kept.",
        "Its text is synthetic; the model that wrote it is not named upstream.",
    ),
    contamination="function calls of the same kind as BFCL's simple and multiple categories",
    languages=("en",),
)


@dataclass
class GlaiveConfig(SourceConfig):
    """Options of B1."""

    tools_in_system: bool = False

    def check(self) -> None:
        """Raise SourceError if an option has an impossible value."""
        super().check()
        if self.tools_in_system and self.turns == "rollout":
            raise SourceError("tools_in_system: calls that are text cannot be compared; leave it out with rollout")


class B1Glaive(SourceBuilder):
    """Prompts of Glaive function calling v2."""

    INFO = INFO
    BUILDER_CONFIG_CLASS = GlaiveConfig
    BUILDER_CONFIGS = [GlaiveConfig(name="default")]  # noqa: RUF012
    DEFAULT_CONFIG_NAME = "default"

    @classmethod
    def columns(cls, config: Any) -> Sequence[Column]:
        """Both columns are text."""
        return (Column("system"), Column("chat"))

    @classmethod
    def read(cls, row: dict[str, Any], config: Any) -> Dialogue:
        """Understand one upstream row."""
        system, tools, names = _system_and_tools(row["system"], config.tools_in_system)
        messages = _messages(system, row["chat"], names, config.tools_in_system)
        return Dialogue(messages, tools=tools, license="Apache-2.0")


@functools.lru_cache(maxsize=1024)  # a third of the rows share one text
def _system_and_tools(text: str, as_text: bool) -> tuple[str, str, frozenset[str]]:
    lead_in, functions = parse_system(text)
    names = frozenset(function["name"] for function in functions)
    if as_text:
        return text.strip(_EDGES).removeprefix("SYSTEM:").strip(_EDGES), "[]", names
    tools = [{"type": "function", "function": function} for function in functions]
    # Without its functions the lead-in would announce what does not follow.
    system = "" if functions and _LEAD_IN.match(lead_in) else lead_in
    return system, json.dumps(tools, ensure_ascii=False), names


def parse_system(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Split the upstream system text into its words and the function schemas after them.

    A schema that is repeated word for word counts once.

    Raises:
        Reject: a schema is not JSON or has no name, a name is declared twice with different schemas, or words follow.
    """
    text = text.strip(_EDGES).removeprefix("SYSTEM:").strip(_EDGES)
    start = text.find("{")
    if start < 0:
        return text, []
    functions: dict[str, dict[str, Any]] = {}
    position = start
    while position < len(text):
        try:
            schema, end = STRICT.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise Reject("tools_not_json", excerpt(error)) from error
        name = schema.get("name") if isinstance(schema, dict) else None
        if not isinstance(name, str) or not name:
            raise Reject("tools_not_json", f"a function without a name: {excerpt(schema)}")
        if functions.setdefault(name, schema) != schema:
            raise Reject("name_twice", name)
        position = end
        while position < len(text) and text[position] in _EDGES:
            position += 1
    return text[:start].strip(_EDGES), list(functions.values())


def parse_call(text: str) -> tuple[str, str]:
    """Read what follows `<functioncall>`: the name, and the arguments as JSON text just as upstream wrote them.

    Raises:
        Reject: call_form, arguments_not_json or arguments_not_object.
    """
    text = text.strip(_EDGES)
    head = _CALL_HEAD.match(text)
    if head is None:
        raise Reject("call_form", excerpt(text), "assistant")
    rest = text[head.end() :]
    if rest.startswith("'"):
        # Apostrophes inside the quotes are not escaped, so the closing quote is the last one.
        closing = rest.rfind("'")
        if closing == 0 or rest[closing + 1 :].strip(_EDGES) != "}":
            raise Reject("call_form", excerpt(text), "assistant")
        arguments = rest[1:closing].strip(_EDGES)
        value = _arguments(arguments)
    else:
        try:
            value, end = STRICT.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            cut = not rest or rest.count("{") > rest.count("}")
            raise Reject("call_form" if cut else "arguments_not_json", excerpt(text), "assistant") from error
        if rest[end:].strip(_EDGES) != "}":
            raise Reject("call_form", excerpt(text), "assistant")
        arguments = rest[:end]
    if not isinstance(value, dict):
        raise Reject("arguments_not_object", excerpt(arguments), "assistant")
    try:
        return strict_json(head[1]), arguments
    except ValueError as error:
        raise Reject("call_form", excerpt(head[1]), "assistant") from error


def _arguments(text: str) -> Any:
    try:
        return strict_json(text)
    except ValueError as error:
        raise Reject("arguments_not_json", excerpt(text), "assistant") from error


def _turns(chat: str) -> list[tuple[str, str]]:
    parts = _HEADER.split(chat)
    if parts[0].strip():
        raise Reject("header", excerpt(parts[0]))
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _clean(role: str, text: str) -> str:
    """Return the text of a turn, without the end marker that closes an assistant's.

    Raises:
        Reject: a marker or header inside the text, where upstream's rewriting has cut a turn in two.
    """
    text = text.strip(_EDGES)
    if role == "ASSISTANT":
        text = text.removesuffix(_END).rstrip(_EDGES)
        if _END in text:
            raise Reject("assistant_end", excerpt(text), "assistant")
        return text
    ours = "user" if role == "USER" else "tool"
    if _END in text or _INNER_HEADER.search(text):
        raise Reject("stray_end", excerpt(text), ours)
    if not text:
        raise Reject("empty_turn", ours, ours)
    return text


def _messages(system: str, chat: str, names: frozenset[str], as_text: bool) -> Iterator[dict[str, Any]]:
    if system:
        yield message("system", system)
    turns = _turns(chat)
    calls = 0
    awaited: str | None = None  # the id of the call that the next turn must answer
    for index, (role, raw) in enumerate(turns):
        before = turns[index - 1][0] if index else ""
        following = turns[index + 1][0] if index + 1 < len(turns) else ""
        if role == "USER":
            text = _clean(role, raw)
            if following == "USER":
                raise Reject("two_user_turns", excerpt(text), "user")
            yield message("user", text)
        elif role == "FUNCTION RESPONSE":
            if awaited is None:
                raise Reject("response_without_call", excerpt(raw), "tool")
            text = _clean(role, raw)
            if as_text:
                yield message("user", f"FUNCTION RESPONSE: {text}")
            else:
                yield message("tool", text, tool_call_id=awaited)
            awaited = None
        else:
            text = _clean(role, raw)
            if before == "ASSISTANT":
                raise Reject("two_assistant_turns", excerpt(text), "assistant")
            words, marker, call = text.partition(_CALL)
            if not marker:
                yield assistant(text)
                continue
            if words.strip(_EDGES):
                raise Reject("text_before_call", excerpt(words), "assistant")
            name, arguments = parse_call(call)
            if name not in names:
                raise Reject("undeclared", excerpt(name), "assistant")
            if following not in ("FUNCTION RESPONSE", ""):
                raise Reject("call_without_response", excerpt(text), "assistant")
            made = tool_call(name, arguments, calls)
            awaited, calls = made["id"], calls + 1
            yield assistant(text) if as_text else assistant("", [made])
