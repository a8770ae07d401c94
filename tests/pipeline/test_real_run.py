"""A whole run of real rows against a real SGLang server, watched by a proxy that writes down what went over the wire.

Heavy: set EAGLE3_DATA_SGLANG to the server's folder and run with `-m sglang`.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.parquet as pq
import pytest
import yaml
from aiohttp import web
from support.pipeline import call, command, parquet_bytes
from support.shared import SHARED

from eagle3_data.generation.client import canary

SGLANG = os.environ.get("EAGLE3_DATA_SGLANG", "")
PORT = 31510

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not SGLANG, reason="EAGLE3_DATA_SGLANG does not name the folder of a real SGLang"),
    pytest.mark.skipif(not (SHARED / "sample-rows").is_dir(), reason="the real sample rows are not here"),
]

SOURCES = {
    "B1_exact": ("B1_glaive", None, ["B1_glaive/exact.jsonl", "B1_glaive/rows-150.jsonl"]),
    "B4_math": ("B4_mixturethoughts", "math", ["B4_mixturethoughts/math.jsonl"]),
    "B5_114k": ("B5_openthoughts", "openthoughts-114k", ["B5_openthoughts/openthoughts-114k.constructed.jsonl"]),
    "B5_2": ("B5_openthoughts", "openthoughts2-1m", ["B5_openthoughts/openthoughts2-1m.jsonl"]),
    "B5_3": ("B5_openthoughts", "openthoughts3-1.2m", ["B5_openthoughts/openthoughts3-1.2m.constructed.jsonl"]),
    "B8_nebius": ("B8_sweagent", "nebius", ["B8_sweagent/nebius-swe-agent-trajectories.jsonl"]),
    "B8_smith": ("B8_sweagent", "swe-smith", ["B8_sweagent/swe-smith-trajectories-xml.jsonl"]),
    "B8_traj": ("B8_sweagent", "traj", ["B8_sweagent/traj"]),
}


def recipe(path: Path, url: str) -> Path:
    sources: dict[str, Any] = {}
    for name, (source, config, files) in SOURCES.items():
        entry = {"source": source, "data_files": [str(SHARED / "sample-rows" / file) for file in files]}
        sources[name] = {**entry, **({"config": config} if config else {}), "max_new_tokens": 8}
    made = {
        "name": "real",
        "target": {"model": str(Path(SGLANG) / "smollm2-135m")},
        "engine": {"urls": [url], "concurrency": 16},
        "sampling": {"temperature": 0.0},
        "sources": sources,
    }
    path.write_text(yaml.safe_dump(made))
    return path


class Recorder:
    """A proxy that keeps, for each prompt, what the server counted and sent.

    Questions that are about the server are counted apart: `scored` compares its model with the target, `canaries` are
    the greedy answers by which a run knows the model again. Everything else was asked for a row.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.seen: dict[tuple[int, ...], tuple[int, list[int], dict[str, Any]]] = {}
        self.asked = self.scored = self.canaries = 0

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        url, headers = self.upstream + request.path_qs, {"Content-Type": "application/json"} if body else {}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.request(request.method, url, data=body or None) as reply,
        ):
            data = await reply.read()
            if request.path == "/generate" and reply.status == 200:
                sent, answer = json.loads(body), json.loads(data)
                if sent.get("return_logprob"):
                    self.scored += 1
                elif sent["input_ids"] == list(canary.PROMPT) and sent["sampling_params"].get("ignore_eos"):
                    self.canaries += 1
                else:
                    self.asked += 1
                    meta = answer["meta_info"]
                    ids = tuple(sent["input_ids"])
                    self.seen[ids] = (meta["prompt_tokens"], answer["output_ids"], meta["finish_reason"])
            return web.Response(body=data, status=reply.status, content_type=reply.content_type)


@contextlib.contextmanager
def recording(upstream: str) -> Iterator[tuple[Recorder, str]]:
    recorder, loop, ports = Recorder(upstream), asyncio.new_event_loop(), []
    started = threading.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", recorder.handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        started.set()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(serve()), loop.run_forever()), daemon=True)
    thread.start()
    started.wait(30)
    try:
        yield recorder, f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    url = f"http://127.0.0.1:{PORT}"
    start = SHARED / "sglang" / "start.sh"
    subprocess.run([str(start), SGLANG, str(PORT)], stdout=subprocess.DEVNULL, check=False)
    for _ in range(300):
        with contextlib.suppress(OSError), urllib.request.urlopen(url + "/health", timeout=20):
            break
        time.sleep(1)
    yield url
    os.kill(int((Path(SGLANG) / f"server-{PORT}.pid").read_text()), signal.SIGTERM)


def test_records_are_what_went_over_the_wire_and_kills_change_nothing(url: str, tmp_path: Path) -> None:
    with recording(url) as (recorder, proxy):
        out, _ = call("run", recipe(tmp_path / "r.yaml", proxy), cwd=tmp_path)
    print(out)
    calm = tmp_path / "runs" / "real"
    manifest = json.loads((calm / "manifest.json").read_text())
    for name, report in manifest["sources"].items():
        assert report["kept"] + sum(report["rejected"].values()) + report["duplicates"] == report["read"], name
    records = 0
    for name in SOURCES:
        for row in pq.read_table(calm / "records" / name).to_pylist() if (calm / "records" / name).is_dir() else []:
            prompt_tokens, output_ids, finish = recorder.seen[tuple(row["input_ids"])]
            assert row["prompt_tokens"] == len(row["input_ids"]) == prompt_tokens
            assert row["output_ids"] == output_ids
            stopped = finish["type"] == "stop"
            assert row["finish_reason"] == ("stop" if stopped else "length_cap")
            assert row["stop_token_id"] == (finish["matched"] if stopped else -1)
            records += 1
    assert records == sum(counts["records"] for counts in manifest["generation"].values()) == recorder.asked > 100
    assert recorder.canaries == 2, "one greedy answer is recorded at the start, twice, to see if the engine repeats"
    assert recorder.scored == 0, "this server has a tokenizer, which is compared by texts"

    path = recipe(tmp_path / "killed.yaml", url)
    journal = tmp_path / "killed" / "real" / "journal"
    call("prepare", path, "--runs", "killed", cwd=tmp_path)
    for _ in range(3):
        size = sum(file.stat().st_size for file in journal.glob("*.log")) if journal.is_dir() else 0
        process = command("generate", path, "--runs", "killed", cwd=tmp_path)
        while process.poll() is None and sum(file.stat().st_size for file in journal.glob("*.log")) <= size:
            time.sleep(0.05)
        time.sleep(random.uniform(0, 4))
        process.kill()
        process.communicate()
    call("generate", path, "--runs", "killed", cwd=tmp_path)
    assert ids(tmp_path / "killed" / "real") == ids(calm)
    call("generate", path, "--runs", "again", cwd=tmp_path)
    assert parquet_bytes(tmp_path / "killed" / "real") == parquet_bytes(tmp_path / "again" / "real")


def ids(folder: Path) -> list[Any]:
    columns = ["sample_id", "input_ids", "output_ids", "finish_reason"]
    return [pq.read_table(path, columns=columns).to_pylist() for path in sorted(folder.glob("records/*/*.parquet"))]
