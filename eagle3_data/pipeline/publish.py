"""`publish`: a version of the data set on the Hub.

Goes in: a finished run folder. Comes out: what was published, or would be.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from eagle3_data import publishing
from eagle3_data.errors import UsageError
from eagle3_data.pipeline.existing import run_folder_of, target_of
from eagle3_data.pipeline.lengths import describe_anew
from eagle3_data.publishing import PublishReport


def publish(
    run: Path,
    *,
    repo: str,
    version: str,
    private: bool = False,
    gated: Literal["auto", "manual"] | None = None,
    create_pr: bool = False,
    dry_run: bool = False,
    allow_failed: bool = False,
    branch: str | None = None,
    drop_sources: Sequence[str] = (),
    trust_remote_code: bool = False,
) -> PublishReport:
    """Publish a run folder, its shards merged and its lengths up to date; see `publishing.publish`.

    Raises:
        UsageError: no run folder.
        DataError, HubError: as `publishing.publish`.
    """
    folder = run_folder_of(run, trust_remote_code=trust_remote_code)
    if folder is None:
        raise UsageError(f"{run}: not a run folder (no manifest.json)")
    describe_anew(folder)
    return publishing.publish(
        folder,
        repo,
        version,
        private=private or None,
        gated=gated,
        create_pr=create_pr,
        branch=branch,
        dry_run=dry_run,
        allow_failed=allow_failed,
        drop_sources=drop_sources,
        target=target_of(folder, trust_remote_code=trust_remote_code),
    )
