"""Several servers: choice, loss and return, outages, weights, and how many requests each gets."""

import asyncio
import logging
import random
import time
from pathlib import Path
from typing import Any

import pytest
from support.generate_server import GenerateServer
from support.generation import PlainTarget, ServerProcess, prompts, serving

from eagle3_data.errors import EngineError, EngineUnavailable, UsageError
from eagle3_data.generation import Generator, RetryPolicy, run_generation
from eagle3_data.generation.client.http import open_session
from eagle3_data.generation.client.server import Server
from eagle3_data.generation.client.servers import Servers

QUICK = RetryPolicy(attempts=3, first_wait=0.01, longest_wait=0.05)


def generator(urls: Any, path: Path, **changes: Any) -> Generator:
    changes.setdefault("retries", QUICK)
    return Generator(PlainTarget(), urls, {"temperature": 0.0}, 40, path / "journal", **changes)


def test_work_goes_where_least_is_waiting(tmp_path: Path) -> None:
    quick, slow = GenerateServer(delay=0.01), GenerateServer(delay=0.1)
    with serving(quick) as one, serving(slow) as two, generator([one, two], tmp_path, concurrency=8) as step:
        run_generation({"B1": prompts(120)}, step)
    assert len(quick.requests) > 3 * len(slow.requests) > 0
    assert quick.most <= 4 and slow.most <= 4


def test_weights_share_the_window(tmp_path: Path) -> None:
    big, small = GenerateServer(delay=0.03), GenerateServer(delay=0.03)
    with (
        serving(big) as one,
        serving(small) as two,
        generator({one: 3.0, two: 1.0}, tmp_path, concurrency=8) as step,
    ):
        run_generation({"B1": prompts(100)}, step)
    assert (big.most, small.most) == (6, 2)


def test_a_dialogue_stays_on_one_server(tmp_path: Path) -> None:
    """Its prompts go one after the other, in the order of turns, to the server that has their prefix."""
    servers = [GenerateServer(delay=0.005), GenerateServer(delay=0.005)]
    given = prompts(60, turns=5)
    turn_of = {row["messages"][0]["content"]: (row["source_row"], row["source_turn"]) for row in given}
    with (
        serving(servers[0]) as one,
        serving(servers[1]) as two,
        generator([one, two], tmp_path, concurrency=6) as step,
    ):
        run_generation({"B1": given}, step)
    seen: dict[int, list[tuple[int, int]]] = {}
    for number, server in enumerate(servers):
        assert len(server.requests) > 10
        for request in server.requests:
            dialogue, turn = turn_of[" ".join(map(str, request["input_ids"]))]
            seen.setdefault(dialogue, []).append((number, turn))
    assert len(seen) == 12
    for asked in seen.values():
        assert len({number for number, _ in asked}) == 1
        assert [turn for _, turn in asked] == [0, 1, 2, 3, 4]


