"""Against the real SGLang server: two workers that are killed and stopped, continuation, every edge of the context.

The server is heavy (each takes some gigabytes and half a minute to start): set EAGLE3_DATA_SGLANG to
its folder and run with `-m sglang`.
"""

import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from support.generation import PlainTarget
from support.shared import SHARED

from eagle3_data import schema
from eagle3_data.generation import Generator, run_generation, write_records
from eagle3_data.run_folder import RunFolder
from eagle3_data.target import Target

START = SHARED / "sglang" / "start.sh"
SGLANG = os.environ.get("EAGLE3_DATA_SGLANG", "")
SERVER = Path(SGLANG)
PORTS = (31210, 31211)
STOPPED_SECONDS = 90

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not SGLANG, reason="EAGLE3_DATA_SGLANG does not name the folder of a real SGLang"),
]


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=20):
            return True
    except OSError:
        return False


def start(port: int) -> str:
    """Start a worker if there is none; a slow machine takes longer than its script waits, so look on."""
    url = f"http://127.0.0.1:{port}"
    if not answers(url):
        environment = {**os.environ, "TOKENS": "16384"}
        subprocess.run([str(START), SGLANG, str(port)], stdout=subprocess.DEVNULL, env=environment)
    for _ in range(300):
        if answers(url):
            return url
        time.sleep(1)
    raise AssertionError(f"no SGLang on port {port}; see {SERVER}/server-{port}.log")


def send(port: int, number: signal.Signals) -> None:
    """Send a signal to a worker and what it started: SIGKILL is a crash, SIGSTOP a server that hangs."""
    pid = int((SERVER / f"server-{port}.pid").read_text())
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    for each in [str(pid), *children]:
        try:
            os.kill(int(each), number)
        except ProcessLookupError:
            continue


def kill(port: int) -> None:
    send(port, signal.SIGKILL)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    urls = [start(port) for port in PORTS]
    yield urls
    for port in PORTS:
        kill(port)


class LongTarget(PlainTarget):
    """Takes ids as they are."""

    stop_token_ids = (2,)


def chats(count: int) -> datasets.Dataset:
    """Return prompts of SmolLM2's chat form by its own tokenizer."""
    target = Target.from_pretrained(SHARED / "tokenizers" / "smollm2")
    asked = [f"Tell me {number} things about the number {number * 37}." for number in range(1, count + 1)]
    ids = [target.render([{"role": "user", "content": text}]) for text in asked]
    return datasets.Dataset.from_dict(
        {
            "sample_id": [f"B1-{number:024x}" for number in range(count)],
            "source": ["B1"] * count,
            "input_ids": ids,
        },
        features=datasets.Features(
            {
                "sample_id": datasets.Value("string"),
                "source": datasets.Value("string"),
                "input_ids": [datasets.Value("int32")],
            }
        ),
    )


def generator(urls: list[str], folder: Path, cap: int, **changes: Any) -> Generator:
    return Generator(LongTarget(), urls, {"temperature": 0.0}, {"B1": cap}, folder / "journal", **changes)


def test_a_killed_worker_returns_and_nothing_is_lost(servers: list[str], tmp_path: Path) -> None:
    given = chats(60)
    back = threading.Thread(target=start, args=(PORTS[1],))
    killed = False

    def on_progress(progress: Any) -> None:
        nonlocal killed
        if not killed and progress.sources["B1"].done >= 6:
            killed = True
            kill(PORTS[1])
            back.start()

    with generator(servers, tmp_path, 24, concurrency=8) as step:
        result = run_generation({"B1": given}, step, on_progress)
    back.join()
    assert killed
    assert (result.progress.sources["B1"].done, result.failed) == (60, 0)
    with generator(servers[:1], tmp_path / "calm", 24, concurrency=8) as step:
        run_generation({"B1": given}, step)
        calm = [step.journal.get(sample_id) for sample_id in given["sample_id"]]
    with generator(servers[:1], tmp_path, 24) as step:
        for before, sample_id in zip(calm, given["sample_id"], strict=True):
            after = step.journal.get(sample_id)
            assert before is not None and after is not None
            assert np.array_equal(before.output_ids, after.output_ids)


def asked_prompts(count: int) -> datasets.Dataset:
    """Return prompts as a run has them: chats, which the target renders."""
    made = []
    for number in range(count):
        chat = [{"role": "user", "content": f"Tell me {number + 1} things about the number {number * 37 + 11}."}]
        digest = schema.content_hash(chat, "[]")[:24]
        made.append(
            {
                "sample_id": f"B1-{digest}",
                "source": "B1",
                "config": "all",
                "source_revision": "r",
                "source_file": "f.jsonl",
                "source_row": number,
                "source_turn": 0,
                "origin": "",
                "license": "mit",
                "dialogue": f"B1-{digest}",
                "turn": 0,
                "later_turns": [],
                "expected_tokens": 0,
                "messages": chat,
                "tools": "[]",
            }
        )
    return datasets.Dataset.from_list(made, features=schema.PROMPT_FEATURES)


