"""Text from outside (servers, the Hub, files of strangers) before it is printed or kept.

Goes in: whatever a server said. Comes out: one printable line of bounded length, without escape sequences and without
any secret in use: what `protect` was given, and the Hub's token. Also out where a sender split or encoded the secret.
"""

import base64
import functools
import json
import os
import re
import time
from typing import Final
from urllib.parse import quote

from huggingface_hub import get_token

MASK: Final = "(a secret)"
_LIMIT: Final = 500
_LONGEST: Final = 100_000  # characters looked at
_SHORTEST_SECRET: Final = 4  # anything shorter occurs in ordinary text
_LOGIN_SECONDS: Final = 30.0
_TOKEN_VARIABLES: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# CSI, OSC and the other string sequences, and the two-byte ones, with ESC or as single C1 characters.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)

_protected: dict[str, tuple[str, ...]] = {}


def protect(secret: str | None) -> None:
    """Keep a secret out of every text that passes `foreign_text` from now on, in this process."""
    if secret and len(secret.strip()) >= _SHORTEST_SECRET:
        _protected.setdefault(secret.strip(), _forms(secret.strip()))


def secrets_in_use() -> frozenset[str]:
    """Return what was protected, and the Hub's tokens of the environment and of the login."""
    hub = (_login(int(time.monotonic() / _LOGIN_SECONDS)), *map(os.environ.get, _TOKEN_VARIABLES))
    return frozenset(_protected) | {token.strip() for token in hub if token and len(token.strip()) >= _SHORTEST_SECRET}


@functools.lru_cache(maxsize=1)
def _login(_: int) -> str | None:
    """Return the token of the Hub's login, read from its file once in a while."""
    try:
        return get_token()
    except OSError:
        return None


def holds_secret(data: bytes) -> bool:
    """Whether a file or a body holds a secret in use, as it is or encoded."""
    return any(
        form.encode() in data for secret in secrets_in_use() for form in _protected.get(secret) or _forms(secret)
    )


def foreign_text(value: object, limit: int = _LIMIT) -> str:
    """Return what came from outside as one printable line.

    Args:
        value: text, or UTF-8 bytes; anything else is shown by `str`, and None is "".
        limit: the longest text to return, in characters; a longer one ends in "…".
    """
    if isinstance(value, bytes | bytearray | memoryview):
        text = bytes(value[: 4 * _LONGEST]).decode("utf-8", "replace")
    else:
        text = "" if value is None else str(value)
    whole = len(text) <= _LONGEST
    text = _ESCAPES.sub("", text[:_LONGEST])
    # Secrets go after the invisible characters that could split them, and before the bound that could cut them.
    text = "".join(char if char.isprintable() else " " if char.isspace() else "" for char in text).strip()
    forms = [form for secret in secrets_in_use() for form in _protected.get(secret) or _forms(secret)]
    if forms:  # in one pass: a secret that occurs in the mask's own words must not be masked again
        text = re.sub("|".join(map(re.escape, sorted(forms, key=len, reverse=True))), MASK, text)
    if not whole and forms:  # its end may hold the beginning of a secret
        text = text[: -max(map(len, forms))]
    return text if whole and len(text) <= limit else f"{text[: max(0, limit - 1)]}…"


def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret as it is and as URLs, JSON and Basic authentication write it."""
    encoded = (quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1])
    basic = (base64.b64encode(secret.encode()).decode().rstrip("="),)
    return tuple(dict.fromkeys((secret, *encoded, *basic)))


def visible(text: str) -> str:
    """Return text in which a terminal finds nothing to obey: control characters are written out, but for line ends."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in text
    )
