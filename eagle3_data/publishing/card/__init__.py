"""The dataset card: its facts, its text, merging with an earlier card, checks and changes."""
