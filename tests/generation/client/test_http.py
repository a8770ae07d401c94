"""The client: every way in which a server can answer, break off, stay silent or lie, byte by byte, on both loops."""

import asyncio
import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from eagle3_data.errors import EngineError, UsageError
from eagle3_data.foreign_text import foreign_text
from eagle3_data.generation.client import http as http_module
from eagle3_data.generation.client.http import Cut, HttpClient, Reply, TooLarge, proxy_url
from eagle3_data.generation.client.protocol import AnswerReader, RequestBody
from eagle3_data.generation.client.retry_policy import RetryPolicy
from eagle3_data.generation.client.retrying import RetryingClient
from eagle3_data.generation.client.servers import Servers

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
WHOLE = Reply(200, "", b"ok")

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine on one kind of loop; no callback may fail in it and nothing may be left over."""

    async def checked(work: Coroutine[Any, Any, None]) -> None:
        mishaps: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: mishaps.append(context))
        async with asyncio.timeout(30):
            await work
            while asyncio.all_tasks() != {asyncio.current_task()}:  # the servers' own
                await asyncio.sleep(0.01)
        assert not mishaps

    def start(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None) as runner:
            runner.run(checked(work))

    return start


class Talk:
    """The server's side of one connection."""

    def __init__(self, number: int, requests: list[bytes], reader: asyncio.StreamReader, writer: Any) -> None:
        self.number = number  # of the connection, from 0
        self.writer = writer
        self._requests = requests
        self._reader = reader

    async def hear(self) -> bool:
        """Take in one request; False when the client closed instead."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"content-length: (\d+)", head.lower())
            assert size is not None
            self._requests.append(head + await self._reader.readexactly(int(size[1])))
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        return True

    async def say(self, *pieces: bytes, pause: float = 0.002) -> None:
        """Send pieces as segments of their own."""
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(pause)
            self.writer.write(piece)
            with contextlib.suppress(ConnectionError):
                await self.writer.drain()

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Talk], Awaitable[None]]


class Server:
    """Counts connections and keeps requests; each connection follows the script until it returns."""

    def __init__(self, script: Script) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.talks: set[asyncio.Task[None]] = set()
        self.open: list[Talk] = []
        self.port = 0
        self._script = script

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.talks.add(task)
        self.connections += 1
        try:
            self.open.append(Talk(self.connections - 1, self.requests, reader, writer))
            await self._script(self.open[-1])
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self.talks.discard(task)


@contextlib.asynccontextmanager
async def serving(script: Script, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Serve a script. On leaving, every client must have closed its connections."""
    server = Server(script)
    listener = await asyncio.start_server(server.meet, host, 0, ssl=tls, backlog=512)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
        async with asyncio.timeout(5):
            while server.talks:
                await asyncio.wait(list(server.talks))
    finally:
        listener.close()
        for talk in list(server.talks):
            talk.cancel()
        await asyncio.gather(*server.talks, return_exceptions=True)


@contextlib.asynccontextmanager
async def connected(
    script: Script, *, silence: float = 20.0, key: str | None = None, root: str = "http://127.0.0.1:{}"
) -> AsyncIterator[tuple[HttpClient, Server]]:
    async with serving(script) as server:
        client = HttpClient(root.format(server.port), key, silence)
        try:
            yield client, server
        finally:
            await client.close()


def always(*pieces: bytes, hold: bool = True) -> Script:
    """Return a script that gives each request the same reply, and ends the connection after one if not `hold`."""

    async def script(talk: Talk) -> None:
        while await talk.hear():
            await talk.say(*pieces)
            if not hold:
                return

    return script


# --- whole replies --------------------------------------------------------------------------------------------------

