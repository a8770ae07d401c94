"""A YAML text as plain values, with the line of every key and value.

Goes in: the text of a recipe. Comes out: a `Document`. Text that is not YAML, nested or large beyond reason, or with a
duplicate key is an error that names file and line; nothing is evaluated but plain scalars.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from eagle3_data.errors import RecipeError
from eagle3_data.validation import dotted, shortened

# A recipe of a hundred sources has some thousand nodes, five levels deep.
_MOST_CHARACTERS: Final = 1_000_000
_MOST_NODES: Final = 100_000
_MOST_LEVELS: Final = 40
_MERGE: Final = "tag:yaml.org,2002:merge"

KeyPath = tuple[str | int, ...]


@dataclass
class Document:
    """The values of a YAML text; `places` gives the file and the 1-based lines of a path's key and value."""

    file: str
    values: Any = None
    places: dict[KeyPath, tuple[str, int, int]] = field(default_factory=dict)
    mistakes: list[tuple[str, int, str]] = field(default_factory=list)

    def place(self, path: KeyPath, *, of_key: bool = False) -> tuple[str, int]:
        """Return file and line of the key or the value at a path, or of the nearest that is there above it."""
        while path and path not in self.places:
            path, of_key = path[:-1], False
        file, key, value = self.places.get(path, (self.file, 1, 1))
        return file, key if of_key else value

    def laid_over(self, base: "Document") -> "Document":
        """Return `base` with what this document gives in place of its own: key by key, lists as a whole."""
        places = {**base.places, **{path: place for path, place in self.places.items() if path}}
        mistakes = [*base.mistakes, *self.mistakes]
        return Document(base.file, _merged(base.values, self.values), places, mistakes)

    def put(self, path: KeyPath, value: Any, given_by: str) -> None:
        """Set a value that an option of the command line gives."""
        at = self.values
        for part in path[:-1]:
            if not isinstance(at.get(part), dict):
                at[part] = {}
            at = at[part]
        at[path[-1]] = value
        self.places[path] = (given_by, 0, 0)


def read_document(text: str, file: str) -> Document:
    """Read a YAML text.

    Raises:
        RecipeError: it is not YAML, too large, or nested too deeply; file and line are named.
    """
    if len(text) > _MOST_CHARACTERS:
        raise RecipeError(f"{file}: {len(text):,} characters; a recipe has at most {_MOST_CHARACTERS:,}")
    try:
        _bound(text, file)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise RecipeError(_described(error, text, file)) from None
    document = Document(file)
    if root is not None:
        document.values = _Converter(document).value(root, ())
    return document


def _merged(base: Any, top: Any) -> Any:
    if isinstance(base, dict) and isinstance(top, dict):
        return {**base, **{key: _merged(base.get(key), value) for key, value in top.items()}}
    return base if top is None else top


def _bound(text: str, file: str) -> None:
    """Refuse what would take the composer, which calls itself for each level, out of its depth."""
    level = 0
    for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > _MOST_LEVELS:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise RecipeError(f"{file}:{line}: nested more than {_MOST_LEVELS} levels deep; no key of a recipe is")
        if number > _MOST_NODES:
            raise RecipeError(f"{file}: more than {_MOST_NODES:,} keys and values; no recipe is so large")


class _Converter:
    """Turns nodes into values; aliases are followed, so nodes are counted as often as they are used."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._nodes += 1
        line = node.start_mark.line + 1
        if len(path) > _MOST_LEVELS or self._nodes > _MOST_NODES:
            raise RecipeError(f"{self._document.file}:{line}: an alias makes the recipe endless, or far too large")
        self._document.places.setdefault(path, (self._document.file, line, line))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, number)) for number, item in enumerate(node.value)]
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError):
            self._wrong(node, f"{dotted(path)}: cannot read {shortened(node.value)}; put it in quotes")
            return None

    def _wrong(self, node: yaml.Node, sentence: str) -> None:
        self._document.mistakes.append((self._document.file, node.start_mark.line + 1, sentence))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        out: dict[str, Any] = {}
        own: set[str] = set()
        for key_node, item in self._pairs(node):
            merged = key_node.tag == _MERGE
            if merged:
                parts = item.value if isinstance(item, yaml.SequenceNode) else [item]
                for part in parts:
                    inherited = self.value(part, path)
                    out |= inherited if isinstance(inherited, dict) else {}
                continue
            key = str(key_node.value)
            if key in own:
                self._wrong(key_node, f"{dotted((*path, key))}: duplicate key; it is above already")
                continue
            own.add(key)
            inner = (*path, key)
            self._document.places.pop(inner, None)
            out[key] = self.value(item, inner)
            self._document.places[inner] = (
                self._document.file,
                key_node.start_mark.line + 1,
                item.start_mark.line + 1,
            )
        return out

    @staticmethod
    def _pairs(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        # what is merged in (<<) comes first, so that a mapping's own keys win
        yield from sorted(node.value, key=lambda pair: pair[0].tag != _MERGE)


def _described(error: yaml.YAMLError, text: str, file: str) -> str:
    """Return what is wrong with text that is not YAML, with both lines where two do not fit together."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        position = getattr(error, "position", None)
        line = f":{text.count(chr(10), 0, position) + 1}" if isinstance(position, int) else ""
        reason = str(getattr(error, "reason", "")) or type(error).__name__
        return f"{file}{line}: not valid YAML: {reason}"
    at, problem = mark.line + 1, str(getattr(error, "problem", "") or "cannot be read")
    lines = text.splitlines()
    here = lines[mark.line] if mark.line < len(lines) else ""
    above = next((n for n in range(mark.line, 0, -1) if lines[n - 1].strip()), 0)
    start = getattr(error, "context_mark", None)
    if "\\t" in problem or here[: len(here) - len(here.lstrip())].count("\t"):
        what = "a tab cannot indent YAML; use spaces"
    elif "mapping values are not allowed" in problem and above and _indent(here) > _indent(lines[above - 1]):
        what = f"line {at} is indented deeper than line {above}, which has a value already"
    elif problem.startswith("expected <block end>") and start is not None:
        what = f"the indentation of line {at} does not fit the block that begins in line {start.line + 1}"
    elif start is not None and start.line != mark.line:
        what = f"{problem}, {getattr(error, 'context', '')} that begins in line {start.line + 1}"
    else:
        what = problem
    return f"{file}:{at}: not valid YAML: {what}"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
