"""Text to ids and back, for whatever kind of tokenizer a target has.

Goes in: a transformers tokenizer. Comes out: a codec that encodes rendered chats (control strings become control
tokens) and plain text (nothing becomes one), many at a time, and decodes ids with every control token visible.
"""

import json
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from eagle3_data.errors import TargetError
from eagle3_data.target.acceleration import Accelerator, accelerate, accelerate_tiktoken
from eagle3_data.target.controls import AddedToken, ControlTokens

Ids = npt.NDArray[np.int32]


class Codec(Protocol):
    """What rendering needs of a tokenizer."""

    added: list[AddedToken]
    controls: ControlTokens
    vocabulary: dict[str, int]

    @property
    def may_forge(self) -> bool:
        """Whether text that spells no control string may still encode to one, by its normaliser."""
        ...

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Encode texts whose control strings are meant, nothing added at either end; an int32 array (n,) a text."""
        ...

    def encode_plain(self, texts: Sequence[str], *, first: bool = False) -> list[Ids]:
        """Encode texts in which no control string is meant; `first` says that they open a chat."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens spelled out."""
        ...


def _array(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, dtype=np.int32)


class FastCodec:
    """A codec over a `tokenizers.Tokenizer`, the fast class of transformers."""

    # Making the faster encoder costs some seconds, which fewer characters than this do not win back.
    WORTH_IT = 4_000_000

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        # Truncation or padding left in a tokenizer.json would cut prompts without a word.
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self.added = [
            AddedToken(index, token.content, token.special, token.lstrip, token.rstrip, token.normalized)
            for index, token in sorted(added.items())
        ]
        self.controls = ControlTokens(self.added)
        self.vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        # With a normaliser, text that does not spell a control string can become one; without, it cannot.
        self._may_forge = self.controls.normalized and backend.normalizer is not None
        self._plain: dict[bool, Any] = {}
        self._moved: dict[int, int] = {}
        self._lock = threading.Lock()
        self._fast: Accelerator | None = None
        self._tried = False
        self._asked = 0

    @property
    def may_forge(self) -> bool:
        """Whether text that spells no control string may still be normalised into one."""
        return self._may_forge

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        self._asked += sum(map(len, texts))
        if self._asked > self.WORTH_IT and not self._tried:
            with self._lock:
                if not self._tried:
                    self._fast = accelerate(self._backend.to_str(), self._encode_here)
                    self._tried = True
        return self._encode_here(texts) if self._fast is None else self._fast.encode(texts)

    def _encode_here(self, texts: Sequence[str]) -> list[Ids]:
        return [_array(item.ids) for item in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_plain(self, texts: Sequence[str], *, first: bool = False) -> list[Ids]:
        encoded = self._plain_backend(first).encode_batch_fast(list(texts), add_special_tokens=False)
        if self._moved:
            return [_array([self._moved.get(index, index) for index in item.ids]) for item in encoded]
        return [_array(item.ids) for item in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._backend.decode([int(index) for index in ids], skip_special_tokens=False)
        return text

    def _plain_backend(self, first: bool) -> Any:
        from tokenizers import Tokenizer

        with self._lock:
            if not self._plain:
                description = json.loads(self._backend.to_str())
                strip_controls(description, frozenset(self.controls.ids))
                self._plain[True] = self._plain[False] = plain = Tokenizer.from_str(json.dumps(description))
                # Added tokens that are no part of the vocabulary are numbered anew when some are missing.
                kept = [(plain.token_to_id(token.content), token.id) for token in self.added]
                self._moved = {new: old for new, old in kept if new is not None and new != old}
                if never_first(description):
                    self._plain[False] = Tokenizer.from_str(json.dumps(description))
        return self._plain[first]


def strip_controls(description: dict[str, Any], controls: frozenset[str]) -> None:
    """Remove control tokens from the JSON of a tokenizer, so that no text can encode to one."""
    description["post_processor"] = None
    description["added_tokens"] = [token for token in description["added_tokens"] if token["content"] not in controls]
    model = description["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        made = {
            "".join(pair) if isinstance(pair, list) else pair.replace(" ", "", 1) for pair in model.get("merges", ())
        }
        spared = {model.get("unk_token")} | made
        for content in controls & vocabulary.keys() - spared:
            del vocabulary[content]
    elif isinstance(vocabulary, list):
        # Unigram ids are positions, so an entry cannot go; a score this low is never on the best path.
        model["vocab"] = [[piece, -1e9 if piece in controls else score] for piece, score in vocabulary]


def never_first(description: dict[str, Any]) -> bool:
    """Make a tokenizer's JSON treat text as the middle of a chat: no prefix space that only the first text gets.

    Returns:
        Whether anything was changed.
    """

    def visit(step: Any) -> bool:
        if isinstance(step, list):
            return sum(visit(value) for value in step) > 0
        if not isinstance(step, dict):
            return False
        if step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
            return True
        return sum(visit(value) for value in step.values()) > 0

    return visit(description.get("pre_tokenizer"))


class TiktokenCodec:
    """A codec over a `tiktoken.Encoding`: the Kimi tokenizers' own encoder.

    Their remote-code class cuts text longer than these limits before encoding (tokenization_kimi.py of Kimi-K2.5), and
    with the cuts come other ids, so the cuts are repeated here.
    """

    MAX_CHARS = 400_000
    MAX_RUN = 25_000
    may_forge = False

    def __init__(self, encoding: Any, added: Sequence[AddedToken], path: str = "", pattern: str = "") -> None:
        self._encoding = encoding
        self._source = (path, pattern)
        self._fast: Accelerator | None = None
        self._asked = 0
        self._lock = threading.Lock()
        self.added = list(added)
        self.controls = ControlTokens(added)
        self.vocabulary: dict[str, int] = {token.content: token.id for token in added}

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        self._asked += sum(map(len, texts))
        path, pattern = self._source
        if self._asked > FastCodec.WORTH_IT and path:
            with self._lock:
                if self._source[0]:
                    self._fast = accelerate_tiktoken(path, pattern, self.controls.ids, self._encode_here)
                    self._source = ("", "")
        if self._fast is not None and all(len(text) <= self.MAX_RUN for text in texts):
            return self._fast.encode(texts)
        return self._encode_here(texts)

    def _encode_here(self, texts: Sequence[str]) -> list[Ids]:
        return [
            self._encode_long(text, True) if len(text) > self.MAX_RUN else self._encode_one(text) for text in texts
        ]

    def encode_plain(self, texts: Sequence[str], *, first: bool = False) -> list[Ids]:
        return [
            self._encode_long(text, False)
            if len(text) > self.MAX_RUN
            else _array(self._encoding.encode_ordinary(text))
            for text in texts
        ]

    def _encode_one(self, text: str) -> Ids:
        return _array(self._encoding.encode(text, allowed_special="all"))

    def _encode_long(self, text: str, special: bool) -> Ids:
        ids: list[int] = []
        for piece in self._pieces(text):
            ids.extend(
                self._encoding.encode(piece, allowed_special="all")
                if special
                else self._encoding.encode_ordinary(piece)
            )
        return _array(ids)

    def _pieces(self, text: str) -> list[str]:
        pieces = []
        for start in range(0, len(text), self.MAX_CHARS):
            part = text[start : start + self.MAX_CHARS]
            begin, run, space = 0, 0, part[:1].isspace()
            for index, character in enumerate(part):
                if character.isspace() is space:
                    run += 1
                    if run > self.MAX_RUN:
                        pieces.append(part[begin:index])
                        begin, run = index, 1
                else:
                    space, run = not space, 1
            pieces.append(part[begin:])
        return pieces

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._encoding.decode([int(index) for index in ids])
        return text


class SlowCodec:
    """A codec over any other transformers tokenizer, by its own `encode`, one text at a time."""

    may_forge = True

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.added = [
            AddedToken(index, token.content, token.special, token.lstrip, token.rstrip, token.normalized)
            for index, token in sorted(tokenizer.added_tokens_decoder.items())
        ]
        self.controls = ControlTokens(self.added)
        self.vocabulary: dict[str, int] = dict(tokenizer.get_vocab())

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        return [_array(self._tokenizer.encode(text, add_special_tokens=False)) for text in texts]

    def encode_plain(self, texts: Sequence[str], *, first: bool = False) -> list[Ids]:
        encoded = [
            _array(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)) for text in texts
        ]
        for text, ids in zip(texts, encoded, strict=True):
            if self.controls.is_in(ids).any():
                raise TargetError(
                    f"{type(self._tokenizer).__name__} cannot encode text that spells a control token as text "
                    f"({text[:60]!r}); use a target whose folder holds a tokenizer.json"
                )
        return encoded

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            [int(index) for index in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text
