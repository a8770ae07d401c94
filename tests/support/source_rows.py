"""What the tests of the sources share: the shared rows, and short ways to judge one upstream row."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.shared import SHARED

from eagle3_data.schema import clean_messages
from eagle3_data.sources.base import Outcome
from eagle3_data.sources.registry import builder

ROWS = SHARED / "sample-rows"
needs_rows = pytest.mark.skipif(not ROWS.is_dir(), reason=f"no real rows at {ROWS} (EAGLE3_DATA_SHARED)")


def read_jsonl(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def judge(name: str, row: Any, config: str | None = None, **options: Any) -> Outcome:
    """Return what a source makes of one upstream row."""
    source = builder(name)
    made = source.make_config(config, **options)
    outcome: Outcome = source.outcome(0, row, made, source.columns(made))
    return outcome


def prompt_of(name: str, row: Any, config: str | None = None, **options: Any) -> list[dict[str, Any]]:
    """Return the messages of the only prompt that a row gives."""
    outcome = judge(name, row, config, **options)
    assert outcome.reject is None, outcome.reject
    (prompt,) = outcome.prompts
    return clean_messages(prompt.messages)


def reason(name: str, row: Any, config: str | None = None, **options: Any) -> str:
    """Return why a row is rejected, "ok" if it is not."""
    reject = judge(name, row, config, **options).reject
    return "ok" if reject is None else reject.reason
