"""Size and speed of what is published: bytes a token, publish and load rates, the token histogram.

    python tests/benchmarks/publishing.py [RUN_FOLDER_OR_PARQUET ...] [--rows 20000] [--text FILE_OR_FOLDER ...]

Everything is measured side by side in one run, over the same ids: records given as arguments, else token ids of real
text (`--text`, encoded with `--tokenizer`), else a made run with independent Zipf ids, which says little about size.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from support.hub_client import TestHub  # noqa: E402
from support.hub_server import WRITER  # noqa: E402
from support.run_folders import SOURCES, make_run  # noqa: E402

from eagle3_data.publishing.records import open_records  # noqa: E402
from eagle3_data.publishing.training.exports import export  # noqa: E402
from eagle3_data.publishing.training.rows import RECORD_COLUMNS  # noqa: E402
from eagle3_data.publishing.training.views import to_training  # noqa: E402
from eagle3_data.publishing.training.vocabulary import count_tokens  # noqa: E402
from eagle3_data.run_folder import RunFolder, write_parquet  # noqa: E402
from eagle3_data.schema import RECORD_FEATURES, arrow_schema  # noqa: E402

LISTS = ("input_ids", "output_ids")
TRAINED = tuple(name for name in RECORD_COLUMNS if name != "source")
OTHERS = [name for name in RECORD_FEATURES if name not in LISTS]
PARQUET: dict[str, dict[str, Any]] = {
    "zstd 3, ids plain (ours)": {"compression": "zstd", "compression_level": 3, "use_dictionary": OTHERS},
    "zstd 3, dictionary": {"compression": "zstd", "compression_level": 3},
    "zstd 3, byte stream split": {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": OTHERS,
        "column_encoding": {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in LISTS},
    },
    "zstd 9, ids plain": {"compression": "zstd", "compression_level": 9, "use_dictionary": OTHERS},
    "snappy, dictionary": {"compression": "snappy"},
}


def text_tables(paths: list[Path], tokenizer: Path, rows: int) -> Iterator[pa.Table]:
    """Make records out of real text: paragraphs in a row are prompt and answer, each text once."""
    from transformers import AutoTokenizer

    encoder = AutoTokenizer.from_pretrained(tokenizer)
    files = sorted(file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    seen: set[int] = set()
    made = 0
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if hash(text) in seen or not text.strip():
            continue
        seen.add(hash(text))
        ids = encoder.encode(text, add_special_tokens=False)
        for start in range(0, len(ids) - 64, 2_048):
            part = np.asarray(ids[start : start + 2_048], np.int32)
            yield record(made, part[:64], part[64:])
            made += 1
            if made == rows:
                return


def record(index: int, prompt: np.ndarray, output: np.ndarray) -> pa.Table:
    """Make one record around its ids."""
    values: dict[str, Any] = {
        "sample_id": f"text-{index:024x}",
        "source": "text",
        "input_ids": prompt,
        "output_ids": output,
        "finish_reason": "stop",
        "prompt_tokens": len(prompt),
        "completion_tokens": len(output),
    }
    schema = arrow_schema(RECORD_FEATURES)
    empty = {"string": "", "int32": 0, "int64": 0}
    return pa.table(
        {field.name: pa.array([values.get(field.name, empty.get(str(field.type)))], field.type) for field in schema},
        schema=schema,
    )


def entropy(counts: np.ndarray) -> float:
    """Return the order-0 entropy of ids in bytes a token."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum() / 8)


