"""Generation: prompt ids to the target's servers, every reply into a journal, the journal into records.

What other packages use of it.
"""

from eagle3_data.generation.budget import ContextLimits, Extend
from eagle3_data.generation.client.retry_policy import RetryPolicy
from eagle3_data.generation.dialogues import SourceSettings
from eagle3_data.generation.generator import Generator
from eagle3_data.generation.journal.journal import Journal
from eagle3_data.generation.progress import Progress, SourceProgress
from eagle3_data.generation.prompts.rendered import RenderedPrompts
from eagle3_data.generation.prompts.table import PromptTable
from eagle3_data.generation.records.columns import DIALOGUE_FEATURES, STEP_FEATURES, records
from eagle3_data.generation.records.writer import SourceCounts, write_records
from eagle3_data.generation.runner import GenerationResult, GenerationRun, run_generation

__all__ = [
    "DIALOGUE_FEATURES",
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
    "SourceSettings",
    "records",
    "run_generation",
    "write_records",
]
