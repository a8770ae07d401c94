"""Training rows: prompt and output side by side, a mask that is exact, nothing lost without being counted."""

import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from support.run_folders import make_run

from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing.training.exports import export
from eagle3_data.publishing.training.views import to_training
from eagle3_data.run_folder import RunFolder
from eagle3_data.schema import RECORD_FEATURES

ROWS = [
    ([1, 2, 3], [4, 5], "stop"),
    ([1] * 6, [7, 8, 9], "length_cap"),
    ([1, 2], [3] * 20, "stop"),
    ([5] * 9, [6], "stop"),
]


def records(rows: list[tuple[list[int], list[int], str]] = ROWS) -> datasets.Dataset:
    table: dict[str, list[Any]] = {name: [] for name in RECORD_FEATURES}
    for index, (prompt, output, reason) in enumerate(rows):
        values = {
            "sample_id": f"s-{index}",
            "source": "s",
            "input_ids": prompt,
            "output_ids": output,
            "finish_reason": reason,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(output),
        }
        for name, feature in RECORD_FEATURES.items():
            table[name].append(values.get(name, "" if getattr(feature, "dtype", "") == "string" else 0))
    return datasets.Dataset.from_dict(table, features=RECORD_FEATURES)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {0: 5, 1: 9, 2: 22, 3: 10}),
        ({"max_length": 9}, {0: 5, 1: 9, 2: 9}),  # row 3 would have no output left
        ({"max_length": 9, "overflow": "drop"}, {0: 5, 1: 9}),
        ({"max_length": 8, "min_loss_tokens": 3}, {2: 8}),
        ({"drop": ["cut"]}, {0: 5, 2: 22, 3: 10}),
        ({"max_length": 1}, {}),
    ],
)
def test_rows_are_joined_cut_and_left_out(streaming: bool, options: dict[str, Any], kept: dict[int, int]) -> None:
    source: Any = records().to_iterable_dataset() if streaming else records()
    rows = list(to_training(source, columns=["sample_id"], **options))
    assert {int(row["sample_id"][2:]): len(row["input_ids"]) for row in rows} == kept
    for row in rows:
        prompt, output, _ = ROWS[int(row["sample_id"][2:])]
        length = kept[int(row["sample_id"][2:])]
        assert list(row["input_ids"]) == (prompt + output)[:length]
        assert list(row["loss_mask"]) == ([0] * len(prompt) + [1] * len(output))[:length]


def test_types_and_laziness() -> None:
    rows = to_training(records(), max_length=4096)
    assert (rows[0]["input_ids"].dtype, rows[0]["loss_mask"].dtype) == (np.int32, np.int8)
    assert set(rows[:2]) == {"input_ids", "loss_mask"} and len(rows) == 4
    assert not rows.cache_files
    both = to_training(datasets.DatasetDict(train=records(), validation=records(ROWS[:1])))
    assert both["validation"][0]["input_ids"].tolist() == [1, 2, 3, 4, 5]
    features = to_training(records().to_iterable_dataset()).features
    assert features is not None and str(features["loss_mask"]).count("int8") == 1


def test_a_lost_transform_gives_no_prompt_in_place_of_a_row(tmp_path: Path) -> None:
    """What is stored is not called input_ids, so nothing that loses the transform can train on prompts."""
    rows = to_training(records())
    assert rows.column_names == ["prompt_ids", "answer_ids"]
    for lost in (rows.with_format("numpy")[0], rows.with_format(None)[0], rows.to_dict()):
        assert set(lost) == {"prompt_ids", "answer_ids"}
    rows.to_parquet(tmp_path / "rows.parquet")
    assert pq.read_schema(tmp_path / "rows.parquet").names == ["prompt_ids", "answer_ids"]
    mapped = rows.map(lambda row: {"n": len(row["input_ids"])})
    assert mapped.column_names == ["prompt_ids", "answer_ids", "n"]
    assert mapped.with_format(None)["n"][:] == [len(row["input_ids"]) for row in rows]


