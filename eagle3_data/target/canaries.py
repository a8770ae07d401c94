"""Texts whose ids show whether a tokenizer is the one it should be.

Goes in: a tokenizer as transformers loaded it. Comes out: a refusal if it is known to be wrong, and texts with ids
that a server's `/tokenize` can be compared with. transformers has loaded Kimi-K2.5's tokenizer silently wrong in
several versions, and a wrong prompt id spoils every row that follows.
"""

from typing import Any, Final

from eagle3_data.target.encoding import Codec

TEXTS: Final = (
    "don't",
    "it's can't stop, we'll see",
    "你好，世界abc",
    " 1234567 and 12.5e-3",
    "def f(x):\n    return x\n\n\n",
    "Ça va ? Füße, naïve ½ ٣ 五",
    "\tа́б\r\n  🙂👩‍👩‍👧 end  ",
)


def check_canaries(tokenizer: Any, codec: Codec) -> None:
    """Refuse a tokenizer that encodes wrongly.

    Raises:
        TargetError: it does; the text says what differs and what mends it.
    """


def server_canaries(codec: Codec) -> list[tuple[str, list[int]]]:
    """Return texts with their ids, control strings live; the last one spells some control tokens."""
    controls = "x".join(list(codec.controls.ids)[:4])
    texts = [*TEXTS, controls] if controls else list(TEXTS)
    return [(text, ids.tolist()) for text, ids in zip(texts, codec.encode(texts), strict=True)]
