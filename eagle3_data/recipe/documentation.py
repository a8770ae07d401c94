"""What the models of a recipe say of themselves: the JSON Schema for editors, and the key table of cards/recipe.md.

Goes in: the models. Comes out: a schema, a table; `python -m eagle3_data.recipe.documentation cards/recipe.md` brings
the table in a file up to date, between its two markers.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from eagle3_data import sources
from eagle3_data.recipe.models import Recipe
from eagle3_data.recipe.source_entry import SourceSpec, model_of
from eagle3_data.validation import Strict

BEGIN: Final = "<!-- recipe keys: made by `python -m eagle3_data.recipe.documentation cards/recipe.md` -->"
END: Final = "<!-- end of recipe keys -->"
_WORDS: Final = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "object": "keys and values",
    "string": "text",
}


class Key(NamedTuple):
    """One key: its place, the kind of its value, its default ("" where it must be given), and what it means."""

    name: str
    kind: str
    default: str
    meaning: str


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, sources of plugins included."""
    sources.register_installed()
    schema = Recipe.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "eagle3-data recipe"}


def keys() -> list[Key]:
    """Return every key of a recipe in the order of the models, then the options that only some sources have."""
    schema = json_schema()
    return [*_keys(Recipe, schema, schema, ""), *_options(schema)]


def key_table() -> str:
    """Return the Markdown table of every key."""
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key in keys():
        default = f"`{key.default}`" if key.default else ""
        lines.append(f"| `{key.name}` | {key.kind} | {default} | {key.meaning} |")
    return "\n".join(lines)


def with_key_table(text: str) -> str:
    """Return a Markdown text with the table between its markers brought up to date."""
    found = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return found.sub(lambda _: f"{BEGIN}\n{key_table()}\n{END}", text)


def _keys(model: type[Strict], found: Mapping[str, Any], schema: Mapping[str, Any], above: str) -> Iterator[Key]:
    for name in model.user_keys():
        part = found["properties"][name]
        # an entry's own name says which source it reads, where `source` does not
        required = name in found.get("required", ()) and (model, name) != (SourceSpec, "source")
        yield _key(f"{above}{name}", part, required=required)
        if name == "sources":
            entry = SourceSpec.model_json_schema()
            yield from _keys(SourceSpec, entry, entry, "sources.<name>.")
        elif (section := _section(model, name)) and (model, name) != (SourceSpec, "sampling"):
            yield from _keys(section, _resolved(part, schema), schema, f"{above}{name}.")


def _options(schema: Mapping[str, Any]) -> Iterator[Key]:
    of: dict[str, list[str]] = {}
    parts: dict[str, Mapping[str, Any]] = {}
    for source in sources.SOURCES:
        found = schema["properties"]["sources"]["properties"][source]
        for name in model_of(source).user_keys():
            if name not in SourceSpec.model_fields:
                of.setdefault(name, []).append(source)
                parts.setdefault(name, found["properties"][name])
    for name, names in of.items():
        key = _key(f"sources.<name>.{name}", parts[name], required=False)
        only = "" if len(names) == len(sources.SOURCES) else f"{', '.join(names)}: "
        yield key._replace(meaning=only + key.meaning)


def _section(model: type[Strict], name: str) -> type[Strict] | None:
    annotation = model.model_fields[name].annotation
    for part in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(part, type) and issubclass(part, Strict) and part is not SourceSpec:
            return part
    return None


def _key(name: str, part: Mapping[str, Any], *, required: bool) -> Key:
    default = part.get("default")
    plain = not isinstance(default, dict | list) and default is not None
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    meaning = part.get("description", "") + (" (must be given)" if required else "")
    return Key(name, _kind(part), shown if plain else "", meaning)


def _kind(part: Mapping[str, Any]) -> str:
    if "anyOf" in part:
        kinds = [_kind(option) for option in part["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds)) + _range(part)
    if "$ref" in part:
        return "keys and values"
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "const" in part:
        return f"`{part['const']}`"
    if part.get("type") == "array":
        return "list"
    return _WORDS.get(part.get("type", ""), "any") + _range(part)


def _range(part: Mapping[str, Any]) -> str:
    low, high = part.get("minimum"), part.get("maximum", part.get("exclusiveMaximum"))
    open_low = part.get("exclusiveMinimum")
    if high is not None:
        left = f"({open_low:,}" if open_low is not None else f"[{low or 0:,}"
        return f" in {left}, {int(high):,}{']' if 'maximum' in part else ')'}"
    return f" from {low:,}" if low is not None else ""


def _resolved(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    for option in (part, *part.get("anyOf", ()), *part.get("allOf", ())):
        if "$ref" in option:
            found: Mapping[str, Any] = schema["$defs"][option["$ref"].rpartition("/")[2]]
            return found
    return part


if __name__ == "__main__":
    for _name in sys.argv[1:]:
        Path(_name).write_text(with_key_table(Path(_name).read_text(encoding="utf-8")), encoding="utf-8")
