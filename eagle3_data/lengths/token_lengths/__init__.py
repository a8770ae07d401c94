"""The measurement `TokenLengths` for Hugging Face evaluate; this folder is what `evaluate.load` takes."""

from eagle3_data.lengths.token_lengths.token_lengths import TokenLengths

__all__ = ["TokenLengths"]
