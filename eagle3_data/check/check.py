"""`eagle3-data check`: every invariant of a record, over a run folder, Parquet files, a Hub data set or a Dataset.

Goes in: records, with the manifest beside them where there is one. Comes out: a report of violations by kind.
Batches are checked in parallel by threads (Arrow and NumPy let each other run), in memory that does not grow with
the rows but for 16 bytes a row to find duplicates.
"""

import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.check.report import CheckReport, Example, Violation
from eagle3_data.check.rules import Facts, findings, wrong_columns
from eagle3_data.errors import DataError, HubError, UsageError
from eagle3_data.foreign_text import foreign_text
from eagle3_data.generation.prompts.standing import turn_ids
from eagle3_data.manifest import Manifest
from eagle3_data.run_folder import RunFolder
from eagle3_data.run_names import refuse_missing
from eagle3_data.schema import RECORD_FEATURES

__all__ = ["CheckReport", "Example", "Violation", "check"]

_BATCH: Final = 1_000
_HUB_NAME: Final = re.compile(r"(?:hf://)?(?:datasets/)?([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?/?")

Keys = npt.NDArray[np.uint64]


@dataclass
class _Input:
    """Where the records are and what is known beside them."""

    name: str
    files: list[tuple[str, str | None]]  # path, and the source that its place says
    manifest: Manifest = field(default_factory=Manifest)
    filesystem: Any = None
    run: RunFolder | None = None


@dataclass
class _Batch:
    """What one batch showed."""

    file: str
    first: int
    rows: int
    keys: Keys
    prompts: Keys
    found: list[tuple[str, int, list[Example]]]
    sources: dict[str, int]
    turns: Keys  # of rows of rollouts: dialogue, sample and turn
    earlier: Keys  # of those after the first turn: the same of the turn before
    later_rows: npt.NDArray[np.intp]  # which rows of the batch those are


def check(
    dataset: Any, *, profile: Mapping[str, Any] | None = None, workers: int | None = None, examples: int = 5
) -> CheckReport:
    """Check every record of a data set.

    Args:
        dataset: a run folder (path or RunFolder), a Parquet file, a folder of them, a Hub data set
            (`org/name`, `org/name@v1.0.0`, `hf://datasets/org/name`), or a `datasets.Dataset`.
        profile: TokenProfile fields to check by, where no manifest beside the records has them.
        workers: threads; None for one each core.
        examples: how many rows of each kind the report shows.

    Returns:
        The report; `ok` if no record breaks a rule.

    Raises:
        UsageError: there are no records at the place named.
        HubError: the Hub refused.
    """
    found, table = _find(dataset)
    report = CheckReport(found.name, files=len(found.files), most_examples=examples)
    facts = _facts(found.manifest, profile, report)
    workers = workers or os.cpu_count() or 1
    keys: list[Keys] = []
    places: list[tuple[str, int, int]] = []
    known, turns = _PromptKeys(found.run), _Turns()
    counted: dict[str, int] = {}
    batches = _table_batches(table, found.name) if table is not None else _batches(found, report)
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[_Batch]] = deque()
        for file, first, batch, source in batches:
            waiting.append(pool.submit(_check_batch, file, first, batch, source, facts, examples))
            if len(waiting) >= 2 * workers:
                _merge(waiting.popleft().result(), report, keys, places, counted, known, turns)
        while waiting:
            _merge(waiting.popleft().result(), report, keys, places, counted, known, turns)
    _duplicates(found, table, report, keys, places)
    turns.report(report)
    if report.rows and table is None:
        _counts(found.manifest, counted, report)
    return report


# ---- finding the records


