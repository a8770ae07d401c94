"""Two data sets compared by rows: every kind of difference, by source, with its rows named."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.run_folders import make_run

from eagle3_data import cli
from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing import compare_records
from eagle3_data.run_folder import RunFolder, write_parquet

GLAIVE, SWE = "B1_glaive", "B8_sweagent"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("run") / "run", {GLAIVE: 40, SWE: 20}, holdout=4, mean=150)


def rewrite(run: RunFolder, source: str, change: Any) -> None:
    path = run.record_files(source)[0]
    rows = change(pq.read_table(path).to_pylist())
    schema = pq.read_schema(path).remove_metadata()
    write_parquet(path, [pa.Table.from_pylist(rows, schema=schema)], schema)


def with_output(row: dict[str, Any], output: list[int]) -> dict[str, Any]:
    return {**row, "output_ids": output, "completion_tokens": len(output)}


def test_equal_rows_are_equal_in_any_order_and_any_files(run: RunFolder, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", {GLAIVE: 40, SWE: 20}, holdout=0, mean=150, files=3)
    rewrite(other, GLAIVE, lambda rows: rows[::-1])
    found = compare_records(run, other)
    assert found.same and "the same rows" in found.to_text()
    assert {name: each.unchanged for name, each in found.sources.items()} == {GLAIVE: 40, SWE: 20}


def test_every_kind_of_difference_is_counted_and_shown(run: RunFolder, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", {GLAIVE: 40, SWE: 20}, holdout=4, mean=150)
    ids: dict[str, str] = {}

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ids.update({str(at): row["sample_id"] for at, row in enumerate(rows)})
        rows[0] = with_output(rows[0], [*rows[0]["output_ids"], 11, 12])
        rows[1] = with_output(rows[1], [rows[1]["output_ids"][0] + 1, *rows[1]["output_ids"][1:], 13])
        rows[2] = {**rows[2], "input_ids": [*rows[2]["input_ids"][:-1], 7]}
        rows[3] = with_output(rows[3], rows[3]["output_ids"][:-1])
        rows[4] = {**rows[4], "sample": 1}
        return [*rows[:5], *rows[7:]]

    rewrite(other, GLAIVE, change)
    found = compare_records(run, other)
    each = found.sources[GLAIVE]
    assert (each.added, each.removed, each.extended, each.changed, each.unchanged) == (1, 3, 1, 3, 33)
    assert each.examples["extended"][0].startswith(f"{ids['0']} (")
    assert [words.split(" (")[0] for words in each.examples["changed"]] == [ids["1"], ids["2"], ids["3"]]
    assert "another prompt" in each.examples["changed"][1] and "another answer" in each.examples["changed"][0]
    assert each.examples["added"] == [f"{ids['4']} sample 1 ({each.examples['added'][0].split('(')[1]}"]
    assert {words.split(" (")[0] for words in each.examples["removed"]} == {ids["4"], ids["5"], ids["6"]}
    assert found.sources[SWE].unchanged == 20
    back = compare_records(other, run).sources[GLAIVE]
    assert (back.added, back.removed, back.extended, back.changed) == (3, 1, 1, 3)


def test_the_command_line_prints_it(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_run(tmp_path / "other", {GLAIVE: 45}, holdout=4, mean=150)
    assert cli.main(["diff", str(run.path), str(other.path)]) == 0
    text = capsys.readouterr().out
    assert f"{GLAIVE}: 5 added, 40 unchanged" in text and f"{SWE}: 20 removed, 0 unchanged" in text
    assert text.count(f"removed: {SWE}-") == 3


def test_what_cannot_be_compared_is_named(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such run folder"):
        compare_records(run, tmp_path / "nowhere")
    twice = make_run(tmp_path / "twice", {GLAIVE: 10})
    rewrite(twice, GLAIVE, lambda rows: [*rows, rows[0]])
    for pair in ((run, twice), (twice, run)):
        with pytest.raises(DataError, match="twice: two records have the same sample_id and sample"):
            compare_records(*pair)


def test_an_empty_side_is_all_added_or_removed(run: RunFolder, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", {GLAIVE: 10})
    rewrite(other, GLAIVE, lambda rows: [])
    assert compare_records(other, run).sources[GLAIVE].added == 40
    found = compare_records(run, other)
    assert sum(each.removed for each in found.sources.values()) == 60
    assert np.sum([each.unchanged for each in found.sources.values()]) == 0
