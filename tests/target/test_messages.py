"""An output is read as the message that the template would write it for; what cannot be read is a reason."""

import json
import string
from functools import cache
from typing import Any

import pytest
from support.chats import Chats
from support.shared import SHARED

from eagle3_data.errors import DataError
from eagle3_data.target import Target

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")
USER = {"role": "user", "content": "What is 2+2?"}
PROFILES: dict[str, dict[str, Any]] = {"glm-4.7-flash": {"end_of_turn_ids": [154820, 154827, 154829]}}
# Llama's template refuses two calls; DeepSeek-V3's closes the section after the second.
MOST_CALLS = {"llama-3.1": 1, "deepseek-v3": 2, "gpt-oss": 1}
CALLING = ("kimi-k2.5", "qwen3", "deepseek-v3.1", "deepseek-v3", "glm-4.7-flash", "llama-3.1", "gpt-oss")


@cache
def real(name: str, thinking: bool | None = None) -> Target:
    return Target.from_pretrained(SHARED / "tokenizers" / name, thinking=thinking, profile=PROFILES.get(name))


def counts(fast: int) -> list[Any]:
    return [fast, pytest.param(3_000, marks=pytest.mark.slow)]


class Calls(Chats):
    """Random calls, and the tools that declare them."""

    KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")

    def value(self, kind: str) -> Any:
        pick = self.random
        return {
            "string": lambda: pick.choice((self.text(6), "7", "true", '{"a": 1}', "", " x\n", "null")),
            "integer": lambda: pick.randrange(-(10**12), 10**12),
            "number": lambda: pick.choice((0.5, -1e-9, 3, 2.5e20)),
            "boolean": lambda: pick.random() < 0.5,
            "null": lambda: None,
            "array": lambda: [self.text(3), 1, None, [True, self.text(2)]],
            "object": lambda: {"k": self.text(3), self.text(2) or "e": [1.5, {"": None}]},
        }[kind]()

    def word(self) -> str:
        pick = self.random
        letters = string.ascii_letters + string.digits + "_-"
        return pick.choice(string.ascii_letters) + "".join(pick.choice(letters) for _ in range(pick.randrange(20)))

    def calls(self, most: int) -> tuple[list[tuple[str, dict[str, Any]]], list[dict[str, Any]]]:
        made, tools = [], []
        for _ in range(self.random.randint(1, most)):
            kinds = {self.word(): self.random.choice(self.KINDS) for _ in range(self.random.randrange(4))}
            name = self.word()
            made.append((name, {key: self.value(kind) for key, kind in kinds.items()}))
            properties = {key: {"type": kind, "description": "D"} for key, kind in kinds.items()}
            parameters = {"type": "object", "properties": properties}
            function = {"name": name, "description": "D", "parameters": parameters}
            tools.append({"type": "function", "function": function})
        return made, tools


def written(target: Target, message: dict[str, Any], tools: list[Any]) -> list[int]:
    """The ids that the template writes for an assistant message after its generation prompt, without the end."""
    asked = target.render([USER], tools)
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "Zresult"} for call in message["tool_calls"]]
    try:
        whole = target.render([USER, message, USER], tools)
    except DataError:  # some templates want results first (Mistral's)
        whole = target.render([USER, message, *results], tools)
    start = (
        next(place for place, (one, other) in enumerate(zip(asked, whole, strict=False)) if one != other)
        if (whole[: len(asked)] != asked)
        else len(asked)
    )
    profile = target.profile
    literals = [] if profile.has_channels else target._splitter._calls.form.literals()
    own = {index for literal in literals for _, index in target._codec.controls.cut(literal)}
    stops = {*profile.end_of_turn_ids, *profile.template_only_ids} - own
    stops |= set() if profile.has_channels else {*profile.tool_turn_ids[:1]} - own
    end = next(place for place in range(start, len(whole)) if whole[place] in stops)
    return whole[start : end + profile.has_channels]


@needs_shared
@pytest.mark.parametrize("name", CALLING)
@pytest.mark.parametrize("count", counts(150))
def test_calls_are_read_back_as_they_were_rendered(name: str, count: int) -> None:
    target = real(name)
    chats = Calls(7, tuple(target._codec.controls.ids)[:40])
    for number in range(count):
        calls, tools = chats.calls(MOST_CALLS.get(name, 3))
        if len({call for call, _ in calls}) < len(calls):
            continue
        made = [
            {"id": f"call{index:05d}", "type": "function", "function": {"name": call, "arguments": json.dumps(values)}}
            for index, (call, values) in enumerate(calls)
        ]
        content = "" if name in MOST_CALLS else chats.random.choice(("", f"Zanswer{number}"))
        ids = written(target, {"role": "assistant", "content": content, "tool_calls": made}, tools)
        read = target.message(ids, tools=tools)
        assert read.unreadable == "", (calls, target.decode(ids))
        found = [(call.name, json.loads(call.arguments)) for call in read.tool_calls]
        assert found == calls, target.decode(ids)
        assert read.content == content
        assert len(target.split(ids).tool_calls) == len(calls)


