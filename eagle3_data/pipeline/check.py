"""`check`: every invariant of the records of a data set.

Goes in: a run folder, Parquet files or a Hub data set. Comes out: the report of violations.
"""

from pathlib import Path

from eagle3_data.check.check import CheckReport
from eagle3_data.check.check import check as check_records
from eagle3_data.pipeline.existing import run_folder_of


def check(dataset: str | Path) -> CheckReport:
    """Verify every invariant of the records of a run folder, Parquet files or a Hub data set.

    Raises:
        UsageError: there is no such data set, or it holds no records.
    """
    return check_records(run_folder_of(dataset, whole=False) or str(dataset))
