"""`export`: training rows in files, for SpecForge, speculators, or anything that reads `input_ids` and `loss_mask`.

Goes in: records from anywhere. Comes out: files that the trainers pass through without rendering or tokenising
(SpecForge: `data.prompts_path`, module specforge.data.prompt_builder; speculators: `prepare-data --data`), and a
report that says, source by source, what became of every record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing.records import Data, open_records, read_ahead
from eagle3_data.publishing.training.rows import (
    RECORD_COLUMNS,
    TRAINING_SCHEMA,
    Overflow,
    Per,
    RowOptions,
    SourceTally,
    training_tables,
)
from eagle3_data.publishing.training.shuffling import shuffled
from eagle3_data.publishing.training.trainers import Trainer, check_trainer, is_prepared, next_step
from eagle3_data.publishing.training.writers import ENDINGS, Format, write_rows


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        path, files: what was asked for, and the files written.
        trainer, format: for whom, and how.
        sources: what became of the records of each source.
        left_out: records of other splits, which were not asked for, by split.
        bytes: size of the files.
    """

    path: str
    files: Sequence[str]
    trainer: str
    format: str
    sources: Mapping[str, SourceTally]
    left_out: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0

    @property
    def whole(self) -> SourceTally:
        """All sources together."""
        return sum(self.sources.values(), SourceTally())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "whole": asdict(self.whole)}

    def to_text(self) -> str:
        """Return the report for a terminal."""
        whole = self.whole
        place = (
            self.path if len(self.files) == 1 or self.format == "arrow" else f"{self.path} ({len(self.files)} shards)"
        )
        lines = [
            f"{place}: {_count(whole.written, 'row')} of {_count(whole.read, 'record')}, {whole.tokens:,} tokens "
            f"({whole.loss_tokens:,} under the loss), longest row {whole.longest:,} tokens, {self.bytes / 1e6:,.1f} MB"
        ]
        width = max(map(len, self.sources))
        lines += [f"  {name:<{width}}  {_of_source(tally)}" for name, tally in self.sources.items()]
        for split, rows in self.left_out.items():
            lines.append(f"  {_count(rows, 'record')} of the {split} split left out (--split {split}, or --split all)")
        lines.append(f"  {next_step(self.trainer, self.format, self.path, self.files, whole.longest)}")
        return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _of_source(tally: SourceTally) -> str:
    parts = [f"{_count(tally.written, 'row')} of {_count(tally.read, 'record')}, {tally.loss_tokens:,} loss tokens"]
    if tally.joined:
        parts.append(f"{_count(tally.joined, 'turn')} joined to earlier ones, which saved {tally.saved:,} tokens")
    if tally.cut:
        lost = f", {tally.ends_lost:,} of them lost their end token" if tally.ends_lost else ""
        parts.append(f"{tally.cut:,} cut to the length ({tally.cut / max(1, tally.written):.1%}{lost})")
    parts += [f"{rows:,} left out: {reason}" for reason, rows in tally.dropped.items()]
    return "; ".join(parts)


def export(
    data: Data,
    to: Trainer,
    output: Path | str,
    *,
    max_length: int | None = None,
    overflow: Overflow = "truncate",
    min_loss_tokens: int = 1,
    per: Per = "turn",
    drop: Sequence[str] = (),
    split: str | None = "train",
    sources: Sequence[str] | None = None,
    mix: Mapping[str, float] | None = None,
    shuffle: int | None = None,
    format: Format | None = None,
    shards: int = 1,
) -> ExportReport:
    """Write training rows, whole or not at all.

    Args:
        data: a data set, a run folder, Parquet files, or `org/name@v1.0.0`.
        to: "specforge" or "speculators", which read the same rows, or "plain"; the report says what to type next.
        output: the file, ending in .jsonl or .parquet; or a folder for `datasets.load_from_disk`, which for
            "speculators" is what its training reads.
        max_length: longest row in tokens; None leaves cutting to the trainer.
        overflow: "truncate" or "drop" longer rows.
        min_loss_tokens: rows with less output within max_length are left out.
        per: "turn", or "dialogue" to join turns whose ids continue one another.
        drop: records to leave out, as in `to_training`.
        split: "train", "validation", or None for both.
        sources: only these sources.
        mix: how often the rows of a source are written: 0.5 for half of them, 2 for twice.
        shuffle: seed of a random order; None keeps the order of the records, source by source, except in a folder
            for "speculators", whose training takes the last rows for validation: there it is 0.
        format: "jsonl", "parquet" or "arrow"; told by the ending of `output` when None.
        shards: number of files.

    Raises:
        UsageError: an option or `data` is wrong.
        DataError: a record's lengths do not agree with its ids, or no row is left.
        DiskFull, MachineError: the files cannot be written.
    """
    path = Path(output)
    kind = _format_of(to, path, format)
    if shards < 1:
        raise UsageError(f"shards: {shards}; give 1 or more")
    check_trainer(to, path, kind, shards)
    prepared = is_prepared(to, kind)
    if prepared and shuffle is None:
        shuffle = 0
    options = RowOptions(max_length, overflow, min_loss_tokens, per, tuple(drop), dict(mix or {}))
    records = open_records(data, split=split, sources=sources)
    tallies: dict[str, SourceTally] = {}
    rows = training_tables(read_ahead(records.tables(RECORD_COLUMNS)), options, tallies, records.name)
    if shuffle is not None:
        rows = shuffled(rows, shuffle, path.parent, TRAINING_SCHEMA)

    def checked() -> Any:
        yield from rows
        # raised before the files appear, so nothing is left behind
        if unknown := [name for name in options.mix if name not in tallies]:
            raise UsageError(f"mix: no source {unknown[0]!r}; there are {', '.join(tallies) or 'none'}")
        if not sum(tally.written for tally in tallies.values()):
            read = sum(tally.read for tally in tallies.values())
            within = f"within {max_length} tokens" if max_length else "left by drop and mix"
            raise DataError(f"{records.name}: none of its {read:,} records gives a row with output {within}")

    files = write_rows(checked(), path, kind, shards, prepared=prepared)
    size = sum(file.stat().st_size for file in files)
    return ExportReport(str(path), [str(file) for file in files], to, kind, tallies, records.left_out, size)


def _format_of(to: str, path: Path, asked: str | None) -> Format:
    if to not in get_args(Trainer):
        raise UsageError(f"--to {to}: exports are made for {', '.join(get_args(Trainer))}")
    kind: Format | None = next((kind for kind in get_args(Format) if ENDINGS[kind] == path.suffix), None)
    if kind is None or (asked is not None and asked != kind):
        wanted = ENDINGS.get(asked or "")
        if asked is not None and wanted is None:
            raise UsageError(f"format: {asked!r} is none of {', '.join(ENDINGS)}")
        how = {".jsonl": "ending in .jsonl", ".parquet": "ending in .parquet", "": "as a folder, without an ending"}
        raise UsageError(f"{path}: name the output {how[wanted] if wanted is not None else ' or '.join(how.values())}")
    return kind
