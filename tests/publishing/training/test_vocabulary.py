"""The draft vocabulary: counts that are exact, an order that is fixed, files that need no torch to write."""

import json
import pickletools
import zipfile
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from support.run_folders import make_run

from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing.training.vocabulary import (
    TokenCounts,
    build_vocabulary,
    byte_ids,
    count_tokens,
    draft_vocabulary,
    special_ids,
)
from eagle3_data.run_folder import RunFolder

SIZE = 5_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    rows = {"B1_glaive": 120, "B5_openthoughts": 90}
    return make_run(tmp_path_factory.mktemp("run") / "run", rows, vocabulary=SIZE, holdout=10)


def by_hand(run: RunFolder, source: str, max_length: int | None = None) -> Counter[int]:
    counter: Counter[int] = Counter()
    for row in pq.read_table(run.record_files(source)[0]).to_pylist():
        room = None if max_length is None else max(0, max_length - row["prompt_tokens"])
        counter.update(row["output_ids"][:room])
    return counter


@pytest.mark.parametrize("max_length", [None, 50, 1])
def test_counts_are_those_of_a_loop(run: RunFolder, max_length: int | None) -> None:
    counts = count_tokens(run, max_length=max_length)
    assert (counts.rows, list(counts.by_source)) == (190, ["B1_glaive", "B5_openthoughts"])
    for source, found in counts.by_source.items():
        wanted = by_hand(run, source, max_length)
        assert {int(key): int(found[key]) for key in np.flatnonzero(found)} == dict(wanted)


def test_a_shuffled_data_set_counts_the_same(run: RunFolder, tmp_path: Path) -> None:
    files = [str(run.record_files(source)[0]) for source in run.sources()]
    rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path)).shuffle(seed=3)
    assert (count_tokens(rows, vocabulary_size=SIZE).whole == count_tokens(run).whole).all()
    with pytest.raises(UsageError, match="how large"):
        count_tokens(rows)


def test_the_order_is_by_count_then_id_and_pins_come_first() -> None:
    table = np.array([0, 5, 5, 9, 0, 1, 0, 2])
    counts = TokenCounts({"s": table}, 8, 1)
    made = build_vocabulary(counts, 4, pinned=[6, 3])
    assert made.ids.tolist() == [1, 2, 3, 6]  # 3 and 6 pinned, then 1 before 2: ties go to the lower id
    assert (made.ids == np.arange(4) + made.d2t).all() and made.t2d.sum() == 4
    assert made.coverage["whole"] == pytest.approx(19 / 22)
    assert build_vocabulary(counts, 8).ids.tolist() == list(range(8))


@pytest.mark.parametrize(
    ("size", "pinned", "error", "says"),
    [
        (6, [], DataError, "only 5 different ids were seen in 22 output tokens"),
        (9, [], UsageError, "between 1 and 8"),
        (0, [], UsageError, "between 1 and 8"),
        (2, [0, 1, 2], UsageError, "pinned already"),
        (4, [8], UsageError, "pinned id 8"),
    ],
)
def test_impossible_sizes_are_refused(size: int, pinned: list[int], error: type[Exception], says: str) -> None:
    counts = TokenCounts({"s": np.array([0, 5, 5, 9, 0, 1, 0, 2])}, 8, 1)
    with pytest.raises(error, match=says):
        build_vocabulary(counts, size, pinned=pinned)


def test_ids_outside_the_vocabulary_are_refused(run: RunFolder) -> None:
    with pytest.raises(DataError, match="is not in a vocabulary of 100"):
        count_tokens(run, vocabulary_size=100)


def test_control_ids_of_the_profile_are_pinned(run: RunFolder, tmp_path: Path) -> None:
    made = draft_vocabulary(run, 1_000, tmp_path / "vocab")
    assert made.pinned == (2, 7)
    profile = {
        "bos": 1,
        "end_of_turn_ids": [5, 4],
        "generation_prompt_ids": [9],
        "think_end_id": None,
        "vocabulary_size": 3,
    }
    assert special_ids(profile) == [1, 4, 5]
    report = json.loads((tmp_path / "vocab" / "vocabulary.json").read_text())
    assert report["coverage"]["whole"] == made.coverage["whole"] and report["curve"]["whole"] == {}
    d2t, t2d = (np.load(tmp_path / "vocab" / name) for name in ("d2t.npy", "t2d.npy"))
    assert (d2t.dtype, t2d.dtype, len(t2d)) == (np.int64, np.bool_, SIZE)
    assert (np.flatnonzero(t2d) == d2t + np.arange(1_000)).all()
    with zipfile.ZipFile(tmp_path / "vocab" / "vocab_mapping.pt") as archive:
        assert archive.read("vocab_mapping/data/0") == d2t.tobytes()
        assert archive.read("vocab_mapping/data/1") == t2d.tobytes()
        pickletools.dis(archive.read("vocab_mapping/data.pkl"), out=(tmp_path / "opcodes").open("w"))
        starts = [entry.header_offset + 30 + len(entry.filename) + len(entry.extra) for entry in archive.infolist()]
    assert all(start % 64 == 0 for start in starts)
    text = made.to_text()
    assert "B1_glaive" in text and "1,000" in text
    with pytest.raises(UsageError, match="name a folder"):
        draft_vocabulary(run, 1_000, tmp_path / "v.pt")


def test_byte_tokens_of_real_tokenizers() -> None:

    from support.shared import SHARED as shared
    from transformers import AutoTokenizer

    folder = shared / "tokenizers" / "smollm2"
    if not folder.is_dir():
        pytest.skip(f"no tokenizers at {folder}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = byte_ids(tokenizer)
    assert len(found) == 235  # its vocabulary leaves out 21 bytes that its training text did not hold
    assert {tokenizer.decode([token]) for token in found} >= set("aZ09~ \n")
