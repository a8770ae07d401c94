"""`publish`: a version of the data set on the Hub.

Goes in: a finished run folder. Comes out: what was published, or would be.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3_data import publishing
from eagle3_data.pipeline.existing import run_folder_of, target_of
from eagle3_data.pipeline.lengths import describe_anew
from eagle3_data.publishing import PublishReport
from eagle3_data.run_names import no_run_folder


def publish(
    runs: Sequence[Path],
    *,
    repo: str,
    version: str,
    trust_remote_code: bool = False,
    **options: Any,
) -> PublishReport:
    """Publish run folders, their shards merged and their lengths up to date; the options are `publishing.publish`'s.

    Raises:
        UsageError: no run folder.
        DataError, HubError: as `publishing.publish`.
    """
    folders = []
    for run in runs:
        folder = run_folder_of(run)
        if folder is None:
            raise no_run_folder(run)
        describe_anew(folder)
        folders.append(folder)
    target = target_of(folders[-1], trust_remote_code=trust_remote_code)
    return publishing.publish(folders, repo, version, target=target, **options)
