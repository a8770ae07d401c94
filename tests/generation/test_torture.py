"""Everything goes wrong at once, and nothing is lost: faults by row and try, servers that die, kill -9 at random."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import generation_job as generation_job
from support.generation import ServerProcess

from eagle3_data.generation import Journal
from eagle3_data.outcome import of_code
from eagle3_data.run_folder import RunFolder

SEED = 11
LINE_BYTES = 14  # of the servers' log, a request each


def job(*arguments: str) -> "multiprocessing.process.BaseProcess":
    """Start a run in a fork of this process: what it imports is there already, so it is soon in the middle of work."""
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=lambda: os._exit(generation_job.main(list(arguments))))
    process.start()
    return process


def records(run: RunFolder) -> dict[str, bytes]:
    return {
        str(path.relative_to(run.path)): path.read_bytes() for path in sorted(run.path.glob("records/*/*.parquet"))
    }


def failures(run: RunFolder) -> list[dict[str, Any]]:
    return pq.read_table(run.failures_path).drop(["attempts"]).to_pylist()


def answered(run: RunFolder) -> set[int]:
    """Return the prompts that have an answer in the journal, by the CRC of their ids."""
    if not run.journal_path.exists():
        return set()
    with Journal(run.journal_path, readonly=True) as journal:
        everywhere = np.arange(len(journal))
        states = journal.index.column("outcome", everywhere)
        crcs = journal.index.column("prompt_crc", everywhere)
    return {int(crc) for state, crc in zip(states, crcs, strict=True) if of_code(int(state)).answered}


def asked_bytes(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


@pytest.mark.parametrize(
    ("rows", "kills"),
    [(300, 6), pytest.param(6000, 100, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])],
)
def test_torture(tmp_path: Path, rows: int, kills: int) -> None:
    luck = random.Random(SEED)
    total = rows + rows // 2
    calm, wild = RunFolder(tmp_path / "calm"), RunFolder(tmp_path / "wild")
    server = ServerProcess("--faults", str(SEED), "--share", "0")
    process = job(str(calm.path), "--urls", server.url, "--rows", str(rows))
    process.join()
    server.kill()
    assert process.exitcode == 0

    log = tmp_path / "asked.txt"
    faulty = ["--faults", str(SEED), "--share", "0.2", "--delay", "0.02", "--log", str(log)]
    servers = [ServerProcess(*faulty), ServerProcess(*faulty)]
    urls = ",".join(one.url for one in servers)
    arguments = (str(wild.path), "--urls", urls, "--rows", str(rows), "--timeout", "1")
    known: list[tuple[int, set[int]]] = []
    killed = 0
    try:
        while killed < kills:
            process = job(*arguments)
            # By what it has asked and not by the clock, or a fast machine would be done before the last kill.
            early = luck.random() < 0.3
            before = asked_bytes(log)
            share = 0 if early else luck.uniform(0, 1.2 * total / kills) * LINE_BYTES
            while process.is_alive() and asked_bytes(log) - before < share:
                time.sleep(0.002)
            process.join(luck.uniform(0.1, 0.5) if early else 0)
            if process.exitcode is not None:
                assert process.exitcode == 0
                break
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            killed += 1
            # Requests that were under way reach the log a moment later.
            time.sleep(0.05)
            known.append((asked_bytes(log), answered(wild)))
            if luck.random() < 0.2:
                victim = luck.choice(servers)
                victim.kill()
                victim.start()
        process = job(*arguments)
        process.join()
        assert process.exitcode == 0
    finally:
        for one in servers:
            one.kill()
    assert killed >= kills * 0.8

    asked = log.read_bytes()
    for size, done in known:
        later = {int(line.split()[0]) for line in asked[size:].splitlines()}
        assert not later & done, "a prompt whose answer was in the journal was asked again"
    assert failures(wild) == failures(calm)
    assert records(wild) == records(calm)
    written = sum(pq.read_metadata(path).num_rows for path in wild.path.glob("records/*/*.parquet"))
    assert written + len(failures(wild)) == total
