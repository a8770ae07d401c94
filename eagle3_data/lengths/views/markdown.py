"""The card's tables of lengths, printed from the report's dictionary.

Goes in: `LengthReport.to_dict()`. Comes out: Markdown.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_data.lengths.views import wording
from eagle3_data.lengths.views.tables import Table, report_tables


def to_markdown(values: Mapping[str, Any], level: int = 3) -> str:
    """Return all tables of a report as Markdown.

    Args:
        values: `LengthReport.to_dict()`.
        level: of the headings.
    """
    parts = [f"Intervals are at {wording.percent(values['confidence'])}. All figures: `lengths.json`.", ""]
    parts += [f"- {sentence}" for sentence in values["remarks"]]
    parts += [f"- {' '.join(section['advice']['words'])}" for section in values["sources"].values()]
    parts.append("")
    for table in report_tables(values):
        parts += [f"{'#' * level} {table.title}", "", *([table.note, ""] if table.note else []), *_lines(table), ""]
    return "\n".join(parts)


def _lines(table: Table) -> list[str]:
    head = [table.corner, *table.columns]
    return [_line(head), _line(["---"] + ["---:"] * len(table.columns)), *(_line(row) for row in table.rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
