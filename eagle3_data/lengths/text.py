"""The terminal view of a length report: a compact one, or every table.

Goes in: `LengthReport.to_dict()`. Comes out: text laid out by rich, without colour codes, for stdout.
"""

import io
import shutil
from collections.abc import Mapping
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from eagle3_data.lengths import wording
from eagle3_data.lengths.tables import MEASURE_TITLES, Table, report_tables, sections

_SHOWN: Final = ("p5", "p25", "p50", "p75", "p95", "p99")


def to_text(values: Mapping[str, Any], width: int | None = None, *, full: bool = False) -> str:
    """Return a report for a terminal.

    Args:
        values: `LengthReport.to_dict()`.
        width: columns; by default this terminal's, at least 80.
        full: every table with every interval, instead of the compact view.
    """
    console = new_console(width)
    for table in report_tables(values) if full else compact_tables(values, console.width):
        console.print(layout(table))
    for line in values["remarks"]:
        console.print(f"• {line}", markup=False)
    for section in values["sources"].values():
        console.print()
        console.print("• " + " ".join(section["advice"]["words"]), markup=False)
    return captured(console)


def compact_tables(values: Mapping[str, Any], width: int = 120) -> list[Table]:
    """Return the tables of the compact view: truncation, the four distributions, shares under thresholds.

    On a terminal narrower than 120 columns p99 and the shares of rows and tokens are left out.
    """
    shown = sections(values)
    wide = width >= 120
    several = len(shown) > 1 and wide
    truncation = [
        [
            name,
            wording.tokens(section["rows"]),
            *([wording.share(section["row_share"]), wording.share(section["token_share"])] if several else []),
            wording.tokens(section["budgets"]["max"]),
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
    tables = [
        Table(
            "truncation",
            f"Completions and their cap, with {percent} intervals",
            "source",
            [
                "rows",
                *(["of rows", "of tokens"] if several else []),
                "cap",
                "truncated",
                "median",
                *(["p99"] if wide else []),
            ],
            truncation,
        )
    ]
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
    if cell["value"] is None and cell["low"] is not None:
        return f"≥{wording.share(cell['low'])}"
    return wording.share(cell["value"])


def new_console(width: int | None) -> Console:
    """Return a console that keeps what is printed, without colours."""
    columns = width or max(80, shutil.get_terminal_size((120, 40)).columns)
    return Console(file=io.StringIO(), width=columns, highlight=False, color_system=None, legacy_windows=False)


def captured(console: Console) -> str:
    """Return what was printed to `new_console`."""
    buffer = console.file
    assert isinstance(buffer, io.StringIO)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def layout(table: Table) -> RichTable:
    """Lay a table out for the terminal."""
    laid = RichTable(title=table.title, box=SIMPLE_HEAD, caption=table.note or None, pad_edge=False, padding=0)
    laid.title_justify = laid.caption_justify = "left"
    laid.add_column(table.corner, overflow="fold")
    for column in table.columns:
        laid.add_column(column, justify="right", no_wrap=True, overflow="fold")
    for row in table.rows:
        laid.add_row(*(cell.replace("**", "") for cell in row))
    return laid