REPLIES: dict[str, tuple[bytes, Reply, bool]] = {  # what is sent, what it means, whether the connection serves on
    "content-length": (OK, WHOLE, True),
    "empty": (b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", Reply(200, "", b""), True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", Reply(204, "", b""), True),
    "no phrase": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", WHOLE, True),
    "empty header": (b"HTTP/1.1 200 OK\r\nX-Empty:\r\nContent-Length: 2\r\n\r\nok", WHOLE, True),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n",
        WHOLE,
        True,
    ),
    "trailer": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n", WHOLE, True),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\nok", WHOLE, False),
    "announced close": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", WHOLE, False),
    "close, no length": (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok", WHOLE, False),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", WHOLE, False),
    "1.0 until the end": (b"HTTP/1.0 200 OK\r\n\r\nok", WHOLE, False),
    "1.0 kept": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", WHOLE, True),
    "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, WHOLE, True),
    "100 and 103": (b"HTTP/1.1 100 C\r\nRetry-After: 9\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\n" + OK, WHOLE, True),
    "offers h2": (OK.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"), WHOLE, True),
    "busy": (
        b"HTTP/1.1 429 Busy\r\nRETRY-AFTER: 17\r\nContent-Length: 4\r\n\r\nwait",
        Reply(429, "17", b"wait"),
        True,
    ),
    "elsewhere": (
        b"HTTP/1.1 307 There\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n",
        Reply(307, "", b""),
        True,
    ),
    "says identity": (OK.replace(b"\r\n\r\n", b"\r\nContent-Encoding: identity\r\n\r\n"), WHOLE, True),
    "compressed refusal": (
        b"HTTP/1.1 503 Busy\r\nContent-Encoding: gzip\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
        Reply(503, "3", b""),
        True,
    ),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_whole_reply(run: Run, name: str) -> None:
    """A server that announces the end of a connection may leave the closing to the client."""
    sent, meant, keeps = REPLIES[name]
    framed = b"ength:" in sent or b"chunked" in sent or meant.status == 204

    async def work() -> None:
        async with connected(always(sent, hold=framed)) as (client, server):
            assert [await client.post(b"{}") for _ in range(3)] == [meant] * 3
            assert server.connections == (1 if keeps else 3)
            assert len(server.requests) == 3

    run(work())


@pytest.mark.parametrize("name", ["100 first", "trailer", "busy", "until the end"])
def test_a_reply_split_at_every_place(run: Run, name: str) -> None:
    sent, meant, keeps = REPLIES[name]
    splits = [*((sent[:at], sent[at:]) for at in range(1, len(sent))), [sent[at : at + 1] for at in range(len(sent))]]
    left = iter(splits)

    async def script(talk: Talk) -> None:
        while await talk.hear():
            await talk.say(*next(left), pause=0.001)
            if not keeps:
                return

    async def work() -> None:
        async with connected(script) as (client, server):
            assert [await client.post(b"") for _ in splits] == [meant] * len(splits)
            assert server.connections == (1 if keeps else len(splits))

    run(work())


@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
def test_a_big_request_and_a_big_reply(run: Run, chunked: bool) -> None:
    asked, body = bytes(range(256)) * 4096, bytes(range(251)) * 80_000
    if chunked:
        step = 300_007
        parts = [body[at : at + step] for at in range(0, len(body), step)]
        sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + sent + b"0\r\n\r\n"
    else:
        sent = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def work() -> None:
        async with connected(always(sent)) as (client, server):
            for _ in range(2):
                assert (await client.post(asked)).body == body
            assert server.connections == 1
            assert [request.endswith(asked) for request in server.requests] == [True] * 2

    run(work())


def test_three_hundred_at_once(run: Run) -> None:
    """Each gets its own answer, and a second wave goes over the connections of the first."""
    together = asyncio.Event()

    async def echo(talk: Talk) -> None:
        while await talk.hear():
            requests = talk._requests
            mine = requests[-1].partition(b"\r\n\r\n")[2]
            if len(requests) == 300:
                together.set()
            await together.wait()
            await talk.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(mine), mine))

    async def work() -> None:
        async with connected(echo) as (client, server):
            for wave in range(2):
                asked = [b"%d of %d" % (number, wave) for number in range(300)]
                replies = await asyncio.gather(*map(client.post, asked))
                assert [reply.body for reply in replies] == asked
            assert server.connections == 300

    run(work())


# --- replies that break off or are none -----------------------------------------------------------------------------

BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "closed before the reply"),
    "part of a head": (b"HTTP/1.1 200 OK\r\nContent-Le", "closed before the reply"),
    "announcement only": (b"HTTP/1.1 100 Continue\r\n\r\n", "closed before the reply"),
    "part of a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nokay", "closed in the body"),
    "part, announced close": (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nokay",
        "closed in the body",
    ),
    "part of a chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nokay",
        "closed in the body",
    ),
    "no last chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nokay\r\n",
        "closed in the body",
    ),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP/1.1"),
    "HTTP/2": (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", "not HTTP/1.1"),
    "TLS": (b"\x15\x03\x01\x00\x02\x02\x16", "not HTTP/1.1"),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", "not HTTP/1.1"),
    "length and chunks": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        "not HTTP/1.1",
    ),
    "size of no chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n", "not HTTP/1.1"),
    "negative length": (b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok", "not HTTP/1.1"),
    "another protocol": (
        b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        "not HTTP/1.1",
    ),
    "compressed": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: GZIP\r\nContent-Length: 2\r\n\r\nok",
        r"compressed \(gzip\), which was not asked for",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_reply(run: Run, name: str) -> None:
    """It is an error, never part of a body; it is not sent again by itself; the next request is served."""
    sent, message = BROKEN[name]

    async def script(talk: Talk) -> None:
        await talk.hear()
        await talk.say(sent if talk.number == 0 else OK)

    async def work() -> None:
        async with connected(script) as (client, server):
            with pytest.raises(Cut, match=message):
                await client.post(b"{}")
            assert (server.connections, len(server.requests)) == (1, 1)
            assert await client.post(b"{}") == WHOLE

    run(work())


UNFINISHED = [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", b"HTTP/1.1 200 OK\r\n\r\nok"]


@pytest.mark.parametrize("sent", UNFINISHED[:2])
def test_a_connection_that_is_reset(run: Run, sent: bytes) -> None:
    """A reply without a length would end with its connection: half an answer is no JSON, and the reader refuses it."""

    async def script(talk: Talk) -> None:
        await talk.hear()
        await talk.say(sent, b"")
        made = talk.writer.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # close sends a reset
        talk.reset()

    async def work() -> None:
        async with connected(script) as (client, _):
            with pytest.raises(Cut, match="the connection was closed"):
                await client.post(b"{}")

    run(work())


# --- bytes that nobody asked for ------------------------------------------------------------------------------------

WRONG = OK.replace(b"ok", b"no")


# Bytes that come late cross the next request where it follows at once, and look like its reply.
TOO_MANY = {
    "reply": (WRONG, b"", 0.0),
    "body cut": (WRONG[:-1], WRONG[-1:], 0.0),
    "one byte": (b"H", WRONG[1:], 0.0),
    "late": (b"", WRONG, 0.02),
    "late nonsense": (b"", b"nonsense", 0.02),
}


@pytest.mark.parametrize(("extra", "late", "pause"), TOO_MANY.values(), ids=TOO_MANY)
def test_a_reply_too_many_is_nobodys(run: Run, extra: bytes, late: bytes, pause: float) -> None:
    async def script(talk: Talk) -> None:
        await talk.hear()
        if talk.number:
            await talk.say(OK)
            await talk.hear()
            return
        await talk.say(OK + extra)
        if late:
            if pause:
                await asyncio.sleep(pause / 2)
            await talk.say(late)
        await talk.hear()

    async def work() -> None:
        async with connected(script) as (client, server):
            assert await client.post(b"1") == WHOLE
            await asyncio.sleep(pause)
            assert await client.post(b"2") == WHOLE
            assert (server.connections, len(server.requests)) == (2, 2)

    run(work())


# --- connections that end while they wait ---------------------------------------------------------------------------


def crossing(last: bytes = b"", reset: bool = False, others: bool = False) -> Script:
    """Return a script whose first connection serves once and ends upon the second request; later ones serve."""

    async def script(talk: Talk) -> None:
        await talk.hear()
        if talk.number and others:
            return
        await talk.say(OK)
        if await talk.hear() and talk.number == 0:
            await talk.say(last)
            if reset:
                talk.reset()

    return script


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_connection_closed_as_it_is_used_again(run: Run, reset: bool) -> None:
    async def work() -> None:
        async with connected(crossing(reset=reset)) as (client, server):
            assert [await client.post(b"1"), await client.post(b"2")] == [WHOLE] * 2
            assert server.connections == 2
            assert [request[-1:] for request in server.requests] == [b"1", b"2", b"2"]

    run(work())


@pytest.mark.parametrize(
    ("script", "within", "requests"),
    [
        pytest.param(crossing(), 0.0, 2, id="not at once"),
        pytest.param(crossing(others=True), 1.0, 3, id="twice"),
    ],
)
def test_what_is_not_sent_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, script: Script, within: float, requests: int
) -> None:
    monkeypatch.setattr(http_module, "_CROSSING_SECONDS", within)

    async def work() -> None:
        async with connected(script) as (client, server):
            await client.post(b"1")
            with pytest.raises(Cut, match="before the reply"):
                await client.post(b"2")
            assert len(server.requests) == requests

    run(work())


def test_a_request_that_ends_connections_is_sent_on_one_that_waited_and_one_that_is_fresh(run: Run) -> None:
    """A prompt that kills a server must not be tried on every connection that happens to wait."""
    together = asyncio.Event()

    async def script(talk: Talk) -> None:
        while await talk.hear() and not talk._requests[-1].endswith(b"kill"):
            if len(talk._requests) == 5:
                together.set()
            await together.wait()
            await talk.say(OK)

    async def work() -> None:
        async with connected(script) as (client, server):
            await asyncio.gather(*(client.post(b"") for _ in range(5)))
            with pytest.raises(Cut):
                await client.post(b"kill")
            assert len(server.requests) == 5 + 2

    run(work())


def test_connections_that_the_server_ended_meanwhile(run: Run) -> None:
    """As uvicorn does after five idle seconds: nobody notices, and nothing is kept of them."""

    async def script(talk: Talk) -> None:
        await talk.hear()
        await talk.say(OK)
        await asyncio.sleep(0.03)

    async def work() -> None:
        async with connected(script, silence=7200.0) as (client, server):
            for wave in range(1, 4):
                assert await asyncio.gather(*(client.post(b"") for _ in range(10))) == [WHOLE] * 10
                while server.talks:
                    await asyncio.sleep(0.01)
                assert server.connections == len(server.requests) == 10 * wave

    run(work())


def test_a_connection_that_waited_long_is_not_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(http_module, "_IDLE_SECONDS", 0.0)
        async with connected(always(OK)) as (client, server):
            await client.post(b"")
            await client.post(b"")
            assert server.connections == 2

    run(work())


def test_connections_that_end_as_they_are_made(run: Run) -> None:
    async def script(talk: Talk) -> None:
        if talk.number % 2:
            talk.reset()

    async def work() -> None:
        async with connected(script) as (client, _):
            results = await asyncio.gather(*(client.post(b"{}") for _ in range(40)), return_exceptions=True)
            assert {isinstance(result, OSError) for result in results} == {True}

    run(work())


# --- silence and cancellation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "waited"),
    [
        (b"", None),
        (b"HTTP/1.1 200", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", None),
        (b"HTTP/1.1 200 OK\r\n\r\nok", None),
        (b"", 0.0),
        (b"", 0.4),
    ],
)
def test_silence_is_given_up(run: Run, before: bytes, waited: float | None) -> None:
    async def script(talk: Talk) -> None:
        if waited is not None:
            await talk.hear()
            await talk.say(OK)
        await talk.hear()
        await talk.say(before)
        assert not await talk.hear()

    async def work() -> None:
        async with connected(script, silence=0.1 if waited is None else 0.3) as (client, server):
            if waited is not None:
                await client.post(b"{}")
                await asyncio.sleep(waited)
            with pytest.raises(TimeoutError, match="no byte came for"):
                await client.post(b"{}")
            assert server.connections == 1

    run(work())


def test_a_slow_drip_is_not_silence(run: Run) -> None:
    async def script(talk: Talk) -> None:
        await talk.hear()
        await talk.say(*(OK[at : at + 4] for at in range(0, len(OK), 4)), pause=0.08)

    async def work() -> None:
        async with connected(script, silence=0.5) as (client, _):
            assert await client.post(b"{}") == WHOLE

    run(work())


def test_waiting_for_work_is_not_silence(run: Run) -> None:
    async def script(talk: Talk) -> None:
        await talk.hear()
        await talk.say(OK)
        await talk.hear()
        await talk.say(b"", OK, pause=0.3)

    async def work() -> None:
        async with connected(script, silence=0.5) as (client, server):
            assert await client.post(b"{}") == WHOLE
            await asyncio.sleep(0.35)
            assert await client.post(b"{}") == WHOLE
            assert server.connections == 1

    run(work())


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"])
def test_cancellation_closes_the_connection(run: Run, sent: bytes) -> None:
    closed = asyncio.Event()

    async def script(talk: Talk) -> None:
        await talk.hear()
        await talk.say(sent)
        assert not await talk.hear()
        closed.set()

    async def work() -> None:
        async with connected(script) as (client, server):
            task = asyncio.create_task(client.post(b"{}"))
            while not server.requests:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await closed.wait()

    run(work())


def test_cancellation_just_after_the_reply_closes_the_connection(run: Run) -> None:
    async def work() -> None:
        async with connected(always(b"")) as (client, server):
            task = asyncio.create_task(client.post(b"{}"))
            while not server.requests:
                await asyncio.sleep(0.01)
            (talk,) = server.open
            talk.writer.write(OK)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while server.talks:
                await asyncio.sleep(0.01)

    run(work())


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_an_end_while_the_connection_is_made(run: Run, end: str) -> None:
    """TLS that the server never takes up."""

    async def script(talk: Talk) -> None:
        assert not await talk.hear()

    async def work() -> None:
        async with connected(script, root="https://127.0.0.1:{}") as (client, server):
            task = asyncio.create_task(client.post(b"{}"))
            while not server.talks:
                await asyncio.sleep(0.01)
            if end == "cancel":
                task.cancel()
            else:
                await client.close()
            with pytest.raises(asyncio.CancelledError if end == "cancel" else EngineError):
                await task
            while server.talks:
                await asyncio.sleep(0.01)

    run(work())


@pytest.mark.parametrize("sent", UNFINISHED)
def test_close_in_mid_request(run: Run, sent: bytes) -> None:
    """Whoever waits is told, also where the end of the connection would be the end of the reply."""

    async def script(talk: Talk) -> None:
        await talk.hear()
        await talk.say(sent)
        assert not await talk.hear()

    async def work() -> None:
        async with connected(script) as (client, server):
            tasks = [asyncio.create_task(client.post(b"{}")) for _ in range(3)]
            while len(server.requests) < 3:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.02)
            await client.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(result) for result in results] == [EngineError] * 3
            with pytest.raises(EngineError, match="closed"):
                await client.post(b"{}")
            await client.close()

    run(work())


