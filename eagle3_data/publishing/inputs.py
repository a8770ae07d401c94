"""What `publish` is given, as one finished run folder.

Goes in: a run folder or several, a data set of records, a published version to build on, and what is left out. Comes
out: the run folder itself where it is published as it lies, else one made in a temporary place.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import datasets

from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing.datasets_run import run_of_records
from eagle3_data.publishing.hub.repository import Repository
from eagle3_data.publishing.staging import Exclusion, measure, stage
from eagle3_data.publishing.training.published import add_training_rows
from eagle3_data.publishing.training.trainers import Trainer
from eagle3_data.publishing.version_files import check_complete, refuse_links
from eagle3_data.run_folder import RunFolder

if TYPE_CHECKING:
    from eagle3_data.target import Target

Run: TypeAlias = RunFolder | Path | str | datasets.Dataset | datasets.DatasetDict

ORIGIN: Final = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)@([\w./-]+)")


@dataclass(frozen=True)
class Wanted:
    """What is to be published, of which runs.

    Attributes:
        onto: a published version, as in "v1.0.0", whose rows come first; None for none.
        drop_sources, drop: sources, and kinds of records, to leave out.
        exclude: records to leave out by id.
        allow_failed: take runs with failed rows.
        training: write rows for this trainer too.
    """

    onto: str | None = None
    drop_sources: Sequence[str] = ()
    drop: Sequence[str] = ()
    exclude: Exclusion | None = None
    allow_failed: bool = False
    training: Trainer | None = None


def gather(
    given: Run | Sequence[Run], wanted: Wanted, repository: Repository, folder: Path, target: "Target | None"
) -> RunFolder:
    """Return one finished run folder with everything that is to be published.

    Args:
        given: a run, or several, oldest first.
        wanted: what of them.
        repository: where `wanted.onto` is.
        folder: an empty folder for what has to be made.
        target: of data sets of records that do not say it.

    Raises:
        UsageError: a source is in none of them, the runs are of different targets, or a data set of records does not
            say whose answers it holds.
        DataError: a run is not finished, has failed rows, or records that `check` refuses.
        HubError: the version to build on cannot be read.
    """
    several = [given] if isinstance(given, RunFolder | Path | str | datasets.Dataset | datasets.DatasetDict) else given
    runs = [_fetch_version(repository, wanted.onto, folder / "onto")] if wanted.onto else []
    for index, each in enumerate(several):
        if isinstance(each, datasets.Dataset | datasets.DatasetDict):
            runs.append(_run_of_dataset(each, folder / f"records-{index}", repository, target))
        else:
            runs.append(each if isinstance(each, RunFolder) else RunFolder(each))
    if not runs:
        raise UsageError("publish: give a run folder")
    names = [_sources(run) for run in runs]
    there = list(dict.fromkeys(name for part in names for name in part))
    if unknown := [name for name in wanted.drop_sources if name not in there]:
        raise UsageError(f"{runs[-1].path}: no source {unknown[0]!r} to drop; it has {', '.join(there) or 'none'}")
    sources = [name for name in there if name not in wanted.drop_sources]
    for run in runs:
        refuse_links(run)
        check_complete(run, run.read_manifest().to_dict(), sources, wanted.allow_failed)
    if not sources:
        raise UsageError(f"{runs[-1].path}: all of its sources would be dropped; leave one")
    whole = len(runs) == 1 and sources == runs[0].sources() and not wanted.drop and wanted.exclude is None
    if whole and wanted.training is None:
        return runs[0]
    place = folder / "staged" / runs[-1].path.name
    made = stage(runs, place, sources=sorted(sources), drop=wanted.drop, exclude=wanted.exclude).run
    if wanted.training is not None:
        add_training_rows(made, wanted.training)
    measure(made, runs[-1])
    return made


def _sources(run: RunFolder) -> list[str]:
    """Return the sources of a run; one that was taken out of the recipe leaves its records in the folder."""
    known = run.read_manifest().to_dict().get("extent", {}).get("sources", {})
    return [name for name in run.sources() if not known or name in known]


def _fetch_version(repository: Repository, version: str, folder: Path) -> RunFolder:
    """Fetch the records and the manifest of a published version as a run folder."""
    revision = version if version.startswith("v") else f"v{version}"
    manifest = repository.manifest(revision)
    if not manifest:
        raise UsageError(f"{repository.name} {revision}: there is no version of eagle3-data to build on")
    run = RunFolder(folder)
    for path in repository.files(revision):
        if path.startswith("records/") and path.endswith(".parquet"):
            repository.fetch(path, revision, folder / path)
    run.write_manifest({**manifest, "stages": {**manifest.get("stages", {}), "prepare": True, "generate": True}})
    return run


def origin_of(records: datasets.Dataset) -> tuple[str, str] | None:
    """Return the repository and the revision that `load_version` gave the rows from, None where nothing says it.

    Raises:
        UsageError: the rows are from several versions.
    """
    found = set(ORIGIN.findall(records.info.homepage or ""))
    if len(found) > 1:
        names = " and ".join(sorted(f"{repo} {revision}" for repo, revision in found))
        raise UsageError(f"these records are of several versions ({names}); publish the ones onto the other (onto=)")
    return next(iter(found), None)


def _run_of_dataset(
    records: datasets.Dataset | datasets.DatasetDict, folder: Path, repository: Repository, target: "Target | None"
) -> RunFolder:
    from eagle3_data.check.check import check

    splits = dict(records) if isinstance(records, datasets.DatasetDict) else {"": records}
    origins = {origin_of(rows) for rows in splits.values()}
    if len(origins) > 1:
        raise UsageError("the splits of these records are from different versions; load both from one")
    origin = origins.pop()
    manifest: Mapping[str, Any] = {}
    if origin is not None:
        home = Repository(origin[0], repository.token)
        manifest = home.manifest(origin[1])
        if "" in splits:
            splits = {_split_of(splits[""], home, origin[1]): splits[""]}
    elif target is None:
        raise UsageError(
            "these records do not say whose answers they are: load them with eagle3_data.load_version, or give target="
        )
    run = run_of_records({name or "train": rows for name, rows in splits.items()}, folder, manifest, target=target)
    if not (report := check(run)).ok:
        first = report.ordered()[0]
        raise DataError(
            f"these records break a rule, so nothing was sent: {first.kind}, {first.count:,} of {report.rows:,} rows "
            f"({first.examples[0].sample_id} {first.examples[0].detail}); `eagle3-data check` says more"
        )
    return run


def _split_of(records: datasets.Dataset, home: Repository, revision: str) -> str:
    """Return the split that the rows were loaded from, where that is the only one of the version."""
    split = str(records.split or "")
    there = {path.rsplit("/", 1)[1].split("-")[0] for path in home.files(revision) if path.startswith("records/")}
    if there == {"train"} or there == {split}:
        return split or "train"
    others = ", ".join(sorted(there - {split})) or "others"
    raise UsageError(
        f"these are {split or 'unnamed'} rows of {home.name} {revision}, which has {others} rows too: publish "
        'all that stay, as in DatasetDict(train=..., validation=load_version(..., split="validation"))'
    )
