"""What the clients of the test Hub do: each function is one job, run in a process that `support.hub_client` forks.

Goes in: JSON values. Comes out: JSON values, small enough to be compared in a test.
"""

import json
import logging
import os
import tempfile
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import datasets.packaged_modules.parquet.parquet
import huggingface_hub
from huggingface_hub import HfApi

import eagle3_data.lengths.views.markdown  # noqa: F401  what every publish needs is imported once, before the forks
from eagle3_data.publishing.hub import errors as hub_errors
from eagle3_data.publishing.hub import versions
from eagle3_data.publishing.hub.client import publish
from eagle3_data.run_folder import RunFolder

datasets.disable_progress_bars()
WAITS: list[float] = []


def fault(match: str, action: str, **options: Any) -> None:
    """Plant a fault that may kill this very process."""
    body = json.dumps({"match": match, "action": action, "pid": os.getpid(), **options}).encode()
    headers = {"Content-Type": "application/json"}
    url = f"{os.environ['HF_ENDPOINT']}/_test/faults"
    urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST", headers=headers), timeout=30).close()


def publish_run(
    folder: str | list[str],
    repo: str,
    version: str,
    plant: dict[str, Any] | None = None,
    debug: bool = False,
    patient: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Publish a run folder; `plant` is a fault for this process, and impatient clients do not wait between tries."""
    if debug:
        logging.basicConfig(level=logging.DEBUG, force=True)
        huggingface_hub.logging.set_verbosity_debug()
    if plant:
        fault(**plant)
    if not patient:
        time.sleep = WAITS.append  # huggingface_hub waits between its own tries
        hub_errors.sleep = WAITS.append
    runs = RunFolder(folder) if isinstance(folder, str) else [RunFolder(each) for each in folder]
    report = publish(runs, repo, version, **options)
    print(report.to_text())
    return {**report.to_dict(), "waits": WAITS}


def publish_records(folder: str, repo: str, version: str, model: str = "") -> dict[str, Any]:
    """Publish a data set of records in place of a run folder; `model` names the target of it."""
    records = datasets.load_dataset(folder, split="train", cache_dir=tempfile.mkdtemp())
    target: Any = SimpleNamespace(identity=lambda: {"model": model}, describe=str) if model else None
    return publish(records, repo, version, target=target).to_dict()


def publish_selected(
    source: str, repo: str, version: str, *, splits: list[str], most_tokens: int, twice: bool = False
) -> dict[str, Any]:
    """Publish the rows of a version whose answers are short, as a user selects them with `datasets`."""
    loaded = {}
    for split in splits:
        rows = versions.load_version(source, split=split, cache_dir=tempfile.mkdtemp())
        rows = rows.filter(lambda row: row["completion_tokens"] <= most_tokens)
        loaded[split] = datasets.concatenate_datasets([rows, rows]) if twice else rows
    given = loaded[splits[0]] if len(splits) == 1 else datasets.DatasetDict(loaded)
    return publish(given, repo, version).to_dict()


def rows_of(repo: str, config: str | None, revision: str, columns: list[str]) -> list[list[Any]]:
    """Return columns of the training split, row by row."""
    found = datasets.load_dataset(repo, config, revision=revision, split="train", cache_dir=tempfile.mkdtemp())
    return [[row[name] for name in columns] for row in found]


def load(repo: str, config: str | None = None, revision: str | None = None, split: str = "train") -> dict[str, Any]:
    """Load into a fresh cache and say what came."""
    found = datasets.load_dataset(repo, config, revision=revision, split=split, cache_dir=tempfile.mkdtemp())
    return {
        "datasets": datasets.__version__,
        "rows": found.num_rows,
        "first": found[0],
        "ids": found["sample_id"][:] if found.num_rows < 20_000 else [],
        "input_ids": str(found.data.schema.field("input_ids").type),
        "output_ids": str(found.data.schema.field("output_ids").type),
    }


def stream(repo: str, config: str, revision: str, rows: int) -> list[dict[str, Any]]:
    """Read the first rows without downloading."""
    found = datasets.load_dataset(repo, config, revision=revision, split="train", streaming=True)
    return list(found.take(rows))


def stream_version(repo: str, version: str, source: str, rows: int) -> list[dict[str, Any]]:
    """Read the first rows of a version as our helper does."""
    return list(versions.load_version(repo, version, source=source, streaming=True).take(rows))


def load_version(repo: str, version: str | None = None, source: str | None = None) -> int:
    """Load a version with our helper and count its rows."""
    folder = tempfile.mkdtemp()
    return int(versions.load_version(repo, version, source=source, cache_dir=folder).num_rows)


def state(repo: str) -> dict[str, Any]:
    """Return what a reader sees: main, tags and commits."""
    api = HfApi()
    refs = api.list_repo_refs(repo, repo_type="dataset")
    info = api.dataset_info(repo)
    main = {
        entry.path: (entry.lfs.sha256 if entry.lfs else entry.blob_id)
        for entry in api.list_repo_tree(repo, recursive=True, repo_type="dataset")
        if hasattr(entry, "blob_id")
    }
    return {
        "main": main,
        "sha": info.sha,
        "private": info.private,
        "gated": info.gated,
        "tags": {tag.name: tag.target_commit for tag in refs.tags},
        "branches": sorted(branch.name for branch in refs.branches),
        "commits": [commit.title for commit in api.list_repo_commits(repo, repo_type="dataset")],
    }


def read(repo: str, path: str, revision: str | None = None) -> str:
    """Return a text file of a repository."""
    place = huggingface_hub.hf_hub_download(repo, path, repo_type="dataset", revision=revision)
    return Path(place).read_text(encoding="utf-8")


def write(repo: str, path: str, text: str, kind: str = "dataset") -> str:
    """Commit a text file as a person does on the web page."""
    return str(HfApi().upload_file(path_or_fileobj=text.encode(), path_in_repo=path, repo_id=repo, repo_type=kind))


def create(repo: str, kind: str = "dataset", private: bool = False) -> str:
    """Create a repository."""
    return str(HfApi().create_repo(repo, repo_type=kind, private=private))


def history(repo: str, sample_id: str) -> list[dict[str, Any]]:
    """Return what became of a row."""
    return [asdict(row) for row in versions.history(repo, sample_id)]


def fetch_recipe(url: str) -> str:
    """Return the recipe of a version."""
    return versions.fetch_recipe(url)


def missing_prompts(folder: str, repo: str) -> dict[str, int]:
    """Compare a run's prompts with a version."""
    return versions.missing_prompts(RunFolder(folder), repo)


def restore_run(folder: str, source: str) -> dict[str, Any]:
    """Bring a published version into a run folder."""
    from eagle3_data.pipeline.restore import restore

    return restore(Path(folder), source=source).to_dict()