def _find(dataset: Any) -> tuple[_Input, pa.Table | None]:
    from datasets import Dataset

    if isinstance(dataset, Dataset):
        return _Input("the data set", []), dataset.with_format("arrow")
    run = dataset if isinstance(dataset, RunFolder) else RunFolder(dataset)
    path = run.path
    if path.is_file():
        return _Input(str(path), [(str(path), None)]), None
    if path.is_dir():
        return _find_folder(run), None
    refuse_missing(dataset)
    if isinstance(dataset, str) and (match := _HUB_NAME.fullmatch(dataset)):
        return _find_hub(dataset, match[1], match[2]), None
    raise UsageError(
        f"{dataset}: there is no such run folder or Parquet file, and it is no Hub data set such as org/name"
    )


def _find_folder(run: RunFolder) -> _Input:
    whole = run.manifest_path.is_file() or (run.path / "records").is_dir()
    paths = sorted(run.path.glob("records/*/*.parquet") if whole else run.path.rglob("*.parquet"))
    files = [(str(path), path.parent.name if whole else None) for path in paths if not path.name.startswith(".")]
    if not files:
        raise UsageError(f"{run.path}: holds no records yet; run `eagle3-data generate` first, or name Parquet files")
    return _Input(str(run.path), files, run.read_manifest(), run=run) if whole else _Input(str(run.path), files)


def _find_hub(name: str, repository: str, revision: str | None) -> _Input:
    from huggingface_hub import HfFileSystem

    filesystem: Any = HfFileSystem()
    root = f"datasets/{repository}" + (f"@{revision}" if revision else "")
    try:
        files = sorted(filesystem.glob(f"{root}/**/*.parquet"))
        there = filesystem.exists(f"{root}/manifest.json")
        manifest = Manifest()
        if there:
            manifest = Manifest.parse_text(filesystem.cat_file(f"{root}/manifest.json"), f"{name}: manifest.json")
    except DataError:
        raise
    except Exception as error:
        # The client raises many kinds of its own, of the HTTP library and of fsspec; each means it cannot be read.
        raise HubError(
            f"{name}: no such folder here, and it cannot be read from the Hub "
            f"({type(error).__name__}: {foreign_text(error)})"
        ) from error
    records = [file for file in files if Path(file).name.startswith(("train-", "validation-"))]
    if not records:
        raise UsageError(f"{name}: no record files (train-*.parquet) there; is the name or the revision right?")
    sources = {*manifest.generation, *manifest.extent.sources}
    return _Input(name, [(file, _source_of(file, sources)) for file in records], manifest, filesystem)


def _source_of(file: str, sources: set[str]) -> str | None:
    parent = Path(file).parent.name
    return parent if parent in sources else None


def _facts(manifest: Manifest, profile: Mapping[str, Any] | None, report: CheckReport) -> Facts:
    known = dict(profile or manifest.profile)
    caps = {name: entry.furthest for name, entry in manifest.extent.sources.items() if entry.furthest}
    size = known.get("vocabulary_size") or manifest.vocabulary_size
    context = manifest.engine.context_length
    if manifest.is_empty:
        report.left_out.append("counts, caps and context, since there is no manifest.json beside the records")
    if "end_of_turn_ids" not in known or "generation_prompt_ids" not in known or "thinking_state" not in known:
        report.left_out.append(
            "control tokens, reasoning and tool calls, since the token profile is not known in full"
        )
    others = {} if profile else manifest.source_profiles
    rollouts = frozenset(name for name, entry in manifest.extent.sources.items() if entry.turns == "rollout")
    return Facts(known, context if context and context > 0 else None, caps, size, rollouts, others)


# ---- batches


def _batches(found: _Input, report: CheckReport) -> Iterator[tuple[str, int, pa.Table, str | None]]:
    """Yield the batches of every file, and report the files that cannot be read or are not of records."""
    for path, source in found.files:
        shown = _shown(found, path)
        try:
            with pq.ParquetFile(path, filesystem=found.filesystem) as file:
                wrong = wrong_columns(file.schema_arrow)
                if wrong:
                    report.add("columns", 1, [Example(shown, -1, "", wrong)])
                    continue
                _identity(file, found.manifest, shown, report)
                first = 0
                for batch in file.iter_batches(batch_size=_BATCH):
                    yield shown, first, pa.Table.from_batches([batch]), source
                    first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            report.add("unreadable", 1, [Example(shown, -1, "", str(error).splitlines()[0])])


