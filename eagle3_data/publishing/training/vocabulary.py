"""The draft vocabulary: the tokens that the drafter can write, chosen by how often the target writes them.

Goes in: records. Comes out: token counts over the positions under the loss, by source; `d2t` and `t2d` in the files
that SpecForge and speculators load; and the share of output tokens that vocabularies of several sizes cover.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing.records import Data, Records, open_records
from eagle3_data.publishing.training.torch_file import write_torch
from eagle3_data.run_folder import atomic_file, write_json

if TYPE_CHECKING:
    from eagle3_data.target import Target

Counts = NDArray[np.int64]

COVERAGE_SIZES: Final = (8_192, 16_384, 32_768, 65_536)
# Where SpecForge (model.vocab_mapping_path) and speculators (--d2t-path, --t2d-path) find them.
SPECFORGE_FILE: Final = "vocab_mapping.pt"
SPECULATORS_FILES: Final = ("d2t.npy", "t2d.npy")
REPORT_FILE: Final = "vocabulary.json"
_SCRATCH_IDS: Final = 2**19


@dataclass(frozen=True)
class TokenCounts:
    """How often each id stands under the loss.

    Attributes:
        by_source: source -> int64 (vocabulary_size,).
        vocabulary_size: of the target.
        rows: rows counted.
    """

    by_source: Mapping[str, Counts]
    vocabulary_size: int
    rows: int

    @property
    def whole(self) -> Counts:
        """Counts over all sources, int64 (vocabulary_size,)."""
        return np.sum(list(self.by_source.values()), axis=0, dtype=np.int64, initial=0) + np.zeros(
            self.vocabulary_size, np.int64
        )


def count_tokens(
    data: Data,
    *,
    vocabulary_size: int | None = None,
    max_length: int | None = None,
    split: str | None = "train",
    sources: Sequence[str] | None = None,
) -> TokenCounts:
    """Count output tokens in one pass over the id columns.

    Args:
        data: a data set, a run folder, Parquet files, or `org/name@v1.0.0`.
        vocabulary_size: of the target; taken from the records where they say it.
        max_length: count only what a trainer that cuts rows to this length sees.
        split, sources: which records.

    Raises:
        UsageError: the vocabulary size is not known, or `data` is wrong.
        DataError: an id is not in the vocabulary.
    """
    records = open_records(data, split=split, sources=sources)
    size = vocabulary_size or records.vocabulary_size
    if not size:
        raise UsageError(
            f"{records.name}: these records do not say how large the target's vocabulary is; give vocabulary_size"
        )
    return _count(records, size, max_length)


def _count(records: Records, size: int, max_length: int | None) -> TokenCounts:
    by_source: dict[str, Counts] = {}
    rows = 0
    wide = np.empty(_SCRATCH_IDS, np.intp)
    columns = ["source", "output_ids", *(["prompt_tokens"] if max_length is not None else [])]
    for table in records.tables(columns):
        # batch by batch, since joining the chunks of a table would copy the ids
        for batch in table.to_batches():
            rows += batch.num_rows
            outputs = batch["output_ids"]
            ids = outputs.flatten().to_numpy()
            _check_ids(records.name, ids, size)
            lengths = np.asarray(pa.compute.list_value_length(outputs), np.int64)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            # rows of a source mostly stand together: one histogram for each stretch
            runs = pa.compute.run_end_encode(batch["source"])
            first = 0
            for source, last in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
                part = ids[offsets[first] : offsets[last]]
                if max_length is not None:
                    prompts = np.asarray(batch["prompt_tokens"], np.int64)[first:last]
                    part = part[_within(lengths[first:last], max_length - prompts)]
                _add(by_source.setdefault(source, np.zeros(size, np.int64)), part, wide)
                first = last
    return TokenCounts(dict(sorted(by_source.items())), size, rows)


def _add(counts: Counts, ids: NDArray[np.int32], wide: NDArray[np.intp]) -> None:
    """Add the histogram of ids to counts; `wide` is scratch, so that memory stays small whatever the rows hold."""
    for start in range(0, len(ids), len(wide)):
        part = ids[start : start + len(wide)]
        wide[: len(part)] = part
        counts += np.bincount(wide[: len(part)], minlength=len(counts))


def _check_ids(name: str, ids: NDArray[np.int32], size: int) -> None:
    # seen as unsigned, a negative id is larger than any vocabulary: one pass finds both kinds
    if ids.size and int(ids.view(np.uint32).max()) >= size:
        wrong = int(ids.max()) if int(ids.max()) >= size else int(ids.min())
        raise DataError(
            f"{name}: token id {wrong} is not in a vocabulary of {size:,}; `eagle3-data check` names the row"
        )


def _within(lengths: Counts, room: Counts) -> NDArray[np.bool_]:
    """Tell for each id of the rows laid end to end whether it is among the first `room` of its row."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(np.arange(int(lengths.sum())) - starts < np.repeat(np.maximum(room, 0), lengths))


