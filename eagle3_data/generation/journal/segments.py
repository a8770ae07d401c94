"""The files of a journal: one process's segment and its index, written by a thread and read back whatever tore them.

Goes in: frames and their heads. Comes out: synced bytes; and of a segment of any process, alive or dead, the heads of
its whole frames.
"""

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from eagle3_data.errors import MachineError
from eagle3_data.generation.journal.entry import scan
from eagle3_data.generation.journal.index import ROW, Rows
from eagle3_data.run_folder import machine_errors, open_append

_SYNC_SECONDS: Final = 1.0
_GATHER_SECONDS: Final = 0.01
_FRAMES_A_WRITE: Final = 512  # the system takes 1024
_INDEX_MAGIC: Final = b"e3ix"


class SegmentWriter:
    """Writes the frames of one segment from a thread of its own."""

    def __init__(self, log: Path, segment: int) -> None:
        self.segment = segment
        self.written = 0
        self.backlog = 0
        self._log = log
        self._file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        self.offset = 0  # where the next frame will lie
        self._synced = 0
        self._pending: list[bytes] = []
        self._heads: list[bytes] = []
        self._error: OSError | None = None
        self._urgent = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, frame: bytes, head: bytes) -> None:
        with self._changed:
            if self._error is not None:
                self._raise()
            self.offset += len(frame)
            self.backlog += len(frame)
            self._heads.append(head)
            self._pending.append(frame)
            if len(self._pending) == 1:
                self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            wanted = self.offset
            while self._synced < wanted:
                self._raise()
                self._urgent = True
                self._changed.notify_all()
                self._changed.wait(0.5)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._thread.join()
            os.close(self._file)

    def _raise(self) -> None:
        if self._error is not None:
            with machine_errors(self._log):
                raise OSError(self._error.errno, self._error.strerror) from self._error

    def _run(self) -> None:
        unsynced: list[bytes] = []
        last_sync = time.monotonic()
        while True:
            with self._changed:
                while not (self._pending or self._closing or self._urgent):
                    due = last_sync + _SYNC_SECONDS - time.monotonic() if unsynced else None
                    if due is not None and due <= 0:
                        break
                    self._changed.wait(due)
                urgent, self._urgent = self._urgent, False
                frames, self._pending = self._pending, []
                heads, self._heads = self._heads, []
                closing = self._closing
            try:
                length = _write_all(self._file, frames)
                frames.clear()
                unsynced += heads
                with self._changed:
                    self.written += length
                    self.backlog -= length
                if unsynced and (urgent or closing or time.monotonic() - last_sync >= _SYNC_SECONDS):
                    os.fdatasync(self._file)
                    last_sync = time.monotonic()
                    _append_index(self._log, unsynced, self.written)
                    unsynced = []
                    with self._changed:
                        self._synced = self.written
                        self._changed.notify_all()
            except OSError as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            if closing:
                return
            # Frames gather while this thread sleeps: one write and one wake-up for many rows, not one each.
            time.sleep(_GATHER_SECONDS)


def _write_all(file: int, frames: Sequence[bytes]) -> int:
    """Write frames one after another without joining them, and return their bytes."""
    length = 0
    for start in range(0, len(frames), _FRAMES_A_WRITE):
        part = frames[start : start + _FRAMES_A_WRITE]
        wanted = sum(map(len, part))
        written = os.writev(file, part)
        if written < wanted:
            rest = memoryview(b"".join(part))[written:]
            while rest:
                rest = rest[os.write(file, rest) :]
        length += wanted
    return length


def new_segment(path: Path, shard: int, shards: int) -> Path:
    stem = f"{shard:05d}-of-{shards:05d}"
    with machine_errors(path):
        number = 1 + max((int(log.name.split(".")[1]) for log in path.glob(f"{stem}.*.log")), default=-1)
        while True:
            log = path / f"{stem}.{number:06d}.log"
            try:
                os.close(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
                return log
            except FileExistsError:
                number += 1


def _append_index(log: Path, heads: Sequence[bytes], covered: int) -> None:
    """Append a batch: magic, rows, bytes of the log it reaches to, CRC of what follows, then the rows.

    It comes after the sync of the frames it speaks of, so whoever reads it need not check those again. It is itself
    never synced: where it is torn or missing, the log is scanned instead. A disk too full for it loses nothing.
    """
    rows = b"".join(heads)
    lead = len(heads).to_bytes(4, "little") + covered.to_bytes(8, "little")
    batch = _INDEX_MAGIC + lead + zlib.crc32(lead + rows).to_bytes(4, "little") + rows
    with contextlib.suppress(OSError, MachineError), open_append(log.with_suffix(".idx")) as file:
        file.write(batch)


def read_index(log: Path) -> Iterator[tuple[Rows, int]]:
    """Yield the index rows of a segment in parts, and how many bytes of it they cover by then, as far as trusted.

    Their field `segment` is what that process counted, and means nothing here.
    """
    index = log.with_suffix(".idx")
    if not index.exists():
        return
    size, left = log.stat().st_size, index.stat().st_size
    with index.open("rb") as file:
        while (lead := file.read(20))[:4] == _INDEX_MAGIC and len(lead) == 20:
            count, reach = int.from_bytes(lead[4:8], "little"), int.from_bytes(lead[8:16], "little")
            left -= 20 + count * ROW.itemsize
            if left < 0 or reach > size:
                return
            rows = bytearray(file.read(count * ROW.itemsize))
            if zlib.crc32(rows, zlib.crc32(lead[4:16])) != int.from_bytes(lead[16:20], "little"):
                return
            yield np.frombuffer(rows, ROW), reach


def scan_file(log: Path, start: int, chunk: int = 64 << 20) -> Iterator[bytes | int]:
    """Yield packed heads and damaged stretches of a segment from byte `start`, in bounded memory."""
    with log.open("rb") as file:
        file.seek(start)
        carried, base = b"", start
        while True:
            more = file.read(chunk)
            data = carried + more
            if not data:
                return
            heads: list[bytes | int] = list(scan(memoryview(data), base))
            # A frame may go on in the next chunk: keep the last stretch that is not whole until the file ends.
            last = heads[-1] if heads else 0
            tail = last if more and isinstance(last, int) else 0
            if tail:
                heads.pop()
            yield from heads
            if not more:
                return
            carried = data[len(data) - tail :] if tail else b""
            base += len(data) - len(carried)
