"""How often two draws of the same lengths are called different: 5 % is promised."""

import datasets
import numpy as np
import pytest

from eagle3_data.lengths import compare_lengths, measure_lengths


def draw(random: np.random.Generator, kind: str, side: int) -> datasets.Dataset:
    rows, caps, owner = 400, np.full(400, 10**6), np.arange(400)
    noise = random.normal(size=rows)
    if kind == "mixed caps":
        caps = random.choice([512, 4096] if side else [1024, 2048], rows)
    if kind == "dialogues":
        owner = np.arange(rows) // 10
        noise = np.sqrt(0.4) * random.normal(size=rows)[owner] + np.sqrt(0.6) * noise
    lengths = np.ceil(np.exp(np.log(800) + 0.9 * noise)).astype(int)
    return datasets.Dataset.from_dict(
        {
            "source": ["a"] * rows,
            "finish_reason": np.where(lengths > caps, "length_cap", "stop"),
            "prompt_tokens": [100] * rows,
            "completion_tokens": np.minimum(lengths, caps),
            "max_new_tokens": caps,
            "dialogue": [f"d{number}" for number in owner],
        }
    )


@pytest.mark.parametrize("kind", ["plain", "mixed caps", "dialogues"])
@pytest.mark.parametrize("times", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_equal_lengths_are_seldom_called_different(kind, times):
    random = np.random.default_rng(1)
    alarms = 0
    for _ in range(times):
        reports = [measure_lengths(draw(random, kind, side)) for side in (0, 1)]
        found = compare_lengths(*reports).to_dict()["sources"]["a"]["completion"]["distance"]
        alarms += found["differs"]
    print(f"{kind}: {alarms} of {times} called different")
    assert alarms <= 0.05 * times + 2 * np.sqrt(0.05 * 0.95 * times)