# --- bounds ---------------------------------------------------------------------------------------------------------


def endless(head: bytes, piece: bytes, pause: float = 0.0) -> Script:
    """Return a script that sends `piece` again and again."""

    async def script(talk: Talk) -> None:
        await talk.hear()
        await talk.say(head)
        with contextlib.suppress(ConnectionError):
            while not talk.writer.transport.is_closing():
                talk.writer.write(piece)
                await talk.writer.drain()
                await asyncio.sleep(pause)

    return script


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS: dict[str, tuple[bytes, bytes, type[Exception], str]] = {
    "chunks": (CHUNKED, b"1000\r\n" + b"x" * 4096 + b"\r\n", TooLarge, r"without end; at most 100000 bytes"),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 4096, TooLarge, "without end"),
    "announced": (b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n", b"x" * 4096, TooLarge, "100001 bytes"),
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"y" * 4096, Cut, "not HTTP/1.1"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 500, Cut, "not HTTP/1.1"),
    "a status line": (b"HTTP/1.1 200 ", b"y" * 4096, Cut, "not HTTP/1.1"),
    "a chunk's size": (CHUNKED, b"0" * 4096, TimeoutError, "no whole reply"),
    "a chunk's extension": (CHUNKED + b"1;", b"y" * 4096, TimeoutError, "no whole reply"),
    "a trailer": (CHUNKED + b"0\r\nX: ", b"y" * 4096, TimeoutError, "no whole reply"),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads its own memory in /proc")
