"""Read the lengths out of records: only scalar columns, batch by batch, never a token and never a Python loop a row.

Goes in: a data set, Parquet files, a run folder or a Hub repository. Comes out: one `SourceTally` a source.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eagle3_data.errors import DataError, UsageError
from eagle3_data.foreign_text import foreign_text
from eagle3_data.lengths.statistics.clusters import ClusterRows, Keys, keys_of
from eagle3_data.lengths.statistics.distribution import CUTOFFS, Flags, Ints, Tally, checked_lengths
from eagle3_data.manifest import Manifest
from eagle3_data.outcome import FINISH_REASONS, of_reason, reasons
from eagle3_data.run_folder import RunFolder
from eagle3_data.run_names import refuse_missing

WHOLE: Final = "whole"  # what all sources together are called
MEASURES: Final = ("prompt", "completion", "reasoning", "answer")
_SCALARS: Final = (
    "source",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "tool_calls",
    "max_new_tokens",
    "loop_tokens",
    "error",
)

_TOKENS: Final = {"prompt_tokens": "input_ids", "completion_tokens": "output_ids"}
_BATCH_ROWS: Final = 1 << 17
_HUB_NAME: Final = re.compile(r"^(?:hf://)?(?:datasets/)?([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?$")


@dataclass
class Sums:
    """Sums over rows of a pair (part, whole) whose ratio is wanted, with what its variance needs."""

    rows: int = 0
    part: float = 0.0
    whole: float = 0.0
    part2: float = 0.0
    whole2: float = 0.0
    cross: float = 0.0

    def add(self, part: Ints, whole: Ints) -> None:
        """Add a batch of int64 (n,)."""
        a, b = part.astype(float), whole.astype(float)
        self.rows += len(a)
        self.part += float(a.sum())
        self.whole += float(b.sum())
        # Not `@`: a BLAS starts threads for it, and its sums differ from machine to machine.
        self.part2 += float((a * a).sum())
        self.whole2 += float((b * b).sum())
        self.cross += float((a * b).sum())


@dataclass
class SourceTally:
    """What was counted of one source: tables of lengths and a handful of sums."""

    lengths: dict[str, Tally] = field(default_factory=lambda: {name: Tally() for name in MEASURES})
    total: Tally = field(default_factory=Tally)  # prompt + completion
    caps: Tally = field(default_factory=Tally)  # budgets sent
    caps_of_cut: Tally = field(default_factory=Tally)  # budgets of the rows cut by the source's cap
    finish_reasons: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    with_tool_calls: int = 0
    tool_calls: int = 0
    with_thinking: int = 0
    thinking_unfinished: int = 0
    looping: int = 0  # cut while repeating themselves
    cut_by_context: int = 0  # cut by a full context, and not looping
    clusters: ClusterRows = field(default_factory=ClusterRows)
    survival: dict[int, tuple[Sums, Sums]] = field(default_factory=lambda: {c: (Sums(), Sums()) for c in CUTOFFS})

    @property
    def rows(self) -> int:
        """Records counted."""
        return sum(self.finish_reasons.values())

    @property
    def truncated(self) -> int:
        """Records whose answer was cut."""
        return sum(self.finish_reasons[reason] for reason in reasons("cut"))

    def wait_for(self, rows: int) -> None:
        """Count rows of whose answers nothing is known. Prompt lengths stay those of the records."""
        for name in ("completion", "reasoning", "answer"):
            self.lengths[name].waiting += rows

    def add(self, columns: Mapping[str, Ints], ends: Ints, kinds: list[str], dialogues: Keys | None = None) -> None:
        """Count a batch of rows of this source.

        Args:
            columns: int64 (n,) prompt_tokens, completion_tokens, reasoning_tokens, tool_calls, max_new_tokens and
                loop_tokens.
            ends: int64 (n,), indices into `kinds`.
            kinds: finish reasons.
            dialogues: uint64 (n,), equal for rows of one dialogue; None where every row stands alone.
        """
        prompt, completion = columns["prompt_tokens"], columns["completion_tokens"]
        reasoning, calls = columns["reasoning_tokens"], columns["tool_calls"]
        answer = completion - reasoning
        for index, kind in enumerate(kinds):
            self.finish_reasons[kind] += int((ends == index).sum())
        cut: Flags = np.array([of_reason(kind).cut for kind in kinds], bool)[ends]
        by_cap: Flags = np.array([of_reason(kind).cut_by_cap for kind in kinds], bool)[ends]
        thinking: Flags = cut & (reasoning > 0) & (reasoning == completion)
        loops: Flags = cut & (columns["loop_tokens"] > 0)
        # How much a full context leaves depends on the prompt, and answers may be longer for longer prompts.
        full: Flags = np.array([of_reason(kind).cut_by_context for kind in kinds], bool)[ends]
        self.lengths["prompt"].add(prompt)
        self.lengths["completion"].add(completion, cut, full, loops)
        self.lengths["reasoning"].add(reasoning, thinking, thinking & full, thinking & loops)
        self.lengths["answer"].add(answer, loose=cut, stuck=loops)
        self.looping += int(loops.sum())
        self.cut_by_context += int((full & ~loops).sum())
        if dialogues is not None:
            self.clusters.add(dialogues, completion, cut, loops)
        self.total.add(prompt + completion)
        self.caps.add(columns["max_new_tokens"])
        self.caps_of_cut.add(columns["max_new_tokens"][by_cap])
        self.with_tool_calls += int((calls > 0).sum())
        self.tool_calls += int(calls.sum())
        self.with_thinking += int((reasoning > 0).sum())
        self.thinking_unfinished += int(thinking.sum())
        for cutoff, (whole, supervised) in self.survival.items():
            total = prompt + completion
            whole.add(np.minimum(total, cutoff), total)
            supervised.add(np.clip(cutoff - prompt, 0, completion), completion)


def read_tables(tables: Iterable[pa.Table | pa.RecordBatch], where: str) -> dict[str, SourceTally]:
    """Count tables of records by source, in the order in which sources appear.

    Args:
        tables: with the scalar columns of a record; `prompt_tokens` and `completion_tokens` are taken from the offsets
            of `input_ids` and `output_ids` where they are missing.
        where: names the data in an error.

    Raises:
        DataError: a column is missing or holds nulls or impossible values, or a row carries an error.
    """
    tallies: dict[str, SourceTally] = {}
    for batch in tables:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if table.num_rows:
            _add_table(tallies, table, where)
    return tallies


def _add_table(tallies: dict[str, SourceTally], table: pa.Table, where: str) -> None:
    names = set(table.column_names)
    if "error" in names:
        failed = int(pc.sum(pc.not_equal(pc.fill_null(table["error"], ""), "")).as_py() or 0)
        if failed:
            raise DataError(
                f"{where}: {failed} of {table.num_rows} rows carry an error, so they are no records; "
                "take eagle3_data.records(out) first, or run generate again"
            )
    if "finish_reason" not in names:
        raise DataError(f"{where}: no column finish_reason, so cut rows cannot be told from whole ones")
    columns = {
        "prompt_tokens": _numbers(table, "prompt_tokens", where),
        "completion_tokens": _numbers(table, "completion_tokens", where),
    }
    for name in ("reasoning_tokens", "tool_calls", "max_new_tokens", "loop_tokens"):
        columns[name] = _numbers(table, name, where) if name in names else np.zeros(table.num_rows, np.int64)
    if (columns["reasoning_tokens"] > columns["completion_tokens"]).any():
        raise DataError(f"{where}: a row has more reasoning_tokens than completion_tokens; run `eagle3-data check`")
    ends, kinds = _codes(table["finish_reason"], f"{where}: finish_reason")
    if wrong := sorted(set(kinds) - set(FINISH_REASONS)):
        raise DataError(f"{where}: finish_reason {wrong[0]!r} is none of {', '.join(FINISH_REASONS)}")
    dialogues = keys_of(table["dialogue"].to_numpy()) if "dialogue" in names else None
    if "source" not in names:
        tallies.setdefault("records", SourceTally()).add(columns, ends, kinds, dialogues)
        return
    codes, sources = _codes(table["source"], f"{where}: source")
    for index, source in enumerate(sources):
        rows = codes == index
        everything = len(sources) == 1
        part = columns if everything else {name: column[rows] for name, column in columns.items()}
        kept = dialogues if everything or dialogues is None else dialogues[rows]
        tallies.setdefault(source, SourceTally()).add(part, ends if everything else ends[rows], kinds, kept)


def _numbers(table: pa.Table, name: str, where: str) -> Ints:
    if name in table.column_names:
        column = table[name]
    elif _TOKENS.get(name) in table.column_names:
        column = pc.list_value_length(table[_TOKENS[name]])
    else:
        raise DataError(f"{where}: no column {name}; are these records of eagle3-data?")
    if column.null_count:
        raise DataError(f"{where}: column {name} holds nulls; run `eagle3-data check`")
    try:
        return checked_lengths(column.to_numpy())
    except DataError as error:
        raise DataError(f"{where}: column {name}: {error}") from None


def _codes(column: pa.ChunkedArray, where: str) -> tuple[Ints, list[str]]:
    """Return indices (n,) and the values they stand for, each used."""
    if column.null_count:
        raise DataError(f"{where} holds nulls; run `eagle3-data check`")
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    used = np.unique(indices)
    return np.searchsorted(used, indices), [values[index] for index in used]


def dataset_tables(dataset: datasets.Dataset) -> Iterator[pa.Table]:
    """Yield a data set's scalar columns, its indices mapping (select, shuffle, filter) respected."""
    wanted = [*_wanted(dataset.column_names), *(["dialogue"] if "dialogue" in dataset.column_names else [])]
    yield from dataset.select_columns(wanted).with_format("arrow").iter(batch_size=_BATCH_ROWS)