@pytest.mark.parametrize(
    "changed", [lambda rows: rows, lambda rows: rows.select([1, 0]), lambda rows: rows.shuffle(1)]
)
def test_lazy_rows_say_how_they_can_be_saved(tmp_path: Path, changed: Callable[[Any], Any]) -> None:
    rows = changed(to_training(records()))
    with pytest.raises(UsageError, match=r"^save_to_disk: .*; use to_training\(\.\.\., materialize=True\)$"):
        rows.save_to_disk(tmp_path / "saved")
    again = pickle.loads(pickle.dumps(rows))
    assert [list(row["input_ids"]) for row in again] == [list(row["input_ids"]) for row in rows]


def test_materialised_rows_are_a_plain_data_set(tmp_path: Path) -> None:
    rows = to_training(records(), max_length=9, columns=["sample_id"], materialize=True, cache_dir=tmp_path)
    lazy = to_training(records(), max_length=9, columns=["sample_id"])
    wanted = [
        {"sample_id": row["sample_id"], **{k: row[k].tolist() for k in ("input_ids", "loss_mask")}} for row in lazy
    ]
    assert rows.to_list() == wanted and rows.column_names == ["sample_id", "input_ids", "loss_mask"]
    assert rows.with_format("numpy")[0]["loss_mask"].tolist() == wanted[0]["loss_mask"]
    assert rows.map(lambda row: {"n": len(row["input_ids"])})["n"][:] == [len(row["input_ids"]) for row in wanted]
    rows.save_to_disk(tmp_path / "saved")
    assert datasets.load_from_disk(tmp_path / "saved").to_list() == wanted
    rows.to_parquet(tmp_path / "rows.parquet")
    assert pq.read_table(tmp_path / "rows.parquet").to_pylist() == wanted
    made = list(tmp_path.glob("training-*.arrow"))
    again = to_training(records(), max_length=9, columns=["sample_id"], materialize=True, cache_dir=tmp_path)
    assert again.to_list() == wanted and list(tmp_path.glob("training-*.arrow")) == made
    to_training(records(), max_length=8, materialize=True, cache_dir=tmp_path)
    assert len(list(tmp_path.glob("training-*.arrow"))) == 2
    with pytest.raises(UsageError, match="streamed"):
        to_training(records().to_iterable_dataset(), materialize=True)


# name, turns of dialogues as (dialogue, sample, turn, prompt, output), rows as (ids, places under the loss)
DIALOGUES: list[tuple[str, dict[str, Any], list[tuple[str, int, int, list[int], list[int]]], list[Any]]] = [
    (
        "two turns that continue one another",
        {},
        [("a", 0, 0, [1, 2], [3, 4]), ("a", 0, 1, [1, 2, 3, 4, 5], [6])],
        [([1, 2, 3, 4, 5, 6], [2, 3, 5])],
    ),
    (
        "history that the template changed",
        {},
        [("a", 0, 0, [1, 2], [3, 4]), ("a", 0, 1, [1, 2, 4, 5], [6])],
        [([1, 2, 3, 4], [2, 3]), ([1, 2, 4, 5, 6], [4])],
    ),
    (
        "joined, then apart, then joined",
        {},
        [
            ("a", 0, 0, [1], [2]),
            ("a", 0, 1, [1, 2, 3], [4]),
            ("a", 0, 2, [1, 3, 4, 5], [6]),
            ("a", 0, 3, [1, 3, 4, 5, 6, 7], [8]),
        ],
        [([1, 2, 3, 4], [1, 3]), ([1, 3, 4, 5, 6, 7, 8], [4, 6])],
    ),
    (
        "several answers to one dialogue, side by side",
        {},
        [
            ("a", 0, 0, [1], [2]),
            ("a", 1, 0, [1], [9]),
            ("a", 0, 1, [1, 2, 3], [4]),
            ("a", 1, 1, [1, 9, 3], [5]),
        ],
        [([1, 2, 3, 4], [1, 3]), ([1, 9, 3, 5], [1, 3])],
    ),
    (
        "two dialogues alike",
        {},
        [("a", 0, 0, [1], [2]), ("b", 0, 1, [1, 2, 3], [4])],
        [([1, 2], [1]), ([1, 2, 3, 4], [3])],
    ),
    (
        "a turn is missing",
        {},
        [("a", 0, 0, [1], [2]), ("a", 0, 2, [1, 2, 3], [4])],
        [([1, 2], [1]), ([1, 2, 3, 4], [3])],
    ),
    (
        "cut to the length, through the second answer",
        {"max_length": 7},
        [("a", 0, 0, [1, 2], [3, 4]), ("a", 0, 1, [1, 2, 3, 4, 5], [6, 7, 8])],
        [([1, 2, 3, 4, 5, 6, 7], [2, 3, 5, 6])],
    ),
    (
        "only what fits is joined when longer rows are left out",
        {"max_length": 6, "overflow": "drop"},
        [("a", 0, 0, [1, 2], [3, 4]), ("a", 0, 1, [1, 2, 3, 4, 5], [6]), ("a", 0, 2, [1, 2, 3, 4, 5, 6, 7], [8])],
        [([1, 2, 3, 4, 5, 6], [2, 3, 5])],
    ),
]