def sizes(table: pa.Table, folder: Path) -> int:
    """Print bytes a token of every form; return the number of tokens."""
    ids = [table[name].combine_chunks() for name in ("input_ids", "output_ids")]
    tokens = sum(len(column.flatten()) for column in ids)
    counts = sum(np.bincount(column.flatten().to_numpy(), minlength=2**18) for column in ids)
    lines = folder / "rows.jsonl"
    with lines.open("w") as plain, gzip.open(folder / "rows.jsonl.gz", "wt", compresslevel=6) as packed:
        for batch in table.to_batches(max_chunksize=500):
            for row in batch.to_pylist():
                line = json.dumps(row, separators=(",", ":")) + "\n"
                plain.write(line)
                packed.write(line)
    print(f"\n{table.num_rows:,} records, {tokens:,} tokens")
    print(f"{'form':<28} {'bytes/token':>11} {'write s':>8} {'read s':>8}")
    print(f"{'entropy of the ids, order 0':<28} {entropy(counts):>11.2f}")
    for name, file in (("JSONL", lines), ("gzip JSONL", folder / "rows.jsonl.gz")):
        print(f"{name:<28} {file.stat().st_size / tokens:>11.2f}")
    for name, options in PARQUET.items():
        path = folder / "rows.parquet"
        written = timed(
            lambda path=path, options=options: pq.write_table(table, path, row_group_size=1_000, **options)
        )
        read = timed(lambda path=path: pq.read_table(path, use_threads=False))
        print(f"{name:<28} {path.stat().st_size / tokens:>11.2f} {written:>8.2f} {read:>8.2f}")
    return tokens


def timed(call: Callable[[], Any], repeats: int = 5) -> float:
    """Return the shortest time of a call in seconds: what else the machine does only ever adds."""
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return min(spent)


