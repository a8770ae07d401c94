"""How many tokens a row may ask for, so that the server neither refuses nor silently clamps.

Goes in: the server's own limits, the length of a prompt, the cap of its source and how far it is extended. Comes out:
the budget to send as `max_new_tokens` (0 when the prompt leaves no room), the limit that cut a truncated answer, and
the caps of the rounds.
"""

import functools
from dataclasses import dataclass
from typing import Final

from eagle3_data.errors import EngineError, UsageError
from eagle3_data.outcome import Outcome

# Measured on SGLang 0.5.23: a total of context or context - 1 is accepted and clamped to context - 2 without a word,
# and a prompt of context - 6 tokens is refused. The KV pool, where smaller, takes the context's place in both.
CONTEXT_MARGIN: Final = 2
_PROMPT_MARGIN: Final = 7


@dataclass(frozen=True)
class ContextLimits:
    """What one server can hold, in tokens.

    Args:
        context_length: `max_model_len` of `/v1/models`.
        max_req_input_len: of `/server_info`; 0 if unknown.
        max_total_num_tokens: size of the KV pool, of `/server_info`; 0 if unknown.
    """

    context_length: int
    max_req_input_len: int = 0
    max_total_num_tokens: int = 0

    def __post_init__(self) -> None:
        if self.longest_prompt < 1:
            raise EngineError(
                f"the server's context of {self.room} tokens holds no prompt at all; start it with a longer "
                "--context-length or a larger --max-total-tokens"
            )

    @functools.cached_property  # asked for with every row
    def room(self) -> int:
        """Tokens that prompt and answer share before any margin."""
        limits = [self.context_length]
        if self.max_req_input_len > 0:
            limits.append(self.max_req_input_len + _PROMPT_MARGIN - 1)
        if self.max_total_num_tokens > 0:
            limits.append(self.max_total_num_tokens)
        return min(limits)

    @property
    def longest_prompt(self) -> int:
        """The longest prompt that the server accepts."""
        return self.room - _PROMPT_MARGIN

    def budget(self, prompt_tokens: int, cap: int) -> int:
        """Return the `max_new_tokens` to send: min(cap, room left), or 0 when the prompt does not fit."""
        if prompt_tokens > self.longest_prompt:
            return 0
        return max(0, min(cap, self.room - CONTEXT_MARGIN - prompt_tokens))

    def holds(self, prompt_tokens: int, budget: int) -> bool:
        """Whether a server takes a prompt with this `max_new_tokens`."""
        return prompt_tokens <= self.longest_prompt and prompt_tokens + budget <= self.room - CONTEXT_MARGIN

    def __and__(self, other: "ContextLimits") -> "ContextLimits":
        """Return limits that both servers keep."""
        return min(self, other, key=lambda limits: limits.room)


def truncation(sent: int, cap: int) -> Outcome:
    """Tell what cut an answer that ended by length.

    Args:
        sent: all budgets sent for the row, rounds summed.
        cap: the cap of its source.
    """
    return Outcome.LENGTH_CONTEXT if sent < cap else Outcome.LENGTH_CAP


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
