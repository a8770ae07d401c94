"""`check` finds every kind of fault that is planted, one at a time, and nothing in sound records."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from eagle3_data import schema
from eagle3_data.check.check import check
from eagle3_data.check.rules import KINDS, Lists, thinking
from eagle3_data.errors import UsageError
from eagle3_data.run_folder import RunFolder, write_parquet
from eagle3_data.target import TokenProfile
from eagle3_data.target.segments import Splitter

# Kimi-K2.5's ids, thinking on.
USER, ASSISTANT, MIDDLE, THINK, CLOSE, END, EOS = 163587, 163588, 163601, 163606, 163607, 163586, 163585
SECTION, CALL, ARGUMENT, CALL_END, SECTION_END = 163595, 163597, 163598, 163599, 163596
PROFILE = TokenProfile(
    vocabulary_size=163840,
    bos=163584,
    end_of_turn_ids=(END, EOS),
    generation_prompt_ids=(ASSISTANT, 69702, MIDDLE, THINK),
    tool_turn_ids=(END, ASSISTANT, 69702, MIDDLE, THINK),
    thinking_state="open",
    thinking_switch="thinking",
    think_begin_id=THINK,
    think_end_id=CLOSE,
    tool_section_begin_id=SECTION,
    tool_section_end_id=SECTION_END,
    tool_call_begin_id=CALL,
    tool_call_end_id=CALL_END,
    tool_separator_id=ARGUMENT,
    template_only_ids=(163584, USER, ASSISTANT, MIDDLE),
)
CAP, CONTEXT = 8, 40
PROMPT = [USER, 2482, MIDDLE, 5376, END, ASSISTANT, 69702, MIDDLE, THINK]
OUTPUTS = [
    ([17499, CLOSE, 19, END], "stop", 2, 0),
    ([17499, SECTION, CALL, 41937, ARGUMENT, 25, CALL_END, END], "stop", 1, 1),
    ([17499, CLOSE, 19, EOS], "stop", 2, 0),
    ([5] * CAP, "length_cap", CAP, 0),
    ([49, CLOSE, 19, CLOSE, 20, END], "stop", 2, 0),
]

Row = dict[str, Any]


def row(index: int) -> Row:
    output, reason, reasoning, calls = OUTPUTS[index % len(OUTPUTS)]
    prompt = [USER, 2482, MIDDLE, index, *PROMPT[4:]]
    return {
        "sample_id": f"B1-{index:024x}",
        "source": "B1",
        "config": "default",
        "source_revision": "e7f4b6456019",
        "source_file": "data.jsonl",
        "source_row": index,
        "source_turn": 0,
        "origin": "",
        "license": "Apache-2.0",
        "sample": 0,
        "dialogue": f"B1-{index:024x}",
        "turn": 0,
        "input_ids": prompt,
        "output_ids": list(output),
        "finish_reason": reason,
        "stop_token_id": output[-1] if reason == "stop" else -1,
        "prompt_tokens": len(prompt),
        "completion_tokens": len(output),
        "reasoning_tokens": reasoning,
        "tool_calls": calls,
        "max_new_tokens": CAP,
        "rounds": 1,
        "loop_tokens": 0,
    }


def manifest(rows: int) -> dict[str, Any]:
    return {
        "identity": {"target": {"model": "kimi", "vocabulary_size": 163840}, "sampling": {}, "draw_seed": 0},
        "profile": PROFILE.to_dict(),
        "engine": {"kind": "sglang", "context_length": CONTEXT},
        "extent": {"sources": {"B1": {"source": "B1", "rows": rows, "max_new_tokens": CAP}}},
        "generation": {"B1": {"records": rows}},
    }


def write(folder: Path, rows: list[Row], *, said: int | None = None, identity: Any = None) -> RunFolder:
    run = RunFolder(folder)
    run.write_manifest(manifest(len(rows) if said is None else said))
    form = schema.arrow_schema(schema.RECORD_FEATURES)
    metadata = {"eagle3_data": json.dumps(identity or manifest(0)["identity"])}
    half = len(rows) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        path = run.records_path("B1") / f"train-{number:05d}-of-00002.parquet"
        write_parquet(path, [pa.Table.from_pylist(part, schema=form)], form, metadata)
    prompts = [{"sample_id": f"B1-{index:024x}"} for index in range(len(rows))]
    path = run.prompts_path("B1")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(prompts), path)
    return run


def longer(record: Row) -> None:
    record.update(output_ids=[5] * 6, completion_tokens=6, reasoning_tokens=6, finish_reason="length_cap")
    record.update(max_new_tokens=6, stop_token_id=-1)
    record.update(input_ids=[1] * 23 + PROMPT, prompt_tokens=32)


def deep(record: Row) -> None:
    record.update(input_ids=[1] * 24 + PROMPT, prompt_tokens=33)
    record.update(output_ids=[5] * 8, completion_tokens=8, reasoning_tokens=8, finish_reason="length_context")
    record.update(stop_token_id=-1, max_new_tokens=8)


FAULTS: list[tuple[str, Callable[[Row], Any]]] = [
    ("prompt_tokens", lambda record: record.update(prompt_tokens=3)),
    ("completion_tokens", lambda record: record.update(completion_tokens=3)),
    ("empty_prompt", lambda record: record.update(input_ids=[], prompt_tokens=0)),
    ("empty_output", lambda record: record.update(output_ids=[], completion_tokens=0, reasoning_tokens=0)),
    ("vocabulary", lambda record: record["output_ids"].__setitem__(0, 163840)),
    ("vocabulary", lambda record: record["input_ids"].__setitem__(0, -4)),
    ("generation_prompt", lambda record: record["input_ids"].__setitem__(-1, 7)),
    (
        "prompt_tail",
        lambda record: record.update(output_ids=[*PROMPT[-4:], CLOSE, END], completion_tokens=6, reasoning_tokens=5),
    ),
    ("control_token", lambda record: record["output_ids"].__setitem__(2, USER)),
    ("finish_reason", lambda record: record.update(finish_reason="length")),
    ("stop_token", lambda record: record.update(stop_token_id=EOS)),
    ("stop_token", lambda record: record.update(finish_reason="length_cap", max_new_tokens=4)),
    ("unknown_stop", lambda record: record.update(output_ids=[1, CLOSE, 2, 9], stop_token_id=9)),
    ("stop_inside", lambda record: record["output_ids"].__setitem__(2, EOS)),
    ("over_budget", lambda record: record.update(max_new_tokens=2)),
    (
        "short_of_budget",
        lambda record: record.update(
            output_ids=[1, 2, 3, 4], finish_reason="length_cap", stop_token_id=-1, reasoning_tokens=4
        ),
    ),
    ("over_cap", lambda record: record.update(max_new_tokens=9)),
    ("wrong_limit", longer),
    ("context", deep),
    ("reasoning_tokens", lambda record: record.update(reasoning_tokens=4)),
    ("tool_calls", lambda record: record.update(tool_calls=1)),
    ("rounds", lambda record: record.update(rounds=0)),
    ("sample_id", lambda record: record.update(sample_id="B1-123")),
    ("source", lambda record: record.update(source="B4", sample_id="B4-" + record["sample_id"][3:])),
    ("unknown_prompt", lambda record: record.update(sample_id="B1-" + "f" * 24)),
    ("duplicate", lambda record: record.update(sample_id=f"B1-{7:024x}")),
    ("null", lambda record: record.update(license=None)),
]


def test_sound_records_pass(tmp_path: Path) -> None:
    report = check(write(tmp_path, [row(index) for index in range(23)]))
    assert report.ok, report.to_text()
    assert (report.rows, report.files, report.left_out) == (23, 2, [])
    assert "no violations" in report.to_text()


def test_rows_may_go_as_far_as_they_were_extended(tmp_path: Path) -> None:
    rows = [row(index) for index in range(10)]
    for record, size, reason in ((rows[3], 12, "length_cap"), (rows[8], 10, "length_context")):
        record.update(output_ids=[5] * size, completion_tokens=size, reasoning_tokens=size, finish_reason=reason)
        record.update(max_new_tokens=size, rounds=2)
    rows[8].update(input_ids=[1] * 19 + PROMPT, prompt_tokens=28)
    run = write(tmp_path, rows)
    assert {"over_cap", "wrong_limit"} == set(check(run.path).violations)
    for extent in ({"max_new_tokens": CAP, "extended_to": 12}, {"max_new_tokens": "auto", "caps": 12}):
        run.write_manifest({**manifest(10), "extent": {"sources": {"B1": {"source": "B1", **extent}}}})
        assert not check(run.path).violations


@pytest.mark.parametrize(("kind", "plant"), FAULTS, ids=[f"{kind}-{index}" for index, (kind, _) in enumerate(FAULTS)])
def test_planted_fault_is_found(kind: str, plant: Callable[[Row], Any], tmp_path: Path) -> None:
    rows = [row(index) for index in range(20)]
    plant(rows[15])
    report = check(str(write(tmp_path, rows).path))
    assert kind in report.violations, report.to_text()
    violation = report.violations[kind]
    assert violation.count == 1
    # Row 15 is the sixth of the second file.
    assert (violation.examples[0].file, violation.examples[0].row) == ("records/B1/train-00001-of-00002.parquet", 5)
    assert kind in report.to_text()
    assert report.to_dict()["violations"][kind]["meaning"] == KINDS[kind]
    assert json.loads(json.dumps(report.to_dict()))["ok"] is False


def test_faults_of_files(tmp_path: Path) -> None:
    rows = [row(index) for index in range(6)]
    run = write(tmp_path / "count", rows, said=7)
    assert set(check(run).violations) == {"row_count"}

    run = write(tmp_path / "identity", rows, identity={"target": {"model": "other"}})
    assert check(run).violations["identity"].count == 2

    run = write(tmp_path / "bytes", rows)
    run.record_files("B1")[0].write_bytes(b"PAR1 no")
    assert "unreadable" in check(run).violations

    run = write(tmp_path / "columns", rows)
    table = pq.read_table(run.record_files("B1")[0]).drop_columns(["rounds"])
    pq.write_table(table, run.record_files("B1")[0])
    assert "rounds is missing" in check(run).to_text()


def test_other_places(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [row(index) for index in range(10)])
    alone = check(run.record_files("B1")[0])
    assert alone.ok
    assert alone.rows == 5
    assert any("manifest" in reason for reason in alone.left_out)
    rows = [row(index) for index in range(10)]
    rows[4]["tool_calls"] = 3
    data = Dataset.from_list(rows, features=schema.RECORD_FEATURES).shuffle(seed=1)
    assert set(check(data, profile=PROFILE.to_dict()).violations) == {"tool_calls"}
    with pytest.raises(UsageError, match="nowhere"):
        check(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no records"):
        check(tmp_path / "empty")


STATES = ["open", "model", "closed", "none"]


@pytest.mark.parametrize(("state", "at_tools"), [*((state, None) for state in STATES), ("open", "model")])
def test_batches_count_as_the_splitter_does(state: Any, at_tools: Any) -> None:
    profile = PROFILE.replaced({"thinking_state": state, "tool_turn_state": at_tools, "tool_turn_ids": [END]})
    splitter = Splitter(profile, lambda ids: "x" * len(ids))
    draw = np.random.default_rng(3)
    pool = np.array([5, 6, THINK, CLOSE, SECTION, CALL, END], dtype=np.int32)
    rows = [draw.choice(pool, size=draw.integers(0, 9)) for _ in range(2000)]
    lists = Lists(pa.chunked_array([pa.array(rows, type=pa.list_(pa.int32()))]))
    prompts = [np.array(PROMPT[: -4 if index % 2 else None], np.int32) for index in range(len(rows))]
    asked = Lists(pa.chunked_array([pa.array(prompts, type=pa.list_(pa.int32()))]))
    ends, unsure = thinking(asked, lists, profile.to_dict())
    for ids, prompt, end, open_question in zip(rows, prompts, ends.tolist(), unsure.tolist(), strict=True):
        assert splitter.reasoning_end(ids, prompt)[0] == (0 if open_question else end)