def test_one_killed_and_one_stopped_change_no_record(servers: list[str], tmp_path: Path) -> None:
    rows, at_once, killed, stopped = 48, 8, *PORTS
    given, target = {"B1": asked_prompts(rows)}, Target.from_pretrained(SHARED / "tokenizers" / "smollm2")
    events: list[tuple[str, float, int]] = []
    said: set[str] = set()
    answers: Counter[str] = Counter()

    def revive() -> None:
        start(killed)
        events.append(("restarted", time.monotonic(), -1))

    def let_go_on() -> None:
        send(stopped, signal.SIGCONT)
        events.append(("went on", time.monotonic(), -1))

    restart, go_on = threading.Thread(target=revive), threading.Timer(STOPPED_SECONDS, let_go_on)

    def on_progress(progress: Any) -> None:
        done, happened = progress.sources["B1"].done, [name for name, *_ in events]
        said.add(progress.paused)
        if "killed" not in happened and done >= 4:
            events.append(("killed", time.monotonic(), done))
            send(killed, signal.SIGKILL)
            restart.start()
        elif "killed" in happened and "stopped" not in happened and done >= 10:
            in_flight = next(one["in_flight"] for one in progress.servers if one["url"] == servers[1])
            if in_flight:
                events.append(("stopped", time.monotonic(), done))
                send(stopped, signal.SIGSTOP)
                go_on.start()

    tables, requests = [], []
    for name in ("calm", "troubled"):
        run = RunFolder(tmp_path / name)
        with Generator(
            target, servers, {"temperature": 0.0}, {"B1": 24}, run.journal_path, concurrency=at_once
        ) as step:
            keep = step.journal.append

            def counted(entry: Any, keep: Any = keep) -> None:
                answers[entry.sample_id] += entry.outcome.answered
                keep(entry)

            answers.clear()
            step.journal.append = counted  # type: ignore[method-assign]
            try:
                result = run_generation(given, step, on_progress if name == "troubled" else lambda progress: None)
            finally:
                if go_on.is_alive():
                    go_on.cancel()
                    send(stopped, signal.SIGCONT)
            counts = write_records(given, run, target, journal=step.journal)["B1"]
        requests.append(result.progress.requests)
        assert (counts.records, counts.failed, counts.skipped, counts.missing) == (rows, 0, 0, 0)
        assert sorted(answers.values()) == [1] * rows, "every row was answered once"
        tables.append(pq.read_table(run.record_files("B1")[0]))
    restart.join()
    at = {name: seconds for name, seconds, _ in events}
    print(f"requests {requests}", [(name, round(seconds - at["killed"], 1), done) for name, seconds, done in events])
    assert {"killed", "restarted", "stopped", "went on"} == set(at)
    assert any(f"nothing came from {servers[1]}" in text for text in said), said
    assert tables[0].equals(tables[1])
    # What a killed server was writing is asked again, and what was sent to it before its loss was seen; a stopped
    # server's requests are not: they are answered when it goes on.
    assert requests[0] == rows and requests[1] <= rows + 2 * at_once


def test_extended_answers_equal_one_long_generation(servers: list[str], tmp_path: Path) -> None:
    given = chats(16)
    with generator(servers, tmp_path / "long", 48, concurrency=8) as step:
        long = given.map(step.generate)
    with generator(servers, tmp_path / "short", 12, concurrency=8) as step:
        short = given.map(step.generate)
    assert short["finish_reason"].count("length_cap") > 8
    with generator(servers, tmp_path / "short", 48, concurrency=8, extend=True) as step:
        extended = given.map(step.generate)
    assert extended["output_ids"] == long["output_ids"]
    assert extended["finish_reason"] == long["finish_reason"]
    assert max(extended["rounds"]) == 2


def test_every_edge_of_the_context(servers: list[str], tmp_path: Path) -> None:
    context = 8192
    lengths = list(range(context - 9, context + 3))
    given = datasets.Dataset.from_dict(
        {
            "sample_id": [f"B1-{tokens}" for tokens in lengths],
            "source": ["B1"] * len(lengths),
            "input_ids": [[1] + [9690] * (tokens - 1) for tokens in lengths],
        }
    )
    with generator(servers[:1], tmp_path, 6, concurrency=1) as step:
        began = time.monotonic()
        out = given.map(step.generate)
        assert step.journal.get(f"B1-{context - 6}") is not None
    assert time.monotonic() - began < 1200
    cut = [reason for reason in out["finish_reason"][:3] if reason != "stop"]
    assert out["error"][:3] == [""] * 3, out["error"][:3]
    assert all(reason in ("length_cap", "length_context") for reason in cut)
    assert out["max_new_tokens"][:3] == [6, 6, 5]
    assert all(error.startswith("context:") for error in out["error"][3:])
