"""Whether a run goes on although rows fail: most of them failing means one cause, not many bad rows.

Goes in: the outcome of each row. Comes out: nothing, or `TooManyFailures`.
"""

from collections import deque
from typing import Final

from eagle3_data.errors import TooManyFailures

_GUARD_WINDOW: Final = 100
_GUARD_AT_LEAST: Final = 20


class FailureGuard:
    """Stops a run in which most rows fail. Rows that failed in an earlier run do not count."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._recent: deque[bool] = deque(maxlen=_GUARD_WINDOW)

    def note(self, failed: bool, reason: str = "") -> None:
        """Take in one outcome.

        Raises:
            TooManyFailures: too large a share of the last hundred rows failed.
        """
        self._recent.append(failed)
        count = sum(self._recent) if failed else 0
        if len(self._recent) >= _GUARD_AT_LEAST and count > self._share * len(self._recent):
            raise TooManyFailures(
                f"{count} of the last {len(self._recent)} rows failed, the last with {reason}; the run was stopped, "
                "finished rows are kept. Fix the cause and run the same command again"
            )
