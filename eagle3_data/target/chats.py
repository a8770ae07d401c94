"""A chat in the form that a target's template expects.

Goes in: messages in OpenAI form and tools, as a prompt row holds them. Comes out: plain Python values without nulls,
with call ids, arguments and names as the template wants them, and the tools in the form the model was trained on.
"""

import functools
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from eagle3_data.errors import DataError
from eagle3_data.target.typescript import declare_tools

_log = logging.getLogger(__name__)

ROLES: Final = frozenset(
    ["system", "developer", "user", "assistant", "tool", "function", "ipython", "environment", "observation"]
)
_SHORT_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
_CANONICAL_ID: Final = re.compile(r"functions\.(.+):(\d+)")


@dataclass(frozen=True)
class ChatRules:
    """What a template does with the parts of a chat, found by probing it.

    Attributes:
        mapping_arguments: the arguments of a call must be a mapping (the template prints JSON itself); else they stay
            the JSON text that they are.
        text_arguments: the arguments must be JSON text; a mapping becomes it.
        canonical_call_ids: a call shows its id alone, so that the name must be in it: `functions.<name>:<index>`, the
            index counting all calls of the conversation (Kimi).
        name_replaces_role: a `name` key of a message is printed in place of its role, so it is left out.
        null_content: calls are only written where the content of their message is null (DeepSeek-V3), so an empty
            content beside calls becomes null.
        short_call_ids: the template refuses ids of calls that are not nine letters and digits (Mistral), so they
            become `call00000` and so on.
        reasoning_key: the key of a message that the template shows as its reasoning (gpt-oss: `thinking`).
        drops: what the template leaves out of a chat: `tool calls`, `tool calls after the first`, `tool calls beside
            content`, `content beside tool calls`, `tool results`, `system messages`, `names`.
        typescript_tools: the template takes the tools as a TypeScript declaration (`tools_ts_str`, Kimi-K2.5).
    """

    mapping_arguments: bool = False
    text_arguments: bool = False
    canonical_call_ids: bool = False
    name_replaces_role: bool = False
    null_content: bool = False
    short_call_ids: bool = False
    reasoning_key: str = "reasoning_content"
    drops: frozenset[str] = frozenset()
    typescript_tools: bool = False


