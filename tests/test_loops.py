"""The loop detector: what counts as a loop, how many tokens it says, and what must not be one."""

import numpy as np
import pytest

from eagle3_data.loops import NEAR_SHARE, loop_tokens, near_loop_share

RANDOM = np.random.default_rng(5)


def text(tokens: int) -> "np.ndarray":  # type: ignore[type-arg]
    return RANDOM.integers(0, 30_000, tokens, np.int32)


def looping(before: int, period: int, repeated: int) -> "np.ndarray":  # type: ignore[type-arg]
    """Ids of which exactly the last `repeated` repeat what stands `period` before them."""
    passage = text(period)
    lead = text(before)
    if before:
        lead[-1] = passage[-1] + 1  # the run must not be longer by chance
    return np.concatenate([lead, np.resize(passage, period + repeated)])


@pytest.mark.parametrize(
    ("before", "period", "repeated", "expected"),
    [
        (100, 1, 128, 128),
        (100, 1, 127, 0),  # too short
        (0, 10, 128, 128),  # the whole answer
        (500, 43, 129, 129),  # four periods with the first
        (500, 43, 128, 0),  # a token short of four
        (500, 256, 767, 0),
        (500, 256, 768, 768),
        (500, 257, 257, 257),  # a long passage twice
        (500, 300, 299, 0),
        (5_000, 2_000, 2_500, 2_500),
        (20_000, 37, 9_000, 9_000),
    ],
)
def test_what_counts_as_a_loop(before: int, period: int, repeated: int, expected: int) -> None:
    assert loop_tokens(looping(before, period, repeated)) == expected


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("tokens", [0, 1, 8, 127, 128, 129, 5_000])
def test_text_that_does_not_repeat(tokens: int, dtype: type) -> None:
    assert loop_tokens(text(tokens).astype(dtype)) == 0


def test_the_longest_tail_is_taken() -> None:
    """A run of one id inside a period does not hide it, and a multiple of the period does not shorten the tail."""
    passage = np.concatenate([np.zeros(200, np.int32), text(3), np.zeros(200, np.int32), text(3)])
    ids = np.concatenate([text(50), np.resize(passage, 5 * len(passage))])
    assert loop_tokens(ids) == 4 * len(passage)


def test_a_loop_that_was_left_is_none() -> None:
    assert loop_tokens(np.concatenate([looping(50, 5, 4_000), text(130)])) == 0


def test_near_loops_are_a_share() -> None:
    ids = looping(1_000, 60, 2_000)
    assert near_loop_share(ids) == 1.0
    ids[-1_000::49] = -1  # one id of 49 differs: a counter in every line
    assert loop_tokens(ids) == 0 and near_loop_share(ids) > NEAR_SHARE
    assert near_loop_share(text(4_000)) < 0.1 and near_loop_share(text(1_000)) == 0.0
