"""The pipeline's runner: one window, longest first, shards, Ctrl-C, and files that depend on the answers alone."""

import asyncio
import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.generate_server import GenerateServer, crc_of, random_faults
from support.generation import PlainTarget, ServerProcess, prompt_ids, prompts, serving
from support.shared import SUPPORT

from eagle3_data.errors import DataError, DiskFull
from eagle3_data.generation import GenerationRun, Generator, RetryPolicy, records, run_generation, write_records
from eagle3_data.generation.prompts.queue import Queues, SourceQueue
from eagle3_data.generation.records import parquet as files
from eagle3_data.run_folder import RunFolder

QUICK = RetryPolicy(attempts=6, first_wait=0.01, longest_wait=0.05)
JOB = [sys.executable, str(SUPPORT / "generation_job.py")]


def generator(url: str, path: Path, **changes: Any) -> Generator:
    changes.setdefault("retries", QUICK)
    caps = {"B1": 40, "B8": 60}
    return Generator(PlainTarget(), [url], {"temperature": 0.0}, caps, path / "journal", **changes)


def hashes(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*.parquet"))
    }


def test_the_pool_gives_what_map_gives(tmp_path: Path) -> None:
    given = prompts(80)
    with serving(GenerateServer()) as url:
        with generator(url, tmp_path / "map") as step:
            mapped = records(given.map(step.generate))
        run = RunFolder(tmp_path / "pool")
        with generator(url, run.path) as step:
            result = run_generation({"B1": given}, step)
            counts = write_records({"B1": given}, run, PlainTarget(), journal=step.journal)
    table = pq.read_table(run.record_files("B1")[0])
    assert table.to_pylist() == mapped.to_list()
    assert counts["B1"].records == result.progress.sources["B1"].done == 80
    assert counts["B1"].truncated == mapped["finish_reason"].count("length_cap")
    assert counts["B1"].completion_tokens == sum(mapped["completion_tokens"])
    assert counts["B1"].prompt_tokens == sum(mapped["prompt_tokens"])


def test_longest_rows_start_first(tmp_path: Path) -> None:
    expected = [(number * 37) % 40 + 1 for number in range(40)]
    server = GenerateServer(delay=0.005)
    with serving(server) as url, generator(url, tmp_path, concurrency=1) as step:
        run_generation({"B1": prompts(40, expected=expected)}, step)
    order = [expected[request["input_ids"][-1] - 3] for request in server.requests]
    assert order == sorted(expected, reverse=True)


def queue(name: str, expected: list[float], cap: int = 10_000, dialogue: list[int] | None = None) -> SourceQueue:
    count = len(expected)
    made = SourceQueue(
        name,
        cap,
        np.arange(count, dtype=np.uint32),
        np.array(expected, np.float32),
        np.array(dialogue or range(count), np.uint64),
        np.arange(count, dtype=np.int32),
    )
    made.open_to(count)
    return made


def test_a_source_that_runs_longer_than_expected_moves_up() -> None:
    modest, wordy = queue("modest", [500, 400]), queue("wordy", [300, 200])
    queues = Queues([modest, wordy])
    for _ in range(20):
        wordy.learned.note(100, 1000)
    taken = [queues.take() for _ in range(4)]
    assert [unit and unit[0].source for unit in taken] == ["wordy", "wordy", "modest", "modest"]
    assert queues.take() is None and queues.exhausted


def test_rows_of_which_nothing_is_expected_get_the_mean_of_their_source() -> None:
    unknown, known = queue("unknown", [0, 0]), queue("known", [5000, 10])
    for _ in range(50):
        unknown.learned.note(0, 800)
    order = [(unit[0].source, unit[1]) for unit in iter(Queues([unknown, known]).take, None)]
    assert order == [("known", [0]), ("unknown", [0]), ("unknown", [1]), ("known", [1])]


def test_a_dialogue_counts_as_one_long_unit() -> None:
    made = queue("B8", [10, 30, 10, 30, 10], dialogue=[7, 8, 7, 8, 7])
    queues = Queues([made])
    assert queues.take() == (made, [1, 3], [30.0, 30.0])
    assert queues.take() == (made, [0, 2, 4], [10.0, 10.0, 10.0])