def dialogue_records(turns: list[tuple[str, int, int, list[int], list[int]]]) -> datasets.Dataset:
    made = records([(prompt, output, "stop") for *_, prompt, output in turns]).to_dict()
    for name, at in (("dialogue", 0), ("sample", 1), ("turn", 2)):
        made[name] = [turn[at] for turn in turns]
    return datasets.Dataset.from_dict(made, features=RECORD_FEATURES)


@pytest.mark.parametrize(("options", "turns", "rows"), [case[1:] for case in DIALOGUES], ids=[c[0] for c in DIALOGUES])
@pytest.mark.parametrize("form", ["data set", "streamed", "export"])
def test_turns_are_joined_where_ids_continue(
    tmp_path: Path, form: str, options: dict[str, Any], turns: Any, rows: Any
) -> None:
    made = dialogue_records(turns)
    if form == "export":
        export(made, "specforge", tmp_path / "x.jsonl", per="dialogue", **options)
        found = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    else:
        source: Any = made.to_iterable_dataset() if form == "streamed" else made
        found = list(to_training(source, per="dialogue", cache_dir=tmp_path, **options))
    assert [(list(row["input_ids"]), [at for at, bit in enumerate(row["loss_mask"]) if bit]) for row in found] == rows
    assert all(len(row["input_ids"]) == len(row["loss_mask"]) for row in found)


def test_a_dialogue_that_spans_tables_is_one_row(tmp_path: Path) -> None:
    """1,500 turns: more than one batch holds. The report says how many were joined, and what that saved."""
    turns: list[Any] = [("long", 0, turn, list(range(2 * turn + 1)), [2 * turn + 1]) for turn in range(1_500)]
    turns += [("short", 0, 0, [1], [2])]
    report = export(dialogue_records(turns), "specforge", tmp_path / "x.jsonl", per="dialogue")
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [len(line["input_ids"]) for line in lines] == [3_000, 2] and sum(lines[0]["loss_mask"]) == 1_500
    tally = report.whole
    assert (tally.read, tally.written, tally.joined) == (1_501, 2, 1_499)
    assert tally.saved == sum(2 * turn + 2 for turn in range(1_499))
    assert f"1,499 turns joined to earlier ones, which saved {tally.saved:,} tokens" in report.to_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_length": 0}, "max_length"),
        ({"overflow": "pack"}, "overflow"),
        ({"min_loss_tokens": 0}, "min_loss_tokens"),
        ({"drop": ["some"]}, "none of loop, cut, cap, context"),
        ({"columns": ["output_ids"]}, "columns"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        to_training(records(), **options)


def test_other_rows_are_refused() -> None:
    rows = datasets.Dataset.from_dict({"input_ids": [[1]], "loss_mask": [[0]]})
    with pytest.raises(UsageError, match="no column"):
        to_training(rows)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("run") / "run", {"B1_glaive": 40, "B8_sweagent": 40}, holdout=5)


