"""One outcome of one row as the journal stores it: its fields, its bytes, and the key it is found by.

Goes in: an `Entry`. Comes out: a frame (magic, length, CRC-32, body) that can be told from torn or rotten bytes, and
back. Done entries hold nothing that differs between two runs with the same answers, so that their CRC names content.
"""

import functools
import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from eagle3_data.outcome import Outcome, of_code

Ids = npt.NDArray[np.int32]

MAGIC: Final = b"\xe3J\x02\n"
OLD_MAGIC: Final = b"\xe3J\x01\n"  # of frames whose key was the sample_id alone
HEADER: Final = struct.Struct("<4sII")  # magic, length of the body, CRC-32 of the body
_BODY: Final = struct.Struct("<16sBBHiIIIIHHH")
_HEAD: Final = struct.Struct("<16sQIIIHHB")
_NO_IDS: Final[Ids] = np.zeros(0, np.int32)
MAX_BODY: Final = 1 << 30


@dataclass(slots=True)
class Entry:
    """An outcome. `output_ids` holds the whole answer so far, earlier rounds included.

    `budget` is the max_new_tokens sent, rounds summed; for a skipped row it is the longest prompt that would have
    fitted. `prompt_crc` is the CRC-32 of the prompt's int32 ids, so that no answer is ever joined to another prompt.
    """

    sample_id: str
    outcome: Outcome
    prompt_tokens: int
    prompt_crc: int
    budget: int = 0
    rounds: int = 0
    stop_token_id: int = -1
    output_ids: Ids = field(default_factory=lambda: _NO_IDS)
    reason: str = ""
    message: str = ""
    http_status: int = 0
    attempts: int = 0
    sample: int = 0


@functools.lru_cache(1 << 12)
def row_key(sample_id: str, sample: int = 0) -> bytes:
    """Return the 16 bytes a row is found by: BLAKE2b of sample_id and sample. Remembers rows that are under way."""
    return hash_of(sample_id, sample)


def hash_of(sample_id: str, sample: int = 0) -> bytes:
    """Return what `row_key` does, for many rows that are asked for once each."""
    return hashlib.blake2b(f"{sample_id}\0{sample}".encode(), digest_size=16).digest()


def prompt_crc(ids: Ids) -> int:
    """Return the CRC-32 of a prompt's ids as little-endian int32."""
    return zlib.crc32(np.ascontiguousarray(ids, "<i4").data)


def id_bytes(vocabulary_size: int) -> int:
    """Return the bytes an id takes: no vocabulary needs a fourth, small ones not a third."""
    return 2 if vocabulary_size <= 1 << 16 else 3 if vocabulary_size <= 1 << 24 else 4


def _pack(ids: Ids, width: int) -> bytes:
    if width == 4:
        return ids.astype("<i4", copy=False).tobytes()
    low = ids.astype("<u2").tobytes()
    # First the low two bytes of every id, then the third: casts of whole arrays, not three bytes id by id.
    return low if width == 2 else low + (ids >> 16).astype(np.uint8).tobytes()


def _unpack(width: int, count: int, data: memoryview) -> Ids:
    if width == 2:
        return np.frombuffer(data, "<u2", count).astype(np.int32)
    if width == 3:
        ids = np.empty(count, "<i4")
        halves = ids.view("<u2").reshape(-1, 2)  # written half by half: a third of the time of shifting and joining
        halves[:, 0] = np.frombuffer(data, "<u2", count)
        halves[:, 1] = np.frombuffer(data, np.uint8, count, count * 2)
        return ids
    return np.frombuffer(data, "<i4", count).astype(np.int32)


def encode(entry: Entry, key: bytes, width: int) -> tuple[bytes, int]:
    """Return the frame of an entry, its ids in `width` bytes each, and the CRC of its body."""
    name = entry.sample_id.encode()
    if entry.outcome.answered:
        tail = _pack(entry.output_ids, width)
    else:
        tail = orjson.dumps([entry.reason, entry.message, entry.http_status])
    lead = _BODY.pack(
        key,
        entry.outcome,
        width,
        len(name),
        entry.stop_token_id,
        entry.budget,
        entry.prompt_tokens,
        entry.prompt_crc,
        len(entry.output_ids),
        entry.rounds,
        min(entry.attempts, 0xFFFF),
        entry.sample,
    )
    crc = zlib.crc32(tail, zlib.crc32(lead + name))
    return b"".join((HEADER.pack(MAGIC, len(lead) + len(name) + len(tail), crc), lead, name, tail)), crc


def decode(body: memoryview) -> Entry:
    """Return the entry in the body of a frame whose CRC was right."""
    (_, code, width, name, stop, budget, prompt, crc, count, rounds, attempts, sample) = _BODY.unpack_from(body)
    start = _BODY.size
    entry = Entry(
        sample_id=str(body[start : start + name], "utf-8"),
        outcome=of_code(code),
        prompt_tokens=prompt,
        prompt_crc=crc,
        budget=budget,
        rounds=rounds,
        stop_token_id=stop,
        attempts=attempts,
        sample=sample,
    )
    tail = body[start + name :]
    if entry.outcome.answered:
        entry.output_ids = _unpack(width, count, tail)
    else:
        entry.reason, entry.message, entry.http_status = orjson.loads(tail)
    return entry


class Head(NamedTuple):
    """What the index keeps of a frame; packed it is one row of the index, on disk and in memory alike."""

    key: bytes
    offset: int
    crc: int
    prompt_crc: int
    tokens: int
    segment: int
    rounds: int
    outcome: int

    def packed(self) -> bytes:
        """Return it as bytes, which the garbage collector need not look at."""
        return _HEAD.pack(*self)

    @classmethod
    def unpacked(cls, row: bytes) -> "Head":
        """Return what `packed` packed."""
        return cls._make(_HEAD.unpack(row))


def scan(data: memoryview, base: int) -> Iterator[bytes | int]:
    """Yield the packed head of every whole frame in `data`, and the byte count of every damaged stretch between them.

    Args:
        data: bytes of a segment from offset `base` to its end.
        base: what to add to positions in `data`.
    """
    position, end = 0, len(data)
    raw = data.obj if isinstance(data.obj, bytes) and len(data.obj) == end else bytes(data)
    while position < end:
        head = _whole_frame(data, position)
        if head is not None:
            length, crc = head
            (key, code, _, _, _, _, _, prompt, tokens, rounds, _, _) = _BODY.unpack_from(data, position + HEADER.size)
            yield Head(key, base + position, crc, prompt, tokens, 0, rounds, code).packed()
            position += HEADER.size + length
            continue
        following = raw.find(MAGIC, position + 1)
        while following >= 0 and _whole_frame(data, following) is None:
            following = raw.find(MAGIC, following + 1)
        stop = following if following >= 0 else end
        yield stop - position
        position = stop


def _whole_frame(data: memoryview, position: int) -> tuple[int, int] | None:
    """Return (length, CRC) of the frame at `position`, or None if there is no undamaged one."""
    if len(data) - position < HEADER.size + _BODY.size:
        return None
    magic, length, crc = HEADER.unpack_from(data, position)
    start = position + HEADER.size
    if magic != MAGIC or not _BODY.size <= length <= min(MAX_BODY, len(data) - start):
        return None
    return (length, crc) if zlib.crc32(data[start : start + length]) == crc else None
