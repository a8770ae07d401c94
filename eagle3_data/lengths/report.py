"""The length report: what was read, estimated and advised, and its three forms.

Goes in: records (a data set, Parquet files, a run folder, a Hub data set). Comes out: a `LengthReport`, whose
`to_dict()` is `lengths.json`; the terminal view, the card's tables and the page print that dictionary and compute
nothing of their own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import datasets

from eagle3_data.errors import DataError, UsageError
from eagle3_data.lengths import reading, summary
from eagle3_data.lengths.advice import advise
from eagle3_data.lengths.reading import MEASURES, WHOLE, SourceTally, Unfinished
from eagle3_data.lengths.running import read_journal
from eagle3_data.lengths.statistics.censoring import Curve, SourceCurve
from eagle3_data.lengths.statistics.clusters import INDEPENDENT
from eagle3_data.lengths.statistics.distribution import LengthCounts
from eagle3_data.lengths.statistics.endless import Endless, split_endless
from eagle3_data.lengths.statistics.intervals import CONFIDENCE, rounded
from eagle3_data.lengths.statistics.tail import TailModel, fit_tail
from eagle3_data.lengths.views.advice import advice_line, advice_sentences, command, report_sentences
from eagle3_data.manifest import Manifest, SourceExtent
from eagle3_data.run_folder import RunFolder, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT: Final = 1
DEFAULT_TARGET: Final = 0.01


@dataclass(frozen=True)
class LengthReport:
    """Lengths of records by source and as a whole.

    Attributes:
        values: what `to_dict` returns.
        counts: (source, measure) -> the table of lengths behind it, for figures and comparison.
        curves: (source or "whole", measure) -> the survival curve behind it.
        tails: source -> the model of its completion lengths beyond the caps, where one could be fitted.
    """

    values: dict[str, Any]
    counts: dict[tuple[str, str], LengthCounts] = field(repr=False)
    curves: dict[tuple[str, str], Curve] = field(repr=False)
    tails: dict[str, TailModel] = field(repr=False)

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in order."""
        return list(self.values["sources"])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values: what `lengths.json` holds."""
        return self.values

    def to_text(self, width: int | None = None, *, full: bool = False) -> str:
        """Return the report for a terminal of `width` columns: a compact view, or (`full`) every interval."""
        from eagle3_data.lengths.views.text import to_text

        return to_text(self.values, width, full=full)

    def to_markdown(self) -> str:
        """Return the report as Markdown tables for the card, headings from level 3 down."""
        from eagle3_data.lengths.views.markdown import to_markdown

        return to_markdown(self.values)

    def plot(self, source: str | None = None, measure: str = "completion") -> "Figure":
        """Return a figure of recorded lengths on a log scale, the cap marked and cut rows hatched.

        Args:
            source: one source; all of them, a panel each, when None.
            measure: `completion`, `prompt`, `reasoning` or `answer`.

        Raises:
            UsageError: no such source or measure, no rows of it, or matplotlib is not installed.
        """
        from eagle3_data.lengths.views.figures import draw

        return draw(self, source, measure)

    def _repr_html_(self) -> str:
        """Return the compact tables, for a notebook."""
        from eagle3_data.lengths.views.notebook import render_tables

        return render_tables(self.values)

    def write(self, path: Path) -> None:
        """Write `lengths.json`, whole or not at all."""
        write_json(path, self.values)


def measure_lengths(
    records: datasets.Dataset | datasets.DatasetDict | Path | str | RunFolder,
    *,
    manifest: Manifest | Mapping[str, Any] | None = None,
    weights: Mapping[str, float] | None = None,
    truncation_target: float | Mapping[str, float] | None = None,
    confidence: float = CONFIDENCE,
    recipe: str | None = None,
    pilot: bool = False,
    running: bool = False,
) -> LengthReport:
    """Measure prompt, completion, reasoning and answer lengths of records, by source and as a whole.

    Args:
        records: records of eagle3-data: a data set, a Parquet file or a folder of them, a run folder, or the name of a
            Hub data set (`org/name@revision`). Only scalar columns are read.
        manifest: what the run says of itself (caps, context length, throughput), if it is not in the run folder.
        weights: share of each source in the whole, in any unit; by default its rows, unanswered ones included.
        truncation_target: largest share of rows that may be cut, for all sources or for each; by default the
            manifest's for the source, else 0.01.
        confidence: of every interval.
        recipe: how the user names the recipe on the command line, for the commands in the advice.
        running: read a run folder's journal instead of its records, which a run under way has not written yet;
            reasoning and tool calls are then not known.
        pilot: whether the rows are a pilot's, so that the advice goes on with the pilot.

    Raises:
        UsageError: there is nothing to read, or `weights` names no source.
        DataError: the rows are no records, or some carry an error.
    """
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must lie between 0 and 1, got {confidence}")
    if running and isinstance(records, RunFolder):
        found = records.read_manifest()
        tallies, unfinished = read_journal(records, found)
    else:
        tallies, unfinished, found = _read(records)
    if not tallies:
        raise DataError("no records and no prompts to measure; run generate first")
    # Sorted as JSON files are, so that what is printed from lengths.json is what is printed from memory.
    tallies = dict(sorted(tallies.items()))
    said = Manifest.of(manifest) if manifest else found
    return _build(tallies, unfinished, said, weights, truncation_target, confidence, recipe or "RECIPE", pilot)


def _read(
    records: datasets.Dataset | datasets.DatasetDict | Path | str | RunFolder,
) -> tuple[dict[str, SourceTally], dict[str, Unfinished], Manifest]:
    if isinstance(records, RunFolder):
        return (*reading.read_run(records), records.read_manifest())
    if isinstance(records, datasets.DatasetDict):
        tables = (table for split in records.values() for table in reading.dataset_tables(split))
        return reading.read_tables(tables, "records"), {}, Manifest()
    if isinstance(records, datasets.Dataset):
        return reading.read_tables(reading.dataset_tables(records), "records"), {}, Manifest()
    if not isinstance(records, str | Path):
        raise UsageError(f"measure_lengths takes a Dataset, a path or a RunFolder, not {type(records).__name__}")
    path = Path(records)
    if path.is_dir() and ((path / "manifest.json").exists() or (path / "records").is_dir()):
        return _read(RunFolder(path))
    if path.exists():
        return reading.read_path(path), {}, Manifest()
    if isinstance(records, Path):
        raise UsageError(f"{path}: no such file or folder")
    tallies, manifest = reading.read_hub(records)
    return tallies, {}, manifest


def _build(
    tallies: dict[str, SourceTally],
    unfinished: dict[str, Unfinished],
    manifest: Manifest,
    weights: Mapping[str, float] | None,
    truncation_target: float | Mapping[str, float] | None,
    confidence: float,
    recipe: str,
    pilot: bool,
) -> LengthReport:
    waiting = {name: unfinished.get(name, Unfinished()) for name in tallies}
    shares = _weights(tallies, waiting, weights)
    counts = {(name, measure): tallies[name].lengths[measure].counts() for name in tallies for measure in MEASURES}
    endless, designs = {}, {}
    for name, tally in tallies.items():
        designs[name] = tally.clusters.effect(counts[name, "completion"], confidence)
        counts[name, "completion"], endless[name] = split_endless(counts[name, "completion"], confidence)
    curves: dict[tuple[str, str], Curve] = {}
    totals = {name: sum(counts[name, part].total for part in ("prompt", "completion")) for name in tallies}
    sections: dict[str, dict[str, Any]] = {}
    for name in (*tallies, WHOLE):
        members = list(tallies) if name == WHOLE else [name]
        section = summary.composition(
            [(shares[member], tallies[member]) for member in members],
            [waiting[member] for member in members],
            confidence,
            designs[name] if name != WHOLE else INDEPENDENT,
        )
        section["row_share"] = rounded(sum(shares[member] for member in members))
        section["token_share"] = _share_of(sum(totals[m] for m in members), sum(totals.values()))
        section["lengths"] = {}
        for measure in MEASURES:
            parts = [(shares[member], counts[member, measure]) for member in members]
            effects = [designs[member] for member in members] if measure != "prompt" else None
            curves[name, measure], section["lengths"][measure] = summary.distribution(parts, confidence, effects)
        sections[name] = section
    tails = _advise(sections, tallies, counts, curves, endless, manifest, truncation_target, confidence, recipe, pilot)
    whole = sections.pop(WHOLE)
    values = {
        "format": FORMAT,
        "confidence": confidence,
        "complete": not any(part.rows for part in waiting.values()),
        "weights": {name: rounded(share) for name, share in shares.items()},
        "sources": sections,
        "whole": whole,
    }
    values["remarks"] = report_sentences(values)
    return LengthReport(values, counts, curves, tails)


def _advise(
    sections: Mapping[str, dict[str, Any]],
    tallies: Mapping[str, SourceTally],
    counts: Mapping[tuple[str, str], LengthCounts],
    curves: Mapping[tuple[str, str], Curve],
    endless: Mapping[str, Endless],
    manifest: Manifest,
    truncation_target: float | Mapping[str, float] | None,
    confidence: float,
    recipe: str,
    pilot: bool,
) -> dict[str, TailModel]:
    if isinstance(truncation_target, Mapping):
        _check_names(truncation_target, tallies)
    tails = {}
    for name, tally in tallies.items():
        stated = manifest.extent_of(name)
        completion, curve = counts[name, "completion"], curves[name, "completion"]
        assert isinstance(curve, SourceCurve)
        tail = fit_tail(completion, curve)
        if tail is not None:
            tails[name] = tail
        advice = advise(
            name,
            completion,
            curve,
            counts[name, "prompt"],
            endless[name],
            cap=summary.present_cap(tally, stated),
            target=_target(name, stated, truncation_target),
            tail=tail,
            cut_by_context=tally.cut_by_context,
            context_length=manifest.engine.context_length,
            tokens_per_second=manifest.throughput.tokens_per_second,
            confidence=confidence,
        ).to_dict()
        sections[name]["tail"] = tail.to_dict() if tail else None
        advice["command"] = command(name, advice, recipe, alone=len(tallies) == 1, pilot=pilot)
        sections[name]["advice"] = {**advice, "line": advice_line(advice), "words": advice_sentences(name, advice)}
    return tails


def _target(name: str, stated: SourceExtent, given: float | Mapping[str, float] | None) -> float:
    target = given.get(name) if isinstance(given, Mapping) else given
    target = target if target is not None else stated.truncation_target or DEFAULT_TARGET
    if not 0 < target < 1:
        raise UsageError(f"truncation_target of {name} must lie between 0 and 1, got {target}")
    return float(target)


def _weights(
    tallies: Mapping[str, SourceTally], waiting: Mapping[str, Unfinished], weights: Mapping[str, float] | None
) -> dict[str, float]:
    if weights is None:
        given = {name: float(tally.rows + waiting[name].rows) for name, tally in tallies.items()}
    else:
        _check_names(weights, tallies)
        given = {name: float(weights.get(name, 0.0)) for name in tallies}
    total = sum(given.values())
    if not total > 0 or min(given.values()) < 0:
        raise UsageError("there are no rows to weigh" if weights is None else "weights must not be negative or all 0")
    return {name: weight / total for name, weight in given.items()}


def _check_names(named: Iterable[str], tallies: Mapping[str, SourceTally]) -> None:
    if strange := sorted(set(named) - set(tallies)):
        raise UsageError(f"{strange[0]!r} is no source of these records; they hold {', '.join(tallies)}")


def _share_of(part: float, whole: float) -> float | int | None:
    return rounded(part / whole) if whole else None
