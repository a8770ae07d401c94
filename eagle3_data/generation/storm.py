"""The guard that stops a run in which most rows fail: days of GPU time must not make failures.

Goes in: outcomes of rows, one by one. Comes out: TooManyFailures.
"""

from collections import deque
from typing import Final

from eagle3_data.errors import TooManyFailures

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
