"""Which tokens are control tokens, and how text that spells one is kept from becoming one.

Goes in: the added tokens of a tokenizer. Comes out: a table of control strings and ids that finds them in text,
disarms them in a chat before the template sees it, and cuts a rendered chat into ordinary text and the template's
own controls.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Some vocabularies (Gemma's) hold plain HTML tags as added tokens: those are text, a message may spell them.
_HTML: Final = re.compile(
    r"</?(a|b|blockquote|body|br|caption|code|d[dlt]|div|em|h[1-6r]|head|html|i|img|li|ol|p|pre|s|span|strong|su[bp]"
    r"|table|tbody|t[dhr]|tfoot|thead|u|ul)/?>"
)

# Yi syllables: printable (so that neither JSON nor Python's repr escapes them), without case, and rare enough that
# one which a chat does not hold can always be found.
_MARKS: Final = tuple(chr(code) for code in range(0xA000, 0xA48D))

# Keys that templates read by name; any other key is data, and some templates print it between < and >.
_SCHEMA_KEYS: Final = frozenset(
    word
    for line in (
        "role content reasoning_content reasoning thinking tool_calls tool_call_id name id type function arguments",
        "parameters properties required description items enum anyOf oneOf allOf not default title format $ref $defs",
        "additionalProperties definitions minimum maximum minItems maxItems minLength maxLength pattern nullable",
        "const examples strict return text image image_url video video_url url",
    )
    for word in line.split()
)

# White space that an added token with lstrip or rstrip swallows: Unicode's White_Space, as tokenizers has it.
_SPACE: Final = "".join(
    chr(code)
    for code in (
        *range(0x9, 0xE),
        0x20,
        0x85,
        0xA0,
        0x1680,
        *range(0x2000, 0x200B),
        0x2028,
        0x2029,
        0x202F,
        0x205F,
        0x3000,
    )
)


@dataclass(frozen=True)
class AddedToken:
    """One added token of a tokenizer."""

    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


def is_control(token: AddedToken) -> bool:
    """Tell whether an added token steers the model, so that no message may produce it.

    Every special token does, and every other added token that is not a word or an HTML tag, white space apart: markers
    such as `</think>` and `<|tool_call_begin|>` are often added without the special flag.
    """
    if not token.content.replace("▁", " ").strip():  # runs of spaces, spelled so by Gemma
        return False
    if token.special:
        return True
    if token.content.isalnum():
        return False
    return _HTML.fullmatch(token.content) is None


class ControlTokens:
    """The control tokens of one tokenizer.

    Attributes:
        ids: string -> id.
        strings: id -> string.
        mask: bool array over ids, True where an id is a control token.
    """

    def __init__(self, added: Iterable[AddedToken]) -> None:
        tokens = [token for token in added if is_control(token)]
        self.ids: dict[str, int] = {token.content: token.id for token in tokens}
        self.strings: dict[int, str] = {token.id: token.content for token in tokens}
        self.normalized: bool = any(token.normalized for token in tokens)
        size = max(self.strings, default=-1) + 1
        self.mask: npt.NDArray[np.bool_] = np.zeros(size, dtype=bool)
        self.mask[list(self.strings)] = True
        self._pattern = re.compile(_any_of(self.ids) if self.ids else r"(?!)")
        self._eats_left = {token.content for token in tokens if token.lstrip}
        self._eats_right = {token.content for token in tokens if token.rstrip}
        self._heads = frozenset(content[:1] for content in self.ids)
        self._prefixes = frozenset(content[:end] for content in self.ids for end in range(1, len(content)))
        self._longest = max((len(content) for content in self.ids), default=0)
        self._joined = "\0".join(self.ids)

    def spelled(self, text: str) -> list[str]:
        """Return the control strings that `text` spells, in order."""
        return self._pattern.findall(text)

    def first(self, text: str) -> int | None:
        """Return where the first control string of `text` begins, None if there is none."""
        match = self._pattern.search(text)
        return match.start() if match else None

    def before(self, text: str, place: int) -> int:
        """Return `place` in `text`, or where the control string begins that it stands inside of."""
        spans = (match.span() for match in self._pattern.finditer(text))
        return next((start for start, end in spans if start < place < end), place)

    def is_in(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return a bool array (n,), True where `ids` (n,) is a control token."""
        known = (ids >= 0) & (ids < len(self.mask))
        return known & self.mask[np.where(known, ids, 0)] if len(self.mask) else known

    def _ends_open(self, text: str) -> bool:
        low = len(text) - self._longest
        for head in self._heads:
            start = text.find(head, max(low, 0))
            while start >= 0:
                if text[start:] in self._prefixes:
                    return True
                start = text.find(head, start + 1)
        return False

    def threatens(self, value: Any) -> bool:
        """Tell whether a string in nested `value`, keys apart, spells a control string or could become its head."""
        if isinstance(value, str):
            return bool(value) and (self._pattern.search(value) is not None or self._ends_open(value))
        if isinstance(value, Mapping):
            return any(self.threatens(item) for item in value.values())
        if isinstance(value, (list, tuple)):
            return any(self.threatens(item) for item in value)
        return False

    def risky_keys(self, value: Any) -> set[str]:
        """Return the keys in nested `value` that are part of a control string or hold one.

        A template that prints keys between literals of its own could complete one with them.
        """
        found: set[str] = set()
        if isinstance(value, Mapping):
            for key, item in value.items():
                found |= self.risky_keys(item)
                if not isinstance(key, str) or not key or key in _SCHEMA_KEYS:
                    continue
                if key in self._joined or self.threatens(key):
                    found.add(key)
        elif isinstance(value, (list, tuple)):
            for item in value:
                found |= self.risky_keys(item)
        return found

    def count(self, value: Any) -> int:
        """Return how many control strings the strings of nested `value` spell."""
        if isinstance(value, str):
            return len(self._pattern.findall(value))
        if isinstance(value, Mapping):
            return sum(self.count(key) + self.count(item) for key, item in value.items())
        if isinstance(value, (list, tuple)):
            return sum(self.count(item) for item in value)
        return 0

    def disarm(self, value: Any, mark: str, keys: Collection[str] = ()) -> Any:
        """Return nested `value` with `mark` inside every control string, so that none is left and none can be joined.

        A string that ends in the head of a control string gets the mark at its end: the next part of the chat could
        complete it. Of the keys only `keys` are marked, at their beginning, and where a list `required` names them.
        Removing the marks gives the text back.
        """
        if isinstance(value, str):
            while self._pattern.search(value):
                value = self._pattern.sub(lambda match: match[0][0] + mark + match[0][1:], value)
            return value + mark if value and self._ends_open(value) else value
        if isinstance(value, Mapping):
            return {
                (mark + self.disarm(key, mark) if key in keys else key): (
                    [mark + self.disarm(name, mark) if name in keys else self.disarm(name, mark) for name in item]
                    if keys and key == "required" and isinstance(item, (list, tuple)) and _are_texts(item)
                    else self.disarm(item, mark, keys)
                )
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.disarm(item, mark, keys) for item in value]
        return value

    def cut(self, text: str) -> list[tuple[str, int]]:
        """Cut a rendered chat at its control strings.

        Returns:
            Pairs of ordinary text and the id of the control token after it; −1 after the last text.
        """
        pieces: list[tuple[str, int]] = []
        start = 0
        for match in self._pattern.finditer(text):
            content = match[0]
            piece = text[start : match.start()]
            pieces.append((piece.rstrip(_SPACE) if content in self._eats_left else piece, self.ids[content]))
            start = match.end()
            if content in self._eats_right:
                start += len(text) - start - len(text[start:].lstrip(_SPACE))
        pieces.append((text[start:], -1))
        return pieces


