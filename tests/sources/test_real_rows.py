"""The real rows give what a careful reader expects, row by row, and the damaged ones get their verdicts."""

import json
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from support.source_rows import ROWS, judge, needs_rows, prompt_of, read_jsonl, reason

from eagle3_data.schema import sample_id
from eagle3_data.sources import draw
from eagle3_data.sources.b1_glaive import parse_call, parse_system
from eagle3_data.sources.dialogue import Reject

pytestmark = needs_rows

# file, source, config; read, kept, duplicates and prompts by policy, all counted by hand or with a script of its own
FILES = [
    (
        "B1_glaive/exact.jsonl",
        "B1_glaive",
        None,
        {"first": (9, 9, 0, 9), "prefix": (9, 9, 0, 30), "last": (9, 9, 0, 9)},
    ),
    (
        "B1_glaive/rows-150.jsonl",
        "B1_glaive",
        None,
        {"first": (150, 141, 9, 141), "prefix": (150, 141, 9, 478), "last": (150, 141, 9, 141)},
    ),
    ("B4_mixturethoughts/math.jsonl", "B4_mixturethoughts", "math", {"first": (6, 6, 0, 6), "prefix": (6, 6, 0, 6)}),
    (
        "B5_openthoughts/openthoughts-114k.constructed.jsonl",
        "B5_openthoughts",
        "openthoughts-114k",
        {"first": (5, 5, 0, 5), "prefix": (5, 5, 0, 5)},
    ),
    (
        "B5_openthoughts/openthoughts2-1m.jsonl",
        "B5_openthoughts",
        "openthoughts2-1m",
        {"first": (2, 2, 0, 2), "last": (2, 2, 0, 2)},
    ),
    (
        "B5_openthoughts/openthoughts3-1.2m.constructed.jsonl",
        "B5_openthoughts",
        "openthoughts3-1.2m",
        {"first": (3, 3, 0, 3)},
    ),
    (
        "B8_sweagent/nebius-swe-agent-trajectories.jsonl",
        "B8_sweagent",
        "nebius",
        {"first": (6, 4, 2, 4), "prefix": (6, 6, 0, 123), "last": (6, 6, 0, 6)},
    ),
    (
        "B8_sweagent/swe-smith-trajectories-xml.jsonl",
        "B8_sweagent",
        "swe-smith",
        {"first": (3, 3, 0, 3), "prefix": (3, 3, 0, 56)},
    ),
    ("B8_sweagent/traj", "B8_sweagent", "traj", {"first": (2, 2, 0, 2), "prefix": (2, 2, 0, 17)}),
]


@pytest.mark.parametrize(("file", "name", "config", "counts"), FILES, ids=[file for file, *_ in FILES])
def test_every_real_row_is_accounted_for(file: str, name: str, config: str, counts: Any, tmp_path: Path) -> None:
    for turns, (read, kept, duplicates, prompts) in counts.items():
        report = draw(name, config, str(ROWS / file), turns=turns, cache_dir=tmp_path).report
        found = (report.read, report.kept, report.duplicates, report.prompts)
        assert found == (read, kept, duplicates, prompts), turns
        assert not report.rejected


def count_turns(path: Path) -> int:
    """Count the turns that can be answered in a Glaive file, without the code under test."""
    total = 0
    for row in read_jsonl(path):
        text = "\n\n" + row["chat"]
        total += text.count("\n\nUSER: ") + text.count("\n\nFUNCTION RESPONSE: ")
    return total


def test_prefix_gives_one_prompt_for_each_turn_that_can_be_answered(tmp_path: Path) -> None:
    path = ROWS / "B1_glaive/exact.jsonl"
    assert draw("B1_glaive", None, str(path), turns="prefix", cache_dir=tmp_path).report.prompts == count_turns(path)


def test_a_glaive_dialogue_becomes_messages_with_calls() -> None:
    row = read_jsonl(ROWS / "B1_glaive/exact.jsonl")[0]
    assert prompt_of("B1_glaive", row) == [
        {
            "role": "user",
            "content": "I have a text here and I am not sure what language it is. Can you help me identify it?",
        }
    ]
    prompts = judge("B1_glaive", row, turns="prefix").prompts
    assert [prompt.turn for prompt in prompts] == [0, 2, 4]
    call = {"name": "detect_language", "arguments": '{"text": "Je suis un étudiant"}'}
    assert prompts[-1].messages[-2:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "functions.detect_language:0", "type": "function", "function": call}],
        },
        {"role": "tool", "content": '{"language": "French"}', "tool_call_id": "functions.detect_language:0"},
    ]
    (tool,) = json.loads(prompts[0].tools)
    assert tool["type"] == "function" and tool["function"]["name"] == "detect_language"


