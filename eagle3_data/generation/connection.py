"""A Generator's way to its servers on one event loop, and the guard that stops a run in which most rows fail.

Goes in: a session, endpoints and an asker; outcomes of rows. Comes out: all of it closed together; TooManyFailures.
"""

import asyncio
from collections import deque
from typing import Final

import aiohttp

from eagle3_data.errors import TooManyFailures
from eagle3_data.generation.asking import Asker
from eagle3_data.generation.endpoints import Endpoints

_STORM_WINDOW: Final = 100
_STORM_AT_LEAST: Final = 20


class Storm:
    """Stops a run in which most rows fail. Rows that failed in an earlier run do not count."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._recent: deque[bool] = deque(maxlen=_STORM_WINDOW)

    def note(self, failed: bool, reason: str = "") -> None:
        """Take in one outcome.

        Raises:
            TooManyFailures: too large a share of the last hundred rows failed.
        """
        self._recent.append(failed)
        count = sum(self._recent) if failed else 0
        if len(self._recent) >= _STORM_AT_LEAST and count > self._share * len(self._recent):
            raise TooManyFailures(
                f"{count} of the last {len(self._recent)} rows failed, the last with {reason}; the run was stopped, "
                "finished rows are kept. Mend the cause and run the same command again"
            )


class Connection:
    """A session, its servers and who asks them, on one event loop."""

    def __init__(self, session: aiohttp.ClientSession, endpoints: Endpoints, asker: Asker) -> None:
        self.loop = asyncio.get_running_loop()
        self.session = session
        self.endpoints = endpoints
        self.asker = asker

    async def close(self) -> None:
        """End requests, background work and connections."""
        try:
            await self.asker.close()  # first: a request that ends may still make work for the others
        finally:
            try:
                await self.endpoints.close()
            finally:
                await self.session.close()

    def abandon(self) -> None:
        """Close from outside the loop, which is not running any more."""
        if not self.loop.is_closed() and not self.loop.is_running():
            self.loop.run_until_complete(self.close())
