"""A recipe is either right, or one error that names the file, the line and the key."""

from pathlib import Path

import pytest

from eagle3_data.errors import RecipeError
from eagle3_data.recipe import Recipe, load_recipe, parse_recipe, shipped_recipes
from eagle3_data.sampling import SAMPLING_DEFAULTS

GOOD = """\
name: mine
target: {model: org/model, revision: "0123", trust_remote_code: true, thinking: true}
engine: {urls: ["http://localhost:30000/"], concurrency: auto, api_key_env: KEY}
sampling: {temperature: 0.6, top_k: 20}
draw_seed: 7
extend: {up_to: 32768}
sources:
  B1_glaive: {rows: 100, max_new_tokens: 4096, holdout: 10, tools_in_system: true}
  B4_math: {source: B4_mixturethoughts, config: math, data_files: [a.jsonl, b.jsonl], max_new_tokens: auto,
            truncation_target: 0.01}
  B5_openthoughts: {max_new_tokens: 8, filter: {origin: [code, math]}, revision: }
publish: {repo: org/name, private: true, version: 1.2.3}
"""


def test_a_good_recipe_is_read_whole() -> None:
    recipe = parse_recipe(GOOD)
    assert recipe.target and recipe.target.revision == "0123" and recipe.target.thinking is True
    assert recipe.engine.urls == ("http://localhost:30000",)
    assert recipe.sampling.values() == {**SAMPLING_DEFAULTS, "temperature": 0.6, "top_k": 20}
    assert recipe.extend and (recipe.extend.up_to, recipe.extend.rounds) == (32768, 3)
    glaive, math, thoughts = recipe.sources
    assert glaive.options == {"tools_in_system": True} and glaive.source == "B1_glaive"
    assert (math.source, math.config, math.data_files) == ("B4_mixturethoughts", "math", ("a.jsonl", "b.jsonl"))
    assert thoughts.filters == {"origin": ["code", "math"]} and thoughts.revision is None
    assert recipe.publish and recipe.publish.version == "1.2.3"
    assert recipe.text == GOOD


ENGINE = "engine: {embedded: smollm2-135m}\n"
BASE = f"name: x\n{ENGINE}"
BAD = {
    "unknown key": (f"{BASE}source:\n  B1_glaive: {{max_new_tokens: 5}}", 3, "did you mean 'sources'"),
    "unknown nested key": (f"{BASE}sources:\n  B1_glaive:\n    max_tokens: 5", 5, "did you mean 'max_new_tokens'"),
    "unknown source": (f"{BASE}sources:\n  B1_glave: {{max_new_tokens: 5}}", 4, "did you mean 'B1_glaive'"),
    "unknown config": (f"{BASE}sources:\n  B4_mixturethoughts: {{config: maths, max_new_tokens: 5}}", 4, "'math'"),
    "wrong type": (f"{BASE}sources:\n  B1_glaive: {{max_new_tokens: many}}", 4, "expected a whole number or auto"),
    "text for a flag": (
        f"{BASE}sources:\n  B1_glaive: {{max_new_tokens: 5, tools_in_system: 1}}",
        4,
        "expected true or false",
    ),
    "zero rows": (f"{BASE}sources:\n  B1_glaive: {{max_new_tokens: 5, rows: 0}}", 4, "at least 1"),
    "all held out": (f"{BASE}sources:\n  B1_glaive: {{max_new_tokens: 5, rows: 5, holdout: 5}}", 4, "none to train"),
    "auto without target": (f"{BASE}sources:\n  B1_glaive: {{max_new_tokens: auto}}", 4, "truncation_target"),
    "no cap": (f"{BASE}sources:\n  B1_glaive: {{rows: 5}}", 4, "'max_new_tokens' is missing"),
    "top_p of 0": (f"{BASE}sampling: {{top_p: 0}}\nsources:\n  B1_glaive: {{max_new_tokens: 5}}", 3, "(0, 1]"),
    "top_k of 0": (
        f"{BASE}sampling: {{top_k: 0}}\nsources:\n  B1_glaive: {{max_new_tokens: 5}}",
        3,
        "at least 1, or be -1",
    ),
    "not a number": (f"{BASE}sampling: {{temperature: .nan}}\nsources: {{}}", 3, "impossible"),
    "twice": (
        f"{BASE}sources:\n  B1_glaive: {{max_new_tokens: 5}}\n  B1_glaive: {{max_new_tokens: 6}}",
        5,
        "B1_glaive: duplicate key",
    ),
    "no sources": (f"{BASE}sources: {{}}", 3, "there are none"),
    "no engine": ("name: x\nsources:\n  B1_glaive: {max_new_tokens: 5}", 1, "'engine' is missing"),
    "two engines": ("name: x\nengine: {urls: 'http://a', embedded: b}\nsources: {}", 2, "not both"),
    "no target": ("name: x\nengine: {urls: 'http://a'}\nsources:\n  B1_glaive: {max_new_tokens: 5}", 1, "'target'"),
    "a profile that is a list": (
        "name: x\ntarget: {model: m, profile: [260]}\nengine: {urls: 'http://a'}\nsources: {}",
        2,
        "target.profile: expected keys and values, found a list",
    ),
    "a key in the URL": ("name: x\nengine: {urls: 'http://user:key@a'}\nsources: {}", 2, "api_key_env"),
    "a name of 300 characters": (f"name: {'n' * 300}\n{ENGINE}sources: {{}}", 1, "at most 100"),
    "a name with a slash": (f"name: a/b\n{ENGINE}sources: {{}}", 1, "cannot name a folder"),
    "reserved config": (f"{BASE}sources:\n  default: {{source: B1_glaive, max_new_tokens: 5}}", 4, "cannot name"),
    "a version of two numbers": (
        f"{BASE}publish: {{repo: a/b, version: '1.0'}}\nsources:\n  B1_glaive: {{max_new_tokens: 5}}",
        3,
        "three numbers",
    ),
    "broken YAML": ("name: x\nengine: {", 2, "not valid YAML"),
    "a list": ("- name: x", 1, "expected keys and values"),
}


