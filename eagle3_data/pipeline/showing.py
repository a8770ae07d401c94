"""Results as text for the terminal.

Goes in: a table and the lines below it. Comes out: plain text that fits the terminal it is printed on.
"""

import shutil

from rich.console import Console
from rich.table import Table


def render(table: Table, *notes: str) -> str:
    """Return a table and the lines below it as text."""
    console = Console(width=max(80, shutil.get_terminal_size().columns), highlight=False)
    with console.capture() as capture:
        console.print(table)
        for note in notes:
            console.print(note, markup=False, soft_wrap=True)
    return capture.get().rstrip()