def parquet_tables(files: Iterable[Any], filesystem: Any = None) -> Iterator[pa.Table]:
    """Yield the scalar columns of Parquet files, a bounded number of rows at a time.

    Raises:
        DataError: a file is not Parquet.
    """
    for path in files:
        try:
            names = pq.read_schema(path, filesystem=filesystem).names
            texts = [name for name in ("source", "finish_reason") if name in names]
            with pq.ParquetFile(path, filesystem=filesystem, read_dictionary=texts) as file:
                wanted = [*_wanted(names), *(["dialogue"] if _dependent(file, names) else [])]
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
                    yield pa.Table.from_batches([batch])
        except pa.ArrowInvalid as error:
            raise DataError(f"{path}: not a Parquet file of records ({error})") from error


def _dependent(file: pq.ParquetFile, names: Iterable[str]) -> bool:
    """Whether some rows may belong to one dialogue or prompt: by the statistics, so that no text is read in vain."""
    there = list(names)
    if "dialogue" not in there:
        return False
    places = [file.schema.names.index(name) for name in ("turn", "sample") if name in file.schema.names]
    groups = (file.metadata.row_group(group) for group in range(file.metadata.num_row_groups))
    found = [group.column(place).statistics for group in groups for place in places]
    return not places or any(stats is None or not stats.has_min_max or stats.max > 0 for stats in found)


