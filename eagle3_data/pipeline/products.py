"""What is made of finished records for others: a version on the Hub, rows for trainers, a draft vocabulary.

Goes in: a run folder, Parquet files or a Hub data set. Comes out: the reports of the publishing room.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from eagle3_data import publishing
from eagle3_data.errors import UsageError
from eagle3_data.pipeline.describing import describe_anew, run_folder_of, target_of
from eagle3_data.publishing import DraftVocabulary, ExportReport, PublishReport


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
) -> PublishReport:
    """Publish a run folder, its shards merged and its lengths up to date; see `publishing.publish`.

    Raises:
        UsageError: no run folder.
        DataError, HubError: as `publishing.publish`.
    """
    folder = run_folder_of(run)
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
        target=target_of(folder),
    )


def export(
    dataset: str,
    *,
    to: Literal["specforge", "speculators"],
    output: str,
    max_length: int | None = None,
    overflow: Literal["truncate", "drop"] = "truncate",
) -> ExportReport:
    """Write the rows that a trainer reads; see `publishing.export`."""
    return publishing.export(run_folder_of(dataset) or dataset, to, output, max_length=max_length, overflow=overflow)


def vocabulary(dataset: str, *, size: int, output: str) -> DraftVocabulary:
    """Write a draft vocabulary; the target's byte tokens are pinned where its tokenizer is at hand."""
    folder = run_folder_of(dataset)
    target = target_of(folder) if folder else None
    return publishing.draft_vocabulary(folder or dataset, size, output, target=target)
