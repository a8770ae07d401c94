"""The JSON Schema and the key table say what the models do."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_data import cli
from eagle3_data.recipe import documentation, parse_recipe, shipped_recipes
from eagle3_data.recipe.reading import _shipped_folder

GUIDE = Path(__file__).parents[2] / "cards" / "recipe.md"
RIGHT = """\
name: x
engine: {urls: "http://a:1"}
target: {model: m}
sampling: {top_k: -1}
sources:
  B1_glaive: {max_new_tokens: auto, truncation_target: 0.01, tools_in_system: true, data_files: a.jsonl}
  other: {source: B5_openthoughts, config: openthoughts2-1m, max_new_tokens: 5, filter: {origin: [math, code]}}
"""
WRONG = {
    "top_k: -1": "top_p: 2",
    "tools_in_system: true": "keep_system: true",
    "source: B5_openthoughts, ": "",
    "config: openthoughts2-1m": "config: all",
    "max_new_tokens: 5": "rows: 5",
    "name: x": "nome: x",
    "data_files: a.jsonl": "rows: 0",
}


def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the extra ray")
    schema = documentation.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_guide_has_the_table_of_every_key() -> None:
    text = GUIDE.read_text()
    assert documentation.BEGIN in text
    assert documentation.with_key_table(text) == text, (
        "run: python -m eagle3_data.recipe.documentation cards/recipe.md"
    )


def test_every_key_says_what_it_means() -> None:
    keys = documentation.keys()
    assert len({key.name for key in keys}) == len(keys) > 50
    assert not [key.name for key in keys if not key.meaning or not key.kind]
    by_name = {key.name: key for key in keys}
    assert by_name["sampling.top_p"].kind == "number in (0, 1]" and by_name["sampling.top_p"].default == "1.0"
    assert by_name["engine.slots"].kind == "whole number in [1, 1,024]"
    assert by_name["sources.<name>.tools_in_system"].meaning.startswith("B1_glaive: ")


def test_the_schema_agrees_with_the_models() -> None:
    check = validator()
    assert not list(check.iter_errors(yaml.safe_load(RIGHT))) and parse_recipe(RIGHT)
    for right, wrong in WRONG.items():
        assert right in RIGHT
        text = RIGHT.replace(right, wrong)
        assert list(check.iter_errors(yaml.safe_load(text))), wrong
        with pytest.raises(Exception, match=r"r\.yaml:\d"):
            parse_recipe(text, "r.yaml")


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_shipped_recipes_fit_the_schema(name: str) -> None:
    values = yaml.safe_load((_shipped_folder() / f"{name}.yaml").read_text())
    assert not list(validator().iter_errors(values))


def called(*arguments: str, status: int = 0) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert cli.main(["recipe", *arguments]) == status
    return out.getvalue(), err.getvalue()


def test_the_command_checks_lists_and_prints_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RIGHT)
    assert called(str(path))[0] == f"{path}: x is right; its sources are B1_glaive, other\n"
    assert "`sources.<name>.rows`" in called()[0]
    assert json.loads(called("--schema")[0])["title"] == "eagle3-data recipe"
    path.write_text(RIGHT.replace("top_k: -1", "top_p: 2").replace("config: openthoughts2-1m", "config: all"))
    lines = called(str(path), status=2)[1].splitlines()
    assert [line.partition(": ")[2].partition(" ")[0] for line in lines] == [f"{path}:4:", f"{path}:7:"]
