"""Results as text for the terminal.

Goes in: rows of a table and the lines below it. Comes out: plain text; a table is as wide as its content, never cut.
"""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 10_000


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | int]], *notes: str) -> str:
    """Return a table and the lines below it as text; columns of numbers are set to the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    filled = list(rows)
    for number, column in enumerate(columns):
        numeric = any(not isinstance(row[number], str) for row in filled)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in filled:
        # Plain text: rich would read "[BOS]" as markup and leave it out.
        table.add_row(*(Text(cell if isinstance(cell, str) else f"{cell:,}") for cell in row))
    console = Console(width=_WIDE, highlight=False)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join([*(line for line in lines if line), *notes])
