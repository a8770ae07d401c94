"""Asking for one answer until it comes or is refused: which errors are tried again, how long to wait, when to stop.

Goes in: prompt ids and a budget. Comes out: a checked `Answer`, or a `RowError` with the evidence. A lost server costs
a row nothing; a busy one costs patience; a wrong answer is asked for once more elsewhere; a reply that is wrong for
good makes a failed row. Where something in between cuts silent requests, an answer is fetched in pieces.
"""

import asyncio
import errno
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from eagle3_data.errors import EngineError
from eagle3_data.foreign_text import foreign_text
from eagle3_data.generation.client.facts import is_proxys
from eagle3_data.generation.client.http import HttpClient, Reply, TooLarge
from eagle3_data.generation.client.protocol import (
    Answer,
    AnswerError,
    AnswerReader,
    RequestBody,
    body_limit,
    error_text,
    stated_context,
)
from eagle3_data.generation.client.retry_policy import ContextLearnt, RetryPolicy, RowError, retry_after
from eagle3_data.generation.client.server import Server
from eagle3_data.generation.client.servers import Servers
from eagle3_data.generation.journal.entry import Ids

logger = logging.getLogger(__name__)

_BUSY: Final = frozenset({429, 503})
_TRANSIENT: Final = frozenset({408, 425, 500, 502, 504})
_GATEWAYS: Final = frozenset({403, 408, 502, 504})  # what a balancer says where it gives up waiting for an answer
_ELSEWHERE: Final = "the server sends requests elsewhere; give engine.urls the address it leads to"
# What every other row would be told too.
_MISDIRECTED: Final = {
    **dict.fromkeys((401, 403), "the server refuses the key; set engine.api_key_env"),
    **dict.fromkeys((301, 302, 303, 307, 308), _ELSEWHERE),
}
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
_SLOWEST_TRANSFER: Final = 10_000.0  # bytes a second; a body that comes more slowly is held up on purpose
_SHORTEST_PIECE: Final = 8  # tokens: a longer prompt than the context less 7 is refused, however little is asked for


@dataclass(slots=True)
class _Tries:
    """What one piece of an answer has been through."""

    home: Server | None
    body: RequestBody
    attempts: int = 0
    losses: int = 0
    refusals: int = 0
    refused_since: float = 0.0
    avoid: Server | None = None  # who gave a wrong answer


class _CutByTimer(Exception):
    """Ask for a shorter piece."""


