"""Scripts of dialogues: what `turns: rollout` draws, turn by turn, on real rows and on damaged ones."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.source_rows import ROWS, judge, needs_rows, read_jsonl

from eagle3_data.errors import SourceError
from eagle3_data.schema import canonical_json, clean_messages, sample_id
from eagle3_data.sources import Script, dialogue_id, draw

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "Time in Rome?"}
AGAIN = {"role": "user", "content": "And in Oslo?"}
SAID = {"role": "assistant", "content": "<think>Hm.</think>Noon."}
CALL = {"id": "a", "function": {"name": "clock", "arguments": '{"city": "Rome"}'}}
OTHER = {"id": "b", "function": {"name": "sun", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, OTHER]}
RESULTS = [
    {"role": "tool", "tool_call_id": "b", "content": "up"},
    {"role": "tool", "tool_call_id": "a", "content": "12"},
]


def script_of(messages: list[dict[str, Any]], **options: Any) -> Any:
    (prompt,) = judge("chat", {"messages": messages}, turns="rollout", **options).prompts
    return prompt


def test_a_script_keeps_what_upstream_says_and_leaves_a_place_for_each_answer() -> None:
    prompt = script_of([SYSTEM, ASK, CALLS, *RESULTS, SAID, AGAIN, SAID])
    script = Script(prompt.messages, prompt.tools, prompt.turn)
    assert [message["role"] for message in prompt.messages] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "user")
    ]
    assert prompt.messages[2].get("content") is None and prompt.messages[5] == {"role": "assistant"}
    assert (prompt.turn, script.turns) == (1, [1, 4, 6])
    assert script.calls(1) == [("functions.clock:0", "clock"), ("functions.sun:1", "sun")]
    assert [m["tool_call_id"] for m in prompt.messages if m["role"] == "tool"] == [
        "functions.sun:1",
        "functions.clock:0",
    ]
    assert script.calls(4) == script.calls(6) == []


def test_sample_ids_come_from_the_script_alone() -> None:
    prompt = script_of([SYSTEM, ASK, SAID, AGAIN, SAID])
    script = Script(prompt.messages, prompt.tools, prompt.turn)
    (first,) = judge("chat", {"messages": [SYSTEM, ASK, SAID, AGAIN]}, turns="first").prompts
    assert (
        script.sample_id("chat", 1) == sample_id("chat", first.messages, first.tools) == f"chat-{prompt.digest[:24]}"
    )
    assert script.sample_id("chat", 3) == sample_id("chat", [SYSTEM, ASK, {"role": "assistant"}, AGAIN], "[]")
    other = script_of([SYSTEM, ASK, {"role": "assistant", "content": "One."}, AGAIN])  # the answer does not matter
    assert Script(other.messages, other.tools, other.turn).sample_id("chat", 3) == script.sample_id("chat", 3)


def test_a_greeting_before_the_first_question_is_part_of_the_first_prompt() -> None:
    greeting = {"role": "assistant", "content": "Hello!"}
    prompt = script_of([greeting, ASK, SAID, AGAIN])
    (first,) = judge("chat", {"messages": [greeting, ASK]}, turns="first").prompts
    assert prompt.messages[0] == greeting and prompt.digest == first.digest and prompt.turn == 1


@pytest.mark.parametrize(
    ("messages", "roles", "damage"),
    [
        ([ASK], "u", ""),
        ([ASK, SAID], "u", ""),
        ([ASK, CALLS], "u", ""),  # a call that upstream never answered
        ([ASK, SAID, SAID, AGAIN], "uau", ""),  # two answers running are one
        ([ASK, CALLS, SAID, AGAIN], "u", "call_without_response"),
        ([ASK, CALLS, *RESULTS], "uatt", ""),
        ([ASK, CALLS, RESULTS[0]], "uat", ""),
        ([ASK, AGAIN, SAID, AGAIN], "uuau", ""),
        ([ASK, SAID, SYSTEM, AGAIN], "uasu", ""),
        ([ASK, SAID, AGAIN, {"role": "assistant", "content": ""}, ASK], "uau", "empty_turn"),
        ([ASK, SAID, AGAIN, SAID, {"role": "user", "content": " "}, SAID], "uau", "empty_turn"),
        ([ASK, SAID, AGAIN, SAID, {"role": "user", "content": "\ud800"}, SAID], "uau", "lone_surrogate"),
        ([ASK, SAID, AGAIN, SAID, {"role": "judge", "content": "?"}], "uau", "unknown_role"),
    ],
)
def test_a_script_ends_before_damage_and_says_why(messages: list[dict[str, Any]], roles: str, damage: str) -> None:
    prompt = script_of(messages)
    assert ("".join(message["role"][0] for message in prompt.messages), prompt.damage) == (roles, damage)
    canonical_json(prompt.messages, prompt.tools)


def test_max_turns_bounds_the_answered_turns() -> None:
    messages = [ASK, SAID, AGAIN, {"role": "assistant", "content": "x" * 350}, AGAIN, SAID]
    lengths = []
    for most, roles in ((1, "u"), (2, "uau"), (3, "uauau"), (9, "uauau"), (0, "uauau")):
        prompt = script_of(messages, max_turns=most)
        assert "".join(message["role"][0] for message in prompt.messages) == roles
        lengths.append(prompt.expected_tokens)
    assert lengths == [3, 103, 106, 106, 106]  # 9 or 350 characters an answer, at 3.5 a token, rounded up each
    with pytest.raises(SourceError, match="max_turns: 2 needs turns: rollout"):
        judge("chat", {"messages": messages}, max_turns=2)
    with pytest.raises(SourceError, match="max_turns must be int"):
        judge("chat", {"messages": messages}, turns="rollout", max_turns="2")
    with pytest.raises(SourceError, match="tools_in_system"):
        judge("B1_glaive", {}, turns="rollout", tools_in_system=True)


def test_every_prompt_knows_its_dialogue() -> None:
    row = {"messages": [SYSTEM, ASK, CALLS, *RESULTS, SAID, AGAIN, SAID]}
    (first,) = judge("chat", row).prompts
    name = sample_id("chat", first.messages, first.tools)
    for turns in ("first", "prefix", "last", "rollout"):
        for prompt in judge("chat", row, turns=turns).prompts:
            assert dialogue_id("chat", prompt.messages, prompt.tools) == name


# file, source, config; dialogues, and turns as counted by `prefix` over the same rows
REAL = [
    ("B1_glaive/exact.jsonl", "B1_glaive", None),
    ("B1_glaive/rows-150.jsonl", "B1_glaive", None),
    ("B4_mixturethoughts/math.jsonl", "B4_mixturethoughts", "math"),
    ("B5_openthoughts/openthoughts-114k.constructed.jsonl", "B5_openthoughts", "openthoughts-114k"),
    ("B8_sweagent/nebius-swe-agent-trajectories.jsonl", "B8_sweagent", "nebius"),
    ("B8_sweagent/swe-smith-trajectories-xml.jsonl", "B8_sweagent", "swe-smith"),
    ("B8_sweagent/traj", "B8_sweagent", "traj"),
]


@needs_rows
@pytest.mark.parametrize(("file", "name", "config"), REAL, ids=[file for file, *_ in REAL])
def test_real_rows_give_the_dialogues_of_first_and_the_turns_of_prefix(
    file: str, name: str, config: str | None, tmp_path: Path
) -> None:
    def drawn(turns: str) -> Any:
        return draw(name, config, str(ROWS / file), turns=turns, cache_dir=tmp_path)

    first, rollout, prefix = drawn("first"), drawn("rollout"), drawn("prefix")
    assert rollout.prompts["sample_id"][:] == first.prompts["sample_id"][:]  # the same draw, so answers are kept
    by_row = Counter(
        (row["source_file"], row["source_row"]) for row in prefix.prompts.select_columns(["source_file", "source_row"])
    )
    total = 0
    for row in rollout.prompts:
        script = Script(clean_messages(row["messages"]), row["tools"], row["source_turn"])
        assert script.sample_id(name, script.turns[0]) == row["sample_id"]
        # prefix counts a prompt once in the whole file, and these rows repeat none of a dialogue's later turns
        assert len(script.turns) >= by_row[row["source_file"], row["source_row"]]
        total += len(script.turns)
        for index in script.turns[:-1]:
            results = [m["tool_call_id"] for m in script.messages[index + 2 :] if m["role"] == "tool"]
            assert {name for name, _ in script.calls(index)} <= set(results)
    assert rollout.report.turns_scripted == total and not rollout.report.cut_short


@needs_rows
def test_a_glaive_script_holds_upstreams_calls_and_results() -> None:
    row = read_jsonl(ROWS / "B1_glaive/exact.jsonl")[0]
    (prompt,) = judge("B1_glaive", row, turns="rollout").prompts
    script = Script(prompt.messages, prompt.tools, prompt.turn)
    upstream = judge("B1_glaive", row, turns="prefix").prompts
    assert [message["role"] for message in prompt.messages] == [m["role"] for m in upstream[-1].messages]
    assert script.turns == [one.turn for one in upstream]
    called = next(index for index in script.turns if script.calls(index))
    assert script.calls(called) == [("functions.detect_language:0", "detect_language")]
    assert json.loads(prompt.messages[called + 2]["content"]) == {"language": "French"}


def test_ids_of_later_turns_are_those_of_their_scripts() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "weather in Paris?", "tool_calls": None},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "rain", "tool_call_id": "a"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "gràcies"},
    ]
    script = Script(messages, "[]", 1)
    assert script.later_ids("B1") == [script.sample_id("B1", index) for index in (3, 5)]
    assert Script(messages[:2], "[]", 1).later_ids("B1") == []
