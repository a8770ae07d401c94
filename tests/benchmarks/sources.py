"""How fast each source reads, against plain `load_dataset` of the same file, and how much memory an index takes.

    python tests/benchmarks/sources.py [--rows 20000] [--processes 2] [--index-rows 2000000]

For each source it writes files of varied rows made out of the shipped samples (Glaive's as the one file that it is
upstream), then runs `draw` (two passes, dedupe, a tenth of the rows drawn) in one process and in several, and
`load_dataset` (json or parquet) on them, twice each in turn, and prints the better of the two with their ratios. The
index part draws from a long file of short chats and prints resident memory a row.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.sources import SOURCES, draw, sample_rows

FILES = 8
FORMATS = {
    "B1_glaive": "json",
    "B4_mixturethoughts": "parquet",
    "B5_openthoughts": "parquet",
    "B8_sweagent": "parquet",
}


def raw_rows(name: str, config: str) -> list[dict[str, Any]]:
    """Return the good rows of a sample file."""
    path = next(path for path in sample_rows(name) if path.stem == f"{name}.{config}")
    text = path.read_text("utf-8")
    lines = [text] if path.suffix == ".json" else text.split("\n")
    values: list[Any] = []
    for line in lines:
        try:
            values.append(json.loads(line))
        except ValueError:
            continue
    return values[0] if path.suffix == ".json" else values


def numbered(row: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the row with a mark of its own in its first user text, and with a long answer."""
    text = json.dumps(row)
    words = random.Random(number)
    filler = " ".join(f"{words.getrandbits(20):x}" for _ in range(words.randrange(100, 2000)))
    for place in ("</think>", "<|end_of_thought|>", "README.md"):
        text = text.replace(place, f"{filler}{place}")
    for mark in ("USER: ", '"role": "user", "content": "', '"from": "user", "value": "', '"content": "', "ISSUE:\\n"):
        if mark in text:
            text = text.replace(mark, f"{mark}No. {number}: ", 1)
            break
    made: dict[str, Any] = json.loads(text)
    return made


def write(name: str, config: str, count: int, folder: Path, part: int = 0) -> Path:
    """Write `count` rows of a source in the format that upstream uses."""
    samples = [row for row in raw_rows(name, config) if all(value is not None for value in row.values())]
    rows = (numbered(samples[i % len(samples)], part * count + i) for i in range(count))
    path = folder / f"{name}-{part}.{FORMATS[name]}"
    if FORMATS[name] == "json":
        with path.open("w", encoding="utf-8") as file:
            file.write("[")
            for i, row in enumerate(rows):
                file.write((",\n" if i else "") + json.dumps(row, ensure_ascii=False))
            file.write("]")
        return path
    writer = None
    batch: list[dict[str, Any]] = []
    for i, row in enumerate(rows):
        batch.append(row)
        if len(batch) == 1000 or i == count - 1:
            table = pa.Table.from_pylist(batch, schema=writer.schema if writer else None)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
            batch = []
    assert writer is not None
    writer.close()
    return path


def timed(action: Callable[[Path], Any], parent: Path) -> float:
    """Return the seconds that an action takes with an empty cache."""
    with tempfile.TemporaryDirectory(dir=parent) as cache:
        start = time.perf_counter()
        action(Path(cache))
        return time.perf_counter() - start


def compare(count: int, processes: int, folder: Path) -> None:
    print(
        f"{'source':<20} {'MB':>6} {'rows/s load_dataset':>20} {'draw':>8} {'ratio':>6} "
        f"{f'×{processes}':>8} {'ratio':>6}"
    )
    for name, kind in FORMATS.items():
        config = SOURCES[name].default_config
        parts = 1 if kind == "json" else FILES
        paths = [str(write(name, config, count // parts, folder, part)) for part in range(parts)]

        def ours(cache: Path, number: int, name: str = name, paths: list[str] = paths) -> None:
            draw(name, data_files=paths, rows=count // 10, num_proc=number, cache_dir=cache)

        actions: dict[str, Callable[[Path], Any]] = {
            "plain": lambda cache, kind=kind, paths=paths: datasets.load_dataset(
                kind, data_files=paths, cache_dir=str(cache)
            ),
            "one": lambda cache, ours=ours: ours(cache, 1),
            "several": lambda cache, ours=ours: ours(cache, processes),
        }
        seconds: dict[str, float] = dict.fromkeys(actions, float("inf"))
        for _ in range(2):
            for key, action in actions.items():
                seconds[key] = min(seconds[key], timed(action, folder))
        size = sum(Path(path).stat().st_size for path in paths) / 1e6
        plain, one, several = (count / seconds[key] for key in ("plain", "one", "several"))
        print(
            f"{name:<20} {size:>6.0f} {plain:>20,.0f} {one:>8,.0f} {one / plain:>6.2f} {several:>8,.0f} "
            f"{several / plain:>6.2f}",
            flush=True,
        )
        for path in paths:
            Path(path).unlink()


def chats(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield b'{"messages": [{"role": "user", "content": "What is the square of %d?"}]}\n' % (number * 9 // 10)


INDEX = """
import sys, threading, time
from eagle3_data.sources import draw
# Sampled, and anonymous memory alone: the peaks that Linux keeps count mapped files too, which are only page cache.
held = lambda: 1024 * int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0])
most = 0
def watch():
    global most
    while True:
        most = max(most, held())
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
peak = lambda: most
path, small, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
draw("chat", data_files=small, rows=100, cache_dir=sys.argv[4])
before = peak()
report = draw("chat", data_files=path, rows=25_000, cache_dir=sys.argv[4]).report
print(f"{rows:,} rows, {report.duplicates:,} duplicates: peak memory grew by {(peak() - before) / 2**20:.0f} MiB, "
      f"{(peak() - before) / rows:.1f} bytes a row")
"""


def index(count: int, folder: Path) -> None:
    path, small = folder / "long.jsonl", folder / "small.jsonl"
    with path.open("wb") as file:
        file.writelines(chats(count))
    with small.open("wb") as file:
        file.writelines(chats(50_000))
    start = time.perf_counter()
    cache = str(folder / "cache")
    subprocess.run([sys.executable, "-c", INDEX, str(path), str(small), str(count), cache], check=True)
    print(f"{count / (time.perf_counter() - start):,.0f} rows/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--index-rows", type=int, default=2_000_000)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        if arguments.rows:
            compare(arguments.rows, arguments.processes, folder)
        if arguments.index_rows:
            index(arguments.index_rows, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
