"""The rendered prompts of a source on disk, so that each is rendered once and any can be fetched at once.

Goes in: the prompts in draw order and a target. Comes out: the ids of row n, for the pool in any order and for the
records in draw order. Rows are appended in draw order; what a dead process left is taken up where it is whole, and
other processes (shards) follow the one that appends.
  <source>.json    what the ids depend on: another target, and they are made anew
  <source>.rows    one fixed-size line a prompt (_ROW)
  <source>.ids     per prompt its ids (int32), its sample_id and, of a dialogue, its script
"""

import itertools
import json
import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3_data.errors import DataError
from eagle3_data.generation.asked_target import AskedTarget
from eagle3_data.generation.dialogues import ScriptedPrompt
from eagle3_data.generation.journal.entry import Ids
from eagle3_data.generation.journal.index import U64, keys_of
from eagle3_data.generation.prompts.table import PromptTable
from eagle3_data.run_folder import lock_file, machine_errors, open_append, read_json, write_json
from eagle3_data.schema import clean_messages

logger = logging.getLogger(__name__)

_ROW: Final = np.dtype(
    [
        ("start", "<u8"),
        ("hi", "<u8"),
        ("lo", "<u8"),
        ("count", "<u4"),
        ("crc", "<u4"),
        ("name", "<u4"),
        ("script", "<u4"),
        ("forged", "<u4"),
    ]
)
_LINE: Final = struct.Struct("<QQQIIIII")  # the same, for one row at a time
_CHUNK: Final = 256
_RENDERED: Final = ("sample_id", "messages", "tools", "source_turn", "later_turns")
_LOOK_ROWS: Final = 50_000
_POLL_SECONDS: Final = 0.5
_FORMAT: Final = 3


@dataclass(frozen=True, slots=True)
class Chunk:
    """The ids of consecutive prompts: `values` is all of them, prompt i is values[offsets[i]:offsets[i + 1]]."""

    values: Ids
    offsets: npt.NDArray[np.int64]
    crcs: npt.NDArray[np.uint32]


