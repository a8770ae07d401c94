"""The stages of a run in their order, on a run folder; each can be run again and does only what is missing."""

from eagle3_data.pipeline.card import card
from eagle3_data.pipeline.check import check
from eagle3_data.pipeline.diff import diff
from eagle3_data.pipeline.export import export
from eagle3_data.pipeline.generate import extend, generate
from eagle3_data.pipeline.generated import Generated
from eagle3_data.pipeline.lengths import measure
from eagle3_data.pipeline.opening import Run, load_target, open_run
from eagle3_data.pipeline.prepare import Prepared, prepare
from eagle3_data.pipeline.publish import publish
from eagle3_data.pipeline.restore import Restored, restore
from eagle3_data.pipeline.run import Finished, run
from eagle3_data.pipeline.vocab import vocabulary

__all__ = [
    "Finished",
    "Generated",
    "Prepared",
    "Restored",
    "Run",
    "card",
    "check",
    "diff",
    "export",
    "extend",
    "generate",
    "load_target",
    "measure",
    "open_run",
    "prepare",
    "publish",
    "restore",
    "run",
    "vocabulary",
]
