"""The journal keeps every row it said it kept, through torn writes, rot, full disks and second processes."""

import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3_data.errors import DiskFull, IdentityError, MachineError, RunLocked
from eagle3_data.generation.journal import index as journal_index
from eagle3_data.generation.journal.entry import Entry, Head, prompt_crc, row_key
from eagle3_data.generation.journal.index import JournalIndex, keys_of, rows_of
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.generation.journal.segments import scan_file
from eagle3_data.outcome import Outcome

IDENTITY = {"target": {"model": "m", "stop": (1, 2)}, "sampling": {"temperature": 0.0}}
PROMPT = np.arange(5, dtype=np.int32)


def entry(number: int, tokens: int = 9, outcome: Outcome = Outcome.STOP, **changes: Any) -> Entry:
    values: dict[str, Any] = {
        "budget": 100,
        "rounds": 1,
        "stop_token_id": 2,
        "output_ids": np.arange(number, number + tokens, dtype=np.int32),
    }
    return Entry(f"B1-{number:024x}", outcome, 5, prompt_crc(PROMPT), **{**values, **changes})


def fill(path: Path, count: int) -> None:
    with Journal(path, IDENTITY) as journal:
        for number in range(count):
            journal.append(entry(number))


def log_of(path: Path) -> Path:
    return next(path.glob("*.log"))


def same(left: Entry | None, right: Entry) -> bool:
    assert left is not None
    return np.array_equal(left.output_ids, right.output_ids) and all(
        getattr(left, name) == getattr(right, name) for name in Entry.__slots__ if name != "output_ids"
    )


@pytest.mark.parametrize("top", [10, 65_535, 65_536, 163_839, 16_777_215, 16_777_216, 2**31 - 1])
def test_ids_of_every_width_come_back(tmp_path: Path, top: int) -> None:
    wanted = entry(1, output_ids=np.array([0, top, 3, top], np.int32))
    with Journal(tmp_path, IDENTITY, vocabulary_size=top + 1) as journal:
        journal.append(wanted)
        assert same(journal.get(wanted.sample_id), wanted)
    with Journal(tmp_path, IDENTITY) as journal:
        assert same(journal.get(wanted.sample_id), wanted)
        assert journal.get("B1-unknown") is None


def test_failures_and_skips_come_back(tmp_path: Path) -> None:
    failed = Entry("B1-x", Outcome.FAILED, 5, 1, reason="http_400", message="zu lang “ü”", http_status=400, attempts=3)
    skipped = Entry("B1-y", Outcome.SKIPPED, 9000, 2, budget=8185, reason="context")
    with Journal(tmp_path, IDENTITY) as journal:
        journal.append(failed)
        journal.append(skipped)
    with Journal(tmp_path, readonly=True) as journal:
        assert same(journal.get("B1-x"), failed)
        assert same(journal.get("B1-y"), skipped)


@pytest.mark.parametrize(
    ("written", "stands"),
    [
        ([Outcome.FAILED, Outcome.STOP], 1),
        ([Outcome.STOP, Outcome.FAILED], 0),  # an answer is never lost to a later failure
        ([Outcome.FAILED, Outcome.FAILED], 1),
        ([Outcome.SKIPPED, Outcome.FAILED], 1),
        ([Outcome.STOP, Outcome.STOP], 0),  # two shards of another count asked twice: the first stands, always
    ],
)
@pytest.mark.parametrize("reopened", [False, True])
def test_which_outcome_stands(tmp_path: Path, written: list[Outcome], stands: int, reopened: bool) -> None:
    with Journal(tmp_path, IDENTITY) as journal:
        for number, state in enumerate(written):
            journal.append(entry(7, outcome=state, attempts=number, budget=100 + number))
        if not reopened:
            found = journal.get(entry(7).sample_id)
    if reopened:
        with Journal(tmp_path, readonly=True) as journal:
            found = journal.get(entry(7).sample_id)
    assert found is not None
    assert found.budget == 100 + stands