def _any_of(strings: Iterable[str]) -> str:
    """Return a regular expression that matches the longest of some strings.

    It branches character by character: Python tries the alternatives of a flat list one after another, which on text
    full of `<` costs more than encoding it.
    """
    tree: dict[str, Any] = {}
    for string in strings:
        node = tree
        for character in string:
            node = node.setdefault(character, {})
        node[""] = {}

    def expression(node: dict[str, Any]) -> str:
        branches = [re.escape(key) + expression(below) for key, below in sorted(node.items()) if key]
        if not branches:
            return ""
        if len(branches) == 1 and "" not in node:
            return branches[0]
        return f"(?:{'|'.join(branches)})" + ("?" if "" in node else "")

    return expression(tree)


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def free_mark(value: Any) -> str:
    """Return a character that no string in nested `value` holds, neither itself nor escaped as JSON does."""
    seen: set[str] = set()

    def collect(item: Any) -> None:
        if isinstance(item, str):
            seen.update(item)
            seen.update(chr(int(code, 16)) for code in re.findall(r"\\u([0-9a-fA-F]{4})", item))
        elif isinstance(item, Mapping):
            for key, entry in item.items():
                collect(key)
                collect(entry)
        elif isinstance(item, (list, tuple)):
            for entry in item:
                collect(entry)

    collect(value)
    return next((mark for mark in _MARKS if mark not in seen), chr(0x10FFFF))


def without_mark(text: str, mark: str) -> str:
    """Return rendered text without a mark, also where a template has printed it as `\\ua000`."""
    return text.replace(mark, "").replace(f"\\u{ord(mark):04x}", "")
