"""The model that the drafter serves: its tokenizer and token profile, prompts in ids, outputs in parts."""

from eagle3_data.target.profile import TokenProfile
from eagle3_data.target.segments import Segments, ToolCall
from eagle3_data.target.target import Target

__all__ = ["Segments", "Target", "TokenProfile", "ToolCall"]
