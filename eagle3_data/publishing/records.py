"""Records from wherever they lie, as Arrow tables in order, never all at once.

Goes in: a data set, a run folder, Parquet files, or the name of a published version. Comes out: `Records`, which gives
the columns asked for and what is known about the target.
"""

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.errors import DataError, HubUnreachable, UsageError
from eagle3_data.publishing.card.facts import SPLITS
from eagle3_data.publishing.hub.repository import Repository, parse_repo
from eagle3_data.run_folder import RunFolder
from eagle3_data.run_names import refuse_missing
from eagle3_data.schema import RECORD_FEATURES, arrow_schema

Data: TypeAlias = datasets.Dataset | datasets.IterableDataset | RunFolder | Path | str
BATCH_ROWS: Final = 1_000
Item = TypeVar("Item")
_OPEN = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Records:
    """Records that can be read again and again.

    Attributes:
        name: what messages call them.
        tables: columns -> tables of at most BATCH_ROWS rows, in order.
        left_out: rows of splits that are there and were not asked for, by split.
        identity: identity of the run that made them ({} when nothing is known).
        profile: token profile of the target ({} when nothing is known).
    """

    name: str
    tables: Callable[[Sequence[str]], Iterator[pa.Table]]
    left_out: Mapping[str, int] = field(default_factory=dict)
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
        return Records("the data set", lambda columns: dataset_tables(data, columns, sources))
    run: RunFolder = data if isinstance(data, RunFolder) else RunFolder(data)
    if run.manifest_path.is_file() or (run.path / "records").is_dir():
        manifest = run.read_manifest().to_dict()
        files = {path.relative_to(run.path).as_posix(): _local(path) for path in run.path.glob("records/*/*.parquet")}
        return _of_files(str(run.path), files, split, sources, manifest.get("identity"), manifest.get("profile"))
    if run.path.exists():
        paths = [run.path] if run.path.is_file() else sorted(run.path.rglob("*.parquet"))
        names = {path.name if path == run.path else path.relative_to(run.path).as_posix(): path for path in paths}
        return _of_files(str(run.path), {name: _local(path) for name, path in names.items()}, split, sources)
    name = str(data)
    refuse_missing(name)
    local_name = isinstance(data, Path) or name.startswith((".", "/", "~")) or name.count("/") != 1
    if local_name and not name.startswith("hf://"):
        raise UsageError(f"{name}: no such run folder or Parquet file; a data set on the Hub is named org/name")
    try:
        return _of_hub(name, split, sources)
    except HubUnreachable as error:
        if name.startswith("hf://"):
            raise
        raise HubUnreachable(f"{error}; and there is no folder of that name here") from None


def _of_hub(name: str, split: str | None, sources: Sequence[str] | None) -> Records:
    repo, revision = parse_repo(name)
    repository = Repository(repo)
    if revision is None:
        revision = (["main"] + [f"v{version}" for version in repository.versions()])[-1]
    manifest = repository.manifest(revision)
    paths = [path for path in repository.files(revision) if path.endswith(".parquet")]
    # training rows lie beside the records of a version, under another name
    records = [path for path in paths if path.startswith("records/")] or paths
    files = {path: _remote(repository, path, revision) for path in records}
    return _of_files(name, files, split, sources, manifest.get("identity"), manifest.get("profile"))


def _remote(repository: Repository, path: str, revision: str) -> _OPEN:
    return lambda: repository.open(path, revision)


def _local(path: Path) -> _OPEN:
    return lambda: path.open("rb")


def _choose(name: str, files: Mapping[str, Any], sources: Sequence[str] | None) -> list[str]:
    if not files:
        raise UsageError(f"{name}: no record files (Parquet) in it")
    there = sorted({Path(path).parent.name for path in files})
    if unknown := [source for source in sources or () if source not in there]:
        raise UsageError(f"{name}: no source {unknown[0]!r}; it has {', '.join(filter(None, there)) or 'none'}")
    return [path for path in sorted(files) if sources is None or Path(path).parent.name in sources]


def _split_of(path: str) -> str:
    """Return the split that a file is named after, "" where it is named after none."""
    return next((split for split in SPLITS if Path(path).name.startswith(f"{split}-")), "")


def _of_files(
    name: str,
    files: Mapping[str, _OPEN],
    split: str | None,
    sources: Sequence[str] | None,
    identity: Mapping[str, Any] | None = None,
    profile: Mapping[str, Any] | None = None,
) -> Records:
    of_sources = _choose(name, files, sources)
    chosen = [path for path in of_sources if split is None or _split_of(path) in ("", split)]
    if not chosen:
        raise UsageError(f"{name}: no records in split {split!r}")
    left_out: dict[str, int] = {}
    for path in of_sources:
        if path not in chosen:
            with _damage(f"{name}: {path}"), files[path]() as handle:
                left_out[_split_of(path)] = left_out.get(_split_of(path), 0) + pq.read_metadata(handle).num_rows

    def tables(columns: Sequence[str]) -> Iterator[pa.Table]:
        for path in chosen:
            with _damage(f"{name}: {path}" if path not in name else name), files[path]() as handle:
                file = pq.ParquetFile(handle, pre_buffer=False)
                _check_columns(path, file.schema_arrow, columns)
                for group in range(file.num_row_groups):
                    # never rows of two groups in one batch: groups are small where rows are long
                    for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=list(columns)):
                        yield pa.Table.from_batches([batch]).select(list(columns))

    if identity is None:
        with _damage(f"{name}: {chosen[0]}"), files[chosen[0]]() as handle:
            stored = (pq.read_metadata(handle).metadata or {}).get(b"eagle3_data")
        identity = json.loads(stored) if stored else {}
    return Records(name, tables, left_out, identity or {}, profile or {})


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


def dataset_tables(
    data: datasets.Dataset | datasets.IterableDataset,
    columns: Sequence[str],
    sources: Sequence[str] | None = None,
    rows: int = BATCH_ROWS,
) -> Iterator[pa.Table]:
    """Yield the columns of a data set of records, `rows` at a time, in order.

    Raises:
        DataError: a column is missing.
    """
    names = data.column_names
    if names is not None and (missing := [column for column in columns if column not in names]):
        raise DataError(f"the data set has no column {missing[0]!r}, so these are no records of eagle3-data")
    wanted = list(dict.fromkeys([*columns, *(["source"] if sources is not None else [])]))
    known = arrow_schema(RECORD_FEATURES)
    for batch in data.select_columns(wanted).with_format("arrow").iter(rows):
        # of other columns the type is the data set's own
        fields = [known.field(name) if name in known.names else batch.schema.field(name) for name in wanted]
        table = batch.select(wanted).replace_schema_metadata(None).cast(pa.schema(fields))
        if sources is not None:
            table = table.filter(pa.compute.is_in(table["source"], pa.array(list(sources))))
        yield table.select(list(columns))


def read_ahead(items: Iterable[Item], ahead: int = 4) -> Iterator[Item]:
    """Make a few items ahead in a thread: decoding, working on rows and writing each have a core where there is one.

    Raises:
        Whatever `items` raises.
    """
    waiting: queue.Queue[tuple[bool, Any]] = queue.Queue(ahead)
    stop = threading.Event()

    def put(more: bool, item: Any) -> bool:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put((more, item), timeout=0.1)
                return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(True, item):
                    return
            put(False, None)
        except BaseException as error:
            put(False, error)

    thread = threading.Thread(target=work, name="read-ahead", daemon=True)
    thread.start()
    try:
        more, item = waiting.get()
        while more:
            yield item
            more, item = waiting.get()
        if item is not None:
            raise item
    finally:
        stop.set()
        thread.join()
