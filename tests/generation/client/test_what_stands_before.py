"""Gateways, balancers, limits of this machine, and servers that lie: no row is lost, and the message names the cause.

Each kind has a server of its own over real sockets; requests are counted against a bound.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.gateway import ENVOY_403, NGINX_502, NGINX_504, Gateway, Says, before
from support.generate_server import GenerateServer, continuation, crc_of
from support.generation import PlainTarget, ServerProcess, prompt_ids, prompts, serving

from eagle3_data.errors import EngineError
from eagle3_data.generation import Generator, RetryPolicy, run_generation
from eagle3_data.generation.client import pieces as pieces_module
from eagle3_data.generation.client import server as server_module
from eagle3_data.generation.progress import Progress

QUICK = RetryPolicy(attempts=6, first_wait=0.01, longest_wait=0.05)


def generator(urls: Any, path: Path, cap: int = 40, sampling: Any = None, **changes: Any) -> Generator:
    changes.setdefault("retries", QUICK)
    urls = [urls] if isinstance(urls, str) else urls
    return Generator(PlainTarget(), urls, {"temperature": 0.0, **(sampling or {})}, cap, path / "journal", **changes)


def outputs(out: Any) -> list[list[int]]:
    return [row["output_ids"] for row in out]


def right(rows: int, cap: int = 40, stop_every: int = 23) -> list[list[int]]:
    return [continuation(prompt_ids(number), cap, stop_every)[0] for number in range(rows)]


# --- a gateway's own words ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("says", [ENVOY_403, NGINX_502, NGINX_504], ids=lambda says: str(says.status))
@pytest.mark.parametrize("first", [0, 5], ids=["at first", "later"])
def test_what_a_gateway_says_in_passing_costs_no_row(tmp_path: Path, says: Says, first: int) -> None:
    gateway = Gateway("", lambda number, asked: says if first <= number < first + 3 else None)
    with serving(GenerateServer()) as backend, before(gateway) as url:
        gateway.backend = backend
        with generator(url, tmp_path, concurrency=2) as step:
            assert outputs(prompts(12).map(step.generate)) == right(12)
    assert gateway.requests == 12 + 3


def test_a_403_without_a_sign_of_a_gateway_is_passing_only_after_answers(tmp_path: Path) -> None:
    refusal = Says(403, b'{"error": "Forbidden"}', content_type="application/json")
    gateway = Gateway("", lambda number, asked: refusal if number in (4, 5) else None)
    with serving(GenerateServer()) as backend, before(gateway) as url:
        gateway.backend = backend
        with generator(url, tmp_path / "a", concurrency=1) as step:
            assert outputs(prompts(8).map(step.generate)) == right(8)
        gateway.rule = lambda number, asked: refusal
        with (
            generator(url, tmp_path / "b", concurrency=1) as step,
            pytest.raises(EngineError, match=r"refuses the key; set engine\.api_key_env \(403: Forbidden\)"),
        ):
            prompts(8).map(step.generate)


def test_a_gateway_that_refuses_one_row_for_good_is_quoted(tmp_path: Path) -> None:
    wrong = prompt_ids(2)
    gateway = Gateway("", lambda number, asked: ENVOY_403 if asked["input_ids"] == wrong else None)
    with serving(GenerateServer()) as backend, before(gateway) as url:
        gateway.backend = backend
        with generator(url, tmp_path) as step:
            out = prompts(6).map(step.generate)
    assert [row["error"] for row in out] == ["", "", "http_403: upstream request timeout", "", "", ""]
    assert gateway.requests == 5 + 6


def test_a_gateway_whose_server_restarts_costs_no_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway("", lambda number, asked: NGINX_502 if gateway.health else None)
    with serving(GenerateServer(delay=0.05)) as backend, before(gateway) as url:
        gateway.backend = backend

        def restart() -> None:
            time.sleep(0.3)
            gateway.health = 502
            time.sleep(1.5)
            gateway.health = None

        thread = threading.Thread(target=restart)
        thread.start()
        with generator(url, tmp_path, concurrency=4) as step:
            assert outputs(prompts(40).map(step.generate)) == right(40)
        thread.join()
    assert gateway.requests <= 2 * 40  # one outage costs a row one request at most
    assert any("is lost" in text for text in caplog.messages) and any("is back" in text for text in caplog.messages)


# --- requests that are cut after equal times ------------------------------------------------------------------------


@pytest.fixture
def short_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognise timers of half a second and more."""
    monkeypatch.setattr(server_module, "_SHORTEST_CUT", 0.5)
    monkeypatch.setattr(pieces_module, "_FEWEST_ROUND_TOKENS", 8)


