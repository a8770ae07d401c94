"""The run folder that a version is made of, where that is not simply one run as it lies.

Goes in: runs (a published version among them, perhaps), and what of them is left out. Comes out: a run folder with
their records side by side. Record files that stay whole are linked, others are written without the rows that go.

Of two records with one (sample_id, sample) the one stays that was held out for validation, else the one that ended by
itself, else that of the later run. 25 bytes a row are held, whatever the rows hold.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from eagle3_data.errors import DataError, UsageError
from eagle3_data.outcome import reasons
from eagle3_data.publishing.card.changes import hash_rows
from eagle3_data.publishing.card.facts import SPLITS, SplitFacts, read_counts
from eagle3_data.publishing.merged_manifest import merge_manifests
from eagle3_data.publishing.selection import FILTER_COLUMNS, check_drop, dropped_by
from eagle3_data.run_folder import RunFolder, write_json, write_parquet
from eagle3_data.schema import RECORD_FEATURES, arrow_schema

EXCLUDED: Final = "excluded by id"
SUPERSEDED: Final = "in two runs, given once"
_KEY: Final = ("sample_id", "sample")
_COLUMNS: Final = (*_KEY, *FILTER_COLUMNS)


@dataclass(frozen=True)
class Exclusion:
    """Rows that are taken out by id.

    Attributes:
        rows: (sample_id, sample); sample is None for every sample of the prompt.
        where: what messages call the list.
        earlier: rows that an earlier version left out: they stay out, and need not be there.
    """

    rows: tuple[tuple[str, int | None], ...] = ()
    where: str = "exclude_ids"
    earlier: frozenset[tuple[str, int | None]] = frozenset()

    @classmethod
    def of(cls, given: Path | str | Sequence[str] | None) -> "Exclusion":
        """Read a list: a sample_id on each line, and behind it a sample number where only that answer goes.

        Args:
            given: the lines, or a file with them; text behind a # is a comment.

        Raises:
            UsageError: the file cannot be read, or a line is no such thing.
        """
        if given is None:
            return cls()
        path, lines = ("exclude_ids", list(given)) if not isinstance(given, Path | str) else (given, [])
        try:
            if given is path:
                lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: the list of ids cannot be read ({error})") from error
        rows: list[tuple[str, int | None]] = []
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if len(words) > 2 or (len(words) == 2 and not words[1].isdigit()):
                raise UsageError(
                    f"{path}:{number}: write a sample_id, and a sample number behind it if only that goes"
                )
            if words:
                rows.append((words[0], int(words[1]) if len(words) == 2 else None))
        return cls(tuple(dict.fromkeys(rows)), str(path))

    def with_earlier(self, lines: Sequence[str]) -> "Exclusion":
        """Return the list with the one of an earlier version."""
        earlier = Exclusion.of(lines).rows
        fresh = frozenset(earlier) - set(self.rows)
        return Exclusion(tuple(dict.fromkeys((*self.rows, *earlier))), self.where, fresh)

    def to_lines(self) -> list[str]:
        """Return the rows as lines."""
        return sorted(name if sample is None else f"{name} {sample}" for name, sample in self.rows)


@dataclass(frozen=True)
class Staged:
    """A run folder made for a version.

    Attributes:
        run: the folder.
        left_out: records left out, by source and reason.
    """

    run: RunFolder
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass
class _File:
    """One record file: where it comes from, and which of its rows stay (None: not decided, all)."""

    part: int
    split: str
    path: Path
    keep: NDArray[np.bool_]


def stage(
    runs: Sequence[RunFolder],
    folder: Path,
    *,
    sources: Sequence[str],
    drop: Sequence[str] = (),
    exclude: Exclusion | None = None,
) -> Staged:
    """Make a run folder of several runs, or of one without some of its rows.

    Args:
        runs: oldest first.
        folder: where the run folder is made.
        sources: the sources to take.
        drop: records to leave out, by names of `selection.DROPPABLE`.
        exclude: records to leave out, by id.

    Raises:
        UsageError: the runs are of different targets, nothing is left, or an excluded id is in none of them.
        DataError: one run holds two records with one (sample_id, sample).
    """
    drop = check_drop(drop)
    made = RunFolder(folder)
    left_out: dict[str, dict[str, int]] = {}
    wanted = _Wanted(exclude)
    kept: list[str] = []
    for source in sources:
        files = [
            _File(part, split, path, np.ones(pq.read_metadata(path).num_rows, np.bool_))
            for part, run in enumerate(runs)
            for split in SPLITS
            for path in run.record_files(source, split)
        ]
        counts = _decide(source, files, drop, wanted)
        if any(file.keep.any() for file in files):
            kept.append(source)
            _write(files, made.records_path(source))
        left_out |= {source: counts} if counts else {}
    wanted.check()
    if not kept:
        raise UsageError("nothing is left to publish: every source or row is left out")
    for name in ("failures_path", "skipped_path"):
        _concatenate([getattr(run, name) for run in runs], getattr(made, name), kept)
    for source in kept:
        prompts = next((path for run in reversed(runs) if (path := run.prompts_path(source)).is_file()), None)
        if prompts is not None:
            _link(prompts, made.prompts_path(source))
    manifest = merge_manifests([run.read_manifest().to_dict() for run in runs], kept)
    if left_out:
        manifest["left_out"] = left_out
    if wanted.rows:
        manifest["excluded"] = wanted.exclude.to_lines()
    made.write_manifest(with_counts(made, manifest))
    return Staged(made, left_out)


def with_counts(run: RunFolder, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest whose counts are those of the record files."""
    generation = dict(manifest.get("generation", {}))
    for source, splits in read_counts(run, run.sources()).items():
        whole = sum(splits.values(), SplitFacts())
        held = splits["validation"].rows if "validation" in splits else 0
        counts = {"records": whole.rows, "validation": held, "truncated": whole.truncated}
        generation[source] = {**generation.get(source, {}), **counts}
    return {**manifest, "generation": generation}


