"""From records to what trainers read: `input_ids` (prompt + output) and `loss_mask`.

Goes in: records, where `input_ids` is the prompt alone. Comes out: rows whose `input_ids` is prompt + output and whose
`loss_mask` is 0 on the prompt and 1 on the output, its end token included. Ids are put side by side, never decoded and
encoded again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import datasets
import numpy as np
from datasets import Features, Value
from numpy.typing import NDArray

from eagle3_data.errors import UsageError
from eagle3_data.outcome import reasons

Overflow = Literal["truncate", "drop"]
Rows = TypeVar("Rows", datasets.Dataset, datasets.IterableDataset, datasets.DatasetDict, datasets.IterableDatasetDict)

TRAINING_COLUMNS: Final = ("input_ids", "loss_mask")
_NEEDED: Final = ("input_ids", "output_ids")


def join(
    prompt: Sequence[int] | NDArray[Any], output: Sequence[int] | NDArray[Any], max_length: int | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Join one record's ids.

    Args:
        prompt, output: token ids.
        max_length: both results are cut to it, from the end.

    Returns:
        `input_ids` int32 (n,) and `loss_mask` int8 (n,), n = min(len(prompt) + len(output), max_length).
    """
    ids = np.concatenate([np.asarray(prompt, np.int32), np.asarray(output, np.int32)])[:max_length]
    mask = np.ones(len(ids), np.int8)
    mask[: len(prompt)] = 0
    return ids, mask


def check_options(max_length: int | None, overflow: str, min_loss_tokens: int) -> None:
    """Refuse options that make no sense. Raises UsageError."""
    if overflow not in ("truncate", "drop"):
        raise UsageError(f"overflow: {overflow!r} is neither 'truncate' nor 'drop'")
    if max_length is not None and max_length < 1:
        raise UsageError(f"max_length: {max_length} is no length; give a number of tokens above 0, or leave it out")
    if min_loss_tokens < 1:
        raise UsageError(f"min_loss_tokens: {min_loss_tokens}; a row without loss teaches nothing, give 1 or more")


def fits(
    prompt_tokens: NDArray[Any],
    completion_tokens: NDArray[Any],
    max_length: int | None,
    overflow: str = "truncate",
    min_loss_tokens: int = 1,
) -> NDArray[np.bool_]:
    """Tell which rows are kept.

    Args:
        prompt_tokens, completion_tokens: int (n,).
        max_length: longest row, in tokens; None for no limit.
        overflow: "drop" leaves longer rows out; "truncate" keeps what of them has loss on it.
        min_loss_tokens: a row with less output than this within max_length is left out.

    Returns:
        bool (n,).
    """
    prompt = np.asarray(prompt_tokens, np.int64)
    completion = np.asarray(completion_tokens, np.int64)
    if max_length is None:
        return completion >= min_loss_tokens
    within = np.minimum(completion, max_length - prompt) >= min_loss_tokens
    return within & (prompt + completion <= max_length) if overflow == "drop" else within