LONG = 1 << 40  # no answer ends by itself


@pytest.mark.usefixtures("short_cuts")
def test_a_timer_in_between_is_recognised_and_answers_come_in_pieces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Gateway("", idle=1.0)
    with serving(GenerateServer(rate=100.0, stop_every=LONG)) as backend, before(gateway) as url:
        gateway.backend = backend
        with generator(url, tmp_path, 250, concurrency=3) as step:
            out = prompts(6).map(step.generate)
        assert outputs(out) == right(6, 250, LONG)
        assert [(row["finish_reason"], row["max_new_tokens"], row["rounds"]) for row in out] == [
            ("length_cap", 250, 1)
        ] * 6
    cut = gateway.budgets.count(250)
    assert cut <= 3 * 3  # a row at a time may be out when it is recognised
    assert gateway.requests <= cut + 3 + 6 * 9
    (told,) = [text for text in caplog.messages if "balancer" in text]
    assert "after 1 s each" in told and "idle timeout" in told and "pieces of" in told


@pytest.mark.usefixtures("short_cuts")
def test_where_pieces_would_change_the_answers_cut_rows_fail_soon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A penalty looks back at the tokens of one request."""
    gateway = Gateway("", idle=1.0)

    def slow(ids: list[int]) -> float:
        return 3.0 if crc_of(ids) in long else 0.0

    long = {crc_of(prompt_ids(number)) for number in range(3)}
    with serving(GenerateServer(delay=slow)) as backend, before(gateway) as url:
        gateway.backend = backend
        with generator(url, tmp_path, sampling={"presence_penalty": 0.5}, max_failure_share=1.0) as step:
            out = prompts(12).map(step.generate)
    assert ["idle_timeout" in row["error"] for row in out] == [True] * 3 + [False] * 9
    assert gateway.requests <= 9 + 3 * 3
    assert any("the long ones" in text and "3 rows" in text for text in caplog.messages)


def test_answers_in_pieces_are_the_whole_answers(tmp_path: Path) -> None:
    with serving(server := GenerateServer(stop_every=60, context=300)) as url:
        with generator(url, tmp_path / "whole", 200) as step:
            whole = prompts(40).map(step.generate)
        asked = len(server.requests)
        with generator(url, tmp_path / "pieces", 200, round_tokens=16) as step:
            pieces = prompts(40).map(step.generate)
        assert whole.to_list() == pieces.to_list()
        assert len(server.requests) - asked > 80
        assert max(request["sampling_params"]["max_new_tokens"] for request in server.requests[asked:]) < 16 + 8


@pytest.mark.parametrize("left", range(1, 12))
def test_pieces_reach_the_end_of_the_context(tmp_path: Path, left: int) -> None:
    """A prompt of context − 6 tokens is refused: the last piece must not begin there."""
    with (
        serving(GenerateServer(stop_every=LONG, context=64)) as url,
        generator(url, tmp_path, 1000, round_tokens=8) as step,
    ):
        (row,) = prompts(1, tokens=64 - 7 - left).map(step.generate)
    assert (row["error"], row["finish_reason"], len(row["output_ids"])) == ("", "length_context", left + 5)


def cuts(*times: tuple[float, float]) -> float:
    found = server_module.CutTimes()
    for sent, seconds in times:
        found.cut(sent, seconds)
    return found.seconds


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([(0, 60.0), (1, 60.4), (70, 60.1)], 60.2),
        ([(0, 60.0), (0, 60.0), (0, 60.0), (0, 60.0)], 0),  # one event: a restart
        ([(0, 60.0), (5, 55.0), (9, 51.0)], 0),  # one event again
        ([(0, 60.0), (90, 30.0), (150, 110.0), (300, 12.0)], 0),
        ([(0, 1.0), (10, 1.0), (20, 1.0)], 0),  # too short for a timer
        ([(0, 17.0), (1, 60.0), (20, 3.0), (90, 60.0), (200, 60.0)], 60.0),
    ],
)
def test_which_cuts_are_a_timers(times: list[tuple[float, float]], seconds: float) -> None:
    assert cuts(*times) == pytest.approx(seconds, abs=0.1)


def test_an_answer_that_took_longer_disproves_the_timer() -> None:
    found = server_module.CutTimes()
    for sent in (0, 70, 140):
        found.cut(sent, 60.0)
    found.answered(60.5)
    assert found.seconds == 60.0
    found.answered(65.0)
    assert found.seconds == 0.0


# --- limits of this machine -----------------------------------------------------------------------------------------

FEW_FILES = """
import logging, resource, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s")
sys.path[:0] = {paths!r}
from pathlib import Path
from eagle3_data.generation import run_generation
from support.generation import prompts
from generation.client.test_what_stands_before import generator, right
import eagle3_data.generation.client.window as window
given = prompts(200)
resource.setrlimit(resource.RLIMIT_NOFILE, {limits!r})
window._RESERVED_FILES = {reserved}
with generator({url!r}, Path({folder!r}), concurrency=150) as step:
    progress = run_generation({{"B1": given}}, step).progress