@pytest.mark.parametrize("text, line, message", BAD.values(), ids=BAD.keys())
def test_a_wrong_recipe_is_one_placed_error(text: str, line: int, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "r.yaml")
    lines = str(caught.value).splitlines()
    assert any(one.startswith(f"r.yaml:{line}: ") and message in one for one in lines), lines
    assert all(one.startswith("r.yaml:") for one in lines)


MANY = """\
name: x
engine: {embedded: smollm2-135m, urls: http://a}
temperature: 0.5
sampling: {top_p: 3, thinking: true, topp: 1}
sources:
  B1_glaive: {max_new_tokens: 1e3, temperature: 0, rows: 5.5}
  other: {max_new_tokens: 5}
  last: {source: B4_mixturethoughts, config: maths, holdout: -1, data_files: []}
"""
FOUND = """\
r.yaml:2: engine: give either urls (of SGLang servers) or embedded (a model), not both
r.yaml:3: temperature: unknown key; it belongs under sampling
r.yaml:4: sampling.thinking: unknown key; it belongs under target
r.yaml:4: sampling.top_p: 3 is impossible; it must lie in (0, 1]
r.yaml:4: sampling.topp: unknown key; did you mean 'top_p'?
r.yaml:6: sources.B1_glaive.max_new_tokens: expected a whole number or auto, found '1e3'
r.yaml:6: sources.B1_glaive.rows: expected a whole number, found 5.5
r.yaml:6: sources.B1_glaive.temperature: unknown key; it belongs under sampling
r.yaml:7: sources.other: 'other' is not known; it must be one of B1_glaive, B4_mixturethoughts, B5_openthoughts, \
B8_sweagent, chat
r.yaml:8: sources.last.config: 'maths' is not known; did you mean 'math'?
r.yaml:8: sources.last.data_files: the list is empty
r.yaml:8: sources.last.holdout: -1 is impossible; it must be at least 0
r.yaml:8: sources.last: the key 'max_new_tokens' is missing"""


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(MANY, "r.yaml")
    assert str(caught.value) == FOUND


SECRETS = ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HUGGING_FACE_HUB_TOKEN", "GITHUB_TOKEN", "OPENAI_API_KEY", "aws_key"]


@pytest.mark.parametrize("name", SECRETS)
def test_a_server_is_never_sent_the_credentials_of_another_service(name: str) -> None:
    text = GOOD.replace("api_key_env: KEY", f"api_key_env: {name}")
    with pytest.raises(RecipeError, match=f"{name} holds the credentials of another service"):
        parse_recipe(text)


