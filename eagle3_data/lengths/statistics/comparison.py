"""What changed between two versions or two sources, and whether it is more than noise.

Goes in: two length reports, or two tables of lengths. Comes out: distances between survival curves with the distance
that chance alone would make, and the figures of both side by side.

Both sides are looked at only as far as the smaller of their largest caps, since beyond it one of them is unknown. The
noise is the distance between the two sides when all rows are dealt to them at random (a permutation test). Where rows
were cut below that length, the sides may have had different caps and cannot be exchanged: each is then drawn anew from
itself, and the noise is how far the difference moves (a bootstrap). Dependent rows widen the noise by their design
effects, and p-values are corrected for the number of sources (Holm 1979). The seed is fixed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from eagle3_data.errors import UsageError
from eagle3_data.lengths.reading import MEASURES, WHOLE
from eagle3_data.lengths.report import LengthReport
from eagle3_data.lengths.statistics.censoring import SourceCurve
from eagle3_data.lengths.statistics.distribution import Floats, Ints, LengthCounts, merge
from eagle3_data.lengths.statistics.intervals import rounded
from eagle3_data.lengths.views import wording
from eagle3_data.lengths.views.tables import MEASURE_TITLES, Table

REPETITIONS: Final = 200
NOTE: Final = (
    "KS is the largest difference of the shares of rows under any length; moved is how many tokens rows would have to "
    "move in the mean (Wasserstein). In brackets what chance alone stays below in 95 of 100 comparisons."
)
_MOST_DEALT: Final = 10**9  # numpy's limit


@dataclass(frozen=True)
class Distance:
    """How far two distributions of lengths lie apart.

    Attributes:
        ks: Kolmogorov-Smirnov distance, the largest difference of the shares under any length.
        wasserstein: mean distance in tokens that rows would have to move, up to `until`.
        ks_noise, wasserstein_noise: 95th percentile of the same when rows are dealt to both sides at random.
        p_value: share of such deals that lie at least as far apart by `ks`, corrected for the number of sources.
        until: tokens; lengths beyond are not compared. None where both sides are known to their end.
    """

    ks: float
    wasserstein: float
    ks_noise: float
    wasserstein_noise: float
    p_value: float
    until: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the distance as JSON values."""
        return {
            "ks": rounded(self.ks),
            "ks_noise": rounded(self.ks_noise),
            "wasserstein_tokens": rounded(self.wasserstein),
            "wasserstein_noise_tokens": rounded(self.wasserstein_noise),
            "p_value": rounded(self.p_value),
            "until": self.until,
            "differs": bool(self.p_value < 0.05),
        }


