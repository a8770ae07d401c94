"""Published versions, for those who come after: load one, see what became of a row, run its recipe again.

Goes in: `org/name` on the Hub. Comes out: data sets, the history of a row over all versions, the text of a recipe.
"""

from dataclasses import dataclass, fields
from typing import Any, Final

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
from datasets.packaged_modules.parquet.parquet import ParquetConfig
from numpy.typing import NDArray

from eagle3_data.errors import HubError, UsageError
from eagle3_data.publishing.card.facts import DEFAULT_CONFIG
from eagle3_data.publishing.hub.errors import hub_errors
from eagle3_data.publishing.hub.repository import Repository, parse_repo
from eagle3_data.publishing.version_files import RECIPE, plain_version
from eagle3_data.run_folder import RunFolder

_SHOWN: Final = (
    "sample_id",
    "sample",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "max_new_tokens",
    "rounds",
)


@dataclass(frozen=True)
class RowVersion:
    """A row as it stands in one version.

    Attributes:
        version: without "v".
        split: "train" or "validation"; "" when the version does not have the row.
        file, row: where it stands in the repository, 0-based.
        values: its scalar columns (finish_reason, completion_tokens, rounds …); empty when it is not there.
    """

    version: str
    split: str = ""
    file: str = ""
    row: int = -1
    values: tuple[tuple[str, Any], ...] = ()

    def to_text(self) -> str:
        """Return one line for a terminal."""
        if not self.split:
            return f"v{self.version}: not there"
        shown = ", ".join(f"{name} {value}" for name, value in self.values if name not in ("sample_id", "sample"))
        return f"v{self.version}: {self.split}, {shown} ({self.file}:{self.row})"


def list_versions(repo: str, *, token: str | None = None) -> list[str]:
    """Return the versions of a data set, oldest first, without "v". Raises HubError."""
    return Repository(repo, token).versions()


def load_version(
    repo: str,
    version: str | None = None,
    *,
    source: str | None = None,
    split: str = "train",
    streaming: bool = False,
    token: str | None = None,
    **options: Any,
) -> datasets.Dataset | datasets.IterableDataset:
    """Load the records of a version.

    Args:
        repo: `org/name`, or `org/name@v1.0.0`.
        version: the newest when None and `repo` names none.
        source: one source; all when None.
        split: "train" or "validation".
        streaming: read rows as they are asked for.
        options: passed to `datasets.load_dataset`.

    Raises:
        HubError: there is no such data set or version.
        UsageError: the version has no such source.
    """
    name, revision = parse_repo(repo)
    repository = Repository(name, token)
    known = repository.versions()
    wanted = plain_version(version) if version else (revision or (known[-1] if known else "")).removeprefix("v")
    if wanted not in known and not (revision and version is None):
        have = ", ".join(f"v{number}" for number in known) or "none"
        raise HubError(f"{name}: no version {wanted or 'at all'}; it has {have}")
    at = f"v{wanted}" if wanted in known else revision
    if streaming:
        options = {**_frugal_reads(), **options}
    with hub_errors(name, repository.token, "load"):
        try:
            loaded = datasets.load_dataset(
                name,
                source or DEFAULT_CONFIG,
                revision=at,
                split=split,
                streaming=streaming,
                token=repository.token,
                **options,
            )
        except ValueError as error:
            raise UsageError(f"{name} {at}: {' '.join(str(error).split())}") from error
    assert isinstance(loaded, datasets.Dataset | datasets.IterableDataset)
    # kept by filter, select and map: a publish of these rows finds where they came from
    loaded.info.homepage = f"hf://datasets/{name}@{at}"
    return loaded


def _frugal_reads() -> dict[str, Any]:
    """Keep streaming from fetching far ahead.

    Arrow joins reads of neighbouring row groups up to 32 MB by default, and the Hub's file system rounds every read up
    to 5 MB.
    """
    frugal: dict[str, Any] = {"storage_options": {"hf": {"block_size": 2**18}}}
    if "fragment_scan_options" in {option.name for option in fields(ParquetConfig)}:
        cache = pa.CacheOptions(hole_size_limit=2**13, range_size_limit=2**20, lazy=True)
        frugal["fragment_scan_options"] = pa.dataset.ParquetFragmentScanOptions(cache_options=cache)
    return frugal


