"""How stubborn to be with a row, and how asking for it can end without an answer.

Goes in: tries, and what a server says of waiting. Comes out: seconds to wait; the exceptions of a row.
"""

import email.utils
import random
import time
from dataclasses import dataclass


class ContextLearnt(Exception):
    """The servers hold less than was thought: work out the budget again."""


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


def retry_after(value: str) -> float:
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
