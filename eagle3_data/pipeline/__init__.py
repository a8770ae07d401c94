"""The stages of a run in their order, on a run folder; each can be run again and does only what is missing."""

from eagle3_data.pipeline.opening import Run, open_run
from eagle3_data.pipeline.preparing import Prepared, prepare

__all__ = ["Prepared", "Run", "open_run", "prepare"]
