"""Text from outside: no secret, no escape sequence, no second line and no endless text passes."""

import base64
import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from eagle3_data import foreign_text as module
from eagle3_data.foreign_text import MASK, foreign_text, holds_secret, protect, secrets_in_use

CANARY = "canary/8f3e+hidden\u00fc"


@pytest.fixture(autouse=True)
def protected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_protected", {})
    monkeypatch.setenv("HF_TOKEN", "hf_CanaryOfTheHub")
    protect(CANARY)
    yield


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("The request queue is full.", "The request queue is full."),
        ("¿Qué tiempo hace? 東京 \U0001f600", "¿Qué tiempo hace? 東京 \U0001f600"),
        (None, ""),
        (503, "503"),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        ("one\r\ntwo\tthree", "one  two three"),
        ("\x1b[31mred\x1b[0m \x9b1mbold", "red bold"),
        ("\x1b]0;title\x07after \x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "after link"),
        ("\x1bPdevice\x1b\\x\x1bcreset\x1b(B", "xreset"),
        ("\x1b[31", ""),
        ("null\x00bell\x07back\x08", "nullbellback"),
        ("\u202eright to left\u2066 zero\u200bwidth\ufeff", "right to left zerowidth"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("line\u2028separator", "line separator"),
    ],
)
def test_one_printable_line(given: object, meant: str) -> None:
    assert foreign_text(given) == meant


@pytest.mark.parametrize(
    "form",
    [
        CANARY,
        "hf_CanaryOfTheHub",
        f"Bearer {CANARY}",
        "\x00".join(CANARY),
        "\u200b".join(CANARY),
        f"{CANARY[:5]}\x1b[0m{CANARY[5:]}",
        quote(CANARY),
        quote(CANARY, safe=""),
        json.dumps({"key": CANARY}),
        base64.b64encode(CANARY.encode()).decode(),
        CANARY * 40,
    ],
)
def test_no_secret_passes(form: str) -> None:
    told = foreign_text(f"refused: {form}, see the manual")
    assert MASK in told
    for start in range(len(CANARY) - 5):
        assert CANARY[start : start + 6] not in told
    assert "CanaryOf" not in told


@pytest.mark.parametrize("limit", range(1, 60))
def test_the_bound_does_not_cut_a_secret_open(limit: int) -> None:
    told = foreign_text(f"it said {CANARY} and hf_CanaryOfTheHub", limit)
    assert len(told) <= limit
    assert "cana" not in told and "hf_C" not in told


def test_a_text_without_end_is_bounded_and_its_last_part_holds_no_piece_of_a_secret() -> None:
    for padding in range(module._LONGEST - 30, module._LONGEST):
        assert "canary" not in foreign_text("\x00" * padding + CANARY)
    assert len(foreign_text("x" * 10_000_000)) == 500
    assert foreign_text("x" * 10_000_000, 10) == "x" * 9 + "…"


@pytest.mark.parametrize("secret", [None, "", "   ", "k", "abc"])
def test_what_is_too_short_to_be_a_secret_masks_nothing(secret: str | None) -> None:
    protect(secret)
    assert secrets_in_use() == {CANARY, "hf_CanaryOfTheHub"}


def test_a_file_that_holds_a_secret_is_found() -> None:
    assert holds_secret(b"PAR1 ... " + CANARY.encode() + b"...")
    assert holds_secret(json.dumps([CANARY]).encode())
    assert holds_secret(b"token=hf_CanaryOfTheHub")
    assert not holds_secret(b"nothing of the kind")


def test_a_secret_that_occurs_in_the_mask_is_masked_once() -> None:
    protect("secret")
    protect("s3cr3t-key")
    assert foreign_text("Bearer s3cr3t-key and secret") == f"Bearer {MASK} and {MASK}"