class _Wanted:
    """The ids of an exclusion, and which of them were met."""

    def __init__(self, exclude: Exclusion | None) -> None:
        self.exclude = exclude or Exclusion()
        whole = [row for row in self.exclude.rows if row[1] is None]
        single = [row for row in self.exclude.rows if row[1] is not None]
        self.rows = [*whole, *single]
        frame = pd.DataFrame({"sample_id": [row[0] for row in single], "sample": [row[1] for row in single]})
        self.ids = _hash_ids([row[0] for row in whole])
        self.keys = hash_rows(frame.astype({"sample": np.int32})) if single else np.zeros(0, np.uint64)
        self.met = np.zeros(len(self.rows), np.bool_)

    def find(self, table: pd.DataFrame, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        if not self.rows:
            return np.zeros(len(keys), np.bool_)
        ids = _hash_ids(table["sample_id"])
        self.met |= np.concatenate([np.isin(self.ids, ids), np.isin(self.keys, keys)])
        return np.isin(ids, self.ids) | np.isin(keys, self.keys)

    def check(self) -> None:
        needed = np.array([row not in self.exclude.earlier for row in self.rows], np.bool_)
        if (missing := np.flatnonzero(~self.met & needed)).size:
            name, sample = self.rows[int(missing[0])]
            raise UsageError(
                f"{self.exclude.where}: {len(missing):,} of {len(self.rows):,} ids are in none of the records, the "
                f"first is {name}{'' if sample is None else f' {sample}'}; take them out of the list"
            )


def _hash_ids(ids: Any) -> NDArray[np.uint64]:
    return np.asarray(pd.util.hash_array(np.asarray(ids, object), categorize=False), np.uint64)


def _decide(source: str, files: Sequence[_File], drop: Sequence[str], wanted: _Wanted) -> dict[str, int]:
    """Mark the rows that stay, and count the others by reason."""
    counts: dict[str, int] = {}
    if len({file.part for file in files}) < 2 and not drop and not wanted.rows:
        return counts
    keys: list[NDArray[np.uint64]] = []
    scores: list[NDArray[np.uint32]] = []
    alive: list[NDArray[np.bool_]] = []
    for file in files:
        for batch in pq.ParquetFile(file.path).iter_batches(batch_size=65_536, columns=list(_COLUMNS)):
            table = pa.Table.from_batches([batch])
            frame = table.select(_KEY).to_pandas()
            key = hash_rows(frame)
            finished = np.asarray(pa.compute.is_in(table["finish_reason"], pa.array(reasons("finished"))))
            score = np.uint32(file.part) + (np.uint32(2**20) * finished + np.uint32(2**21 * (file.split != "train")))
            gone = wanted.find(frame, key)
            _add(counts, EXCLUDED, int(gone.sum()))
            by = np.where(gone, -1, dropped_by(table, drop))
            for index, name in enumerate(drop):
                _add(counts, name, int((by == index).sum()))
            keys.append(key)
            scores.append(score.astype(np.uint32))
            alive.append(~gone & (by < 0))
    keep = np.concatenate(alive)
    lost = _superseded(source, np.concatenate(keys), np.concatenate(scores))
    _add(counts, SUPERSEDED, int((lost & keep).sum()))
    keep &= ~lost
    first = 0
    for file in files:
        file.keep = keep[first : first + len(file.keep)]
        first += len(file.keep)
    return counts


def _superseded(source: str, keys: NDArray[np.uint64], scores: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Mark the records that another one of the same key replaces."""
    order = np.lexsort((scores, keys))
    again = keys[order][1:] == keys[order][:-1]
    parts = scores[order] % np.uint32(2**20)
    if (again & (parts[1:] == parts[:-1])).any():
        raise DataError(f"{source}: two records have the same sample_id and sample; `eagle3-data check` names them")
    lost = np.zeros(len(keys), np.bool_)
    lost[order[:-1][again]] = True
    return lost


def _add(counts: dict[str, int], reason: str, rows: int) -> None:
    if rows:
        counts[reason] = counts.get(reason, 0) + rows


def _write(files: Sequence[_File], folder: Path) -> None:
    """Put what stays into `folder`; every source has a train file, an empty one if need be."""
    for split in SPLITS:
        mine = [file for file in files if file.split == split]
        chosen = [file for file in mine if file.keep.any()] or (mine or list(files) if split == "train" else mine)[:1]
        for index, file in enumerate(chosen):
            place = folder / f"{split}-{index:05d}-of-{len(chosen):05d}.parquet"
            if file.keep.all() and file.split == split:
                _link(file.path, place)
            else:
                stored = pq.read_metadata(file.path).metadata or {}
                metadata = {
                    key.decode(): value.decode() for key, value in stored.items() if not key.startswith(b"ARROW:")
                }
                keep = file.keep if file.split == split else np.zeros(len(file.keep), np.bool_)
                write_parquet(place, _filtered(file.path, keep), arrow_schema(RECORD_FEATURES), metadata)


def _filtered(path: Path, keep: NDArray[np.bool_]) -> Iterator[pa.Table]:
    first = 0
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            yield table.filter(pa.array(keep[first : first + table.num_rows]))
            first += table.num_rows


def _concatenate(paths: Sequence[Path], place: Path, sources: Sequence[str]) -> None:
    tables = [pq.read_table(path) for path in paths if path.is_file()]
    if not tables:
        return
    table = pa.concat_tables(tables)
    table = table.filter(pa.compute.is_in(table["source"], pa.array(list(sources))))
    write_parquet(place, [table], tables[0].schema.remove_metadata())


def _link(path: Path, place: Path) -> None:
    """Make the same file appear at `place`; a copy where the file system does not link."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        os.link(path, place, follow_symlinks=False)
        return
    shutil.copyfile(path, place, follow_symlinks=False)


def measure(run: RunFolder, like: RunFolder | None = None) -> None:
    """Measure the lengths of a made run folder; a page and figures as `like` has them."""
    import importlib.util

    from eagle3_data.lengths import measure_lengths

    report = measure_lengths(run)
    write_json(run.lengths_path, report.to_dict())
    if like is not None and like.page_path.is_file():
        from eagle3_data.lengths.views.page import write_page

        write_page(report, run.page_path, f"Lengths of {like.path.name}")
    if like is not None and like.figures_path.is_dir() and importlib.util.find_spec("matplotlib") is not None:
        from eagle3_data.lengths.views.figures import write_figures

        write_figures(report, run.figures_path)
