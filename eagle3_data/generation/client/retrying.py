"""Asking for one answer until it comes or is refused: which errors are tried again, how long to wait, when to stop.

Goes in: prompt ids and a budget. Comes out: a checked `Answer`, or a `RowError` with the evidence. A lost server costs
a row nothing; a busy one costs patience; a reply that is wrong for good makes a failed row.
"""

import asyncio
import email.utils
import random
import time
from dataclasses import dataclass
from typing import Final

from eagle3_data.errors import EngineError
from eagle3_data.generation.client.http import HttpClient
from eagle3_data.generation.client.protocol import Answer, AnswerError, AnswerReader, RequestBody, error_text
from eagle3_data.generation.client.server import Server
from eagle3_data.generation.client.servers import Servers
from eagle3_data.generation.journal.entry import Ids

_BUSY: Final = frozenset({429, 503})
_TRANSIENT: Final = frozenset({408, 425, 500, 502, 504})
_ELSEWHERE: Final = "the server sends requests elsewhere; give engine.urls the address it leads to"
# What every other row would be told too.
_MISDIRECTED: Final = {
    **dict.fromkeys((401, 403), "the server refuses the key; set engine.api_key_env"),
    **dict.fromkeys((301, 302, 303, 307, 308), _ELSEWHERE),
}


class RowError(Exception):
    """A row that failed for good (for this run).

    Args:
        reason: short machine-readable kind.
        message: the evidence.
        http_status: of the last reply, 0 if none came.
        attempts: how often it was asked.
    """

    def __init__(self, reason: str, message: str, http_status: int, attempts: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.http_status = http_status
        self.attempts = attempts


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How stubborn to be; times in seconds."""

    attempts: int = 6
    first_wait: float = 0.5
    longest_wait: float = 60.0
    busy_patience: float = 3600.0  # how long one row may be told 429 or 503 in a row
    losses: int = 20  # servers lost under one row before the row is suspected of killing them

    def wait(self, tries: int) -> float:
        """Return the jittered wait before the next try."""
        return float(min(self.longest_wait, self.first_wait * 2.0 ** min(tries, 16)) * random.uniform(0.5, 1.0))


class RetryingClient:
    """Asks servers on one event loop.

    Args:
        servers: who may be asked.
        body: builds the requests.
        reader: checks the answers.
        policy: how stubborn to be.
        api_key: sent as a bearer token.
        request_timeout: seconds without a byte after which one request is given up and tried again.

    Raises:
        UsageError: a URL or the key cannot be used.
    """

    def __init__(
        self,
        servers: Servers,
        body: RequestBody,
        reader: AnswerReader,
        policy: RetryPolicy,
        *,
        api_key: str | None = None,
        request_timeout: float = 7200.0,
    ) -> None:
        self.servers = servers
        self._http = {server.url: HttpClient(server.url, api_key, request_timeout) for server in servers.all}
        self.sleeping = 0
        self.retries = 0
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._api_key = api_key
        self._body = body
        self._reader = reader
        self._policy = policy

    async def ask(self, ids: Ids, budget: int, home: Server | None = None) -> tuple[Answer, Server]:
        """Return the answer and who gave it.

        Args:
            ids: the prompt, int32, shape (tokens,), every id inside the vocabulary.
            budget: max_new_tokens, at least 1.
            home: the server that holds this dialogue's prefix.

        Raises:
            RowError: refused, wrong, or tried too often.
            EngineError: the run must stop.
        """
        data = self._body.build(ids, budget)
        attempts = losses = refusals = 0
        refused_since = 0.0
        while True:
            server = await self.servers.acquire(home)
            self.requests += 1
            status, body, failure, wait = 0, b"", "", -1.0
            try:
                status, retry_after, body = await self._http[server.url].post(data)
            except TimeoutError as error:
                failure = f"timeout: {error}"
            except OSError as error:
                failure = f"connection: {error or type(error).__name__}"
            else:
                if retry_after and (status in _BUSY or status in _TRANSIENT):
                    wait = _retry_after(retry_after)
            finally:
                self.servers.release(server)
            if status == 200:
                try:
                    answer = self._reader.read(body, ids, budget)
                except AnswerError as error:
                    if error.reason == "weights":
                        stop = EngineError(f"{server.url}: {self._safe(error.message)}; finished rows are kept")
                        self.servers.stop(stop)
                        raise stop from None
                    if not error.transient:
                        raise RowError(error.reason, self._safe(error.message), 200, attempts + 1) from None
                    failure = f"{error.reason}: {error.message}"
                else:
                    server.answers += 1
                    self.servers.check_weights(server, answer.weight_version)
                    self.prompt_tokens += len(ids)
                    self.cached_tokens += answer.cached_tokens
                    return answer, server
            elif status in _MISDIRECTED:
                stop = EngineError(f"{server.url}: {_MISDIRECTED[status]} ({status}); finished rows are kept")
                self.servers.stop(stop)
                raise stop
            elif status in _BUSY:
                server.refused()
                refusals += 1
                now = time.monotonic()
                refused_since = refused_since or now
                if status == 503 and await self.servers.lost(server):
                    continue
                if now - refused_since < self._policy.busy_patience:
                    await self._sleep(self._policy.wait(refusals) if wait < 0 else wait)
                    continue
                failure = f"http_{status}: {error_text(body)}"
            elif status in _TRANSIENT:
                failure = f"http_{status}: {error_text(body)}"
            elif status:
                raise RowError(f"http_{status}", self._safe(error_text(body)), status, attempts + 1)
            else:
                home = None
                if await self.servers.lost(server):
                    losses += 1
                    if losses < self._policy.losses:
                        continue
                    failure = f"server_lost: {losses} servers were lost while they worked on this row; {failure}"
                    attempts = self._policy.attempts
            refused_since = 0.0
            attempts += 1
            if attempts >= self._policy.attempts:
                reason, _, message = failure.partition(": ")
                raise RowError(reason, self._safe(message), status, attempts)
            await self._sleep(self._policy.wait(attempts) if wait < 0 else wait)

    def _safe(self, text: str) -> str:
        """Return what a server said without the key: some send back the headers of a request that they refuse."""
        return text.replace(self._api_key, "(the key)") if self._api_key else text

    async def close(self) -> None:
        """End all connections. Who still asks, or waits for a place, gets an EngineError."""
        self.servers.stop(EngineError("the connections to the servers were closed"))
        for client in self._http.values():
            await client.close()

    async def _sleep(self, seconds: float) -> None:
        self.retries += 1
        self.sleeping += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.sleeping -= 1


def _retry_after(value: str) -> float:
    """Return the seconds a Retry-After header asks for (a number or a date), at most an hour; -1 if it is neither."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return -1.0
    # A little more than asked: rows that were refused together must not come back together.
    return min(3600.0, max(0.0, seconds)) + random.uniform(0.0, 0.5)
