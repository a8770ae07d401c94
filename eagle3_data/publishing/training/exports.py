"""Write training rows for SpecForge and speculators: JSON lines of `input_ids` (prompt + output) and `loss_mask`.

Goes in: records from anywhere. Comes out: one file that both trainers pass through without rendering or tokenising
(SpecForge: `data.prompts_path`, module specforge.data.prompt_builder; speculators: `prepare-data --data`), and a
report that counts every row.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import orjson
import pyarrow as pa

from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing.reading import Data, open_records
from eagle3_data.publishing.training.rows import Overflow, check_options, fits, join
from eagle3_data.run_folder import atomic_file

Trainer = Literal["specforge", "speculators"]

_COLUMNS: Final = ("sample_id", "source", "input_ids", "output_ids", "prompt_tokens", "completion_tokens")
_NEXT: Final = {
    "specforge": "next: in SpecForge, set data.prompts_path to {path} (its longest row has {longest} tokens)",
    "speculators": "next: speculators prepare-data --model MODEL --data {path} --output DIR --seq-length {longest}",
}


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        path, trainer: where, and for whom.
        read, written: rows; `read` is `written` + `dropped`.
        dropped: rows left out because of max_length or min_loss_tokens.
        cut: rows written whose end was cut to max_length.
        tokens, loss_tokens: ids written, and those of them under the loss.
        longest: tokens of the longest row written.
        bytes: size of the file.
    """

    path: str
    trainer: str
    read: int
    written: int
    dropped: int
    cut: int
    tokens: int
    loss_tokens: int
    longest: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """Return a few lines for the terminal."""
        lines = [
            f"{self.path}: {self.written:,} of {self.read:,} rows, {self.tokens:,} tokens ({self.loss_tokens:,} under "
            f"the loss), longest row {self.longest:,} tokens, {self.bytes / 1e6:,.1f} MB"
        ]
        if self.cut:
            lines.append(f"  {self.cut:,} rows were cut at their end")
        if self.dropped:
            lines.append(f"  {self.dropped:,} rows were left out: too long, or no output within the length")
        lines.append("  " + _NEXT[self.trainer].format(path=self.path, longest=self.longest))
        return "\n".join(lines)


def export(
    data: Data,
    to: Trainer,
    output: Path | str,
    *,
    max_length: int | None = None,
    overflow: Overflow = "truncate",
    min_loss_tokens: int = 1,
    split: str | None = "train",
    sources: Sequence[str] | None = None,
) -> ExportReport:
    """Write training rows as JSON lines, whole or not at all.

    Args:
        data: a data set, a run folder, Parquet files, or `org/name@v1.0.0`.
        to: "specforge" or "speculators". Both read the same rows; the report says what to type next.
        output: the file, ending in .jsonl.
        max_length: longest row in tokens; None leaves cutting to the trainer.
        overflow: "truncate" or "drop" longer rows.
        min_loss_tokens: rows with less output within max_length are left out.
        split: "train", "validation", or None for both.
        sources: only these sources.

    Raises:
        UsageError: an option or `data` is wrong, or the file name does not end in .jsonl.
        DataError: a record's lengths do not agree with its ids, or no row is left.
        DiskFull, MachineError: the file cannot be written.
    """
    path = Path(output)
    if to not in get_args(Trainer):
        raise UsageError(f"--to {to}: exports are made for {' and '.join(get_args(Trainer))}")
    if path.suffix != ".jsonl":
        raise UsageError(f"{path}: name the file something.jsonl; {to} tells the format by that ending")
    check_options(max_length, overflow, min_loss_tokens)
    records = open_records(data, split=split, sources=sources)
    count = dict.fromkeys(("read", "written", "cut", "tokens", "loss_tokens", "longest"), 0)
    with atomic_file(path) as file:
        for table in records.tables(_COLUMNS):
            file.write(_lines(table, records.name, max_length, overflow, min_loss_tokens, count))
        if not count["written"]:
            raise DataError(
                f"{records.name}: none of its {count['read']:,} rows has output within {max_length} tokens"
            )
        size = file.tell()
    return ExportReport(str(path), to, dropped=count["read"] - count["written"], bytes=size, **count)


def _lines(
    table: pa.Table, name: str, max_length: int | None, overflow: str, min_loss_tokens: int, count: dict[str, int]
) -> bytes:
    prompts, outputs = (table[column].combine_chunks() for column in ("input_ids", "output_ids"))
    prompt_tokens = np.asarray(pa.compute.list_value_length(prompts), np.int64)
    completion_tokens = np.asarray(pa.compute.list_value_length(outputs), np.int64)
    for column, found in (("prompt_tokens", prompt_tokens), ("completion_tokens", completion_tokens)):
        wrong = np.flatnonzero(np.asarray(table[column]) != found)
        if wrong.size:
            sample_id = table["sample_id"][int(wrong[0])].as_py()
            raise DataError(
                f"{name}: {sample_id}: {column} does not agree with its ids; `eagle3-data check` says more"
            )
    kept = np.flatnonzero(fits(prompt_tokens, completion_tokens, max_length, overflow, min_loss_tokens))
    whole = prompt_tokens + completion_tokens
    count["read"] += table.num_rows
    count["written"] += len(kept)
    parts = []
    names, sources = table["sample_id"].to_pylist(), table["source"].to_pylist()
    for row in kept.tolist():
        ids, mask = join(prompts[row].values.to_numpy(), outputs[row].values.to_numpy(), max_length)
        line = {"id": names[row], "source": sources[row], "input_ids": ids, "loss_mask": mask}
        parts.append(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
        count["cut"] += len(ids) < whole[row]
        count["tokens"] += len(ids)
        count["loss_tokens"] += int(mask.sum())
        count["longest"] = max(count["longest"], len(ids))
    return b"".join(parts)
