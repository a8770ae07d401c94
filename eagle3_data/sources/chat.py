"""Any data set of chats: rows with `messages` or `conversations`, and perhaps `system` and `tools`.

Goes in: messages as {role, content} or {from, value}, with OpenAI tool calls where there are any. Comes out: prompts.
It is the pattern for a source of one's own, and other sources use its `turns`. Also a loading script for datasets 3.6.
"""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_data.sources.base import SourceBuilder
from eagle3_data.sources.columns import Column
from eagle3_data.sources.description import ConfigInfo, SourceConfig, SourceInfo
from eagle3_data.sources.dialogue import Dialogue, Reject, assistant, excerpt, message, strict_json, tool_call

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}

INFO = SourceInfo(
    name="chat",
    title="any data set with a column of chat messages",
    license="unknown",
    configs={"default": ConfigInfo("")},
    default_config="default",
    quirks=(
        "messages and tools as lists, as JSON text or in datasets' Json() type give the same prompts; nulls that "
        "Arrow filled into structs are dropped, nulls written in JSON are kept",
        "a lone </think> ends thinking that the template began",
        "{role, content} and {from, value}, the usual names of roles, OpenAI tool calls, tools as JSON or as a list",
        "ids of calls are rewritten to functions.<name>:<index>, which also makes equal dialogues equal",
    ),
    options={
        "repo": "the Hub data set",
        "upstream": "its config",
        "messages_column": "the column of messages, where it is not `messages` or `conversations`",
        "origin_column": "a column whose text becomes `origin`",
        "spdx": "the licence of the rows",
        "keep_unclosed": "keep an answer whose thinking never closes as thinking without an answer; by default such a "
        "row is rejected where the answer would be history",
    },
)


@dataclass
class ChatConfig(SourceConfig):
    """Options of the generic source."""

    messages_column: str = ""
    origin_column: str = ""
    spdx: str = "unknown"
    keep_unclosed: bool = False


class Chat(SourceBuilder):
    """Prompts of any data set of chats."""

    INFO = INFO
    BUILDER_CONFIG_CLASS = ChatConfig
    BUILDER_CONFIGS = [ChatConfig(name="default")]  # noqa: RUF012
    DEFAULT_CONFIG_NAME = "default"

    @classmethod
    def columns(cls, config: Any) -> Sequence[Column]:
        """The named column of messages, or either of the usual ones."""
        if config.messages_column:
            named = [Column(config.messages_column, "list")]
        else:
            named = [Column("messages", "list", False), Column("conversations", "list", False)]
        extra = [config.origin_column] if config.origin_column else []
        return [*named, *(Column(name, "text", False) for name in ("system", "tools", *extra))]

    @classmethod
    def read(cls, row: dict[str, Any], config: Any) -> Dialogue:
        """Understand one upstream row."""
        names = [config.messages_column] if config.messages_column else ["messages", "conversations"]
        messages = next((row[name] for name in names if row.get(name) is not None), None)
        if messages is None:
            found = ", ".join(sorted(map(str, row))[:12]) or "no columns"
            raise Reject("missing_column", f"no column {' or '.join(names)} (found: {found})")
        if not isinstance(messages, list):
            raise Reject("wrong_type", f"column of messages is {type(messages).__name__}, expected list")
        if config.origin_column and config.origin_column not in row:
            raise Reject("missing_column", f"no column '{config.origin_column}', which origin_column names")
        return Dialogue(
            messages=turns(messages, row.get("system"), keep_unclosed=config.keep_unclosed),
            tools=tool_schemas(row.get("tools")),
            origin=str(row.get(config.origin_column) or "") if config.origin_column else "",
            license=config.spdx,
        )


def turns(messages: Iterable[Any], system: Any = None, *, keep_unclosed: bool = False) -> Iterator[dict[str, Any]]:
    """Yield chat messages in OpenAI form out of the usual upstream forms.

    Args:
        messages: {role, content}, {from, value} or {role, text}; nulls of a struct are ignored.
        system: a system text that stands in a column of its own.
        keep_unclosed: whether thinking that never closes is kept, as thinking without an answer.

    Raises:
        Reject: a message that has no faithful form, when it is reached.
    """
    if system is not None and not isinstance(system, str):
        raise Reject("wrong_type", f"column 'system' is {type(system).__name__}, expected text")
    if system and system.strip():
        yield message("system", system)
    state = _Calls()
    for index, raw in enumerate(messages):
        if not isinstance(raw, dict):
            raise Reject("wrong_type", f"a message is {type(raw).__name__}, expected object")
        upstream = raw.get("role")
        if upstream is None:
            upstream = raw.get("from")
        role = _ROLES.get(upstream.lower()) if isinstance(upstream, str) else None
        if role is None:
            if not any(key in raw for key in _ROLE_KEYS):
                raise _lacking(raw, _ROLE_KEYS)
            raise Reject("unknown_role", excerpt(upstream))
        content = raw.get("content")
        if content is None:
            content = _given(raw, _TEXT_KEYS)
        if role == "assistant":
            state.settle()
            calls = [state.call(call) for call in _calls(raw)]
            if content is None and not calls and not any(key in raw for key in _TEXT_KEYS):
                raise _lacking(raw, _TEXT_KEYS, role)
            reasoning = _given(raw, _REASONING_KEYS)
            given = reasoning if isinstance(reasoning, str) else ""
            yield assistant(content, calls, given, keep_unclosed=keep_unclosed)
            continue
        if content is None and not any(key in raw for key in _TEXT_KEYS):
            raise _lacking(raw, _TEXT_KEYS, role)
        if role == "tool":
            yield message("tool", content, tool_call_id=state.answer(raw))
        else:
            state.settle()
            if role == "system" and (content is None or not str(content).strip()):
                continue  # an empty system text says nothing, and templates would render its tokens
            if role == "system" and index == 0 and content == system:
                continue  # some data sets hold the same text in a column and in the first message
            yield message(role, content)
    # A dialogue may end on an unanswered call: what follows is the target's business.


