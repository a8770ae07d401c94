"""The time left of a simulated run, against the time that it really took."""

import heapq

import numpy as np
import pytest

from eagle3_data.generation.forecast import Forecast

SPEED = 50.0


def lognormal(random: np.random.Generator, rows: int) -> np.ndarray:
    return np.ceil(random.lognormal(np.log(500), 1.0, rows))


def two_modes(random: np.random.Generator, rows: int) -> np.ndarray:
    short, long = random.lognormal(np.log(150), 0.5, rows), random.lognormal(np.log(4000), 0.6, rows)
    return np.ceil(np.where(random.random(rows) < 0.4, short, long))


def ratios(
    draw, rows: int, places: int, cap: int, predictor: float | None, seed: int, sources: int = 1
) -> list[float]:
    """Play a run on `places` places and return estimate / truth at each twentieth of the work from 10 % on.

    What lies within a twentieth of the run's whole time counts as right.
    """
    random = np.random.default_rng(seed)
    now = [0.0]
    forecast = Forecast(clock=lambda: now[0])
    units: list[tuple[float, str, int, float, float]] = []
    for number in range(sources):
        lengths = np.minimum(draw(random, rows // sources) * (1 + 2 * number), cap)
        expected = np.zeros(len(lengths))
        if predictor is not None:
            expected = np.ceil(lengths * random.lognormal(0.3, predictor, len(lengths)))
        forecast.add(f"s{number}", cap, np.minimum(expected, cap))
        units += [
            (float(guess) if predictor is not None else float(random.random()), f"s{number}", row, float(length), 0.0)
            for row, (length, guess) in enumerate(zip(lengths, expected, strict=True))
        ]
    units.sort(key=lambda unit: -unit[0])
    work, done = sum(unit[3] for unit in units), 0.0
    flying: list[tuple[float, str, int, float]] = []
    marks, estimates = list(np.arange(0.10, 0.96, 0.05)), []
    at = 0
    while flying or at < len(units):
        while at < len(units) and len(flying) < places:
            guess, source, row, length, _ = units[at]
            forecast.start(source, row, guess if predictor is not None else 0.0)
            heapq.heappush(flying, (now[0] + length / SPEED, source, row, length))
            at += 1
        now[0], source, row, length = heapq.heappop(flying)
        forecast.end(source, row, int(length))
        done += length
        while marks and done >= marks[0] * work:
            marks.pop(0)
            estimates.append((now[0], forecast.seconds_left(places)))
    # A twentieth of the whole time is granted either way: a minute more or less at the end of twenty misleads nobody.
    spare = now[0] / 20
    found = []
    for when, left in estimates:
        true = now[0] - when
        near = min(max(left, true - spare), true + spare)
        found.append((left - (near - true)) / true if abs(left - true) > spare else 1.0)
    return found


CASES = {
    "no predictor": (lognormal, 4000, 64, 8192, None, 1),
    "predictor 0.5": (lognormal, 4000, 64, 8192, 0.5, 1),
    "two modes": (two_modes, 3000, 64, 8192, None, 1),
    "two modes, predictor": (two_modes, 3000, 64, 8192, 0.5, 1),
    "low cap": (lognormal, 3000, 64, 512, None, 1),
    "three sources": (lognormal, 4000, 64, 16_384, 0.5, 3),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_the_time_left_is_within_a_factor_of_one_and_a_half(case, seed):
    draw, rows, places, cap, predictor, sources = case
    found = ratios(draw, rows, places, cap, predictor, seed, sources)
    print(f"estimate / truth: {min(found):.2f} to {max(found):.2f}, at 10 %: {found[0]:.2f}")
    assert min(found) >= 1 / 1.5 and max(found) <= 1.5


def test_nothing_is_said_before_a_row_has_ended():
    forecast = Forecast()
    forecast.add("a", 100, [50.0] * 10)
    forecast.start("a", 0, 50.0)
    assert forecast.seconds_left(4) == -1.0
