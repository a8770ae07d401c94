"""`status`: a run from outside, while it works or after, without its lock and without writing anything.

Goes in: a run folder. Comes out: rows answered, in flight, failed and skipped of each source, how answers ended,
tokens a second, servers, and the time left. What is answered comes from the journal; what only the process at work
knows (in flight, speed, servers, time left) from the file it leaves every two seconds.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.live import Live
from rich.text import Text

from eagle3_data.errors import DataError
from eagle3_data.generation.journal.index import keys_of
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.outcome import Outcome
from eagle3_data.pipeline.tables import show_table
from eagle3_data.run_folder import RunFolder, read_json
from eagle3_data.run_names import no_run_folder

_ALIVE_SECONDS: Final = 30.0  # a process at work leaves its progress every two
_WATCH_SECONDS: Final = 2.0
_BATCH: Final = 50_000
_WORKING: Final = ("in_flight", "tokens_per_second", "concurrency", "retries")


@dataclass(frozen=True)
class Status:
    """A look at a run.

    values:
        run, running, since (Unix time, null where nothing works), sources (name -> prompts, outcomes by name,
        in_flight, output_tokens), in_flight, tokens_per_second (of the last minute), seconds_left (-1 unknown),
        concurrency, retries, paused, draining, servers, stages
    """

    values: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the look as JSON values."""
        return self.values

    def to_text(self) -> str:
        """Return the look for people."""
        values = self.values
        labels = [outcome.name.lower() for outcome in Outcome if outcome is Outcome.STOP or _seen(values, outcome)]
        rows: list[list[str | int]] = []
        for name, source in values["sources"].items():
            ended = [source["outcomes"][label] for label in labels]
            left = source["prompts"] - sum(ended) - source["in_flight"]
            rows.append([name, source["prompts"], *ended, source["in_flight"], max(0, left), source["output_tokens"]])
        columns = ["source", "rows", *(label.replace("_", " ") for label in labels), "in flight", "waiting", "tokens"]
        return show_table(f"{values['run']}: {_state(values)}", columns, rows, *_notes(values))


def _seen(values: Mapping[str, Any], outcome: Outcome) -> bool:
    return any(part["outcomes"].get(outcome.name.lower()) for part in values["sources"].values())


def _state(values: Mapping[str, Any]) -> str:
    if not values["running"]:
        return "finished" if values["stages"].get("generate") else "not running"
    minutes = (time.time() - values["since"]) / 60
    return f"running for {_span(minutes * 60)}" + (", stopping" if values["draining"] else "")


def _notes(values: Mapping[str, Any]) -> Iterator[str]:
    if not values["running"]:
        if not values["stages"].get("generate"):
            yield "go on with: eagle3-data generate RECIPE"
        return
    left = f", about {_span(values['seconds_left'])} left" if values["seconds_left"] >= 0 else ""
    yield (
        f"{values['tokens_per_second']:,.0f} tokens/s over the last minute, {values['in_flight']:,} of "
        f"{values['concurrency']:,} places in use, {values['retries']:,} retries{left}"
    )
    if values["paused"]:
        yield f"paused: {values['paused']}"
    for server in values["servers"]:
        yield f"{server['url']}: {'up' if server['up'] else 'LOST'}, {server['in_flight']:,} in flight"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def status(path: Path) -> Status:
    """Look at a run folder; takes no lock and writes nothing.

    Raises:
        UsageError: it is none.
        DataError: its journal or manifest is damaged.
    """
    folder = RunFolder(path)
    if not folder.manifest_path.is_file():
        raise no_run_folder(path)
    manifest = folder.read_manifest()
    alive = at_work(folder)
    samples = {name: max(1, int(getattr(entry, "samples", 1) or 1)) for name, entry in manifest.extent.sources.items()}
    sources = _sources(folder, samples)
    for found in alive:
        for name, part in found["sources"].items():
            if name in sources:
                sources[name]["in_flight"] += part["in_flight"]
    return Status(
        {
            "run": str(path),
            "running": bool(alive),
            "since": min((found["since"] for found in alive), default=None),
            "sources": sources,
            **{key: sum(found[key] for found in alive) for key in _WORKING},
            "seconds_left": max((found["seconds_left"] for found in alive), default=-1.0),
            "paused": next((found["paused"] for found in alive if found["paused"]), ""),
            "draining": any(found["draining"] for found in alive),
            "servers": alive[0]["servers"] if alive else [],
            "stages": manifest.stages.to_dict(),
        }
    )


def at_work(folder: RunFolder) -> list[dict[str, Any]]:
    """Return what processes at work on a run left of late; what is broken or old says nothing."""
    found = []
    for file in sorted(folder.progress_path().parent.glob("*.json")):
        try:
            values = read_json(file)
            late = time.time() - float(values["written"]) >= _ALIVE_SECONDS
            if not late and not values["finished"] and isinstance(values["sources"], dict):
                found.append(values)
        except (OSError, DataError, KeyError, TypeError, ValueError):
            continue
    return found


def _sources(folder: RunFolder, samples: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    names = sorted(file.stem for file in folder.path.glob("prompts/*.parquet"))
    journal = Journal(folder.journal_path, readonly=True) if folder.journal_path.is_dir() else None
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        counts = np.zeros(int(max(Outcome)) + 1, np.int64)
        rows = tokens = 0
        with pq.ParquetFile(folder.prompts_path(name)) as file:
            for batch in file.iter_batches(batch_size=_BATCH, columns=["sample_id"]):
                ids = batch.column(0).to_pylist()
                for sample in range(samples.get(name, 1)):
                    rows += len(ids)
                    if journal is None:
                        continue
                    places = journal.look_up(keys_of(ids, sample))
                    codes = journal.index.column("outcome", places)
                    counts += np.bincount(codes, minlength=len(counts))
                    tokens += int(journal.index.column("tokens", places).sum())
        outcomes = {outcome.name.lower(): int(counts[outcome]) for outcome in Outcome if not outcome.missing}
        found[name] = {"prompts": rows, "outcomes": outcomes, "in_flight": 0, "output_tokens": tokens}
    if journal is not None:
        journal.close()
    return found


def watch(path: Path, *, as_json: bool = False) -> None:
    """Show a run anew every two seconds until nothing works on it; with `as_json` one line each time."""
    if as_json:
        while True:
            found = status(path)
            print(json.dumps(found.to_dict(), ensure_ascii=False), flush=True)
            if not found.values["running"]:
                return
            time.sleep(_WATCH_SECONDS)
    console = Console(file=sys.stdout)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            found = status(path)
            live.update(Text(found.to_text()), refresh=True)
            if not found.values["running"]:
                return
            time.sleep(_WATCH_SECONDS)
