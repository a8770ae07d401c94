"""The journal of a run: every finished reply, on disk before anything else happens to it.

Goes in: `Entry` objects, in the order rows finish. Comes out: the same after a `kill -9`, a power cut in
mid-write or a full disk, found by sample_id and sample. Appending costs the caller no I/O: a thread writes what has
gathered and syncs it in groups. Each process writes segments of its own and never touches another's, so that a torn
tail needs no repair:
  identity.json                   what the answers depend on; another identity is refused
  00000-of-00001.000000.log       frames (see entry.py) of one process of one shard
  00000-of-00001.000000.idx       the heads of those frames, written after each sync: opens a million rows at once
"""

import json
import logging
import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from eagle3_data.errors import DataError, IdentityError, MachineError, UsageError
from eagle3_data.generation.journal.entry import (
    HEADER,
    MAGIC,
    OLD_MAGIC,
    Entry,
    Head,
    decode,
    encode,
    id_bytes,
    row_key,
)
from eagle3_data.generation.journal.index import ROW, U64, JournalIndex, Rows, rows_of
from eagle3_data.generation.journal.lock import ShardLock
from eagle3_data.generation.journal.segments import SegmentWriter, new_segment, read_index, scan_file
from eagle3_data.run_folder import machine_errors, read_json, write_json

logger = logging.getLogger(__name__)

_BACKLOG_BYTES: Final = 64 << 20
_OPEN_FILES: Final = 64
_HEADS_AT_ONCE: Final = 1 << 16
_FRAME_SPARE: Final = 512  # what a frame of no tokens is seldom longer than


