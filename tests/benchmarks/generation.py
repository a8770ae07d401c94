"""How fast the generation room is, as ratios measured side by side in one run; prints JSON at the end.

    python tests/benchmarks/generation.py answers     stub that answers at once: ours against a bare aiohttp pool
    python tests/benchmarks/generation.py batching    stub with 256 slots and heavy-tailed lengths: slot use
    python tests/benchmarks/generation.py rerun       a finished run of a million rows, run again

`answers` needs a C compiler for its stub (stub.c): a stub in Python would be slower than what it measures.
"""

import argparse
import asyncio
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from batching_server import BatchingServer
from support.generation import PlainTarget, serving

from eagle3_data.generation import Generator, Journal, run_generation, write_records
from eagle3_data.generation.journal.entry import Entry, prompt_crc
from eagle3_data.outcome import Outcome
from eagle3_data.run_folder import RunFolder
from eagle3_data.schema import PROMPT_FEATURES
from eagle3_data.sources import Script
from eagle3_data.target.messages import AssistantMessage

HERE = Path(__file__).parent


class WideTarget(PlainTarget):
    """The plain target with a vocabulary of Kimi's size."""

    vocabulary_size = 163_840

    def reasoning_tokens(self, output_ids: Any, input_ids: Any = None) -> int:
        return 0


@contextmanager
def answering_stub(tokens: int) -> Iterator[str]:
    """Build the stub and run it; yield its URL."""
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "stub"
        subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / "stub.c")], check=True)
        stub = subprocess.Popen([program, "0", str(tokens)], stdout=subprocess.PIPE, text=True)
        try:
            assert stub.stdout is not None
            yield f"http://127.0.0.1:{stub.stdout.readline().strip()}"
        finally:
            stub.kill()
            stub.wait()


def write_prompts(path: Path, rows: int, tokens: int, expected: "np.ndarray[Any, Any] | None" = None) -> Path:
    """Write prompts with an `input_ids` column: what is measured is generation, not rendering."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = None
    writer = None
    for start in range(0, rows, 50_000):
        count = min(50_000, rows - start)
        ids = (np.arange(count * tokens, dtype=np.int32) % 997 + 3).reshape(count, tokens)
        ids[:, 0] = np.arange(start, start + count) % 150_000 + 3
        offsets = np.arange(0, count * tokens + 1, tokens, dtype=np.int32)
        text = {name: pa.array(["x"] * count) for name in ("config", "source_revision", "source_file", "license")}
        table = pa.table(
            {
                "sample_id": [f"B1-{number:024x}" for number in range(start, start + count)],
                "source": ["B1"] * count,
                **text,
                "source_row": pa.array(np.arange(start, start + count)),
                "source_turn": pa.array(np.zeros(count, np.int32)),
                "origin": [""] * count,
                "expected_tokens": pa.array(
                    np.zeros(count, np.int32) if expected is None else expected[start : start + count].astype(np.int32)
                ),
                "input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids.reshape(-1))),
            }
        )
        if writer is None:
            schema = table.schema
            writer = pq.ParquetWriter(path, schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return path


# --- answers at once ------------------------------------------------------------------------------------------------


async def bare_pool(url: str, rows: int, flight: int, prompt: int, parse: Callable[[bytes], Any]) -> None:
    """Ask `rows` times with `flight` workers, parse each answer and drop it."""
    ids = [3 + number % 997 for number in range(prompt)]
    left = iter(range(rows))
    sampling = {"max_new_tokens": 4096, "temperature": 1.0, "top_p": 1.0, "stop_token_ids": [2]}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def worker() -> None:
            for _ in left:
                body = orjson.dumps({"input_ids": ids, "sampling_params": sampling})
                async with session.post(url + "/generate", data=body) as reply:
                    parse(await reply.read())

        await asyncio.gather(*(worker() for _ in range(flight)))


def simdjson_parser() -> Callable[[bytes], Any]:
    import simdjson

    parser = simdjson.Parser()

    def parse(body: bytes) -> Any:
        document = parser.parse(body)
        return document["output_ids"].as_buffer(of_type="i"), document["meta_info"].as_dict()

    return parse


def ours(url: str, folder: Path, prompts: Path, flight: int) -> dict[str, float]:
    """Answer and write all prompts; return the seconds of both stages."""
    run = RunFolder(folder)
    began = time.perf_counter()
    with Generator(WideTarget(), [url], {}, {"B1": 4096}, run.journal_path, concurrency=flight) as step:
        run_generation({"B1": prompts}, step)
        generated = time.perf_counter()
        counts = write_records({"B1": prompts}, run, WideTarget(), journal=step.journal)
    assert counts["B1"].records == pq.read_metadata(prompts).num_rows, counts
    return {"generate": generated - began, "write": time.perf_counter() - generated}


def peak_memory() -> int:
    """Return this process's peak memory in bytes (ru_maxrss would begin with the parent's)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def answers(rows: int, tokens: int, flight: int, rounds: int) -> dict[str, Any]:
    seen: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, answering_stub(tokens) as url:
        work = Path(name)
        prompts = write_prompts(work / "prompts.parquet", rows, 200)
        for number in range(rounds):
            for label, parse in (("orjson pool", orjson.loads), ("simdjson pool", simdjson_parser())):
                began, before = time.perf_counter(), cpu()
                asyncio.run(bare_pool(url, rows, flight, 200, parse))
                seen.setdefault(label, []).append(time.perf_counter() - began)
                spent.setdefault(label, []).append(cpu() - before)
            before = cpu()
            parts = ours(url, work / f"run{number}", prompts, flight)
            spent.setdefault("ours", []).append(cpu() - before)
            seen.setdefault("ours", []).append(sum(parts.values()))
            for label, seconds in parts.items():
                seen.setdefault(f"ours: {label}", []).append(seconds)
            shutil.rmtree(work / f"run{number}")
    best = {label: min(times) for label, times in seen.items()}
    ratios = [bare / mine for bare, mine in zip(seen["orjson pool"], seen["ours"], strict=True)]
    return {
        "rows": rows,
        "tokens": tokens,
        "in flight": flight,
        "rows per second": {label: round(rows / seconds) for label, seconds in best.items()},
        "ours as a share of the bare pool (orjson)": round(best["orjson pool"] / best["ours"], 3),
        "ours as a share of the bare pool (simdjson)": round(best["simdjson pool"] / best["ours"], 3),
        "median of the rounds' shares (orjson)": round(statistics.median(ratios), 3),
        "CPU seconds per million output tokens": {
            label: round(min(times) / (rows * tokens / 1e6), 3) for label, times in spent.items()
        },
    }


