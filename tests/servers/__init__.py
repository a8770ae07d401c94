"""Servers that tests start: they speak the protocols of the real ones, and misbehave on demand."""
