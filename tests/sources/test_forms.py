"""The same rows in every form in which data sets store them give the same prompts, tools and sample_ids."""

import json
import warnings
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.source_rows import ROWS, judge, needs_rows, prompt_of, read_jsonl, reason

from eagle3_data.errors import SourceError
from eagle3_data.schema import clean_messages
from eagle3_data.sources import draw, load_source
from eagle3_data.sources.description import ConfigInfo
from eagle3_data.sources.registry import builder
from eagle3_data.sources.report import SourceReport, differences

ASK = {"role": "user", "content": "Time in Rome?"}


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": parameters}}}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": f"functions.{name}:0", "type": "function", "function": {"name": name, "arguments": arguments}}


# Heterogeneous, so that Arrow fills structs with nulls: other tools, other arguments, messages with and without calls.
CHATS = [
    {
        "messages": [
            ASK,
            {"role": "assistant", "content": "", "tool_calls": [call("clock", json.dumps({"city": "Rome"}))]},
            {"role": "tool", "content": "12", "tool_call_id": "functions.clock:0"},
        ],
        "tools": [tool("clock", city={"type": "string"})],
    },
    {
        "messages": [{"role": "user", "content": "{not JSON} é 𝄞"}, {"role": "assistant", "content": "No."}, ASK],
        "tools": [tool("sun", day={"type": "integer", "description": "of June"}), tool("moon")],
    },
    {"messages": [{"role": "system", "content": "Be brief."}, ASK], "tools": []},
]


def write_jsonl(rows: list[dict[str, Any]], path: Path) -> None:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8")


def write_json_text(rows: list[dict[str, Any]], path: Path) -> None:
    write_jsonl([{key: json.dumps(value) for key, value in row.items()} for row in rows], path)


def write_typed(rows: list[dict[str, Any]], path: Path, **features: Any) -> None:
    datasets.Dataset.from_list(rows, features=datasets.Features(features)).to_parquet(path)


def text_elements(rows: list[dict[str, Any]], path: Path) -> None:
    """What a list of Json() becomes in the hands of a writer that does not know the type."""
    pq.write_table(
        pa.Table.from_pylist([{key: [json.dumps(v) for v in row[key]] for key in row} for row in rows]), path
    )


