"""Training rows as files: JSON lines, Parquet, or a folder that `datasets.load_from_disk` opens.

Goes in: tables of training rows. Comes out: one file, or N shards among which the rows go round; all of them appear
when all are whole.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import DatasetInfo, Features, Value

from eagle3_data.publishing.records import read_ahead
from eagle3_data.publishing.training.rows import TRAINING_FEATURES, TRAINING_SCHEMA
from eagle3_data.run_folder import atomic_file, machine_errors
from eagle3_data.schema import arrow_schema

Format = Literal["jsonl", "parquet", "arrow"]
ENDINGS: Final[dict[str, str]] = {"jsonl": ".jsonl", "parquet": ".parquet", "arrow": ""}
# What speculators' `prepare-data` adds: its training packs rows by their lengths.
PREPARED_FEATURES: Final = Features({**TRAINING_FEATURES, "seq_len": Value("int32")})
# Of ids, before compression: a shuffled export is read in order, so groups are as large as memory likes them.
_GROUP_ROWS: Final = 1_000


def shard_paths(path: Path, shards: int) -> list[Path]:
    """Return where the shards of an export lie: `path` itself, or `NAME-00000-of-00008.jsonl` and so on beside it."""
    if shards == 1:
        return [path]
    return [path.with_name(f"{path.stem}-{index:05d}-of-{shards:05d}{path.suffix}") for index in range(shards)]


def write_rows(
    tables: Iterable[pa.Table], path: Path, kind: Format, shards: int = 1, *, prepared: bool = False
) -> list[Path]:
    """Write training rows.

    Args:
        tables: TRAINING_SCHEMA.
        path: the file; the folder, for "arrow".
        kind: the format.
        shards: how many files; row i goes into shard i % shards.
        prepared: write a folder as speculators' `prepare-data` does, with `seq_len` and in torch's format.

    Returns:
        The files.

    Raises:
        DiskFull, MachineError: a file cannot be written; none of them is left behind.
    """
    if kind == "arrow":
        return _write_folder(tables, path, shards, prepared)
    paths = shard_paths(path, shards)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(atomic_file(place)) for place in paths]
        if kind == "jsonl":
            for index, lines in read_ahead((index, json_lines(part)) for index, part in _deal(tables, shards)):
                files[index].write(lines)
        else:
            writers = [stack.enter_context(pq.ParquetWriter(file, TRAINING_SCHEMA, **_PARQUET)) for file in files]
            for index, part in read_ahead(_deal(tables, shards)):
                writers[index].write_table(part.cast(TRAINING_SCHEMA), row_group_size=_GROUP_ROWS)
    return paths


def _deal(tables: Iterable[pa.Table], shards: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each shard, table by table."""
    row = 0
    for table in tables:
        shard = (row + np.arange(table.num_rows)) % shards
        for index in range(shards):
            yield index, table if shards == 1 else table.take(np.flatnonzero(shard == index))
        row += table.num_rows


def json_lines(table: pa.Table) -> bytes:
    """Return a line of JSON for each row: id, source, input_ids, loss_mask."""
    ids, masks = (table[name].combine_chunks() for name in ("input_ids", "loss_mask"))
    places, values = ids.offsets.to_numpy().tolist(), ids.values.to_numpy(zero_copy_only=False)
    first, end = masks.offsets[0].as_py(), masks.offsets[-1].as_py()
    # the digits of a mask are all of one length, so its text is written at once for all rows
    text = np.full((end - first, 2), ord(","), np.uint8)
    text[:, 0] = masks.values.to_numpy(zero_copy_only=False)[first:end] + ord("0")
    bits = memoryview(text.tobytes())
    bit_places = [2 * (place - first) for place in masks.offsets.to_numpy().tolist()]
    parts: list[bytes | memoryview] = []
    names = zip(table["sample_id"].to_pylist(), table["source"].to_pylist(), strict=True)
    for row, (name, source) in enumerate(names):
        parts += (
            orjson.dumps({"id": name, "source": source})[:-1],
            b',"input_ids":',
            orjson.dumps(values[places[row] : places[row + 1]], option=orjson.OPT_SERIALIZE_NUMPY),
            b',"loss_mask":[',
            bits[bit_places[row] : max(bit_places[row], bit_places[row + 1] - 1)],
            b"]}\n",
        )
    return b"".join(parts)


_PARQUET: Final[dict[str, Any]] = {
    "compression": "zstd",
    # a mask is a few runs, which a dictionary's run lengths hold in some bytes a row
    "use_dictionary": ["sample_id", "source", "loss_mask.list.element"],
}


def _with_lengths(table: pa.Table) -> pa.Table:
    return table.append_column("seq_len", pc.list_value_length(table["input_ids"]))


def _write_folder(tables: Iterable[pa.Table], path: Path, shards: int, prepared: bool) -> list[Path]:
    """Write a folder as `Dataset.save_to_disk` does, beside its place, and move it there."""
    features = PREPARED_FEATURES if prepared else TRAINING_FEATURES
    schema = arrow_schema(features)
    with machine_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            names = [f"data-{index:05d}-of-{shards:05d}.arrow" for index in range(shards)]
            with contextlib.ExitStack() as stack:
                writers = [
                    stack.enter_context(pa.ipc.new_stream(stack.enter_context((made / name).open("wb")), schema))
                    for name in names
                ]
                for index, part in read_ahead(_deal(tables, shards)):
                    writers[index].write_table((_with_lengths(part) if prepared else part).cast(schema))
            state: dict[str, Any] = {
                "_data_files": [{"filename": name} for name in names],
                "_fingerprint": made.name.rpartition(".")[2],
                "_format_columns": None,
                "_format_kwargs": {},
                "_format_type": "torch" if prepared else None,
                "_output_all_columns": False,
                "_split": None,
            }
            (made / "state.json").write_text(json.dumps(state, indent=2))
            DatasetInfo(features=features).write_to_directory(str(made))
            # mkdtemp's folders are for their owner alone: give this one the rights of any new folder
            (made / "rights").mkdir()
            made.chmod((made / "rights").stat().st_mode & 0o777)
            (made / "rights").rmdir()
            if path.is_dir():
                shutil.rmtree(path)
            made.rename(path)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    return [path / name for name in names]