class RetryingClient:
    """Asks servers on one event loop.

    Args:
        servers: who may be asked.
        body: builds the requests.
        reader: checks the answers.
        policy: how stubborn to be.
        api_key: sent as a bearer token.
        request_timeout: seconds without a byte after which one request is given up and tried again.
        proxy: URL of an HTTP proxy.
        answer_timeout: seconds for one whole request; by default the above and a slow transfer of its answer.

    Raises:
        UsageError: a URL, the key or the proxy cannot be used.
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
        proxy: str | None = None,
        answer_timeout: float | None = None,
    ) -> None:
        self.servers = servers
        self._http = {server.url: HttpClient(server.url, api_key, request_timeout, proxy) for server in servers.all}
        self.sleeping = 0
        self.retries = 0
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.wrong: Counter[str] = Counter()  # answers that were no data, by kind
        self.trimmed = 0  # answers that ran over their end token
        self.cut_rows = 0  # rows that failed because requests were cut by a timer in between
        self._body = body
        self._reader = reader
        self._policy = policy
        self._request_timeout = request_timeout
        self._answer_timeout = answer_timeout

    async def ask(
        self, ids: Ids, budget: int, home: Server | None = None, request: RequestBody | None = None
    ) -> tuple[Answer, Server]:
        """Return the answer and who gave it.

        Args:
            ids: the prompt, int32, shape (tokens,), every id inside the vocabulary.
            budget: max_new_tokens, at least 1.
            home: the server that holds this dialogue's prefix.
            request: builds the request, where the source has sampling of its own.

        Raises:
            RowError: refused, wrong, or tried too often.
            ContextLearnt: the budget is more than the servers hold.
            EngineError: the run must stop.
        """
        whole: Answer | None = None
        body = request or self._body
        tries = _Tries(home, body)
        left = budget
        while True:
            piece = self.servers.pieces.round_tokens if body.continues else None
            size = left if piece is None or left < piece + _SHORTEST_PIECE else piece
            asked = ids if whole is None else np.concatenate([ids, whole.output_ids])
            try:
                answer, server = await self._ask(asked, size, tries)
            except _CutByTimer:
                continue
            whole = whole.before(answer) if whole is not None else answer
            left -= size
            if answer.stopped or left < 1:
                self.prompt_tokens += len(ids)
                self.cached_tokens += whole.cached_tokens
                self.trimmed += answer.trimmed > 0
                return whole, server
            tries = _Tries(server, body)

    async def _ask(self, ids: Ids, budget: int, tries: _Tries) -> tuple[Answer, Server]:
        """Ask for one piece, as `ask`."""
        data, limit = tries.body.build(ids, budget), body_limit(budget)
        seconds = self._answer_timeout or self._request_timeout + limit / _SLOWEST_TRANSFER
        while True:
            server = await self.servers.acquire(tries.home, tries.avoid)
            try:
                if self.servers.limits is not None and not self.servers.limits.holds(len(ids), budget):
                    raise ContextLearnt
                self.requests += 1
                sent = time.monotonic()
                reply: Reply | OSError = await self._http[server.url].post(data, limit, seconds)
            except OSError as error:
                reply = error
            finally:
                self.servers.release(server)
            took = time.monotonic() - sent
            failure: str | None = None
            if isinstance(reply, Reply) and reply.status == 200:
                answer = self._read(server, reply.body, ids, budget, tries)
                if isinstance(answer, Answer):
                    server.answered(len(answer.output_ids), took)
                    self.servers.check_weights(server, answer.weight_version)
                    return answer, server
                failure = answer
            elif isinstance(reply, TooLarge):
                self._wrong(server, "body_size", foreign_text(reply), tries)
            elif isinstance(reply, OSError):
                if reply.errno in _NO_FILES:  # the fault of this machine
                    self.servers.files.exhausted(self.servers.outstanding + 1)
                    await self._sleep(self._policy.wait(1))
                    continue
                failure = await self._unanswered(server, reply, tries)
            else:
                failure = await self._refused(server, reply, len(ids) + budget, tries)
            if failure is None:
                continue
            status = reply.status if isinstance(reply, Reply) else 0
            if (status in _GATEWAYS or isinstance(reply, ConnectionError)) and server.cuts.cut(sent, took):
                self._cut(server, budget, tries, failure, status)
            tries.refused_since = 0.0
            tries.attempts += 1
            if tries.attempts >= self._policy.attempts:
                raise _failed(failure, status, tries)
            asked_wait = retry_after(reply.retry_after) if isinstance(reply, Reply) and reply.retry_after else -1.0
            await self._sleep(self._policy.wait(tries.attempts) if asked_wait < 0 else asked_wait)

    def _read(self, server: Server, body: bytes, ids: Ids, budget: int, tries: _Tries) -> Answer | str | None:
        """Return the answer in a 200 reply, or what to try it again for; None to ask for it elsewhere.

        Raises:
            RowError, EngineError: as `ask`.
        """
        try:
            return self._reader.read(body, ids, budget)
        except AnswerError as error:
            if error.reason == "weights":
                stop = EngineError(f"{server.url}: {error.message}; finished rows are kept")
                self.servers.stop(stop)
                raise stop from None
            if error.transient:
                return f"{error.reason}: {error.message}"
            self._wrong(server, error.reason, error.message, tries)
            return None

    def _wrong(self, server: Server, kind: str, message: str, tries: _Tries) -> None:
        """Count an answer that is no data; it is asked for once more where there is another server.

        Raises:
            RowError: there is none, or the other one's is wrong too.
        """
        self.wrong[kind] += 1
        if server.answered_wrong(kind):
            self.servers.take_out(server, f"{kind}: {message}")
        again = tries.avoid is None and self.servers.others(server)
        if not again:
            raise RowError(kind, message, 200, tries.attempts + 1)
        tries.attempts += 1
        tries.home, tries.avoid = None, server

    async def _unanswered(self, server: Server, error: OSError, tries: _Tries) -> str | None:
        """Return what happened to a request that no reply came to; None where it costs the row nothing."""
        kind = "timeout" if isinstance(error, TimeoutError) else "connection"
        failure = f"{kind}: {foreign_text(error) or type(error).__name__}"
        tries.home = None
        if await self.servers.lost(server):
            tries.losses += 1
            if tries.losses < self._policy.losses:
                return None
            tries.attempts = self._policy.attempts
            return f"server_lost: {tries.losses} servers were lost while they worked on this row; {failure}"
        return failure

    async def _refused(self, server: Server, reply: Reply, tokens: int, tries: _Tries) -> str | None:
        """Return what a reply that is no answer says; None where it costs the row nothing.

        Raises:
            RowError: the row is refused for good.
            ContextLearnt, EngineError: as `ask`.
        """
        status, said = reply.status, error_text(reply.body)
        failure = f"http_{status}: {said}"
        # A gateway refuses what is slow to begin; a key that was good for other rows is good for this one.
        passing = status == 403 and (server.answered_at > 0 or is_proxys(reply.body))
        if status in _MISDIRECTED and not passing:
            why = f" ({status}: {said})" if status in (401, 403) else f" ({status})"
            stop = EngineError(f"{server.url}: {_MISDIRECTED[status]}{why}; finished rows are kept")
            self.servers.stop(stop)
            raise stop
        if status in _BUSY:
            server.refused()
            tries.refusals += 1
            now = time.monotonic()
            tries.refused_since = tries.refused_since or now
            if status == 503 and await self.servers.lost(server, "busy"):
                return None
            if now - tries.refused_since < self._policy.busy_patience:
                wait = retry_after(reply.retry_after) if reply.retry_after else -1.0
                await self._sleep(self._policy.wait(tries.refusals) if wait < 0 else wait)
                return None
            return failure
        if status in (502, 504) and await self.servers.lost(server, "gateway"):
            return None
        if passing or status in _TRANSIENT:
            return failure
        context = stated_context(said) if status == 400 else None
        if context is not None:
            self.servers.learn_context(server, tokens, said, context)
            raise ContextLearnt
        raise RowError(failure.partition(":")[0], said, status, tries.attempts + 1)

    def _cut(self, server: Server, asked: int, tries: _Tries, failure: str, status: int) -> None:
        """Deal with a request that a timer in between ended: every repetition would cost a whole answer.

        Raises:
            _CutByTimer: it can be asked for in a shorter piece.
            RowError: it cannot.
        """
        self.servers.pieces.cut_by_timer(server, asked if tries.body.continues else 0)
        piece = self.servers.pieces.round_tokens
        if tries.body.continues and piece is not None and piece + _SHORTEST_PIECE <= asked:
            raise _CutByTimer
        self.cut_rows += 1
        reason, _, message = failure.partition(": ")
        message = f"cut after {server.cuts.seconds:.0f} s by something in between ({reason}: {message})"
        raise RowError("idle_timeout", message, status, tries.attempts + 1)

    async def close(self) -> None:
        """End all connections. Who still asks, or waits for a place, gets an EngineError."""
        if self.cut_rows:
            logger.warning(
                "%d rows have no answer because requests were cut by a timer in between; these are the long ones, so "
                "what is there leans to short answers until they are asked again",
                self.cut_rows,
            )
            self.cut_rows = 0
        self.servers.stop(EngineError("the connections to the servers were closed"))
        for http in self._http.values():
            await http.close()

    async def _sleep(self, seconds: float) -> None:
        self.retries += 1
        self.sleeping += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.sleeping -= 1


def _failed(failure: str, status: int, tries: _Tries) -> RowError:
    reason, _, message = failure.partition(": ")
    return RowError(reason, message, status, tries.attempts)
