"""What became of every upstream row of a source.

Goes in: counts of a draw. Comes out: a report whose numbers add up, for the manifest, the card and the terminal.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from eagle3_data.sources.description import ConfigInfo
from eagle3_data.sources.dialogue import REASONS, Reject
from eagle3_data.sources.script import answered

EXAMPLES_EACH: Final = 3
ORIGINS_SHOWN: Final = 50
_LABELS_HELD: Final = 1000
_LABELS_SHOWN: Final = 12
_SAME: Final = 0.05  # distinct prompts are stated as about so many


def differences(info: ConfigInfo, report: "SourceReport") -> list[str]:
    """Say where a whole split has other numbers than its source states; upstream may have changed since."""
    found = []
    if info.rows and report.read != info.rows:
        found.append(f"{report.read:,} rows were read where upstream had {info.rows:,}: it has changed since")
    counted = report.turns in ("first", "rollout") and not report.filter and not report.duplicates_elsewhere
    if info.distinct and counted and abs(report.prompts - info.distinct) > _SAME * info.distinct:
        found.append(f"{report.prompts:,} prompts are distinct where about {info.distinct:,} were expected")
    return found


@dataclass
class SourceReport:
    """`kept + sum(rejected) + duplicates == read`: every upstream row is in exactly one of them."""

    source: str  # the recipe's entry
    builder: str
    config: str
    turns: str
    upstream: str  # Hub id, or "" for local files
    revision: str  # commit, or "" for local files
    seed: int
    requested: int | None  # rows: of the recipe
    filter: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    attribution: dict[str, Any] = field(default_factory=dict)  # SourceInfo.attribution, for cards
    files: list[dict[str, Any]] = field(default_factory=list)  # path, revision, rows
    files_of: int = 0  # of how many the files were chosen (`files:`), 0 if all were read
    read: int = 0  # upstream rows
    kept: int = 0  # rows with at least one prompt that is new
    duplicates: int = 0  # rows all of whose prompts are known
    duplicates_elsewhere: int = 0  # of those, rows known only from the other sources that were compared
    rejected: dict[str, int] = field(default_factory=dict)
    prompts: int = 0  # distinct prompts of the kept rows
    drawn: int = 0  # prompts that were drawn; with turns: rollout, dialogues
    turns_scripted: int = 0  # with turns: rollout, the turns to be answered in the drawn dialogues
    cut_short: dict[str, int] = field(
        default_factory=dict
    )  # drawn dialogues that end before a damaged turn, by reason
    unclosed: int = 0  # drawn prompts whose history holds thinking without an answer
    licenses: dict[str, int] = field(default_factory=dict)  # of the drawn prompts
    origins: dict[str, int] = field(default_factory=dict)  # of the drawn prompts, the most frequent
    reject_examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    screened: dict[str, int] = field(
        default_factory=dict
    )  # drawn prompts that were refused, by the words of the reason
    benchmarks: list[dict[str, Any]] = field(default_factory=list)  # searched for: name, revision, columns, rows
    differences: list[str] = field(
        default_factory=list
    )  # where the counts are not those that the source's INFO states

    @property
    def short(self) -> bool:
        """Whether fewer prompts were drawn than requested."""
        return self.requested is not None and self.drawn < self.requested

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """Return a few lines for the terminal."""
        lines = [
            f"{self.source}: {self.read:,} rows read, {self.kept:,} kept, {self.duplicates:,} duplicates, "
            f"{sum(self.rejected.values()):,} rejected; {self.prompts:,} prompts, {self.drawn:,} drawn"
        ]
        if self.short:
            lines.append(f"  fewer than the {self.requested:,} asked for: that is all there is")
        if self.files_of:
            lines.append(f"  a cluster sample, out of {len(self.files)} of {self.files_of} files")
        lines += [f"  {count:>9,}  left out when drawn: {words}" for words, count in self.screened.items()]
        lines += [f"  {difference}" for difference in self.differences]
        if self.turns_scripted:
            lines.append(f"  {self.turns_scripted:,} turns scripted in {self.drawn:,} dialogues")
        if self.unclosed:
            lines.append(f"  {self.unclosed:>9,}  prompts with thinking without an answer in their history")
        for reason, count in sorted(self.cut_short.items()):
            lines.append(f"  {count:>9,}  dialogues end before a turn with {reason}: {REASONS.get(reason, '')}")
        for reason, count in sorted(self.rejected.items(), key=lambda item: (-item[1], item[0])):
            lines.append(f"  {count:>9,}  {reason}: {REASONS.get(reason, '')}")
        return "\n".join(lines)


def _unclosed(messages: pa.ListArray) -> int:
    """Count the prompts in which an assistant message holds thinking, but neither text nor calls."""
    flat = messages.flatten()
    role, content, reasoning, calls = (
        flat.field(name) for name in ("role", "content", "reasoning_content", "tool_calls")
    )
    without_calls = pc.equal(pc.fill_null(pc.list_value_length(calls), 0), 0)
    thinking = pc.greater(pc.fill_null(pc.binary_length(reasoning), 0), 0)
    found = pc.and_(pc.and_(pc.equal(role, "assistant"), thinking), pc.and_(pc.equal(content, ""), without_calls))
    rows = pc.list_parent_indices(messages).filter(pc.fill_null(found, False))
    return len(pc.unique(rows))


@dataclass
class Tally:
    """Counts of one part of the work, to be added up."""

    rejected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    origins: Counter[str] = field(default_factory=Counter)
    licenses: Counter[str] = field(default_factory=Counter)
    drawn: int = 0
    turns_scripted: int = 0
    unclosed: int = 0
    cut_short: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)  # what the filter left out, by label

    def reject(self, file: str, row: int, reject: Reject) -> None:
        """Count a rejected row and remember the first few of each reason."""
        self.rejected[reject.reason] += 1
        if reject.reason == "filter" and (reject.detail in self.filtered or len(self.filtered) < _LABELS_HELD):
            self.filtered[reject.detail] += 1
        examples = self.examples.setdefault(reject.reason, [])
        if len(examples) < EXAMPLES_EACH:
            examples.append({"file": file, "row": row, "detail": reject.detail})

    def draw(self, table: pa.Table, *, scripts: bool) -> None:
        """Count drawn prompts, or scripts of dialogues, by their labels."""
        self.drawn += table.num_rows
        for name, counts in (("origin", self.origins), ("license", self.licenses)):
            for entry in pc.value_counts(table[name]).to_pylist():
                counts[entry["values"]] += entry["counts"]
        self.unclosed += _unclosed(table["messages"].combine_chunks())
        if scripts:
            columns = zip(table["messages"].to_pylist(), table["source_turn"].to_pylist(), strict=True)
            self.turns_scripted += sum(len(answered(messages, turn)) for messages, turn in columns)
            self.cut_short.update(damage for damage in table["damage"].to_pylist() if damage)

    def labels(self) -> str:
        """Return the labels that the filter left out, the most frequent first, for an error."""
        shown = ", ".join(f"{label} ({rows:,} rows)" for label, rows in self.filtered.most_common(_LABELS_SHOWN))
        return f"{shown}, and others" if len(self.filtered) > _LABELS_SHOWN else shown

    def add(self, other: "Tally") -> None:
        """Add a later part's counts of rejected rows."""
        self.rejected += other.rejected
        self.filtered += other.filtered
        for reason, examples in other.examples.items():
            mine = self.examples.setdefault(reason, [])
            mine.extend(examples[: EXAMPLES_EACH - len(mine)])
