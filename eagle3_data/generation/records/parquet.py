"""The Parquet files of one source: filled in order, and put in place all at once.

Goes in: tables of records, split by split. Comes out: `<split>-00000-of-0000N.parquet`; until the last is whole the
files of before stay. A thread a file encodes while the next rows are gathered.
"""

import queue
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from eagle3_data.run_folder import ROWS_PER_FILE, ROWS_PER_GROUP, machine_errors, sync_directory, write_parquet
from eagle3_data.schema import RECORD_FEATURES, arrow_schema


class RecordFiles:
    """The files of `folder`; a context manager that puts them in place when its block ends well.

    Args:
        folder: `records/<source>`.
        metadata: key-value metadata of every file.
    """

    def __init__(self, folder: Path, metadata: dict[str, str]) -> None:
        self._folder = folder
        self._fresh = folder.with_name(f".{folder.name}.new")
        self._old = folder.with_name(f".{folder.name}.old")
        self._metadata = metadata
        self._splits: dict[str, _Split] = {}

    def present(self) -> dict[str, list[int]]:
        """Return name, size and time of the files that are in place."""
        return {
            path.name: [path.stat().st_size, path.stat().st_mtime_ns]
            for path in sorted(self._folder.glob("*.parquet"))
        }

    def __enter__(self) -> Self:
        with machine_errors(self._folder):
            shutil.rmtree(self._fresh, ignore_errors=True)
            self._fresh.mkdir(parents=True)
        self._splits = {"train": _Split("train", self._fresh, self._metadata)}
        return self

    def add(self, split: str, table: pa.Table) -> None:
        """Append records to a split.

        Raises:
            DiskFull, MachineError: an earlier part of it could not be written.
        """
        if split not in self._splits:
            self._splits[split] = _Split(split, self._fresh, self._metadata)
        self._splits[split].add(table)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for split in self._splits.values():
                split.abandon()
            shutil.rmtree(self._fresh, ignore_errors=True)
            return
        try:
            for split in self._splits.values():
                split.finish()
        except BaseException:
            shutil.rmtree(self._fresh, ignore_errors=True)
            raise
        with machine_errors(self._folder):
            shutil.rmtree(self._old, ignore_errors=True)
            if self._folder.exists():
                self._folder.rename(self._old)
            self._fresh.rename(self._folder)
            sync_directory(self._folder.parent)
            shutil.rmtree(self._old, ignore_errors=True)


class _Split:
    """Cuts a split into whole row groups and files."""

    def __init__(self, name: str, folder: Path, metadata: dict[str, str]) -> None:
        self._name = name
        self._folder = folder
        self._metadata = metadata
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._rows_in_file = 0
        self._files: list[_File] = []

    def add(self, table: pa.Table) -> None:
        self._held.append(table)
        self._held_rows += table.num_rows
        while self._held_rows >= ROWS_PER_GROUP:
            joined = pa.concat_tables(self._held)
            self._emit(joined.slice(0, ROWS_PER_GROUP))
            rest = joined.slice(ROWS_PER_GROUP)
            self._held, self._held_rows = ([rest] if rest.num_rows else []), rest.num_rows

    def _emit(self, table: pa.Table) -> None:
        if not self._files or self._rows_in_file >= ROWS_PER_FILE:
            if self._files:
                self._files[-1].finish()
            self._files.append(_File(self._folder / f"{self._name}-{len(self._files)}.part", self._metadata))
            self._rows_in_file = 0
        self._files[-1].put(table)
        self._rows_in_file += table.num_rows

    def finish(self) -> None:
        if self._held_rows:
            self._emit(pa.concat_tables(self._held))
        if not self._files:  # a split without rows is one file without rows, so that the source still opens
            self._emit(arrow_schema(RECORD_FEATURES).empty_table())
        for number, file in enumerate(self._files):
            file.finish()
            file.path.rename(self._folder / f"{self._name}-{number:05d}-of-{len(self._files):05d}.parquet")

    def abandon(self) -> None:
        for file in self._files:
            file.abandon()


class _File:
    """One Parquet file, encoded in a thread of its own (Arrow lets go of the interpreter while it compresses)."""

    def __init__(self, path: Path, metadata: dict[str, str]) -> None:
        self.path = path
        self._tables: queue.Queue[pa.Table | Exception | None] = queue.Queue(maxsize=2)
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(metadata,), name="parquet", daemon=True)
        self._thread.start()

    def _run(self, metadata: dict[str, str]) -> None:
        try:
            write_parquet(self.path, self._given(), arrow_schema(RECORD_FEATURES), metadata)
        except BaseException as error:
            self._error = error
            for _ in self._given():  # or whoever puts would wait for ever
                pass

    def _given(self) -> Iterator[pa.Table]:
        while not self._ended:
            table = self._tables.get()
            self._ended = not isinstance(table, pa.Table)
            if isinstance(table, Exception):
                raise table
            if table is not None:
                yield table

    def put(self, table: Any) -> None:
        if self._error is not None:
            raise self._error
        self._tables.put(table)

    def finish(self) -> None:
        if self._thread.is_alive():
            self._tables.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        if self._thread.is_alive():
            self._tables.put(InterruptedError("abandoned"))
        self._thread.join()
