"""README.md says what there is: every command, every package, links that lead somewhere, Python that compiles."""

import argparse
import ast
import re
from pathlib import Path

import pytest

import eagle3_data
from eagle3_data import arguments

ROOT = Path(eagle3_data.__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAP = README[README.index("## Map") :]
PACKAGE = ROOT / "eagle3_data"


def _commands() -> list[str]:
    actions = arguments.parser()._actions
    return [name for action in actions if isinstance(action, argparse._SubParsersAction) for name in action.choices]


@pytest.mark.parametrize("command", _commands())
def test_every_command_is_documented(command: str) -> None:
    assert re.search(rf"eagle3-data {command}\b", README), f"README.md never shows `eagle3-data {command}`"


@pytest.mark.parametrize("name", sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()))
def test_every_package_is_on_the_map(name: str) -> None:
    assert f"`{name}/`" in MAP, f"the map in README.md lacks {name}/"


@pytest.mark.parametrize("name", sorted(path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"))
def test_every_top_level_module_is_on_the_map(name: str) -> None:
    assert f"`{name}`" in MAP or name in {"__main__.py"}, f"the map in README.md lacks {name}"


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_links_lead_somewhere(target: str) -> None:
    assert target.startswith("https://") or (ROOT / target).exists()


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```", README, re.M | re.S))
def test_the_python_compiles_and_uses_the_public_api(block: str) -> None:
    tree = ast.parse(block)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "eagle3_data":
            assert hasattr(eagle3_data, node.attr), f"eagle3_data.{node.attr} does not exist"


def test_it_stays_short() -> None:
    assert len(README.splitlines()) <= 265, "what does not fit goes to the guides in cards/ or to docstrings"
