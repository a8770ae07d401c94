"""Texts whose ids show whether a tokenizer is the one it should be.

Goes in: a tokenizer as transformers loaded it. Comes out: a refusal if it is known to be wrong, and texts with ids
that a server's `/tokenize` can be compared with. transformers has loaded Kimi-K2.5's tokenizer silently wrong in
several versions, and a wrong prompt id spoils every row that follows.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eagle3_data.errors import TargetError
from eagle3_data.target.encoding import Codec

_TEXTS: Final = (
    "don't",
    "it's",
    "can't stop, WE'LL see",
    "你好，世界abc",
    " 1234567 and 12.5e-3",
    "def f(x):\n    return x\n\n\n",
)
_SERVER_TEXTS: Final = (*_TEXTS, "Ça va ? Füße, naïve ½ ٣ 五", "\tа́б\r\n  🙂👩‍👩‍👧 end  ")

_SAMPLED_TEXTS: Final = 8
_LINES: Final = 128
_COMPARED_TEXTS: Final = 300
_COMPARED_WORDS: Final = 12


@dataclass(frozen=True)
class Family:
    """What a known vocabulary must do.

    Attributes:
        ordinary: ordinary tokens with their ids, by which the vocabulary is known even if all else about it is wrong.
        marker: a control token of the chat models over it; derived models with other control tokens are not judged.
        written: strings of which the chat templates of the family write one; a model that shares the vocabulary but
            writes other forms is another family.
        model_types: how the names begin by which config.json may call the family.
        texts: the ids of each of `_TEXTS`.
        controls: control tokens with their ids; those that a tokenizer has must have these.
        fix: what to do about a tokenizer that fails.
    """

    name: str
    ordinary: Mapping[str, int]
    marker: str
    texts: tuple[list[int], ...]
    controls: Mapping[str, int]
    fix: str
    written: tuple[str, ...]
    model_types: tuple[str, ...]


_KIMI_FIX: Final = (
    "set `trust_remote_code: true` under target and use transformers 5.10–5.12 or 5.16 and later (5.4.0–5.5.3 load it "
    "wrong either way, later ones load it wrong without remote code), or give a folder whose tokenizer.json is right"
)
_FIX: Final = "load it from the model's own repository at its own revision, with another version of transformers"

FAMILIES: Final = (
    Family(
        name="Kimi-K2",
        ordinary={"Ġthe": 276, "Ġreturn": 745, "Ġbecause": 2416, "Ġneighborhood": 16840, "ĠMonday": 12261},
        marker="<|im_end|>",
        texts=(
            [88709],
            [64072],
            [58809, 6156, 11, 40893, 6, 5847, 2050],
            [33845, 378, 2243, 8497],
            [220, 6694, 12972, 22, 316, 220, 1042, 13, 20, 68, 12, 18],
            [1166, 285, 3940, 2360, 274, 745, 1288, 3898],
        ),
        controls={
            "[BOS]": 163584,
            "[EOS]": 163585,
            "<|im_end|>": 163586,
            "<|im_user|>": 163587,
            "<|im_assistant|>": 163588,
            "<|im_system|>": 163594,
            "<|tool_calls_section_begin|>": 163595,
            "<|tool_calls_section_end|>": 163596,
            "<|tool_call_begin|>": 163597,
            "<|tool_call_argument_begin|>": 163598,
            "<|tool_call_end|>": 163599,
            "<|im_middle|>": 163601,
            "<think>": 163606,
            "</think>": 163607,
        },
        fix=_KIMI_FIX,
        written=("<|im_middle|>",),
        model_types=("kimi", "deepseek_v3"),
    ),
    Family(
        name="Qwen2/Qwen3",
        ordinary={"Ġthe": 279, "Ġreturn": 470, "Ġbecause": 1576, "Ġneighborhood": 12534, "ĠMonday": 7014},
        marker="<|im_end|>",
        texts=(
            [15007, 944],
            [275, 594],
            [4814, 944, 2936, 11, 19677, 6, 4086, 1490],
            [108386, 3837, 99489, 13683],
            [220, 16, 17, 18, 19, 20, 21, 22, 323, 220, 16, 17, 13, 20, 68, 12, 18],
            [750, 282, 2075, 982, 262, 470, 856, 1406],
        ),
        controls={
            "<|endoftext|>": 151643,
            "<|im_start|>": 151644,
            "<|im_end|>": 151645,
            "<tool_call>": 151657,
            "</tool_call>": 151658,
            "<think>": 151667,
            "</think>": 151668,
        },
        fix=_FIX,
        written=("<|im_start|>",),
        model_types=("qwen2", "qwen3"),
    ),
    Family(
        name="DeepSeek-V3",
        ordinary={"Ġthe": 270, "Ġreturn": 1354, "Ġbecause": 1754, "Ġneighborhood": 17494, "ĠMonday": 9219},
        marker="<｜User｜>",
        texts=(
            [20385, 1664],
            [279, 734],
            [9332, 1664, 6409, 14, 33418, 9, 3699, 1762],
            [30594, 303, 3427, 32372],
            [223, 6895, 18009, 25, 305, 223, 736, 16, 23, 71, 15, 21],
            [3465, 285, 4042, 3395, 361, 1354, 1527, 6328],
        ),
        controls={
            "<｜begin▁of▁sentence｜>": 0,
            "<｜end▁of▁sentence｜>": 1,
            "<think>": 128798,
            "</think>": 128799,
            "<｜User｜>": 128803,
            "<｜Assistant｜>": 128804,
            "<｜tool▁calls▁begin｜>": 128806,
            "<｜tool▁call▁begin｜>": 128808,
            "<｜tool▁sep｜>": 128814,
        },
        fix=_FIX,
        written=("<｜tool▁call", "<｜tool▁sep｜>", "<｜Assistant｜><think>"),
        model_types=("deepseek_v3", "deepseek_r1"),
    ),
    Family(
        name="SmolLM2",
        ordinary={"Ġthe": 260, "Ġreturn": 1003, "Ġbecause": 975, "Ġneighborhood": 7390, "ĠMonday": 12397},
        marker="<|im_end|>",
        texts=(
            [12420, 982],
            [269, 506],
            [4055, 982, 2853, 28, 26587, 23, 16421, 963],
            [18645, 250, 48392, 138, 12831, 7906, 240, 178, 239, 230, 25276],
            [216, 33, 34, 35, 36, 37, 38, 39, 284, 216, 33, 34, 30, 37, 85, 29, 35],
            [1604, 275, 24, 104, 727, 472, 1003, 1792, 16506],
        ),
        controls={"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2},
        fix=_FIX,
        written=("<|im_start|>",),
        model_types=("llama", "smollm"),
    ),
)


def check_canaries(
    tokenizer: Any, codec: Codec, sources: Sequence[str], files: Mapping[str, Mapping[str, Any]], family: str | None
) -> str:
    """Refuse a tokenizer that encodes wrongly.

    Every tokenizer must encode each control string to its own id and give plain text back on decoding; one of a known
    family must also give the ids that are known.

    Args:
        tokenizer, codec: the tokenizer.
        sources: of its chat template.
        files: config.json, parsed, where there is one.
        family: the family by its name, `other` for none; None takes the one that vocabulary, template and config say.

    Returns:
        The name of the family, `other` if it is none that is known.

    Raises:
        TargetError: it does not; the text says what differs and what fixes it.
    """
    from transformers import __version__

    names = [one.name for one in FAMILIES]
    if family not in (None, "other", *names):
        raise TargetError(f"target.profile.family: {family!r} is not one of {', '.join([*names, 'other'])}")
    found = "other"
    for known in FAMILIES:
        if family == known.name or (family is None and _is_of(known, codec, sources, files)):
            found = known.name
            fault = _known_fault(known, codec)
            if fault:
                raise TargetError(
                    f"this {known.name} tokenizer is wrong as transformers {__version__} loads it "
                    f"({type(tokenizer).__name__}): {fault}; {known.fix}; if the model is not of this family, set "
                    "`family: other` under target.profile"
                )
    fault = _own_fault(tokenizer, codec)
    if fault:
        raise TargetError(
            f"the tokenizer is wrong as transformers {__version__} loads it ({type(tokenizer).__name__}): {fault}; "
            + _FIX
        )
    return found


def _is_of(family: Family, codec: Codec, sources: Sequence[str], files: Mapping[str, Mapping[str, Any]]) -> bool:
    if not all(codec.vocabulary.get(token) == index for token, index in family.ordinary.items()):
        return False
    model_type = files.get("config.json", {}).get("model_type")
    if isinstance(model_type, str) and not model_type.startswith(family.model_types):
        return False
    return family.marker in codec.controls.ids and any(word in source for word in family.written for source in sources)


def _known_fault(family: Family, codec: Codec) -> str:
    for content, index in family.controls.items():
        found = codec.controls.ids.get(content, index)
        if found != index:
            return f"{content!r} is {found}, not {index}"
    for text, wanted, got in zip(_TEXTS, family.texts, codec.encode(_TEXTS), strict=True):
        if got.tolist() != wanted:
            return f"{text!r} encodes to {got.tolist()}, not {wanted}"
    return ""


def _own_fault(tokenizer: Any, codec: Codec) -> str:
    contents = list(codec.controls.ids)
    for content, ids in zip(contents, codec.encode(contents), strict=True):
        index = codec.controls.ids[content]
        if ids.tolist() != [index] and index not in ids:
            return f"the control token {content!r} encodes to {ids.tolist()}, not {index}"
    if _is_byte_level(tokenizer):
        for text, ids in zip(_SERVER_TEXTS, codec.encode(_SERVER_TEXTS), strict=True):
            back = codec.decode(ids.tolist())
            if unicodedata.normalize("NFKC", back) != unicodedata.normalize("NFKC", text):
                return f"{text!r} comes back as {back!r} from its own ids"
    return ""


def check_against_file(tokenizer: Any, codec: Codec, path: Path) -> None:
    """Refuse a tokenizer whose class encodes otherwise than its own tokenizer.json does.

    transformers 5 takes the class that config.json names, which may bring a pre-tokenizer of its own; text still
    comes back from its ids, so nothing else would show.

    Raises:
        TargetError: a text has other ids; the message holds both lists.
    """
    from tokenizers import Tokenizer
    from transformers import __version__

    if getattr(tokenizer, "backend_tokenizer", None) is None:
        return
    try:
        raw = Tokenizer.from_file(str(path))
    except Exception as error:
        raise TargetError(f"{path.name}: not a readable tokenizer ({str(error)[:200]})") from error
    raw.no_truncation()
    raw.no_padding()
    texts = [*_SERVER_TEXTS, *_sampled(codec, _COMPARED_TEXTS, _COMPARED_WORDS, " ")]
    texts = [text for text in texts if not codec.controls.spelled(text)]
    wanted = raw.encode_batch_fast(texts, add_special_tokens=False)
    for text, ids, own in zip(texts, codec.encode(texts), wanted, strict=True):
        if ids.tolist() != own.ids:
            raise TargetError(
                f"its tokenizer.json encodes {text[:60]!r} to {_shown(own.ids)}, but as transformers {__version__} "
                f"loads it ({type(tokenizer).__name__}, by config.json or tokenizer_config.json) it encodes to "
                f'{_shown(ids.tolist())}; set `"tokenizer_class": "PreTrainedTokenizerFast"` in '
                "tokenizer_config.json and take a wrong model_type out of config.json"
            )


def _shown(ids: list[int]) -> str:
    return str(ids) if len(ids) <= 24 else f"[{', '.join(map(str, ids[:24]))}, … {len(ids)} ids]"


def _sampled(codec: Codec, count: int, words: int, separator: str) -> list[str]:
    """Return up to `count` texts of `words` ordinary tokens each, from all over the vocabulary."""
    ordinary = sorted(set(codec.vocabulary.values()) - set(codec.controls.ids.values()))
    step = max(1, len(ordinary) // (words * count))
    found = [codec.decode([index]) for index in ordinary[step - 1 :: step]]
    found = [word for word in found if word.strip() and "\ufffd" not in word]
    return [separator.join(found[first : first + words]) for first in range(0, len(found), words)]


def _is_byte_level(tokenizer: Any) -> bool:
    """Tell whether every text has ids that decode to it, which only byte-level tokenizers promise."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return False
    decoder = json.loads(backend.decoder.__getstate__())
    normalizer = json.loads(backend.normalizer.__getstate__()) if backend.normalizer is not None else {}
    return decoder.get("type") == "ByteLevel" and "Lowercase" not in json.dumps(normalizer)


def server_canaries(codec: Codec) -> list[tuple[str, list[int]]]:
    """Return texts with their ids, control strings live; the last text spells some control tokens."""
    controls = "x".join(list(codec.controls.ids)[:4])
    return _with_ids(codec, [*_SERVER_TEXTS, controls] if controls else list(_SERVER_TEXTS))


def vocabulary_canaries(codec: Codec, sources: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Return texts with their ids that reach where common text does not.

    Some hold tokens from all over the vocabulary, one a line, so that ids which are shifted or named otherwise in any
    larger part of it show; the last holds every control string that the template's `sources` write.
    """
    texts = _sampled(codec, _SAMPLED_TEXTS, _LINES, "\n")
    written = "x".join(content for content in codec.controls.ids if any(content in source for source in sources))
    return _with_ids(codec, [*texts, written] if written else texts)


def _with_ids(codec: Codec, texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    return [(text, ids.tolist()) for text, ids in zip(texts, codec.encode(texts), strict=True)]
