"""Foreign values in Markdown: the one way by which a value gets into the text of a card.

Goes in: whatever a manifest, a recipe, a file name or the Hub says. Comes out: `Markdown`, text that is safe to stand
in a table, a line, a code span, a link or a code block. The card's template takes Markdown as it is and everything
else through `escape`.
"""

import re
from typing import Any, Final
from urllib.parse import quote, urlsplit

from eagle3_data.foreign_text import foreign_text

_LONGEST: Final = 1_000
_BLOCK: Final = 20_000


class Markdown(str):
    """Text that is Markdown already: the template does not escape it again."""

    __slots__ = ()


def escape(value: Any) -> Markdown:
    """Return a value as plain text inside a Markdown line or table cell; nothing is "–"."""
    if isinstance(value, Markdown):
        return value
    text = " ".join(foreign_text("–" if value in (None, "") else value, _LONGEST).split())
    text = re.sub(r"([\\|`<>\[\]*])", r"\\\1", text)
    return Markdown(re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text))


def code(value: Any) -> Markdown:
    """Return a value as a code span; one without any text as words."""
    text = foreign_text(value, _LONGEST).replace("`", "'").replace("|", "¦").strip()
    return Markdown(f"`{text}`") if text else Markdown("not recorded")


def link(title: Any, url: Any) -> Markdown:
    """Return a link to an http(s) address; the title alone where it is another one."""
    text = str(url or "")
    if urlsplit(text).scheme not in ("http", "https"):
        return escape(title)
    return Markdown(f"[{escape(title)}]({quote(text, safe=':/?#@!$&*+,;=%~._-')})")


def image(title: Any, path: str) -> Markdown:
    """Return a picture of the repository."""
    return Markdown(f"![{escape(title)}]({quote(path)})")


def line(text: Any) -> Markdown:
    """Return a line of Markdown that we wrote, perhaps long ago, without what could leave its line or become HTML."""
    return Markdown(" ".join(foreign_text(text, 2_000).split()).replace("<", "&lt;"))


def block(text: str, language: str = "text") -> Markdown:
    """Return text as a fenced block, its fence longer than any in it, control characters left out."""
    clean = "".join(char for char in text[:_BLOCK] if char.isprintable() or char in "\n\t")
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", clean)), default=0))
    return Markdown(f"{ticks}{language}\n{clean}\n{ticks}")
