"""Repetition at the end of an answer: whether a row that a cap cut was stuck in a loop.

Goes in: the ids of an answer. Comes out: how many of its last tokens repeat what stands before them (the column
`loop_tokens`), and whether a loose repetition makes the row suspect. Only answers that were cut are asked: an answer
that ended by itself is no endless one, however often it repeats itself.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

MIN_TOKENS: Final = 128  # shorter repetition stands in real tables, code and lists
MIN_PERIODS: Final = 4
LONG_PERIOD: Final = 256  # a passage longer than this is not written twice by chance: two periods are enough
_VERIFIED: Final = 256  # candidates whose whole run is measured; a loop's own period is among the shortest

NEAR_WINDOW: Final = 1024
NEAR_PERIOD: Final = 512
NEAR_SHARE: Final = 0.8


def loop_tokens(output_ids: npt.NDArray[Any]) -> int:
    """Return the length in tokens of the tail of an answer that repeats, id by id, what stands before it.

    The tail counts when it is at least 128 tokens long and, with the passage that it repeats, makes at least four
    periods (two where the period is longer than 256 tokens).

    Args:
        output_ids: one-dimensional integers, of an answer that was cut.

    Returns:
        Tokens from the end whose every id equals the id one period earlier; 0 where that is no loop.
    """
    end = len(output_ids)
    if end < MIN_TOKENS + 1:
        return 0
    # Positions whose last 128 ids equal those of the answer's end, nearest first: their distances are the periods.
    found = np.flatnonzero(output_ids[MIN_TOKENS - 1 : end - 1] == output_ids[end - 1])[::-1] + (MIN_TOKENS - 1)
    for back in range(1, MIN_TOKENS):
        if not len(found):
            return 0
        found = found[output_ids[found - back] == output_ids[end - 1 - back]]
    longest = 0
    for period in (end - 1 - found[:_VERIFIED]).tolist():
        different = np.flatnonzero(output_ids[period:] != output_ids[:-period])
        repeated = end - period - (int(different[-1]) + 1 if len(different) else 0)
        periods = (repeated + period) / period
        if periods >= (2 if period > LONG_PERIOD else MIN_PERIODS):
            longest = max(longest, repeated)  # a run inside the passage, of zeros say, qualifies with less
    return longest


def near_loop_share(output_ids: npt.NDArray[Any]) -> float:
    """Return how much of an answer's last 1,024 ids stands, at one distance of at most 512, before them too.

    A share above `NEAR_SHARE` makes a row suspect and no more: tables with regular rows reach it as well.

    Returns:
        The largest share over the distances, 0.0 to 1.0; 0.0 for an answer shorter than window and distance.
    """
    if len(output_ids) < NEAR_WINDOW + NEAR_PERIOD:
        return 0.0
    tail = output_ids[-NEAR_WINDOW:]
    before = np.lib.stride_tricks.sliding_window_view(output_ids[-NEAR_WINDOW - NEAR_PERIOD : -1], NEAR_WINDOW)
    return float((before == tail).sum(axis=1).max()) / NEAR_WINDOW
