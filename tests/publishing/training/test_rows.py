"""Training rows: prompt and output side by side, a mask that is exact, nothing lost without being counted."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from support.run_folders import make_run

from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing.training.exports import export
from eagle3_data.publishing.training.rows import to_training
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
        ({"truncated": "drop"}, {0: 5, 2: 22, 3: 10}),
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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_length": 0}, "max_length"),
        ({"overflow": "pack"}, "overflow"),
        ({"min_loss_tokens": 0}, "min_loss_tokens"),
        ({"truncated": "some"}, "truncated"),
        ({"columns": ["output_ids"]}, "columns"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        to_training(records(), **options)


def test_other_rows_are_refused() -> None:
    rows = datasets.Dataset.from_dict({"input_ids": [[1]], "loss_mask": [[0]]})
    with pytest.raises(UsageError, match="output_ids"):
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
    assert report.read == report.written == len(lines) == (70 if form == "run" else 35)
    assert report.loss_tokens == sum(sum(line["loss_mask"]) for line in lines) > 0
    import pyarrow.parquet as pq

    first = pq.read_table(file).slice(0, 1).to_pylist()[0]
    assert lines[0]["input_ids"] == first["input_ids"] + first["output_ids"]
    assert lines[0]["loss_mask"] == [0] * len(first["input_ids"]) + [1] * len(first["output_ids"])


def test_export_counts_what_it_cuts_and_leaves_out(run: RunFolder, tmp_path: Path) -> None:
    whole = export(run, "speculators", tmp_path / "a.jsonl", split=None)
    cut = export(run, "speculators", tmp_path / "b.jsonl", split=None, max_length=40, min_loss_tokens=5)
    assert whole.read == cut.read == 80 and cut.written + cut.dropped == 80
    assert 0 < cut.dropped < 80 and cut.cut > 0 and cut.longest == 40
    assert str(cut.dropped) in cut.to_text()


def test_export_refuses_what_it_cannot_do(run: RunFolder, tmp_path: Path) -> None:
    for options, says in [
        ({"to": "eagle"}, "specforge and speculators"),
        ({"output": tmp_path / "x.parquet"}, "jsonl"),
        ({"sources": ["B4"]}, "no source 'B4'"),
        ({"data": tmp_path / "nowhere"}, "no such run folder"),
        ({"data": "some/where/deep"}, "no such run folder"),
    ]:
        with pytest.raises(UsageError, match=says):
            export(**{"data": run, "to": "specforge", "output": tmp_path / "x.jsonl", **options})  # type: ignore[arg-type]
    with pytest.raises(DataError, match="none of its 70 rows"):
        export(run, "specforge", tmp_path / "x.jsonl", max_length=3)
    assert not list(tmp_path.iterdir())


def test_export_names_the_row_whose_lengths_lie(tmp_path: Path) -> None:
    rows = records()
    wrong = rows.map(
        lambda row: {"prompt_tokens": 99} if row["sample_id"] == "s-2" else {}, load_from_cache_file=False
    )
    with pytest.raises(DataError, match="s-2: prompt_tokens"):
        export(wrong, "specforge", tmp_path / "x.jsonl")