class RenderedPrompts:
    """The rendered prompts of one source, open for reading; `advance` adds what is missing.

    Args:
        folder: where the three files lie.
        source: name of the source.
        table: its prompts in draw order.
        renderer: turns messages into ids (not asked when the table has input_ids).

    Raises:
        MachineError: as the operating system says.
    """

    def __init__(self, folder: Path, source: str, table: PromptTable, renderer: AskedTarget) -> None:
        self.source = source
        self._table = table
        self._renderer = renderer
        self._given = "input_ids" in table.columns
        self._stamp = {
            "format": _FORMAT,
            "target": json.loads(json.dumps(renderer.identity())),
            "given": table.signature if self._given else None,
        }
        self._paths = {kind: folder / f"{source}.{kind}" for kind in ("json", "rows", "ids", "lock")}
        self.faults: dict[int, str] = {}
        self.ready = 0
        with machine_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = open_append(self._paths["lock"])
            self._appending = lock_file(self._lock)
            if self._appending:
                self._prepare()
            for kind in ("rows", "ids"):
                open_append(self._paths[kind]).close()
            self._rows = os.open(self._paths["rows"], os.O_RDONLY)
            self._ids = os.open(self._paths["ids"], os.O_RDONLY)
        self._look()

    def close(self) -> None:
        """Close the files; whoever follows may append from now on. Idempotent."""
        if not self._lock.closed:
            self._lock.close()
            os.close(self._rows)
            os.close(self._ids)

    @property
    def complete(self) -> bool:
        """Whether every prompt is there."""
        return self.ready >= self._table.rows

    # --- taking up what is there --------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Keep the whole rows of an earlier process that belong to these prompts and this target; drop the others."""
        rows, ids = self._paths["rows"], self._paths["ids"]
        stamp = read_json(self._paths["json"]) if self._paths["json"].exists() else None
        keep = end = 0
        whole = stamp is not None and {**stamp, "rows": None} == {**self._stamp, "rows": None}
        if stamp is not None and whole and rows.exists() and ids.exists():
            finished = stamp.get("rows", -1) * _ROW.itemsize == rows.stat().st_size
            keep, end = self._whole_rows(look_at_ids=not finished)
        for path, size in ((rows, keep * _ROW.itemsize), (ids, end)):
            path.touch()
            if path.stat().st_size != size:
                os.truncate(path, size)
        if not whole:
            write_json(self._paths["json"], self._stamp)

    def _whole_rows(self, look_at_ids: bool) -> tuple[int, int]:
        """Return how many of the first rows are those of the table and whole, and where their ids end.

        Args:
            look_at_ids: also compare the ids with what was written (the last writer did not finish).
        """
        keep = end = 0
        size = self._paths["ids"].stat().st_size
        with self._paths["rows"].open("rb") as rows_file, self._paths["ids"].open("rb") as ids_file:
            for batch in self._table.batches(["sample_id", "later_turns"], size=_LOOK_ROWS):
                keys = _row_keys(batch)
                data = rows_file.read(len(keys) * _ROW.itemsize)
                lines = np.frombuffer(data, _ROW, len(data) // _ROW.itemsize)
                keys = keys[: len(lines)]
                ends = lines["start"] + lines["count"].astype(np.uint64) * 4 + lines["name"] + lines["script"]
                good = (lines["hi"] == keys[:, 0]) & (lines["lo"] == keys[:, 1]) & (ends <= size)
                count = int(np.argmin(good)) if not good.all() else len(good)
                if look_at_ids:
                    count = _undamaged(ids_file, lines[:count])
                if count:
                    end = int(ends[count - 1])
                keep += count
                if count < batch.num_rows:
                    break
        return keep, end

    def _look(self) -> None:
        self.ready = min(os.fstat(self._rows).st_size // _ROW.itemsize, self._table.rows)

    # --- adding -------------------------------------------------------------------------------------------------

    def advance(self, on_ready: Callable[[int], None], stop: threading.Event) -> None:
        """Render what is missing, or follow the process that does; return when all is there or `stop` is set.

        Args:
            on_ready: called after each chunk with the number of rows that are there.
            stop: ends it early.

        Raises:
            DiskFull, MachineError: the ids cannot be written.
        """
        on_ready(self.ready)
        while not self.complete and not stop.is_set():
            if not self._appending:
                self._appending = lock_file(self._lock)
                if self._appending:
                    with machine_errors(self._paths["ids"]):
                        self._prepare()
                else:
                    stop.wait(_POLL_SECONDS)
                before = self.ready
                self._look()
                if self.ready != before:
                    on_ready(self.ready)
                continue
            with machine_errors(self._paths["ids"]):
                self._append(on_ready, stop)
        if self._appending and self.complete:
            write_json(self._paths["json"], {**self._stamp, "rows": self._table.rows})

    def _append(self, on_ready: Callable[[int], None], stop: threading.Event) -> None:
        start = self._paths["ids"].stat().st_size
        with open_append(self._paths["ids"]) as ids_file, open_append(self._paths["rows"]) as rows_file:
            columns = ["sample_id", "input_ids"] if self._given else list(_RENDERED)
            for batch in self._table.batches(columns, self.ready, _CHUNK):
                if stop.is_set():
                    break
                names = batch.column("sample_id").to_pylist()
                lines = np.zeros(len(names), _ROW)
                keys = _row_keys(batch)
                lines["hi"], lines["lo"] = keys[:, 0], keys[:, 1]
                pieces: list[bytes] = []
                rendered, scripts, lines["forged"] = self._rendered(batch)
                for name, ids, script in zip(names, rendered, scripts, strict=True):
                    pieces += (ids.tobytes(), name.encode(), script)
                sizes = np.array([len(piece) for piece in pieces], np.uint64).reshape(-1, 3)
                lines["start"] = start + np.cumsum(sizes.sum(axis=1)) - sizes.sum(axis=1)
                lines["count"], lines["name"], lines["script"] = sizes[:, 0] // 4, sizes[:, 1], sizes[:, 2]
                lines["crc"] = [zlib.crc32(piece) for piece in pieces[0::3]]
                start += int(sizes.sum())
                ids_file.write(b"".join(pieces))
                ids_file.flush()
                rows_file.write(lines.tobytes())
                rows_file.flush()
                self.ready += len(names)
                on_ready(self.ready)
            os.fsync(ids_file.fileno())
            os.fsync(rows_file.fileno())

    def _rendered(self, batch: pa.Table) -> tuple[list[Ids], list[bytes], list[int]]:
        """Return the ids of a chunk's prompts, their scripts, and how many control strings each spells.

        Where ids are given there are no scripts, and no texts that could spell any.
        """
        if self._given:
            column = batch.column("input_ids").combine_chunks()
            column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            values = column.values.to_numpy(zero_copy_only=False)
            offsets = column.offsets.to_numpy()
            if len(values) and (values.min() < -(2**31) or values.max() >= 2**31):
                raise DataError(f"{self._table.name}: input_ids holds numbers beyond int32")
            ids = [values[low:high].astype("<i4") for low, high in itertools.pairwise(offsets)]
            return ids, [b""] * len(ids), [0] * len(ids)
        messages = [clean_messages(chat or []) for chat in batch.column("messages").to_pylist()]
        tools = batch.column("tools").to_pylist()
        whole_chats, scripts = messages, [b""] * len(messages)
        if "later_turns" in batch.column_names and "source_turn" in batch.column_names:
            columns = ("messages", "tools", "source_turn", "later_turns")
            found = [ScriptedPrompt.of_row(row) for row in batch.select(columns).to_pylist()]
            messages = [one.first if one else chat for one, chat in zip(found, messages, strict=True)]
            scripts = [one.to_bytes() if one else b"" for one in found]
        try:
            rendered = self._renderer.render_batch(messages, tools)
        except Exception:
            rendered = [self._one(self.ready + at, *pair) for at, pair in enumerate(zip(messages, tools, strict=True))]
        whole = [np.ascontiguousarray(ids, "<i4") for ids in rendered]
        # A chat that could not be rendered cannot be looked into either.
        spelled = zip(whole, whole_chats, tools, strict=True)
        forged = [self._renderer.forged(_texts(chat), offered) if len(ids) else 0 for ids, chat, offered in spelled]
        return whole, scripts, forged

    def _one(self, row: int, messages: list[dict[str, Any]], tools: str) -> Ids:
        """Render one prompt of a chunk that could not be rendered together; a faulty one gets no ids."""
        try:
            return self._renderer.render_batch([messages], [tools])[0]
        except Exception as error:
            self.faults[row] = f"{type(error).__name__}: {error}"[:500]
            return np.zeros(0, np.int32)

    # --- fetching -----------------------------------------------------------------------------------------------

    def row(self, number: int) -> tuple[str, Ids, ScriptedPrompt | None]:
        """Return the sample_id and ids of one prompt (none if its template failed), and its script if it has one.

        Raises:
            DataError: the bytes on disk are damaged.
        """
        start, _, _, tokens, crc, name, script, _ = _LINE.unpack(os.pread(self._rows, _LINE.size, number * _LINE.size))
        data = os.pread(self._ids, tokens * 4 + name + script, start)
        ids = np.frombuffer(data, "<i4", tokens)
        if zlib.crc32(ids.data) != crc:
            raise self._damaged(number)
        end = tokens * 4 + name
        found = ScriptedPrompt.from_bytes(data[end:]) if script else None
        return data[tokens * 4 : end].decode(), ids.astype(np.int32, copy=False), found

    def chunk(self, start: int, rows: int) -> Chunk:
        """Return the ids of `rows` prompts from `start`.

        Raises:
            DataError: the bytes on disk are damaged.
        """
        lines = np.frombuffer(os.pread(self._rows, rows * _ROW.itemsize, start * _ROW.itemsize), _ROW)
        if len(lines) != rows:
            raise DataError(f"{self._paths['rows']}: ends before row {start + rows}; run generate again")
        first = int(lines["start"][0])
        last = lines[-1]
        data = memoryview(os.pread(self._ids, int(last["start"]) + int(last["count"]) * 4 - first, first))
        offsets = np.zeros(rows + 1, np.int64)
        np.cumsum(lines["count"], out=offsets[1:])
        values = np.empty(int(offsets[-1]), np.int32)
        for at, (begin, count, crc) in enumerate(lines[["start", "count", "crc"]].tolist()):
            piece = data[begin - first : begin - first + count * 4]
            if zlib.crc32(piece) != crc:
                raise self._damaged(start + at)
            values[offsets[at] : offsets[at + 1]] = np.frombuffer(piece, "<i4")
        return Chunk(values, offsets, lines["crc"].astype(np.uint32))

    def counts(self, start: int, rows: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Return tokens, and control strings that the texts spell, of `rows` prompts from `start`."""
        lines = np.frombuffer(os.pread(self._rows, rows * _ROW.itemsize, start * _ROW.itemsize), _ROW)
        return lines["count"], lines["forged"]

    def _damaged(self, number: int) -> DataError:
        return DataError(
            f"{self._paths['ids']}: the ids of row {number} are damaged; remove this file and run generate again, "
            "prompts are then rendered anew and finished rows are kept"
        )


def _row_keys(batch: pa.Table) -> U64:
    """Return what tells whether a line belongs to a prompt: its sample_id and those of its later turns."""
    names = batch.column("sample_id").to_pylist()
    if "later_turns" in batch.column_names:
        later = batch.column("later_turns").to_pylist()
        names = [" ".join((name, *rest)) if rest else name for name, rest in zip(names, later, strict=True)]
    return keys_of(names)


def _texts(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the places of a script that the target's answers will take."""
    return [message for message in chat if message.get("content") is not None]


def _undamaged(ids_file: BinaryIO, lines: "np.ndarray[Any, Any]") -> int:
    """Return how many of the first rows have the ids they were written with."""
    for at, (start, count, crc) in enumerate(lines[["start", "count", "crc"]].tolist()):
        ids_file.seek(start)
        if zlib.crc32(ids_file.read(count * 4)) != crc:
            return at
    return len(lines)
