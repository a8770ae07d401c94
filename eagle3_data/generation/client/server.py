"""One server: the requests that it has, and how many it may have at once.

Goes in: refusals, answers and the seconds. Comes out: a window that shrinks where a server is full and opens again.
"""

import math
import time
from typing import Final

from eagle3_data.generation.client.facts import ServerFacts

_CALM_SECONDS: Final = 5.0  # how long a server that refused is not asked for more at once
_MANY: Final = 3  # one refusal to so many accepted requests means a full server; fewer are its moods
_HIGHEST_LIMIT: Final = 8192


class Server:
    """One server, with the requests it has and may have."""

    def __init__(self, url: str, weight: float, limit: float, auto: bool) -> None:
        self.url = url
        self.weight = weight
        self.limit = limit
        self.outstanding = 0
        self.up = False
        self.facts = ServerFacts(url)
        self.losses = 0
        self.answers = 0.0  # of late
        self._refusals = 0.0
        self._ceiling = float(_HIGHEST_LIMIT) if auto else limit
        self._refused_at = -_CALM_SECONDS

    @property
    def free(self) -> bool:
        """Whether it is up and has a place."""
        return self.up and self.outstanding < self.limit

    def refused(self) -> None:
        """Take note of a 429 or 503: where they are many, what is in flight beside it is what the server takes."""
        self._refusals += 1
        if self._refusals * _MANY > self.answers + self.outstanding:
            self.limit = max(1.0, min(self.limit, float(self.outstanding)))
            self._refused_at = time.monotonic()

    def forget(self) -> None:
        """Let older answers and refusals count less; called once a second."""
        self.answers /= 2
        self._refusals /= 2

    def grow(self, ceiling: float = math.inf) -> None:
        """Allow half as many again, if all places are taken and nothing was refused for some seconds.

        By the clock and not by answers: where an answer takes an hour, a window that an outage shut would stay small.
        """
        if self.outstanding >= self.limit - 1 and time.monotonic() - self._refused_at >= _CALM_SECONDS:
            self.limit = max(self.limit, min(self._ceiling, ceiling, self.limit * 1.5 + 1))
