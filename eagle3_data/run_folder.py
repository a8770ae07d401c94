"""Where the files of a run lie, and how they are written: the only module that knows either.

Goes in: the folder of a run. Comes out: its paths, its manifest, its lock, and writers that put a file in its place
whole or not at all (written beside it, synced, renamed).
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eagle3_data.errors import DataError, DiskFull, MachineError, RunLocked
from eagle3_data.manifest import Manifest

_NAME_KEPT: Final = 200  # bytes of a name, so that its temporary one is not too long
ROWS_PER_FILE: Final = 50_000
ROWS_PER_GROUP: Final = 1_000
# Of token ids, before compression: who streams the first rows reads some three groups, each about half of this.
_BYTES_PER_GROUP: Final = 2**21


@contextlib.contextmanager
def machine_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors about `path` into a MachineError that says how to correct them.

    Raises:
        DiskFull: no space or quota is left.
        MachineError: no permission, a read-only file system, or an input/output error.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"{path}: no space left on this disk; free some and run the same command again, finished rows are kept"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO):
            raise MachineError(f"{path}: {os.strerror(error.errno)}; choose another place with --runs") from error
        raise


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def open_new(path: Path) -> tuple[Path, IO[bytes]]:
    """Create a file beside `path` under a name that nobody can guess, and never one that is there already."""
    beside = path.with_name(f".{path.name.encode()[:_NAME_KEPT].decode('utf-8', 'ignore')}.{secrets.token_hex(8)}.tmp")
    return beside, open(beside, "xb", opener=_without_links)


def open_append(path: Path) -> IO[bytes]:
    """Open a file to append to it, to lock it or to read it; a link in its place is an error, not followed.

    Raises:
        MachineError: the path is a symbolic link.
    """
    try:
        return open(path, "a+b", opener=_without_links)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise MachineError(f"{path}: a symbolic link, which is not followed; remove it") from error
        raise


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file that appears at `path` only when the block ends without an error.

    Raises:
        DiskFull, MachineError: as `machine_errors`; nothing is left behind.
    """
    path = Path(path)
    with machine_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, file = open_new(path)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, whole or not at all."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    with atomic_file(path) as file:
        file.write(text.encode() + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: the file is not JSON.
        FileNotFoundError: there is no such file.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}); restore it or remove the run folder") from error


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    """Return the paths of the leaf columns that a dictionary suits: all but lists of token ids (masks are int8).

    Token ids of real text are 15 to 40 % smaller without one (tests/benchmarks/publishing.py): a dictionary packs ids
    into odd numbers of bits, and zstd finds repeated phrases only where ids keep their four bytes.
    """

    def leaves(path: str, kind: pa.DataType) -> Iterator[str]:
        if pa.types.is_list(kind):
            if not pa.types.is_integer(kind.value_type) or pa.types.is_int8(kind.value_type):
                yield from leaves(f"{path}.list.element", kind.value_type)
        elif pa.types.is_struct(kind):
            for field in kind:
                yield from leaves(f"{path}.{field.name}", field.type)
        else:
            yield path

    return [leaf for field in schema for leaf in leaves(field.name, field.type)]