class Journal:
    """An open journal. `append` and the look-ups belong to one thread; `flush` may be called from any.

    Args:
        path: folder of the journal; made if there is none.
        identity: JSON-ready description of all that the answers depend on; None to take what is there (reading).
        shard: (index, count) of the share of rows this process works on.
        vocabulary_size: ids of answers lie below it; smaller ones take less room.
        readonly: take no lock and write nothing.

    Raises:
        IdentityError: the journal holds answers of another identity.
        RunLocked: another process writes this shard, or shards of another count.
        DiskFull, MachineError: as the operating system says.
    """

    def __init__(
        self,
        path: Path | str,
        identity: Mapping[str, Any] | None = None,
        *,
        shard: tuple[int, int] = (0, 1),
        vocabulary_size: int = 1 << 31,
        readonly: bool = False,
    ) -> None:
        self.path = Path(path)
        self.index = JournalIndex()
        self.damaged_bytes = 0
        self._width = id_bytes(vocabulary_size)
        self.shard = shard
        self._segments: list[Path] = []
        self._files: dict[int, int] = {}
        self._lock = ShardLock(self.path, *shard)
        self._writer: SegmentWriter | None = None
        self._readonly = readonly
        if not readonly:
            with machine_errors(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        try:
            if identity is not None:
                self.check_identity(identity)
            self._load()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- identity -----------------------------------------------------------------------------------------------

    def check_identity(self, identity: Mapping[str, Any]) -> None:
        """Compare `identity` with the journal's, and add the parts that it does not know yet.

        Raises:
            IdentityError: a part differs; the message shows both.
        """
        identity = json.loads(json.dumps(identity))  # as it will be read back: lists for tuples
        file = self.path / "identity.json"
        known = read_json(file) if file.exists() else {}
        differences = [
            f"{name}: {there!r} there, {here!r} now"
            for part, wanted in identity.items()
            if part in known
            for name, there, here in _differences(part, known[part], wanted)
        ]
        if differences:
            raise IdentityError(
                f"{self.path}: holds answers of another run ({'; '.join(differences)}); "
                "use another run name or folder, or change it back"
            )
        if not self._readonly and (missing := {part: identity[part] for part in identity if part not in known}):
            write_json(file, {**known, **missing})

    # --- reading ------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self.index.load(self._parts())

    def _parts(self) -> Iterator[Rows]:
        """Yield the heads of all frames, segment by segment, in parts of bounded size."""
        for log in sorted(self.path.glob("*-of-*.*.log")):
            number = len(self._segments)
            if number >= np.iinfo(ROW["segment"]).max:
                raise DataError(f"{self.path}: more than {number} segments; move finished ones into one run folder")
            self._segments.append(log)
            with machine_errors(log):
                with log.open("rb") as file:
                    if file.read(len(MAGIC)) == OLD_MAGIC:
                        raise IdentityError(
                            f"{self.path}: written by an earlier version of eagle3-data, which had no samples; "
                            "give the recipe another name (its rows are asked again) or use that version"
                        )
                for rows in self._rows_of(log):
                    rows["segment"] = number
                    yield rows

    def _rows_of(self, log: Path) -> Iterator[Rows]:
        covered = 0
        for rows, reach in read_index(log):
            covered = reach
            yield rows
        heads: list[bytes] = []
        damage = 0
        for found in scan_file(log, covered):
            if isinstance(found, bytes):
                heads.append(found)
                if damage:
                    logger.warning("%s: %d damaged bytes skipped; their rows are asked again", log, damage)
                    damage = 0
                if len(heads) >= _HEADS_AT_ONCE:
                    yield rows_of(heads).copy()
                    heads = []
            else:
                damage = found
                self.damaged_bytes += found
        yield rows_of(heads).copy()

    def __len__(self) -> int:
        return len(self.index)

    def head(self, sample_id: str, sample: int = 0) -> Head | None:
        """Return how a row ended without reading its content, or None when it is unknown."""
        return self.index.find(row_key(sample_id, sample))

    def get(self, sample_id: str, sample: int = 0) -> Entry | None:
        """Return a row's outcome, or None.

        Raises:
            DataError: the frame is damaged, or belongs to another row.
        """
        found = self.index.find(row_key(sample_id, sample))
        if found is None:
            return None
        entry = self._read(found.segment, found.offset, found.tokens)
        if (entry.sample_id, entry.sample) != (sample_id, sample):
            log = self._segments[found.segment]
            raise DataError(f"{log}: two rows have the same key: {entry.sample_id} and {sample_id}")
        return entry

    def read_many(self, positions: npt.NDArray[np.int64]) -> list[Entry | None]:
        """Return the outcomes at `positions` of the index (None for -1), read in the order they lie on disk."""
        known = np.flatnonzero(positions >= 0)
        places = [self.index.column(name, positions[known]) for name in ("segment", "offset", "tokens")]
        order = np.lexsort((places[1], places[0]))
        entries: list[Entry | None] = [None] * len(positions)
        for at, *place in zip(known[order].tolist(), *(column[order].tolist() for column in places), strict=True):
            entries[at] = self._read(*place)
        return entries

    def look_up(self, keys: U64) -> npt.NDArray[np.int64]:
        """Return index positions of many keys (see `keys_of`), -1 where unknown."""
        return self.index.positions(keys)

    def _read(self, segment: int, offset: int, tokens: int) -> Entry:
        if self._writer is not None and segment == self._writer.segment and offset >= self._writer.written:
            self.flush()
        log = self._segments[segment]
        file = self._files.get(segment)
        if file is None:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            file = self._files[segment] = os.open(log, os.O_RDONLY)
        try:  # not `with`: it costs a tenth of the whole look-up
            data = os.pread(file, _FRAME_SPARE + self._width * tokens, offset)
            magic, length, crc = HEADER.unpack_from(data) if len(data) >= HEADER.size else (b"", 0, 0)
            if magic == MAGIC and len(data) < HEADER.size + length:
                data += os.pread(file, HEADER.size + length - len(data), offset + len(data))
        except OSError as error:
            with machine_errors(log):
                raise error
        body = memoryview(data)[HEADER.size : HEADER.size + length]
        if magic != MAGIC or len(body) != length or zlib.crc32(body) != crc:
            raise DataError(
                f"{log}: the frame at byte {offset} is damaged; remove {log.with_suffix('.idx').name} and run "
                "generate again: whole frames are kept, damaged ones are asked again"
            )
        return decode(body)

    # --- writing ------------------------------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Take in an outcome. It is on disk about a second later, at the latest after `flush` or `close`.

        Raises:
            DiskFull, MachineError: an earlier write failed; nothing more is taken in.
        """
        if self._readonly:
            raise MachineError(f"{self.path}: this journal was opened for reading only")
        if self._writer is None:
            self._segments.append(new_segment(self.path, *self.shard))
            self._writer = SegmentWriter(self._segments[-1], len(self._segments) - 1)
        key = row_key(entry.sample_id, entry.sample)
        frame, crc = encode(entry, key, self._width)
        code, tokens = int(entry.outcome), len(entry.output_ids)
        # Only this thread appends, so the frame will lie where the writer's offset is now.
        where = (self._writer.offset, crc, entry.prompt_crc, tokens, self._writer.segment)
        head = Head(key, *where, entry.rounds, code).packed()
        self._writer.put(frame, head)
        self.index.add(key, head)

    @property
    def backlog_full(self) -> bool:
        """Whether so much waits to be written that the caller should `flush` before asking for more."""
        return self._writer is not None and self._writer.backlog > _BACKLOG_BYTES

    def flush(self) -> None:
        """Return once everything appended so far is synced to disk.

        Raises:
            DiskFull, MachineError: it could not be written.
        """
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Sync, end the writing thread and free the lock. Idempotent.

        Raises:
            DiskFull, MachineError: the last frames could not be written.
        """
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        finally:
            for file in self._files.values():
                os.close(file)
            self._files.clear()
            self._lock.release()


def _differences(name: str, there: Any, here: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in sorted({*there, *here}):
            yield from _differences(f"{name}.{key}", there.get(key), here.get(key))
    elif there != here:
        yield name, there, here


_guard = threading.Lock()
_open: dict[tuple[int, Path], "_Shared"] = {}


class _Shared(Journal):
    """A journal that several Generators of one process use; it closes when the last of them closes it."""

    users = 0
    place: tuple[int, Path]

    def close(self) -> None:
        """Sync; close when nobody else uses it."""
        with _guard:
            if self.users == 0:
                return
            self.users -= 1
            last = self.users == 0
            if last:
                _open.pop(self.place, None)
        if last:
            super().close()
        else:
            self.flush()


def shared_journal(path: Path, identity: Mapping[str, Any], shard: tuple[int, int], vocabulary_size: int) -> Journal:
    """Return the open journal of `path`, opened if this process has none yet.

    Raises:
        UsageError: it is open here for another shard.
        IdentityError, RunLocked, MachineError: as `Journal`.
    """
    place = (os.getpid(), path.resolve())
    with _guard:
        journal = _open.get(place)
        if journal is None:
            journal = _Shared(path, identity, shard=shard, vocabulary_size=vocabulary_size)
            journal.place = place
            _open[place] = journal
        elif journal.shard != shard:
            raise UsageError(f"{path}: open in this process for shard {journal.shard}; close that Generator first")
        else:
            journal.check_identity(identity)
        journal.users += 1
        return journal
