"""Exact coverage of intervals, for tests."""

import numpy as np
from scipy.special import bdtr

from eagle3_data.lengths.statistics.intervals import CONFIDENCE, wilson


def wilson_coverage(share: float, rows: int, confidence: float = CONFIDENCE) -> float:
    """Return how often Wilson's interval covers a true `share` in samples of `rows`, summed over all outcomes."""
    hits = np.arange(rows + 1)
    low, high = wilson(hits / rows, rows, confidence)
    inside = np.flatnonzero((low <= share) & (share <= high))
    if not len(inside):
        return 0.0
    below = bdtr(inside[0] - 1, rows, share) if inside[0] > 0 else 0.0
    return float(bdtr(inside[-1], rows, share) - below)
