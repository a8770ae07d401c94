"""The sampling parameters: one specification for recipe, requests, journal, manifest and card.

Goes in: what a recipe or a caller gives. Comes out: every parameter with its value; what is left out has SGLang's
neutral value and is sent too, because the server would take it from the model's generation_config, unrecorded. A new
parameter is a field here: everything else, the key table of the README included, follows from it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from eagle3_data.errors import RecipeError
from eagle3_data.validation import Strict, Within, mistakes


class Sampling(Strict):
    """How the target draws its tokens; the defaults change nothing of its distribution."""

    temperature: Annotated[float, Within(0, 100), Field(description="0 takes the likeliest token each time")] = 1.0
    top_p: Annotated[
        float,
        Within(0, 1, open_low=True),
        Field(description="only the likeliest tokens whose probabilities add up to this"),
    ] = 1.0
    top_k: Annotated[int, Within(1, also=(-1,)), Field(description="only this many likeliest tokens; -1: all")] = -1
    min_p: Annotated[
        float, Within(0, 1), Field(description="only tokens with at least this share of the highest probability")
    ] = 0.0
    frequency_penalty: Annotated[float, Within(-2, 2), Field(description="for each occurrence of a token")] = 0.0
    presence_penalty: Annotated[float, Within(-2, 2), Field(description="for a token that occurred before")] = 0.0
    repetition_penalty: Annotated[
        float, Within(0, 2, open_low=True), Field(description="divides the logits of tokens that occurred; 1: none")
    ] = 1.0
    min_new_tokens: Annotated[int, Within(0), Field(description="no end token before so many tokens")] = 0

    def values(self) -> dict[str, float | int]:
        """Return every parameter."""
        return self.model_dump()

    def given(self) -> dict[str, float | int]:
        """Return the parameters that were written down."""
        return self.model_dump(exclude_unset=True)


SAMPLING_DEFAULTS: Final[Mapping[str, float | int]] = Sampling().values()


def complete_sampling(sampling: Mapping[str, Any], where: str = "sampling") -> dict[str, float | int]:
    """Return all sampling parameters, defaults filled in, checked.

    Args:
        sampling: the parameters that differ from the defaults.
        where: how errors call them.

    Raises:
        RecipeError: an unknown name, or a value of another type or out of its range; every mistake is named.
    """
    try:
        return Sampling.model_validate(dict(sampling)).values()
    except ValidationError as error:
        raise RecipeError("; ".join(found.sentence for found in mistakes(error, sampling, (where,)))) from None