@dataclass(frozen=True)
class Chat:
    """What a template is given: messages, tools or None, and the TypeScript form of the tools or None."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    tools_ts: str | None

    def parts(self) -> list[Any]:
        """Return everything in the chat that did not come from the template."""
        return [self.messages, self.tools, self.tools_ts]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_nulls(item) for item in value]
    return value


def prepare(messages: Sequence[Mapping[str, Any]], tools: Any, rules: ChatRules) -> Chat:
    """Return a chat as the template wants it; the arguments are left as they are.

    Args:
        messages: chat messages in OpenAI form, at least one; null-valued keys count as absent, and a message without
            content has the content "".
        tools: None, a list of OpenAI tool schemas, or such a list as JSON text.
        rules: what the template does.

    Raises:
        DataError: a message or the tools are not what they should be; the text names the message and field.
    """
    if not messages:
        raise DataError("messages: the chat is empty; give at least one message")
    prepared = [_message(index, message, rules) for index, message in enumerate(messages)]
    if rules.canonical_call_ids or (rules.short_call_ids and not _ids_are_short(prepared)):
        _number_calls(prepared, "functions.{name}:{index}" if rules.canonical_call_ids else "call{index:05d}")
    schemas, declaration = prepare_tools(tools, rules.typescript_tools)
    return Chat(prepared, schemas, declaration)


def _message(index: int, message: Mapping[str, Any], rules: ChatRules) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise DataError(f"messages[{index}]: a {type(message).__name__}, not a message with role and content")
    role = message.get("role")
    if role not in ROLES:
        raise DataError(f"messages[{index}].role: {role!r} is not a role; one of {', '.join(sorted(ROLES))}")
    cleaned: dict[str, Any] = {"role": role, "content": ""}
    for key, value in message.items():
        if value is None or (key == "name" and rules.name_replaces_role):
            continue
        if key == "tool_calls":
            if value:
                cleaned[key] = [_call(index, call, rules) for call in value]
        else:
            cleaned[key] = value if isinstance(value, str) else _without_nulls(value)
    if rules.reasoning_key != "reasoning_content" and "reasoning_content" in cleaned:
        cleaned.setdefault(rules.reasoning_key, cleaned.pop("reasoning_content"))
    if rules.null_content and cleaned["content"] == "" and "tool_calls" in cleaned:
        cleaned["content"] = None
    return cleaned


def _call(index: int, call: Mapping[str, Any], rules: ChatRules) -> dict[str, Any]:
    cleaned: dict[str, Any] = _without_nulls(call)
    function = cleaned.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise DataError(f"messages[{index}].tool_calls: a call without function.name")
    arguments = function.get("arguments", "{}")
    if rules.mapping_arguments and isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            raise DataError(
                f"messages[{index}].tool_calls: the arguments of {function['name']!r} are not JSON ({error}), "
                "and this template needs them as a mapping"
            ) from error
        if not isinstance(arguments, dict):
            raise DataError(
                f"messages[{index}].tool_calls: the arguments of {function['name']!r} are not a JSON object"
            )
    if rules.text_arguments and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    function["arguments"] = arguments
    return cleaned


def _ids_are_short(messages: list[dict[str, Any]]) -> bool:
    ids = [call.get("id") for message in messages for call in message.get("tool_calls", ())]
    return all(isinstance(one, str) and _SHORT_ID.fullmatch(one) for one in ids)


def _number_calls(messages: list[dict[str, Any]], form: str) -> None:
    """Give calls and results ids by `form`; a result without a known id answers the oldest call still open."""
    count = 0
    renamed: dict[str, str] = {}
    waiting: list[str] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            canonical = form.format(name=call["function"]["name"], index=count)
            count += 1
            if call.get("id"):
                renamed[call["id"]] = canonical
            call["id"] = canonical
            waiting.append(canonical)
        if message["role"] == "tool":
            old = message.get("tool_call_id", "")
            new = renamed.get(old) or (waiting[0] if waiting and not _CANONICAL_ID.fullmatch(old) else old)
            message["tool_call_id"] = new
            if new in waiting:
                waiting.remove(new)


def prepare_tools(tools: Any, typescript: bool) -> tuple[list[Any] | None, str | None]:
    """Return the tool schemas without nulls (None when there are none) and their TypeScript declaration, if wanted.

    Raises:
        DataError: the tools are not a JSON list of schemas.
    """
    if tools is None or tools == "[]" or tools == []:
        return None, None
    if isinstance(tools, str):
        return _parsed_tools(tools, typescript)
    return _converted_tools(tools, typescript)


@functools.lru_cache(maxsize=256)
def _parsed_tools(text: str, typescript: bool) -> tuple[list[Any] | None, str | None]:
    try:
        tools = json.loads(text)
    except ValueError as error:
        raise DataError(f"tools: not JSON ({error})") from error
    return _converted_tools(tools, typescript)


def _converted_tools(tools: Any, typescript: bool) -> tuple[list[Any] | None, str | None]:
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise DataError("tools: not a list of tool schemas")
    if not tools:
        return None, None
    schemas = [dict(tool) for tool in tools]
    if not typescript:
        return schemas, None
    # The remote-code class of Kimi-K2.5 sorts every key before it does anything else with the tools.
    schemas = _sorted_keys(schemas)
    try:
        return schemas, declare_tools(schemas)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _warn_json_tools(str(error))
        return schemas, None


def tool_parameters(tools: Any) -> dict[str, Mapping[str, Any]] | None:
    """Return the parameters of each tool by its name, None where `tools` is None.

    Raises:
        DataError: the tools are not a JSON list of schemas.
    """
    if tools is None:
        return None
    schemas, _ = prepare_tools(tools, typescript=False)
    found: dict[str, Mapping[str, Any]] = {}
    for tool in schemas or ():
        function = tool.get("function", tool)
        if isinstance(function, Mapping):
            parameters = function.get("parameters")
            found[str(function.get("name"))] = parameters if isinstance(parameters, Mapping) else {}
    return found


def _sorted_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted_keys(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_sorted_keys(item) for item in value]
    return value


@functools.lru_cache(maxsize=32)
def _warn_json_tools(reason: str) -> None:
    _log.warning(
        "a tool schema has no TypeScript form (%s): it is declared as JSON, as the model's own tokenizer class does, "
        "which is not what the model saw in training",
        reason,
    )
