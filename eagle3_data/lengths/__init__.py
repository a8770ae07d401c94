"""The truth about lengths: distributions with intervals, what the caps hid, and what to do about it."""

from pathlib import Path
from typing import Final

from eagle3_data.lengths.advice import Advice, CapChoice, advise, choose_cap, expected_tokens
from eagle3_data.lengths.prompts import PromptReport, count_characters, prompt_report
from eagle3_data.lengths.report import LengthReport, measure_lengths
from eagle3_data.lengths.statistics.comparison import Comparison, compare_lengths
from eagle3_data.lengths.statistics.distribution import LengthCounts
from eagle3_data.lengths.statistics.intervals import (
    Interval,
    rows_for_cap,
    rows_for_quantile,
    rows_for_share,
    share_interval,
)
from eagle3_data.lengths.statistics.precision import Worth, worth_of_rows

# What `evaluate.load(str(TOKEN_LENGTHS), module_type="measurement")` takes.
TOKEN_LENGTHS: Final = Path(__file__).with_name("token_lengths")

__all__ = [
    "TOKEN_LENGTHS",
    "Advice",
    "CapChoice",
    "Comparison",
    "Interval",
    "LengthCounts",
    "LengthReport",
    "PromptReport",
    "Worth",
    "advise",
    "choose_cap",
    "compare_lengths",
    "count_characters",
    "expected_tokens",
    "measure_lengths",
    "prompt_report",
    "rows_for_cap",
    "rows_for_quantile",
    "rows_for_share",
    "share_interval",
    "worth_of_rows",
]