def test_a_longer_round_stands(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY) as journal:
        journal.append(entry(1, outcome=Outcome.LENGTH_CAP))
        journal.append(entry(1, 20, rounds=2, budget=200))
        journal.append(entry(2, outcome=Outcome.LENGTH_CAP))
        journal.append(entry(2, outcome=Outcome.LENGTH_CONTEXT))
    with Journal(tmp_path, readonly=True) as journal:
        first, second = journal.get(entry(1).sample_id), journal.get(entry(2).sample_id)
    assert first is not None and second is not None
    assert (first.rounds, len(first.output_ids)) == (2, 20)
    assert second.outcome is Outcome.LENGTH_CONTEXT


@pytest.mark.parametrize("lost_index", [True, False])
def test_torn_anywhere(tmp_path: Path, lost_index: bool) -> None:
    """Cut off at any byte, a journal still has every whole frame and takes more."""
    fill(tmp_path / "whole", 5)
    data = log_of(tmp_path / "whole").read_bytes()
    frame = len(data) // 5
    for size in range(0, len(data), 7):
        path = tmp_path / str(size)
        path.mkdir()
        name = log_of(tmp_path / "whole").name
        (path / name).write_bytes(data[:size])
        if not lost_index:
            (path / name).with_suffix(".idx").write_bytes((tmp_path / "whole" / name).with_suffix(".idx").read_bytes())
        with Journal(path, IDENTITY) as journal:
            assert len(journal) == size // frame
            journal.append(entry(99))
        with Journal(path, IDENTITY) as journal:
            assert len(journal) == size // frame + 1
            assert same(journal.get(entry(99).sample_id), entry(99))


def test_rot_costs_only_its_own_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 20)
    log = log_of(tmp_path)
    data = bytearray(log.read_bytes())
    frame = len(data) // 20
    data[frame * 4 + 40] ^= 1
    data[frame * 9 : frame * 10] = bytes(frame)
    log.write_bytes(data)
    log.with_suffix(".idx").unlink()
    with Journal(tmp_path, IDENTITY) as journal:
        missing = [number for number in range(20) if journal.get(entry(number).sample_id) is None]
    assert missing == [4, 9]
    assert "damaged bytes" in caplog.text


def test_frames_across_the_chunks_of_a_scan(tmp_path: Path) -> None:
    fill(tmp_path, 50)
    whole = list(scan_file(log_of(tmp_path), 0))
    for chunk in (61, 100, 1000):
        assert list(scan_file(log_of(tmp_path), 0, chunk)) == whole


