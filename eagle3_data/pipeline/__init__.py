"""The stages of a run in their order, on a run folder; each can be run again and does only what is missing."""

from eagle3_data.pipeline.answering import extend, generate, load_target, merge
from eagle3_data.pipeline.describing import card, check, measure
from eagle3_data.pipeline.opening import Run, open_run
from eagle3_data.pipeline.outcome import Generated
from eagle3_data.pipeline.preparing import Prepared, prepare
from eagle3_data.pipeline.products import export, publish, vocabulary
from eagle3_data.pipeline.whole import Finished, run

__all__ = [
    "Finished",
    "Generated",
    "Prepared",
    "Run",
    "card",
    "check",
    "export",
    "extend",
    "generate",
    "load_target",
    "measure",
    "merge",
    "open_run",
    "prepare",
    "publish",
    "run",
    "vocabulary",
]