OUTPUTS = [
    # target, thinking, output, (content, reasoning, calls) or the beginning of the reason
    ("kimi-k2.5", None, "R</think>4<|im_end|>", ("4", "R", [])),
    (
        "kimi-k2.5",
        None,
        "R</think>Hm<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>"
        '{"a":1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
        ("Hm", "R", [("functions.f:0", "f", '{"a":1}')]),
    ),
    (
        "qwen3",
        None,
        '<think>\nR\n</think>\n\nOK\n<tool_call>\n{"name": "f", "arguments": {"a":  1}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {}, "name": "g"}\n</tool_call><|im_end|>',
        ("OK", "R", [("call00000", "f", '{"a":  1}'), ("call00001", "g", "{}")]),
    ),
    ("qwen3", False, "Plain {text}<|im_end|>", ("Plain {text}", "", [])),
    (
        "glm-4.7-flash",
        None,
        "R</think><tool_call>f<arg_key>a</arg_key><arg_value>3</arg_value><arg_key>b</arg_key><arg_value>3"
        "</arg_value></tool_call><|observation|>",
        ("", "R", [("call00000", "f", '{"a": 3, "b": "3"}')]),
    ),
    ("llama-3.1", None, '{"name": "f", "parameters": {"a": 1}}<|eot_id|>', ("", "", [("call00000", "f", '{"a": 1}')])),
    ("llama-3.1", None, '{"names": ["f"]}<|eot_id|>', ('{"names": ["f"]}', "", [])),
    ("llama-3.1", None, '{"name": "f", "parameters": {"a": 1<|eot_id|>', "the call is not JSON"),
    ("qwen3", None, '<tool_call>\n{"name": "f", "arguments": {"a": 1,}}\n</tool_call><|im_end|>', "the call is not"),
    ("qwen3", None, '<tool_call>\n{"name": "f", "arguments": "{}"}\n</tool_call><|im_end|>', "the arguments of 'f'"),
    ("qwen3", None, '<tool_call>\n{"name": "f", "arguments": {}}<|im_end|>', "the call of 'f' is not closed"),
    ("qwen3", None, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> done<|im_end|>', "text follows"),
    ("qwen3", None, '<tool_call>\n{"name": "f", "arguments": {"a": NaN}}\n</tool_call><|im_end|>', "the call is not"),
    ("qwen3", None, '<tool_call>\n{"name": "a b", "arguments": {}}\n</tool_call><|im_end|>', "'a b' is not the name"),
    ("qwen3", None, '<tool_call>\n{"name": "f", "arguments": {"a": 1, "a": 2}}\n</tool_call>', "the call is not JSON"),
    ("qwen3", None, '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 100_000, "the arguments are nested"),
    ("kimi-k2.5", None, "R</think><|tool_calls_section_begin|><|im_end|>", "a call does not begin"),
    (
        "kimi-k2.5",
        None,
        "R</think><|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "the id 'f' names no function",
    ),
    ("deepseek-v3.1", None, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "the call of 'f' is not"),
    ("glm-4.7-flash", None, "R</think><tool_call>f<arg_key>a</arg_key><arg_value>3", "the argument 'a' is not closed"),
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
        },
    }
    for name in ("f", "g")
]


@needs_shared
@pytest.mark.parametrize(("name", "thinking", "text", "expected"), OUTPUTS)
def test_outputs_as_messages(name: str, thinking: bool | None, text: str, expected: Any) -> None:
    target = real(name, thinking)
    read = target.message(target.tokenizer.encode(text, add_special_tokens=False), tools=TOOLS)
    if isinstance(expected, str):
        assert read.unreadable.startswith(expected)
        assert read.tool_calls == ()
        with pytest.raises(ValueError, match="there is no message"):
            read.to_dict()
        return
    assert read.unreadable == ""
    calls = [(call.id, call.name, call.arguments) for call in read.tool_calls]
    assert (read.content, read.reasoning_content, calls) == expected
    message = read.to_dict()
    assert message["content"] == expected[0]
    assert ("reasoning_content" in message, "tool_calls" in message) == (bool(expected[1]), bool(calls))


@needs_shared
def test_ids_of_calls_go_on_over_the_conversation() -> None:
    kimi, qwen = real("kimi-k2.5"), real("qwen3")
    text = (
        "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    ids = kimi.tokenizer.encode(text, add_special_tokens=False)
    assert kimi.message(ids, first_call=4).tool_calls[0].id == "functions.f:4"
    ids = qwen.tokenizer.encode('<tool_call>{"name": "f"}</tool_call>', add_special_tokens=False)
    read = qwen.message(ids, first_call=4)
    assert (read.tool_calls[0].id, read.tool_calls[0].arguments) == ("call00004", "{}")


@needs_shared
def test_json_is_no_call_where_no_tool_was_offered() -> None:
    llama, text = real("llama-3.1"), '{"name": "f", "parameters": {}}'
    ids = llama.tokenizer.encode(text, add_special_tokens=False)
    assert llama.message(ids, tools="[]").content == text
    assert llama.message(ids).tool_calls[0].name == "f"