print("done", progress.sources["B1"].done, progress.retries, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts open files as Linux does")
@pytest.mark.parametrize(
    ("limits", "reserved", "told"),
    [((90, 90), 64, True), ((90, 90), 0, True), ((90, 4096), 64, False)],
    ids=["known at the start", "met on the way", "only the soft limit"],
)
def test_few_open_files_shrink_the_window_and_lose_no_server(
    tmp_path: Path, limits: tuple[int, int], reserved: int, told: bool
) -> None:
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "").split(":")[0]]
    with serving(server := GenerateServer(delay=0.02)) as url:
        code = FEW_FILES.format(paths=paths, limits=limits, url=url, folder=str(tmp_path), reserved=reserved)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "done 200" in done.stdout, done.stderr[-2000:]
    assert done.stderr.count("ulimit -n") == told, done.stderr[-2000:]
    assert "is lost" not in done.stderr
    assert len(server.requests) == 200
    assert done.stdout.split()[-1] == str(limits[1])


# --- prompts that are too long --------------------------------------------------------------------------------------


def test_a_context_that_is_smaller_than_reported_is_learnt_from_one_refusal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = GenerateServer(stop_every=LONG, refuses_over=100)
    with serving(server) as url, generator(url, tmp_path, 500, concurrency=1) as step:
        out = prompts(8).map(step.generate)
    assert server.refused == 1
    assert [(row["error"], row["finish_reason"], len(row["output_ids"])) for row in out] == [
        ("", "length_context", 100 - 2 - 6)
    ] * 8
    assert sum("holds 100 tokens, fewer than it reported" in text for text in caplog.messages) == 1


@pytest.mark.parametrize("router", [False, True])
def test_a_context_length_of_the_recipe_that_is_wrong_stops_the_run(tmp_path: Path, router: bool) -> None:
    """A router would take its servers out for everybody after some refusals."""
    with (
        serving(server := GenerateServer(stop_every=LONG, refuses_over=100, router=router)) as url,
        generator(url, tmp_path, 500, concurrency=4, context_length=8192) as step,
        pytest.raises(EngineError, match=r"engine\.context_length is 8192; set it to 100"),
    ):
        prompts(30).map(step.generate)
    assert server.refused <= 4