_ROLE_KEYS = ("role", "from")
_TEXT_KEYS = ("content", "value", "text")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


def _given(raw: dict[str, Any], keys: Sequence[str]) -> Any:
    for key in keys:
        value = raw.get(key)
        if value is not None:
            return value
    return None


def _lacking(raw: dict[str, Any], keys: Sequence[str], role: str = "") -> Reject:
    found = ", ".join(sorted(map(str, raw))[:12]) or "nothing"
    return Reject("wrong_type", f"a message has none of {', '.join(keys)} (found: {found})", role)


def _calls(raw: dict[str, Any]) -> list[Any]:
    given = raw.get("tool_calls")
    if given is None and "function_call" not in raw:
        return []
    calls = _call_list(given)
    older = raw.get("function_call")  # one call, as OpenAI had it before tool_calls
    if not calls and isinstance(older, dict) and older.get("name") is not None:
        return [{"function": older}]
    return calls


class _Calls:
    """The calls of a dialogue: gives them ids by position and finds the call that a result answers."""

    def __init__(self) -> None:
        self.count = 0
        self.waiting: list[tuple[Any, str]] = []  # upstream id, ours

    def call(self, raw: Any) -> dict[str, Any]:
        function = raw.get("function") if isinstance(raw, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise Reject("call_form", excerpt(raw), "assistant")
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):
            arguments = json.dumps(arguments, ensure_ascii=False)
        try:
            value = strict_json(arguments) if isinstance(arguments, str) else None
        except ValueError as error:
            raise Reject("arguments_not_json", excerpt(arguments), "assistant") from error
        if not isinstance(value, dict):
            raise Reject("arguments_not_object", excerpt(arguments), "assistant")
        made = tool_call(function["name"], str(arguments), self.count)
        self.count += 1
        self.waiting.append((raw.get("id"), made["id"]))
        return made

    def answer(self, raw: Mapping[str, Any]) -> str:
        if not self.waiting:
            raise Reject("response_without_call", excerpt(raw.get("content")), "tool")
        given = raw.get("tool_call_id")
        several = raw.get("tool_call_ids")  # SWE-agent's own spelling
        if given is None and several is not None:
            if not isinstance(several, list) or len(several) != 1:
                raise Reject("tool_ids", excerpt(several), "tool")
            given = several[0]
        for index, (upstream, ours) in enumerate(self.waiting):
            if (
                given is None or upstream is None or upstream == given
            ):  # without ids, results come in the order of calls
                del self.waiting[index]
                return ours
        raise Reject("tool_ids", f"{excerpt(given)} answers none of the calls before it", "tool")

    def settle(self) -> None:
        if self.waiting:
            raise Reject("call_without_response", self.waiting[0][1], "assistant")


def _call_list(value: Any) -> list[Any]:
    if isinstance(value, str):
        if not value.strip():
            return []
        try:
            value = strict_json(value)
        except ValueError:
            try:  # some writers print the list as Python does
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
                raise Reject("call_form", excerpt(value), "assistant") from error
    if value is None:
        return []
    if not isinstance(value, list):
        raise Reject("call_form", excerpt(value), "assistant")
    return value


def tool_schemas(value: Any) -> str:
    """Return OpenAI tool schemas as JSON text, from JSON text or a list; bare functions are wrapped.

    Raises:
        Reject: not a list of schemas with names.
    """
    if value is None or value == "":
        return "[]"
    try:
        tools = strict_json(value) if isinstance(value, str) else value
        if tools is None:
            return "[]"
        made = []
        if not isinstance(tools, list):
            raise TypeError("no list")
        for given in tools:
            tool = strict_json(given) if isinstance(given, str) else given
            if not isinstance(tool, dict):
                raise TypeError("a tool that is no object")
            if "function" not in tool:  # a bare function, or the flat form {type, name, parameters}
                bare = {key: value for key, value in tool.items() if (key, value) != ("type", "function")}
                tool = {"type": "function", "function": bare}
            if not isinstance(tool["function"]["name"], str):
                raise TypeError("a name that is not text")
            made.append(tool)
        return json.dumps(made, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Reject("tools_not_json", excerpt(value)) from error