def _wanted(names: Iterable[str]) -> list[str]:
    there = list(names)
    wanted = [name for name in _SCALARS if name in there]
    return wanted + [ids for name, ids in _TOKENS.items() if name not in there and ids in there]


def read_path(path: Path) -> dict[str, SourceTally]:
    """Count a Parquet file, or all the Parquet files below a folder.

    Raises:
        UsageError: there is nothing of the kind.
    """
    if path.is_file():
        return read_tables(parquet_tables([path]), str(path))
    files = sorted(file for file in path.rglob("*.parquet") if not file.name.startswith("."))
    if not files:
        raise UsageError(f"{path}: holds no Parquet files; give a run folder, Parquet files or a Hub data set")
    return read_tables(parquet_tables(files), str(path))


def read_hub(name: str) -> tuple[dict[str, SourceTally], Manifest]:
    """Count a data set on the Hub, `org/name` or `org/name@revision`; only the scalar columns are fetched.

    Returns:
        The tallies, and the manifest that was published beside the records, an empty one when there is none.

    Raises:
        UsageError: the name is not one, or there is no such data set or revision.
    """
    from huggingface_hub import HfFileSystem

    refuse_missing(name)
    match = _HUB_NAME.match(name)
    if name.startswith((".", "/", "~")) or name.endswith(".parquet"):
        raise UsageError(f"{name}: no such file or folder")
    if match is None:
        raise UsageError(f"{name}: neither a path that exists nor a Hub data set such as org/name@v1.0.0")
    root = f"datasets/{match[1]}" + (f"@{match[2]}" if match[2] else "")
    filesystem: Any = HfFileSystem()
    try:
        files = sorted(filesystem.glob(f"{root}/**/*.parquet"))
    except Exception as error:  # the Hub client raises a dozen kinds, all meaning that nothing could be listed
        raise UsageError(
            f"{name}: no such folder here, and as a Hub data set it cannot be listed "
            f"({type(error).__name__}: {foreign_text(error)})"
        ) from error
    if not files:
        raise UsageError(
            f"{name}: no such folder here, and no Parquet files of that name on the Hub; is the name, the revision "
            "and your token right?"
        )
    manifest = Manifest()
    if filesystem.exists(f"{root}/manifest.json"):
        manifest = Manifest.parse_text(filesystem.cat_file(f"{root}/manifest.json"), f"{name}: manifest.json")
    return read_tables(parquet_tables(files, filesystem), name), manifest