# --- servers that say one thing and do another ----------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["503", "reset"])
def test_an_unhealthy_server_that_answers_is_not_lost(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = GenerateServer(lambda crc, turn: fault if turn == 0 and crc % 9 == 0 else "", delay=0.1)

    def listen(progress: Progress) -> None:
        server.healthy = progress.sources["B1"].done < 4 or progress.finished

    with serving(server) as url, generator(url, tmp_path, concurrency=4) as step:
        assert run_generation({"B1": prompts(60)}, step, listen).progress.sources["B1"].done == 60
    assert not any("is lost" in text for text in caplog.messages)


def test_a_hung_server_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_SILENCE_SECONDS", 1.0)
    process = ServerProcess("--delay", "0.05")
    seen: list[str] = []

    def listen(progress: Progress) -> None:
        done = progress.sources["B1"].done
        if done >= 5 and not seen:
            seen.append("stopped")
            process.process.send_signal(signal.SIGSTOP)
        elif progress.paused and process.url in progress.paused:
            seen.append(progress.paused)
            process.process.send_signal(signal.SIGCONT)

    try:
        with generator(process.url, tmp_path, concurrency=2) as step:
            result = run_generation({"B1": prompts(60)}, step, listen)
    finally:
        process.process.send_signal(signal.SIGCONT)
        process.kill()
    assert result.progress.sources["B1"].done == 60
    assert any(
        text.startswith(f"nothing came from {process.url} since ") and "(2 requests are out)" in text for text in seen
    )
    assert not result.progress.paused


def test_the_words_about_a_hung_server_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where progress is piped, every new text is a new line."""
    now = [1000.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], time=lambda: now[0], strftime=time.strftime, localtime=time.gmtime
    )
    monkeypatch.setattr(server_module, "time", clock)
    server = server_module.Server("http://host:1", 1.0, 4.0, False)
    server.up = True
    server.sent()
    said = []
    for passed in (59.0, 61.0, 62.0, 600.0):
        now[0] = 1000.0 + passed
        said.append(server_module.silence([server]))
    told = "nothing came from http://host:1 since 00:16:40 (1 requests are out)"
    assert said == ["", told, told, told]


@pytest.mark.parametrize("salt", [0, 5], ids=["same model", "another model"])
def test_a_model_that_was_changed_under_the_run_is_noticed(tmp_path: Path, salt: int) -> None:
    process = ServerProcess("--delay", "0.05")

    def listen(progress: Progress) -> None:
        if progress.sources["B1"].done >= 8 and process.arguments[-1] != str(salt):
            process.kill()
            process.arguments = (*process.arguments, "--salt", str(salt))
            process.start()

    try:
        with generator(process.url, tmp_path, concurrency=2) as step:
            if salt:
                with pytest.raises(EngineError, match="another model answers there now"):
                    run_generation({"B1": prompts(60)}, step, listen)
                kept = [step.journal.get(sample_id) for sample_id in prompts(60)["sample_id"]]
            else:
                assert run_generation({"B1": prompts(60)}, step, listen).progress.sources["B1"].done == 60
                kept = []
    finally:
        process.kill()
    finished = [(number, entry) for number, entry in enumerate(kept) if entry is not None]
    assert [entry.output_ids.tolist() for _, entry in finished] == [
        continuation(prompt_ids(number), 40)[0] for number, _ in finished
    ]


# --- bad answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["completion_tokens", "prompt_tokens", "vocabulary", "nan", "prompt_tail"])
def test_a_wrong_answer_is_asked_for_once_more_elsewhere(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = GenerateServer(lambda crc, turn: fault), GenerateServer()
    with serving(bad) as one, serving(good) as other, generator([one, other], tmp_path, concurrency=8) as step:
        result = run_generation({"B1": prompts(120)}, step)
        entries = [step.journal.get(sample_id) for sample_id in prompts(120)["sample_id"]]
    assert [entry.output_ids.tolist() for entry in entries if entry] == right(120)
    assert len(bad.requests) <= 20 + 4
    assert len(good.requests) == 120
    assert result.progress.wrong == {fault: len(bad.requests)}
    (told,) = [text for text in caplog.messages if "out of use" in text]
    assert one in told and fault in told and "restart it" in told


def test_a_row_that_is_answered_wrongly_everywhere_fails_with_the_evidence(tmp_path: Path) -> None:
    broken = crc_of(prompt_ids(3))
    servers = [GenerateServer(lambda crc, turn: "nan" if crc == broken else "") for _ in range(2)]
    with serving(servers[0]) as one, serving(servers[1]) as other, generator([one, other], tmp_path) as step:
        out = prompts(10).map(step.generate)
    assert [bool(row["error"]) for row in out] == [number == 3 for number in range(10)]
    assert "NaN happened" in out[3]["error"]
    assert sum(server.asked[broken] for server in servers) == 2


def test_an_answer_that_ran_over_its_end_is_trimmed_and_counted(tmp_path: Path) -> None:
    server = GenerateServer(lambda crc, turn: "overrun", stop_every=20)
    with serving(server) as url, generator(url, tmp_path, extend=True) as step:
        result = run_generation({"B1": prompts(50)}, step)
        entries = [step.journal.get(sample_id) for sample_id in prompts(50)["sample_id"]]
    whole = [continuation(prompt_ids(number), 40, 20) for number in range(50)]
    assert [entry.output_ids.tolist() for entry in entries if entry] == [ids for ids, _ in whole]
    stopped = sum(stopped and len(ids) < 40 for ids, stopped in whole)
    assert result.progress.trimmed == stopped > 10
    assert len(server.requests) == 50  # none is continued


def test_no_warning_is_given_where_nothing_is_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "eagle3_data")
    with serving(server := GenerateServer()) as url, generator(url, tmp_path) as step:
        run_generation({"B1": prompts(50)}, step)
    assert server.canaries == 2
    assert not caplog.messages
