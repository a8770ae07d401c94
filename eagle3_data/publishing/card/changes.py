"""What a new version changes against the last one, row by row, in a few lines for the card.

Goes in: the record files of both versions (those of the last one may lie on the Hub, and files that are alike in both
are not read) and both manifests. Comes out: counts by source, and sentences. Rows are matched by (sample_id, sample)
and compared id by id through 64-bit hashes: 29 bytes a row, whatever the rows hold.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from eagle3_data.errors import DataError
from eagle3_data.outcome import reasons
from eagle3_data.publishing.card.facts import caps
from eagle3_data.publishing.card.markdown import code

Opener = Callable[[], AbstractContextManager[Any]]

_KEY: Final = ["sample_id", "sample"]
_ANSWER: Final = ["finish_reason", "completion_tokens", "reasoning_tokens", "rounds"]
_IDS: Final = ["input_ids", "output_ids"]


@dataclass(frozen=True)
class RowIndex:
    """Rows by hash.

    Attributes:
        keys: uint64 (n,), hash of sample_id and sample, ascending.
        prompts: int64 (n,), hash of the prompt's ids; zeros where only keys were read.
        answers: uint64 (n,), hash of the answer's ids and counts; zeros where only keys were read.
        finished: bool (n,), finish_reason is `stop`.
        tokens: int32 (n,), tokens of the answer.
    """

    keys: NDArray[np.uint64]
    prompts: NDArray[np.int64]
    answers: NDArray[np.uint64]
    finished: NDArray[np.bool_]
    tokens: NDArray[np.int32]


def index_rows(files: Iterable[Opener], *, ids: bool = True) -> RowIndex:
    """Index the rows of Parquet files, a row group at a time.

    Args:
        files: functions that open a file for binary reading with seeks.
        ids: whether to read the ids; without them only `keys`, `finished` and `tokens` hold.

    Raises:
        DataError: two rows have the same sample_id and sample.
    """
    parts: list[tuple[NDArray[Any], ...]] = []
    columns = [*_KEY, *_ANSWER, *(_IDS if ids else [])]
    for opener in files:
        with opener() as handle, pq.ParquetFile(handle, pre_buffer=True) as file:
            for group in range(file.num_row_groups):
                parts.append(_index_table(file.read_row_group(group, columns=columns), ids))
    if not parts:
        nothing = np.zeros(0, np.uint64)
        return RowIndex(nothing, nothing.astype(np.int64), nothing, np.zeros(0, np.bool_), np.zeros(0, np.int32))
    whole, *rest = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(whole, kind="stable")
    whole = whole[order]
    if (whole[1:] == whole[:-1]).any():
        raise DataError("two records have the same sample_id and sample; `eagle3-data check` names them")
    prompts, answers, finished, tokens = (each[order] for each in rest)
    return RowIndex(whole, prompts, answers, finished, tokens)


def _index_table(table: pa.Table, ids: bool) -> tuple[NDArray[Any], ...]:
    frame = table.select([*_KEY, *_ANSWER]).to_pandas()
    prompts, outputs = np.zeros((2, table.num_rows), np.int64)
    if ids:
        prompts, outputs = (np.fromiter(hash_lists(table[name]), np.int64, table.num_rows) for name in _IDS)
    return (
        hash_rows(frame[_KEY]),
        prompts,
        hash_rows(frame[_ANSWER].assign(ids=outputs)),
        frame["finish_reason"].isin(reasons("finished")).to_numpy(bool),
        frame["completion_tokens"].to_numpy(np.int32),
    )


def hash_lists(column: pa.ChunkedArray) -> Iterator[int]:
    """Yield a hash of each list of ids; it holds in this process alone."""
    whole = column.combine_chunks()
    places, values = whole.offsets.to_numpy().tolist(), whole.values.to_numpy(zero_copy_only=False)
    return (hash(values[start:end].tobytes()) for start, end in itertools.pairwise(places))


def hash_rows(frame: pd.DataFrame) -> NDArray[np.uint64]:
    return np.asarray(pd.util.hash_pandas_object(frame, index=False), dtype=np.uint64)


@dataclass(frozen=True)
class RowChanges:
    """Rows of one source in two versions.

    Attributes:
        added, removed, unchanged: rows only in the new one, only in the old one, alike in both.
        finished: rows whose answer was cut short in the old version and ends by itself in the new one.
        longer: rows cut short in both, but further on in the new one.
        changed: other rows whose answer changed.
        prompts: rows whose prompt changed, whatever their answer.
    """

    added: int = 0
    removed: int = 0
    unchanged: int = 0
    finished: int = 0
    longer: int = 0
    changed: int = 0
    prompts: int = 0


def compare_rows(old: RowIndex, new: RowIndex, same: int = 0) -> RowChanges:
    """Compare two indexes; `same` rows lie in files that are alike and were not read."""
    _, left, right = np.intersect1d(old.keys, new.keys, assume_unique=True, return_indices=True)
    other_prompt = old.prompts[left] != new.prompts[right]
    differs = (old.answers[left] != new.answers[right]) & ~other_prompt
    cut = differs & ~old.finished[left]
    now_finished = cut & new.finished[right]
    longer = cut & ~new.finished[right] & (new.tokens[right] > old.tokens[left])
    return RowChanges(
        added=len(new.keys) - len(right),
        removed=len(old.keys) - len(left),
        unchanged=same + int((~differs & ~other_prompt).sum()),
        finished=int(now_finished.sum()),
        longer=int(longer.sum()),
        changed=int((differs & ~now_finished & ~longer).sum()),
        prompts=int(other_prompt.sum()),
    )


def describe_changes(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    rows: Mapping[str, RowChanges],
    lengths: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> list[str]:
    """Say what changed between two versions.

    Args:
        old, new: their manifests.
        rows: changes of each source that is in both.
        lengths: their `lengths.json`.

    Returns:
        Sentences in Markdown, without bullets.
    """
    before, after = (_extents(manifest) for manifest in (old, new))
    lines = [f"new source {name}, {_rows(_records(lengths[1], name))}" for name in after if name not in before]
    lines += [f"source {name} dropped, {_rows(_records(lengths[0], name))}" for name in before if name not in after]
    for name, change in rows.items():
        parts = [
            f"{count:,} {words}"
            for count, words in (
                (change.added, "added"),
                (change.removed, "removed"),
                (change.finished, "cut short before and now finished"),
                (change.longer, "longer than before and still cut short"),
                (change.changed, "with another answer"),
                (change.prompts, "with another prompt"),
            )
            if count
        ]
        if parts:
            lines.append(f"{name}: rows {', '.join(parts)}; {change.unchanged:,} unchanged")
    for name in after:
        if name in before:
            lines += _setting_changes(name, before[name], after[name])
            lines += _length_changes(name, *lengths)
    lines += _identity_changes(old.get("identity", {}), new.get("identity", {}))
    lines += _training_changes(old.get("training") or {}, new.get("training") or {})
    return lines or ["the same records; only the card or the files beside them changed"]


def first_version(sources: Sequence[str], rows: int, tokens: int) -> list[str]:
    """Say what the first version holds."""
    return [f"first version: {_rows(rows)}, {tokens:,} output tokens, from {', '.join(sources)}"]


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def _extents(manifest: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = manifest.get("extent", {}).get("sources", {})
    return found


def _records(lengths: Mapping[str, Any], source: str) -> int:
    return int(lengths.get("sources", {}).get(source, {}).get("rows", 0))


def _setting_changes(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    words = {
        "cap": "cap on new tokens",
        "further": "cut rows continued up to",
        "turns": "turn policy",
        "config": "upstream config",
        "revision": "upstream revision",
        "filter": "filter",
        "holdout": "rows held out",
    }
    old, new = ({**extent, **dict(zip(("cap", "further"), caps(extent), strict=True))} for extent in (old, new))
    return [
        f"{name}: {word} {_plain(old.get(key))} → {_plain(new.get(key))}"
        for key, word in words.items()
        if old.get(key) != new.get(key)
    ]


def _plain(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value in (None, "", {}, []) else code(value)


def _length_changes(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Compare the lengths of answers: median, p95 and truncation, where both versions have them."""
    parts = []
    for word, path, percent in (
        ("median", ("lengths", "completion", "quantiles", "p50", "value"), False),
        ("p95", ("lengths", "completion", "quantiles", "p95", "value"), False),
        ("cut short", ("truncated", "share", "value"), True),
    ):
        values = [_dig(part.get("sources", {}).get(name, {}), path) for part in (old, new)]
        if all(isinstance(value, int | float) for value in values) and values[0] != values[1]:
            left, right = (f"{100 * value:.1f} %" if percent else f"{value:,.0f}" for value in values)
            parts.append(f"{word} {left} → {right}")
    return [f"{name}: output tokens: {', '.join(parts)}"] if parts else []


def _dig(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _training_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    if old and not new:
        return ["the config `train_rows` is gone: this version was published without `--training`"]
    return ["new config `train_rows`: rows as trainers read them"] if new and not old else []


def _identity_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    lines = []
    for part in ("target", "weights", "sampling"):
        left, right = old.get(part) or {}, new.get(part) or {}
        for key in dict.fromkeys([*left, *right]):
            if left.get(key) != right.get(key):
                lines.append(f"{part} {key}: {_plain(left.get(key))} → {_plain(right.get(key))}")
    return lines
