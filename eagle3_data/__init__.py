"""Training data for EAGLE-3 drafters, written by the target model itself, token for token."""

__version__ = "0.1.0"
__all__ = ["__version__"]