def history(repo: str, sample_id: str, *, sample: int = 0, token: str | None = None) -> list[RowVersion]:
    """Return what became of a row, version by version, oldest first.

    Only the id column and the row group that holds the row are read, and files that two versions share only once.

    Args:
        repo: `org/name`.
        sample_id: as in the column of that name.
        sample: which of several answers to one prompt.

    Raises:
        HubError: there is no such data set.
        UsageError: no version ever had the row.
    """
    repository = Repository(repo, token)
    source = sample_id.rpartition("-")[0]
    found: list[RowVersion] = []
    seen: dict[tuple[str, str], RowVersion | None] = {}
    for version in repository.versions():
        tag = f"v{version}"
        place: RowVersion | None = None
        for path, entry in sorted(repository.files(tag).items()):
            if not path.startswith(f"records/{source}/") or not path.endswith(".parquet"):
                continue
            key = (path, entry.sha256 or entry.git_id)
            if key not in seen:
                seen[key] = _find(repository, path, tag, sample_id, sample)
            place = seen[key] or place
        found.append(RowVersion(version, *_place(place)))
    if not any(row.split for row in found):
        raise UsageError(f"{repository.name}: none of its {len(found)} versions has sample_id {sample_id!r}")
    return found


def _place(row: RowVersion | None) -> tuple[str, str, int, tuple[tuple[str, Any], ...]]:
    return ("", "", -1, ()) if row is None else (row.split, row.file, row.row, row.values)


def _find(repository: Repository, path: str, revision: str, sample_id: str, sample: int) -> RowVersion | None:
    with repository.open(path, revision) as handle, pq.ParquetFile(handle) as file:
        first = 0
        for group in range(file.num_row_groups):
            keys = file.read_row_group(group, columns=["sample_id", "sample"])
            pairs = zip(keys["sample_id"].to_pylist(), keys["sample"].to_pylist(), strict=True)
            at = next((index for index, pair in enumerate(pairs) if pair == (sample_id, sample)), None)
            if at is not None:
                row = file.read_row_group(group, columns=list(_SHOWN)).slice(at, 1).to_pylist()[0]
                split = path.rsplit("/", 1)[1].split("-")[0]
                return RowVersion("", split, path, first + at, tuple((name, row[name]) for name in _SHOWN))
            first += keys.num_rows
    return None


def locate_recipe(url: str, *, token: str | None = None) -> tuple[str, str]:
    """Return the data set that a URL names, and the commit of its version (the newest when none is named).

    Raises:
        UsageError: `url` names no data set.
        HubError: there is no such data set or version.
    """
    name, revision = parse_repo(url)
    repository = Repository(name, token)
    if revision is None:
        known = repository.versions()
        if not known:
            raise HubError(f"{name}: it has no published version; name a branch or commit after @")
        revision = f"v{known[-1]}"
    info = repository.info(revision)
    if info is None or not info.sha:
        raise HubError(f"{name}: there is no such data set, or this token may not see it")
    return name, str(info.sha)


def fetch_recipe(url: str, *, token: str | None = None) -> str:
    """Return the text of the recipe that a published version carries, every revision pinned.

    Args:
        url: `hf://datasets/org/name@v1.0.0`; the newest version when none is named.

    Raises:
        UsageError: `url` names no data set.
        HubError: there is no such data set or version, or it carries no recipe.
    """
    name, revision = parse_repo(url)
    repository = Repository(name, token)
    if revision is None:
        known = repository.versions()
        if not known:
            raise HubError(f"{name}: it has no published version; name a branch or commit after @")
        revision = f"v{known[-1]}"
    data = repository.read(RECIPE, revision)
    if data is None:
        raise HubError(f"{name} {revision}: it carries no {RECIPE}, so it was not published by eagle3-data")
    return data.decode("utf-8")


def missing_prompts(run: RunFolder, repo: str, *, token: str | None = None) -> dict[str, int]:
    """Compare the prompts of a run with the records of a published version, by sample_id.

    Args:
        run: a run folder whose prompts were prepared, as by running the recipe of the version again.
        repo: `org/name@v1.0.0`.

    Returns:
        For each source of the version the number of its records whose prompt is not among those of the run: all 0 when
        the recipe reproduced the prompts.

    Raises:
        HubError: there is no such data set or version.
    """
    name, revision = parse_repo(repo)
    repository = Repository(name, token)
    if revision is None:
        known = repository.versions()
        if not known:
            raise HubError(f"{name}: it has no published version")
        revision = f"v{known[-1]}"
    missing: dict[str, int] = {}
    prompts: dict[str, NDArray[np.uint64]] = {}
    for path in sorted(repository.files(revision)):
        if not path.startswith("records/") or not path.endswith(".parquet"):
            continue
        source = path.split("/")[1]
        if source not in prompts:
            local = run.prompts_path(source)
            prompts[source] = _id_hashes(local) if local.is_file() else np.zeros(0, np.uint64)
        with repository.open(path, revision) as handle:
            found = _id_hashes(handle)
        missing[source] = missing.get(source, 0) + int((~np.isin(found, prompts[source])).sum())
    return missing


def _id_hashes(file: Any) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each sample_id in a Parquet file: 8 bytes a row."""
    with pq.ParquetFile(file) as opened:
        parts = [
            np.asarray(
                pd.util.hash_array(batch["sample_id"].to_numpy(zero_copy_only=False), categorize=False), np.uint64
            )
            for batch in opened.iter_batches(columns=["sample_id"])
        ]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)