def test_a_glaive_row_without_functions_is_an_ordinary_chat() -> None:
    row = read_jsonl(ROWS / "B1_glaive/exact.jsonl")[1]
    assert prompt_of("B1_glaive", row) == [
        {"role": "system", "content": "You are a helpful assistant, with no access to external functions."},
        {"role": "user", "content": "Assign this occupation to the appropriate category\nNurse"},
    ]
    assert judge("B1_glaive", row).prompts[0].tools == "[]"


def test_two_calls_of_one_dialogue_are_numbered_through() -> None:
    row = read_jsonl(ROWS / "B1_glaive/exact.jsonl")[3]
    history = judge("B1_glaive", row, turns="last").prompts[0].messages
    ids = [call["id"] for message in history for call in message.get("tool_calls", [])]
    assert ids == ["functions.get_news_headlines:0", "functions.get_news_headlines:1"]


@needs_rows
def test_call_fragments_get_their_verdicts() -> None:
    found = Counter()
    for fragment in read_jsonl(ROWS / "B1_glaive/call-fragments.jsonl"):
        try:
            _, arguments = parse_call(fragment["call_text"])
            assert isinstance(json.loads(arguments), dict)
            verdict = "ok"
        except Reject as reject:
            verdict = reject.reason.upper()
        assert verdict == fragment["verdict"], fragment
        found[verdict] += 1
    assert found == {"ok": 5, "ARGUMENTS_NOT_JSON": 3, "ARGUMENTS_NOT_OBJECT": 2, "CALL_FORM": 3}


def test_an_apostrophe_inside_single_quoted_arguments_is_kept() -> None:
    fragments = {f["row"]: f["call_text"] for f in read_jsonl(ROWS / "B1_glaive/call-fragments.jsonl")}
    assert json.loads(parse_call(fragments[19583])[1])["message"] == "Hey, let's meet"
    assert parse_call(fragments[61004]) == ("get_lyrics", '{\n  "title": "Shape of You",\n  "artist": "Ed Sheeran"\n}')


def test_damaged_rows_get_their_verdicts() -> None:
    """`prefix` reads a row strictly; `first` forgives what comes after the prompt and refuses a damaged prompt."""
    found = Counter()
    for damaged in read_jsonl(ROWS / "B1_glaive/damaged.jsonl"):
        row, verdict = damaged["row_data"], damaged["verdict"]
        if row["chat"] is None:
            assert [function["name"] for function in parse_system(row["system"])[1]] == [
                "get_random_joke",
                "get_random_fact",
            ]
            assert reason("B1_glaive", row) == "missing_column"
            continue
        assert reason("B1_glaive", row, turns="prefix").upper() == verdict, damaged["row"]
        found[verdict] += 1
        hurts_the_prompt = verdict == "NAME_TWICE" or damaged["row"] == 44369
        assert reason("B1_glaive", row).upper() == (verdict if hurts_the_prompt else "OK"), damaged["row"]
    assert sum(found.values()) == 7 and found["STRAY_END"] == 2


def test_nebius_prompts_are_the_upstream_texts() -> None:
    for row in read_jsonl(ROWS / "B8_sweagent/nebius-swe-agent-trajectories.jsonl"):
        system, user = prompt_of("B8_sweagent", row, "nebius")
        assert system == {"role": "system", "content": row["trajectory"][0]["system_prompt"]}
        assert user == {"role": "user", "content": row["trajectory"][1]["text"]}
        assert "\r\n" in user["content"] and "{WINDOW}" in system["content"]
        owner = row["instance_id"].split("__")[0]
        assert judge("B8_sweagent", row, "nebius").prompts[0].origin.startswith(f"{owner}/")


def test_a_nebius_row_without_its_system_text_is_no_prompt() -> None:
    row = read_jsonl(ROWS / "B8_sweagent/nebius-swe-agent-trajectories.jsonl")[0]
    row["trajectory"][0]["system_prompt"] = None
    assert reason("B8_sweagent", row, "nebius") == "empty_turn"


def test_swe_smith_messages_are_read_out_of_their_json_string() -> None:
    for row in read_jsonl(ROWS / "B8_sweagent/swe-smith-trajectories-xml.jsonl"):
        upstream = json.loads(row["messages"])
        assert prompt_of("B8_sweagent", row, "swe-smith") == upstream[:2]
        last = judge("B8_sweagent", row, "swe-smith", turns="last").prompts[0]
        assert [m["role"] for m in last.messages] == [m["role"] for m in upstream[: len(last.messages)]]


