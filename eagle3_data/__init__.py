"""Training data for EAGLE-3 drafters, written by the target model itself, token for token.

Importing this package makes its sources known to `datasets`, so that `load_dataset("B1_glaive", data_files=…)` works.
The other rooms are loaded when something of theirs is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from eagle3_data.sources import draw, load_source

if TYPE_CHECKING:
    from eagle3_data.generation import Generator, records
    from eagle3_data.lengths import LengthReport, compare_lengths, measure_lengths
    from eagle3_data.publishing import draft_vocabulary, export, history, load_version, publish, to_training
    from eagle3_data.target import Target, TokenProfile

_ROOM_OF = {
    "Generator": "generation",
    "records": "generation",
    "LengthReport": "lengths",
    "compare_lengths": "lengths",
    "measure_lengths": "lengths",
    "draft_vocabulary": "publishing",
    "export": "publishing",
    "history": "publishing",
    "load_version": "publishing",
    "publish": "publishing",
    "to_training": "publishing",
    "Target": "target",
    "TokenProfile": "target",
}

__all__ = [
    "Generator",
    "LengthReport",
    "Target",
    "TokenProfile",
    "compare_lengths",
    "draft_vocabulary",
    "draw",
    "export",
    "history",
    "load_source",
    "load_version",
    "measure_lengths",
    "publish",
    "records",
    "to_training",
]


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF:
        return getattr(importlib.import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
