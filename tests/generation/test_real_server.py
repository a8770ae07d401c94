"""Against the real SGLang server: two workers with one killed, continuation, and every edge of the context.

The server is heavy (each takes some gigabytes and half a minute to start): set EAGLE3_DATA_SGLANG to
its folder and run with `-m sglang`.
"""

import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from support.generation import PlainTarget
from support.shared import SHARED

from eagle3_data.generation import Generator, run_generation
from eagle3_data.target import Target

START = SHARED / "sglang" / "start.sh"
SGLANG = os.environ.get("EAGLE3_DATA_SGLANG", "")
SERVER = Path(SGLANG)
PORTS = (31210, 31211)

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


def kill(port: int) -> None:
    """End a worker and what it started, as a crash does."""
    pid = int((SERVER / f"server-{port}.pid").read_text())
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    for each in [str(pid), *children]:
        try:
            os.kill(int(each), signal.SIGKILL)
        except ProcessLookupError:
            continue


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
