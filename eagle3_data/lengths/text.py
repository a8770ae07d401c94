"""The terminal view of a length report.

Goes in: `LengthReport.to_dict()`. Comes out: text laid out by rich, without colour codes, for stdout.
"""

import io
import shutil
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from eagle3_data.lengths.tables import Table, report_tables


def to_text(values: Mapping[str, Any], width: int | None = None) -> str:
    """Return all tables of a report for a terminal of `width` columns (default: this one's, at least 80)."""
    console = _console(width)
    for table in report_tables(values):
        console.print(_layout(table))
    return _captured(console)


def _console(width: int | None) -> Console:
    columns = width or max(80, shutil.get_terminal_size((120, 40)).columns)
    return Console(file=io.StringIO(), width=columns, highlight=False, color_system=None, legacy_windows=False)


def _captured(console: Console) -> str:
    buffer = console.file
    assert isinstance(buffer, io.StringIO)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _layout(table: Table) -> RichTable:
    laid = RichTable(title=table.title, title_justify="left", box=SIMPLE_HEAD, caption=table.note or None)
    laid.caption_justify = "left"
    laid.add_column(table.corner, no_wrap=True)
    for column in table.columns:
        laid.add_column(column, justify="right", overflow="fold")
    for row in table.rows:
        laid.add_row(*(cell.replace("**", "") for cell in row))
    return laid