@pytest.mark.parametrize("name", ENDLESS)
def test_a_reply_without_end(run: Run, name: str) -> None:
    head, piece, kind, message = ENDLESS[name]

    def memory() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    async def work() -> None:
        async with connected(endless(head, piece), silence=5.0) as (client, _):
            before = memory()
            with pytest.raises(kind, match=message):
                await client.post(b"{}", 100_000, 2.0)
            assert memory() - before < 50_000_000

    run(work())


@pytest.mark.parametrize("head", [CHUNKED, b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n"])
def test_an_errors_body_is_read_for_its_first_part(run: Run, head: bytes) -> None:
    piece = b"1000\r\n" + b"x" * 4096 + b"\r\n" if head is CHUNKED else b"x" * 4096

    async def work() -> None:
        async with connected(endless(head.replace(b"200 OK", b"500 X"), piece)) as (client, _):
            reply = await client.post(b"{}")
            assert (reply.status, reply.body) == (500, b"x" * 65_536)

    run(work())


def test_a_body_of_the_bounds_size_is_whole(run: Run) -> None:
    sent = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000

    async def work() -> None:
        async with connected(always(sent)) as (client, _):
            assert (await client.post(b"{}", 1000)).body == b"x" * 1000
            with pytest.raises(TooLarge):
                await client.post(b"{}", 999)
            assert (await client.post(b"{}", 1000)).body == b"x" * 1000

    run(work())


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_drip_is_given_up_after_the_time_of_a_whole_reply(run: Run, head: bytes) -> None:
    async def work() -> None:
        async with connected(endless(head, b"x", 0.05), silence=5.0) as (client, _):
            with pytest.raises(TimeoutError, match="no whole reply within 1 s"):
                await client.post(b"{}", seconds=0.6)

    run(work())


# --- proxies --------------------------------------------------------------------------------------------------------


def test_the_environments_proxies_are_ignored(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def work() -> None:
        async with connected(always(OK)) as (client, _):
            assert await client.post(b"{}") == WHOLE

    run(work())


def test_a_proxy_that_is_given_is_used(run: Run) -> None:
    async def work() -> None:
        async with serving(always(OK)) as proxy:
            client = HttpClient(
                "http://a-host-nobody-knows.invalid:30000", "k-12", 5.0, f"http://me:hidden@127.0.0.1:{proxy.port}"
            )
            assert await client.post(b"{}") == WHOLE
            await client.close()
            assert proxy.requests[0].startswith(b"POST http://a-host-nobody-knows.invalid:30000/generate HTTP/1.1")
            assert b"Proxy-Authorization: Basic " in proxy.requests[0]
            assert "hidden" not in foreign_text("it says hidden")

    run(work())


@pytest.mark.parametrize("proxy", ["127.0.0.1:3128", "socks5://h:1", "http://", "http://me:hidden@", "https://h:1"])
def test_what_is_no_proxy(proxy: str) -> None:
    with pytest.raises(UsageError, match=r"engine\.proxy") as caught:
        proxy_url(proxy)
    assert "hidden" not in str(caught.value)


# --- addresses, heads and keys --------------------------------------------------------------------------------------


def test_nobody_listens(run: Run) -> None:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = made.getsockname()[1]

    async def work() -> None:
        client = HttpClient(f"http://127.0.0.1:{port}", None, 5.0)
        with pytest.raises(ConnectionRefusedError):
            await client.post(b"{}")
        await client.close()

    run(work())


def test_a_name_that_does_not_resolve(run: Run) -> None:
    async def work() -> None:
        client = HttpClient("http://no-such-host.invalid:1", None, 5.0)
        with pytest.raises(socket.gaierror):
            await client.post(b"{}")
        await client.close()

    run(work())


def test_no_connection_in_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_CONNECT_SECONDS", 0.1)

    async def work() -> None:
        async with connected(always(OK), root="https://127.0.0.1:{}") as (client, _):
            with pytest.raises(TimeoutError, match="no connection within"):
                await client.post(b"{}")

    run(work())


def test_a_name_with_an_address_where_nobody_listens(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As localhost, where the server has IPv4 alone. The name is looked up once for all who start together."""
    asked = []

    async def work() -> None:
        async with connected(always(OK), root="http://two.example:{}") as (client, server):

            async def look_up(host: str, port: int, **_: Any) -> list[Any]:
                asked.append(host)
                await asyncio.sleep(0.01)
                kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
                return [(*kind, ("127.0.0.2", 1)), (*kind, ("127.0.0.1", port))]

            class Loop:
                def __getattr__(self, name: str) -> Any:
                    return look_up if name == "getaddrinfo" else getattr(loop, name)

            loop = asyncio.get_running_loop()
            monkeypatch.setattr("aiohttp.resolver.asyncio.get_running_loop", Loop)
            try:
                assert await asyncio.gather(*(client.post(b"") for _ in range(5))) == [WHOLE] * 5
            finally:
                monkeypatch.undo()
            assert (asked, server.connections) == (["two.example"], 5)

    run(work())


HEADS = [
    ("http://127.0.0.1:{}", None, [b"POST /generate HTTP/1.1", b"Host: 127.0.0.1:{}"]),
    ("http://127.0.0.1:{}/a/b/", None, [b"POST /a/b/generate HTTP/1.1"]),
    ("http://127.0.0.1:{}/a b/é%20c", None, [b"POST /a%20b/%C3%A9%20c/generate HTTP/1.1"]),
    ("http://LOCALHOST:{}", "k-1", [b"Host: localhost:{}", b"Authorization: Bearer k-1"]),
]


@pytest.mark.parametrize(("root", "key", "lines"), HEADS)
def test_the_head_of_a_request(run: Run, root: str, key: str | None, lines: list[bytes]) -> None:
    async def work() -> None:
        async with connected(always(OK), root=root, key=key) as (client, server):
            await client.post(b'{"a":1}')
            (request,) = server.requests
            head, _, body = request.partition(b"\r\n\r\n")
            for line in lines:
                assert line.replace(b"{}", b"%d" % server.port) in head.split(b"\r\n")
            assert head.count(b"Authorization") == sum(line.startswith(b"Authorization") for line in lines)
            assert b"Content-Length: 7" in head and body == b'{"a":1}'

    run(work())


def test_an_ipv6_address(run: Run) -> None:
    try:
        with socket.socket(socket.AF_INET6) as made:
            made.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")

    async def work() -> None:
        async with serving(always(OK), host="::1") as server:
            client = HttpClient(f"http://[::1]:{server.port}", None, 5.0)
            assert await client.post(b"{}") == WHOLE
            await client.close()
            assert b"Host: [::1]:%d\r\n" % server.port in server.requests[0]

    run(work())


@pytest.mark.parametrize("key", ["top\r\nX-Evil: secret", "top\nsecret", "secret\x00", "clé-secret", "secret\u2028"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(UsageError, match=r"line break .* engine\.api_key_env") as caught:
        HttpClient("http://host:1", key, 5.0)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://me:hidden@host:1", "http://me:hidden@", "me:hidden@host:1", "https://hidden@h"]
)
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError, match=r"engine\.urls") as caught:
        HttpClient(url, None, 5.0)
    assert "hidden" not in str(caught.value)


NO_HOSTS = ["http://", "http://:80", "http://host:port", "http://a..b", "http://[::1", "http://" + "a" * 64]


@pytest.mark.parametrize("url", [*NO_HOSTS, "http://me:hid/den@host:99999"])
def test_a_url_without_a_host(url: str) -> None:
    with pytest.raises(UsageError, match=r"engine\.urls") as caught:
        HttpClient(url, None, 5.0)
    assert "den" not in str(caught.value)


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    made = subprocess.run(
        ["openssl", "req", "-x509", *options, *names, "-keyout", key, "-out", cert], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"openssl makes no certificate: {made.stderr[-200:]}")
    return cert, key


@pytest.mark.parametrize("named", [False, True], ids=["unknown", "named"])
def test_a_self_signed_certificate(
    run: Run, monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path], named: bool
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if named:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    replies = {
        b"big": b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000,
        b"end": b"HTTP/1.1 200 OK\r\n\r\nok",
        b"wait": b"",
    }

    async def script(talk: Talk) -> None:
        while await talk.hear():
            asked = talk._requests[-1].partition(b"\r\n\r\n")[2]
            await talk.say(replies.get(asked, OK))
            if asked == b"end":
                return

    async def work() -> None:
        async with serving(script, tls=context) as server:
            client = HttpClient(f"https://127.0.0.1:{server.port}", "k", 5.0)
            if not named:
                with pytest.raises(ssl.SSLCertVerificationError, match="self-signed certificate"):
                    await client.post(b"{}")
            else:
                assert await client.post(b"x" * 1_000_000) == WHOLE
                assert len((await client.post(b"big")).body) == 3_000_000
                assert await client.post(b"end") == WHOLE
                assert server.connections == 1
                assert await client.post(b"{}") == WHOLE
                assert server.connections == 2
                task = asyncio.create_task(client.post(b"wait"))
                while not server.requests[-1].endswith(b"wait"):
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await client.close()

    run(work())


# --- what the client leaves behind, and who asks over it ------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts open files in /proc")
def test_no_socket_is_left(run: Run) -> None:
    def sockets() -> int:
        return sum("socket" in str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())

    async def work() -> None:
        async with serving(crossing(reset=True)) as server:
            for number in range(20):
                client = HttpClient(f"http://127.0.0.1:{server.port}", None, 5.0)
                await asyncio.gather(*(client.post(b"") for _ in range(5)), return_exceptions=True)
                if number == 0:
                    await client.close()
                    while server.talks:
                        await asyncio.sleep(0.01)
                    before = sockets()
                await client.close()
            while server.talks:
                await asyncio.sleep(0.01)
            assert sockets() == before

    run(work())


def retrying(url: str) -> tuple[RetryingClient, Servers]:
    servers = Servers([url], 1)
    servers.all[0].up = True
    policy = RetryPolicy(attempts=2, first_wait=0.01, longest_wait=0.01)
    return RetryingClient(servers, RequestBody({}, ()), AnswerReader(1000), policy), servers


IDS = np.arange(3, 9, dtype=np.int32)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        *((status, "leads to") for status in (301, 302, 303, 307, 308)),
        *((status, "api_key_env") for status in (401, 403)),
    ],
)
def test_a_server_that_sends_everyone_away_stops_the_run(status: int, message: str) -> None:
    async def work() -> None:
        reply = b"HTTP/1.1 %d X\r\nLocation: https://there/\r\nContent-Length: 0\r\n\r\n" % status
        async with serving(always(reply)) as server:
            ask, _ = retrying(f"http://127.0.0.1:{server.port}")
            for _ in range(2):
                with pytest.raises(EngineError, match=f"^http://127.0.0.1:.*{message}.*{status}"):
                    await ask.ask(IDS, 5)
            await ask.close()
            assert len(server.requests) == 1

    asyncio.run(work())


def test_close_tells_those_who_ask_and_those_who_wait_for_a_place() -> None:
    async def script(talk: Talk) -> None:
        await talk.hear()
        assert not await talk.hear()

    async def work() -> None:
        async with serving(script) as server:
            ask, _ = retrying(f"http://127.0.0.1:{server.port}")
            tasks = [asyncio.create_task(ask.ask(IDS, 5)) for _ in range(3)]
            while not server.requests:
                await asyncio.sleep(0.01)
            await ask.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(result) for result in results] == [EngineError] * 3

    asyncio.run(work())
