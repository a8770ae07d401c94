"""From records to training rows: `input_ids` (prompt + output) and `loss_mask`, a table at a time.

Goes in: tables of records, where `input_ids` is the prompt alone. Comes out: tables whose `input_ids` is prompt +
output and whose `loss_mask` is 1 on what the target wrote, end tokens included, and counts by source. Ids are put side
by side, never decoded and encoded again. The turns of a dialogue become one row where the ids allow it (`dialogues`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Features, Value
from numpy.typing import NDArray

from eagle3_data.errors import DataError, UsageError
from eagle3_data.outcome import reasons
from eagle3_data.publishing.selection import FILTER_COLUMNS, check_drop, dropped_by
from eagle3_data.publishing.training.dialogues import Chains, chains_of_dialogues, chains_of_turns, whole_dialogues
from eagle3_data.schema import arrow_schema

Overflow = Literal["truncate", "drop"]
Per = Literal["turn", "dialogue"]

TRAINING_FEATURES: Final = Features(
    {
        "sample_id": Value("string"),  # of the record; of the first of its turns where several are joined
        "source": Value("string"),
        "input_ids": [Value("int32")],  # prompt + output
        "loss_mask": [Value("int8")],  # of the same length: 1 on what the target wrote
    }
)
TRAINING_SCHEMA: Final = arrow_schema(TRAINING_FEATURES)
RECORD_COLUMNS: Final = (
    *("sample_id", "source", "sample", "dialogue", "turn", "input_ids", "output_ids"),
    *("prompt_tokens", "completion_tokens", *FILTER_COLUMNS),
)
# Reasons for leaving a row out, besides those of `drop`.
TOO_LONG, NO_LOSS, MIXED_OUT = "longer than max_length", "too little output within max_length", "mix"


@dataclass(frozen=True)
class RowOptions:
    """How records become training rows.

    Attributes:
        max_length: longest row in tokens, prompt and output together; None for no limit.
        overflow: what becomes of longer rows: "truncate" cuts their end, "drop" leaves them out.
        min_loss_tokens: rows with less output than this within max_length are left out (a prompt that fills max_length
            alone would give a row without loss).
        per: "turn" gives a row for each record; "dialogue" joins consecutive turns where the ids allow it.
        drop: records to leave out, by names of `selection.DROPPABLE`.
        mix: how often the rows of a source are given: 0.5 for half of them, chosen by a hash of the dialogue, 2 for
            twice; 1 for sources that are not named.

    Raises:
        UsageError: an option makes no sense.
    """

    max_length: int | None = None
    overflow: Overflow = "truncate"
    min_loss_tokens: int = 1
    per: Per = "turn"
    drop: tuple[str, ...] = ()
    mix: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.overflow not in ("truncate", "drop"):
            raise UsageError(f"overflow: {self.overflow!r} is neither 'truncate' nor 'drop'")
        if self.per not in ("turn", "dialogue"):
            raise UsageError(f"per: {self.per!r} is neither 'turn' nor 'dialogue'")
        if self.max_length is not None and self.max_length < 1:
            raise UsageError(f"max_length: {self.max_length} is no length; give a number of tokens above 0")
        if self.min_loss_tokens < 1:
            raise UsageError(f"min_loss_tokens: {self.min_loss_tokens}; a row without loss teaches nothing, give 1+")
        for name, weight in self.mix.items():
            if not 0 <= weight <= 1_000:
                raise UsageError(f"mix: {name}={weight:g}; give how often its rows are written, as in 0.5 or 2")
        object.__setattr__(self, "drop", check_drop(self.drop))


@dataclass
class SourceTally:
    """What became of the records of one source.

    Attributes:
        read: records; `read` is what stands in the rows (`turns`) + `dropped`, repeats by `mix` counted once.
        written: training rows, repeats by `mix` included.
        turns: records that stand in a row.
        dropped: records left out, by reason.
        joined: records that stand in the row of an earlier turn.
        saved: tokens that joining saved.
        cut: rows whose end was cut to max_length.
        ends_lost: of these, rows whose answer had an end token, which is gone.
        tokens, loss_tokens: ids written, and those of them under the loss.
        longest: tokens of the longest row.
    """

    read: int = 0
    written: int = 0
    turns: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    joined: int = 0
    saved: int = 0
    cut: int = 0
    ends_lost: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    longest: int = 0

    def leave_out(self, reason: str, rows: int) -> None:
        """Count records that are left out."""
        if rows:
            self.dropped[reason] = self.dropped.get(reason, 0) + rows

    def __add__(self, other: "SourceTally") -> "SourceTally":
        whole = SourceTally()
        for name, value in vars(whole).items():
            left, right = getattr(self, name), getattr(other, name)
            if name == "longest":
                setattr(whole, name, max(left, right))
            elif isinstance(value, dict):
                setattr(whole, name, {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}})
            else:
                setattr(whole, name, left + right)
        return whole


Tallies = dict[str, SourceTally]


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


def fits(prompt_tokens: NDArray[Any], completion_tokens: NDArray[Any], options: RowOptions) -> NDArray[np.bool_]:
    """Tell which rows are kept whose loss is one span at their end.

    Args:
        prompt_tokens, completion_tokens: int (n,).
        options: max_length, overflow and min_loss_tokens count.

    Returns:
        bool (n,).
    """
    prompt, completion = np.asarray(prompt_tokens, np.int64), np.asarray(completion_tokens, np.int64)
    if options.max_length is None:
        return completion >= options.min_loss_tokens
    within = np.minimum(completion, options.max_length - prompt) >= options.min_loss_tokens
    return within & (prompt + completion <= options.max_length) if options.overflow == "drop" else within


def training_tables(
    tables: Iterable[pa.Table],
    options: RowOptions,
    tallies: Tallies,
    name: str = "the records",
    columns: Sequence[str] = ("sample_id", "source"),
) -> Iterator[pa.Table]:
    """Turn tables of records into tables of training rows.

    Args:
        tables: RECORD_COLUMNS and `columns`, in order.
        options: how.
        tallies: counted into, by source.
        name: what messages call the records.
        columns: columns of the records to hand on; of the first turn where several are joined.

    Yields:
        Tables of `columns`, `input_ids` (list<int32>) and `loss_mask` (list<int8>), in the order of the records.

    Raises:
        DataError: a record's lengths do not agree with its ids.
    """
    for table in whole_dialogues(tables) if options.per == "dialogue" else tables:
        if table.num_rows:
            yield _convert(table, options, tallies, name, columns)


def _convert(table: pa.Table, options: RowOptions, tallies: Tallies, name: str, columns: Sequence[str]) -> pa.Table:
    prompts, outputs = (table[column].combine_chunks() for column in ("input_ids", "output_ids"))
    prompt_tokens, completion_tokens = _lengths(table, name, prompts, outputs)
    encoded = table["source"].combine_chunks().dictionary_encode()
    names, source = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)
    count = [tallies.setdefault(each, SourceTally()) for each in names]

    def tell(rows: NDArray[Any], add: Any) -> None:
        for index, rows_of in enumerate(np.bincount(source[rows], minlength=len(names)).tolist()):
            if rows_of:
                add(count[index], rows_of)

    everything = np.arange(table.num_rows)
    tell(everything, lambda tally, rows: setattr(tally, "read", tally.read + rows))
    drops = dropped_by(table, options.drop)
    for index, reason in enumerate(options.drop):
        tell(np.flatnonzero(drops == index), lambda tally, rows, reason=reason: tally.leave_out(reason, rows))
    kept = np.flatnonzero(drops < 0)
    limit = options.max_length if options.overflow == "drop" else None
    chains = (
        chains_of_turns(kept, prompt_tokens, completion_tokens)
        if options.per == "turn"
        else chains_of_dialogues(table, kept, prompts, outputs, limit)
    )
    loss = chains.loss_within(options.max_length)
    times = _times(table, chains, options.mix, names, source)
    reasons_out = {
        TOO_LONG: chains.tokens > limit if limit is not None else np.zeros(len(chains), np.bool_),
        NO_LOSS: loss < options.min_loss_tokens,
        MIXED_OUT: times == 0,
    }
    keep = np.ones(len(chains), np.bool_)
    for reason, out in reasons_out.items():
        tell(chains.rows(keep & out), lambda tally, rows, reason=reason: tally.leave_out(reason, rows))
        keep &= ~out
    chains, loss, times = chains.where(keep), loss[keep], times[keep]
    made = _rows(chains, prompts, outputs, options.max_length)
    _count(table, chains, made, loss, times, source, count)
    made = {**{column: table[column].take(chains.first) for column in columns}, **made}
    result = pa.table({column: made[column] for column in [*columns, "input_ids", "loss_mask"]})
    return result if (times == 1).all() else result.take(np.repeat(np.arange(len(chains)), times))


def _lengths(table: pa.Table, name: str, prompts: Any, outputs: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    found = []
    for column, ids in (("prompt_tokens", prompts), ("completion_tokens", outputs)):
        lengths = np.asarray(pc.list_value_length(ids), np.int64)
        wrong = np.flatnonzero(np.asarray(table[column]) != lengths)
        if wrong.size:
            sample_id = table["sample_id"][int(wrong[0])].as_py()
            raise DataError(
                f"{name}: {sample_id}: {column} does not agree with its ids; `eagle3-data check` says more"
            )
        found.append(lengths)
    return found[0], found[1]


def _times(
    table: pa.Table, chains: Chains, mix: Mapping[str, float], names: Sequence[str], source: NDArray[Any]
) -> NDArray[np.int64]:
    """Return how often each row is given: the whole part of its source's weight, and once more for the rest of it."""
    if not mix or not len(chains):
        return np.ones(len(chains), np.int64)
    weights = np.array([mix.get(each, 1.0) for each in names])[source[chains.first]]
    dialogues = table["dialogue"].take(chains.first).to_numpy()
    draw = np.asarray(pd.util.hash_array(dialogues, categorize=False), np.uint64) / 2.0**64
    return np.asarray(np.floor(weights) + (draw < weights % 1), np.int64)