@dataclass(frozen=True)
class DraftVocabulary:
    """A draft vocabulary.

    Attributes:
        d2t: int64 (size,); target id = draft id + d2t[draft id], as both trainers define it.
        t2d: bool (vocabulary_size,); whether a target id is in the draft vocabulary.
        pinned: ids that are in whatever their counts, ascending.
        coverage: source (and "whole") -> share of its output tokens that are in this vocabulary.
        curve: source (and "whole") -> {size: share} at other sizes.
        tokens: output tokens counted.
        seen: different ids among them.
    """

    d2t: NDArray[np.int64]
    t2d: NDArray[np.bool_]
    pinned: tuple[int, ...]
    coverage: Mapping[str, float]
    curve: Mapping[str, Mapping[int, float]]
    tokens: int
    seen: int
    files: tuple[str, ...] = field(default=())

    @property
    def size(self) -> int:
        """Number of tokens in the draft vocabulary."""
        return len(self.d2t)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The target ids in it, ascending, int64 (size,)."""
        return np.flatnonzero(self.t2d)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the ids themselves stand as a hash."""
        return {
            "size": self.size,
            "vocabulary_size": len(self.t2d),
            "pinned": list(self.pinned),
            "tokens": self.tokens,
            "seen": self.seen,
            "coverage": dict(self.coverage),
            "curve": {name: {str(size): share for size, share in row.items()} for name, row in self.curve.items()},
            "ids_sha256": hashlib.sha256(self.ids.astype("<i8").tobytes()).hexdigest(),
            "files": list(self.files),
        }

    def to_text(self) -> str:
        """Return the coverage table for a terminal."""
        sizes = list(next(iter(self.curve.values())))
        width = max(len(name) for name in self.coverage)
        lines = [
            f"draft vocabulary of {self.size:,} out of {len(self.t2d):,} ids ({len(self.pinned):,} pinned), from "
            f"{self.tokens:,} output tokens with {self.seen:,} different ids",
            f"{'':<{width}}  " + "  ".join(f"{f'{size:,}':>8}" for size in (self.size, *sizes)),
        ]
        for name, share in self.coverage.items():
            shares = (share, *(self.curve[name][size] for size in sizes))
            lines.append(f"{name:<{width}}  " + "  ".join(f"{f'{100 * value:.2f} %':>8}" for value in shares))
        return "\n".join([*lines, *(f"wrote {name}" for name in self.files)])


def build_vocabulary(counts: TokenCounts, size: int, *, pinned: Iterable[int] = ()) -> DraftVocabulary:
    """Choose the ids of a draft vocabulary: those pinned, then the most frequent, ties to the lower id.

    Args:
        counts: from `count_tokens`.
        size: number of ids, 1 … vocabulary_size.
        pinned: ids that are in anyway.

    Raises:
        UsageError: the size is impossible, or a pinned id is not in the vocabulary.
        DataError: fewer different ids were seen than asked for: the rest would be chosen without evidence.
    """
    total = counts.vocabulary_size
    if not 1 <= size <= total:
        raise UsageError(f"size {size:,}: a draft vocabulary has between 1 and {total:,} ids, all the target has")
    fixed = np.unique(np.fromiter(pinned, np.int64))
    if fixed.size and (fixed[0] < 0 or fixed[-1] >= total):
        raise UsageError(f"pinned id {int(fixed[-1] if fixed[-1] >= total else fixed[0])}: not below {total:,}")
    if fixed.size > size:
        raise UsageError(f"size {size:,}: {fixed.size:,} ids are pinned already; ask for more, or pin fewer")
    whole = counts.whole
    order = _order(whole, fixed)
    if size < total and len(order) < size:
        raise DataError(
            f"only {len(order):,} different ids were seen in {int(whole.sum()):,} output tokens ({fixed.size:,} "
            f"pinned ones included), and {size:,} are asked for; generate more rows, or ask for at most {len(order):,}"
        )
    t2d = np.ones(total, bool) if size == total else np.zeros(total, bool)
    t2d[order[:size]] = True
    chosen = np.flatnonzero(t2d)
    tables = {**counts.by_source, "whole": whole}
    sizes = [wanted for wanted in COVERAGE_SIZES if wanted <= total]
    curve = {name: {wanted: _share(table, order[:wanted]) for wanted in sizes} for name, table in tables.items()}
    return DraftVocabulary(
        d2t=chosen - np.arange(len(chosen)),
        t2d=t2d,
        pinned=tuple(fixed.tolist()),
        coverage={name: _share(table, chosen) for name, table in tables.items()},
        curve=curve,
        tokens=int(whole.sum()),
        seen=int((whole > 0).sum()),
    )


