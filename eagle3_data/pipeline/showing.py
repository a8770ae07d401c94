"""Results as text for the terminal.

Goes in: rows of a table and the lines below it. Comes out: plain text; a table is as wide as its content, never cut.
"""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_WIDE = 10_000


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | int]], *notes: str) -> str:
    """Return a table (first column names, then numbers) and the lines below it as text."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, str) else f"{cell:,}" for cell in row))
    console = Console(width=_WIDE, highlight=False)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join([*(line for line in lines if line), *notes])
