"""How long and how much memory a length report takes, against reading the tokens and against a Python loop.

    python tests/benchmarks/lengths.py [--tokens 100000000 1000000000] [--folder DIR]

Writes record files of that many tokens, then runs each way in a process of its own, interleaved, and prints seconds,
ratios and peak memory. The Python loop runs over the first rows only and is scaled up (marked *).
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eagle3_data import schema
from eagle3_data.run_folder import ROWS_PER_FILE, RunFolder, write_parquet

SOURCES = ("B1_glaive", "B4_mixturethoughts", "B5_openthoughts", "B8_sweagent")
MEDIANS = (400, 2500, 3000, 900)
CAP = 8192
BLOCK = 2000
LOOP_ROWS = 2000


def write_run(folder: Path, tokens: int) -> RunFolder:
    """Write records of about `tokens` completion tokens; token ids repeat from block to block, lengths do not."""
    run = RunFolder(folder)
    random = np.random.default_rng(0)
    zipf = (random.zipf(1.2, 4_000_000) % 150_000).astype(np.int32)
    arrow = schema.arrow_schema(schema.RECORD_FEATURES)
    mean = float(np.mean([np.minimum(random.lognormal(np.log(m), 0.9, 20_000), CAP).mean() for m in MEDIANS]))
    rows = int(tokens / mean / len(SOURCES)) // BLOCK * BLOCK + BLOCK

    def block(source: str, median: int) -> pa.Table:
        wanted = np.ceil(random.lognormal(np.log(median), 0.9, BLOCK)).astype(np.int64)
        completion, prompt = np.minimum(wanted, CAP), random.integers(50, 300, BLOCK)
        cut = wanted > CAP
        text = pa.array([""] * BLOCK)
        whole = {"sample": 0, "rounds": 1, "tool_calls": 0, "source_row": 0, "source_turn": 0, "max_new_tokens": CAP}
        columns = {
            "source": pa.array([source] * BLOCK),
            "finish_reason": pa.array(np.where(cut, "length_cap", "stop")),
            "stop_token_id": pa.array(np.where(cut, -1, 2), pa.int32()),
            "prompt_tokens": pa.array(prompt, pa.int32()),
            "completion_tokens": pa.array(completion, pa.int32()),
            "reasoning_tokens": pa.array(np.where(cut, completion, completion // 2), pa.int32()),
            "input_ids": _lists(zipf, prompt),
            "output_ids": _lists(zipf, completion),
        }
        for name in arrow.names:
            if name not in columns:
                columns[name] = pa.array([whole[name]] * BLOCK) if name in whole else text
        return pa.table(columns).select(arrow.names).cast(arrow)

    for source, median in zip(SOURCES, MEDIANS, strict=True):
        files = -(-rows // ROWS_PER_FILE)
        for index in range(files):
            count = min(ROWS_PER_FILE, rows - index * ROWS_PER_FILE) // BLOCK
            path = run.records_path(source) / f"train-{index:05d}-of-{files:05d}.parquet"
            write_parquet(path, (block(source, median) for _ in range(count)), arrow)
    return run


def _lists(zipf: np.ndarray, lengths: np.ndarray) -> pa.ListArray:
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    values = np.resize(zipf, offsets[-1])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def report(folder: Path) -> int:
    from eagle3_data.lengths import measure_lengths

    return int(measure_lengths(RunFolder(folder)).to_dict()["whole"]["tokens"]["completion"])


def scan(folder: Path) -> int:
    from eagle3_data.lengths import reading

    tallies, _ = reading.read_run(RunFolder(folder))
    return sum(tally.lengths["completion"].counts().total for tally in tallies.values())


def token_column(folder: Path) -> int:
    total = 0
    for path in sorted(folder.glob("records/*/*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(batch_size=8192, columns=["output_ids"]):
            total += pc.sum(pc.list_value_length(batch["output_ids"])).as_py()
    return total


def python_loop(folder: Path) -> int:
    lengths = []
    batch = next(
        pq.ParquetFile(next(folder.glob("records/B4*/*.parquet"))).iter_batches(LOOP_ROWS, columns=["output_ids"])
    )
    for row in batch.to_pylist():
        lengths.append(len(row["output_ids"]))
    return sum(lengths)


WAYS = {"report": report, "scan": scan, "token column": token_column, "Python loop*": python_loop}


def child(way: str, folder: str) -> None:
    import eagle3_data.lengths  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    tokens = WAYS[way](Path(folder))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "tokens": tokens, "mb": peak / 1024, "start_mb": before / 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[100_000_000, 1_000_000_000])
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    for tokens in arguments.tokens:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            run = write_run(Path(folder), tokens)
            size = sum(path.stat().st_size for path in run.path.rglob("*.parquet")) / 1e6
            found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(3):
                for way, runs in found.items():
                    command = [sys.executable, __file__, "--child", way, folder]
                    runs.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
            whole = found["token column"][0]["tokens"]
            assert found["report"][0]["tokens"] == whole == found["scan"][0]["tokens"]
            rows = sum(pq.read_metadata(path).num_rows for path in run.path.rglob("*.parquet"))
            print(f"\n{whole:,} completion tokens in {rows:,} rows, {size:,.0f} MB of Parquet")
            fastest = {way: min(runs, key=lambda one: one["seconds"]) for way, runs in found.items()}
            fastest["Python loop*"]["seconds"] *= whole / fastest["Python loop*"]["tokens"]
            for way, best in fastest.items():
                ratio = best["seconds"] / fastest["report"]["seconds"]
                print(
                    f"  {way:13} {best['seconds']:9.2f} s   {ratio:8.2f} × report   peak {best['mb']:6.0f} MB "
                    f"(imports alone {best['start_mb']:.0f} MB)"
                )


if __name__ == "__main__":
    main()