def test_a_traj_file_with_calls_keeps_them_in_order() -> None:
    row = json.loads((ROWS / "B8_sweagent/traj/function_calling_simple.traj").read_text())
    history = judge("B8_sweagent", row, "traj", turns="last").prompts[0].messages
    calls = [call["id"] for message in history for call in message.get("tool_calls") or ()]
    results = [message["tool_call_id"] for message in history if message["role"] == "tool"]
    names = ["find_file:0", "open:1", "edit:2", "bash:3", "submit:4"]
    assert calls == results == [f"functions.{name}" for name in names]


def test_the_system_text_of_openthoughts_is_dropped_unless_it_is_asked_for() -> None:
    row = read_jsonl(ROWS / "B5_openthoughts/openthoughts-114k.constructed.jsonl")[0]
    config = "openthoughts-114k"
    user = {"role": "user", "content": row["conversations"][0]["value"]}
    assert prompt_of("B5_openthoughts", row, config) == [user]
    assert prompt_of("B5_openthoughts", row, config, keep_system=True) == [
        {"role": "system", "content": row["system"]},
        user,
    ]
    origins = [
        judge("B5_openthoughts", row, config).prompts[0].origin
        for row in read_jsonl(ROWS / "B5_openthoughts/openthoughts-114k.constructed.jsonl")
    ]
    assert Counter(origins) == {"math": 4, "code": 1}


def test_openthoughts2_rows_without_a_source_are_known_by_their_first_words() -> None:
    rows = read_jsonl(ROWS / "B5_openthoughts/openthoughts2-1m.jsonl")
    prompts = [judge("B5_openthoughts", row, "openthoughts2-1m").prompts[0] for row in rows]
    assert [(prompt.origin, prompt.license) for prompt in prompts] == [
        ("math", "Apache-2.0"),
        ("automath", "Apache-2.0"),
    ]
    puzzle = {"conversations": [{"from": "user", "value": "Why?"}], "source": None}
    assert judge("B5_openthoughts", puzzle, "openthoughts2-1m").prompts[0].license == "unknown"


def test_mixture_of_thoughts_keeps_component_licence_and_length() -> None:
    row = read_jsonl(ROWS / "B4_mixturethoughts/math.jsonl")[0]
    (prompt,) = judge("B4_mixturethoughts", row, "math").prompts
    assert (prompt.origin, prompt.license, prompt.expected_tokens) == (
        "open-r1/OpenR1-Math-220k",
        "Apache-2.0",
        row["num_tokens"],
    )


def test_prompt_lengths_agree_with_the_first_published_figures() -> None:
    """Characters: B1 735 with the functions as text (mean of 300 real rows 718), B4 263, B8 3,956 of the user turn."""
    rows = read_jsonl(ROWS / "B1_glaive/rows-150.jsonl")
    as_text = [prompt_of("B1_glaive", row, tools_in_system=True) for row in rows]
    assert mean(sum(len(m["content"]) for m in prompt) for prompt in as_text) == pytest.approx(735, rel=0.1)
    assert mean(len(prompt[-1]["content"]) for prompt in as_text) == pytest.approx(203, rel=0.25)

    math = [prompt_of("B4_mixturethoughts", r, "math") for r in read_jsonl(ROWS / "B4_mixturethoughts/math.jsonl")]
    assert mean(len(prompt[-1]["content"]) for prompt in math) == pytest.approx(263, rel=0.15)

    rows = read_jsonl(ROWS / "B8_sweagent/nebius-swe-agent-trajectories.jsonl")
    users = {prompt_of("B8_sweagent", row, "nebius")[-1]["content"] for row in rows}
    assert all(3470 <= len(text) <= 4779 for text in users)
    assert mean(map(len, users)) == pytest.approx(3956, rel=0.1)

    rows = read_jsonl(ROWS / "B5_openthoughts/openthoughts-114k.constructed.jsonl")
    with_system = [prompt_of("B5_openthoughts", row, "openthoughts-114k", keep_system=True) for row in rows[:4]]
    assert mean(sum(len(m["content"]) for m in p) for p in with_system) == pytest.approx(1677, rel=0.05)


def test_the_published_test_vector() -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    row = {
        "system": "SYSTEM: You are a helpful assistant with access to the following functions. "
        "Use them if required -\n" + json.dumps(tool["function"], indent=4) + "\n",
        "chat": "USER: ¿Qué tiempo hace en París?\n\n\nASSISTANT: Un momento. <|endoftext|>\n\n\n",
    }
    (prompt,) = judge("B1_glaive", row).prompts
    expected = "B1_glaive-8fd70856e7d060d7bb4a7f6a"
    assert f"B1_glaive-{prompt.digest[:24]}" == expected
    assert sample_id("B1_glaive", prompt.messages, json.dumps([tool])) == expected
