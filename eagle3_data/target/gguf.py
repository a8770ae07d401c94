"""A tokenizer out of a GGUF file: its own vocabulary, merges, pre-tokenizer and chat template.

Goes in: the path of a GGUF file. Comes out: a transformers tokenizer that encodes as the engine which runs the file
does, and the chat template in it. transformers' own GGUF loader wants torch and guesses the pre-tokenizer from the
architecture; here it is chosen by the file's `tokenizer.ggml.pre`, as llama.cpp does (llama-vocab.cpp).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from eagle3_data.errors import TargetError

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

# Token types of the GGUF format (gguf.TokenType).
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_CONTRACTIONS: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS_TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _WORDS_TAIL
_QWEN2: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _WORDS_TAIL
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)

# `tokenizer.ggml.pre` -> splits before the byte-level step; None stands for GPT-2's own regex, "digits" for single
# digits.
_SPLITS: Final[dict[str, tuple[str | None, ...]]] = {
    "default": (None,),
    "gpt-2": (None,),
    "phi-2": (None,),
    "olmo": (None,),
    "smollm": ("digits", None),
    "starcoder": ("digits", None),
    "refact": ("digits", None),
    "command-r": ("digits", None),
    "codeshell": ("digits", None),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "dbrx": (_LLAMA3,),
    "smaug-bpe": (_LLAMA3,),
    "glm4": (_LLAMA3,),
    "chatglm-bpe": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "deepseek-v3": _DEEPSEEK3,
}
_IGNORE_MERGES: Final = frozenset({"llama-bpe", "llama3", "llama-v3"})


def _pre_tokenizer(pre: str, path: Path) -> "pre_tokenizers.PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    try:
        splits = _SPLITS[pre]
    except KeyError:
        raise TargetError(
            f"{path}: pre-tokenizer {pre!r} (tokenizer.ggml.pre) is none of {', '.join(sorted(_SPLITS))}; "
            "name the model's own tokenizer folder as the target instead"
        ) from None
    steps: list[pre_tokenizers.PreTokenizer] = []
    for split in splits:
        if split == "digits":
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        elif split is not None:
            steps.append(pre_tokenizers.Split(Regex(split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits[-1] is None))
    return pre_tokenizers.Sequence(steps)


def _fields(path: Path) -> dict[str, Any]:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise TargetError(
            f"{path}: reading a GGUF file needs the package gguf; pip install 'eagle3-data[embedded]'"
        ) from error
    if not path.is_file():
        raise TargetError(f"{path}: there is no such GGUF file")

    class _Reader(GGUFReader):
        """Reads through a plain array: every slice of a memmap costs more than what is read (3 times in all)."""

        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, mapped: Any) -> None:
            self._data = mapped.view(np.ndarray)

    try:
        reader = _Reader(path)
        return {
            name: field.contents()
            for name, field in reader.fields.items()
            if name.startswith("tokenizer.") or name in ("general.name", "general.architecture")
        }
    except Exception as error:
        # gguf raises whatever a damaged header leads it to (ValueError, IndexError, KeyError, UnicodeDecodeError …).
        raise TargetError(f"{path}: not a readable GGUF file ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def load_gguf(path: Path) -> Any:
    """Build the tokenizer of a GGUF file.

    Args:
        path: a GGUF file whose `tokenizer.ggml.model` is gpt2 (byte-level BPE).

    Returns:
        A `transformers.PreTrainedTokenizerFast` with the file's chat template; ids are the engine's.

    Raises:
        TargetError: the file is unreadable, holds another kind of tokenizer, or has no chat template.
    """
    fields = _fields(path)
    try:
        return _built(path, fields)
    except TargetError:
        raise
    except Exception as error:
        # tokenizers raises bare Exception for merges and tokens that do not fit together.
        raise TargetError(f"{path}: its tokenizer cannot be built ({_reason(error)})") from error


def _built(path: Path, fields: dict[str, Any]) -> Any:
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise TargetError(
            f"{path}: tokenizer of kind {kind!r} (tokenizer.ggml.model); only byte-level BPE (gpt2) can be built from "
            "a GGUF file, name the model's own tokenizer folder as the target instead"
        )
    template = fields.get("tokenizer.chat_template")
    if not isinstance(template, str) or not template:
        raise TargetError(f"{path}: the file holds no chat template (tokenizer.chat_template)")

    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    missing = [name for name in ("tokens", "token_type", "merges") if f"tokenizer.ggml.{name}" not in fields]
    if missing:
        raise TargetError(f"{path}: the file holds no tokenizer.ggml.{missing[0]}; convert the model again")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    pre = fields.get("tokenizer.ggml.pre", "default")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise TargetError(f"{path}: {len(tokens) - len(vocabulary)} duplicate tokens in the vocabulary")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _IGNORE_MERGES))
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, path)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_CONTROL, _UNKNOWN)
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _USER_DEFINED
        ]
    )
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {
        name: tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in names.items()
        if f"tokenizer.ggml.{key}_token_id" in fields
    }
    wrapped: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special
    )
    wrapped.chat_template = template
    return wrapped