def distance(
    first: LengthCounts,
    second: LengthCounts,
    *,
    designs: tuple[float, float] = (1.0, 1.0),
    repetitions: int = REPETITIONS,
) -> Distance | None:
    """Return the distance between two populations of lengths.

    Args:
        first, second: their tables; rows that never end are left out.
        designs: their design effects.
        repetitions: of the noise.

    Returns:
        None where one has no rows, or rows whose censoring depends on their length (answers behind a cap): their
        recorded lengths differ with the caps alone.
    """
    first, second = first.ending(), second.ending()
    if not first.rows or not second.rows or first.loose.any() or second.loose.any():
        return None
    ends = [end for counts in (first, second) if (end := SourceCurve(counts).known_until()) is not None]
    until = min(ends) if ends else None
    pair = [counts if until is None else counts.cut_at(until) for counts in (first, second)]
    values, ended_1, cut_1, ended_2, cut_2 = merge(
        np.concatenate([counts.values for counts in pair]),
        *(_padded(pair, side, column) for side in (0, 1) for column in ("ended", "cut")),
    )
    ks, wasserstein = _distances(values, ended_1[None], cut_1[None], ended_2[None], cut_2[None])
    random = np.random.default_rng(0)
    sides = [np.concatenate((ended_1, cut_1)), np.concatenate((ended_2, cut_2))]
    pooled = sides[0] + sides[1]
    exchangeable = not (cut_1 + cut_2)[values < (until if until is not None else np.inf)].any()
    ks_noise, wasserstein_noise = np.empty(repetitions), np.empty(repetitions)
    # A few repetitions at a time: a table of lengths may have 100,000 rows.
    step = max(1, 2_000_000 // len(pooled))
    half = len(values)
    apart = _survival(ended_1[None], cut_1[None]) - _survival(ended_2[None], cut_2[None])
    for start in range(0, repetitions, step):
        size = min(step, repetitions - start)
        if exchangeable:
            one = _deal(random, pooled, pair[0].rows, size)
            two, centre = pooled - one, np.zeros(half)
        else:
            one, two = (random.multinomial(side.sum(), side / side.sum(), size=size) for side in sides)
            centre = apart[0]
        found = _distances(values, one[:, :half], one[:, half:], two[:, :half], two[:, half:], centre)
        ks_noise[start : start + size], wasserstein_noise[start : start + size] = found
    rows = [counts.rows for counts in pair]
    widened = sum(design / n for design, n in zip(designs, rows, strict=True)) / sum(1 / n for n in rows)
    ks_noise, wasserstein_noise = ks_noise * np.sqrt(widened), wasserstein_noise * np.sqrt(widened)
    return Distance(
        ks=float(ks[0]),
        wasserstein=float(wasserstein[0]),
        ks_noise=float(np.quantile(ks_noise, 0.95)),
        wasserstein_noise=float(np.quantile(wasserstein_noise, 0.95)),
        p_value=float((np.sum(ks_noise >= ks[0] - 1e-12) + 1) / (repetitions + 1)),
        until=until,
    )


def _deal(random: np.random.Generator, pooled: Ints, rows: int, size: int) -> Ints:
    """Draw `rows` of the pooled rows without putting any back; int64 (size, k)."""
    if pooled.sum() < _MOST_DEALT:
        return random.multivariate_hypergeometric(pooled, rows, size=size, method="marginals")
    # So many rows that drawing each afresh makes no difference, but for a count that could exceed what is there.
    return np.minimum(random.multinomial(rows, pooled / pooled.sum(), size=size), pooled)


def _padded(pair: list[LengthCounts], side: int, column: str) -> Any:
    return np.concatenate([getattr(counts, column) * (index == side) for index, counts in enumerate(pair)])


def _distances(
    values: Any, ended_1: Any, cut_1: Any, ended_2: Any, cut_2: Any, centre: Any = 0.0
) -> tuple[Floats, Floats]:
    """Return the distances from `centre` for each repetition; all tables int64 (repetitions, lengths)."""
    difference = np.abs(_survival(ended_1, cut_1) - _survival(ended_2, cut_2) - centre)
    width = np.diff(values).astype(float)
    return difference.max(axis=1), difference[:, :-1] @ width


def _survival(ended: Any, cut: Any) -> Floats:
    leaving = ended + cut
    at_risk = np.cumsum(leaving[:, ::-1], axis=1)[:, ::-1]
    factors = np.divide(at_risk - ended, at_risk, out=np.ones(at_risk.shape), where=at_risk > 0)
    return np.cumprod(factors, axis=1)


@dataclass(frozen=True)
class Comparison:
    """Two reports side by side; `to_dict()` holds everything that the other forms print."""

    values: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return self.values

    def to_text(self, width: int | None = None) -> str:
        """Return the comparison for a terminal."""
        from eagle3_data.lengths.views.text import Printer

        printer = Printer(width)
        for table in comparison_tables(self.values):
            printer.table(table)
        printer.line(NOTE)
        for line in self.values["words"]:
            printer.line(f"• {line}")
        return printer.text()


def compare_lengths(first: LengthReport, second: LengthReport, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare two reports, source by source where they share names.

    Where each report holds one source and the names differ, these two are compared with each other. No distance is
    given for the whole: a change of the mixture would look like a change of lengths.

    Args:
        first, second: reports of `measure_lengths`.
        names: what to call them.

    Raises:
        UsageError: the reports share no source.
    """
    pairs = [(name, name) for name in first.sources if name in second.sources]
    if not pairs and len(first.sources) == len(second.sources) == 1:
        pairs = [(first.sources[0], second.sources[0])]
    if not pairs:
        raise UsageError(
            f"{names[0]} holds {', '.join(first.sources)} and {names[1]} {', '.join(second.sources)}: "
            "no source in common to compare"
        )
    sources = {
        one if one == two else f"{one} / {two}": {
            measure: _side_by_side(first, second, one, two, measure, len(pairs)) for measure in MEASURES
        }
        for one, two in sorted(pairs)
    }
    for measure in MEASURES:
        _correct([cells[measure]["distance"] for cells in sources.values() if cells[measure]["distance"]])
    values: dict[str, Any] = {
        "format": 1,
        "names": list(names),
        "pairs": {one if one == two else f"{one} / {two}": [one, two] for one, two in sorted(pairs)},
        "sources": sources,
        "only_in": {
            names[0]: sorted(set(first.sources) - {one for one, _ in pairs}),
            names[1]: sorted(set(second.sources) - {two for _, two in pairs}),
        },
        "rows": {
            name: {"whole": report.values[WHOLE]["rows"]} for name, report in zip(names, (first, second), strict=True)
        },
    }
    values["words"] = _words(values)
    return Comparison(values)


def _correct(distances: list[dict[str, Any]]) -> None:
    """Correct p-values for their number: Holm's step-down method (Scandinavian Journal of Statistics 1979)."""
    before = 0.0
    for rank, found in enumerate(sorted(distances, key=lambda found: float(found["p_value"]))):
        before = max(before, min(1.0, found["p_value"] * (len(distances) - rank)))
        found["p_value"], found["differs"] = rounded(before), bool(before < 0.05)


def _side_by_side(
    first: LengthReport, second: LengthReport, one: str, two: str, measure: str, compared: int
) -> dict[str, Any]:
    found = [report.values["sources"][name]["dependence"] for report, name in ((first, one), (second, two))]
    deffs = [part["deff"] if part and measure != "prompt" else 1.0 for part in found]
    apart = distance(
        first.counts[one, measure],
        second.counts[two, measure],
        designs=(deffs[0], deffs[1]),
        repetitions=min(1000, max(REPETITIONS, 40 * compared)),
    )
    sides = [report.values["sources"][name]["lengths"][measure] for report, name in ((first, one), (second, two))]
    keys = ("count", "mean", "quantiles", "cut", "lower_bounds_only", "known_until")
    return {
        "first": {key: sides[0][key] for key in keys},
        "second": {key: sides[1][key] for key in keys},
        "truncated": [
            report.values["sources"][name]["truncated"]["share"] for report, name in ((first, one), (second, two))
        ],
        "distance": apart.to_dict() if apart else None,
    }


def _words(values: Mapping[str, Any]) -> list[str]:
    words = []
    for source, measures in values["sources"].items():
        changed = [
            f"{MEASURE_TITLES[measure].lower()} (KS {apart['ks']:.3f}, noise up to {apart['ks_noise']:.3f}; "
            f"{wording.tokens(apart['wasserstein_tokens'])} tokens a row)"
            for measure, cell in measures.items()
            if (apart := cell["distance"]) and apart["differs"]
        ]
        words.append(
            f"{source}: {'; '.join(changed)} differ by more than chance."
            if changed
            else f"{source}: no length differs by more than chance would make."
        )
        completion = measures["completion"]["distance"]
        if completion and completion["until"] is not None:
            words.append(
                f"{source}: completions are compared up to {wording.tokens(completion['until'])} tokens only, beyond "
                "which answers of one side were cut."
            )
    for name, only in values["only_in"].items():
        if only:
            words.append(f"Only in {name}: {', '.join(only)}.")
    return words


def comparison_tables(values: Mapping[str, Any]) -> list[Table]:
    """Return a table a measure: mean, median, p95 and truncation of both sides, and their distance."""
    tables = []
    for measure, title in MEASURE_TITLES.items():
        rows = []
        for source, measures in values["sources"].items():
            cell = measures[measure]
            for index, side in enumerate(("first", "second")):
                shown = cell[side]
                quantiles = [
                    wording.tokens_with_interval(shown["quantiles"][q], shown["known_until"]) for q in ("p50", "p95")
                ]
                rows.append(
                    [
                        f"{values['pairs'][source][index]} ({values['names'][index]})",
                        wording.tokens(shown["count"]),
                        wording.tokens(shown["mean"]["value"]),
                        *quantiles,
                        *([wording.share_with_interval(cell["truncated"][index])] if measure == "completion" else []),
                        *([""] * 2 if index == 0 else _distance_cells(cell["distance"])),
                    ]
                )
        truncated = ["truncated"] if measure == "completion" else []
        columns = ["rows", "mean", "median", "p95", *truncated, "KS (noise)", "moved (noise)"]
        tables.append(Table(f"compared_{measure}", title, "source", columns, rows))
    return tables


def _distance_cells(apart: Mapping[str, Any] | None) -> list[str]:
    if apart is None:
        return ["–", "–"]
    moved = f"{wording.tokens(apart['wasserstein_tokens'])} ({wording.tokens(apart['wasserstein_noise_tokens'])})"
    return [f"{apart['ks']:.3f} ({apart['ks_noise']:.3f})", moved]
