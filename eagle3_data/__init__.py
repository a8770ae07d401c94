"""Training data for EAGLE-3 drafters, written by the target model itself, token for token.

Importing this package makes its sources known to `datasets`, so that `load_dataset("B1_glaive", data_files=…)` works,
whichever of the two is imported first. All else is loaded when it is first used: `eagle3-data --help` waits for none.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if sys.platform not in ("linux", "darwin"):
    raise ImportError(f"eagle3_data runs on Linux and macOS; this is {sys.platform} (on Windows, use WSL)")

if TYPE_CHECKING:
    from eagle3_data.generation import Generator, records
    from eagle3_data.lengths import LengthReport, compare_lengths, measure_lengths
    from eagle3_data.publishing import draft_vocabulary, export, history, load_version, publish, to_training
    from eagle3_data.sources import draw, load_source
    from eagle3_data.target import Target, TokenProfile

_PACKAGE_OF = {
    "draw": "sources",
    "load_source": "sources",
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
    if name in _PACKAGE_OF:
        return getattr(importlib.import_module(f"{__name__}.{_PACKAGE_OF[name]}"), name)
    if name == "sources":  # eagle3_data.sources.register("my_module") needs no import of its own
        return importlib.import_module(f"{__name__}.sources")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _tell_datasets() -> None:
    from eagle3_data.source_names import MODULES, tell_datasets

    for name, module in MODULES.items():
        tell_datasets(name, module)


class _SourcesAfterDatasets(MetaPathFinder):
    """Registers the sources as soon as `datasets` is imported, which takes most of a second, and not before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "datasets":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _tell_datasets()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


if "datasets" in sys.modules:
    _tell_datasets()
else:
    sys.meta_path.insert(0, _SourcesAfterDatasets())