def write_structs(rows: list[dict[str, Any]], path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_pandas(rows: list[dict[str, Any]], path: Path) -> None:
    pd.DataFrame(rows).to_parquet(path)


def write_pandas_again(rows: list[dict[str, Any]], path: Path) -> None:
    """Read from Parquet and written again: nested lists are arrays then."""
    write_pandas(rows, path)
    pd.read_parquet(path).to_parquet(path)


MESSAGE = {
    "role": datasets.Value("string"),
    "content": datasets.Value("string"),
    "tool_call_id": datasets.Value("string"),
}


def forms() -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {
        "jsonl": ("jsonl", write_jsonl),
        "json text": ("jsonl", write_json_text),
        "json text in parquet": (
            "parquet",
            lambda rows, path: write_structs([{k: json.dumps(v) for k, v in row.items()} for row in rows], path),
        ),
        "list of json text": ("parquet", text_elements),
        "structs": ("parquet", write_structs),
        "pandas": ("parquet", write_pandas),
        "pandas, twice": ("parquet", write_pandas_again),
    }
    if hasattr(datasets, "Json"):
        json_type, many = datasets.Json(), datasets.List(datasets.Json())
        mixed = datasets.List({**MESSAGE, "tool_calls": datasets.Json()})
        for name, kinds in {
            "Json()": (json_type, json_type),
            "List(Json())": (many, many),
            "Json() in structs": (mixed, json_type),
        }.items():
            found[name] = (
                "parquet",
                lambda rows, path, kinds=kinds: write_typed(rows, path, messages=kinds[0], tools=kinds[1]),
            )
    return found


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize("turns", ["first", "last"])
def test_every_form_gives_the_same_prompts(form: str, turns: str, tmp_path: Path) -> None:
    def prompts(name: str) -> list[Any]:
        ending, write = forms()[name]
        path = tmp_path / f"{name}.{ending}"
        rows = CHATS if "structs" not in name or "Json" not in name else [with_keys(row) for row in CHATS]
        write(rows, path)
        drawn = draw("chat", data_files=str(path), turns=turns, cache_dir=tmp_path)
        assert drawn.report.rejected == {}
        return [(row["sample_id"], clean_messages(row["messages"]), json.loads(row["tools"])) for row in drawn.prompts]

    expected = prompts("jsonl")
    assert len(expected) == 3 and prompts(form) == expected


def with_keys(row: dict[str, Any]) -> dict[str, Any]:
    keys = [*MESSAGE, "tool_calls"]
    return {**row, "messages": [{key: message.get(key) for key in keys} for message in row["messages"]]}


def test_a_null_that_was_written_in_a_schema_stays(tmp_path: Path) -> None:
    schema = [tool("clock", city={"type": "string", "default": None})]
    rows = [{"messages": [ASK], "tools": schema}]
    ids = set()
    for name, (ending, write) in forms().items():
        path = tmp_path / f"{name}.{ending}"
        write([with_keys(row) for row in rows] if name == "Json() in structs" else rows, path)
        (row,) = draw("chat", data_files=str(path), cache_dir=tmp_path).prompts
        assert json.loads(row["tools"]) == schema, name
        ids.add(row["sample_id"])
    assert len(ids) == 1


def test_a_null_that_arrow_filled_in_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    schemas = [[tool("clock", city={"type": "string", "default": "Rome"})], [tool("clock", city={"type": "string"})]]
    write_structs(
        [{"messages": [{**ASK, "content": str(i)}], "tools": tools} for i, tools in enumerate(schemas)], path
    )
    found = [json.loads(row["tools"]) for row in draw("chat", data_files=str(path), cache_dir=tmp_path).prompts]
    assert sorted(found, key=str) == sorted(schemas, key=str)


def test_arguments_as_structs_and_as_objects(tmp_path: Path) -> None:
    arguments = [{"city": "Rome"}, {"day": 3, "zone": {"name": "CET"}}]
    history = [
        [
            ASK,
            {"role": "assistant", "content": "", "tool_calls": [call("clock", given)]},
            {"role": "tool", "content": "12", "tool_call_id": "functions.clock:0"},
        ]
        for given in arguments
    ]
    rows = [{"messages": messages} for messages in history]
    for ending, write in (("jsonl", write_jsonl), ("parquet", write_structs)):
        path = tmp_path / f"a.{ending}"
        write(rows, path)
        drawn = draw("chat", data_files=str(path), turns="last", cache_dir=tmp_path).prompts
        found = [json.loads(row["messages"][1]["tool_calls"][0]["function"]["arguments"]) for row in drawn]
        assert sorted(found, key=str) == sorted(arguments, key=str)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ("[{", "not_json"),
        ('{"role": "user"}', "wrong_type"),
        ("plain words", "wrong_type"),
        (["plain words"], "wrong_type"),
        (['{"role": "user", "content": "?"}', "x"], "wrong_type"),
        ("[" * 100_000, "not_json"),
        ('[{"role": "user", "content": NaN}]', "not_json"),
        ('[{"role": "user", "content": "why?"}]', "ok"),
    ],
)
def test_text_that_is_no_list_of_messages(given: Any, verdict: str) -> None:
    row = {"messages": given}
    found = reason("chat", row)
    assert found == verdict, (given, found)


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("<think>Hm.</think>\n\nNoon.", "Hm.", "Noon."),
        ("Hm.\n</think>\n\nNoon.", "Hm.", "Noon."),  # the template had written <think>
        ("</think>Noon.", "", "Noon."),
        ("Write `</think>` to end it.", "", "Write `</think>` to end it."),
        ("First <think> then </think>.", "", "First <think> then </think>."),
        ("<think>Hm.", "Hm.", ""),
    ],
)
def test_thinking_in_the_history(text: str, thinking: str, answer: str) -> None:
    row = {"messages": [ASK, {"role": "assistant", "content": text}, ASK]}
    if text.startswith("<think>") and "</think>" not in text:
        assert reason("chat", row, turns="last") == "unclosed_thinking"
        assert reason("chat", row, turns="first") == "ok"
    found = prompt_of("chat", row, turns="last", keep_unclosed=True)[1]
    assert (found.get("reasoning_content", ""), found["content"]) == (thinking, answer)


