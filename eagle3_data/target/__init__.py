"""The model that the drafter serves: its tokenizer and token profile, prompts in ids, outputs in parts."""

from eagle3_data.target.calls import ToolCall
from eagle3_data.target.messages import AssistantMessage, joins
from eagle3_data.target.profile import TokenProfile
from eagle3_data.target.segments import Segments
from eagle3_data.target.target import Target

__all__ = ["AssistantMessage", "Segments", "Target", "TokenProfile", "ToolCall", "joins"]
