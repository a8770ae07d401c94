"""The generic source: the usual forms of chats, each to the same OpenAI form."""

import json
from typing import Any

import pytest
from support.source_rows import judge, prompt_of, reason

ASK = {"role": "user", "content": "What time is it?"}
CALL = {"name": "clock", "arguments": "{}"}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "functions.clock:0", "type": "function", "function": CALL}],
}
RESULT = {"role": "tool", "content": "noon", "tool_call_id": "functions.clock:0"}


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (  # tool_calls with upstream's own ids
            [
                {"role": "assistant", "tool_calls": [{"id": "x9", "function": CALL}]},
                {"role": "tool", "tool_call_id": "x9"},
            ],
            [CALLED, RESULT],
        ),
        (  # one call as OpenAI had it first
            [{"role": "assistant", "content": None, "function_call": CALL}, {"role": "function", "name": "clock"}],
            [CALLED, RESULT],
        ),
        ([{"from": "gpt", "value": "noon"}, {"from": "human"}], [{"role": "assistant", "content": "noon"}, None]),
        *(
            (
                [{"role": "assistant", "content": "noon", key: "Hm."}, {"role": "user"}],
                [{"role": "assistant", "content": "noon", "reasoning_content": "Hm."}, None],
            )
            for key in ("reasoning_content", "reasoning", "thinking")
        ),
    ],
)
def test_histories(history: list[dict[str, Any]], expected: list[Any]) -> None:
    turns = [ASK, history[0], {"content": "noon", **history[1]}]
    last = {"role": "user", "content": "noon"}
    found = prompt_of("chat", {"messages": turns}, turns="last")
    assert found == [ASK, *(last if turn is None else turn for turn in expected)]


def test_a_system_text_in_a_column_and_in_the_first_message_counts_once() -> None:
    be = {"role": "system", "content": "Be brief."}
    for row in (
        {"messages": [be, ASK]},
        {"messages": [ASK], "system": "Be brief."},
        {"messages": [be, ASK], "system": "Be brief."},
    ):
        assert prompt_of("chat", row) == [be, ASK]
    assert prompt_of("chat", {"messages": [be, ASK], "system": "Be kind."})[0]["content"] == "Be kind."


FUNCTION = {"name": "clock", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([TOOL], [TOOL]),
        ([FUNCTION], [TOOL]),
        ([{"type": "function", **FUNCTION}], [TOOL]),
        (json.dumps([TOOL]), [TOOL]),
        ("null", []),
        ("", []),
        (None, []),
        (FUNCTION, "tools_not_json"),
        (["clock"], "tools_not_json"),
        ([{"parameters": {}}], "tools_not_json"),
        ("[", "tools_not_json"),
    ],
)
def test_tools(given: Any, expected: Any) -> None:
    row = {"messages": [ASK], "tools": given}
    if isinstance(expected, str):
        assert reason("chat", row) == expected
    else:
        assert json.loads(judge("chat", row).prompts[0].tools) == expected
