"""The truth about lengths: distributions with intervals, what the caps hid, and what to do about it."""

from eagle3_data.lengths.advice import Advice, CapChoice, advise, choose_cap
from eagle3_data.lengths.comparison import Comparison, compare_lengths
from eagle3_data.lengths.distribution import LengthCounts
from eagle3_data.lengths.intervals import Interval, rows_for_cap, rows_for_quantile, rows_for_share, share_interval
from eagle3_data.lengths.report import LengthReport, measure_lengths

__all__ = [
    "Advice",
    "CapChoice",
    "Comparison",
    "Interval",
    "LengthCounts",
    "LengthReport",
    "advise",
    "choose_cap",
    "compare_lengths",
    "measure_lengths",
    "rows_for_cap",
    "rows_for_quantile",
    "rows_for_share",
    "share_interval",
]
