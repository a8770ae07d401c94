"""The terminal view of a length report: a compact one, or every table.

Goes in: `LengthReport.to_dict()`. Comes out: text laid out by rich, without colour codes, for stdout.
"""

import io
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from eagle3_data.lengths.views import wording
from eagle3_data.lengths.views.tables import MEASURE_TITLES, Table, report_tables, sections

_PROSE_WIDTH: Final = 120
_JOINED: Final = "\ue000"  # stands for a space at which no line may end; rich breaks at any that Unicode knows
_NAME_WIDTH: Final = 24  # names are wrapped no narrower than this
_SHOWN: Final = ("p5", "p25", "p50", "p75", "p95", "p99")


def to_text(values: Mapping[str, Any], width: int | None = None, *, full: bool = False) -> str:
    """Return a report for a terminal.

    Args:
        values: `LengthReport.to_dict()`.
        width: columns; by default this terminal's, at least 80, and where there is none (a file, a pipe) as many as
            the tables need.
        full: every table with every interval, instead of the compact view.
    """
    printer = Printer(width)
    for table in report_tables(values) if full else compact_tables(values, printer.width):
        printer.table(table)
    for line in values["remarks"]:
        printer.line(f"• {line}")
    for section in values["sources"].values():
        printer.line("")
        printer.line("• " + " ".join(section["advice"]["words"]))
    return printer.text()


def compact_tables(values: Mapping[str, Any], width: int = 0) -> list[Table]:
    """Return the tables of the compact view: truncation, the four distributions, shares under thresholds.

    Where `width` columns (0: any number) are too few for them, p99 and the shares of rows and tokens are left out.
    """
    wide = _truncation(values, wide=True)
    fits = not width or natural_width(wide) <= width
    return [wide if fits else _truncation(values, wide=False), *_distributions(values)]


def _truncation(values: Mapping[str, Any], *, wide: bool) -> Table:
    shown = sections(values)
    several = len(shown) > 1 and wide
    caps = {name: section["advice"]["cap"] for name, section in values["sources"].items()}
    rows = [
        [
            name,
            wording.tokens(section["rows"]),
            *([wording.share(section["row_share"]), wording.share(section["token_share"])] if several else []),
            wording.tokens(caps.get(name, max((cap for cap in caps.values() if cap is not None), default=None))),
            wording.share_with_interval(section["truncated"]["share"]),
            *(
                wording.tokens_with_interval(
                    section["lengths"]["completion"]["quantiles"][q], section["lengths"]["completion"]["known_until"]
                )
                for q in (("p50", "p99") if wide else ("p50",))
            ),
        ]
        for name, section in shown.items()
    ]
    percent = wording.percent(values["confidence"])
    columns = [
        "rows",
        *(["of all rows", "of all tokens"] if several else []),
        "cap",
        "truncated",
        "median",
        *(["p99"] if wide else []),
    ]
    return Table("truncation", f"Completions and their cap, with {percent} intervals", "source", columns, rows)


def _distributions(values: Mapping[str, Any]) -> list[Table]:
    shown = sections(values)
    tables = []
    thinks = bool(values["whole"]["tokens"]["reasoning"])
    measures = [name for name in MEASURE_TITLES if thinks or name in ("prompt", "completion")]
    for measure in measures:
        title = MEASURE_TITLES[measure]
        rows = [[name, *_cells(section["lengths"][measure])] for name, section in shown.items()]
        names = ["mean", "sd", "min", *("median" if q == "p50" else q for q in _SHOWN), "max"]
        note = "" if thinks or measure == "prompt" else "No row holds reasoning, so the answer is the completion."
        tables.append(Table(measure, title, "source", names, rows, note))
    limits = sorted(values["whole"]["lengths"]["completion"]["under"], key=int)
    under = [
        [f"{name} {measure}", *(_under(section["lengths"][measure]["under"][limit]) for limit in limits)]
        for measure in measures
        if measure != "answer"
        for name, section in shown.items()
    ]
    tables.append(Table("under", "Shares of rows under", "", [wording.tokens(int(x)) for x in limits], under))
    return tables


def _cells(lengths: Mapping[str, Any]) -> list[str]:
    def quantile(name: str) -> str:
        value = lengths["quantiles"][name]["value"]
        until = lengths["known_until"]
        return wording.tokens(value) if value is not None or until is None else f">{wording.tokens(until)}"

    plain = [wording.tokens(lengths["mean"]["value"]), wording.tokens(lengths["sd"]), wording.tokens(lengths["min"])]
    return [*plain, *(quantile(name) for name in _SHOWN), wording.tokens(lengths["max"])]


def _under(cell: Mapping[str, Any]) -> str:
    if cell["value"] is None and cell["low"]:
        return f"≥{wording.share(cell['low'])}"
    return wording.share(cell["value"])


class Printer:
    """Lays tables and lines out as text, without colours. A table wider than there are columns is not cut."""

    def __init__(self, width: int | None = None) -> None:
        given = width or (max(80, shutil.get_terminal_size().columns) if _on_terminal() else 0)
        self.width = given  # 0: as wide as the tables are
        self._parts: list[str] = []

    def table(self, table: Table) -> None:
        """Add a table, and its note below it."""
        natural, least = natural_width(table), natural_width(table, names=_NAME_WIDTH)
        self._add(layout(table), max(least, min(natural, self.width or natural)))
        if table.note:
            self.line(table.note)

    def line(self, text: str) -> None:
        """Add a line, wrapped, though not between a number and its %."""
        self._add(Text(text.replace(" %", f"{_JOINED}%")), self.width or _PROSE_WIDTH)

    def text(self) -> str:
        """Return what was added."""
        return "\n".join(self._parts) + "\n"

    def _add(self, content: RichTable | Text, width: int) -> None:
        console = _console(width)
        with console.capture() as capture:
            console.print(content)
        self._parts += [line.rstrip().replace(_JOINED, " ") for line in capture.get().splitlines()]


def _on_terminal() -> bool:
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def _console(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, color_system=None, legacy_windows=False)


def natural_width(table: Table, names: int | None = None) -> int:
    """Return the columns a table needs unwrapped, or with its names wrapped at `names` characters."""
    console = _console(100_000)
    laid = layout(table)
    if names is not None:
        laid.columns[0].max_width = names
    return console.measure(laid).maximum


def layout(table: Table) -> RichTable:
    """Lay a table out for the terminal."""
    laid = RichTable(title=table.title, box=SIMPLE_HEAD, pad_edge=False, padding=0, title_justify="left")
    laid.add_column(table.corner, overflow="fold")
    for column in table.columns:
        laid.add_column(column, justify="right", no_wrap=True, overflow="fold")
    for row in table.rows:
        laid.add_row(*(Text(cell.replace("**", "")) for cell in row))
    return laid
