"""The house keeps its shape: imports point left, nothing imports the door, the public API is what it says."""

import ast
from pathlib import Path

import pytest

import eagle3_data

PACKAGE = Path(eagle3_data.__file__).parent
ROOMS = ["sources", "target", "generation", "lengths", "publishing"]
HALL = {"schema", "errors", "run_folder"}
DOOR = {"recipe", "planning", "pipeline", "cli", "progress"}
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
def test_imports_point_left(path: Path) -> None:
    here = path.relative_to(PACKAGE).with_suffix("").parts[0]
    imported = {name.split(".")[0] for name in _imported(path)}
    if here in HALL:
        assert imported <= HALL, f"the hall imports {imported - HALL}"
    elif here in ROOMS:
        allowed = HALL | set(ROOMS[: ROOMS.index(here) + 1]) | {"__version__"}
        assert imported <= allowed, f"{here} imports {imported - allowed}"
    else:
        assert here in DOOR | {"__init__"}, f"{here} belongs to no room"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_says_what_it_is_for(path: Path) -> None:
    if path.name != "__init__.py" or path.read_text().strip():
        assert ast.get_docstring(ast.parse(path.read_text())), "a module opens with what it is for"


def test_the_public_api_is_there() -> None:
    assert sorted(eagle3_data.__all__) == eagle3_data.__all__
    for name in eagle3_data.__all__:
        assert getattr(eagle3_data, name) is not None
