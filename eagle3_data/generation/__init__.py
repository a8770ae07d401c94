"""Generation: prompt ids to the target's servers, every reply into a journal, the journal into records.

What the rest of the house asks of this room; its parts are loaded when they are first used.
"""

from eagle3_data.generation.asking import RetryPolicy
from eagle3_data.generation.budget import ContextLimits
from eagle3_data.generation.extension import Extend
from eagle3_data.generation.journal import Journal
from eagle3_data.generation.records import STEP_FEATURES, records
from eagle3_data.generation.step import Generator

__all__ = ["STEP_FEATURES", "ContextLimits", "Extend", "Generator", "Journal", "RetryPolicy", "records"]