def test_identity_is_guarded(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with Journal(tmp_path, {**IDENTITY, "weights": {"weight_version": "1"}}):
        pass
    other = {"target": {"model": "m", "stop": (1, 2)}, "sampling": {"temperature": 0.5}}
    with pytest.raises(IdentityError, match=r"sampling\.temperature: 0\.0 there, 0\.5 now"):
        Journal(tmp_path, other)
    with pytest.raises(IdentityError, match="weight_version"):
        Journal(tmp_path, {"weights": {"weight_version": "2"}})
    Journal(tmp_path, IDENTITY).close()  # a refused opening leaves no lock behind


def _open_and_close(path: Path, shard: tuple[int, int], told: Any) -> None:
    try:
        Journal(path, {}, shard=shard).close()
        told.put("")
    except RunLocked as error:
        told.put(str(error))


def test_one_process_a_shard(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")

    def elsewhere(shard: tuple[int, int]) -> str:
        told = fork.Queue()
        process = fork.Process(target=_open_and_close, args=(tmp_path, shard, told))
        process.start()
        answer = told.get(timeout=30)
        process.join()
        return str(answer)

    with Journal(tmp_path, {}, shard=(0, 2)):
        assert str(os.getpid()) in elsewhere((0, 2))
        assert elsewhere((1, 2)) == ""
        assert "shard 00000-of-00002" in elsewhere((0, 1))
        with pytest.raises(RunLocked):
            Journal(tmp_path, {}, shard=(0, 2))
    assert elsewhere((0, 1)) == ""


def test_a_full_disk_stops_with_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, IDENTITY)
    journal.append(entry(0))
    journal.flush()
    real = os.write

    def full(file: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # A part of the frame still fits.
    monkeypatch.setattr(os, "writev", lambda file, frames: real(file, b"".join(frames)[:40]))
    monkeypatch.setattr(os, "write", full)
    journal.append(entry(1))
    with pytest.raises(DiskFull, match="finished rows are kept"):
        journal.flush()
    with pytest.raises(DiskFull):
        journal.append(entry(2))
    monkeypatch.undo()
    with pytest.raises(DiskFull):
        journal.close()
    with Journal(tmp_path, IDENTITY) as again:
        assert len(again) == 1
        again.append(entry(1))
    with Journal(tmp_path, IDENTITY) as again:
        assert len(again) == 2


def test_reading_only_writes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    before = sorted((path.name, path.stat().st_size) for path in tmp_path.iterdir())
    with Journal(tmp_path, readonly=True) as journal:
        assert len(journal) == 3
        with pytest.raises(MachineError):
            journal.append(entry(9))
    assert sorted((path.name, path.stat().st_size) for path in tmp_path.iterdir()) == before


def test_index_of_many_rows_is_small(tmp_path: Path) -> None:
    rows = 70_000
    with Journal(tmp_path, IDENTITY) as journal:
        for number in range(rows):
            journal.append(entry(number, 2))
    with Journal(tmp_path, readonly=True) as journal:
        assert len(journal) == rows
        assert journal.index.nbytes <= 64 * rows
        positions = journal.look_up(keys_of(f"B1-{number:024x}" for number in range(rows + 10)))
        assert (positions[:rows] >= 0).all()
        assert (positions[rows:] == -1).all()
        picked = journal.read_many(positions[[0, 69_999, 66_000, rows + 1]])
    assert [one and one.output_ids.tolist() for one in picked] == [[0, 1], [69_999, 70_000], [66_000, 66_001], None]


@pytest.mark.parametrize("way", ["loaded", "added", "half and half"])
def test_of_several_outcomes_the_right_one_counts(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_index, "_MERGE_AT", 64)
    rng = np.random.default_rng(0)
    heads, best = [], {}
    for number in range(5000):
        key = row_key(f"B1-{int(rng.integers(800)):024x}")
        state, rounds = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        head = Head(key, number, 1, 2, 3, 0, rounds, state)
        heads.append(head)
        rank = (
            (rounds, state == Outcome.LENGTH_CONTEXT, -number)
            if state <= Outcome.LENGTH_CONTEXT
            else (0, False, number)
        )
        if key not in best or rank > best[key][0]:
            best[key] = rank, head
    index = JournalIndex()
    loaded = {"loaded": 5000, "added": 0, "half and half": 2500}[way]
    packed = [head.packed() for head in heads]
    index.load(rows_of(packed[low : low + 7]) for low in range(0, loaded, 7) if low + 7 <= loaded)
    for head in heads[loaded - loaded % 7 :]:
        index.add(head.key, head.packed())
    assert {key: index.find(key) for key in best} == {key: head for key, (_, head) in best.items()}
    keys = np.frombuffer(b"".join(best), "<u8").reshape(-1, 2)
    assert index.column("offset", index.positions(keys)).tolist() == [head.offset for _, head in best.values()]
    assert len(index) == len(best)


def test_answers_to_one_prompt_are_told_apart(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY) as journal:
        for sample in (0, 1, 300):
            journal.append(entry(1, sample=sample, budget=100 + sample))
        names = [entry(1).sample_id]
        assert [journal.get(names[0], sample) is not None for sample in (0, 1, 2, 300)] == [True, True, False, True]
    with Journal(tmp_path, readonly=True) as journal:
        found = journal.get(names[0], 300)
        assert found is not None and (found.sample, found.budget) == (300, 400)
        assert journal.look_up(keys_of(names, 1))[0] >= 0 > journal.look_up(keys_of(names, 2))[0]


def test_a_journal_of_the_old_format_is_refused_with_the_remedy(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    log = log_of(tmp_path)
    log.write_bytes(log.read_bytes().replace(b"\xe3J\x02\n", b"\xe3J\x01\n"))
    with pytest.raises(IdentityError, match=r"earlier version of eagle3-data.*another name"):
        Journal(tmp_path, IDENTITY)
