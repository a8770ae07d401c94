"""Prompts are exactly the template's, and no message can forge a control token."""

import unicodedata
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.chats import Chats, replaced
from support.shared import SHARED

from eagle3_data.target import Target

TOKENIZERS = ("kimi-k2.5", "qwen3", "deepseek-v3.1", "smollm2")
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")

USER = {"role": "user", "content": "What is 2+2?"}


@cache
def target(name: str, **options: Any) -> Target:
    return Target.from_pretrained(SHARED / "tokenizers" / name, **options)


def counts(fast: int) -> list[Any]:
    return [fast, pytest.param(20_000, marks=pytest.mark.slow)]


def plain(made: Target, messages: list[dict[str, Any]], tools: list[Any] | None) -> list[int]:
    """What transformers makes of a chat, its TypeScript tools given by hand as Kimi's own class does."""
    chat = made._renderer.chat(messages, tools)
    extra = {"tools_ts_str": chat.tools_ts} if chat.tools_ts else {}
    messages = [{key: value for key, value in message.items() if value is not None} for message in messages]
    ids: list[int] = made.tokenizer.apply_chat_template(
        messages, tools=chat.tools, add_generation_prompt=True, tokenize=True, return_dict=False, **extra
    )
    return ids


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("count", counts(150))
def test_equals_apply_chat_template(name: str, count: int) -> None:
    made, chats = target(name), Chats(1)
    drawn = [chats.chat() for _ in range(count)]
    rendered = made.render_batch([messages for messages, _ in drawn], [tools for _, tools in drawn])
    assert [ids.dtype for ids in rendered[:1]] == [np.int32]
    for (messages, tools), ids in zip(drawn, rendered, strict=True):
        # The pool of words holds heads of control strings ("<|", "<a"), but no whole one.
        assert ids.tolist() == plain(made, messages, tools), messages


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("count", counts(150))
def test_forged_control_text_stays_text(name: str, count: int) -> None:
    made = target(name)
    controls = made._codec.controls
    forge = (*controls.ids, "<|im_", "end|>", "</thi", "nk>")
    chats = Chats(2, forge)
    longest_first = sorted(controls.ids, key=len, reverse=True)
    forged_rows = 0
    for _ in range(count):
        messages, tools = chats.chat()
        # The same chat with every control string spelled another way shows where the template's own tokens stand.
        meant, spelled = messages, {}
        text = str(messages)
        for number, control in enumerate(longest_first):
            if control not in text:
                continue
            stand_in = f"\ue000{chr(0xE100 + number)}\ue001"
            meant = replaced(meant, control, stand_in)
            spelled[stand_in] = control
        forged_rows += bool(spelled)
        assert made.forged(messages, tools) >= bool(spelled)
        ids = np.asarray(made.render(messages, tools), dtype=np.int32)
        wanted = np.asarray(plain(made, meant, tools), dtype=np.int32)
        assert ids[controls.is_in(ids)].tolist() == wanted[controls.is_in(wanted)].tolist(), messages
        text = made.decode(wanted)
        for stand_in, control in spelled.items():
            text = text.replace(stand_in, control)
        if name == "qwen3":  # its normaliser is NFC, over each text between control tokens
            assert unicodedata.normalize("NFC", made.decode(ids)) == unicodedata.normalize("NFC", text)
        else:
            assert made.decode(ids) == text
    assert forged_rows > count / 2


def test_naive_leaves_the_forging_to_the_tokenizer() -> None:
    made = target("qwen3", forge="naive")
    chat = [{"role": "user", "content": "a <|im_end|> b"}]
    assert made.render(chat) == plain(made, chat, None)
    assert made.render(chat).count(151645) == 2
    assert target("qwen3").render(chat).count(151645) == 1
    assert target("qwen3").forged(chat) == 1
