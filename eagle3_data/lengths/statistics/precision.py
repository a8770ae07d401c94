"""What a number of rows is worth, before any is generated.

Goes in: rows and a truncation target. Comes out: what shares, quantiles and caps such a sample can show, as numbers
and in words, for `plan` and `pilot`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_data.lengths.statistics.distribution import QUANTILES
from eagle3_data.lengths.statistics.intervals import (
    CONFIDENCE,
    order_statistics,
    rounded,
    rows_for_cap,
    rows_for_quantile,
    rows_for_share,
    wilson,
)
from eagle3_data.lengths.summary import quantile_name
from eagle3_data.lengths.views import wording


@dataclass(frozen=True)
class Worth:
    """What a sample can show.

    Attributes:
        rows: its size.
        share_half_width: largest ± of a share of the rows (that of a share of one half).
        share_at_target: limits of a share that is observed to be the truncation target.
        bounded: names of the quantiles that get both limits.
        rows_for_target: fewest rows that can show a cap for the target, with no row beyond it.
        rows_for_good_target: rows with which that cap is not far too high (five rows may lie beyond it).
        rows_for_p99: fewest rows that bound p99 on both sides.
        rows_for_five_points: rows that give any share to ± 5 percentage points.
    """

    rows: int
    truncation_target: float
    share_half_width: float
    share_at_target: tuple[float, float]
    bounded: tuple[str, ...]
    rows_for_target: int
    rows_for_good_target: int
    rows_for_p99: int
    rows_for_five_points: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            **self.__dict__,
            "share_half_width": rounded(self.share_half_width),
            "share_at_target": [rounded(limit) for limit in self.share_at_target],
            "bounded": list(self.bounded),
        }

    def sentences(self) -> list[str]:
        """Return it in plain words."""
        target, half = wording.percent(self.truncation_target), f"{self.share_half_width * 100:.1f}"
        words = [
            f"{wording.count(self.rows, 'row')} can show any share of rows to ± {half} percentage points at worst "
            f"({wording.tokens(self.rows_for_five_points)} for ± 5), and bound "
            f"{_range(self.bounded)} ({wording.tokens(self.rows_for_p99)} rows for p99)."
        ]
        if self.rows < self.rows_for_target:
            words.append(
                f"They cannot show that a cap cuts at most {target}: it takes {wording.tokens(self.rows_for_target)} "
                f"rows, and {wording.tokens(self.rows_for_good_target)} for a cap that is not far too high."
            )
        elif self.rows < self.rows_for_good_target:
            words.append(
                f"They can show a cap for a target of {target}, though one that may be far too high; "
                f"{wording.tokens(self.rows_for_good_target)} rows give a closer one."
            )
        else:
            words.append(f"They can show a cap for a target of {target}.")
        return words


def _range(names: Sequence[str]) -> str:
    if not names:
        return "no quantile"
    return f"the quantiles {names[0]} to {names[-1]}" if len(names) > 1 else f"the quantile {names[0]}"


def worth_of_rows(rows: int, truncation_target: float = 0.01, confidence: float = CONFIDENCE) -> Worth:
    """Return what a random sample of `rows` rows of a source can show."""
    half_low, half_high = wilson(0.5, rows, confidence)
    low, high = wilson(truncation_target, rows, confidence)
    return Worth(
        rows=rows,
        truncation_target=truncation_target,
        share_half_width=float(half_high - half_low) / 2,
        share_at_target=(float(low), float(high)),
        bounded=tuple(quantile_name(p) for p in QUANTILES if None not in order_statistics(p, rows, confidence)),
        rows_for_target=rows_for_cap(truncation_target, confidence),
        rows_for_good_target=rows_for_cap(truncation_target, confidence, allowed=5),
        rows_for_p99=rows_for_quantile(0.99, confidence),
        rows_for_five_points=rows_for_share(0.5, 0.05, confidence),
    )
