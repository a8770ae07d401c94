"""How many requests may be out: what the servers take, and what this machine has open files for.

Goes in: servers, asked once a second how busy they are. Comes out: their windows, grown and shrunk.
"""

import asyncio
import logging
import math
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from eagle3_data.generation.client.facts import fetch_load
from eagle3_data.generation.client.server import Server

logger = logging.getLogger(__name__)

FIRST_LIMIT: Final = 64  # where a server that reports its load starts to be explored
BLIND_LIMIT: Final = 256  # for one that reports neither load nor slots
_TICK_SECONDS: Final = 1.0
_SPARE: Final = 10  # one request in so many may wait at a server, so that a free place is filled at once
_RESERVED_FILES: Final = 64  # for the journal, the record files and the questions to servers


async def tune(
    servers: Sequence[Server], session: aiohttp.ClientSession, auto: bool, on_tick: Callable[[], None]
) -> None:
    """Follow each server's running and waiting counts for good: grow while nothing waits, shrink to what it runs.

    Args:
        servers: whose windows to set.
        session: to ask them with.
        auto: False for numbers that were given, which are only returned to.
        on_tick: called once a second.
    """
    while True:
        for server in servers:
            server.forget()
            if not server.up:
                continue
            if not auto:
                server.grow()
                continue
            load = await fetch_load(session, server.url)
            slots = (load.slots if load else 0) or server.facts.slots
            if load is None:
                ceiling = float(slots + max(2, slots // _SPARE)) if slots else float(BLIND_LIMIT)
                server.grow(ceiling)
                continue
            # A few waiting requests mean that a place that falls free is filled within the same step.
            spare = max(2, load.running // _SPARE)
            if load.waiting > 2 * spare:
                server.limit = max(1.0, float(load.running + spare))
            elif load.waiting < spare:
                # What waits may only wait for its prefill: then a little more shows whether there is room.
                room = spare - load.waiting if load.waiting else math.inf
                server.grow(min(slots + max(2, slots // _SPARE) if slots else math.inf, server.limit + room))
        on_tick()
        await asyncio.sleep(_TICK_SECONDS)


class OpenFiles:
    """The requests that this process has open files for. Raises the soft limit to the hard one."""

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                soft = hard
            except (ValueError, OSError):  # macOS: no more than its own maximum, whatever the hard limit says
                pass
        self.limit = math.inf if soft == resource.RLIM_INFINITY else float(soft)
        self.requests = max(1.0, self.limit - _open_now() - _RESERVED_FILES)
        self._told = False

    def exhausted(self, in_flight: int) -> None:
        """Take note that no file could be opened while so many requests were out."""
        self.requests = max(1.0, min(self.requests, float(in_flight - 1)))
        self.tell(in_flight)

    def tell(self, wanted: float) -> None:
        """Say once that fewer requests are sent than the servers would take."""
        if not self._told and wanted > self.requests:
            self._told = True
            logger.warning(
                "this process may open %.0f files (ulimit -n), which is enough for %.0f requests at once, where %.0f "
                "are wanted; raise the limit (ulimit -Hn, or LimitNOFILE of a service) to keep the servers busy",
                self.limit,
                self.requests,
                wanted,
            )


def _open_now() -> int:
    folder = Path("/dev/fd")
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
