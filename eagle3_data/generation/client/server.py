"""One server: the requests that it has, how many it may have at once, and what its answers and failures tell of it.

Goes in: refusals, answers, cut requests and the seconds. Comes out: a window that shrinks where a server is full and
opens again; whether something in between cuts silent requests; whether its answers are wrong one after another.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from eagle3_data.generation.client.facts import ServerFacts

_CALM_SECONDS: Final = 5.0  # how long a server that refused is not asked for more at once
_MANY: Final = 3  # one refusal to so many accepted requests means a full server; fewer happen to any
_HIGHEST_LIMIT: Final = 8192
_SHORTEST_CUT: Final = 5.0  # seconds; no balancer gives up sooner
_EQUAL: Final = 0.02  # cut times that differ by less than this share (or a second) are one timer's
_CUTS: Final = 3
_WRONG_IN_A_ROW: Final = 20
_SILENCE_SECONDS: Final = 60.0  # after which the progress line says that nothing comes


class CutTimes:
    """Recognises a timer between here and a server, which ends requests that are silent for some time."""

    def __init__(self) -> None:
        self._cuts: deque[tuple[float, float]] = deque(maxlen=16)  # when it was sent, and for how long it was out
        self.seconds = 0.0  # after which requests are cut; 0 while none is recognised
        self.told = False

    def cut(self, sent: float, seconds: float) -> bool:
        """Take in a request that ended without an answer; return whether that was the timer."""
        if seconds < _SHORTEST_CUT:
            return False
        self._cuts.append((sent, seconds))
        near = max(seconds * _EQUAL, _SHORTEST_CUT / 5)
        alike = [one for one in self._cuts if abs(one[1] - seconds) <= near]
        # Requests that were sent together and end together are one event, such as a restart.
        apart = max(begin for begin, _ in alike) - min(begin for begin, _ in alike) > near
        if len(alike) >= _CUTS and apart:
            self.seconds = sum(one[1] for one in alike) / len(alike)
        return bool(self.seconds) and abs(seconds - self.seconds) <= near

    def answered(self, seconds: float) -> None:
        """Take in an answer: one that took longer than the timer proves that there is none."""
        if self.seconds and seconds > self.seconds + max(self.seconds * _EQUAL, _SHORTEST_CUT / 5):
            self.seconds = 0.0
            self._cuts.clear()


class Server:
    """One server, with the requests it has and may have."""

    def __init__(self, url: str, weight: float, limit: float, auto: bool) -> None:
        self.url = url
        self.weight = weight
        self.limit = limit
        self.outstanding = 0
        self.up = False
        self.out_of_use = ""  # why it is not asked any more, "" when it is
        self.facts = ServerFacts(url)
        self.losses = 0
        self.answers = 0.0  # of late
        self.answered_at = -math.inf  # of the last answer, by time.monotonic
        self.compared_at = -math.inf  # when its model was last compared with that of the start
        self.tokens_per_second = math.inf  # of its slowest answer of late
        self.cuts = CutTimes()
        self.wrong: Counter[str] = Counter()  # wrong answers since the last right one, by kind
        self._busy_since = 0.0
        self._refusals = 0.0
        self._ceiling = float(_HIGHEST_LIMIT) if auto else limit
        self._refused_at = -_CALM_SECONDS

    @property
    def free(self) -> bool:
        """Whether it is up and has a place."""
        return self.up and self.outstanding < self.limit

    def sent(self) -> None:
        """Take note of a request that goes out."""
        if not self.outstanding:
            self._busy_since = time.monotonic()
        self.outstanding += 1

    def answered(self, tokens: int, seconds: float) -> None:
        """Take note of a right answer."""
        self.answers += 1
        self.answered_at = time.monotonic()
        self.wrong.clear()
        self.cuts.answered(seconds)
        if tokens >= 16:
            self.tokens_per_second = min(self.tokens_per_second * 1.02, tokens / max(seconds, 1e-3))

    def answered_wrong(self, kind: str) -> bool:
        """Take note of an answer that is no data; return whether there were too many one after another."""
        self.answered_at = time.monotonic()
        self.wrong[kind] += 1
        return self.wrong.total() >= _WRONG_IN_A_ROW

    @property
    def silent_seconds(self) -> float:
        """How long nothing came from it although it was asked; 0 where it owes nothing."""
        return time.monotonic() - max(self.answered_at, self._busy_since) if self.up and self.outstanding else 0.0

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


def silence(servers: Sequence[Server]) -> str:
    """Say which servers owe answers and gave none for a minute; "" if none does.

    It says since when and not for how long: a text that changes every second is a line every second in a log.
    """
    parts = [
        f"{server.url} since {time.strftime('%H:%M:%S', time.localtime(time.time() - seconds))} "
        f"({server.outstanding} requests are out)"
        for server in servers
        if (seconds := server.silent_seconds) >= _SILENCE_SECONDS
    ]
    return f"nothing came from {', '.join(parts)}" if parts else ""
