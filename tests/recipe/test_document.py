"""Text that is not a recipe's YAML is one error with its line, and never costs much memory, time or a traceback."""

import pytest

from eagle3_data.errors import RecipeError
from eagle3_data.recipe.document import read_document

WRONG = {
    "deeper than its value": (
        "engine:\n  embedded: a\n    slots: 3\n",
        "r.yaml:3: .*line 3 is indented deeper than line 2",
    ),
    "less deep than its block": (
        "sources:\n  B1:\n     rows: 5\n    holdout: 5\n",
        "r.yaml:4: .*indentation of line 4 does not fit the block that begins in line 2",
    ),
    "a tab": ("a:\n\tb: 5\n", "r.yaml:2: .*a tab cannot indent YAML"),
    "an open bracket": ("name: x\nengine: {", "r.yaml:2: not valid YAML"),
    "an open quote": ("name: 'x\nb: 1\n", "r.yaml:3: .*line 1"),
    "a control character": ("name: x\nb: \x01\n", "r.yaml:2: not valid YAML"),
    "20,000 lists": ("a: " + "[" * 20_000 + "]" * 20_000, "r.yaml:1: nested more than 40 levels deep"),
    "20,000 indented keys": (
        "\n".join(" " * n + "a:" for n in range(400)),
        "r.yaml:41: nested more than 40 levels deep",
    ),
    "an alias of itself": ("a: &a [*a]\n", "r.yaml:1: an alias makes the recipe endless"),
    "aliases of aliases": (
        "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)),
        "an alias makes the recipe endless",
    ),
    "an unknown alias": ("a: *b\n", "r.yaml:1: not valid YAML: found undefined alias"),
    "a million characters": ("# " + "x" * 1_000_000, "r.yaml: 1,000,002 characters"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG.keys())
def test_text_that_is_no_recipe_is_one_line(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        read_document(text, "r.yaml")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_value_that_cannot_be_read_and_a_duplicate_key_are_placed() -> None:
    document = read_document("a: 2024-99-99\nb: !!python/object:os.system 5\na: 1\n", "r.yaml")
    assert document.mistakes == [
        ("r.yaml", 1, "a: cannot read '2024-99-99'; put it in quotes"),
        ("r.yaml", 2, "b: cannot read '5'; put it in quotes"),
        ("r.yaml", 3, "a: duplicate key; it is above already"),
    ]


def test_values_of_an_anchor_can_be_taken_over_and_changed() -> None:
    document = read_document("a: &a {x: 1, y: 2}\nb:\n  y: 3\n  <<: *a\n", "r.yaml")
    assert document.values["b"] == {"x": 1, "y": 3}
    assert document.place(("b", "y"), of_key=True) == ("r.yaml", 3) and document.place(("b", "x")) == ("r.yaml", 1)
    assert document.place(("b", "none", "deeper"), of_key=True) == ("r.yaml", 3)
