"""`export`: rows as a trainer reads them.

Goes in: a run folder, Parquet files or a Hub data set. Comes out: the file and the report of what was written.
"""

from typing import Any

from eagle3_data import publishing
from eagle3_data.pipeline.existing import run_folder_of
from eagle3_data.publishing import ExportReport


def export(dataset: str, *, to: str, output: str, **options: Any) -> ExportReport:
    """Write the rows that a trainer reads; the options are those of `publishing.export`."""
    folder = run_folder_of(dataset)
    return publishing.export(folder or dataset, to, output, **options)  # type: ignore[arg-type]
