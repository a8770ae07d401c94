"""The sources by name, and their registration with `datasets`.

A source of one's own is a module with `INFO` and one `SourceBuilder`, and one line: here, a call of `register`, or an
entry point of the package that holds it.
"""

import importlib
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Final

from eagle3_data.errors import SourceError
from eagle3_data.source_names import MODULES, tell_datasets
from eagle3_data.sources.base import SourceBuilder
from eagle3_data.sources.description import SourceInfo, nearest

ENTRY_POINTS: Final = "eagle3_data.sources"
_MODULES: Final[dict[str, ModuleType]] = {}
SOURCES: Final[dict[str, SourceInfo]] = {}


def register(module: ModuleType | str) -> SourceInfo:
    """Make a source known to `load_source`, to recipes and, where it allows, to `datasets.load_dataset`.

    Args:
        module: a module (or its name) with an `INFO` and exactly one subclass of SourceBuilder of its own.

    Raises:
        SourceError: the module has no such class, or the name is taken by another module.
    """
    if isinstance(module, str):
        module = importlib.import_module(module)
    info: SourceInfo = builder_of(module).INFO
    if _MODULES.get(info.name, module).__name__ != module.__name__:
        raise SourceError(f"{info.name}: this name belongs to {_MODULES[info.name].__name__}")
    _MODULES[info.name] = module
    SOURCES[info.name] = info
    tell_datasets(info.name, module.__name__)
    return info


def register_installed() -> list[SourceInfo]:
    """Make the sources of installed packages known: modules under the entry point group `eagle3_data.sources`.

    Raises:
        SourceError: such a module cannot be imported, or is not a source.
    """
    found = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            found.append(register(entry.value))
        except Exception as error:  # whatever another package's code raises when it is imported
            package = entry.dist.name if entry.dist else "a package"
            raise SourceError(f"{package}: its source {entry.value} cannot be used ({error})") from error
    return found


def builder_of(module: ModuleType) -> Any:
    """Return the builder class that a module defines."""
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, SourceBuilder) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise SourceError(f"{module.__name__}: expected one subclass of SourceBuilder, found {len(own)}")
    return own[0]


def builder(name: str) -> Any:
    """Return the builder class of a source.

    Raises:
        SourceError: no source has this name.
    """
    if name not in _MODULES:
        raise SourceError(f"no source {name!r}{nearest(name, _MODULES)}; there are {', '.join(_MODULES)}")
    return builder_of(_MODULES[name])


for _module in MODULES.values():
    register(_module)