@dataclass
class Unfinished:
    """Prompts of a source that have no record, by why."""

    waiting: int = 0  # not answered yet
    timed_out: int = 0
    failed: int = 0  # for another reason than time
    skipped: int = 0  # the prompt leaves no room in the context; not censored, since nothing will ever come
    expected_known: bool = False  # whether rows start longest expected first

    @property
    def rows(self) -> int:
        """Rows that may still get an answer."""
        return self.waiting + self.timed_out + self.failed


def read_run(folder: RunFolder) -> tuple[dict[str, SourceTally], dict[str, Unfinished]]:
    """Count the records of a run folder, both splits, and the prompts that have none."""
    names = sorted({*folder.sources(), *(path.stem for path in folder.path.glob("prompts/*.parquet"))})
    failures, timeouts = _rows_by_source(folder.failures_path)
    skipped, _ = _rows_by_source(folder.skipped_path)
    tallies, unfinished = {}, {}
    for name in names:
        files = [*folder.record_files(name), *folder.record_files(name, "validation")]
        read = read_tables(parquet_tables(files), str(folder.records_path(name)))
        if strange := sorted(set(read) - {name}):
            raise DataError(f"{folder.records_path(name)}: holds rows of source {strange[0]!r}")
        tally = tallies[name] = read.get(name, SourceTally())
        lost, late, left_out = failures.get(name, 0), timeouts.get(name, 0), skipped.get(name, 0)
        prompts = folder.prompts_path(name)
        drawn, expected = drawn_rows(prompts) if prompts.exists() else (tally.rows + lost + left_out, False)
        waiting = max(0, drawn - tally.rows - lost - left_out)
        unfinished[name] = Unfinished(waiting, late, lost - late, left_out, expected)
        tally.wait_for(unfinished[name].rows)
    return tallies, unfinished


def drawn_rows(path: Path) -> tuple[int, bool]:
    """Return how many prompts a source has, and whether the length of any answer is expected from upstream."""
    with pq.ParquetFile(path) as file:
        if "expected_tokens" not in file.schema_arrow.names:
            return file.metadata.num_rows, False
        at = file.schema.names.index("expected_tokens")
        groups = (file.metadata.row_group(group) for group in range(file.metadata.num_row_groups))
        found = [group.column(at).statistics for group in groups]
        return file.metadata.num_rows, any(
            stats is not None and stats.has_min_max and stats.max > 0 for stats in found
        )


def _rows_by_source(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the rows of each source in a failure or skip table, and those that ran out of time."""
    rows: dict[str, int] = {}
    late: dict[str, int] = {}
    if not path.exists():
        return rows, late
    for batch in pq.ParquetFile(path).iter_batches(batch_size=_BATCH_ROWS, columns=["source", "reason"]):
        grouped = pa.Table.from_batches([batch]).group_by(["source", "reason"]).aggregate([([], "count_all")])
        for group in grouped.to_pylist():
            source, reason, count = group["source"], group["reason"] or "", group["count_all"]
            rows[source] = rows.get(source, 0) + count
            if "timeout" in reason:
                late[source] = late.get(source, 0) + count
    return rows, late
