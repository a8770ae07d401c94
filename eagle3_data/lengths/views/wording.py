"""How numbers are written: the one place, so that terminal, card and page say the same.

Goes in: values of the report's dictionary. Comes out: short texts.
"""

from collections.abc import Mapping
from typing import Any


def tokens(value: float | None) -> str:
    """Write a number of tokens or rows: 10,240; one decimal below 10 where it is not whole."""
    if value is None:
        return "–"
    if value == int(value) or abs(value) >= 9.95:
        return f"{value:,.0f}"
    return f"{value:,.1f}"


def short(value: float) -> str:
    """Write a large number shortly: 950, 12.3k, 7.7M, 1.2B."""
    for limit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            return f"{value / limit:.3g}{letter}" if value < limit * 999.5 else f"{value / limit:,.0f}{letter}"
    return tokens(value)


def share(value: float | None) -> str:
    """Write a share as a percentage with as many digits as its size deserves: 35 %, 1.2 %, 0.04 %."""
    if value is None:
        return "–"
    percent = value * 100
    if percent == 0 or percent == 100:
        return f"{percent:.0f} %"
    from_edge = min(percent, 100 - percent)
    digits = 1 if from_edge >= 1 else 2 if from_edge >= 0.1 else 3 if from_edge >= 0.01 else 4
    return f"{percent:.{digits}f} %"


def percent(value: float) -> str:
    """Write a share that someone chose, such as a target: 1 %, 0.5 %."""
    return f"{value * 100:.6g} %"


def share_with_interval(cell: Mapping[str, Any]) -> str:
    """Write {value, low, high} of a share: 35.0 % (28.7–41.8 %)."""
    low, high = cell["low"], cell["high"]
    if low is None or high is None:
        return share(cell["value"])
    limits = f"({share(low).removesuffix(' %')}–{share(high)})"
    return f"{share(cell['value'])} {limits}" if cell["value"] is not None else f"unknown {limits}"


def tokens_with_interval(cell: Mapping[str, Any], known_until: int | None = None) -> str:
    """Write {value, low, high} of a length: 471 (455–489), or "over 4,096" beyond what the caps let through."""
    value, low, high = cell["value"], cell["low"], cell["high"]
    if value is None and low is None and high is None and not known_until:
        return "–"
    if high is None and not low:  # a length of at least 0 tokens says nothing
        low = None
    beyond = max(known_until or 0, low - 1 if value is None and low else 0)
    name = tokens(value) if value is not None else f"over {tokens(beyond)}" if known_until else "unknown"
    if low is None and high is None:
        return f"{name} (no bounds)"
    if high is None and value is None and known_until and low == beyond + 1:
        return f"{name} (no upper bound)"
    if high is None:
        return f"{name} (≥ {tokens(low)}, no upper bound)"
    if low is None:
        return f"{name} (≤ {tokens(high)}, no lower bound)"
    return f"{name} ({tokens(low)}–{tokens(high)})"


def count(number: int, noun: str) -> str:
    """Write a number of things: 1 row, 2,000 rows."""
    return f"{tokens(number)} {noun}{'' if number == 1 else 's'}"


def hours(value: float | None) -> str:
    """Write hours: 12 h, 1.5 h, 8 min, under 1 min."""
    if value is None:
        return "–"
    if value * 60 < 1:
        return "under 1 min"
    return f"{value * 60:.0f} min" if value < 1 else f"{value:.1f} h" if value < 10 else f"{value:,.0f} h"
