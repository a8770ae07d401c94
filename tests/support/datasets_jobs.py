"""Loads every source with `datasets`, as a script (3.6) or by its registered name (5.x): run by test_sources_datasets.

    python tests/datasets_jobs.py CACHE_DIR       prints {"version": …, "rows": {"<source>/<config>/<turns>": digest}}

The digest is over all columns of all rows, so that equal output of two versions means identical rows.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import datasets

from eagle3_data.sources import SOURCES, sample_rows
from eagle3_data.sources.registry import builder

OLD = datasets.__version__.startswith("3.")


def load(name: str, config: str, **arguments: Any) -> Any:
    if OLD:
        script = sys.modules[builder(name).__module__].__file__
        return datasets.load_dataset(script, config, trust_remote_code=True, split="train", **arguments)
    return datasets.load_dataset(name, config, split="train", **arguments)


def main() -> None:
    cache = sys.argv[1]
    datasets.disable_progress_bars()
    digests = {}
    for name in SOURCES:
        for path in sample_rows(name):
            config = path.stem.removeprefix(f"{name}.")
            parts = split(path, Path(cache) / "parts")
            for turns in ("first", "prefix"):
                one = list(load(name, config, data_files=str(path), turns=turns, cache_dir=cache))
                streamed = list(load(name, config, data_files=str(path), turns=turns, streaming=True))
                assert one == streamed, f"{name}: streaming gives other rows"
                digests[f"{name}/{config}/{turns}"] = hashlib.sha256(
                    json.dumps(one, sort_keys=True).encode()
                ).hexdigest()
            many = list(load(name, config, data_files=parts, cache_dir=cache, num_proc=2))
            single = list(load(name, config, data_files=parts, cache_dir=cache + "/single"))
            assert many == single, f"{name}: num_proc changes the rows"
            places = [(row["source_file"], row["source_row"]) for row in many]
            assert places == sorted(places) and {place for place, _ in places} <= {Path(part).name for part in parts}
            rejects = list(load(name, config, data_files=str(path), keep_rejects=True, cache_dir=cache))
            digests[f"{name}/{config}/rejects"] = str(sum(row["reject_reason"] != "" for row in rejects))
    print(json.dumps({"version": datasets.__version__, "rows": digests}))


def split(path: Path, folder: Path) -> list[str]:
    """Write the rows of a sample file as three files."""
    folder.mkdir(exist_ok=True)
    text = path.read_text("utf-8")
    rows = [json.dumps(row) for row in json.loads(text)] if path.suffix == ".json" else text.strip().split("\n")
    made = []
    for part in range(3):
        made.append(folder / f"{path.stem}-{part}.jsonl")
        made[-1].write_text("\n".join(rows[part::3]) + "\n", "utf-8")
    return [str(file) for file in made]


if __name__ == "__main__":
    main()
