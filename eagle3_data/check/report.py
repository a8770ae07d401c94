"""What `check` found: counts by kind with examples, for people and for machines."""

from dataclasses import dataclass, field
from typing import Any

from eagle3_data.check.rules import KINDS


@dataclass
class Example:
    """One row that breaks a rule; `row` is its 0-based place in the file, −1 for the file or data set itself."""

    file: str
    row: int
    sample_id: str
    detail: str


@dataclass
class Violation:
    """All rows that break one rule."""

    kind: str
    count: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass
class CheckReport:
    """The result of a check.

    Attributes:
        dataset: what was checked.
        files, rows: how much of it there is.
        violations: by kind, in the order of KINDS.
        left_out: checks that could not be made, and why.
    """

    dataset: str
    files: int = 0
    rows: int = 0
    violations: dict[str, Violation] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    most_examples: int = 5

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.violations

    def add(self, kind: str, count: int, examples: list[Example]) -> None:
        """Count rows that break a rule; the first examples in the order of files and rows are kept."""
        found = self.violations.setdefault(kind, Violation(kind))
        found.count += count
        found.examples = (found.examples + examples)[: self.most_examples]

    def ordered(self) -> list[Violation]:
        """Return the violations in the order of the rules."""
        return sorted(self.violations.values(), key=lambda violation: list(KINDS).index(violation.kind))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "dataset": self.dataset,
            "ok": self.ok,
            "files": self.files,
            "rows": self.rows,
            "violations": {
                violation.kind: {
                    "count": violation.count,
                    "meaning": KINDS[violation.kind],
                    "examples": [vars(example) for example in violation.examples],
                }
                for violation in self.ordered()
            },
            "left_out": list(self.left_out),
        }

    def to_text(self) -> str:
        """Return the report as a table for the terminal."""
        lines = [f"{self.dataset}: {self.rows:,} records in {self.files:,} files"]
        if self.ok:
            lines.append("no violations")
        for violation in self.ordered():
            lines.append(f"{violation.count:>9,}  {violation.kind}: {KINDS[violation.kind]}")
            for example in violation.examples:
                place = example.file + (f" row {example.row}" if example.row >= 0 else "")
                name = f" ({example.sample_id})" if example.sample_id else ""
                lines.append(f"{'':11}{place}{name}: {example.detail}")
        lines += [f"not checked: {reason}" for reason in self.left_out]
        return "\n".join(lines)
