"""The faster encoder gives the ids of the tokenizer itself, whatever the text."""

import random

import numpy as np
import pytest
from support.chats import Chats
from support.shared import SHARED

from eagle3_data.target import Target
from eagle3_data.target.encoding import FastCodec

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
RUNS = ["a" * 5000, " " * 3000, "\n" * 300, "的" * 2000, "-=" * 900, "\t \r\n" * 99, "1" * 50, "😀" * 500, "<|" * 100]


def around(code: int) -> str:
    """A character between letters, digits, spaces, line ends, a combining mark and itself."""
    it = chr(code)
    return f"a{it}b {it}{it} 1{it}2\n{it}'s{it}\r\n{it} {it}\u0301A{it}"


@pytest.mark.parametrize("name", ["kimi-k2.5", "qwen3", "deepseek-v3.1", "smollm2"])
@pytest.mark.parametrize("count", [3_000, pytest.param(len(CODES), marks=pytest.mark.slow)])
def test_ids_are_equal(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastokens")
    monkeypatch.setattr(FastCodec, "WORTH_IT", 0)
    codec = Target.from_pretrained(SHARED / "tokenizers" / name)._codec
    assert isinstance(codec, FastCodec)
    assert codec.encode(["x"])
    assert codec._fast is not None
    chats = Chats(7, (*codec.controls.ids, "<|im_"))
    codes = random.Random(0).sample(CODES, count)
    texts = [*RUNS, *(chats.text(60) for _ in range(count // 10)), *(around(code) for code in codes)]
    for start in range(0, len(texts), 2_000):
        part = texts[start : start + 2_000]
        for text, fast, own in zip(part, codec._fast.encode(part), codec._encode_here(part), strict=True):
            assert np.array_equal(fast, own), ascii(text)
