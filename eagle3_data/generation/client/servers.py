"""The servers of a run: how they are met, and what happens when one is lost, sick or back.

Goes in: URLs. Comes out: a server with a free place, for as long as a request needs it. A server that is lost leaves
the choice and comes back by itself; when all are lost the run waits. All must serve the same model and weights.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

import aiohttp

from eagle3_data.errors import EngineError, EngineUnavailable, UsageError
from eagle3_data.generation.budget import ContextLimits
from eagle3_data.generation.client.agreement import Agreement
from eagle3_data.generation.client.canary import ModelCanary
from eagle3_data.generation.client.facts import ServerFacts, fetch_facts, fetch_health
from eagle3_data.generation.client.http import server_url
from eagle3_data.generation.client.pieces import Pieces
from eagle3_data.generation.client.places import Places
from eagle3_data.generation.client.server import Server
from eagle3_data.generation.client.window import BLIND_LIMIT, FIRST_LIMIT, tune

logger = logging.getLogger(__name__)

Concurrency = int | Literal["auto"]

_RETURN_SECONDS: Final = (0.5, 15.0)  # first and longest wait between looks at a lost server
_ALIVE_SECONDS: Final = 10.0  # who answered within this time and says 503 is busy, whatever its /health says
_SIGN_OF_LIFE_SECONDS: Final = 2.0  # an answer within this time after a broken connection says so too
_COMPARED_SECONDS: Final = 10.0  # a model is compared after a broken connection, but no more often than so


class Servers(Places):
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
        super().__init__(
            Server(
                url.rstrip("/"),
                weight,
                FIRST_LIMIT if concurrency == "auto" else max(1.0, concurrency * weight / total),
                self._auto,
            )
            for url, weight in shares.items()
        )
        self.pieces = Pieces(round_tokens)
        self._agreement = Agreement(context_length)
        self._verify = verify
        self._canary = ModelCanary()
        self._patience = patience
        self._on_pause = on_pause
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._probes: dict[str, asyncio.Task[bool]] = {}
        self._paused_since = 0.0

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
            *(fetch_facts(session, server.url, self._agreement.context_length) for server in self.all),
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
        self._spawn(tune(self.all, session, self._auto, self.wake_all))

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

    def _admit(self, server: Server, facts: ServerFacts) -> None:
        """Take a server into the choice, if it serves what the others serve."""
        self._agreement.join(server, facts)
        server.facts = facts
        if self._auto and not server.losses:
            server.limit = min(float(facts.slots or BLIND_LIMIT), float(FIRST_LIMIT))
        server.up = True
        self._resume()

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
                    self._agreement.compare(server, await self._meet(server))
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
            facts = await fetch_facts(self._session, server.url, self._agreement.context_length)
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
        self.wake_all()

    # --- what the requests show ---------------------------------------------------------------------------------

    @property
    def facts(self) -> ServerFacts | None:
        """What all servers say of themselves; None before one was met."""
        return self._agreement.facts

    @property
    def limits(self) -> ContextLimits | None:
        """What all servers can hold; None before one was met."""
        return self._agreement.limits

    def check_weights(self, server: Server, version: str) -> None:
        """Stop the run when an answer was written by other weights than the answers before it.

        Raises:
            EngineError: the versions differ.
        """
        with self._stopping():
            self._agreement.check_weights(server, version)

    def learn_context(self, server: Server, tokens: int, said: str, context: int) -> None:
        """Take in that a request was refused as too long, or stop the run. See `Agreement.learn_context`."""
        with self._stopping():
            self._agreement.learn_context(server, tokens, said, context)

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Stop the run where an EngineError is raised."""
        try:
            yield
        except EngineError as error:
            self.stop(error)
            raise

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
