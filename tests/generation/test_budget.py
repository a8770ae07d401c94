"""Budgets at every edge of the context, as measured on a real server."""

import pytest

from eagle3_data.errors import EngineError
from eagle3_data.generation.budget import ContextLimits, truncation
from eagle3_data.outcome import Outcome

CONTEXT = 8192


@pytest.mark.parametrize(
    ("distance", "cap", "budget"),
    [
        (-9, 100, 7),
        (-8, 100, 6),
        (-7, 100, 5),  # the longest prompt that SGLang takes
        (-6, 100, 0),
        (-1, 100, 0),
        (0, 100, 0),
        (2, 100, 0),
        (-1000, 100, 100),
        (-1000, 998, 998),
        (-1000, 999, 998),  # 999 and 1000 would be clamped silently, 1001 refused
        (-1000, 1001, 998),
    ],
)
def test_budget(distance: int, cap: int, budget: int) -> None:
    assert ContextLimits(CONTEXT).budget(CONTEXT + distance, cap) == budget


@pytest.mark.parametrize(
    ("limits", "longest"),
    [
        (ContextLimits(8192), 8185),
        (ContextLimits(8192, 8186), 8185),
        (ContextLimits(8192, 8186, 32768), 8185),
        (ContextLimits(8192, 8186, 4096), 4089),  # a KV pool smaller than the context takes its place
        (ContextLimits(8192, 1000), 999),
    ],
)
def test_longest_prompt(limits: ContextLimits, longest: int) -> None:
    assert limits.longest_prompt == longest
    assert limits.budget(longest, 1 << 30) == 5


def test_several_servers_keep_the_smallest() -> None:
    assert (ContextLimits(8192) & ContextLimits(4096, 4090)).room == 4096


def test_a_server_without_room_is_refused() -> None:
    with pytest.raises(EngineError, match="max-total-tokens"):
        ContextLimits(8192, 0, 5)


def test_what_cut_an_answer() -> None:
    assert truncation(100, 100) is Outcome.LENGTH_CAP
    assert truncation(99, 100) is Outcome.LENGTH_CONTEXT