def _order(whole: Counts, fixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pinned ids, then the ids that were seen by (−count, id)."""
    rest = whole.copy()
    rest[fixed] = 0
    seen = np.flatnonzero(rest)
    return np.concatenate([fixed, seen[np.lexsort((seen, -rest[seen]))]])


def _share(table: Counts, ids: NDArray[np.int64]) -> float:
    total = int(table.sum())
    return float(table[ids].sum() / total) if total else 0.0


def special_ids(profile: Mapping[str, Any]) -> list[int]:
    """Return the control ids that a token profile names (end of turn, thinking, tools), ascending."""
    found: set[int] = set()
    for key, value in profile.items():
        values = value if isinstance(value, list | tuple) else [value]
        if (key.endswith(("_id", "_ids")) and not key.startswith(("generation_prompt", "tool_turn"))) or key == "bos":
            found.update(item for item in values if isinstance(item, int) and not isinstance(item, bool) and item >= 0)
    return sorted(found)


def byte_ids(tokenizer: Any) -> list[int]:
    """Return the ids of the tokens that stand for single bytes, so that the drafter can write any text, ascending.

    Byte-level vocabularies spell the 256 bytes in a fixed alphabet of characters; SentencePiece ones as `<0x00>` …
    """
    from tokenizers.pre_tokenizers import ByteLevel

    known = tokenizer.get_vocab()
    spelled = [known[name] for name in (f"<0x{byte:02X}>" for byte in range(256)) if name in known]
    if spelled:
        return sorted(spelled)
    return sorted(known[letter] for letter in ByteLevel.alphabet() if letter in known)


def draft_vocabulary(
    data: Data,
    size: int,
    output: Path | str | None = None,
    *,
    target: "Target | None" = None,
    pinned: Iterable[int] = (),
    vocabulary_size: int | None = None,
    max_length: int | None = None,
    split: str | None = "train",
    sources: Sequence[str] | None = None,
) -> DraftVocabulary:
    """Count, choose and write a draft vocabulary.

    Args:
        data: a data set, a run folder, Parquet files, or `org/name@v1.0.0`.
        size: number of ids, usually 32,000.
        output: a folder for `vocab_mapping.pt` (SpecForge: model.vocab_mapping_path), `d2t.npy` and `t2d.npy`
            (speculators: --d2t-path, --t2d-path) and `vocabulary.json` (coverage); nothing is written when None.
        target: its control ids and byte tokens are pinned; without it the control ids that the records' manifest
            names are, and no byte tokens.
        pinned: further ids to pin.
        vocabulary_size: of the target; taken from `target` or the records when None.
        max_length: count only what a trainer that cuts rows to this length sees.
        split, sources: which records.

    Raises:
        UsageError, DataError: as `count_tokens` and `build_vocabulary`.
        DiskFull, MachineError: a file cannot be written.
    """
    records = open_records(data, split=split, sources=sources)
    known = vocabulary_size or (target.vocabulary_size if target is not None else records.vocabulary_size)
    fixed = {*pinned, *special_ids(target.profile.to_dict() if target is not None else records.profile)}
    if target is not None:
        fixed |= {*byte_ids(target.tokenizer), *target.stop_token_ids}
    if not known:
        raise UsageError(f"{records.name}: these records do not say how large the vocabulary is; give vocabulary_size")
    made = build_vocabulary(_count(records, known, max_length), size, pinned=fixed)
    return made if output is None else write_vocabulary(made, Path(output))


def write_vocabulary(vocabulary: DraftVocabulary, folder: Path) -> DraftVocabulary:
    """Write the files of a draft vocabulary into a folder and return it with their names."""
    if folder.suffix in (".pt", ".npy", ".json") or folder.is_file():
        raise UsageError(f"{folder}: name a folder; {SPECFORGE_FILE}, {' and '.join(SPECULATORS_FILES)} go into it")
    write_torch(folder / SPECFORGE_FILE, {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d})
    for name, array in zip(SPECULATORS_FILES, (vocabulary.d2t, vocabulary.t2d), strict=True):
        with atomic_file(folder / name) as file:
            np.save(file, array)
    names = (SPECFORGE_FILE, *SPECULATORS_FILES, REPORT_FILE)
    written = DraftVocabulary(**{**vars(vocabulary), "files": tuple(str(folder / name) for name in names)})
    write_json(folder / REPORT_FILE, written.to_dict())
    return written