def _table_batches(dataset: Any, name: str) -> Iterator[tuple[str, int, pa.Table, str | None]]:
    wrong = wrong_columns(dataset.features.arrow_schema)
    if wrong:
        raise UsageError(f"{name}: not a data set of records ({wrong})")
    first = 0
    for batch in dataset.iter(_BATCH):
        yield name, first, batch, None
        first += batch.num_rows


def _shown(found: _Input, path: str) -> str:
    if found.run is not None:
        return str(Path(path).relative_to(found.run.path))
    return path


def _identity(file: pq.ParquetFile, manifest: Manifest, shown: str, report: CheckReport) -> None:
    stored = (file.schema_arrow.metadata or {}).get(b"eagle3_data")
    wanted = manifest.identity.to_dict()
    if stored is None or not wanted:
        return
    try:
        identity = json.loads(stored)
    except ValueError:
        identity = {}
    identity = identity.get("identity", identity)
    for part in ("target", "sampling", "draw_seed"):
        if part in identity and identity[part] != wanted.get(part):
            report.add("identity", 1, [Example(shown, -1, "", f"{part} is {identity[part]}, not {wanted.get(part)}")])
            return


def _check_batch(file: str, first: int, table: pa.Table, source: str | None, facts: Facts, examples: int) -> _Batch:
    table = table.select(list(RECORD_FEATURES))
    names = table["sample_id"].to_pylist()
    found = []
    within = source or (str(table["source"][0]) if len(table) else "")
    for finding in findings(table, facts.of(within), source):
        rows = finding.rows[:examples].tolist()
        shown = [Example(file, first + row, names[row] or "", finding.detail(row)) for row in rows]
        found.append((finding.kind, len(finding.rows), shown))
    sources: dict[str, int] = {}
    for entry in table["source"].value_counts().to_pylist():
        sources[str(entry["values"])] = entry["counts"]
    samples = table["sample"].to_pylist()
    keys = _hashes(f"{name}\0{sample}" for name, sample in zip(names, samples, strict=True))
    return _Batch(file, first, table.num_rows, keys, _hashes(names), found, sources, *_turns(table, facts.rollouts))


def _turns(table: pa.Table, rollouts: frozenset[str]) -> tuple[Keys, Keys, npt.NDArray[np.intp]]:
    if not rollouts:
        return _hashes(()), _hashes(()), np.zeros(0, np.intp)
    columns = [table[name].to_pylist() for name in ("source", "dialogue", "sample", "turn")]
    rows = [
        (at, dialogue, sample, turn)
        for at, (source, dialogue, sample, turn) in enumerate(zip(*columns, strict=True))
        if source in rollouts and turn is not None
    ]
    later = [row for row in rows if row[3] > 0]
    here = _hashes(f"{dialogue}\0{sample}\0{turn}" for _, dialogue, sample, turn in rows)
    before = _hashes(f"{dialogue}\0{sample}\0{turn - 1}" for _, dialogue, sample, turn in later)
    return here, before, np.array([row[0] for row in later], np.intp)


def _hashes(names: Any) -> Keys:
    digests = b"".join(hashlib.blake2b(str(name).encode("utf-8", "replace"), digest_size=8).digest() for name in names)
    return np.frombuffer(digests, dtype=np.uint64)


def _merge(
    batch: _Batch,
    report: CheckReport,
    keys: list[Keys],
    places: list[tuple[str, int, int]],
    counted: dict[str, int],
    known: "_PromptKeys",
    turns: "_Turns",
) -> None:
    turns.add(batch)
    report.rows += batch.rows
    for kind, count, examples in batch.found:
        report.add(kind, count, examples)
    keys.append(batch.keys)
    places.append((batch.file, batch.first, batch.rows))
    for source, count in batch.sources.items():
        counted[source] = counted.get(source, 0) + count
    unknown = known.missing(batch)
    if unknown:
        report.add(
            "unknown_prompt", len(unknown), [Example(batch.file, row, "", "not in prompts/") for row in unknown]
        )


