"""Small files that hold gigabytes end in one error that names the file and the bound, in little memory."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagle3_data.errors import SourceError
from eagle3_data.sources import columns, draw, json_array, parquet, reading

MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])


def one_long_line(path: Path) -> Path:
    with gzip.open(path / "a.jsonl.gz", "wb", 9) as file:
        file.write(b'{"messages": [{"role": "user", "content": "')
        for _ in range(5):
            file.write(b"x" * (1 << 20))
        file.write(b'"}]}\n')
    return path / "a.jsonl.gz"


def one_long_element(path: Path) -> Path:
    with gzip.open(path / "a.json.gz", "wb", 9) as file:
        file.write(b'[{"messages": [{"role": "user", "content": "')
        for _ in range(5):
            file.write(b"x" * (1 << 20))
        file.write(b'"}]}]')
    return path / "a.json.gz"


def one_long_trajectory(path: Path) -> Path:
    with gzip.open(path / "a.traj.gz", "wb", 9) as file:
        for _ in range(5):
            file.write(b" " * (1 << 20))
    return path / "a.traj.gz"


def many_nulls(path: Path) -> Path:
    """One row of 20 million messages that are null: counted, not stored."""
    values = pa.nulls(20_000_000, MESSAGE)
    messages = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    pq.write_table(pa.table({"messages": messages}), path / "a.parquet", compression="zstd")
    return path / "a.parquet"


def a_repeated_value(path: Path) -> Path:
    """2,000 rows of one dictionary value of 300 MB of one letter."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 300_000_000]))
    pq.write_table(
        pa.table({"messages": text}), path / "a.parquet", compression="zstd", dictionary_pagesize_limit=1 << 30
    )
    return path / "a.parquet"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (one_long_line, r"a\.jsonl\.gz: row 0 is longer than 4 MiB"),
        (one_long_element, r"a\.json\.gz: row 0 is longer than 4 MiB"),
        (one_long_trajectory, r"a\.traj\.gz: row 0 is longer than 4 MiB"),
        (many_nulls, r"a\.parquet: row group 0, column .messages.*: 20,000,000 values in 1 rows"),
        (a_repeated_value, r"a\.parquet: row group 0, column .messages.: expands from"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_small_file_that_holds_gigabytes(
    make: Callable[[Path], Path], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (columns, json_array, parquet, reading):  # the real bound is 64 MiB: the same, but slower to test
        monkeypatch.setattr(module, "LARGEST_ROW", 1 << 22)
    path = make(tmp_path)
    assert path.stat().st_size < 2_000_000
    source = ("B8_sweagent", "traj") if ".traj" in path.name else ("chat", "default")
    with pytest.raises(SourceError, match=f"{source[0]}: {words}"):
        draw(*source, str(path), cache_dir=tmp_path / "cache")


def test_a_row_that_repeats_a_long_value_is_refused_in_little_memory(tmp_path: Path) -> None:
    """Under the bound of a dictionary page, over that of a row: 70 MB of incompressible text in each of 500 rows."""
    import random

    text = random.Random(1).randbytes(52_000_000).hex()[:70_000_000]
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 500, pa.int32()), pa.array([text]))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"messages": column}), path, dictionary_pagesize_limit=1 << 30)
    code = """
import resource, sys
from eagle3_data.errors import SourceError
from eagle3_data.sources import draw
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    draw("chat", data_files=sys.argv[1], cache_dir=sys.argv[2])
except SourceError as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(tmp_path / "cache")], capture_output=True, text=True, timeout=120
    )
    mebibytes, _, error = done.stdout.partition(" ")
    assert "row 0 is longer than 64 MiB" in error, done.stderr
    assert int(mebibytes) < 1200  # 35 GB were they decoded at once


@pytest.mark.parametrize(
    ("name", "before", "after"), [("a.jsonl.gz", b"", b""), ("a.json.gz", b"[", b"]"), ("a.json.gz", b"", b"")]
)
def test_a_file_that_expands_without_end(
    name: str, before: bytes, after: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    row = json.dumps({"messages": [{"role": "user", "content": "why?"}]}).encode() + b"\n"
    path.write_bytes(gzip.compress(before + row + b"\n" * 5_000_000 + after, 9))
    monkeypatch.setattr(reading, "_most_bytes", lambda *file: 100 * path.stat().st_size)
    with pytest.raises(SourceError, match=rf"{re.escape(name)}: expands to more than 1000 times its size"):
        draw("chat", data_files=str(path), cache_dir=tmp_path / "cache")


def test_real_sizes_pass(tmp_path: Path) -> None:
    """Rows of 2 MB, 300 messages a row, a system text that 2,000 rows share."""
    long: dict[str, Any] = {"messages": [{"role": "user", "content": "x" * 2_000_000}]}
    many = {"messages": [{"role": "user", "content": str(i)} for i in range(300)]}
    rows = [long, many, *({"messages": [{"role": "user", "content": str(i)}]} for i in range(2000))]
    pq.write_table(
        pa.Table.from_pylist([{**row, "system": "Be brief. " * 200} for row in rows]), tmp_path / "a.parquet"
    )
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    for name in ("a.parquet", "a.jsonl.gz"):
        assert draw("chat", data_files=str(tmp_path / name), cache_dir=tmp_path / "cache").report.drawn == 2002