def test_only_rendered_rows_are_ready() -> None:
    made = SourceQueue(
        "B1",
        100,
        np.arange(4, dtype=np.uint32),
        np.array([1, 2, 3, 4], np.float32),
        np.arange(4, dtype=np.uint64),
        np.zeros(4, np.int32),
    )
    queues = Queues([made])
    assert queues.take() is None and not queues.exhausted
    made.open_to(2)
    assert queues.take() == (made, [1], [2.0])
    made.open_to(4)
    assert [unit[1] for unit in iter(queues.take, None)] == [[3], [2], [0]]
    assert queues.exhausted


def test_shards_are_disjoint_whole_and_merge_by_themselves(tmp_path: Path) -> None:
    given = {"B1": prompts(90), "B8": prompts(40, "B8", start=90, turns=4)}
    server = GenerateServer()
    with serving(server) as url:
        whole = RunFolder(tmp_path / "whole")
        with generator(url, whole.path) as step:
            run_generation(given, step)
        write_records(given, whole, PlainTarget())
        asked = len(server.requests)
        sharded = RunFolder(tmp_path / "sharded")
        totals = []
        for shard in range(3):
            with generator(url, sharded.path, shard=(shard, 3)) as step:
                result = run_generation(given, step)
            totals.append(sum(source.total for source in result.progress.sources.values()))
    assert sum(totals) == 130 and min(totals) > 20
    assert len(server.requests) == 2 * asked
    write_records(given, sharded, PlainTarget())
    assert hashes(sharded.path) == hashes(whole.path)


def test_more_rows_append_to_fewer(tmp_path: Path) -> None:
    server = GenerateServer()
    run = RunFolder(tmp_path)
    with serving(server) as url:
        for rows in (30, 50):
            with generator(url, run.path) as step:
                run_generation({"B1": prompts(rows)}, step)
                counts = write_records(
                    {"B1": prompts(rows)}, run, PlainTarget(), journal=step.journal, holdout={"B1": 5}
                )
            assert (counts["B1"].records, counts["B1"].validation) == (rows, 5)
            if rows == 30:
                held = pq.read_table(run.record_files("B1", "validation")[0])
    assert len(server.requests) == 50
    assert pq.read_table(run.record_files("B1", "validation")[0]).equals(held)


def test_failures_and_skips_have_their_tables(tmp_path: Path) -> None:
    server = GenerateServer(random_faults(5, 0.0, 0.2), context=64)
    run = RunFolder(tmp_path)
    given = {"B1": prompts(60), "B8": prompts(2, "B8", start=60, tokens=70)}
    with serving(server) as url, generator(url, run.path) as step:
        result = run_generation(given, step)
        counts = write_records(given, run, PlainTarget(), journal=step.journal)
    failures, skipped = pq.read_table(run.failures_path), pq.read_table(run.skipped_path)
    assert failures.num_rows == result.failed == counts["B1"].failed > 3
    assert set(failures["source"].to_pylist()) == {"B1"}
    assert all(failures["message"].to_pylist())
    assert (
        skipped.select(["source", "reason", "prompt_tokens", "limit_tokens"]).to_pylist()
        == [{"source": "B8", "reason": "context", "prompt_tokens": 70, "limit_tokens": 57}] * 2
    )
    assert counts["B1"].records + counts["B1"].failed == 60
    assert pq.read_metadata(run.record_files("B8")[0]).num_rows == 0


