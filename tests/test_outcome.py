"""The table of how rows end: codes that stay, names that are told apart, questions that hold for columns too."""

import numpy as np
import pytest

from eagle3_data.errors import DataError
from eagle3_data.outcome import FINISH_REASONS, Kind, Outcome, flags, of_code, of_reason, reasons


def test_codes_are_those_that_journals_hold() -> None:
    assert [(int(outcome), outcome.label) for outcome in Outcome][:6] == [
        (0, ""),
        (1, "stop"),
        (2, "length_cap"),
        (3, "length_context"),
        (4, "failed"),
        (5, "skipped"),
    ]


def test_names_of_reasons() -> None:
    assert FINISH_REASONS[:3] == ("stop", "length_cap", "length_context")
    assert reasons("cut_by_cap") == ("length_cap",)
    assert reasons("finished") == ("stop",)
    for reason in FINISH_REASONS:
        assert of_reason(reason).label == reason


@pytest.mark.parametrize("outcome", list(Outcome), ids=lambda outcome: outcome.name)
def test_every_outcome_is_kept_in_one_place(outcome: Outcome) -> None:
    assert sum((outcome.answered, outcome.failed, outcome.skipped, outcome.missing, outcome.ended)) == 1
    assert outcome.answered == (outcome.finished or outcome.cut)
    assert outcome.cut == (outcome.cut_by_cap or outcome.cut_by_context)
    assert of_code(int(outcome)) is outcome
    assert (outcome.kind is Kind.RECORD) == (outcome.label in FINISH_REASONS)


@pytest.mark.parametrize("holds", ["answered", "cut", "finished", "cut_by_cap", "failed", "skipped", "missing"])
def test_a_column_is_asked_what_one_outcome_is(holds: str) -> None:
    codes = np.array([*(int(outcome) for outcome in Outcome), 200], np.uint8)
    assert flags(codes, holds).tolist() == [*(getattr(outcome, holds) for outcome in Outcome), False]


def test_a_code_of_a_newer_version_is_an_error() -> None:
    with pytest.raises(DataError, match="upgrade eagle3-data"):
        of_code(200)