def histogram(data: Any, size: int, tokens: int) -> None:
    """Compare the one-pass histogram with loops that feed a Counter, on memory-mapped and on Parquet rows.

    The trainers' loop is that of SpecForge 0.2.0 and speculators 0.9.0, numpy in place of torch: each row's ids under
    the loss, made unique, go into the Counter. A loop over prompt + output and its mask is what they have to run.
    """
    import datasets

    records = open_records(data, split=None)
    table = pa.concat_tables(list(records.tables(["source", *TRAINED])))
    folder = Path(tempfile.mkdtemp())
    with pa.OSFile(str(folder / "rows.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1_000)
    mapped = datasets.Dataset.from_file(str(folder / "rows.arrow"))
    few = mapped.select(range(min(len(mapped), 2_000)))
    share = sum(len(row) for row in few["output_ids"]) / sum(len(row.values) for row in table["output_ids"].chunks)

    def loop() -> Counter[int]:
        counter: Counter[int] = Counter()
        for row in few:
            counter.update(row["output_ids"])
        return counter

    prepared = datasets.Dataset.from_list([dict(row) for row in to_training(few)]).with_format("numpy")

    def trainers() -> Counter[int]:
        counter: Counter[int] = Counter()
        for row in prepared:
            ids, counts = np.unique(row["input_ids"][row["loss_mask"] == 1], return_counts=True)
            counter.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        return counter

    slow, theirs = timed(loop) / share, timed(trainers, 3) / share
    fast = timed(lambda: count_tokens(mapped, vocabulary_size=size))
    parquet = timed(lambda: count_tokens(data, vocabulary_size=size, split=None))
    whole = count_tokens(mapped, vocabulary_size=size).whole
    counted = {i: int(n) for i, n in enumerate(count_tokens(few, vocabulary_size=size).whole) if n}
    assert counted == dict(loop()) == dict(trainers())
    print(f"\nhistogram of {int(whole.sum()):,} output tokens")
    print(f"  Counter over rows        {slow:8.2f} s (scaled from {share:.1%})")
    print(f"  the trainers' loop       {theirs:8.2f} s (likewise)")
    for title, spent in (("memory-mapped, bincount", fast), ("Parquet, bincount", parquet)):
        print(f"  {title:<24} {spent:8.3f} s   {slow / spent:6.1f} and {theirs / spent:.1f} times faster")


def rates(run: RunFolder) -> None:
    """Publish to the test Hub, load and stream back; export and convert."""
    size = sum(path.stat().st_size for path in run.path.rglob("records/**/*.parquet"))
    rows = sum(pq.read_metadata(path).num_rows for path in run.path.rglob("records/**/*.parquet"))
    with tempfile.TemporaryDirectory() as name, TestHub(Path(name), WRITER) as hub:
        hub.run("create", repo="org/warm").get()
        start = time.perf_counter()
        hub.run("publish_run", folder=str(run.path), repo="org/bench", version="1.0.0").get()
        published = time.perf_counter() - start
        hub.forget()
        start = time.perf_counter()
        hub.run("stream_version", repo="org/bench", source=run.sources()[0], version="1.0.0", rows=5).get()
        streamed = time.perf_counter() - start
        read = sum(entry["sent"] for entry in hub.requests("/_cdn/"))
        start = time.perf_counter()
        hub.run("load", repo="org/bench", revision="v1.0.0").get()
        loaded = time.perf_counter() - start
        start = time.perf_counter()
        hub.run("publish_run", folder=str(run.path), repo="org/bench", version="1.0.0").get()
        again = time.perf_counter() - start
        output = Path(name) / "train.jsonl"
        start = time.perf_counter()
        report = export(run, "specforge", output, split=None)
        exported = time.perf_counter() - start
    print(f"\n{rows:,} records, {size / 1e6:,.1f} MB of Parquet, Hub on loopback")
    print(f"  publish                  {published:8.2f} s   {size / 1e6 / published:8.1f} MB/s")
    print(f"  publish, nothing to do   {again:8.2f} s")
    print(f"  stream the first 5 rows  {streamed:8.2f} s   {read / 1e6:8.2f} MB read ({read / size:.2%})")
    print(f"  load_dataset, all        {loaded:8.2f} s   {size / 1e6 / loaded:8.1f} MB/s (download and Arrow cache)")
    print(f"  export to JSONL          {exported:8.2f} s   {report.whole.tokens / 1e6 / exported:8.1f} M tokens/s")


def training(run: RunFolder) -> None:
    """Read training rows lazily."""
    import datasets

    files = [str(path) for path in run.path.rglob("records/**/*.parquet")]
    with tempfile.TemporaryDirectory() as cache:
        rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
        few = min(len(rows), 5_000)
        made = to_training(rows, max_length=4096)
        start = time.perf_counter()
        tokens = sum(len(made[index]["input_ids"]) for index in range(few))
        spent = time.perf_counter() - start
        start = time.perf_counter()
        plain = to_training(rows, max_length=4096, materialize=True, cache_dir=cache)
        written = time.perf_counter() - start
        whole = sum(
            len(batch["input_ids"].combine_chunks().values) for batch in plain.with_format("arrow").iter(1_000)
        )
        chosen = np.random.default_rng(0).integers(len(plain), size=5_000).tolist()
        arrow = plain.with_format("arrow")
        start = time.perf_counter()
        for index in chosen:
            arrow[index]
        at_random = time.perf_counter() - start
    print(
        f"  to_training, row by row  {spent:8.2f} s   {few / spent:8.0f} rows/s, {tokens / 1e6 / spent:.1f} M tokens/s"
    )
    print(f"  to_training, written     {written:8.2f} s   {whole / 1e6 / written:8.1f} M tokens/s")
    print(f"  of that, rows at random  {at_random:8.2f} s   {len(chosen) / at_random:8.0f} rows/s (Arrow format)")


def flat_memory(rows: int) -> None:
    """Export and materialise rows of 1,000 tokens in a process of its own; print the rate and the peak memory."""
    code = """
import sys, threading, time
from pathlib import Path
import datasets
from eagle3_data.publishing.training.exports import export
from eagle3_data.publishing.training.rows import RECORD_COLUMNS  # noqa: E402
from eagle3_data.publishing.training.views import to_training
run, place = Path(sys.argv[1]), Path(sys.argv[2])
datasets.disable_progress_bars()
peak = {"RssAnon": 0, "VmRSS": 0}
def watch():
    while True:
        for line in open("/proc/self/status"):
            name, _, value = line.partition(":")
            if name in peak:
                peak[name] = max(peak[name], int(value.split()[0]) / 1e3)
        time.sleep(0.02)
threading.Thread(target=watch, daemon=True).start()
def told(name, tokens, spent, cpu):
    print(f"  {name:<24} {spent:8.2f} s   {tokens / 1e6 / spent:8.1f} M tokens/s"
          f" ({tokens / 1e6 / cpu:.1f} a CPU second), peak {peak['RssAnon']:,.0f} MB of its own,"
          f" {peak['VmRSS']:,.0f} MB with mapped files", flush=True)
for form, kind in (("JSONL", "rows.jsonl"), ("Parquet", "rows.parquet"), ("Arrow", "rows")):
    peak.update(RssAnon=0, VmRSS=0)
    start, cpu = time.perf_counter(), time.process_time()
    whole = export(run, "plain", place / kind).whole
    told(f"export to {form}", whole.tokens, time.perf_counter() - start, time.process_time() - cpu)
files = [str(path) for path in run.rglob("records/*/*.parquet")]
rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(place / "cache"))
start, cpu = time.perf_counter(), time.process_time()
peak.update(RssAnon=0, VmRSS=0)
made = to_training(rows, materialize=True, cache_dir=place)
told("to_training, written", whole.tokens, time.perf_counter() - start, time.process_time() - cpu)
import numpy as np
chosen = np.random.default_rng(0).integers(len(made), size=20_000).tolist()
def at_random(name, read):
    start, cpu = time.perf_counter(), time.process_time()
    rows = read()
    spent, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"  at random, {name:<28} {rows / spent:8,.0f} rows/s ({rows / cpu:,.0f} a CPU second)", flush=True)
arrow, arrays = made.with_format("arrow"), made.with_format("numpy")
def of_arrow():
    for index in chosen:
        row = arrow[index]
        for name in ("input_ids", "loss_mask"):
            row[name][0].values.to_numpy()
    return len(chosen)
def of_numpy():
    for index in chosen[:2_000]:
        arrays[index]
    return 2_000
def in_batches():
    for first in range(0, len(chosen), 32):
        arrays.__getitems__(chosen[first:first + 32])
    return len(chosen)
at_random("arrow, made numpy arrays", of_arrow)
at_random("numpy, row by row", of_numpy)
at_random("numpy, batches of 32", in_batches)
"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = (uniform(first, 1_000) for first in range(0, rows, 1_000))
        write_parquet(folder / "run/records/s/train-00000-of-00001.parquet", tables, arrow_schema(RECORD_FEATURES))
        print(f"\n{rows:,} rows of 1,000 tokens")
        subprocess.run([sys.executable, "-c", code, str(folder / "run"), str(folder / "out")], check=True)


def uniform(first: int, rows: int, prompt: int = 200, output: int = 800) -> pa.Table:
    """Make records of equal length."""
    rng = np.random.default_rng(first)
    columns: dict[str, Any] = {}
    for name, length in (("input_ids", prompt), ("output_ids", output)):
        ids = (np.exp(rng.random(rows * length) * np.log(150_000))).astype(np.int32)
        columns[name] = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * length), pa.array(ids))
    names = [f"s-{index:024x}" for index in range(first, first + rows)]
    columns |= {"sample_id": names, "dialogue": names, "source": ["s"] * rows, "finish_reason": ["stop"] * rows}
    columns |= {"prompt_tokens": np.full(rows, prompt), "completion_tokens": np.full(rows, output)}
    schema = arrow_schema(RECORD_FEATURES)
    empty = {"string": "", "int32": 0, "int64": 0}
    return pa.table(
        {
            field.name: pa.array(columns.get(field.name, [empty.get(str(field.type))] * rows)).cast(field.type)
            for field in schema
        },
        schema=schema,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="*", help="run folders or Parquet files for the size table")
    parser.add_argument("--text", nargs="*", type=Path, default=[], help="real text for the size table")
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer that encodes --text")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--long-rows", type=int, default=20_000, help="rows of 1,000 tokens for the memory figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = make_run(folder / "run", dict.fromkeys(SOURCES, options.rows // 4), mean=700, cap=8_000, prompts=False)
        chosen: list[tuple[str, pa.Table]] = []
        for given in options.records:
            tables = open_records(given, split=None).tables(list(RECORD_FEATURES))
            chosen.append((given, pa.concat_tables(list(tables))))
        if options.text:
            tables = text_tables(options.text, options.tokenizer, options.rows)
            chosen.append(("real text", pa.concat_tables(list(tables)).combine_chunks()))
        made = pa.concat_tables(list(open_records(run, split=None).tables(list(RECORD_FEATURES))))
        chosen.append(("independent Zipf ids (made)", made))
        for title, table in chosen:
            print(f"\n== {title}", end="")
            tokens = sizes(table, folder)
        histogram(run, 49_152, tokens)
        rates(run)
        training(run)
    flat_memory(options.long_rows)


if __name__ == "__main__":
    main()
