"""In which modes of which target the next prompt goes on where a turn ended: measured, by the template itself."""

from functools import cache
from typing import Any

import pytest
from support.shared import SHARED

from eagle3_data.target import Target, joins

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")

USER = {"role": "user", "content": "Q"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "D",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "D"}}},
        },
    }
]
PROFILES: dict[str, dict[str, Any]] = {"glm-4.7-flash": {"end_of_turn_ids": [154820, 154827, 154829]}}
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
    '{"a": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
)
QWEN = '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
V31 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>"
    '{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'
)
V3 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n"
    '{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'
)
GLM = "<tool_call>look<arg_key>a</arg_key><arg_value>1</arg_value></tool_call><|observation|>"
LLAMA = '{"name": "look", "parameters": {"a": 1}}<|eot_id|>'
OSS = "<|channel|>analysis<|message|>R<|end|><|start|>assistant"
THOUGHT = "<think>\nR\n</think>\n\n"
MODES = [
    # target, thinking, an answer, a call, and whether they join: before a user turn, before a result, and the answer
    # to the result before a later user turn (None: the template has no calls)
    ("kimi-k2.5", True, "R</think>C<|im_end|>", "R</think>" + KIMI, (False, True, False)),
    ("kimi-k2.5", False, "C<|im_end|>", KIMI, (True, True, True)),
    ("qwen3", None, THOUGHT + "C<|im_end|>", THOUGHT + QWEN, (False, True, False)),
    ("qwen3", None, "C<|im_end|>", QWEN, (True, True, True)),
    ("qwen3", False, "C<|im_end|>", QWEN, (False, False, False)),
    ("deepseek-v3.1", True, "R</think>C<｜end▁of▁sentence｜>", "R</think>" + V31, (False, False, True)),
    ("deepseek-v3.1", False, "C<｜end▁of▁sentence｜>", V31, (True, True, True)),
    ("deepseek-v3", None, "C<｜end▁of▁sentence｜>", V3, (True, False, True)),
    ("glm-4.7-flash", None, "R</think>C<|user|>", "R</think>" + GLM, (False, True, False)),
    ("glm-4.7-flash", False, "C<|user|>", GLM, (True, True, True)),
    ("llama-3.1", None, "C<|eot_id|>", LLAMA, (True, True, True)),
    (
        "gpt-oss",
        None,
        OSS + "<|channel|>final<|message|>C<|return|>",
        OSS + ' to=functions.look<|channel|>commentary json<|message|>{"a": 1}<|call|>',
        (False, True, False),
    ),
    ("smollm2", None, "C<|im_end|>", None, (True, None, None)),
]


@cache
def real(name: str, thinking: bool | None) -> Target:
    return Target.from_pretrained(SHARED / "tokenizers" / name, thinking=thinking, profile=PROFILES.get(name))


@pytest.mark.parametrize(("name", "thinking", "answer", "call", "expected"), MODES)
def test_which_turns_join(
    name: str, thinking: bool | None, answer: str, call: str | None, expected: tuple[bool | None, ...]
) -> None:
    target = real(name, thinking)
    tools = TOOLS if call else None

    def turn(messages: list[dict[str, Any]], text: str) -> tuple[list[int], list[int], dict[str, Any]]:
        prompt = target.render(messages, tools)
        output = target.tokenizer.encode(text, add_special_tokens=False)
        read = target.message(output, prompt, tools=tools)
        assert read.unreadable == ""
        assert read.content == ("" if text == call else "C")
        assert read.reasoning_content == ("R" if "R" in text.split("C")[0] else "")
        return prompt, output, read.to_dict()

    prompt, output, message = turn([USER], answer)
    found: list[bool | None] = [joins(prompt, output, target.render([USER, message, USER], tools))]
    assert not joins(prompt, [*output, 5], target.render([USER, message, USER], tools))
    if call is None:
        found += [None, None]
    else:
        prompt, output, message = turn([USER], call)
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "T"}
        found.append(joins(prompt, output, target.render([USER, message, result], tools)))
        # After a result DeepSeek-V3.1 is not asked to think.
        third = answer.removeprefix("R</think>") if target.profile.tool_turn_state == "model" else answer
        prompt, output, last = turn([USER, message, result], third)
        found.append(joins(prompt, output, target.render([USER, message, result, last, USER], tools)))
    assert tuple(found) == expected