@pytest.mark.parametrize("form", ["run", "folder", "file", "dataset"])
def test_export_holds_every_row_from_every_form(run: RunFolder, tmp_path: Path, form: str) -> None:
    file = run.record_files("B1_glaive")[0]
    data: Any = {
        "run": run,
        "folder": file.parent,
        "file": file,
        "dataset": lambda: datasets.load_dataset(
            "parquet", data_files=str(file), split="train", cache_dir=str(tmp_path)
        ),
    }[form]
    report = export(data() if callable(data) else data, "specforge", tmp_path / "train.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert report.whole.read == report.whole.written == len(lines) == (70 if form == "run" else 35)
    assert report.whole.loss_tokens == sum(sum(line["loss_mask"]) for line in lines) > 0
    first = pq.read_table(file).slice(0, 1).to_pylist()[0]
    assert lines[0]["input_ids"] == first["input_ids"] + first["output_ids"]
    assert lines[0]["loss_mask"] == [0] * len(first["input_ids"]) + [1] * len(first["output_ids"])


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_export_counts_what_it_cuts_and_leaves_out(run: RunFolder, tmp_path: Path) -> None:
    whole = export(run, "speculators", tmp_path / "a.jsonl", split=None).whole
    report = export(run, "speculators", tmp_path / "b.jsonl", split=None, max_length=40, min_loss_tokens=5)
    cut = report.whole
    assert whole.read == cut.read == 80 and cut.written + sum(cut.dropped.values()) == 80
    assert 0 < sum(cut.dropped.values()) < 80 and cut.longest == 40
    assert set(report.sources) == {"B1_glaive", "B8_sweagent"}
    lengths = {line["id"]: len(line["input_ids"]) for line in read_lines(tmp_path / "a.jsonl")}
    rows = read_lines(tmp_path / "b.jsonl")
    assert cut.cut == sum(lengths[row["id"]] > 40 for row in rows) > 0
    ended = {line["id"] for line in read_lines(tmp_path / "a.jsonl") if line["input_ids"][-1] == 2}
    assert cut.ends_lost == sum(lengths[row["id"]] > 40 and row["id"] in ended for row in rows) > 0
    for tally in report.sources.values():
        assert f"{tally.ends_lost:,} of them lost their end token" in report.to_text()


def test_export_names_the_split_that_it_leaves_out(run: RunFolder, tmp_path: Path) -> None:
    report = export(run, "specforge", tmp_path / "a.jsonl")
    assert report.left_out == {"validation": 10}
    assert "10 records of the validation split left out (--split validation, or --split all)" in report.to_text()
    assert export(run, "specforge", tmp_path / "b.jsonl", split="validation").whole.read == 10
    both = export(run, "specforge", tmp_path / "c.jsonl", split=None)
    assert both.whole.read == 80 and not both.left_out
    one = export(run, "specforge", tmp_path / "d.jsonl", sources=["B8_sweagent"])
    assert set(one.sources) == {"B8_sweagent"} and one.left_out == {"validation": 5}


@pytest.mark.parametrize(
    ("drop", "kept"),
    [(["cut"], {0, 2, 4}), (["loop"], {0, 1, 2, 3}), (["context"], {0, 1, 2, 4}), (["cap", "loop"], {0, 2, 3})],
)
@pytest.mark.parametrize("materialize", [False, True])
def test_records_are_left_out_by_how_they_end(
    tmp_path: Path, drop: list[str], kept: set[int], materialize: bool
) -> None:
    reasons = ["stop", "length_cap", "stop", "length_context", "stop"]
    made = records([([1], [index, 7], reason) for index, reason in enumerate(reasons)]).to_dict()
    made["loop_tokens"] = [0, 0, 0, 0, 200]
    source = datasets.Dataset.from_dict(made, features=RECORD_FEATURES)
    rows = to_training(source, drop=drop, materialize=materialize, cache_dir=tmp_path)
    assert {int(row["input_ids"][1]) for row in rows} == kept
    report = export(source, "specforge", tmp_path / "x.jsonl", drop=drop)
    assert {line["input_ids"][1] for line in read_lines(tmp_path / "x.jsonl")} == kept
    assert sum(report.sources["s"].dropped.values()) == 5 - len(kept) and set(report.sources["s"].dropped) <= {*drop}


def test_every_format_holds_the_same_rows(run: RunFolder, tmp_path: Path) -> None:
    export(run, "specforge", tmp_path / "rows.jsonl")
    wanted = {line["id"]: (line["input_ids"], line["loss_mask"]) for line in read_lines(tmp_path / "rows.jsonl")}
    for shards in (1, 3):
        for name in ("rows.parquet", "rows"):
            report = export(run, "plain", tmp_path / str(shards) / name, shards=shards)
            assert len(report.files) == shards and report.bytes > 0
            if name == "rows":
                found = datasets.load_from_disk(tmp_path / str(shards) / name)
            else:
                found = datasets.load_dataset(
                    "parquet", data_files=list(report.files), split="train", cache_dir=str(tmp_path / "cache")
                )
            assert {row["sample_id"]: (row["input_ids"], row["loss_mask"]) for row in found} == wanted
        shard_rows = [
            len(read_lines(Path(file))) for file in export(run, "speculators", tmp_path / "s.jsonl", shards=4).files
        ]
        assert sum(shard_rows) == 70 and max(shard_rows) - min(shard_rows) <= 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("s-")) == [
        f"s-{index:05d}-of-00004.jsonl" for index in range(4)
    ]


