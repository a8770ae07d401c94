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
from eagle3_data.lengths.views.advice import cost_short
from eagle3_data.lengths.views.tables import FITS, Table, at_least, report_tables, sections

_PROSE_WIDTH: Final = 120
_JOINED: Final = "\ue000"  # stands for a space at which no line may end; rich breaks at any that Unicode knows
_NAME_WIDTH: Final = 24  # names are wrapped no narrower than this
_COMMAND_INDENT: Final = "  "


def to_text(values: Mapping[str, Any], width: int | None = None, *, full: bool = False) -> str:
    """Return a report for a terminal: what to do first, then the figures.

    Args:
        values: `LengthReport.to_dict()`.
        width: columns; by default this terminal's, at least 80, and where there is none (a file, a pipe) as many as
            the tables need.
        full: every table with every interval and every sentence, instead of the compact view.
    """
    printer = Printer(width)
    sources = values["sources"]
    records, written = values["whole"]["rows"], values["whole"]["tokens"]["completion"]
    printer.line(
        f"Lengths of {wording.count(records, 'record')} from {wording.count(len(sources), 'source')}, "
        f"{wording.short(written)} output tokens; intervals at {wording.percent(values['confidence'])}"
    )
    printer.line("")
    for name, section in sources.items():
        advice = section["advice"]
        if full:
            printer.line("• " + " ".join(advice["words"]))
            continue
        printer.line(f"{name}: {advice['line']}")
        if advice["command"]:
            printer.command(advice["command"], cost_short(advice))
    for line in values["remarks"]:
        printer.line(f"• {line}")
    for table in report_tables(values) if full else compact_tables(values, printer.width):
        printer.table(table)
    if not full:
        printer.line("Why, and every interval: --full; as a page: --html F")
    return printer.text()


def compact_tables(values: Mapping[str, Any], width: int = 0) -> list[Table]:
    """Return the tables of the compact view: completions and their cap, prompts and what fits a context.

    Where `width` columns (0: any number) are too few, intervals are left out, then the mean and p99.
    """
    forms = [_completions(values, detail) for detail in (2, 1, 0)]
    completions = next((form for form in forms if not width or natural_width(form) <= width), forms[-1])
    return [completions, *([_prompts(values)] if values["whole"]["lengths"]["prompt"]["count"] else [])]


def _completions(values: Mapping[str, Any], detail: int) -> Table:
    thinks = bool(values["whole"]["tokens"]["reasoning"])

    def row(name: str, section: Mapping[str, Any]) -> list[str]:
        lengths = section["lengths"]["completion"]
        quantiles, until = lengths["quantiles"], lengths["known_until"]
        share = section["truncated"]["share"]
        return [
            name,
            wording.tokens(section["rows"]),
            wording.tokens_with_interval(quantiles["p50"], until) if detail else _quantile(lengths, "p50"),
            _quantile(lengths, "p95"),
            *([_quantile(lengths, "p99"), at_least(lengths, "mean")] if detail else []),
            wording.share_with_interval(share) if detail > 1 else wording.share(share["value"]),
            cut_caps(section),
            *([wording.share(section["thinking"]["share_of_completion_tokens"])] if thinks else []),
        ]

    rows = [row(name, section) for name, section in sections(values).items()]
    columns = ["rows", "median", "p95", *(["p99", "mean"] if detail else []), "cut", "at cap"]
    return Table("truncation", "Output tokens", "source", [*columns, *(["thinking"] if thinks else [])], rows)


def _quantile(lengths: Mapping[str, Any], name: str) -> str:
    value, until = lengths["quantiles"][name]["value"], lengths["known_until"]
    return wording.tokens(value) if value is not None or until is None else f">{wording.tokens(until)}"


def cut_caps(section: Mapping[str, Any]) -> str:
    """Write the budgets that the cut rows had; where none was cut, the largest one."""
    cut = section["budgets_of_cut"]
    if cut["max"] is None:
        return wording.tokens(section["budgets"]["max"] or None)
    low, high = wording.tokens(cut["min"]), wording.tokens(cut["max"])
    return high if low == high else f"{low}–{high}"


def _prompts(values: Mapping[str, Any]) -> Table:
    rows = []
    for name, section in sections(values).items():
        prompt = section["lengths"]["prompt"]
        fits = [section["cutoffs"][str(limit)]["rows_whole"]["share"]["value"] for limit in FITS]
        cells = [_quantile(prompt, "p50"), _quantile(prompt, "p95"), wording.tokens(prompt["max"])]
        rows.append([name, *cells, *(wording.share(share) for share in fits)])
    columns = ["median", "p95", "max", *(f"fit {wording.tokens(limit)}" for limit in FITS)]
    return Table(
        "fits", "Prompt tokens, and rows (prompt + output) that fit a training length", "source", columns, rows
    )


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

    def command(self, text: str, comment: str = "") -> None:
        """Add a command, never wrapped, so that it can be copied; the comment where there is room for it."""
        whole = f"{_COMMAND_INDENT}{text}   # {comment}"
        self._parts.append(whole if comment and len(whole) <= (self.width or _PROSE_WIDTH) else _COMMAND_INDENT + text)

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
