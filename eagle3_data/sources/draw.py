"""Drawing prompts from a source: all that looks across rows (dedupe, sampling, accounting).

Goes in: a source's name, config, files and options, `rows` and `seed`. Comes out: a memory-mapped `Dataset` of prompts
in draw order and a report in which every upstream row is accounted for. The result is kept in the `datasets` cache
under a key of the code, the files and every option, so that the same draw is made once.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import datasets
import numpy as np

from eagle3_data.errors import SourceError
from eagle3_data.run_folder import machine_errors
from eagle3_data.schema import PROMPT_FEATURES
from eagle3_data.source_names import code_hash
from eagle3_data.sources.index import HASH, Hashes, hashes_of_ids, sorted_hashes
from eagle3_data.sources.passes import Progress, Work, make_draw
from eagle3_data.sources.registry import builder
from eagle3_data.sources.report import SourceReport
from eagle3_data.sources.screening import Benchmarks, Screen
from eagle3_data.sources.upstream import (
    HubFiles,
    SourceFile,
    downloaded,
    file_revision,
    hub_files,
    hub_urls,
    local_files,
    sample_files,
)

_HASHED_AT_ONCE: Final = 4
_ABANDONED_SECONDS: Final = 86_400
T = TypeVar("T")


@dataclass(frozen=True)
class Drawn:
    """The prompts of a draw, its report, and the folder that holds them."""

    prompts: datasets.Dataset
    report: SourceReport
    path: Path

    def pool(self) -> Hashes:
        """Return the content hashes of all distinct prompts that could have been drawn, sorted by their heads."""
        return sorted_hashes(np.load(self.path / "pool.npy", mmap_mode="r"))


def load_source(
    name: str,
    config: str | None = None,
    data_files: Any = None,
    rows: int | None = None,
    seed: int = 0,
    **arguments: Any,
) -> datasets.Dataset:
    """Return the prompts of a source in draw order; all arguments and errors are those of `draw`.

    Returns:
        A memory-mapped `datasets.Dataset` with the columns of `schema.PROMPT_FEATURES`.

    Warns:
        UserWarning: there are fewer prompts than `rows`, or the counts are not those that the source states.
    """
    drawn = draw(name, config, data_files, rows, seed, **arguments)
    report = drawn.report
    notes = [*report.differences]
    if report.short:
        notes.append(f"{report.requested:,} prompts were asked for, there are only {report.drawn:,}")
    for note in notes:
        warnings.warn(f"{report.source}: {note}", stacklevel=2)
    return drawn.prompts


def draw(
    name: str,
    config: str | None = None,
    data_files: Any = None,
    rows: int | None = None,
    seed: int = 0,
    *,
    entry: str | None = None,
    turns: str = "first",
    revision: str | None = None,
    filter: dict[str, Any] | None = None,
    files: int | float | None = None,
    split: str | None = None,
    num_proc: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    dedupe_against: Any = None,
    progress: Progress | None = None,
    screens: Sequence[Screen] = (),
    **options: Any,
) -> Drawn:
    """Draw prompts from a source.

    Args:
        name: a name in SOURCES.
        config: one of the source's configs; its default if None.
        data_files: a path, glob, folder or hf:// URL, a list of these, {split: these}, or `samples` for the rows that
            are shipped with the package; the source's data set on the Hub if None.
        rows: how many prompts, a seeded uniform sample of the distinct prompts of the whole split; all if None. A
            larger number contains the smaller.
        seed: of the sample.
        entry: value of the column `source` and prefix of sample_id; the source's name if None.
        turns: `first`, `prefix`, `last` or `rollout`; under `rollout` each prompt is the script of a dialogue (see
            `script.py`), `rows` counts dialogues, and the option `max_turns` bounds the turns of each.
        revision: of the Hub data set; the newest if None. The commit is recorded either way.
        filter: {origin, license, not_origin, not_license: a text, a list of texts, wildcards allowed}; an origin such
            as `math:camel-ai` is matched whole or by one of its parts.
        files: a share below 1, or a number, of the upstream files: those that a seeded choice names are read, and no
            others fetched. The result is a cluster sample. A larger choice contains the smaller.
        split: of the upstream data set.
        num_proc: processes, each with its own files; the result does not depend on it.
        cache_dir: instead of the `datasets` cache.
        dedupe_against: earlier draws, data sets with a `sample_id` column, or lists of sample_ids (one of these, or a
            list of them): their contents count as duplicates here. An earlier `Drawn` counts with all prompts that it
            could have drawn, so that this draw does not change when that one grows.
        progress: called with ("read" or "write", rows so far) now and then; never for a draw out of the cache.
        screens: what may refuse drawn prompts (`screening.py`); the next in draw order take their places, so that only
            prompts before the last drawn one are judged and counted.
        **options: of the source, see SOURCES[name].options; `max_turns` as above; `repo` names another Hub data set
            of the same schema, and `upstream` its config.

    Raises:
        SourceError: unknown name, config or option; a file that is not what the source expects.
        HubError: the Hub refused.
        MachineError: the cache cannot be written, or a worker process died.
    """
    source = builder(name)
    given = {"entry": entry, "turns": turns, "revision": revision, "filter": filter, "split": split, **options}
    made = source.make_config(config, **{key: value for key, value in given.items() if value is not None})
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 0):
        raise SourceError(f"{name}: rows must be a number of prompts, not {rows!r}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise SourceError(f"{name}: seed must be a whole number, not {seed!r}")
    if num_proc is not None and (not isinstance(num_proc, int) or num_proc < 1):
        raise SourceError(f"{name}: num_proc must be a number of processes, not {num_proc!r}")
    if files is not None and (isinstance(files, bool) or not isinstance(files, int | float) or not files > 0):
        raise SourceError(f"{name}: files must be a share below 1, or a number of files, not {files!r}")
    chosen, files_of, upstream = _files(source, made, data_files, cache_dir, files, seed)
    info = source.INFO.configs[made.name]
    usual = not made.repo and not made.upstream and made.split in ("", info.split)
    whole = data_files is None and files is None and usual
    against = _known_hashes(dedupe_against)
    work = Work(source, made, chosen, rows, seed, num_proc or 1, against, whole, tuple(screens))

    home = Path(cache_dir or datasets.config.HF_DATASETS_CACHE) / "eagle3_data" / name
    root = home / _cache_key(work)
    if not (root / "report.json").exists():
        report = SourceReport(
            source=work.entry,
            builder=name,
            config=made.name,
            turns=made.turns,
            upstream=upstream.repo if upstream else "",
            revision=upstream.revision if upstream else "",
            seed=seed,
            requested=rows,
            files_of=files_of,
            filter=dict(made.filter or {}),
            options={key: value for key, value in options.items() if value is not None},
            attribution=source.INFO.attribution(),
            benchmarks=[one for screen in screens if isinstance(screen, Benchmarks) for one in screen.sets],
        )
        with machine_errors(root):
            home.mkdir(parents=True, exist_ok=True)
            _sweep(home)
            with tempfile.TemporaryDirectory(dir=home, prefix=".draw-", ignore_cleanup_errors=True) as folder:
                make_draw(work, report, Path(folder), progress)
                try:
                    Path(folder).rename(root)
                except OSError:
                    if not (root / "report.json").exists():  # else another process made the same draw first
                        raise
    return _opened(root)


def _sweep(home: Path) -> None:
    """Remove what killed processes left behind."""
    for folder in home.glob(".draw-*"):
        try:
            if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:
            continue


def _files(
    source: Any, config: Any, data_files: Any, cache_dir: Any, share: int | float | None, seed: int
) -> tuple[list[SourceFile], int, HubFiles | None]:
    """Return the files to read, of how many they were chosen (0 if all are read), and the Hub data set they are of."""
    name = source.INFO.name
    hub_cache = os.fspath(cache_dir) if cache_dir else None
    if data_files is None:
        found: HubFiles | None = hub_files(source.INFO, config)
    else:
        if isinstance(data_files, str) and data_files == "samples":
            data_files = sample_files(name, config.name)
        urls = local_files(name, data_files, config.split)
        found = hub_urls(urls)
    if found is not None:
        names = [file.name for file in SourceFile.named(found.urls, found.urls)]  # without the commit
        chosen = _choice(found.urls, names, share, seed)
        files_of = len(found.urls) if len(chosen) < len(found.urls) else 0
        return downloaded(dataclasses.replace(found, urls=chosen), hub_cache), files_of, found
    named = SourceFile.named(urls, urls)
    chosen_files = _choice(named, [file.name for file in named], share, seed)
    with ThreadPoolExecutor(_HASHED_AT_ONCE) as pool:  # hashing lets other threads run
        revisions = pool.map(lambda file: file.revision or file_revision(file.path), chosen_files)
        files = [
            SourceFile(file.path, file.name, revision) for file, revision in zip(chosen_files, revisions, strict=True)
        ]
    return files, len(named) if len(files) < len(named) else 0, None


def _choice(files: list[T], names: list[str], share: int | float | None, seed: int) -> list[T]:
    """Return a seeded choice of files in their order: a share below 1, or a number; at least one."""
    if share is None or not files:
        return files
    count = max(1, round(share * len(files))) if share < 1 else min(int(share), len(files))
    order = sorted(range(len(files)), key=lambda i: hashlib.sha256(f"{seed}:{names[i]}".encode()).digest())
    return [files[i] for i in sorted(order[:count])]


def _known_hashes(against: Any) -> Hashes:
    if against is None:
        return np.empty(0, HASH)
    if isinstance(against, Drawn):
        return against.pool()
    if isinstance(against, datasets.Dataset):
        ids = against.select_columns(["sample_id"]).with_format("arrow")
        parts = [hashes_of_ids(batch["sample_id"].to_pylist()) for batch in ids.iter(10_000)]
        return sorted_hashes(np.concatenate([np.empty(0, HASH), *parts]))
    if isinstance(against, Iterable) and not isinstance(against, str | bytes | dict):
        members = list(against)
        if all(isinstance(member, str) for member in members):
            try:
                return sorted_hashes(hashes_of_ids(members))
            except ValueError as error:
                raise SourceError(f"dedupe_against: a sample_id ends on 24 hex digits ({error})") from error
        return sorted_hashes(np.concatenate([np.empty(0, HASH), *(_known_hashes(member) for member in members)]))
    raise SourceError(f"dedupe_against: {type(against).__name__} is no draw, data set or list of sample_ids")


def _cache_key(work: Work) -> str:
    """Name a draw by everything that its result depends on."""
    inherited = {item.name for item in fields(datasets.BuilderConfig)} - {"name"}
    chosen = {key: value for key, value in asdict(work.config).items() if key not in inherited}
    chosen.pop("revision")  # the files carry it
    module = Path(str(sys.modules[work.source.__module__].__file__))  # a source of one's own lies elsewhere
    content = {
        "code": code_hash(),
        "module": hashlib.sha256(module.read_bytes()).hexdigest(),
        "config": chosen,
        "files": [(file.name, file.revision) for file in work.files],
        "rows": work.rows,
        "seed": work.seed,
        "screens": [screen.key for screen in work.screens],
        "against": hashlib.sha256(np.ascontiguousarray(work.against).tobytes()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _opened(root: Path) -> Drawn:
    report = SourceReport(**json.loads((root / "report.json").read_text("utf-8")))
    prompts = datasets.Dataset.from_file(
        str(root / "prompts.arrow"), info=datasets.DatasetInfo(features=PROMPT_FEATURES), split=datasets.Split.TRAIN
    )
    return Drawn(prompts, report, root)
