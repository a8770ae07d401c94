"""The truth about lengths: distributions with intervals, what the caps hid, and what to do about it."""

from eagle3_data.lengths.report import LengthReport, measure_lengths

__all__ = ["LengthReport", "measure_lengths"]
