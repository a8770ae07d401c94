"""A faster encoder with the same ids, for the tokenizers where that was shown.

Goes in: the JSON of a tokenizer. Comes out: an encoder by the package fastokens, or None. Equality is a matter of
proof,
not of trust: only tokenizers whose fingerprint stands below are accelerated, each compared id by id on every Unicode
    code point and on tens of thousands of chats (tests/test_acceleration.py repeats that), and a set of texts is
    compared again when the encoder is made, since another version of the package may behave differently.
"""

import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

_log = logging.getLogger(__name__)

PROVEN: Final[dict[str, str]] = {
    "fc71b4e1eda419cb0b7e8d00240e3061e50a98ea8e01500a8e72097894b65dfe": "Kimi-K2 and Kimi-K2.5",
    "28c44517d5bbefdad473ca73b2a9447ba1091aeea62ba3423449377829e0286b": "Qwen3",
    "5847af82fcd48594bde494b6df7131ed437154dfce7cc12c37cb70199e735aae": "DeepSeek-V3.1",
    "15a4d5459c2a9b9453920adf5aef8b5f960d8928cfc1428a260a8f62f06dd66d": "SmolLM2",
}

_TEXTS: Final = (
    "don't it's can't I'LL we've  two  spaces\t tabs \n\n\n lines \r\n end ",
    "1234567890 3.14 1e-5 0x1F ½ ٣ 五 ⅷ ²",
    "def f(x):\n\treturn {'a': [1, 2], \"b\": None}  # note\n\n\n",
    "你好，世界。日本語のテキスト 한국어 العربية עברית मानक ไทย ελληνικά Русский",
    "naïve résumé Å é e\u0301 a\u0308 \u1e9b\u0323 ﬁ Ǆ İ ſ K",
    "🙂👩‍👩‍👧🇫🇷 \u200b\u200d\ufeff\u00a0\u2003\u3000\u0085\u2028 \x0b\x0c\x1f \u202f",
    "\ue000\ufdd0\U000f0000\U000e0041\u0378\u0600\u09fe\u1ac1",
    "a" * 300 + " " * 300 + "-=" * 200 + "\n" * 100 + "ab" * 200,
    "<|im_end|><think></think>[EOS]<｜User｜><tool_call> <|im_ <|",
)


def fingerprint(description: dict[str, Any]) -> str:
    """Return the SHA-256 of everything in a tokenizer's JSON that bears on the ids of a text."""
    tokens = sorted(description["added_tokens"], key=lambda token: int(token["id"]))
    model = {key: value for key, value in description["model"].items() if value not in (None, "", False)}
    facts = [model, description["normalizer"], _without_offsets(description["pre_tokenizer"]), tokens]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _without_offsets(step: Any) -> Any:
    if isinstance(step, dict):
        return {key: _without_offsets(value) for key, value in step.items() if key != "trim_offsets"}
    return [_without_offsets(value) for value in step] if isinstance(step, list) else step


# SHA-256 of tiktoken vocabulary files, and of the splitting pattern that goes with them.
PROVEN_TIKTOKEN: Final[dict[str, str]] = {
    "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103": (
        "de5781783b193d5ccf5b1b28edfa70fa816ce78d54603fdc422cfd8d4ea4411f"
    ),
}


class Accelerator:
    """Encodes texts with control strings live, as the tokenizer it was made from does; safe for threads."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return an int32 array (n,) for each text."""
        ids, offsets = self._native.encode_batch_flat(list(texts))
        flat = np.frombuffer(ids, dtype="<u4").astype(np.int32)
        bounds = np.frombuffer(offsets, dtype="<u8").tolist()
        return [flat[start:stop] for start, stop in itertools.pairwise(bounds)]


def accelerate_tiktoken(
    path: str, pattern: str, controls: Mapping[str, int], encode: Callable[[Sequence[str]], list[Ids]]
) -> Accelerator | None:
    """Return a faster encoder for a tiktoken vocabulary, None where equality has not been shown.

    Args:
        path: the vocabulary file.
        pattern: the regular expression that splits text.
        controls: control strings with their ids.
        encode: tiktoken's own encoding, to compare with.
    """
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if PROVEN_TIKTOKEN.get(digest) != hashlib.sha256(pattern.encode()).hexdigest():
        return None
    return _made(lambda kind: kind.from_tiktoken(path, pattern=pattern, special_tokens=dict(controls)), encode)


def accelerate(source: str, encode: Callable[[Sequence[str]], list[Ids]]) -> Accelerator | None:
    """Return a faster encoder for a tokenizer, None where equality has not been shown or the package is missing.

    Args:
        source: JSON text of the tokenizer.
        encode: the tokenizer's own encoding, to compare with.
    """
    description = json.loads(source)
    if fingerprint(description) not in PROVEN:
        return None
    description["post_processor"] = None
    return _made(lambda kind: kind.from_json_str(json.dumps(description)), encode)


def _made(make: Callable[[Any], Any], encode: Callable[[Sequence[str]], list[Ids]]) -> Accelerator | None:
    try:
        from fastokens import Tokenizer  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return None
    try:
        made = Accelerator(make(Tokenizer))
        same = all(np.array_equal(a, b) for a, b in zip(made.encode(_TEXTS), encode(_TEXTS), strict=True))
    except (ValueError, RuntimeError, TypeError, OverflowError) as error:
        _log.warning("fastokens cannot take this tokenizer (%s): its own encoder is used", error)
        return None
    if not same:
        _log.warning("fastokens gives other ids than this tokenizer: its own encoder is used")
        return None
    return made
