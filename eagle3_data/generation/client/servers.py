"""The servers of a run: which one takes the next request, how many it may have, and what happens when one is lost.

Goes in: URLs. Comes out: a server with a free place, for as long as a request needs it. A server that is lost leaves
the choice and comes back by itself; when all are lost the run waits. All must serve the same model and weights.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

import aiohttp

from eagle3_data.errors import EngineError, EngineUnavailable, UsageError
from eagle3_data.generation.budget import ContextLimits
from eagle3_data.generation.client.canary import ModelCanary
from eagle3_data.generation.client.facts import ServerFacts, fetch_facts, fetch_health
from eagle3_data.generation.client.http import server_url
from eagle3_data.generation.client.server import Server
from eagle3_data.generation.client.window import BLIND_LIMIT, FIRST_LIMIT, OpenFiles, tune

logger = logging.getLogger(__name__)

Concurrency = int | Literal["auto"]

_RETURN_SECONDS: Final = (0.5, 15.0)  # first and longest wait between looks at a lost server
_ALIVE_SECONDS: Final = 10.0  # who answered within this time and says 503 is busy, whatever its /health says
_SIGN_OF_LIFE_SECONDS: Final = 2.0  # an answer within this time after a broken connection says so too
_COMPARED_SECONDS: Final = 10.0  # a model is compared after a broken connection, but no more often than so
_SILENCE_SECONDS: Final = 60.0  # after which the progress line says that nothing comes
_ROUND_TOKENS: Final = 2048
_FEWEST_ROUND_TOKENS: Final = 64


class Servers:
    """All servers of a run. Belongs to one event loop.

    Args:
        urls: roots of the servers; a mapping gives each its share of the work.
        concurrency: requests in flight over all servers, or "auto" to keep every server full without queueing.
        context_length: where the servers do not tell theirs (sglang-router).
        patience: seconds to wait for a server when all are lost.
        on_pause: called with a sentence when the run starts to wait, and with "" when it goes on.
        round_tokens: the longest piece that one request fetches of an answer; None for whole answers, until requests
            are seen to be cut by a timer in between.
        verify: called on a server's return with what it says of itself; raises where it must not be used.
    """

    def __init__(
        self,
        urls: Sequence[str] | Mapping[str, float],
        concurrency: Concurrency = "auto",
        *,
        context_length: int | None = None,
        patience: float = 3600.0,
        on_pause: Callable[[str], None] = lambda text: None,
        round_tokens: int | None = None,
        verify: Callable[[aiohttp.ClientSession, ServerFacts], Awaitable[object]] | None = None,
    ) -> None:
        shares = dict(urls) if isinstance(urls, Mapping) else dict.fromkeys(urls, 1.0)
        if not shares:
            raise UsageError("engine.urls: no server given")
        for url, weight in shares.items():
            server_url(url)
            if not weight > 0:
                raise UsageError(f"engine.urls: the weight of {url} must be above 0")
        if concurrency != "auto" and (isinstance(concurrency, bool) or not concurrency >= 1):
            raise UsageError(f"engine.concurrency: {concurrency!r} must be auto or a whole number from 1")
        self._auto = concurrency == "auto"
        total = sum(shares.values())
        self.all = [
            Server(
                url.rstrip("/"),
                weight,
                FIRST_LIMIT if concurrency == "auto" else max(1.0, concurrency * weight / total),
                self._auto,
            )
            for url, weight in shares.items()
        ]
        self.round_tokens = round_tokens
        self.files = OpenFiles()
        self.limits: ContextLimits | None = None
        self.facts: ServerFacts | None = None
        self.fatal: Exception | None = None
        self.context_length = context_length
        self._verify = verify
        self._canary = ModelCanary()
        self._patience = patience
        self._on_pause = on_pause
        self._session: aiohttp.ClientSession | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._probes: dict[str, asyncio.Task[bool]] = {}
        self._paused_since = 0.0
        self._draining = False
        self.working: set[asyncio.Task[Any] | None] = set()  # who holds a place

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self, session: aiohttp.ClientSession) -> None:
        """Meet the servers. Those that do not answer are looked for later, as long as one does.

        Raises:
            EngineUnavailable: none answers.
            EngineError: they differ, cut prompts, or do not tell their context length.
        """
        self._session = session
        self.files.tell(0 if self._auto else sum(server.limit for server in self.all))
        results = await asyncio.gather(
            *(fetch_facts(session, server.url, self.context_length) for server in self.all),
            return_exceptions=True,
        )
        failures: list[BaseException] = []
        for server, facts in zip(self.all, results, strict=True):
            if isinstance(facts, ServerFacts):
                self._admit(server, facts)
                continue
            if not isinstance(facts, EngineUnavailable):
                raise facts
            failures.append(facts)
        if len(failures) == len(self.all):
            raise failures[0]
        for server in self.all:
            if not server.up:
                logger.warning("%s does not answer; going on without it until it does", server.url)
                self._spawn(self._await_return(server))
            else:
                self._spawn(self._canary.record(session, server.facts))
        self._spawn(tune(self.all, session, self._auto, lambda: self._wake(len(self._waiting))))

    async def close(self) -> None:
        """End all background work. The session stays open: it is the caller's."""
        tasks: list[asyncio.Task[None] | asyncio.Task[bool]] = [*self._tasks, *self._probes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(error if isinstance(error, Exception) else EngineError(str(error)))

    def drain(self) -> None:
        """Give out no more places: a task that asks for one from now on is cancelled."""
        self._draining = True

    def stop(self, error: Exception) -> None:
        """End the run: everyone who waits or asks from now on gets `error`."""
        self.fatal = self.fatal or error
        self._wake(len(self._waiting))

    def _admit(self, server: Server, facts: ServerFacts) -> None:
        """Take a server into the choice, if it serves what the others serve."""
        if self.facts is None:
            if facts.limits is None:
                raise EngineError(
                    f"{server.url}: does not report its context length (a router?); give engine.context_length"
                )
            self.facts, self.limits = facts, facts.limits
        self._compare(server, facts)
        if facts.limits is not None and self.limits is not None:
            self.limits &= facts.limits
        server.facts = facts
        if self._auto and not server.losses:
            server.limit = min(float(facts.slots or BLIND_LIMIT), float(FIRST_LIMIT))
        server.up = True
        self._resume()

    def _compare(self, server: Server, facts: ServerFacts) -> None:
        """Refuse a server that does not serve what the others serve."""
        assert self.facts is not None
        for name in ("model_path", "version", "weight_version"):
            known, here = getattr(self.facts, name), getattr(facts, name)
            if name == "model_path":  # the same model may lie in another folder of another machine
                known, here = (value.rstrip("/").rpartition("/")[2] for value in (known, here))
            if known and here and known != here:
                raise EngineError(
                    f"{server.url} serves {name} {here!r} and {self.facts.url} {known!r}: one run needs the same "
                    "everywhere; take one out of engine.urls. Finished rows are kept"
                )

    # --- places -------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Requests that may be in flight now."""
        wanted = sum(int(server.limit) for server in self.all if server.up) or 1
        self.files.tell(wanted)
        return int(min(wanted, self.files.requests))

    @property
    def outstanding(self) -> int:
        """Requests that are in flight."""
        return sum(server.outstanding for server in self.all)

    async def acquire(self, home: Server | None = None, avoid: Server | None = None) -> Server:
        """Return a server with a place taken: `home` if it is up, else the one with the least to do for its weight.

        `avoid` is taken only if no other server is up.

        Raises:
            EngineError, EngineUnavailable: the run is to stop.
            CancelledError: no more requests are to start.
        """
        while True:
            if self.fatal is not None:
                raise self.fatal
            if self._draining:
                raise asyncio.CancelledError
            if avoid is not None and not self.others(avoid):
                avoid = None
            chosen = home if home is not None and home.up and home is not avoid else None
            if chosen is None and self.outstanding < self.files.requests:
                for server in self.all:
                    if (
                        server.free
                        and server is not avoid
                        and (chosen is None or server.outstanding / server.weight < chosen.outstanding / chosen.weight)
                    ):
                        chosen = server
            if chosen is not None:
                chosen.sent()
                self.working.add(asyncio.current_task())
                return chosen
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._wake(1)
                raise

    def release(self, server: Server) -> None:
        """Give a place back."""
        server.outstanding -= 1
        self.working.discard(asyncio.current_task())
        self._wake(1)

    def others(self, server: Server) -> bool:
        """Whether another server is up."""
        return any(other.up for other in self.all if other is not server)

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1

    # --- loss and return ----------------------------------------------------------------------------------------

    async def lost(self, server: Server, by: Literal["connection", "busy", "gateway"] = "connection") -> bool:
        """Find out whether a server is lost; if so, take it out until it returns.

        Args:
            server: that gave no answer.
            by: what makes it suspect: a broken connection, its own 503, or a gateway that does not reach it.
        """
        if not server.up:
            return True
        probe = self._probes.get(server.url)
        if probe is None:
            probe = asyncio.get_running_loop().create_task(self._is_lost(server, by))
            self._probes[server.url] = probe
            probe.add_done_callback(lambda _: self._probes.pop(server.url, None))
        return await asyncio.shield(probe)

    async def _is_lost(self, server: Server, by: str) -> bool:
        assert self._session is not None
        health = await fetch_health(self._session, server.url)
        if health == "well":
            if by == "connection" and time.monotonic() - server.compared_at > _COMPARED_SECONDS:
                server.compared_at = time.monotonic()  # it may have been started anew meanwhile
                with contextlib.suppress(EngineUnavailable):
                    self._compare(server, await self._meet(server))
            return False
        # Some are unwell while they are busy; a gateway that answers in their place is not a sign of life.
        if health == "unwell" and by == "busy" and time.monotonic() - server.answered_at < _ALIVE_SECONDS:
            return False
        if health == "unwell" and by == "connection" and await self._answers(server):
            return False
        if server.up:
            server.up = False
            server.losses += 1
            again = f" ({server.losses} times so far)" if server.losses > 1 else ""
            rows = "go elsewhere" if any(other.up for other in self.all) else "wait"
            logger.warning("%s is lost%s; its rows %s until it returns", server.url, again, rows)
            self._spawn(self._await_return(server, by != "gateway"))
            if not any(other.up for other in self.all):
                self._paused_since = time.monotonic()
                self._on_pause(
                    f"no server answers ({', '.join(other.url for other in self.all)}): waiting for one to return; "
                    "no row is given up"
                )
        return True

    @staticmethod
    async def _answers(server: Server) -> bool:
        """Whether an answer comes within some seconds."""
        began = time.monotonic()
        while server.answered_at < began and time.monotonic() - began < _SIGN_OF_LIFE_SECONDS:
            await asyncio.sleep(0.05)
        return server.answered_at >= began

    async def _await_return(self, server: Server, answers_count: bool = False) -> None:
        """Take a server back when it is well; or, if so, when it answers although it says that it is not."""
        assert self._session is not None
        wait, longest = _RETURN_SECONDS
        lost_at = time.monotonic()
        while not server.up and not server.out_of_use:
            await asyncio.sleep(wait)
            wait = min(longest, wait * 1.5)
            if self._paused_since and time.monotonic() - self._paused_since > self._patience:
                raise EngineUnavailable(
                    f"no server of {', '.join(other.url for other in self.all)} answered for {self._patience:.0f} s; "
                    "start one and run the same command again, finished rows are kept"
                )
            health = await fetch_health(self._session, server.url)
            if health == "well" or (answers_count and health == "unwell" and server.answered_at > lost_at):
                try:
                    facts = await self._meet(server)
                except EngineUnavailable:
                    continue
                self._admit(server, facts)
                logger.warning("%s is back", server.url)

    async def _meet(self, server: Server) -> ServerFacts:
        """Return what a server says of itself, if its model answers as it did at the start.

        Raises:
            EngineUnavailable: it does not answer.
            EngineError: it has another model, or must not be used.
        """
        assert self._session is not None
        try:
            facts = await fetch_facts(self._session, server.url, self.context_length)
            if self._verify is not None:
                await self._verify(self._session, facts)
            await self._canary.check(self._session, facts)
        except EngineUnavailable:
            raise
        except EngineError as error:
            self.stop(error)
            raise
        return facts

    def _resume(self) -> None:
        if self._paused_since:
            self._paused_since = 0.0
            self._on_pause("")
        self._wake(len(self._waiting))

    # --- weights ------------------------------------------------------------------------------------------------

    def check_weights(self, server: Server, version: str) -> None:
        """Stop the run when an answer was written by other weights than the answers before it.

        Raises:
            EngineError: the versions differ.
        """
        facts = self.facts
        if facts is None or not version or version == facts.weight_version:
            return
        if not facts.weight_version:
            self.facts = ServerFacts(facts.url, facts.model_path, facts.version, version, facts.limits, facts.slots)
            return
        error = EngineError(
            f"{server.url}: the weights changed from {facts.weight_version!r} to {version!r} in mid-run; serve "
            f"{facts.weight_version!r} again, or start a run of another name. Finished rows are kept"
        )
        self.stop(error)
        raise error

    # --- what the requests show ---------------------------------------------------------------------------------

    def take_out(self, server: Server, evidence: str) -> None:
        """Ask a server no more whose answers are wrong one after another, as long as another is up."""
        if server.up and self.others(server):
            kinds = ", ".join(f"{count} {kind}" for kind, count in server.wrong.most_common())
            server.up, server.out_of_use = False, evidence
            logger.warning(
                "%s is taken out of use: its last %d answers were wrong (%s), the last: %s. Its rows go elsewhere; "
                "restart it, or take it out of engine.urls",
                server.url,
                server.wrong.total(),
                kinds,
                evidence,
            )

    def learn_context(self, server: Server, tokens: int, said: str, context: int) -> None:
        """Take in that a request was refused as too long.

        Args:
            server: who refused it.
            tokens: prompt and budget of the request.
            said: the server's words.
            context: the context length in them, 0 for none.

        Raises:
            EngineError: `engine.context_length` is wrong, or the words do not tell what the server can hold.
        """
        assert self.limits is not None
        if context and not self.context_length and context < self.limits.context_length:
            logger.warning("%s: holds %d tokens, fewer than it reported: %s", server.url, context, said)
            self.limits &= ContextLimits(context)
            return
        if context and self.limits.context_length <= context and tokens > self.limits.room:
            return  # was on its way when the limit was learnt
        given = f"engine.context_length is {self.context_length}" if self.context_length else "it reported more"
        remedy = f"set it to {context}" if context else "set it to what the server can hold"
        error = EngineError(
            f"{server.url}: refuses a request of {tokens} tokens as too long ({said}), and {given}; {remedy}"
            + ("" if self.context_length else " in engine.context_length")
            + ". Finished rows are kept"
        )
        self.stop(error)
        raise error

    def cut_by_timer(self, server: Server, asked: int) -> None:
        """Take in that requests to a server end after equal times: answers are fetched in pieces from now on.

        Args:
            server: whose requests end.
            asked: tokens that the request asked for; 0 where answers cannot be fetched in pieces.
        """
        seconds, before = server.cuts.seconds, self.round_tokens
        if asked and (before is None or asked <= 2 * before):  # else it was sent before pieces were made shorter
            fits = min(_ROUND_TOKENS, asked / 2, server.tokens_per_second * seconds / 2)
            self.round_tokens = max(_FEWEST_ROUND_TOKENS, int(fits))
        if server.cuts.told:
            return
        server.cuts.told = True
        remedy = (
            f"From now on answers are fetched in pieces of {self.round_tokens} tokens (engine.round_tokens)"
            if asked
            else "With penalties or min_new_tokens an answer cannot be fetched in pieces: the rows that fail are the "
            "long ones, and what is left leans to short answers"
        )
        logger.warning(
            "%s: requests end without an answer after %.0f s each: a balancer or gateway in between ends those that "
            "are silent for so long. Raise its idle timeout, or give engine.urls the servers' own addresses. %s",
            server.url,
            seconds,
            remedy,
        )

    @property
    def silence(self) -> str:
        """Say which servers owe answers and gave none for a minute; "" if none does."""
        parts = [
            f"{server.url} for {seconds:.0f} s ({server.outstanding} requests are out, since "
            f"{time.strftime('%H:%M:%S', time.localtime(time.time() - seconds))})"
            for server in self.all
            if (seconds := server.silent_seconds) >= _SILENCE_SECONDS
        ]
        return f"nothing came from {', '.join(parts)}" if parts else ""
