"""Rows a second of the generation room beside a peer's, asked of one stub in turns in one run; prints JSON at the end.

    python -m venv VENV && VENV/bin/pip install speculators
    python tests/benchmarks/generation_peers.py --speculators VENV [--tokenizer FOLDER] [--rows 2000]

Three clients, each with 64 requests in flight to the stub in C that answers at once with 2,000 tokens: a bare aiohttp
pool that parses and drops, ours with journal and Parquet, and `speculators regenerate-responses`. The peer lives in a
virtual environment of its own, since it brings torch; without one it is left out and the JSON says why.

The peer is timed by its own clock, from the first row that it reads to the last that it writes: its start (imports
and tokenizer, many seconds) is told beside it, never counted. All of its rows are read back and compared with what the
stub said. A chat of the peer is rendered on the server, here by nobody; our prompts come as ids, rendered beforehand.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generation import answering_stub, bare_pool, ours, write_prompts
from support.shared import SHARED

TOKENIZER = SHARED / "tokenizers" / "qwen3"
PEER = "speculators regenerate-responses"
HOW_TO_INSTALL = "python -m venv VENV && VENV/bin/pip install speculators, then --speculators VENV"
SPEED = re.compile(r"^Throughput: ([0-9.]+) req/s", re.MULTILINE)


def write_chats(path: Path, rows: int) -> Path:
    """Write as many prompts as ours, as text of about as many tokens as theirs have ids."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            file.write(json.dumps({"id": f"B1-{number:024x}", "prompt": f"{number} " + "the " * 196}) + "\n")
    return path


def expected_ids(url: str) -> tuple[list[int], list[int]]:
    """Return the ids of the stub's chat prompt (see stub.c) and those that it answers to `/generate`, as to ours."""
    body = b'{"input_ids": [3], "sampling_params": {}}'
    with urlopen(Request(url + "/generate", body, {"content-type": "application/json"})) as reply:
        return list(range(3, 203)), json.load(reply)["output_ids"]


def whole_rows(path: Path, prompt: Sequence[int], output: Sequence[int]) -> int:
    """Return how many different prompts have a row; a row that is not whole ends the benchmark."""
    ids = [*prompt, *output]
    mask = [0] * len(prompt) + [1] * len(output)
    seen = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = orjson.loads(line)
            if row["input_ids"] != ids or row["loss_mask"] != mask or not row["text"]:
                raise SystemExit(f"{path}: row {number} of the peer is not what the stub answered")
            seen.add(row["primary_id"])
    return len(seen)


def peer(program: Path, url: str, folder: Path, chats: Path, flight: int, tokenizer: Path) -> dict[str, float]:
    """Run the peer over all chats; return the rows that it wrote, its seconds for them and those of its start."""
    folder.mkdir()
    records = folder / "records.jsonl"
    command = [
        program,
        "regenerate-responses",
        *("--endpoint", url + "/v1/chat/completions"),
        *("--model", tokenizer),
        *("--dataset", chats),
        *("--outfile", records),
        *("--concurrency", str(flight)),
        *("--max-tokens", "4096"),
        *("--sampling-params", json.dumps({"temperature": 1.0, "top_p": 1.0})),
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    whole = time.perf_counter() - began
    failures = folder / "records.errors.jsonl"
    speed = SPEED.search(done.stdout)
    if done.returncode or speed is None or failures.stat().st_size:
        told = failures.read_text() if failures.is_file() else ""
        raise SystemExit(f"the peer failed ({done.returncode}):\n{(told or done.stderr)[:2000]}")
    rows = whole_rows(records, *expected_ids(url))
    seconds = rows / float(speed[1])
    return {"rows": rows, "seconds": seconds, "start": whole - seconds, "bytes": records.stat().st_size}


def compare(rows: int, tokens: int, flight: int, rounds: int, program: Path | None, tokenizer: Path) -> dict[str, Any]:
    seen: dict[str, list[float]] = {}
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name, answering_stub(tokens) as url:
        work = Path(name)
        prompts = write_prompts(work / "prompts.parquet", rows, 200)
        chats = write_chats(work / "chats.jsonl", rows)
        for number in range(rounds):
            began = time.perf_counter()
            asyncio.run(bare_pool(url, rows, flight, 200, orjson.loads))
            seen.setdefault("orjson pool", []).append(time.perf_counter() - began)
            seen.setdefault("ours", []).append(sum(ours(url, work / "ours", prompts, flight).values()))
            shutil.rmtree(work / "ours")
            if program is not None:
                run = peer(program, url, work / "peer", chats, flight, tokenizer)
                if run["rows"] != rows:
                    raise SystemExit(f"the peer wrote {run['rows']:.0f} of {rows} rows")
                runs.append(run)
                seen.setdefault(PEER, []).append(run["seconds"])
                shutil.rmtree(work / "peer")
            print(f"round {number + 1} of {rounds}", file=sys.stderr)

    def ratio(above: str, below: str) -> float:
        return round(statistics.median(b / a for a, b in zip(seen[above], seen[below], strict=True)), 3)

    result: dict[str, Any] = {
        "rows": rows,
        "tokens": tokens,
        "in flight": flight,
        "rows per second": {label: round(rows / min(times)) for label, times in seen.items()},
        "as a share of the bare pool, median of the rounds": {
            label: ratio(label, "orjson pool") for label in seen if label != "orjson pool"
        },
    }
    if program is None:
        result["skipped"] = {PEER: f"no virtual environment with it was given: {HOW_TO_INSTALL}"}
    else:
        result["ours over the peer, median of the rounds"] = ratio("ours", PEER)
        result["peer"] = {
            "version": peer_version(program),
            "tokenizer": tokenizer.name,
            "start, seconds, not counted": round(statistics.median(run["start"] for run in runs), 1),
            "bytes written per row": round(runs[0]["bytes"] / rows),
        }
    return result


def peer_version(program: Path) -> str:
    ask = "from importlib.metadata import version; print(version('speculators'))"
    return subprocess.run(
        [program.with_name("python"), "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speculators", type=Path, metavar="VENV", help="a virtual environment with speculators")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=TOKENIZER,
        help="with 150,003 ids or more: the peer decodes all that it gets (default: Qwen3's in the shared folder)",
    )
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    program = None
    if arguments.speculators is not None:
        # The peer runs in a folder of its own, where a relative path would lead nowhere.
        program = arguments.speculators.absolute() / "bin" / "speculators"
        if not program.is_file():
            parser.error(f"no {program}; make it so: {HOW_TO_INSTALL}")
        if not (arguments.tokenizer / "tokenizer.json").is_file():
            parser.error(f"no tokenizer.json in {arguments.tokenizer}; name a folder with one by --tokenizer")
    result = compare(
        arguments.rows,
        arguments.tokens,
        arguments.flight,
        arguments.rounds,
        program,
        arguments.tokenizer.absolute(),
    )
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
