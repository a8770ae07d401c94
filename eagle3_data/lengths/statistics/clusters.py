"""Rows that are not independent: the turns of one dialogue, several answers to one prompt.

Goes in: for each row its dialogue, its length and whether it ended. Comes out: a `DesignEffect`, by which variances
grow and rows shrink to the effective number of them.

The variance of the curve is linearised (each row's influence on Kaplan and Meier's estimate, summed by dialogue:
Williams, Biometrics 1995; Binder, Biometrika 1992) and set against that of the same rows taken as independent; limits
use Student's t with one degree of freedom less than there are dialogues.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from eagle3_data.lengths.statistics.distribution import Flags, Floats, Ints, LengthCounts

_POINTS: Final = 24
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class DesignEffect:
    """By how much larger variances are than those of as many independent rows.

    Attributes:
        dialogues: how many there are; 0 where rows are independent.
        rows: in these dialogues.
        lengths, effects: int64 and float64 (k,): the factor of the variance of P(length > x) at each length, Student's
            t instead of the normal quantile included.
        mean, cut: the same factor for the mean recorded length and for the share of rows that were cut.
        icc: intraclass correlation of the log length within a dialogue; None where it cannot be estimated.
    """

    dialogues: int
    rows: int
    lengths: Ints
    effects: Floats
    mean: float
    cut: float
    icc: float | None

    def at(self, lengths: ArrayLike) -> Floats:
        """Return the factor at each length, float64 (k,)."""
        x = np.asarray(lengths, float)
        return np.interp(x, self.lengths, self.effects) if self.dialogues else np.ones_like(x)

    @property
    def typical(self) -> float:
        """The factor at the median length."""
        return float(np.median(self.effects)) if self.dialogues else 1.0

    def to_dict(self) -> dict[str, Any] | None:
        """Return it as JSON values; None where rows are independent."""
        if not self.dialogues:
            return None
        return {
            "dialogues": self.dialogues,
            "rows": self.rows,
            "deff": float(f"{self.typical:.6g}"),
            "effective_rows": round(self.rows / self.typical),
            "icc_log_length": None if self.icc is None else float(f"{self.icc:.6g}"),
        }


INDEPENDENT: Final = DesignEffect(0, 0, np.zeros(0, np.int64), np.zeros(0), 1.0, 1.0, None)


class ClusterRows:
    """Collects 13 bytes a row: dialogue, completion length, and whether it ended, was cut or is stuck."""

    def __init__(self) -> None:
        self._parts: list[tuple[Keys, NDArray[np.int32], NDArray[np.int8]]] = []

    def add(self, dialogues: Keys, lengths: Ints, cut: Flags, stuck: Flags) -> None:
        """Add a batch: dialogues as uint64 (n,), lengths int64 (n,), flags (n,)."""
        kind = np.where(stuck, 2, np.where(cut, 1, 0)).astype(np.int8)
        self._parts.append((dialogues, lengths.astype(np.int32), kind))

    def effect(self, counts: LengthCounts, confidence: float = 0.95) -> DesignEffect:
        """Return the design effect of the rows collected, `INDEPENDENT` where every row stands alone.

        Args:
            counts: the table of the same rows.
            confidence: of the limits that the effect is for.
        """
        if not self._parts:
            return INDEPENDENT
        keys, lengths, kind = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        ending = kind < 2
        return design_effect(counts, keys[ending], lengths[ending], kind[ending] == 1, confidence)


def design_effect(
    counts: LengthCounts, dialogues: Keys, lengths: ArrayLike, cut: ArrayLike, confidence: float = 0.95
) -> DesignEffect:
    """Return the design effect of rows that may end; see `ClusterRows.effect`.

    Args:
        counts: their table.
        dialogues: (n,), which rows belong together.
        lengths: integers (n,), recorded.
        cut: booleans (n,), True where the recorded length is a lower bound.
        confidence: two-sided.
    """
    x, censored = np.asarray(lengths, np.int64), np.asarray(cut, bool)
    _, cluster = np.unique(dialogues, return_inverse=True)
    cluster = cluster.reshape(-1)
    rows, clusters = len(x), int(cluster.max()) + 1 if len(x) else 0
    if clusters == rows or clusters < 2:
        return INDEPENDENT
    student = float(stdtrit(clusters - 1, 0.5 + confidence / 2)) / float(ndtri(0.5 + confidence / 2))

    def effect(influence: Floats) -> float:
        sums = np.bincount(cluster, influence, clusters)
        alone = float((influence**2).sum()) * rows / (rows - 1)
        if alone <= 0:
            return student**2
        return max(1.0, float((sums**2).sum()) * clusters / (clusters - 1) / alone) * student**2

    table = counts.ending()
    recorded = table.recorded
    at_risk = np.cumsum(recorded[::-1])[::-1].astype(float)
    at_risk[at_risk == 0] = 1.0
    summed = np.cumsum(table.ended / at_risk**2)  # of d / Y^2, the compensator of one row's counting process
    index = np.searchsorted(table.values, x)
    jump = np.where(censored, 0.0, 1 / at_risk[index])
    points = _points(table)
    effects = []
    for point in points:
        until = int(np.searchsorted(table.values, point, side="right")) - 1
        within = index <= until
        effects.append(effect(np.where(within, jump, 0.0) - summed[np.minimum(index, until)]))
    return DesignEffect(
        dialogues=clusters,
        rows=rows,
        lengths=points,
        effects=np.array(effects),
        mean=effect(x - x.mean()),
        cut=effect(censored - censored.mean()),
        icc=_icc(np.log(np.maximum(x, 1)), cluster, clusters),
    )


def _points(table: LengthCounts) -> Ints:
    """Return lengths spread over the rows that ended, or one length where none did."""
    ended = np.cumsum(table.ended)
    if not ended[-1]:
        return table.values[-1:]
    shares = np.concatenate((np.linspace(0.02, 0.98, _POINTS), [0.99, 0.995]))
    return np.unique(table.values[np.searchsorted(ended, np.ceil(shares * ended[-1]))])


def _icc(values: Floats, cluster: Ints, clusters: int) -> float | None:
    """Intraclass correlation by the analysis of variance (Searle, Casella, McCulloch, Variance Components, 3.6)."""
    rows = len(values)
    sizes = np.bincount(cluster, minlength=clusters).astype(float)
    means = np.bincount(cluster, values, clusters) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (clusters - 1)
    within = float(((values - means[cluster]) ** 2).sum()) / max(rows - clusters, 1)
    size = (rows - float((sizes**2).sum()) / rows) / (clusters - 1)
    total = between + (size - 1) * within
    return max(0.0, (between - within) / total) if total > 0 else None


def keys_of(dialogues: Sequence[str]) -> Keys:
    """Return numbers (n,) that are equal for equal names."""
    from pandas.util import hash_array

    return np.asarray(hash_array(np.asarray(dialogues, dtype=object), categorize=True), np.uint64)
