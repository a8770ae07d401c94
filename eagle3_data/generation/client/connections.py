"""A Generator's way to its servers: made at the first row, once for each event loop, and closed together.

Goes in: URLs and how to ask them. Comes out: servers to choose from and a client that asks, on the running loop.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import aiohttp

from eagle3_data.generation.client.facts import ServerFacts
from eagle3_data.generation.client.http import open_session
from eagle3_data.generation.client.protocol import AnswerReader, RequestBody
from eagle3_data.generation.client.retry_policy import RetryPolicy
from eagle3_data.generation.client.retrying import RetryingClient
from eagle3_data.generation.client.server import silence
from eagle3_data.generation.client.servers import Concurrency, Servers
from eagle3_data.generation.progress import Progress


class Connection:
    """A session, its servers and who asks them, on one event loop."""

    def __init__(self, session: aiohttp.ClientSession, servers: Servers, client: RetryingClient) -> None:
        self.loop = asyncio.get_running_loop()
        self.session = session
        self.servers = servers
        self.client = client

    async def close(self) -> None:
        """End requests, background work and connections."""
        try:
            await self.client.close()  # first: a request that ends may still make work for the others
        finally:
            try:
                await self.servers.close()
            finally:
                await self.session.close()

    def abandon(self) -> None:
        """Close from outside the loop, which is not running any more."""
        if not self.loop.is_closed() and not self.loop.is_running():
            self.loop.run_until_complete(self.close())


class Connections:
    """Makes the connection of a loop when it is first needed.

    Args:
        urls: roots of the servers; a mapping gives each its share of the work.
        body: builds the requests.
        reader: checks the answers.
        policy: how stubborn to be.
        concurrency, api_key, context_length, request_timeout, patience, round_tokens, proxy,
            answer_timeout: as `Generator`.
        verify: called on a server's return; raises where it must not be used.

    Raises:
        UsageError: an argument is wrong.
    """

    def __init__(
        self,
        urls: Sequence[str] | Mapping[str, float],
        body: RequestBody,
        reader: AnswerReader,
        policy: RetryPolicy,
        *,
        concurrency: Concurrency,
        api_key: str | None,
        context_length: int | None,
        request_timeout: float,
        patience: float,
        round_tokens: int | None = None,
        proxy: str | None = None,
        answer_timeout: float | None = None,
        verify: Callable[[aiohttp.ClientSession, ServerFacts], Awaitable[object]] | None = None,
    ) -> None:
        self.pause_text = ""  # why no row moves, "" when they do
        # Called with what the servers are before the first row is asked; raises where they must not be.
        self.admit: Callable[[ServerFacts], None] = lambda facts: None
        self._urls = dict(urls) if isinstance(urls, Mapping) else list(urls)
        self._body = body
        self._reader = reader
        self._policy = policy
        self._concurrency = concurrency
        self._api_key = api_key
        self._context_length = context_length
        self._request_timeout = request_timeout
        self._patience = patience
        self._round_tokens = round_tokens
        self._proxy = proxy
        self._answer_timeout = answer_timeout
        self._verify = verify
        self._open: list[Connection] = []
        self._earlier: list[RetryingClient] = []
        self._opening: asyncio.Task[Connection] | None = None
        self._servers()  # refuses wrong arguments now, not in the middle of map

    def _servers(self) -> Servers:
        return Servers(
            self._urls,
            self._concurrency,
            context_length=self._context_length,
            patience=self._patience,
            on_pause=self._paused,
            round_tokens=self._round_tokens,
            verify=self._verify,
        )

    async def get(self) -> Connection:
        """Return the connection of the running loop, made at the first call.

        Raises:
            EngineUnavailable, EngineError: as `Servers.start`.
            Exception: what `admit` raises.
            UsageError: the key cannot be used.
        """
        current = self.current
        if current is not None:
            return current
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening.get_loop() is not loop:
            self._opening = loop.create_task(self._connect())
        return await asyncio.shield(self._opening)

    @property
    def current(self) -> Connection | None:
        """The connection of the running loop, if there is one yet."""
        loop = asyncio.get_running_loop()
        return self._open[-1] if self._open and self._open[-1].loop is loop else None

    async def _connect(self) -> Connection:
        await asyncio.to_thread(self.abandon)  # `map` makes a loop each time; in this thread one runs already
        servers = self._servers()
        client = RetryingClient(
            servers,
            self._body,
            self._reader,
            self._policy,
            api_key=self._api_key,
            request_timeout=self._request_timeout,
            proxy=self._proxy,
            answer_timeout=self._answer_timeout,
        )
        connection = Connection(open_session(self._api_key, self._proxy), servers, client)
        try:
            await servers.start(connection.session)
            assert servers.facts is not None
            self.admit(servers.facts)
        except BaseException:
            await connection.close()
            raise
        self._open.append(connection)
        return connection

    async def close(self) -> None:
        """Close the connection of the running loop; the next row makes a new one."""
        loop = asyncio.get_running_loop()
        while self._open and self._open[-1].loop is loop:
            connection = self._open.pop()
            self._earlier.append(connection.client)
            await connection.close()
        self._opening = None

    def abandon(self) -> None:
        """Close what is open, from outside its loop."""
        while self._open:
            self._open.pop().abandon()

    def describe(self, progress: Progress) -> None:
        """Fill in requests, retries, window, share of cached prompt tokens, and why nothing moves."""
        clients = [*self._earlier, *(connection.client for connection in self._open)]
        progress.requests = sum(client.requests for client in clients)
        progress.retries = sum(client.retries for client in clients)
        prompt = sum(client.prompt_tokens for client in clients)
        progress.cached_share = sum(client.cached_tokens for client in clients) / prompt if prompt else 0.0
        progress.paused = self.pause_text or (silence(self._open[-1].servers.all) if self._open else "")
        progress.wrong = dict(sum((client.wrong for client in clients), Counter()))
        progress.trimmed = sum(client.trimmed for client in clients)
        if self._open:
            servers = self._open[-1].servers
            progress.concurrency = servers.capacity
            progress.servers = [{"url": one.url, "up": one.up, "in_flight": one.outstanding} for one in servers.all]

    def _paused(self, text: str) -> None:
        self.pause_text = text
