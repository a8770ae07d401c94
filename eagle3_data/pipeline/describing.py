"""The last stages: what a run's records say of lengths, and the card of its data set.

Goes in: a run folder (or any records). Comes out: `lengths.json`, `lengths.html`, figures where matplotlib is there,
and the card, README.md.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from eagle3_data.errors import DataError, UsageError
from eagle3_data.generation.check import CheckReport
from eagle3_data.generation.check import check as check_records
from eagle3_data.lengths import LengthReport, measure_lengths
from eagle3_data.lengths.figures import write_figures
from eagle3_data.lengths.page import write_page
from eagle3_data.pipeline.answering import load_target, merge
from eagle3_data.publishing import write_card
from eagle3_data.recipe import parse_recipe
from eagle3_data.run_folder import RunFolder
from eagle3_data.target import Target


def run_folder_of(dataset: str | Path) -> RunFolder | None:
    """Return the run folder that `dataset` is, its shards merged; None when it is something else."""
    folder = RunFolder(dataset)
    if not folder.manifest_path.is_file():
        return None
    merge(folder)
    return folder


def check(dataset: str | Path) -> CheckReport:
    """Verify every invariant of the records of a run folder (its shards merged), Parquet files or a Hub data set.

    Raises:
        UsageError: there is no such data set, or it holds no records.
    """
    return check_records(run_folder_of(dataset) or str(dataset))


def measure(dataset: str | Path) -> LengthReport:
    """Measure the lengths of a run folder, Parquet files or a Hub data set; a run folder keeps them.

    Raises:
        UsageError: there is no such data set.
        DataError: no records, or rows that are none.
    """
    folder = run_folder_of(dataset)
    return measure_lengths(str(dataset)) if folder is None else describe(folder)


def describe(folder: RunFolder, truncation_target: Mapping[str, float] | None = None) -> LengthReport:
    """Measure a run and write its numbers, its page and, where matplotlib is installed, its figures."""
    report = measure_lengths(folder, truncation_target=truncation_target)
    report.write(folder.lengths_path)
    write_page(report, folder.page_path, f"Lengths of {folder.path.name}")
    if importlib.util.find_spec("matplotlib") is not None:
        write_figures(report, folder.figures_path)
    return report


def describe_anew(folder: RunFolder) -> None:
    """Measure a run unless that was done since its records were written."""
    written = folder.lengths_path
    if not written.is_file() or written.stat().st_mtime < folder.manifest_path.stat().st_mtime:
        describe(folder)


def card(run: Path, *, template: str | None = None) -> Path:
    """Write the card of a run folder, measuring its lengths where that was not done since its records were written.

    Raises:
        UsageError: no run folder, or a wrong template.
        DataError: no records.
    """
    folder = run_folder_of(run)
    if folder is None:
        raise UsageError(f"{run}: not a run folder (no manifest.json)")
    describe_anew(folder)
    return write_card(folder, Path(template) if template else None, target=target_of(folder))


def target_of(folder: RunFolder) -> Target | None:
    """Return the target of a run, to decode its example; None where its tokenizer is not on this machine."""
    try:
        return load_target(parse_recipe(folder.read_manifest()["recipe"], str(folder.manifest_path)))
    except (UsageError, DataError):
        return None
