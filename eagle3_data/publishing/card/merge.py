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
from collections.abc import Mapping, Sequence
from typing import Any, Final

from huggingface_hub import DatasetCard, DatasetCardData

from eagle3_data.publishing.card.facts import as_dict

_MARK: Final = re.compile(r"\n*<!-- eagle3-data generated (\{.*?\}) -->\n*")
_LINE_BYTES: Final = 3
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


def merge_card(generated: str, existing: str | None) -> str:
    """Put what people wrote into `existing` into a newly generated card.

    Args:
        generated: the new card as rendered from the template.
        existing: the card that it replaces; None when there is none.

    Returns:
        The card to write. Added lines stand behind the line they stood behind before where that is still there, else
        at the end of the section of the same heading, else at the end. Metadata keys and tags that people added, and
        values they changed, are kept, except for those that describe the files.
    """
    card = DatasetCard(generated)
    metadata = as_dict(card.data)
    body = _MARK.sub("\n", card.text).strip("\n").split("\n")
    if existing is None:
        return _write(card, "\n".join(body), metadata, body)
    found = _MARK.search(existing)
    born: dict[str, Any] = json.loads(found[1]) if found else {"lines": "", "metadata": {}, "tags": []}
    old = DatasetCard(_MARK.sub("\n", existing), ignore_metadata_errors=True)
    data = DatasetCardData(**_merge_metadata(metadata, as_dict(old.data), born))
    merged = _merge_body(body, old.text.strip("\n").split("\n"), base64.b64decode(born["lines"]))
    card.data = data
    return _write(card, "\n".join(merged), metadata, body)


def _merge_metadata(new: Mapping[str, Any], old: Mapping[str, Any], born: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(new)
    for key, value in old.items():
        if key == "tags":
            added = [tag for tag in value or [] if tag not in born["tags"] and tag not in merged.get("tags", [])]
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
