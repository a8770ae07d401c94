"""One specification of sampling: what is left out, what is wrong, and the same parameters for all."""

from typing import Any

import pytest

from eagle3_data.errors import RecipeError
from eagle3_data.recipe import parse_recipe
from eagle3_data.sampling import SAMPLING_DEFAULTS, Sampling, complete_sampling


def test_what_is_left_out_has_the_neutral_value_and_whole_numbers_become_floats() -> None:
    full = complete_sampling({"temperature": 0, "top_k": 20})
    assert full == {**SAMPLING_DEFAULTS, "temperature": 0.0, "top_k": 20}
    assert type(full["temperature"]) is float and type(full["top_k"]) is int
    assert Sampling.model_validate({"temperature": 0.5}).given() == {"temperature": 0.5}


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"temprature": 1}, "sampling.temprature: unknown key; did you mean 'temperature'?"),
        ({"top_k": 0}, "sampling.top_k: 0 is impossible; it must be at least 1, or be -1"),
        ({"top_k": 1.5}, "sampling.top_k: expected a whole number, found 1.5"),
        ({"top_p": 0}, "sampling.top_p: 0 is impossible; it must lie in (0, 1]"),
        ({"temperature": -1}, "sampling.temperature: -1 is impossible; it must lie in [0, 100]"),
        ({"temperature": True}, "sampling.temperature: expected a number, found true"),
        ({"temperature": "0.5"}, "sampling.temperature: expected a number, found '0.5'"),
        ({"min_p": float("nan")}, "sampling.min_p: nan is impossible; it must lie in [0, 1]"),
        ({"repetition_penalty": float("inf")}, "inf is impossible"),
        ({"min_new_tokens": -1}, "sampling.min_new_tokens: -1 is impossible; it must be at least 0"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(sampling: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        complete_sampling(sampling)
    assert message in str(caught.value)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(RecipeError, match=r"sampling\.top_p: .*; sampling\.seed: unknown key; known"):
        complete_sampling({"top_p": 2, "seed": 1})


@pytest.mark.parametrize("name", SAMPLING_DEFAULTS)
def test_the_recipe_takes_every_parameter(name: str) -> None:
    text = f"name: x\nengine: {{embedded: smollm2-135m}}\nsampling: {{{name}: 1}}\nsources:\n  B1_glaive: "
    assert parse_recipe(text + "{max_new_tokens: 5}").sampling.values() == {**SAMPLING_DEFAULTS, name: 1}