def test_what_is_typed_next_names_every_file_and_the_longest_row(run: RunFolder, tmp_path: Path) -> None:
    """Trainers cut rows at a length of their own (SpecForge: 2,048), so each command states the longest row."""
    report = export(run, "specforge", tmp_path / "a.jsonl")
    longest = report.whole.longest
    assert f"data.prompts_path to {tmp_path / 'a.jsonl'} and data.max_length to {longest} or more" in report.to_text()
    report = export(run, "speculators", tmp_path / "b.jsonl", shards=2)
    data = " ".join(f"--data {file}" for file in report.files)
    assert f"prepare-data --model MODEL {data} --output DIR --seq-length {longest}" in report.to_text()
    report = export(run, "speculators", tmp_path / "c" / "c.parquet")
    assert f"--data hf:{tmp_path / 'c'}:train --output DIR --seq-length {longest}" in report.to_text()
    assert report.to_text().endswith(f"(where {tmp_path / 'c'} holds nothing else)")
    report = export(run, "speculators", tmp_path / "d", shards=2)
    assert f"speculators train --data-path {tmp_path / 'd'} --total-seq-len {longest}" in report.to_text()


def test_a_folder_for_speculators_is_what_its_training_reads(run: RunFolder, tmp_path: Path) -> None:
    """`prepare-data` writes seq_len and torch's format; the order is random, as its validation rows are the last."""
    export(run, "plain", tmp_path / "plain")
    plain = datasets.load_from_disk(tmp_path / "plain")
    assert json.loads((tmp_path / "plain" / "state.json").read_text())["_format_type"] is None
    for place, options in (("a", {}), ("b", {"shuffle": 0}), ("c", {"shuffle": 1})):
        export(run, "speculators", tmp_path / place, **options)  # type: ignore[arg-type]
        state = tmp_path / place / "state.json"
        assert json.loads(state.read_text())["_format_type"] == "torch"
        (tmp_path / "new").mkdir(exist_ok=True)
        assert (tmp_path / place).stat().st_mode == (tmp_path / "new").stat().st_mode, "others may read it too"
        # torch is not among the development dependencies: test_trainers.py reads the folder in its own format
        state.write_text(state.read_text().replace('"torch"', "null"))
    rows = {place: datasets.load_from_disk(tmp_path / place).to_list() for place in "abc"}
    assert rows["a"] == rows["b"] != rows["c"] and [row["sample_id"] for row in rows["a"]] != plain["sample_id"][:]
    assert all(row.pop("seq_len") == len(row["input_ids"]) for row in rows["a"])
    assert sorted(rows["a"], key=lambda row: row["sample_id"]) == sorted(plain, key=lambda row: row["sample_id"])


