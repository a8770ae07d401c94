"""Places for requests: which server takes the next one, and who waits where none is free.

Goes in: servers and how many requests each may have. Comes out: a server with a place taken, until it is given back.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from eagle3_data.generation.client.server import Server
from eagle3_data.generation.client.window import OpenFiles


class Places:
    """Gives out the places of some servers. Belongs to one event loop."""

    def __init__(self, servers: Iterable[Server]) -> None:
        self.all = list(servers)
        self.files = OpenFiles()
        self.fatal: Exception | None = None
        self.working: set[asyncio.Task[Any] | None] = set()  # who holds a place
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._draining = False

    def drain(self) -> None:
        """Give out no more places: a task that asks for one from now on is cancelled."""
        self._draining = True

    def stop(self, error: Exception) -> None:
        """End the run: everyone who waits or asks from now on gets `error`."""
        self.fatal = self.fatal or error
        self.wake_all()

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

    def wake_all(self) -> None:
        """Let everyone who waits look again."""
        self._wake(len(self._waiting))
