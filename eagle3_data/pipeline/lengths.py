"""`lengths`: what the records of a data set say of lengths.

Goes in: a run folder (or any records). Comes out: the report; in a run folder also `lengths.json`, `lengths.html` and,
where matplotlib is there, figures.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from eagle3_data.lengths import LengthReport, measure_lengths
from eagle3_data.lengths.views.figures import write_figures
from eagle3_data.lengths.views.page import write_page
from eagle3_data.pipeline.existing import run_folder_of
from eagle3_data.pipeline.status import at_work
from eagle3_data.recipe import Recipe, shipped_recipes
from eagle3_data.run_folder import RunFolder


def measure(dataset: str | Path) -> LengthReport:
    """Measure the lengths of a run folder, Parquet files or a Hub data set; a run folder keeps them.

    A run under way is measured from its journal, and nothing is written.

    Raises:
        UsageError: there is no such data set.
        DataError: no records, or rows that are none.
    """
    run = RunFolder(dataset)
    if run.manifest_path.is_file() and (at_work(run) or (run.journal_path.is_dir() and not run.sources())):
        return measure_lengths(run, running=True)
    folder = run_folder_of(dataset)
    return measure_lengths(str(dataset)) if folder is None else describe(folder)


def recipe_words(recipe: Recipe) -> str:
    """Return how a user names a recipe on the command line: a shipped one by its name, another by its path."""
    return recipe.name if recipe.name in shipped_recipes() else str(recipe.file or recipe.name)


def describe(
    folder: RunFolder,
    truncation_target: Mapping[str, float] | None = None,
    *,
    recipe: str | None = None,
    pilot: bool = False,
) -> LengthReport:
    """Measure a run and write its numbers, its page and, where matplotlib is installed, its figures.

    Args:
        folder: of the run.
        truncation_target: see `measure_lengths`.
        recipe: how the user names the recipe on the command line, for the commands in the advice.
        pilot: whether the run is a pilot.
    """
    report = measure_lengths(folder, truncation_target=truncation_target, recipe=recipe, pilot=pilot)
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