def test_a_killed_server_costs_no_row_a_try(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    lasting = GenerateServer(delay=0.02)
    dying = ServerProcess("--delay", "0.02")
    killed_at = 0.0

    def on_progress(progress: Any) -> None:
        nonlocal killed_at
        if not killed_at and progress.sources["B1"].done >= 20:
            dying.kill()
            killed_at = time.monotonic()
        if killed_at and dying.process.poll() is not None and time.monotonic() - killed_at > 1.0:
            dying.start()

    with serving(lasting) as url, generator([url, dying.url], tmp_path, concurrency=8) as step:
        result = run_generation({"B1": prompts(1200)}, step, on_progress)
    dying.kill()
    assert (result.progress.sources["B1"].done, result.failed) == (1200, 0)
    assert "is lost" in caplog.text and "is back" in caplog.text


def test_an_outage_of_all_pauses_the_run(tmp_path: Path) -> None:
    server = ServerProcess("--delay", "0.02")
    said: list[str] = []
    killed_at = 0.0

    def on_progress(progress: Any) -> None:
        nonlocal killed_at
        if not killed_at and progress.sources["B1"].done >= 20:
            server.kill()
            killed_at = time.monotonic()
        if killed_at and server.process.poll() is not None and time.monotonic() - killed_at > 1.5:
            server.start()
        said.append(progress.paused)

    with generator([server.url], tmp_path, concurrency=8) as step:
        result = run_generation({"B1": prompts(200)}, step, on_progress)
    server.kill()
    assert (result.progress.sources["B1"].done, result.failed) == (200, 0)
    assert any("no server answers" in text for text in said)
    assert said[-1] == ""


def test_an_outage_without_end_stops_the_run(tmp_path: Path) -> None:
    server = ServerProcess("--delay", "0.05")

    def on_progress(progress: Any) -> None:
        if progress.sources["B1"].done >= 5 and server.process.poll() is None:
            server.kill()

    with generator([server.url], tmp_path, concurrency=4, patience=0.5) as step:
        with pytest.raises(EngineUnavailable, match="finished rows are kept"):
            run_generation({"B1": prompts(500)}, step, on_progress)
        assert 5 <= len(step.journal) < 500


@pytest.mark.parametrize("changes", [{"weight_version": "2"}, {"model_path": "other"}])
def test_servers_must_serve_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    with (
        serving(GenerateServer()) as one,
        serving(GenerateServer(**changes)) as two,
        generator([one, two], tmp_path) as step,
        pytest.raises(EngineError, match="needs the same"),
    ):
        run_generation({"B1": prompts(3)}, step)


def test_changed_weights_stop_the_run(tmp_path: Path) -> None:
    server = GenerateServer(delay=0.01)

    def on_progress(progress: Any) -> None:
        if progress.sources["B1"].done >= 10:
            server.weight_version = "next"

    with (
        serving(server) as url,
        generator([url], tmp_path, concurrency=2) as step,
        pytest.raises(EngineError, match="changed from 'default' to 'next'"),
    ):
        run_generation({"B1": prompts(3000)}, step, on_progress)


def test_what_is_being_written_is_kept_when_the_key_is_refused(tmp_path: Path) -> None:
    taken: list[int] = []
    server = GenerateServer(lambda crc, turn: "401" if len(taken) >= 30 else taken.append(crc) or "", delay=0.3)
    with serving(server) as url, generator([url], tmp_path, concurrency=20) as step:
        with pytest.raises(EngineError, match="api_key_env"):
            run_generation({"B1": prompts(300)}, step)
        assert len(step.journal) == len(taken) == 30


def test_moods_of_a_server_do_not_shut_the_window(tmp_path: Path) -> None:
    windows: list[int] = []
    moods = random.Random(0)
    server = GenerateServer(lambda crc, turn: "429" if moods.random() < 0.12 else "", delay=0.05, retry_after="0.2")
    with serving(server) as url, generator([url], tmp_path, concurrency=16) as step:
        result = run_generation({"B1": prompts(300)}, step, lambda progress: windows.append(progress.concurrency))
    assert result.progress.sources["B1"].done == 300
    assert set(windows[1:-1]) == {16}, windows


@pytest.mark.parametrize("loads", [True, False])
def test_auto_fills_the_server_and_does_not_queue(tmp_path: Path, loads: bool) -> None:
    windows: list[int] = []
    server = GenerateServer(slots=100, delay=0.3, loads=loads)
    with serving(server) as url, generator([url], tmp_path) as step:
        run_generation({"B1": prompts(1200)}, step, lambda progress: windows.append(progress.concurrency))
    assert server.most == 100
    assert max(windows) <= 110  # one in ten may wait, so that a free place is filled at once
    assert not server.waiting


def test_a_window_that_refusals_shut_opens_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage may refuse every request; with answers of an hour, growth by answers would never catch up."""
    server = Server("http://one", 1.0, 64.0, auto=False)
    server.refused()
    assert server.limit == 1.0
    server.outstanding = 1
    server.grow()
    assert server.limit == 1.0  # refused a moment ago
    monkeypatch.setattr("eagle3_data.generation.client.server._CALM_SECONDS", 0.0)
    seconds = 0
    while server.limit < 64.0:
        server.outstanding = int(server.limit)
        server.grow()
        seconds += 1
    assert seconds <= 9
    server.outstanding = 64
    server.grow()
    assert server.limit == 64.0


def test_a_full_queue_is_no_failure(tmp_path: Path) -> None:
    server = GenerateServer(slots=4, queue=2, delay=0.02)
    with serving(server) as url, generator([url], tmp_path, concurrency=64) as step:
        result = run_generation({"B1": prompts(200)}, step)
    assert (result.progress.sources["B1"].done, result.failed) == (200, 0)
    assert result.progress.requests < 1000  # the window shrank instead of knocking on


def test_a_router_needs_the_context_length(tmp_path: Path) -> None:
    with serving(GenerateServer(router=True)) as url:
        with generator([url], tmp_path) as step, pytest.raises(EngineError, match="context_length"):
            run_generation({"B1": prompts(3)}, step)
        with generator([url], tmp_path, context_length=8192) as step:
            assert run_generation({"B1": prompts(3)}, step).progress.sources["B1"].done == 3


def test_a_draining_server_is_left_alone(tmp_path: Path) -> None:
    """On SIGTERM a server finishes what it has and says 503 at /health: others take over, no row fails."""
    leaving, staying = GenerateServer(delay=0.02), GenerateServer(delay=0.02)

    def on_progress(progress: Any) -> None:
        if progress.sources["B1"].done >= 20:
            leaving.healthy = False
            leaving.fault = lambda crc, turn: "503"

    with serving(leaving) as one, serving(staying) as two, generator([one, two], tmp_path, concurrency=8) as step:
        result = run_generation({"B1": prompts(300)}, step, on_progress)
    assert (result.progress.sources["B1"].done, result.failed) == (300, 0)


@pytest.mark.parametrize(
    ("urls", "match"),
    [([], "no server"), (["localhost:30000"], "must begin with http"), ({"http://a": 0.0}, "weight")],
)
def test_wrong_urls(urls: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Servers(urls)


def test_a_server_that_is_late_joins(tmp_path: Path) -> None:
    late = ServerProcess()
    late.kill()

    async def work(url: str) -> int:
        async with open_session(None) as session:
            servers = Servers([url, late.url], 4)
            await servers.start(session)
            before = servers.capacity
            late.start()
            for _ in range(200):
                await asyncio.sleep(0.05)
                if servers.capacity > before:
                    break
            after = servers.capacity
            await servers.close()
            return after - before

    with serving(GenerateServer()) as url:
        assert asyncio.run(work(url)) == 2
    late.kill()