def test_a_key_in_place_of_its_variable_is_not_repeated() -> None:
    with pytest.raises(RecipeError, match="is not the name of an environment variable") as caught:
        parse_recipe(GOOD.replace("api_key_env: KEY", "api_key_env: sk-very-secret"))
    assert "very" not in str(caught.value)


def test_files_are_relative_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(GOOD.replace("b.jsonl", "/b.jsonl, 'hf://datasets/a/b/c.jsonl'"))
    recipe = load_recipe(tmp_path / "r.yaml")
    assert recipe.data_files(recipe.sources[1]) == [f"{tmp_path}/a.jsonl", "/b.jsonl", "hf://datasets/a/b/c.jsonl"]
    assert recipe.data_files(recipe.sources[0]) is None
    shipped = load_recipe("quickstart")
    assert {shipped.data_files(spec) for spec in shipped.sources} == {"samples"}  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_recipe_says_so(text: str) -> None:
    with pytest.raises(RecipeError, match=r"r\.yaml: the recipe is empty"):
        parse_recipe(text, "r.yaml")


def test_an_unknown_recipe_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'quickstart'"):
        load_recipe("quikstart")
    with pytest.raises(RecipeError, match="neither a file"):
        load_recipe(tmp_path / "absent.yaml")
    (tmp_path / "mine.yaml").write_text("")
    with pytest.raises(RecipeError, match=r"did you mean '.*mine\.yaml'"):
        load_recipe(tmp_path / "mine.yml")
    with pytest.raises(RecipeError, match=r"did you mean '.*mine\.yaml'"):
        load_recipe(tmp_path / "mnie.yaml")
    with pytest.raises(RecipeError, match="this is a folder"):
        load_recipe(tmp_path)
    with pytest.raises(RecipeError, match="name too long") as caught:
        load_recipe("x" * 5000)
    assert len(str(caught.value)) < 200
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(RecipeError, match="not UTF-8"):
        load_recipe(tmp_path / "latin.yaml")


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_shipped_recipes_are_right(name: str) -> None:
    assert load_recipe(name).name == name


def given(entry: str, **above: str) -> Recipe:
    """A recipe of one source with `entry` among its keys."""
    lines = "".join(f"{key}: {value}\n" for key, value in above.items())
    return parse_recipe(f"{BASE}{lines}sources:\n  B1_glaive: {{max_new_tokens: 5, {entry}}}", "r.yaml")


def test_a_source_has_its_own_sampling_thinking_and_samples() -> None:
    recipe = given("samples: 2, thinking: true, sampling: {top_p: 0.5}", sampling="{temperature: 0.7, top_p: 1}")
    (spec,) = recipe.sources
    assert recipe.sampling_of(spec) == {**SAMPLING_DEFAULTS, "temperature": 0.7, "top_p": 0.5}
    assert recipe.thinking_of(spec) is True and spec.samples == 2


@pytest.mark.parametrize(("written", "tokens"), [("200M", 200_000_000), ("1.5B", 1_500_000_000), ("12", 12)])
def test_tokens_have_units(written: str, tokens: int) -> None:
    assert given(f"tokens: {written}").sources[0].tokens == tokens


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("tokens: 5X", "tokens: expected a number of tokens, such as 200M"),
        ("tokens: 5M, rows: 5", "tokens: give either rows or tokens"),
        ("samples: 3, sampling: {temperature: 0}", "samples: at temperature 0 all 3 answers would be the same"),
        ("max_turns: 3", "max_turns: belongs to turns: rollout"),
        ("tool_results: all, turns: rollout", "tool_results: 'all' is not known; it must be one of match, any, stop"),
        ("files: 1.5", "files: 1.5 is impossible; give a share"),
        ("files: 0", "files: 0 is impossible"),
        ("sampling: {topp: 1}", "sampling.topp: unknown key; did you mean 'top_p'"),
        ("decontaminate: [{column: a}]", "decontaminate[0]: give either repo"),
    ],
)
def test_what_does_not_fit_a_source_is_named(entry: str, message: str) -> None:
    with pytest.raises(RecipeError, match=r"r\.yaml:4: ") as caught:
        given(entry)
    assert f"r.yaml:4: sources.B1_glaive.{message}" in str(caught.value)
