"""How far a truncated row is taken, and in how many steps.

Goes in: the cap of a source and what the recipe says under `extend`. Comes out: the caps of the rounds.
"""

from dataclasses import dataclass

from eagle3_data.errors import UsageError


@dataclass(frozen=True, slots=True)
class Extend:
    """Continue every row that is cut, right after it was cut (its prefix is still in the server's cache).

    Args:
        up_to: the last cap, in new tokens, all rounds summed.
        rounds: in how many further rounds, each longer than the one before by the same factor.
    """

    up_to: int
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.up_to < 1 or self.rounds < 1:
            raise UsageError(f"extend: up_to {self.up_to} and rounds {self.rounds} must be whole numbers from 1")


def ladder(cap: int, extend: bool | Extend) -> list[int]:
    """Return the rising caps a row is taken to: just `cap`, or `cap` and the rounds after it.

    Raises:
        UsageError: `extend.up_to` lies below the cap.
    """
    if not isinstance(extend, Extend):
        return [cap]
    if extend.up_to < cap:
        raise UsageError(f"extend.up_to: {extend.up_to} is below max_new_tokens {cap}; raise it or leave extend out")
    factor = (extend.up_to / cap) ** (1 / extend.rounds)
    caps = [cap, *(round(cap * factor**turn) for turn in range(1, extend.rounds)), extend.up_to]
    return sorted(set(caps))
