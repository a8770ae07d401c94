"""Records from wherever they lie, as Arrow tables in order, never all at once.

Goes in: a data set, a run folder, Parquet files, or the name of a published version. Comes out: `Records`, which gives
the columns asked for and what is known about the target.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing.hub.repository import Repository, parse_repo
from eagle3_data.run_folder import RunFolder
from eagle3_data.schema import RECORD_FEATURES, arrow_schema

Data: TypeAlias = datasets.Dataset | datasets.IterableDataset | RunFolder | Path | str
BATCH_ROWS: Final = 1_000
_OPEN = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Records:
    """Records that can be read again and again.

    Attributes:
        name: what messages call them.
        tables: columns -> tables of at most BATCH_ROWS rows, in order.
        identity: identity of the run that made them ({} when nothing is known).
        profile: token profile of the target ({} when nothing is known).
    """

    name: str
    tables: Callable[[Sequence[str]], Iterator[pa.Table]]
    identity: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)

    @property
    def vocabulary_size(self) -> int | None:
        """Size of the target's vocabulary, None when the records do not say."""
        size = self.identity.get("target", {}).get("vocabulary_size") or self.profile.get("vocabulary_size")
        return int(size) if size else None


def open_records(data: Data, *, split: str | None = "train", sources: Sequence[str] | None = None) -> Records:
    """Find records.

    Args:
        data: a data set; a run folder; a Parquet file or a folder of them; or `org/name@v1.0.0` on the Hub.
        split: "train", "validation", or None for both (files that are not named after a split count as both).
        sources: only these sources, by the folder that their files lie in.

    Raises:
        UsageError: there is nothing of that name, or no such source.
        HubError: the Hub refused.
    """
    if isinstance(data, datasets.Dataset | datasets.IterableDataset):
        return Records("the data set", lambda columns: _of_dataset(data, columns, sources))
    run: RunFolder = data if isinstance(data, RunFolder) else RunFolder(data)
    if run.manifest_path.is_file() or (run.path / "records").is_dir():
        manifest = run.read_manifest()
        files = {path.relative_to(run.path).as_posix(): path for path in run.path.glob("records/*/*.parquet")}
        chosen = _choose(str(run.path), files, split, sources)
        found = [_local(files[name]) for name in chosen]
        return _of_files(str(run.path), chosen, found, manifest.get("identity"), manifest.get("profile"))
    if run.path.exists():
        paths = [run.path] if run.path.is_file() else sorted(run.path.rglob("*.parquet"))
        local = {(path.name if path == run.path else path.relative_to(run.path).as_posix()): path for path in paths}
        chosen = _choose(str(run.path), local, split, sources)
        return _of_files(str(run.path), chosen, [_local(local[name]) for name in chosen])
    name = str(data)
    local_name = isinstance(data, Path) or name.startswith((".", "/", "~")) or name.count("/") != 1
    if local_name and not name.startswith("hf://"):
        raise UsageError(f"{name}: no such run folder or Parquet file; a data set on the Hub is named org/name")
    return _of_hub(name, split, sources)


def _of_hub(name: str, split: str | None, sources: Sequence[str] | None) -> Records:
    repo, revision = parse_repo(name)
    repository = Repository(repo)
    if revision is None:
        revision = (["main"] + [f"v{version}" for version in repository.versions()])[-1]
    manifest = repository.manifest(revision)
    files = {path: path for path in repository.files(revision) if path.endswith(".parquet")}
    chosen = _choose(name, files, split, sources)
    opened: list[_OPEN] = [_remote(repository, path, revision) for path in chosen]
    return _of_files(name, chosen, opened, manifest.get("identity"), manifest.get("profile"))


def _remote(repository: Repository, path: str, revision: str) -> _OPEN:
    return lambda: repository.open(path, revision)


def _local(path: Path) -> _OPEN:
    return lambda: path.open("rb")


def _choose(name: str, files: Mapping[str, Any], split: str | None, sources: Sequence[str] | None) -> list[str]:
    if not files:
        raise UsageError(f"{name}: no record files (Parquet) in it")
    there = sorted({Path(path).parent.name for path in files})
    if unknown := [source for source in sources or () if source not in there]:
        raise UsageError(f"{name}: no source {unknown[0]!r}; it has {', '.join(filter(None, there)) or 'none'}")
    chosen = [path for path in sorted(files) if sources is None or Path(path).parent.name in sources]
    if split is not None:
        named = [path for path in chosen if Path(path).name.startswith(("train-", "validation-"))]
        chosen = [path for path in chosen if path not in named or Path(path).name.startswith(f"{split}-")]
    if not chosen:
        raise UsageError(f"{name}: no records in split {split!r}")
    return chosen


def _of_files(
    name: str,
    names: Sequence[str],
    files: Sequence[_OPEN],
    identity: Mapping[str, Any] | None = None,
    profile: Mapping[str, Any] | None = None,
) -> Records:
    def tables(columns: Sequence[str]) -> Iterator[pa.Table]:
        for path, opener in zip(names, files, strict=True):
            with _damage(f"{name}: {path}" if path not in name else name), opener() as handle:
                file = pq.ParquetFile(handle, pre_buffer=False)
                _check_columns(path, file.schema_arrow, columns)
                for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(columns)):
                    yield pa.Table.from_batches([batch]).select(list(columns))

    if identity is None:
        with _damage(f"{name}: {names[0]}"), files[0]() as handle:
            stored = (pq.read_metadata(handle).metadata or {}).get(b"eagle3_data")
        identity = json.loads(stored) if stored else {}
    return Records(name, tables, identity or {}, profile or {})


@contextlib.contextmanager
def _damage(name: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowInvalid as error:
        raise DataError(f"{name}: not a whole Parquet file ({' '.join(str(error).split())})") from error


def _check_columns(name: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    wanted = arrow_schema(RECORD_FEATURES)
    for column in columns:
        if column not in schema.names:
            raise DataError(f"{name}: no column {column!r}, so these are no records of eagle3-data")
        if schema.field(column).type != wanted.field(column).type:
            raise DataError(f"{name}: column {column!r} holds {schema.field(column).type}, not a record's")


def _of_dataset(
    data: datasets.Dataset | datasets.IterableDataset, columns: Sequence[str], sources: Sequence[str] | None
) -> Iterator[pa.Table]:
    names = data.column_names
    if names is not None and (missing := [column for column in columns if column not in names]):
        raise DataError(f"the data set has no column {missing[0]!r}, so these are no records of eagle3-data")
    wanted = list(dict.fromkeys([*columns, *(["source"] if sources is not None else [])]))
    schema = pa.schema([arrow_schema(RECORD_FEATURES).field(column) for column in wanted])
    for batch in data.select_columns(wanted).with_format("arrow").iter(BATCH_ROWS):
        table = batch.select(wanted).replace_schema_metadata(None).cast(schema)
        if sources is not None:
            table = table.filter(pa.compute.is_in(table["source"], pa.array(list(sources))))
        yield table.select(list(columns))
