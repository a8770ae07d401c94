"""The evaluate measurement gives the numbers of measure_lengths, from ids or lengths, in one piece or in batches."""

from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest

from eagle3_data.errors import UsageError
from eagle3_data.lengths import measure_lengths

evaluate = pytest.importorskip("evaluate")
FOLDER = Path(__file__).resolve().parents[2] / "eagle3_data" / "lengths" / "token_lengths"


@pytest.fixture
def measurement(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("evaluate.config.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return evaluate.load(str(FOLDER), module_type="measurement", cache_dir=str(tmp_path))


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    completion = np.minimum(random.lognormal(6, 1, 500).astype(int) + 1, 900)
    return {
        "input_ids": [list(range(n)) for n in random.integers(5, 60, 500)],
        "output_ids": [[7] * n for n in completion],
        "reasoning_tokens": (completion // 2).tolist(),
        "finish_reason": ["length_cap" if n == 900 else "stop" for n in completion],
    }


def test_ids_lengths_and_batches_give_the_numbers_of_the_report(measurement, rows):
    report = measure_lengths(
        datasets.Dataset.from_dict({**rows, "tool_calls": [0] * 500, "max_new_tokens": [900] * 500})
    )
    expected = report.to_dict()["whole"]["lengths"]
    assert expected["completion"]["cut"] > 50
    assert measurement.compute(**rows) == expected
    for start in range(0, 500, 90):
        measurement.add_batch(**{name: column[start : start + 90] for name, column in rows.items()})
    assert measurement.compute() == expected
    counted = {
        "prompt_tokens": [len(ids) for ids in rows["input_ids"]],
        "completion_tokens": pa.chunked_array([[len(ids) for ids in rows["output_ids"]]]),
        "reasoning_tokens": np.array(rows["reasoning_tokens"]),
        "finish_reason": rows["finish_reason"],
    }
    assert measurement.compute(**counted) == expected
    for index in range(500):
        measurement.add(**{name: column[index] for name, column in rows.items()})
    assert measurement.compute() == expected


def test_arrow_lists_and_plain_lengths(measurement, rows):
    lists = pa.array(rows["output_ids"], pa.list_(pa.int32()))
    found = measurement.compute(output_ids=lists)
    assert list(found) == ["completion"] and found["completion"]["total_tokens"] == sum(map(len, rows["output_ids"]))
    plain = measurement.compute(lengths=[3, 1, 2])
    assert plain["lengths"]["quantiles"]["p50"]["value"] == 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tokens": [1]}, "knows no column 'tokens'"),
        ({"finish_reason": ["stop"]}, "needs input_ids"),
        ({"lengths": [1, 2], "finish_reason": ["stop"]}, "differ in length"),
        ({"lengths": [1], "finish_reason": ["length"]}, "'length' is none of"),
    ],
)
def test_wrong_columns_are_named(measurement, columns, message):
    with pytest.raises(UsageError, match=message):
        measurement.add_batch(**columns)


@pytest.mark.slow
def test_a_million_rows(measurement):
    lengths = np.random.default_rng(0).integers(1, 5000, 1_000_000)
    for start in range(0, 1_000_000, 100_000):
        measurement.add_batch(lengths=lengths[start : start + 100_000])
    found = measurement.compute()["lengths"]
    assert found["count"] == 1_000_000 and found["total_tokens"] == lengths.sum()
    assert found["quantiles"]["p99"]["value"] == np.quantile(lengths, 0.99, method="inverted_cdf")