def _rows(chains: Chains, prompts: Any, outputs: Any, max_length: int | None) -> dict[str, pa.Array]:
    """Write the ids and the mask of each chain: those of its last turn, whose prompt holds the turns before it."""
    lengths = chains.tokens if max_length is None else np.minimum(chains.tokens, max_length)
    offsets = np.zeros(len(chains) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    ids, mask = np.empty(offsets[-1], np.int32), np.zeros(offsets[-1], np.int8)
    (prompt_at, prompt_ids), (output_at, output_ids) = (
        (part.offsets.to_numpy(), part.values.to_numpy(zero_copy_only=False)) for part in (prompts, outputs)
    )
    starts = offsets.tolist()
    for index, (last, start, end) in enumerate(zip(chains.last.tolist(), starts, starts[1:], strict=False)):
        first, stop = prompt_at[last], prompt_at[last + 1]
        middle = min(start + int(stop - first), end)
        ids[start:middle] = prompt_ids[first : first + middle - start]
        ids[middle:end] = output_ids[output_at[last] : output_at[last] + end - middle]
        for begin, until in chains.spans[index] if chains.spans is not None else ((middle - start, end - start),):
            mask[start + begin : min(start + until, end)] = 1
    # one list cannot hold more than 2^31 ids in a table; batches are far from it
    places = pa.array(offsets.astype(np.int32))
    return {
        "input_ids": pa.ListArray.from_arrays(places, pa.array(ids)),
        "loss_mask": pa.ListArray.from_arrays(places, pa.array(mask)),
    }


def _count(
    table: pa.Table,
    chains: Chains,
    made: Mapping[str, pa.Array],
    loss: NDArray[np.int64],
    times: NDArray[np.int64],
    source: NDArray[Any],
    count: Sequence[SourceTally],
) -> None:
    written = np.diff(made["input_ids"].offsets.to_numpy()).astype(np.int64)
    cut = written < chains.tokens
    ended = np.asarray(pc.is_in(table["finish_reason"], pa.array(reasons("finished"), pa.string())))[chains.last]
    code = source[chains.first]
    for index, tally in enumerate(count):
        mine = code == index
        if not mine.any():
            continue
        tally.written += int(times[mine].sum())
        tally.turns += int(chains.turns[mine].sum())
        tally.joined += int((chains.turns[mine] - 1).sum())
        tally.saved += int(chains.saved[mine].sum())
        tally.cut += int((times * cut)[mine].sum())
        tally.ends_lost += int((times * (cut & ended))[mine].sum())
        tally.tokens += int((times * written)[mine].sum())
        tally.loss_tokens += int((times * loss)[mine].sum())
        tally.longest = max(tally.longest, int(written[mine].max()))