def write_parquet(
    path: Path, batches: Iterable[pa.Table], schema: pa.Schema, metadata: Mapping[str, str] | None = None
) -> int:
    """Write tables as one Parquet file (zstd, dictionary but for token ids, page index), whole or not at all.

    Args:
        path: where the file appears.
        batches: tables that can be cast to `schema`; each becomes row groups of at most ROWS_PER_GROUP rows, fewer
            where rows are long, so give tables of a multiple of that to keep the bytes independent of how they were
            cut.
        schema: Arrow schema without metadata of its own.
        metadata: key-value metadata of the file.

    Returns:
        The number of rows written.
    """
    rows = 0
    full = schema.with_metadata({key.encode(): value.encode() for key, value in (metadata or {}).items()})
    with (
        atomic_file(path) as file,
        pq.ParquetWriter(
            file,
            full,
            compression="zstd",
            compression_level=3,
            use_dictionary=_dictionary_columns(schema),
            write_page_index=True,
        ) as writer,
    ):
        for batch in batches:
            table = batch.replace_schema_metadata(None).select(schema.names).cast(schema)
            table = table.replace_schema_metadata(full.metadata)
            for first in range(0, max(1, table.num_rows), ROWS_PER_GROUP):
                part = table.slice(first, ROWS_PER_GROUP)
                groups = min(max(1, part.num_rows), max(1, -(-_id_bytes(part) // _BYTES_PER_GROUP)))
                writer.write_table(part, row_group_size=max(1, -(-part.num_rows // groups)))
            rows += table.num_rows
    return rows


def _id_bytes(table: pa.Table) -> int:
    """Return the bytes of the lists of integers in a table."""
    lists = [column for column in table.columns if pa.types.is_list(column.type)]
    numbers = [column for column in lists if pa.types.is_integer(column.type.value_type)]
    return sum(
        (pc.sum(pc.list_value_length(column)).as_py() or 0) * column.type.value_type.bit_width // 8
        for column in numbers
    )


class RunFolder:
    """The files of one run, `runs/<recipe name>/`."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    manifest_path = property(lambda self: self.path / "manifest.json")
    lengths_path = property(lambda self: self.path / "lengths.json")
    page_path = property(lambda self: self.path / "lengths.html")
    card_path = property(lambda self: self.path / "README.md")
    figures_path = property(lambda self: self.path / "figures")
    journal_path = property(lambda self: self.path / "journal")
    rejects_path = property(lambda self: self.path / "prompts" / "rejects.json")
    failures_path = property(lambda self: self.path / "failures.parquet")
    skipped_path = property(lambda self: self.path / "skipped.parquet")

    def progress_path(self, shard: tuple[int, int] = (0, 1)) -> Path:
        """Return where a process at work leaves its progress for `status`."""
        return self.path / ".progress" / f"{shard[0]:05d}-of-{shard[1]:05d}.json"

    def prompts_path(self, source: str) -> Path:
        """Return the Parquet file of a source's prompts, in draw order."""
        return self.path / "prompts" / f"{source}.parquet"

    def records_path(self, source: str) -> Path:
        """Return the folder of a source's record files."""
        return self.path / "records" / source

    def record_files(self, source: str, split: str = "train") -> list[Path]:
        """Return the Parquet files of a source's split, in order; empty when there are none."""
        return sorted(self.records_path(source).glob(f"{split}-*.parquet"))

    def drop_records_except(self, sources: Iterable[str]) -> list[str]:
        """Remove the record files of every other source and return their names; prompts and journal stay."""
        kept = set(sources)
        gone = [path for path in (self.path / "records").glob("[!.]*") if path.is_dir() and path.name not in kept]
        for path in gone:
            shutil.rmtree(path)
        return sorted(path.name for path in gone)

    def sources(self) -> list[str]:
        """Return the names of the sources that have records, sorted."""
        return sorted(path.parent.name for path in self.path.glob("records/*/train-00000-of-*.parquet"))

    def read_manifest(self) -> Manifest:
        """Return the manifest, an empty one for a run that has none yet.

        Raises:
            DataError: the manifest is damaged, of another format, or not one of eagle3-data.
        """
        try:
            values = read_json(self.manifest_path)
        except FileNotFoundError:
            return Manifest()
        return Manifest.parse(values, str(self.manifest_path))

    def write_manifest(self, manifest: Manifest | Mapping[str, Any]) -> None:
        """Replace the manifest."""
        write_json(self.manifest_path, Manifest.of(manifest).to_dict())

    def lock(self, name: str = "run") -> "RunLock":
        """Return a lock on this run (a context manager) that no second process can hold."""
        return RunLock(self.path / f".{name}.lock")


def lock_file(file: IO[Any], *, wait: bool = False) -> bool:
    """Lock an open file until it is closed or the process dies; False where another one holds it and `wait` is off."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


class RunLock:
    """An advisory lock on a file, held for the life of the block and freed by the system if the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        with machine_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open_append(self.path)
        if not lock_file(file):
            file.seek(0)
            owner = file.read(20).decode("utf-8", "replace").strip() or "unknown"
            file.close()
            raise RunLocked(
                f"{self.path.parent}: another process (pid {owner}) works on this run; wait for it, or stop it"
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n".encode())
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