OPENHANDS = {
    "instance_id": "PyPSA__linopy-79",
    "repo": "PyPSA/linopy",
    "trajectory": [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "Fix it."},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
            ],
        },
        {"role": "tool", "content": "README.md", "name": "bash", "tool_call_id": "t1"},
    ],
    "tools": [tool("bash", command={"type": "string"})],
    "model_patch": "",
}


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_openhands_trajectories_are_a_config_of_their_own(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    kin = {"trajectory": OPENHANDS["trajectory"][:2], "instance_id": None, "license": "MIT", "repo": None}
    rows = (
        [OPENHANDS]
        if form == "jsonl"
        else [{**kin, "tools": None, "model_patch": None}, {**OPENHANDS, "license": None}]
    )
    (write_jsonl if form == "jsonl" else write_structs)(rows, path)
    drawn = draw("B8_sweagent", "nebius-openhands", str(path), turns="rollout", cache_dir=tmp_path)
    row = next(row for row in drawn.prompts if row["origin"])
    assert (row["origin"], row["license"]) == ("PyPSA/linopy", "CC-BY-4.0")
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool"]
    assert json.loads(row["tools"]) == OPENHANDS["tools"]
    if form == "parquet":
        assert {row["license"] for row in drawn.prompts} == {"MIT", "CC-BY-4.0"}
    with pytest.raises(
        SourceError, match="expected role, text and system_prompt; config nebius-openhands reads"
    ) as error:
        draw("B8_sweagent", "nebius", str(path), cache_dir=tmp_path)
    assert str(error.value).count("a turn holds") == 1


@needs_rows
def test_the_older_trajectories_are_refused_by_the_newer_config(tmp_path: Path) -> None:
    path = ROWS / "B8_sweagent/nebius-swe-agent-trajectories.jsonl"
    row = read_jsonl(path)[0]
    assert judge("B8_sweagent", row, "nebius").reject is None


def test_a_source_may_return_its_messages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = builder("chat")
    for read in (lambda row, config: [ASK], lambda row, config: chat_dialogue([ASK])):
        monkeypatch.setattr(chat, "read", read)
        assert prompt_of("chat", {"messages": []}) == [ASK]


def chat_dialogue(messages: list[dict[str, Any]]) -> Any:
    from eagle3_data.sources import Dialogue

    return Dialogue(messages)  # type: ignore[arg-type]


def test_nothing_to_draw_is_an_error_that_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl([{"messages": [ASK], "kind": kind} for kind in ("math", "math", "code")], path)
    options = {"origin_column": "kind", "cache_dir": tmp_path}
    with pytest.raises(SourceError, match=r"none of 3 rows .*origin 'math' \(2 rows\), origin 'code' \(1 rows\)"):
        load_source("chat", data_files=str(path), filter={"origin": ["maths"]}, **options)
    write_jsonl([{"messages": [{"role": "user", "content": ""}]}] * 2, path)
    with pytest.raises(SourceError, match=r"none of 2 rows .*empty_turn 2.*row 0: user"):
        load_source("chat", data_files=str(path), cache_dir=tmp_path)


def test_fewer_prompts_than_asked_for_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl([{"messages": [ASK]}, {"messages": [ASK]}], path)
    with pytest.warns(UserWarning, match="chat: 1,000 prompts were asked for, there are only 1"):
        load_source("chat", data_files=str(path), rows=1000, cache_dir=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_source("chat", data_files=str(path), rows=1, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({"read": 1_200_000, "prompts": 65_400}, 0),
        ({"read": 1_200_000, "prompts": 75_000}, 1),
        ({"read": 1_100_000, "prompts": 60_000}, 2),
        ({"read": 1_200_000, "prompts": 900_000, "turns": "prefix"}, 0),  # stated for the first turn alone
        ({"read": 1_200_000, "prompts": 9_000, "filter": {"origin": ["code"]}}, 0),
    ],
)
def test_counts_are_compared_with_what_the_source_states(counts: dict[str, Any], found: int) -> None:
    given = {"turns": "first", **counts}
    report = SourceReport("s", "s", "c", upstream="o/r", revision="", seed=0, requested=None, **given)
    assert len(differences(ConfigInfo("o/r", rows=1_200_000, distinct=65_000), report)) == found


@pytest.mark.parametrize("turns", ["prefix", "last"])
def test_thinking_that_never_closes_is_counted_where_it_is_kept(turns: str, tmp_path: Path) -> None:
    def chat(answer: str, ask: str) -> dict[str, Any]:
        texts = [("user", ask), ("assistant", answer), ("user", "and?")]
        return {"messages": [{"role": role, "content": text} for role, text in texts]}

    answers = ["<think>so", "<think>\nso on", "<think>so</think>yes", "yes", "so</think>"]
    rows = [chat(answer, f"{at}?") for at, answer in enumerate(answers)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    report = draw("chat", data_files=str(path), turns=turns, keep_unclosed=True, cache_dir=tmp_path / "cache").report
    assert report.unclosed == 3  # the last is thinking without an answer, too
    assert "3  prompts with thinking without an answer" in report.to_text()
    default = draw("chat", data_files=str(path), turns=turns, cache_dir=tmp_path / "cache").report
    assert default.unclosed == 1
    assert default.rejected == {"unclosed_thinking": 2}
