"""What sources there are, for people and for machines.

Goes in: the registry of sources. Comes out: plain values, or text.
"""

from typing import Any

from eagle3_data.pipeline.tables import show_table
from eagle3_data.sources import SOURCES, register_installed


def describe_sources() -> dict[str, Any]:
    """Return every source's description, those of installed packages included, ready for JSON."""
    register_installed()
    return {name: info.to_dict() for name, info in SOURCES.items()}


def sources_text() -> str:
    """Return every source with its upstream, licence, configs, rows, options and the quirks that it handles."""
    register_installed()
    parts = []
    for name, info in SOURCES.items():
        rows = [
            [
                f"{config}{' (default)' if config == info.default_config and len(info.configs) > 1 else ''}",
                at.repo or "any (repo: org/name)",
                at.upstream or "–",
                ", ".join(at.splits),
                f"{at.rows:,}" if at.rows else "unknown",
                at.license,
            ]
            for config, at in info.configs.items()
        ]
        columns = ["config", "upstream", "its config", "splits", "rows", "licence"]
        notes = [f"  option {option}: {text}" for option, text in info.options.items()]
        notes += [f"  handles: {quirk}" for quirk in info.quirks]
        if info.terms:
            notes.append(f"  licence: {info.terms}")
        notes += [f"  note: {note}" for note in info.notes]
        if info.contamination:
            notes.append(f"  benchmarks: {info.contamination}")
        parts.append(show_table(f"{name}: {info.title}", columns, rows, *notes))
    return "\n\n".join(parts)
