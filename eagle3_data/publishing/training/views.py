"""`to_training`: training rows as data sets, made when they are read, streamed, or written once.

Goes in: a data set of records. Comes out: the same kind of object, whose rows hold `input_ids` (prompt + output) and
`loss_mask`. Of a lazy one the stored columns are called `prompt_ids` and `answer_ids`: whatever loses the transform
(`with_format`, `to_parquet`) finds no `input_ids`, instead of a prompt under that name.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import datasets
import numpy as np
import pyarrow as pa
from datasets import Features, Value
from numpy.typing import NDArray

from eagle3_data.errors import UsageError
from eagle3_data.publishing.records import dataset_tables
from eagle3_data.publishing.selection import FILTER_COLUMNS, dropped_by
from eagle3_data.publishing.training.rows import (
    RECORD_COLUMNS,
    TRAINING_FEATURES,
    Overflow,
    Per,
    RowOptions,
    fits,
    join,
    training_tables,
)
from eagle3_data.run_folder import atomic_file
from eagle3_data.schema import RECORD_FEATURES, arrow_schema

Rows = TypeVar("Rows", datasets.Dataset, datasets.IterableDataset, datasets.DatasetDict, datasets.IterableDatasetDict)

STORED: Final = {"input_ids": "prompt_ids", "output_ids": "answer_ids"}
_FORMAT: Final = 1  # of materialised files; another number is another file in the cache


def to_training(
    records: Rows,
    max_length: int | None = None,
    overflow: Overflow = "truncate",
    *,
    min_loss_tokens: int = 1,
    per: Per = "turn",
    drop: Sequence[str] = (),
    columns: Sequence[str] = (),
    materialize: bool = False,
    cache_dir: Path | str | None = None,
) -> Rows:
    """Turn records into training rows.

    Args:
        records: a Dataset, IterableDataset or dictionary of them with a record's columns.
        max_length: longest row in tokens, prompt and output together; None for no limit.
        overflow: what becomes of longer rows: "truncate" cuts their end, "drop" leaves them out.
        min_loss_tokens: rows with less output than this within max_length are left out (a prompt that fills
            max_length alone would give a row without loss).
        per: "turn" gives a row for each record. "dialogue" joins consecutive turns of a dialogue into one row with
            several spans under the loss, where the later prompt begins, id by id, with the earlier prompt and output;
            other turns stay rows of their own. Of a Dataset such rows are always materialised.
        drop: records to leave out: "loop" (the answer ends in repetition), "cut" (it was cut), "cap", "context" (by
            that limit).
        columns: columns of the records to hand on, such as `sample_id` and `source`.
        materialize: write the rows once, batch by batch, and return them as a plain Dataset, which can be mapped,
            saved, formatted and read at random like any other. The same records and options find the file again.
        cache_dir: where that file goes; the cache of `datasets` when None.

    Returns:
        The same kind of object. Its rows hold `input_ids` (int32) and `loss_mask` (int8), of equal length. A Dataset
        that is not materialised makes a row when it is read, as numpy arrays, through a transform; the columns that it
        stores are `prompt_ids` and `answer_ids` (that is what `column_names` says), and an operation that drops the
        transform gives those.

    Raises:
        UsageError: an option makes no sense, or these are no records.
        DataError: a record's lengths do not agree with its ids (found when materialising).
        DiskFull, MachineError: the materialised file cannot be written.
    """
    options = RowOptions(max_length, overflow, min_loss_tokens, per, tuple(drop))
    return _convert(records, options, tuple(columns), materialize, cache_dir)


def _convert(
    records: Any, options: RowOptions, columns: tuple[str, ...], materialize: bool, cache_dir: Path | str | None
) -> Any:
    if isinstance(records, datasets.DatasetDict | datasets.IterableDatasetDict):
        made = {name: _convert(split, options, columns, materialize, cache_dir) for name, split in records.items()}
        return type(records)(made)
    if clash := [name for name in columns if name in (*STORED, *STORED.values(), "loss_mask")]:
        raise UsageError(f"columns: {clash[0]!r} means something else in a training row; take it from the records")
    _check_record_columns(records.column_names, [*RECORD_COLUMNS, *columns])
    if isinstance(records, datasets.IterableDataset):
        if materialize:
            raise UsageError("materialize: these rows are streamed; load them without streaming=True first")
        return _streamed(records, options, columns)
    if materialize or options.per == "dialogue":
        return _materialized(records, options, columns, cache_dir)
    return _lazy(records, options, columns)


def _check_record_columns(names: Sequence[str] | None, wanted: Sequence[str]) -> None:
    if names is not None and (missing := [name for name in wanted if name not in names]):
        raise UsageError(f"no column {missing[0]!r}: to_training takes records of eagle3-data, with all their columns")


class _Join(dict[str, int]):
    """The transform of a lazy data set, which makes rows of a batch of stored columns.

    It is a mapping because `save_to_disk` writes a transform as JSON, which asks a mapping for its items: there it
    says what to do, also of a data set that was selected from or shuffled.
    """

    def __init__(self, max_length: int | None, columns: tuple[str, ...]) -> None:
        super().__init__(rows=0)
        self._options = (max_length, columns)

    def __call__(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        max_length, columns = self._options
        stored = zip(*(batch[name] for name in STORED.values()), strict=True)
        pairs = [join(prompt, answer, max_length) for prompt, answer in stored]
        return {
            **{name: batch[name] for name in columns},
            "input_ids": [ids for ids, _ in pairs],
            "loss_mask": [mask for _, mask in pairs],
        }

    def items(self) -> NoReturn:
        raise UsageError(
            "save_to_disk: these training rows are made when they are read, so there are none to save; use "
            "to_training(..., materialize=True)"
        )

    def __deepcopy__(self, memo: Any) -> "_Join":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Join, self._options


def _lazy(records: datasets.Dataset, options: RowOptions, columns: Sequence[str]) -> datasets.Dataset:
    kept = _kept_rows(records, options)
    chosen = records if kept is None else records.select(kept)
    return (
        chosen.select_columns([*columns, *STORED])
        .rename_columns(STORED)
        .with_transform(_Join(options.max_length, tuple(columns)))
    )


def _kept_rows(records: datasets.Dataset, options: RowOptions) -> NDArray[np.int64] | None:
    """Return the indices of the rows that are kept, None for all: 1 byte a row while counting, 8 a kept row after."""
    flags = []
    columns = ["prompt_tokens", "completion_tokens", *FILTER_COLUMNS]
    for table in dataset_tables(records, columns, rows=65_536):
        kept = fits(np.asarray(table["prompt_tokens"]), np.asarray(table["completion_tokens"]), options)
        flags.append(kept & (dropped_by(table, options.drop) < 0))
    whole = np.concatenate(flags) if flags else np.zeros(0, np.bool_)
    return None if whole.all() else np.flatnonzero(whole)


def _features(records: datasets.Dataset | datasets.IterableDataset, columns: Sequence[str]) -> Features:
    known = records.features or RECORD_FEATURES
    ids = {name: TRAINING_FEATURES[name] for name in ("input_ids", "loss_mask")}
    return Features({**{name: known.get(name, Value("string")) for name in columns}, **ids})


def _streamed(
    records: datasets.IterableDataset, options: RowOptions, columns: Sequence[str]
) -> datasets.IterableDataset:
    wanted = list(dict.fromkeys([*columns, *RECORD_COLUMNS]))
    features = _features(records, columns)
    if options.per == "dialogue":

        def rows() -> Iterator[dict[str, Any]]:
            for table in training_tables(dataset_tables(records, wanted), options, {}, columns=columns):
                yield from table.to_pylist()

        made: datasets.IterableDataset = datasets.IterableDataset.from_generator(rows, features=features)
        return made

    def convert(table: pa.Table) -> pa.Table:
        (made,) = training_tables([table], options, {}, columns=columns)
        return made

    arrow = records.select_columns(wanted).with_format("arrow")
    # `remove_columns` would take away what the function returns under the same names
    gone = [name for name in wanted if name not in features]
    rows_of = arrow.map(convert, batched=True, batch_size=100, remove_columns=gone, features=features)
    return rows_of.with_format(None)


def _materialized(
    records: datasets.Dataset, options: RowOptions, columns: tuple[str, ...], cache_dir: Path | str | None
) -> datasets.Dataset:
    key = json.dumps([_FORMAT, records._fingerprint, asdict(options), columns], sort_keys=True)
    folder = Path(cache_dir or Path(datasets.config.HF_DATASETS_CACHE) / "eagle3_data")
    path = folder / f"training-{hashlib.sha256(key.encode()).hexdigest()[:24]}.arrow"
    if not path.is_file():
        schema = arrow_schema(_features(records, columns))
        wanted = list(dict.fromkeys([*columns, *RECORD_COLUMNS]))
        tables = dataset_tables(records, wanted)
        with atomic_file(path) as file, pa.ipc.new_stream(file, schema) as writer:
            for table in training_tables(tables, options, {}, columns=columns):
                writer.write_table(table.cast(schema))
    made = datasets.Dataset.from_file(str(path))
    return made.cast(_features(records, columns)) if made.features != _features(records, columns) else made