# --- continuous batching --------------------------------------------------------------------------------------------


def batching(rows: int, slots: int, step_seconds: float, only: str) -> dict[str, Any]:
    """Slot use with and without what upstream answers tell of the lengths.

    Lengths are log-normal (sigma 1.2) and the predictor is off by 0.5 in log length.
    """
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(4.6, 1.2, rows), 4, 8000).astype(int)
    guesses = np.clip(lengths * np.exp(generator.normal(0, 0.5, rows)), 1, 1e6)
    result: dict[str, Any] = {"rows": rows, "slots": slots}
    for label, expected, concurrency in (
        ("first come", None, slots + slots // 10),
        ("longest first", guesses, slots + slots // 10),
        ("longest first, concurrency auto", guesses, "auto"),
    ):
        if only not in label:
            continue
        with tempfile.TemporaryDirectory() as name:
            prompts = write_prompts(Path(name) / "prompts.parquet", rows, 20, expected)
            server = BatchingServer(lengths, slots, step_seconds)
            with serving(server) as url:  # type: ignore[arg-type]
                began = time.perf_counter()
                with Generator(
                    WideTarget(), [url], {}, {"B1": 8192}, Path(name) / "journal", concurrency=concurrency
                ) as step:
                    run_generation({"B1": prompts}, step)
                seconds = time.perf_counter() - began
        bound = max(float(lengths.sum()) / slots, float(lengths.max()))
        result[label] = {
            "slot use": round(bound / server.steps, 4),
            "by the clock": round(bound * step_seconds / seconds, 4),
            "seconds": round(seconds, 1),
        }
    return result


class TalkingTarget(WideTarget):
    """Reads every answer as plain words; its prompts hold the numbers of the last message, as `PlainTarget`'s."""

    def message(self, output_ids: Any, input_ids: Any = None, *, tools: Any = None, first_call: int = 0) -> Any:
        return AssistantMessage("an answer", "")


def talking(rows: int, slots: int, step_seconds: float) -> dict[str, Any]:
    """Slot use where prompts are dialogues of 1 to 12 turns, each one unit; lengths and predictor as in `batching`."""
    generator = np.random.default_rng(0)
    turns = generator.integers(1, 13, rows)
    lengths = np.clip(generator.lognormal(4.6, 1.2, int(turns.sum())), 4, 8000).astype(int)
    starts = np.concatenate([[0], np.cumsum(turns)])
    sums = np.add.reduceat(lengths, starts[:-1])
    guesses = np.clip(sums * np.exp(generator.normal(0, 0.5, rows)), 1, 1e6).astype(int)
    prompts = []
    for row, (first, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        messages: list[dict[str, Any]] = []
        for turn in range(first, end):
            messages += [{"role": "user", "content": f"{turn + 3} 7 9"}, {"role": "assistant"}]
        script = Script(messages[:-1], "[]", 0)
        place = {"source_row": row, "source_turn": 0, "turn": 0, "config": "x", "source_revision": "x"}
        name = f"B1-{row:024x}"
        prompts.append(
            {
                **place,
                "sample_id": name,
                "dialogue": name,
                "source": "B1",
                "source_file": "x",
                "origin": "",
                "license": "x",
                "later_turns": script.later_ids("B1"),
                "expected_tokens": int(guesses[row]),
                "messages": messages[:-1],
                "tools": "[]",
            }
        )
    given = Dataset.from_list(prompts, features=PROMPT_FEATURES)
    with tempfile.TemporaryDirectory() as name:
        server = BatchingServer(lengths, slots, step_seconds)
        with serving(server) as url:  # type: ignore[arg-type]
            began = time.perf_counter()
            with Generator(
                TalkingTarget(), [url], {}, {"B1": 8192}, Path(name) / "journal", concurrency=slots + slots // 10
            ) as step:
                ran = run_generation({"B1": given}, step)
                answered = step.journal.index.count("answered")
            seconds = time.perf_counter() - began
    bound = max(float(lengths.sum()) / slots, float(sums.max()))
    return {
        "dialogues": rows,
        "turns": len(lengths),
        "answered": answered,
        "tokens as planned": ran.progress.tokens == int(lengths.sum()),
        "slots": slots,
        "slot use": round(bound / server.steps, 4),
        "seconds": round(seconds, 1),
    }


# --- a finished run again -------------------------------------------------------------------------------------------


def rerun(rows: int, tokens: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        run = RunFolder(Path(name) / "run")
        prompts = write_prompts(run.prompts_path("B1"), rows, 20)
        target = WideTarget()
        step = Generator(target, ["http://127.0.0.1:9"], {}, {"B1": 4096}, run.journal_path)
        output = np.arange(3, 3 + tokens, dtype=np.int32)
        began = time.perf_counter()
        for number in range(rows):
            row = (np.arange(number % 50_000 * 20, number % 50_000 * 20 + 20, dtype=np.int32) % 997) + 3
            row[0] = number % 150_000 + 3
            step.journal.append(
                Entry(
                    f"B1-{number:024x}",
                    Outcome.STOP,
                    20,
                    prompt_crc(row.astype(np.int32)),
                    budget=4096,
                    rounds=1,
                    stop_token_id=2,
                    output_ids=output,
                )
            )
            if step.journal.backlog_full:
                step.journal.flush()
        step.close()
        filled = time.perf_counter() - began
        write_records({"B1": prompts}, run, target)
        written = time.perf_counter() - began - filled
        again = [sys.executable, __file__, "rerun-once", "--folder", str(run.path)]
        done = subprocess.run(again, capture_output=True, text=True, check=True)
        size = sum(path.stat().st_size for path in run.journal_path.glob("*.log"))
    return {
        "rows": rows,
        "tokens": tokens,
        "first filling, seconds": round(filled, 1),
        "first writing, seconds": round(written, 1),
        "journal bytes per token": round(size / rows / tokens, 2),
        **json.loads(done.stdout),
    }


def rerun_once(folder: str) -> dict[str, Any]:
    """Run a finished run again, in a fresh process whose memory is measured."""
    run = RunFolder(folder)
    before = peak_memory()
    began = time.perf_counter()
    journal = Journal(run.journal_path, readonly=True)
    opened = time.perf_counter() - began
    index = journal.index.nbytes / max(1, len(journal))
    journal.close()
    with Generator(WideTarget(), ["http://127.0.0.1:9"], {}, {"B1": 4096}, run.journal_path) as step:
        result = run_generation({"B1": run.prompts_path("B1")}, step)
        counts = write_records({"B1": run.prompts_path("B1")}, run, WideTarget(), journal=step.journal)
    assert result.progress.requests == 0
    assert counts["B1"].records == result.progress.sources["B1"].answered
    return {
        "run again, seconds": round(time.perf_counter() - began, 1),
        "of it opening the journal twice, seconds": round(2 * opened, 2),
        "index bytes per row": round(index, 1),
        "memory above start, MB": round((peak_memory() - before) / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["answers", "batching", "dialogues", "rerun", "rerun-once"])
    parser.add_argument("--folder", default="")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--step-ms", type=float, default=10.0, help="of the batching stub; real decode steps take 20 to 50"
    )
    parser.add_argument("--only", default="", help="the batching cases whose name holds this")
    arguments = parser.parse_args()
    if arguments.what == "answers":
        result = answers(arguments.rows or 10_000, arguments.tokens or 2000, arguments.flight, arguments.rounds)
    elif arguments.what == "batching":
        result = batching(arguments.rows or 20_000, 256, arguments.step_ms / 1000, arguments.only)
    elif arguments.what == "dialogues":
        result = talking(arguments.rows or 5_000, 256, arguments.step_ms / 1000)
    elif arguments.what == "rerun-once":
        result = rerun_once(arguments.folder)
    else:
        result = rerun(arguments.rows or 1_000_000, arguments.tokens or 200)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
