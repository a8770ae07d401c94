"""How generation ended, as numbers and as words, and what is left to do.

Goes in: the counts of every source, and a run's records. Comes out: `Generated`; the rows that an earlier, lower cap
cut, and the command that continues them.
"""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as pds

from eagle3_data.errors import INTERRUPTED
from eagle3_data.generation.records.writer import SourceCounts
from eagle3_data.lengths.views import wording
from eagle3_data.outcome import reasons
from eagle3_data.pipeline.opening import Run
from eagle3_data.pipeline.tables import show_table


@dataclass(frozen=True)
class Generated:
    """How generation ended: counts of every source as they stand on disk, earlier runs' included.

    `below_cap` are, by source, the rows cut at an earlier, lower cap than today's, and `go_on` the command for them.
    """

    folder: Path
    counts: Mapping[str, SourceCounts]
    seconds: float = 0.0
    tokens: int = 0
    interrupted: bool = False
    shard: tuple[int, int] | None = None
    warnings: tuple[str, ...] = ()
    below_cap: Mapping[str, int] = field(default_factory=dict)
    go_on: str = ""
    by_tokens: tuple[str, ...] = ()  # of sources with `tokens`: the target, and what was reached

    @property
    def failed(self) -> int:
        """Rows that failed; the next run tries them again."""
        return sum(counts.failed for counts in self.counts.values())

    @property
    def exit_status(self) -> int:
        """0 when every row has its answer, 1 when some failed, 130 when interrupted."""
        return INTERRUPTED if self.interrupted else int(self.failed > 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, ready for JSON."""
        return {
            "folder": str(self.folder),
            "sources": {name: asdict(counts) for name, counts in self.counts.items()},
            "seconds": round(self.seconds, 3),
            "completion_tokens_this_time": self.tokens,
            "interrupted": self.interrupted,
            "shard": list(self.shard) if self.shard else None,
            "warnings": list(self.warnings),
            "below_cap": dict(self.below_cap),
            "by_tokens": list(self.by_tokens),
        }

    def to_text(self) -> str:
        """Return the table of records, failed, skipped and truncated rows."""
        rows: list[list[str | int]] = [
            [name, c.records, c.failed, c.skipped, c.missing, c.truncated, c.prompt_tokens, c.completion_tokens]
            for name, c in self.counts.items()
        ]
        notes = []
        for name, c in self.counts.items():
            if c.dialogues:
                ends = ", ".join(f"{reason} {count:,}" for reason, count in c.ended.items())
                notes.append(
                    f"{name}: {c.complete:,} of {c.dialogues:,} dialogues complete, {c.records:,} turns answered of "
                    f"{c.turns_scripted:,} scripted" + (f"; ended early: {ends}" if ends else "")
                )
        notes += self.by_tokens
        if self.tokens:
            rate = self.tokens / max(self.seconds, 1e-9)
            notes.append(f"{self.tokens:,} completion tokens in {self.seconds:,.1f} s ({rate:,.0f} tokens/s)")
        if cost := loop_costs(self.counts):
            by_source = ", ".join(f"{name} {words}" for name, words in cost.items())
            notes.append(
                f"answers that repeat themselves until they are cut: {by_source}; --drop loop leaves them out"
            )
        if self.failed:
            notes.append(f"{self.failed:,} rows failed, see {self.folder / 'failures.parquet'}; run again to retry")
        if forged := sum(counts.forged for counts in self.counts.values()):
            notes.append(f"{forged:,} records have a text that spells a control token of the target")
        if below := sum(self.below_cap.values()):
            cut = "1 row was" if below == 1 else f"{below:,} rows were"
            by_source = ", ".join(f"{rows:,} of {name}" for name, rows in self.below_cap.items())
            notes.append(f"{cut} cut at a lower cap than today's ({by_source}); go on from there with: {self.go_on}")
        if self.interrupted:
            notes.append("interrupted: run the same command again to go on where it stopped")
        notes += [f"warning: {warning}" for warning in self.warnings]
        columns = ["source", "records", "failed", "skipped", "missing", "truncated", "prompt tokens", "output tokens"]
        return show_table("Records", columns, rows, *notes, f"records: {self.folder / 'records'}")


def loop_costs(counts: Mapping[str, SourceCounts]) -> dict[str, str]:
    """Return what looping rows cost each source, such as "3 with 3,072 of its 9,000 output tokens (34.1 %)"."""
    return {
        name: f"{found.looping:,} with {found.looping_tokens:,} of its {found.completion_tokens:,} output tokens "
        f"({wording.share(found.looping_tokens / found.completion_tokens)})"
        for name, found in counts.items()
        if found.looping
    }


def below_cap(run: Run, caps: Mapping[str, int], counts: Mapping[str, SourceCounts]) -> dict[str, int]:
    """Return how many records of each source were cut at a lower cap than `caps`; sources without any are absent."""
    found = {}
    for name, cap in caps.items():
        if counts[name].truncated:
            cut = pds.field("finish_reason").isin(reasons("cut_by_cap")) & (pds.field("max_new_tokens") < cap)
            cut &= pds.field("loop_tokens") == 0
            found[name] = pds.dataset(run.folder.records_path(name), format="parquet").count_rows(filter=cut)
    return {name: rows for name, rows in found.items() if rows}


def extend_command(run: Run, caps: Mapping[str, int]) -> str:
    """Return the command that takes every cut row to the cap of its source."""
    runs = run.folder.path.parent
    words = ["eagle3-data", "extend", str(run.recipe.file or run.recipe.name)]
    for name, cap in caps.items():
        words += ["--max-new-tokens", f"{name}={cap}" if len(caps) > 1 else str(cap)]
    return shlex.join(map(str, [*words, *([] if runs == Path("runs") else ["--runs", runs])]))
