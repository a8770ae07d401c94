"""Rows by tokens: the fewest prompts in draw order that reach the target, whatever was killed; `plan` tells."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.pipeline import call, command, glaive_file, parquet_bytes, recipe, server, smollm2_folder

from eagle3_data.pipeline.token_rows import Lengths

ROWS = 300
CAP = 40


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2_folder(tmp_path_factory.mktemp("smollm2"))


@pytest.fixture
def url(tokenizer: Path, tmp_path: Path) -> Iterator[str]:
    with server(tokenizer, log=tmp_path / "asked.txt") as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return glaive_file(tmp_path / "rows.jsonl", ROWS)


def asked(folder: Path) -> int:
    return len((folder / "asked.txt").read_text().splitlines())


def records(folder: Path) -> list[dict[str, object]]:
    table = pq.read_table(folder / "records" / "B1_glaive")
    return sorted(table.to_pylist(), key=lambda row: (row["source_row"], row["sample"], row["turn"]))


def lengths_in_draw_order(url: str, tokenizer: Path, data: Path, folder: Path, **entry: object) -> list[int]:
    """Output tokens of every prompt of the source, from a run of all of them."""
    path = recipe(folder / "all.yaml", url, tokenizer, data, **entry)
    call("generate", path, "--runs", "all", cwd=folder)
    drawn = pq.read_table(folder / "all" / "tried" / "prompts" / "B1_glaive.parquet")["sample_id"].to_pylist()
    sums = dict.fromkeys(drawn, 0)
    for row in records(folder / "all" / "tried"):
        sums[str(row["dialogue"])] += len(row["output_ids"])  # type: ignore[arg-type]
    return [sums[name] for name in drawn]


def manifest(folder: Path) -> dict[str, object]:
    values: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    return values


def test_a_run_by_tokens_is_the_smallest_prefix_of_the_draw(
    url: str, tokenizer: Path, data: Path, tmp_path: Path
) -> None:
    sums = np.cumsum(lengths_in_draw_order(url, tokenizer, data, tmp_path))
    path = recipe(tmp_path / "r.yaml", url, tokenizer, data, tokens=3000, holdout=3)
    before = asked(tmp_path)
    out, _ = call("run", path, cwd=tmp_path)
    rows = int(np.searchsorted(sums, 3000)) + 1
    run = tmp_path / "runs" / "tried"
    assert len(records(run)) == rows and asked(tmp_path) - before < rows + 2 * 32 + 1
    assert f"B1_glaive: {sums[rows - 1]:,} output tokens (target 3,000), from {rows} prompts" in out
    told = manifest(run)
    assert told["extent"]["sources"]["B1_glaive"]["tokens"] == 3000  # type: ignore[index]
    assert told["generation"]["B1_glaive"]["completion_tokens"] == sums[rows - 1]  # type: ignore[index]
    card = (run / "README.md").read_text()
    assert f"{sums[rows - 1]:,} output tokens (target 3,000)" in card

    done = asked(tmp_path)
    kept = parquet_bytes(run)
    call("run", path, cwd=tmp_path)
    assert parquet_bytes(run) == kept and asked(tmp_path) == done, "a finished run asks nothing"

    # the same prompts by their number: the same files
    by_rows = recipe(tmp_path / "n.yaml", url, tokenizer, data, rows=rows, holdout=3)
    call("generate", by_rows, "--runs", "counted", cwd=tmp_path)
    assert parquet_bytes(tmp_path / "counted" / "tried") == kept

    # growing: nothing is asked again, and the files are those of a run that asked for so many at once
    done = asked(tmp_path)
    call("generate", recipe(tmp_path / "r.yaml", url, tokenizer, data, tokens=5000, holdout=3), cwd=tmp_path)
    more = int(np.searchsorted(sums, 5000)) + 1
    assert asked(tmp_path) - done < more - rows + 2 * 32 + 1
    fresh = recipe(tmp_path / "f.yaml", url, tokenizer, data, tokens=5000, holdout=3)
    call("generate", fresh, "--runs", "fresh", cwd=tmp_path)
    assert parquet_bytes(run) == parquet_bytes(tmp_path / "fresh" / "tried")
    assert {row["sample_id"] for row in records(tmp_path / "counted" / "tried")} <= {
        row["sample_id"] for row in records(run)
    }
    call("check", run, cwd=tmp_path)


def two_turns(path: Path, rows: int) -> Path:
    system = "SYSTEM: You are a helpful assistant, with no access to external functions.\n\n"
    with path.open("w") as file:
        for number in range(rows):
            turn = f"USER: What is {number} times {number + 7}?\n\nASSISTANT: It depends. <|endoftext|>\n\n\n"
            chat = turn + f"USER: And {number} plus 5?\n\nASSISTANT: Five more. <|endoftext|>"
            file.write(json.dumps({"system": system, "chat": chat}) + "\n")
    return path


def tokens_of(folder: Path) -> int:
    return sum(len(row["output_ids"]) for row in records(folder))  # type: ignore[arg-type]


def kill_soon(orders: list[tuple[object, ...]], cwd: Path, moments: random.Random) -> int:
    """Start commands at once, and kill -9 each of them a moment after something was asked; count those it ended."""
    start = asked(cwd)
    running = [command(*order, cwd=cwd) for order in orders]
    deadline = time.monotonic() + 60
    while asked(cwd) == start and any(each.poll() is None for each in running) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in running:
        time.sleep(moments.uniform(0, 0.5 / len(running)))
        process.kill()
        process.communicate()
    return sum(each.returncode == -signal.SIGKILL for each in running)


ENTRIES: dict[str, dict[str, object]] = {
    "one answer": {},
    "samples": {"samples": 2, "sampling": {"temperature": 1.0}},
    "rollout": {"turns": "rollout", "max_turns": 2},
    "rollout and samples": {"turns": "rollout", "max_turns": 2, "samples": 2, "sampling": {"temperature": 1.0}},
}


def entries(fast: str) -> list[object]:
    """Return every entry as a parameter, all but one of them slow."""
    return [
        pytest.param(entry, id=name, marks=[] if name == fast else [pytest.mark.slow])
        for name, entry in ENTRIES.items()
    ]


@pytest.mark.parametrize("entry", entries(fast="samples"))
def test_kill_9_changes_nothing_in_the_result(tokenizer: Path, tmp_path: Path, entry: dict[str, object]) -> None:
    moments = random.Random(os.urandom(8))
    data = two_turns(tmp_path / "rows.jsonl", 150)
    with server(tokenizer, "--delay", "0.05", log=tmp_path / "asked.txt") as url:
        path = recipe(tmp_path / "r.yaml", url, tokenizer, data, tokens=2500, **entry)
        assert sum(kill_soon([("generate", path)], tmp_path, moments) for _ in range(3))
        call("generate", path, cwd=tmp_path)
        call("generate", path, "--runs", "calm", cwd=tmp_path)
    calm, tried = tmp_path / "calm" / "tried", tmp_path / "runs" / "tried"
    assert parquet_bytes(tried) == parquet_bytes(calm)
    # and these are the fewest prompts that reach the target
    rows = records(calm)
    drawn = pq.read_table(calm / "prompts" / "B1_glaive.parquet")["sample_id"].to_pylist()
    last = sum(len(row["output_ids"]) for row in rows if row["dialogue"] == drawn[-1])  # type: ignore[arg-type]
    assert tokens_of(calm) - last < 2500 <= tokens_of(calm)
    call("check", tried, cwd=tmp_path)


@pytest.mark.parametrize("entry", entries(fast="rollout and samples"))
def test_shards_that_are_killed_end_like_one_calm_run(
    tokenizer: Path, tmp_path: Path, entry: dict[str, object]
) -> None:
    moments = random.Random(os.urandom(8))
    data = two_turns(tmp_path / "rows.jsonl", 150)
    with server(tokenizer, "--delay", "0.05", log=tmp_path / "asked.txt") as url:
        path = recipe(tmp_path / "r.yaml", url, tokenizer, data, tokens=2500, **entry)
        orders: list[tuple[object, ...]] = [("generate", path, "--shard", f"{shard}/2") for shard in range(2)]
        call("prepare", path, cwd=tmp_path)
        assert sum(kill_soon(orders, tmp_path, moments) for _ in range(2))
        for _ in range(20):
            call("prepare", path, cwd=tmp_path)
            out = "".join(call(*order, cwd=tmp_path)[0] for order in orders)
            if "go on with: eagle3-data prepare" not in out:
                break
        else:
            raise AssertionError("twenty rounds, and more prompts are still to be drawn")
        call("generate", path, cwd=tmp_path)
        call("generate", path, "--runs", "calm", cwd=tmp_path)
    assert parquet_bytes(tmp_path / "runs" / "tried") == parquet_bytes(tmp_path / "calm" / "tried")
    assert tokens_of(tmp_path / "calm" / "tried") >= 2500
    call("check", tmp_path / "runs" / "tried", cwd=tmp_path)


@pytest.mark.parametrize(
    "entry", [{"samples": 2, "sampling": {"temperature": 1.0}}, {"turns": "rollout", "max_turns": 2}]
)
def test_samples_and_turns_count_with_their_prompt(
    url: str, tokenizer: Path, tmp_path: Path, entry: dict[str, object]
) -> None:
    data = two_turns(tmp_path / "rows.jsonl", 150)
    source = {key: value for key, value in entry.items() if key != "sampling"}
    above = {"sampling": entry["sampling"]} if "sampling" in entry else {}
    sums = np.cumsum(lengths_in_draw_order(url, tokenizer, data, tmp_path, **source, **above))
    path = recipe(tmp_path / "r.yaml", url, tokenizer, data, tokens=1500, **source, **above)
    call("generate", path, cwd=tmp_path)
    run = tmp_path / "runs" / "tried"
    assert sum(len(row["output_ids"]) for row in records(run)) == sums[np.searchsorted(sums, 1500)]  # type: ignore[arg-type]
    assert len({row["dialogue"] for row in records(run)}) == int(np.searchsorted(sums, 1500)) + 1


def test_a_source_that_is_too_small_says_so(url: str, tokenizer: Path, tmp_path: Path) -> None:
    data = glaive_file(tmp_path / "rows.jsonl", 40)
    path = recipe(tmp_path / "r.yaml", url, tokenizer, data, tokens="1M")
    out, _ = call("run", path, cwd=tmp_path)
    run = tmp_path / "runs" / "tried"
    reached = sum(len(row["output_ids"]) for row in records(run))  # type: ignore[arg-type]
    assert len(records(run)) == 40
    assert f"{reached:,} output tokens (target 1,000,000), from 40 prompts; the source has no more" in out
    assert f"{reached:,} output tokens (target 1,000,000)" in (run / "README.md").read_text()


def test_plan_says_what_tokens_will_take(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    path = recipe(tmp_path / "r.yaml", url, tokenizer, data, tokens=3000)
    out, _ = call("plan", path, cwd=tmp_path)
    assert f"3,000 output tokens take at least {3000 // CAP} prompts; no answer was measured yet" in out
    call("pilot", path, "--rows", "60", cwd=tmp_path)
    values = json.loads(call("plan", path, "--json", cwd=tmp_path)[0])
    plan = values["tokens"]["B1_glaive"]
    sums = np.cumsum(lengths_in_draw_order(url, tokenizer, data, tmp_path))
    assert plan["where"] == "the pilot" and plan["measured"] == 60
    assert plan["low"] <= int(np.searchsorted(sums, 3000)) + 1 <= plan["high"]
    assert values["cost"]["completion_tokens_at_most"] == 3000 + CAP
    call("generate", path, cwd=tmp_path)
    assert "of this run" in call("plan", path, cwd=tmp_path)[0]


def test_shards_say_that_more_is_to_be_drawn(url: str, tokenizer: Path, data: Path, tmp_path: Path) -> None:
    path = recipe(tmp_path / "r.yaml", url, tokenizer, data, tokens=2500)
    for _ in range(20):
        call("prepare", path, cwd=tmp_path)
        call("generate", path, "--shard", "0/2", cwd=tmp_path)
        out, _ = call("generate", path, "--shard", "1/2", cwd=tmp_path)
        if "go on with: eagle3-data prepare" not in out:
            break
    call("generate", path, cwd=tmp_path)
    call("generate", path, "--runs", "calm", cwd=tmp_path)
    assert parquet_bytes(tmp_path / "runs" / "tried") == parquet_bytes(tmp_path / "calm" / "tried")


def test_an_estimate_holds_the_truth_nineteen_times_in_twenty() -> None:
    """Heavy-tailed lengths, the sample as large as a pilot's."""
    random_ = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        lengths = np.minimum(random_.lognormal(7, 1, 6000), 16_384).astype(np.int64)
        pilot = Lengths(np.minimum(random_.lognormal(7, 1, 474), 16_384).astype(np.int64), 474, 0, 0, "the pilot")
        rows, error = pilot.estimate(5_000_000, fresh=True)
        needed = Lengths(lengths, 6000, 0, 0, "").rows_for(5_000_000)
        assert needed is not None
        held += rows - 2 * error <= needed <= rows + 2 * error
    assert held >= 0.92 * 300