def to_training(
    records: Rows,
    max_length: int | None = None,
    overflow: Overflow = "truncate",
    *,
    min_loss_tokens: int = 1,
    truncated: Literal["keep", "drop"] = "keep",
    columns: Sequence[str] = (),
) -> Rows:
    """Turn records into training rows, lazily: a row is made when it is read, and nothing is written.

    Args:
        records: a Dataset, IterableDataset or dictionary of them with a record's columns.
        max_length: longest row in tokens, prompt and output together; None for no limit.
        overflow: what becomes of longer rows: "truncate" cuts their end, "drop" leaves them out.
        min_loss_tokens: rows with less output than this within max_length are left out (a prompt that fills
            max_length alone would give a row without loss).
        truncated: "drop" leaves out rows whose answer a cap cut short (finish_reason is not `stop`).
        columns: columns of the records to hand on, such as `sample_id` and `source`.

    Returns:
        The same kind of object. Its rows hold `input_ids` (int32) and `loss_mask` (int8), of equal length. From a
        Dataset they come as numpy arrays, through a transform, and the number of rows is known at once.

    Raises:
        UsageError: an option makes no sense, or these are no records.
    """
    check_options(max_length, overflow, min_loss_tokens)
    if truncated not in ("keep", "drop"):
        raise UsageError(f"truncated: {truncated!r} is neither 'keep' nor 'drop'")
    if isinstance(records, datasets.DatasetDict | datasets.IterableDatasetDict):
        made = {
            name: to_training(
                split,
                max_length,
                overflow,
                min_loss_tokens=min_loss_tokens,
                truncated=truncated,
                columns=columns,
            )
            for name, split in records.items()
        }
        return type(records)(made)
    clash = [name for name in columns if name in (*_NEEDED, "loss_mask")]
    if clash:
        raise UsageError(f"columns: {clash[0]!r} means something else in a training row; take it from the records")
    _check_record_columns(records.column_names, [*_NEEDED, *columns, "finish_reason"])
    if isinstance(records, datasets.IterableDataset):
        return _stream(records, max_length, overflow, min_loss_tokens, truncated, columns)
    kept = _kept_rows(records, max_length, overflow, min_loss_tokens, truncated)
    chosen = records if kept is None else records.select(kept)

    def transform(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        pairs = [
            join(prompt, output, max_length)
            for prompt, output in zip(batch["input_ids"], batch["output_ids"], strict=True)
        ]
        return {
            **{name: batch[name] for name in columns},
            "input_ids": [ids for ids, _ in pairs],
            "loss_mask": [mask for _, mask in pairs],
        }

    return chosen.select_columns([*columns, *_NEEDED]).with_transform(transform)


def _check_record_columns(names: Sequence[str] | None, wanted: Sequence[str]) -> None:
    if names is not None and (missing := [name for name in wanted if name not in names]):
        raise UsageError(f"no column {missing[0]!r}: to_training takes records of eagle3-data, with all their columns")


def _kept_rows(
    records: datasets.Dataset, max_length: int | None, overflow: str, min_loss_tokens: int, truncated: str
) -> NDArray[np.int64] | None:
    """Return the indices of the rows that are kept, None for all: 1 byte a row while counting, 8 a kept row after."""
    flags = []
    columns = ["prompt_tokens", "completion_tokens", "finish_reason"]
    for table in records.select_columns(columns).with_format("arrow").iter(65_536):
        kept = fits(
            np.asarray(table["prompt_tokens"]),
            np.asarray(table["completion_tokens"]),
            max_length,
            overflow,
            min_loss_tokens,
        )
        if truncated == "drop":
            kept &= np.isin(table["finish_reason"].to_pylist(), reasons("finished"))
        flags.append(kept)
    whole = np.concatenate(flags) if flags else np.zeros(0, np.bool_)
    return None if whole.all() else np.flatnonzero(whole)


def _stream(
    records: datasets.IterableDataset,
    max_length: int | None,
    overflow: str,
    min_loss_tokens: int,
    truncated: str,
    columns: Sequence[str],
) -> datasets.IterableDataset:
    def convert(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        prompts, outputs = batch["input_ids"], batch["output_ids"]
        prompt_tokens, completion_tokens = (np.array([len(ids) for ids in part], int) for part in (prompts, outputs))
        kept = fits(prompt_tokens, completion_tokens, max_length, overflow, min_loss_tokens)
        if truncated == "drop":
            kept &= np.isin(batch["finish_reason"], reasons("finished"))
        rows = np.flatnonzero(kept).tolist()
        pairs = [join(prompts[row], outputs[row], max_length) for row in rows]
        return {
            **{name: [batch[name][row] for row in rows] for name in columns},
            "input_ids": [ids for ids, _ in pairs],
            "loss_mask": [mask for _, mask in pairs],
        }

    known = records.features or {}
    features = {name: known.get(name, Value("string")) for name in columns}
    features |= {"input_ids": [Value("int32")], "loss_mask": [Value("int8")]}
    wanted = list(dict.fromkeys([*columns, *_NEEDED, "finish_reason"]))
    return records.select_columns(wanted).map(
        convert, batched=True, batch_size=100, remove_columns=wanted, features=Features(features)
    )