# ---- across batches


class _Turns:
    """Which turns of rollouts there are, 8 bytes a row, and which rows lack the turn before them."""

    def __init__(self) -> None:
        self._here: list[Keys] = []
        self._later: list[tuple[str, npt.NDArray[np.intp], Keys]] = []  # file, rows in it, the turn before each

    def add(self, batch: _Batch) -> None:
        self._here.append(batch.turns)
        if len(batch.earlier):
            self._later.append((batch.file, batch.first + batch.later_rows, batch.earlier))

    def report(self, report: CheckReport) -> None:
        here = np.unique(np.concatenate(self._here)) if self._here else np.zeros(0, np.uint64)
        for file, rows, earlier in self._later:
            alone = rows[~np.isin(earlier, here)]
            if len(alone):
                shown = alone[: report.most_examples].tolist()
                examples = [Example(file, row, "", "no turn before it") for row in shown]
                report.add("turns", len(alone), examples)


class _PromptKeys:
    """The hashed sample_ids of a run's prompts, 8 bytes each; everything is known where there are no prompts."""

    def __init__(self, run: RunFolder | None) -> None:
        parts: list[Keys] = []
        for path in sorted(run.path.glob("prompts/*.parquet")) if run is not None else ():
            try:
                with pq.ParquetFile(path) as file:
                    wanted = [name for name in ("sample_id", "later_turns") if name in file.schema_arrow.names]
                    parts += [
                        _hashes(turn_ids(pa.Table.from_batches([batch]))[0])
                        for batch in file.iter_batches(columns=wanted)
                    ]
            except (pa.ArrowException, OSError, KeyError):
                parts.clear()
                break
        self._keys = np.unique(np.concatenate(parts)) if parts else None

    def missing(self, batch: _Batch) -> list[int]:
        """Return the rows of a batch (0-based in its file) whose prompt is not among them."""
        if self._keys is None:
            return []
        places = np.minimum(np.searchsorted(self._keys, batch.prompts), len(self._keys) - 1)
        rows: list[int] = (batch.first + np.flatnonzero(self._keys[places] != batch.prompts)).tolist()
        return rows


def _duplicates(
    found: _Input, table: Any, report: CheckReport, keys: list[Keys], places: list[tuple[str, int, int]]
) -> None:
    """Find sample_ids that stand twice: by hash first, then by name among those whose hashes are equal."""
    if not keys:
        return
    whole = np.concatenate(keys)
    order = np.argsort(whole, kind="stable")
    same = whole[order][1:] == whole[order][:-1]
    if not same.any():
        return
    suspects = np.sort(order[1:][same])
    bounds = np.cumsum([0, *(rows for _, _, rows in places)])
    examples = []
    for place in suspects[: report.most_examples].tolist():
        at = int(np.searchsorted(bounds, place, side="right")) - 1
        file, first, _ = places[at]
        earlier = int(np.flatnonzero(whole == whole[place])[0])
        other, start, _ = places[int(np.searchsorted(bounds, earlier, side="right")) - 1]
        before = start + earlier - int(bounds[np.searchsorted(bounds, earlier, side="right") - 1])
        examples.append(Example(file, first + place - int(bounds[at]), "", f"stands already in {other} row {before}"))
    report.add("duplicate", len(suspects), examples)


def _counts(manifest: Manifest, counted: Mapping[str, int], report: CheckReport) -> None:
    for source, said in manifest.generation.items():
        here = counted.get(source, 0)
        if here not in (said.records, said.records + said.validation):
            words = f"{here:,} records, the manifest says {said.records:,}"
            if here < said.records:
                words += "; `eagle3-data generate` writes them again from the journal, `restore` keeps what is left"
            report.add("row_count", 1, [Example(source, -1, "", words)])
