"""Two data sets of records compared row by row: which rows were added, removed, extended or changed.

Goes in: two data sets from anywhere (run folders, Parquet files, versions on the Hub). Comes out: counts by source,
with examples. Rows are matched by (sample_id, sample) and compared id by id through 64-bit hashes: 33 bytes a row of
the first data set are held, whatever the rows hold.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from eagle3_data.errors import DataError
from eagle3_data.publishing.card.changes import hash_lists, hash_rows
from eagle3_data.publishing.records import Data, Records, open_records, read_ahead

KINDS: Final = ("added", "removed", "extended", "changed")
_KEY: Final = ["sample_id", "sample"]
_COLUMNS: Final = (*_KEY, "source", "input_ids", "output_ids", "finish_reason", "completion_tokens")
EXAMPLES: Final = 3
_TWICE: Final = "{}: two records have the same sample_id and sample; `eagle3-data check` names them"


@dataclass
class SourceDifference:
    """Rows of one source.

    Attributes:
        added, removed: rows only in the second, only in the first data set.
        extended: rows whose answer goes on where it ended in the first one, id by id.
        changed: rows with another prompt or another answer.
        unchanged: rows alike.
        examples: for each kind some rows, in words.
    """

    added: int = 0
    removed: int = 0
    extended: int = 0
    changed: int = 0
    unchanged: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, words: str) -> None:
        """Count a row, and keep it as an example where there are few yet."""
        setattr(self, kind, getattr(self, kind) + 1)
        shown = self.examples.setdefault(kind, [])
        if len(shown) < EXAMPLES:
            shown.append(words)


@dataclass(frozen=True)
class Difference:
    """Two data sets compared; `same` where no row differs."""

    first: str
    second: str
    sources: dict[str, SourceDifference]

    @property
    def same(self) -> bool:
        """Whether both hold the same rows."""
        return not any(getattr(each, kind) for each in self.sources.values() for kind in KINDS)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "same": self.same}

    def to_text(self) -> str:
        """Return the comparison for a terminal."""
        lines = [f"{self.first} → {self.second}: {'the same rows' if self.same else 'rows differ'}"]
        for name, each in self.sources.items():
            counts = [f"{getattr(each, kind):,} {kind}" for kind in KINDS if getattr(each, kind)]
            lines.append(f"  {name}: {', '.join([*counts, f'{each.unchanged:,} unchanged'])}")
            lines += [f"    {kind}: {words}" for kind in KINDS for words in each.examples.get(kind, [])]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Index:
    """The rows of the first data set, by key; `place` is where a row stood."""

    keys: NDArray[np.uint64]
    prompts: NDArray[np.int64]
    answers: NDArray[np.int64]
    tokens: NDArray[np.int32]
    place: NDArray[np.int64]


def compare_records(first: Data, second: Data) -> Difference:
    """Compare two data sets of records.

    Args:
        first, second: run folders, Parquet files, data sets, or `org/name@v1.0.0`; all splits of them.

    Raises:
        UsageError: there is nothing of that name.
        DataError: one of them is damaged, or holds two rows with one (sample_id, sample).
        HubError: the Hub refused.
    """
    before, after = (open_records(data, split=None) for data in (first, second))
    index = _read_index(before)
    met = np.zeros(len(index.keys), np.bool_)
    found: dict[str, SourceDifference] = {}
    for table in read_ahead(after.tables(_COLUMNS)):
        _compare(table, index, met, found, after.name)
    missing = np.zeros(len(met), np.bool_)
    missing[index.place[~met]] = True
    start = 0
    for table in before.tables(("sample_id", "sample", "source", "completion_tokens")) if missing.any() else ():
        for row in np.flatnonzero(missing[start : start + table.num_rows]).tolist():
            name, sample, source, tokens = (column[row].as_py() for column in table.columns)
            found.setdefault(source, SourceDifference()).add("removed", f"{_name(name, sample)} ({tokens:,} tokens)")
        start += table.num_rows
    return Difference(before.name, after.name, dict(sorted(found.items())))


def _name(sample_id: str, sample: int) -> str:
    return sample_id if sample == 0 else f"{sample_id} sample {sample}"


def _lists(column: pa.ChunkedArray) -> tuple[list[int], NDArray[np.int32]]:
    whole = column.combine_chunks()
    return whole.offsets.to_numpy().tolist(), whole.values.to_numpy(zero_copy_only=False)


def _read_index(records: Records) -> _Index:
    parts: list[tuple[NDArray[Any], ...]] = []
    for table in read_ahead(records.tables(_COLUMNS)):
        parts.append(
            (
                hash_rows(table.select(_KEY).to_pandas()),
                *(
                    np.fromiter(hash_lists(table[name]), np.int64, table.num_rows)
                    for name in ("input_ids", "output_ids")
                ),
                np.asarray(table["completion_tokens"], np.int32),
            )
        )
    if not parts:
        nothing = np.zeros(0, np.int64)
        return _Index(nothing.astype(np.uint64), nothing, nothing, nothing.astype(np.int32), nothing)
    keys, prompts, answers, tokens = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    if (keys[1:] == keys[:-1]).any():
        raise DataError(_TWICE.format(records.name))
    return _Index(keys, prompts[order], answers[order], tokens[order], order)


def _compare(
    table: pa.Table, index: _Index, met: NDArray[np.bool_], found: dict[str, SourceDifference], name: str
) -> None:
    keys = hash_rows(table.select(_KEY).to_pandas())
    at = np.searchsorted(index.keys, keys)
    there = at < len(index.keys)
    there[there] &= index.keys[at[there]] == keys[there]
    if met[at[there]].any() or len(np.unique(keys)) < len(keys):
        raise DataError(_TWICE.format(name))
    met[at[there]] = True
    places, values = _lists(table["output_ids"])
    prompts, answers = ([*hash_lists(table[column])] for column in ("input_ids", "output_ids"))
    columns: Sequence[list[Any]] = [table[column].to_pylist() for column in ("sample_id", "sample", "source")]
    reasons = table["finish_reason"].to_pylist()
    for row, (sample_id, sample, source) in enumerate(zip(*columns, strict=True)):
        each = found.setdefault(source, SourceDifference())
        tokens, title = places[row + 1] - places[row], _name(sample_id, sample)
        if not there[row]:
            each.add("added", f"{title} ({tokens:,} tokens, {reasons[row]})")
            continue
        spot = int(at[row])
        same_prompt, old = prompts[row] == index.prompts[spot], int(index.tokens[spot])
        if same_prompt and answers[row] == index.answers[spot]:
            each.unchanged += 1
        elif (
            same_prompt
            and tokens > old
            and hash(values[places[row] : places[row] + old].tobytes()) == index.answers[spot]
        ):
            each.add("extended", f"{title} ({old:,} → {tokens:,} tokens, {reasons[row]})")
        else:
            words = "another answer" if same_prompt else "another prompt"
            each.add("changed", f"{title} ({words}, {old:,} → {tokens:,} tokens)")
