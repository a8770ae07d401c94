"""`diff`: two data sets compared by rows.

Goes in: two run folders, Parquet files or Hub data sets. Comes out: what was added, removed, extended or changed.
"""

from eagle3_data.pipeline.existing import run_folder_of
from eagle3_data.publishing.differences import Difference, compare_records


def diff(first: str, second: str, *, trust_remote_code: bool = False) -> Difference:
    """Compare two data sets; see `publishing.differences.compare_records`."""
    before, after = (run_folder_of(name) or name for name in (first, second))
    return compare_records(before, after)
