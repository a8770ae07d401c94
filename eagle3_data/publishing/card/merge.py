"""Text that people add to a card survives its next version.

Goes in: a freshly generated card and the card that stands at its place, which people may have edited. Comes out: the
new card with their lines in it. Each generated card ends in a comment that holds a short hash of every line and every
metadata value it was born with, so what is not among those was written by a person.
"""

import base64
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml
from huggingface_hub import DatasetCard, DatasetCardData

from eagle3_data.errors import DataError
from eagle3_data.foreign_text import foreign_text
from eagle3_data.publishing.card.facts import as_dict

_MARK: Final = re.compile(r"\n*<!-- eagle3-data generated (\{.*?\}) -->\n*")
_FRONT_MATTER: Final = re.compile(r"\s*---[ \t]*\n(.*?\n)??---[ \t]*(?:\n|\Z)", re.DOTALL)
_LINE_BYTES: Final = 3
_MOST_LINES: Final = 20_000
_MOST_METADATA: Final = 200_000
# These describe the files, so they always follow the files.
_OWNED: Final = frozenset({"configs", "dataset_info", "size_categories", "eagle3"})


def _line_hash(line: str) -> bytes:
    return hashlib.sha256(line.strip().encode()).digest()[:_LINE_BYTES]


def _value_hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _write(card: DatasetCard, body: str, metadata: Mapping[str, Any], lines: Sequence[str]) -> str:
    born = {
        "lines": base64.b64encode(b"".join(_line_hash(line) for line in lines if line.strip())).decode(),
        "metadata": {key: _value_hash(value) for key, value in metadata.items()},
        "tags": metadata.get("tags") or [],
    }
    mark = f"<!-- eagle3-data generated {json.dumps(born, separators=(',', ':'))} -->"
    yaml = card.data.to_yaml(line_break="\n")
    return f"---\n{yaml}\n---\n{body.strip()}\n\n{mark}\n"


def merge_card(
    generated: str,
    existing: str | None,
    notes: list[str] | None = None,
    check: Callable[[str], None] = lambda text: None,
) -> str:
    """Put what people wrote into `existing` into a newly generated card.

    Args:
        generated: the new card as rendered from the template.
        existing: the card that it replaces; None when there is none. Whatever it holds, a card comes out.
        notes: takes a line for each part of `existing` that cannot be read and is left out.
        check: raises DataError for a card that the Hub or `datasets` would not take.

    Returns:
        The card to write. Added lines stand behind the line they stood behind before where that is still there, else
        at the end of the section of the same heading, else at the end. Metadata keys and tags that people added, and
        values they changed, are kept, except for those that describe the files.

    Raises:
        DataError: the new card itself does not pass `check`.
    """
    card = DatasetCard(generated)
    metadata = as_dict(card.data)
    body = _MARK.sub("\n", card.text).strip("\n").split("\n")
    plain = _write(card, "\n".join(body), metadata, body)
    check(plain)
    if existing is None or not existing.strip():
        return plain
    told = notes if notes is not None else []
    old = _read_old(existing, told)
    merged = body
    if len(old.lines) > _MOST_LINES:
        told.append(
            f"the earlier README.md has {len(old.lines):,} lines; its text is left out, and stays in the history"
        )
    elif old.readable:
        merged = _merge_body(body, old.lines, old.hashes)
    card.data = DatasetCardData(**_merge_metadata(metadata, old.metadata, old.born))
    text = _write(card, "\n".join(merged), metadata, body)
    try:
        check(text)
    except DataError as error:
        reason = str(error).removeprefix("README.md: ")
        told.append(f"the metadata that people changed in the earlier README.md is left out: {reason}")
        card.data = DatasetCardData(**metadata)
        text = _write(card, "\n".join(merged), metadata, body)
    return text


@dataclass(frozen=True)
class _Old:
    """What could be read of an earlier card; `born` and `hashes` are what it was generated with."""

    lines: list[str]
    metadata: Mapping[str, Any]
    born: Mapping[str, Any]
    hashes: bytes
    readable: bool = True


def _read_old(existing: str, notes: list[str]) -> _Old:
    text = existing.removeprefix("\ufeff").replace("\r\n", "\n")
    born, hashes, readable = _read_mark(text)
    if not readable:
        notes.append(
            "the earlier README.md cannot be told from its changes (its last line is damaged); what people wrote "
            "into it is left out, and stays in the history"
        )
    text = _MARK.sub("\n", text)
    found = _FRONT_MATTER.match(text)
    body = text[found.end() :] if found else text
    metadata: Mapping[str, Any] = {}
    try:
        metadata = _read_metadata(found[1] if found else "")
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        notes.append(f"the metadata of the earlier README.md cannot be read ({_one_line(error)}) and is left out")
    return _Old(body.strip("\n").split("\n"), metadata if readable else {}, born, hashes, readable)