def test_shuffling_keeps_every_row_and_depends_on_the_seed(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []
    # with 4,000 bytes a pile, piles are dealt again
    for seed, pile_bytes in ((0, 2**26), (0, 2**26), (1, 2**26), (1, 4_000)):
        monkeypatch.setattr("eagle3_data.publishing.training.shuffling.PILE_BYTES", pile_bytes)
        export(run, "specforge", tmp_path / "x.jsonl", shuffle=seed)
        orders.append([line["id"] for line in read_lines(tmp_path / "x.jsonl")])
    export(run, "specforge", tmp_path / "x.jsonl")
    plain = [line["id"] for line in read_lines(tmp_path / "x.jsonl")]
    assert all(sorted(order) == sorted(plain) and order != plain for order in orders)
    assert orders[0] == orders[1] != orders[2]
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_a_mixture_gives_rows_as_often_as_asked(run: RunFolder, tmp_path: Path) -> None:
    report = export(run, "specforge", tmp_path / "x.jsonl", mix={"B1_glaive": 2.5, "B8_sweagent": 0.5})
    count = Counter(line["id"] for line in read_lines(tmp_path / "x.jsonl"))
    glaive = [times for name, times in count.items() if name.startswith("B1_")]
    assert len(glaive) == 35 and set(glaive) == {2, 3} and 5 < glaive.count(3) < 30
    half = [times for name, times in count.items() if name.startswith("B8_")]
    assert set(half) == {1} and 5 < len(half) < 30
    assert report.sources["B8_sweagent"].dropped == {"mix": 35 - len(half)}
    assert report.whole.written == sum(count.values())
    assert Counter(line["id"] for line in read_lines(tmp_path / "x.jsonl")) == count
    with pytest.raises(UsageError, match="no source 'B9'"):
        export(run, "specforge", tmp_path / "y.jsonl", mix={"B9": 1})
    assert not (tmp_path / "y.jsonl").exists()


def test_export_refuses_what_it_cannot_do(run: RunFolder, tmp_path: Path) -> None:
    for options, says in [
        ({"to": "eagle"}, "specforge, speculators, plain"),
        ({"output": tmp_path / "x.parquet"}, "something.jsonl"),
        ({"to": "plain", "output": tmp_path / "x.txt"}, "ending in .jsonl or ending in .parquet"),
        ({"to": "plain", "output": tmp_path / "x.txt", "format": "arrow"}, "as a folder"),
        ({"sources": ["B4"]}, "no source 'B4'"),
        ({"shards": 0}, "shards"),
        ({"shards": 2}, "SpecForge reads one file"),
        ({"mix": {"B1_glaive": -1}}, "mix: B1_glaive=-1"),
        ({"drop": ["long"]}, "'long' is none of"),
        ({"data": tmp_path / "nowhere"}, "no such run folder"),
        ({"data": "some/where/deep"}, "no such run folder"),
    ]:
        with pytest.raises(UsageError, match=says):
            export(**{"data": run, "to": "specforge", "output": tmp_path / "x.jsonl", **options})  # type: ignore[arg-type]
    for output in ("x.jsonl", "x.parquet", "x"):
        with pytest.raises(DataError, match="none of its 70 records"):
            export(run, "plain", tmp_path / output, max_length=3)
    assert not list(tmp_path.iterdir())


def test_export_names_the_row_whose_lengths_lie(tmp_path: Path) -> None:
    rows = records()
    wrong = rows.map(
        lambda row: {"prompt_tokens": 99} if row["sample_id"] == "s-2" else {}, load_from_cache_file=False
    )
    with pytest.raises(DataError, match="s-2: prompt_tokens"):
        export(wrong, "specforge", tmp_path / "x.jsonl")
