"""Shards on a Ray cluster of two nodes, one of which is killed, give what one process gives."""

import functools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.generation import PlainTarget, ServerProcess, prompts
from support.shared import SUPPORT

from eagle3_data.errors import DataError, UsageError
from eagle3_data.generation import Generator, Journal, Progress, RetryPolicy, run_generation, write_records
from eagle3_data.generation.on_ray import _together, run_shards
from eagle3_data.generation.progress import SourceProgress
from eagle3_data.run_folder import RunFolder

ROWS = 600


def one_shard(folder: str, url: str, shard: tuple[int, int], report: Callable[[Progress], None]) -> int:
    with Generator(
        PlainTarget(),
        [url],
        {"temperature": 0.0},
        40,
        RunFolder(folder).journal_path,
        concurrency=4,
        retries=RetryPolicy(first_wait=0.05),
        shard=shard,
    ) as step:
        result = run_generation({"B1": prompts(ROWS)}, step, report)
    return result.progress.sources["B1"].done


def failing_shard(shard: tuple[int, int], report: Callable[[Progress], None]) -> int:
    raise DataError(f"shard {shard[0]} is broken")


def test_progress_of_shards_adds_up() -> None:
    parts = [
        Progress(sources={"B1": SourceProgress(total=3, done=1)}, tokens=5, seconds=2.0, seconds_left=9.0, paused="x"),
        Progress(sources={"B1": SourceProgress(total=4, done=4)}, tokens=6, seconds=3.0, seconds_left=0.0),
    ]
    whole = _together(parts, finished=False)
    assert whole.sources["B1"] == SourceProgress(total=7, done=5)
    assert (whole.tokens, whole.seconds, whole.seconds_left, whole.paused) == (11, 3.0, 9.0, "x")


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"eagle3-data\[ray\]"):
        run_shards(failing_shard, "auto")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_node_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra ray)")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(SUPPORT.parent))
    server = ServerProcess("--delay", "0.05")
    single, sharded = RunFolder(tmp_path / "single"), RunFolder(tmp_path / "sharded")
    given = {"B1": prompts(ROWS)}
    one_shard(str(single.path), server.url, (0, 1), lambda progress: None)
    write_records(given, single, PlainTarget())

    limits: dict[str, Any] = {"object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **limits})
    nodes = [cluster.add_node(num_cpus=2, object_store_memory=80_000_000) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    killed = threading.Event()

    def kill_one() -> None:
        while not killed.is_set():
            if sharded.journal_path.exists():
                with Journal(sharded.journal_path, readonly=True) as journal:
                    done = len(journal)
                if done > 100:
                    cluster.remove_node(nodes[1], allow_graceful=False)
                    killed.set()
            time.sleep(0.2)

    killer = threading.Thread(target=kill_one)
    killer.start()
    seen: list[Progress] = []
    try:
        done = run_shards(
            functools.partial(one_shard, str(sharded.path), server.url),
            cluster.address,
            shards=2,
            on_progress=seen.append,
        )
        assert killed.is_set(), "the run was over before a node could be killed"
        with pytest.raises(DataError, match="is broken"):
            run_shards(failing_shard, cluster.address, shards=1)
    finally:
        killed.set()
        killer.join()
        ray.shutdown()
        cluster.shutdown()
        server.kill()
    assert sum(done) == ROWS
    assert seen[-1].finished and seen[-1].sources["B1"].done == ROWS
    write_records(given, sharded, PlainTarget())
    files = [[path.read_bytes() for path in run.record_files("B1")] for run in (single, sharded)]
    assert files[0] == files[1]
