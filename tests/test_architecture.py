"""The layers keep their order: imports point to earlier layers, in no circle; the public API is what it says."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import eagle3_data

PACKAGE = Path(eagle3_data.__file__).parent
LAYERS = ["sources", "target", "engine", "generation", "check", "lengths", "publishing"]
FOUNDATIONS = {
    "schema",
    "errors",
    "outcome",
    "manifest",
    "run_folder",
    "run_names",
    "loops",
    "foreign_text",
    "validation",
    "sampling",
    "source_names",
}
ENTRY_POINTS = {"recipe", "pipeline", "arguments", "cli", "progress", "__main__"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def _imported(path: Path) -> set[str]:
    """Names of the eagle3_data modules that a file imports, anywhere in it, as dotted paths below the package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a module stands"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("eagle3_data.") for name in found if name.startswith("eagle3_data.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_to_earlier_layers(path: Path) -> None:
    here = path.relative_to(PACKAGE).with_suffix("").parts[0]
    imported = {name.split(".")[0] for name in _imported(path)}
    if here in FOUNDATIONS:
        assert imported <= FOUNDATIONS, f"a foundation imports {imported - FOUNDATIONS}"
    elif here in LAYERS:
        allowed = FOUNDATIONS | set(LAYERS[: LAYERS.index(here) + 1]) | {"__version__"}
        assert imported <= allowed, f"{here} imports {imported - allowed}"
    else:
        assert here in ENTRY_POINTS | {"__init__"}, f"{here} belongs to no layer"


def _module(name: str) -> str | None:
    """Return the module that a dotted name below the package stands in: itself, its parent, or a package's file."""
    for candidate in (name, name.rpartition(".")[0]):
        path = PACKAGE.joinpath(*candidate.split(".")) if candidate else PACKAGE
        if path.with_suffix(".py").is_file() and candidate:
            return candidate
        if (path / "__init__.py").is_file() and candidate:
            return f"{candidate}.__init__"
    return None


def test_no_module_imports_itself_through_others() -> None:
    """Lazy imports count: a circle that is cut inside a function is a circle."""
    graph = {}
    for path in MODULES:
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        graph[name] = {found for imported in _imported(path) if (found := _module(imported)) and found != name}
    order = TopologicalSorter(graph)
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail("import circle: " + " -> ".join(reversed(error.args[1])))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_says_what_it_is_for(path: Path) -> None:
    if path.name != "__init__.py" or path.read_text().strip():
        assert ast.get_docstring(ast.parse(path.read_text())), "a module opens with what it is for"


def test_the_public_api_is_there() -> None:
    assert sorted(eagle3_data.__all__) == eagle3_data.__all__
    for name in eagle3_data.__all__:
        assert getattr(eagle3_data, name) is not None
