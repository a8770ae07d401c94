"""Whatever an upstream row holds: no uncaught exception, no prompt that breaks its contract, and every row counted."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.source_rows import ROWS, read_jsonl

from eagle3_data.schema import PROMPT_FEATURES, canonical_json, clean_messages, content_hash, prefix_hashes
from eagle3_data.sources import REASONS, draw, sample_rows
from eagle3_data.sources.dialogue import TURN_POLICIES
from eagle3_data.sources.registry import builder
from eagle3_data.sources.script import Script
from eagle3_data.sources.upstream import SourceFile

ODD = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    " ",
    "x",
    "\x00",
    "\ud800",
    "\u0085",
    [],
    [[]],
    {},
    {"a": None},
    ["text"],
    [{}],
]
PIECES = [
    "\n\nUSER: ", "\n\nASSISTANT: ", "\n\n\nFUNCTION RESPONSE: ", "\nASSISTANT: ", "<|endoftext|>", "<functioncall> ",
    '{"name": "f", "arguments": \'{"a": 1}\'}', '{"name": "f", "arguments": {}}',
    "'", '"', "{", "}", "\\", "\n\n", "\r\n",
    "<think>", "</think>", "<|begin_of_thought|>", "<|end_of_solution|>", "\ud83d", "\x00",
    "Infinity", "[" * 2000, "null",
    "SYSTEM: ", "]", ",", ":", "é", "\u2028",
]  # fmt: skip
KEYS = [
    "role",
    "from",
    "content",
    "value",
    "text",
    "tool_calls",
    "tool_call_id",
    "tool_call_ids",
    "name",
    "system_prompt",
]
KINDS = ["system", "user", "assistant", "ai", "human", "gpt", "tool", "function", "narrator"]
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside a row."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def text_of(value: str, chance: random.Random) -> str:
    at = chance.randrange(len(value) + 1)
    match chance.randrange(5):
        case 0:
            return value[:at]
        case 1:
            return value[:at] + chance.choice(PIECES) + value[at:]
        case 2:
            return value[:at] + value[at + chance.randrange(1, 20) :]
        case 3:
            return value.replace(
                chance.choice(["\n\n", "USER", "<|endoftext|>", '"', "{", "'"]), chance.choice(PIECES), 1
            )
        case _:
            return value + value[at:]


def mutated(row: Any, chance: random.Random) -> Any:
    """Return a copy of a row with one to four things changed anywhere in it."""
    row = copy.deepcopy(row)
    for _ in range(chance.randrange(1, 5)):
        ways = [way for way in places(row) if way]
        if not ways:
            return chance.choice(ODD)
        *way, last = chance.choice(ways)
        parent = row
        for key in way:
            parent = parent[key]
        value = parent[last]
        choice = chance.randrange(9)
        if choice < 3 and isinstance(value, str):
            parent[last] = text_of(value, chance)
        elif choice == 3:
            parent[last] = copy.deepcopy(chance.choice(ODD))
        elif choice == 4:
            del parent[last]
        elif choice == 5 and isinstance(parent, list):
            parent.insert(chance.randrange(len(parent) + 1), copy.deepcopy(value))
        elif choice == 6 and isinstance(parent, list):
            chance.shuffle(parent)
        elif choice == 7 and isinstance(value, dict):
            value[chance.choice(KEYS)] = copy.deepcopy(
                chance.choice([*KINDS, *ODD, [CALL], [CALL, CALL], str([CALL])])
            )
        elif isinstance(value, str) and isinstance(last, str) and last in ("role", "from"):
            parent[last] = chance.choice(KINDS)
        else:
            parent[last] = copy.deepcopy(chance.choice(ODD))
    return row


def originals() -> list[tuple[str, str, list[Any]]]:
    """Return (source, config, rows): the shipped samples, and the shared real rows where they are."""
    found = []
    for name in ("B1_glaive", "B4_mixturethoughts", "B5_openthoughts", "B8_sweagent", "chat"):
        for path in sample_rows(name):
            text = path.read_text("utf-8")
            lines = [line for line in text.split("\n") if line.endswith("}")]
            rows = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in lines]
            found.append((name, path.stem.removeprefix(f"{name}."), rows))
    if ROWS.is_dir():
        found.append(("B1_glaive", "default", read_jsonl(ROWS / "B1_glaive/exact.jsonl")))
        damaged = read_jsonl(ROWS / "B1_glaive/damaged.jsonl")
        found.append(("B1_glaive", "default", [row["row_data"] for row in damaged]))
        traj = [json.loads((ROWS / "B8_sweagent/traj/function_calling_simple.traj").read_text())]
        found.append(("B8_sweagent", "traj", traj))
    metadata = {"problem": "Add.", "domain": "code", "source": "taco", "test_cases": '{"fn_name": "f"}'}
    metadata["starter_code"] = "def f():"
    found.append(("B5_openthoughts", "openthoughts-114k-metadata", [metadata]))
    return found


def check_prompt(prompt: Any) -> None:
    """Assert everything that a prompt promises to those who render and send it."""
    messages = prompt.messages
    assert messages and messages[-1]["role"] in ("user", "tool")
    script = Script(messages, prompt.tools, prompt.turn)
    # Under `rollout` every place for an answer follows a turn that is answered; without it nothing follows the prompt.
    places = [index for index in range(prompt.turn + 1, len(messages)) if messages[index]["role"] == "assistant"]
    assert places == [index + 1 for index in script.turns[:-1]]
    waiting: list[str] = []
    for index, message in enumerate(messages):
        assert set(message) <= {"role", "content", "reasoning_content", "tool_calls", "tool_call_id"}
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message.get("content"), str) != (index in places)
        if message["role"] == "user":
            assert message["content"].strip()
        if message["role"] == "assistant" and index not in places:
            assert message["content"].strip() or message.get("tool_calls") or message.get("reasoning_content")
            assert "<think>" not in message["content"][:7]
        for call in message.get("tool_calls", []):
            assert isinstance(json.loads(call["function"]["arguments"]), dict) and call["id"].startswith("functions.")
            waiting.append(call["id"])
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
    tools = json.loads(prompt.tools)
    assert all(isinstance(tool["function"]["name"], str) for tool in tools)
    canonical_json(messages, prompt.tools)
    assert prompt.digest == content_hash(messages[: prompt.turn + 1], prompt.tools)
    assert 0 <= prompt.expected_tokens < 2**31


def hammer(count: int, seed: int) -> dict[str, int]:
    """Judge `count` mutated rows and return how often each verdict came."""
    chance = random.Random(seed)
    sets = originals()
    verdicts: dict[str, int] = {}
    schema = pa.schema(list(PROMPT_FEATURES.arrow_schema))
    batch: list[dict[str, Any]] = []
    for number in range(count):
        name, config, rows = sets[number % len(sets)]
        row = mutated(chance.choice(rows), chance)
        source = builder(name)
        turns = chance.choice(TURN_POLICIES)
        option = {"tools_in_system": True} if name == "B1_glaive" and number % 3 == 0 and turns != "rollout" else {}
        made = source.make_config(config, turns=turns, **option)
        if not isinstance(row, dict):
            continue
        outcome = source.outcome(number, row, made, source.columns(made))
        verdict = outcome.reject.reason if outcome.reject else "ok"
        assert verdict == "ok" or verdict in REASONS
        assert (outcome.reject is None) == bool(outcome.prompts)
        assert outcome.reject is None or outcome.reject.detail.encode() is not None
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        for prompt in outcome.prompts:
            check_prompt(prompt)
        batch.extend(source.rows_of(outcome, SourceFile("f", "f", "r"), made))
        if len(batch) > 500:
            for written, read in zip(batch, pa.Table.from_pylist(batch, schema).to_pylist(), strict=True):
                messages = clean_messages(read["messages"])
                script = Script(messages, read["tools"], read["source_turn"])
                first = script.sample_id(read["source"], script.source_turn)
                assert read["sample_id"] == written["sample_id"] == first
            batch = []
    return verdicts


def test_mutated_rows() -> None:
    verdicts = hammer(4_000, 1)
    assert verdicts["ok"] > 400 and len(verdicts) > 15, verdicts


@pytest.mark.slow
def test_a_hundred_thousand_mutated_rows() -> None:
    verdicts = hammer(100_000, 2)
    assert sum(verdicts.values()) > 95_000 and len(verdicts) >= 22, verdicts


def damage(line: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(line) + 1)
    return chance.choice([line[:at], line[:at] + bytes([chance.randrange(256)]) + line[at:], line[at:], b"", line * 2])


def mutated_files(count: int, seed: int, folder: Path, policy: Callable[[int], str]) -> None:
    chance = random.Random(seed)
    for number, (name, config, rows) in enumerate(originals()):
        if config == "traj":
            continue
        lines = [json.dumps(rows[0]).encode()]
        for _ in range(count):
            line = json.dumps(mutated(chance.choice(rows), chance)).encode()
            lines.append(damage(line, chance) if chance.random() < 0.1 else line)
        path = folder / f"{number}.jsonl"
        path.write_bytes(b"\n".join(lines))
        drawn = draw(name, config, str(path), turns=policy(number), cache_dir=folder)
        report = drawn.report
        assert report.kept + report.duplicates + sum(report.rejected.values()) == report.read
        assert report.read == sum(1 for line in path.read_bytes().split(b"\n") if line.strip(b" \t\r\n"))
        assert len(set(drawn.prompts["sample_id"])) == report.prompts == report.drawn


def test_mutated_files_are_accounted_for(tmp_path: Path) -> None:
    mutated_files(60, 3, tmp_path, lambda number: TURN_POLICIES[number % 3])


@pytest.mark.slow
def test_many_mutated_rows_in_files_are_accounted_for(tmp_path: Path) -> None:
    for turns in TURN_POLICIES:
        mutated_files(1_500, 4, tmp_path, lambda number, turns=turns: turns)


def test_the_canonical_form_is_the_standard_librarys() -> None:
    """Texts may be written by a faster library: every character and every other value comes out the same."""
    rare = (0xD7FF, 0xE000, 0xFEFF, 0xFFFF, 0x1F600, 0x10FFFF)
    every = "".join(map(chr, [*range(0x800), *range(0x2000, 0x2100), *rare]))
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1e16}'}}
    chats: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": every, "reasoning_content": None}],
        [{"role": "user", "content": ""}, {"tool_calls": [call], "role": "assistant", "content": every[::-1]}],
        [{"role": "user", "content": "a", "\u00e9": "b", "z": "c", "\U0001f600": "d", "\uffff": "e"}],
        [{"role": "user", "content": 1e16, "n": 2**70, "flag": True}],
        [],
    ]
    for messages in chats:
        plain = [{k: v for k, v in one.items() if v is not None} for one in messages]
        whole = json.dumps([plain, []], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert canonical_json(messages, "[]") == whole.encode()
        ends = list(range(1, len(messages) + 1))
        assert prefix_hashes(messages, "[]", ends) == [content_hash(messages[:end], "[]") for end in ends]
    with pytest.raises(UnicodeEncodeError):
        canonical_json([{"role": "user", "content": "\ud800"}], "[]")