def _read_mark(text: str) -> tuple[Mapping[str, Any], bytes, bool]:
    nothing: Mapping[str, Any] = {"metadata": {}, "tags": []}
    found = _MARK.search(text)
    if found is None:
        # a card that nobody generated is kept whole; one whose mark is cut is not: all of it would come twice
        return nothing, b"", "<!-- eagle3-data generated" not in text
    try:
        born = json.loads(found[1])
        hashes = base64.b64decode(born["lines"], validate=True)
        metadata, tags = dict(born["metadata"]), list(born["tags"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return nothing, b"", False
    return {"metadata": metadata, "tags": tags}, hashes, True


def _read_metadata(text: str) -> Mapping[str, Any]:
    """Parse YAML that anybody may have written.

    Raises:
        ValueError: it is too large, has aliases (which can grow without end), or is no mapping with names as keys.
        yaml.YAMLError: it is no YAML.
    """
    if len(text) > _MOST_METADATA:
        raise ValueError(f"{len(text):,} characters long")
    if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
        raise ValueError("it has aliases")
    values = yaml.safe_load(text)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError("it is no list of keys and values")
    if strange := [key for key in values if not isinstance(key, str) or not key.isidentifier()]:
        raise ValueError(f"it has the key {strange[0]!r}")
    return values


def _one_line(error: BaseException) -> str:
    return foreign_text(" ".join(str(error).split()) or type(error).__name__, 200)


def _merge_metadata(new: Mapping[str, Any], old: Mapping[str, Any], born: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(new)
    for key, value in old.items():
        if key == "tags":
            there = [tag for tag in value if isinstance(tag, str)] if isinstance(value, list) else []
            added = [tag for tag in there if tag not in born["tags"] and tag not in merged.get("tags", [])]
            merged["tags"] = [*merged.get("tags", []), *added]
        elif key not in _OWNED and born["metadata"].get(key) != _value_hash(value):
            merged[key] = value
    return merged


def _merge_body(new: list[str], old: Sequence[str], hashes: bytes) -> list[str]:
    known = [hashes[start : start + _LINE_BYTES] for start in range(0, len(hashes), _LINE_BYTES)]
    filled = [index for index, line in enumerate(old) if line.strip()]
    current = [_line_hash(old[index]) for index in filled]
    result = list(new)
    matcher = difflib.SequenceMatcher(None, known, current, autojunk=False)
    for kind, _, _, first, last in matcher.get_opcodes():
        if kind in ("insert", "replace"):
            first, last = _balance_fences(old, filled, current, first, last)
            _insert(result, list(old), filled[first], filled[last - 1] + 1)
    return result


def _balance_fences(
    old: Sequence[str], filled: Sequence[int], current: Sequence[bytes], first: int, last: int
) -> tuple[int, int]:
    """Slide an insertion along equal lines until it holds whole code blocks: diffs often start at the wrong fence."""

    def odd(low: int, high: int) -> bool:
        return sum(old[filled[index]].lstrip().startswith(("```", "~~~")) for index in range(low, high)) % 2 == 1

    low, high = first, last
    while odd(low, high) and low > 0 and current[low - 1] == current[high - 1]:
        low, high = low - 1, high - 1
    if not odd(low, high):
        return low, high
    low, high = first, last
    while odd(low, high) and high < len(current) and current[low] == current[high]:
        low, high = low + 1, high + 1
    return (first, last) if odd(low, high) else (low, high)


def _insert(result: list[str], old: list[str], first: int, last: int) -> None:
    """Put old[first:last] into `result` at the place that answers to where it stood."""
    added = old[first:last]
    before = next((line for line in reversed(old[:first]) if line.strip()), None)
    fenced, code = _fenced(result), _fenced(old)
    heading = next((old[at] for at in range(first - 1, -1, -1) if _is_heading(old[at]) and not code[at]), None)
    ends = [
        index + 1
        for index, line in enumerate(result)
        if line == before and not fenced[index] and (index + 1 == len(result) or not result[index + 1].strip())
    ]
    if len(ends) == 1:
        place = ends[0]
    elif heading is not None and heading in result:
        start = result.index(heading)
        place = next(
            (index for index in range(start + 1, len(result)) if _is_heading(result[index]) and not fenced[index]),
            len(result),
        )
        while place > start + 1 and not result[place - 1].strip():
            place -= 1
    else:
        place = len(result)
        # a section that the new card does not have comes along with its heading
        if heading is not None and not _is_heading(added[0]):
            added = [heading, "", *added]
    result[place:place] = ["", *added, *([""] if place < len(result) and result[place].strip() else [])]


def _is_heading(line: str) -> bool:
    return re.match(r"#{1,6} ", line) is not None


def _fenced(lines: Sequence[str]) -> list[bool]:
    """Tell for each line whether it stands inside a code block (fences included)."""
    inside, flags = "", []
    for line in lines:
        found = re.match(r"\s*(`{3,}|~{3,})", line)
        if found and not inside:
            inside = found[1]
            flags.append(True)
        elif found and line.strip() == inside:
            flags.append(True)
            inside = ""
        else:
            flags.append(bool(inside))
    return flags
