"""Generation: prompt ids to the target's servers, every reply into a journal, the journal into records.

What the rest of the house asks of this room.
"""

from eagle3_data.generation.asking import RetryPolicy
from eagle3_data.generation.budget import ContextLimits
from eagle3_data.generation.extension import Extend
from eagle3_data.generation.journal import Journal
from eagle3_data.generation.pool import GenerationResult, GenerationRun, run_generation
from eagle3_data.generation.progress import Progress, SourceProgress
from eagle3_data.generation.prompt_table import PromptTable
from eagle3_data.generation.records import STEP_FEATURES, records
from eagle3_data.generation.rendered import RenderedPrompts
from eagle3_data.generation.step import Generator
from eagle3_data.generation.writing import SourceCounts, write_records

__all__ = [
    "STEP_FEATURES",
    "ContextLimits",
    "Extend",
    "GenerationResult",
    "GenerationRun",
    "Generator",
    "Journal",
    "Progress",
    "PromptTable",
    "RenderedPrompts",
    "RetryPolicy",
    "SourceCounts",
    "SourceProgress",
    "records",
    "run_generation",
    "write_records",
]
