"""What became of every upstream row of a source.

Goes in: counts of a draw. Comes out: a report whose numbers add up, for the manifest, the card and the terminal.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from eagle3_data.sources.dialogue import REASONS, Reject

EXAMPLES_EACH: Final = 3
ORIGINS_SHOWN: Final = 50
LABELS_SHOWN: Final = 20


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
    licenses: dict[str, int] = field(default_factory=dict)  # of the drawn prompts
    origins: dict[str, int] = field(default_factory=dict)  # of the drawn prompts, the most frequent
    reject_examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

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
        if self.turns_scripted:
            lines.append(f"  {self.turns_scripted:,} turns scripted in {self.drawn:,} dialogues")
        for reason, count in sorted(self.cut_short.items()):
            lines.append(f"  {count:>9,}  dialogues end before a turn with {reason}: {REASONS.get(reason, '')}")
        for reason, count in sorted(self.rejected.items(), key=lambda item: (-item[1], item[0])):
            lines.append(f"  {count:>9,}  {reason}: {REASONS.get(reason, '')}")
        return "\n".join(lines)


@dataclass
class Tally:
    """Counts of one part of the work, to be added up."""

    rejected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    origins: Counter[str] = field(default_factory=Counter)
    licenses: Counter[str] = field(default_factory=Counter)
    turns_scripted: int = 0
    cut_short: Counter[str] = field(default_factory=Counter)

    def reject(self, file: str, row: int, reject: Reject) -> None:
        """Count a rejected row and remember the first few of each reason."""
        self.rejected[reject.reason] += 1
        self._remember(reject.reason, {"file": file, "row": row, "detail": reject.detail})

    def _remember(self, reason: str, example: dict[str, Any]) -> None:
        """Keep an example; of a filter one for each label, so that its user sees which labels there are."""
        examples = self.examples.setdefault(reason, [])
        if reason != "filter":
            if len(examples) < EXAMPLES_EACH:
                examples.append(example)
        elif len(examples) < LABELS_SHOWN and all(example["detail"] != known["detail"] for known in examples):
            examples.append(example)

    def script(self, turns: int, damage: str) -> None:
        """Count a drawn dialogue, its turns to be answered, and why it ends early ("" if it does not)."""
        self.turns_scripted += turns
        if damage:
            self.cut_short[damage] += 1

    def add(self, other: "Tally") -> None:
        """Add a later part's counts."""
        self.rejected += other.rejected
        self.origins += other.origins
        self.licenses += other.licenses
        self.turns_scripted += other.turns_scripted
        self.cut_short += other.cut_short
        for reason, examples in other.examples.items():
            for example in examples:
                self._remember(reason, example)