def test_finished_records_are_left_alone_and_damage_is_mended(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    given = {"B1": prompts(30)}
    with serving(GenerateServer()) as url, generator(url, run.path) as step:
        run_generation(given, step)
    write_records(given, run, PlainTarget(), metadata={"eagle3_data": "{}"})
    file = run.record_files("B1")[0]
    before, digest = file.stat().st_mtime_ns, hashes(run.path)
    write_records(given, run, PlainTarget(), metadata={"eagle3_data": "{}"})
    assert file.stat().st_mtime_ns == before
    file.write_bytes(file.read_bytes()[:-10])
    write_records(given, run, PlainTarget(), metadata={"eagle3_data": "{}"})
    assert hashes(run.path) == digest
    write_records(given, run, PlainTarget(), metadata={"eagle3_data": '{"a": 1}'})
    assert pq.read_metadata(run.record_files("B1")[0]).metadata[b"eagle3_data"] == b'{"a": 1}'


def test_prompts_of_another_rendering_are_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with serving(GenerateServer()) as url, generator(url, run.path) as step:
        run_generation({"B1": prompts(5)}, step)

    class Other(PlainTarget):
        def render_batch(self, messages: list[Any], tools: list[Any]) -> list[Any]:
            return [np.append(ids, 9).astype(np.int32) for ids in super().render_batch(messages, tools)]

    with pytest.raises(DataError, match="was answered for a prompt of 6 ids"):
        write_records({"B1": prompts(5)}, run, Other("other"))


@pytest.mark.parametrize("when", ["at the first byte", "at the last byte"])
def test_a_disk_that_fills_up_under_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    run = RunFolder(tmp_path)
    with serving(GenerateServer()) as url, generator(url, run.path) as step:
        run_generation({"B1": prompts(30)}, step)
    write_records({"B1": prompts(20)}, run, PlainTarget())
    before = hashes(tmp_path)

    def full(path: Path, tables: Any, *_: Any) -> None:
        if when == "at the last byte":
            list(tables)
        raise DiskFull(f"{path}: no space left")

    monkeypatch.setattr(files, "write_parquet", full)
    with pytest.raises(DiskFull):
        write_records({"B1": prompts(30)}, run, PlainTarget())
    assert hashes(tmp_path) == before


def test_records_that_spell_control_tokens_are_counted(tmp_path: Path) -> None:
    class Spelled(PlainTarget):
        def forged(self, messages: list[Any], tools: Any) -> int:
            return int(messages[-1]["content"].split()[-1]) % 3  # 1 or 2 strings in two rows of three

    run = RunFolder(tmp_path)
    refused = crc_of(prompt_ids(4))  # a row without a record does not count
    with serving(GenerateServer(lambda crc, turn: "400" if crc == refused else "")) as url:
        with Generator(Spelled(), [url], {}, 40, run.journal_path, retries=QUICK, max_failure_share=1.0) as step:
            run_generation({"B1": prompts(30)}, step)
        for _ in range(2):  # counted, then remembered
            assert write_records({"B1": prompts(30)}, run, Spelled())["B1"].forged == 19


def test_rendering_is_taken_up_where_it_is_whole(tmp_path: Path) -> None:
    """Rendered prompts torn in the middle, or left without their end, are rendered again from there."""
    run = RunFolder(tmp_path)
    given = prompts(600)
    rendered: list[int] = []

    class Counting(PlainTarget):
        def render_batch(self, messages: list[Any], tools: list[Any]) -> list[Any]:
            rendered.append(len(messages))
            return super().render_batch(messages, tools)

    with serving(GenerateServer()) as url:
        with generator(url, run.path) as step:
            run_generation({"B1": given.select(range(20))}, step)
        ids = run.journal_path / "prompts" / "B1.ids"
        data = bytearray(ids.read_bytes())
        data[len(data) // 2] ^= 1
        ids.write_bytes(data)
        (run.journal_path / "prompts" / "B1.json").write_text(
            (run.journal_path / "prompts" / "B1.json").read_text().replace('"rows": 20', '"rows": 3')
        )
        step = Generator(Counting(), [url], {"temperature": 0.0}, 40, run.journal_path, retries=QUICK)
        with step:
            run_generation({"B1": given}, step)
        assert sum(rendered) == 590
        assert len(step.journal) == 600


def test_interrupting_drains_then_stops(tmp_path: Path) -> None:
    async def work(url: str, twice: bool) -> tuple[Any, int]:
        with generator(url, tmp_path / str(twice), concurrency=8) as step:
            run = GenerationRun({"B1": prompts(200)}, step)
            task = asyncio.create_task(run.work())
            while len(step.journal) < 20:
                await asyncio.sleep(0.01)
            run.interrupt()
            if twice:
                run.interrupt()
            return await task, len(step.journal)

    for twice in (False, True):
        server = GenerateServer(delay=0.05)
        with serving(server) as url:
            result, kept = asyncio.run(work(url, twice))
        assert result.interrupted
        assert 20 <= kept < 100
        if not twice:
            assert kept == len(server.requests)  # nothing that was asked for is thrown away


@pytest.mark.parametrize("fault", ["429", "reset"])
def test_draining_does_not_wait_for_what_only_waits(fault: str, tmp_path: Path) -> None:
    """Rows told to come back in an hour, or without a server, end at once; the answer under way is still kept."""

    async def work(url: str, server: GenerateServer) -> tuple[Any, int]:
        with generator(url, tmp_path, concurrency=8) as step:
            run = GenerationRun({"B1": prompts(100)}, step)
            task = asyncio.create_task(run.work())
            while len(step.journal) < 20:
                await asyncio.sleep(0.01)
            server.fault = lambda crc, turn: fault
            server.healthy = fault != "reset"
            await asyncio.sleep(1.0)
            run.interrupt()
            return await asyncio.wait_for(task, 10.0), len(step.journal)

    server = GenerateServer(delay=0.05, retry_after="3600")
    with serving(server) as url:
        result, kept = asyncio.run(work(url, server))
    assert result.interrupted
    assert (result.failed, result.progress.in_flight) == (0, 0)
    assert 20 <= kept < 100


def test_ctrl_c_exits_resumable(tmp_path: Path) -> None:
    server = ServerProcess("--delay", "0.1")
    job = subprocess.Popen([*JOB, str(tmp_path), "--urls", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not list(tmp_path.rglob("*.log")):
        assert job.poll() is None, job.communicate()
        time.sleep(0.05)
    time.sleep(0.3)
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=30)
    server.kill()
    assert job.returncode == 130, errors


def test_progress_adds_up(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    server = GenerateServer(delay=0.02)
    with serving(server) as url, generator(url, tmp_path, concurrency=4) as step:
        run_generation(
            {"B1": prompts(200), "B8": prompts(40, "B8", start=200)}, step, lambda p: seen.append(p.to_dict())
        )
    middle, last = seen[len(seen) // 2], seen[-1]
    assert middle["in_flight"] == 4 and middle["seconds_left"] > 0 and middle["tokens_per_second"] > 0
    assert not middle["finished"] and last["finished"]
    assert {name: source["done"] for name, source in last["sources"].items()} == {"B1": 200, "B8": 40}
    assert last["requests"] == 240 and last["in_flight"] == 0


def test_a_run_of_nothing(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with generator("http://127.0.0.1:9", run.path) as step:
        result = run_generation({"B1": prompts(1).select([])}, step)
        write_records({"B1": prompts(1).select([])}, run, PlainTarget(), journal=step.journal)
    assert not result.interrupted
    assert pq.read_table(run.record_files("B1")[0]).num_rows == 0


def test_prompt_ids_are_distinct() -> None:
    assert len({tuple(prompt_ids(number)) for number in range(5000)}) == 5000


def test_extending_touches_cut_rows_only(tmp_path: Path) -> None:
    server = GenerateServer(stop_every=60)
    few, many = {"B1": prompts(30)}, {"B1": prompts(50)}
    run = RunFolder(tmp_path)
    with serving(server) as url:
        with generator(url, run.path) as step:
            run_generation(few, step)
        cut = write_records(few, run, PlainTarget())["B1"].truncated
        asked = len(server.requests)
        step = Generator(PlainTarget(), [url], {"temperature": 0.0}, 400, run.journal_path, extend=True)
        with step:
            result = run_generation(many, step, only_truncated=True)
        assert len(server.requests) - asked == cut > 5
        assert result.progress.sources["B1"].left == 20
        counts = write_records(many, run, PlainTarget())["B1"]
        assert (counts.records, counts.missing) == (30, 20)
        assert counts.truncated < cut
        long = RunFolder(tmp_path / "long")
        with Generator(PlainTarget(), [url], {"temperature": 0.0}, 400, long.journal_path) as step:
            run_generation(few, step)
        write_records(few, long, PlainTarget())
    tables = [pq.read_table(one.record_files("B1")[0]).drop(["max_new_tokens", "rounds"]) for one in (run, long)]
    assert tables[0].equals(tables[1])
