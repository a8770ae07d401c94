"""The length report as one HTML page: no network, no script, readable on a phone.

Goes in: a `LengthReport`. Comes out: HTML whose figures are embedded, whose tables are those of the card, and which
carries `lengths.json` in a data block, so that what is read and what is shown are one file.
"""

import json
from pathlib import Path
from typing import Any, Final

import jinja2

from eagle3_data.errors import UsageError
from eagle3_data.lengths.report import LengthReport
from eagle3_data.lengths.statistics.comparison import NOTE, Comparison, comparison_tables
from eagle3_data.lengths.views import wording
from eagle3_data.lengths.views.tables import Table, report_tables
from eagle3_data.lengths.views.text import compact_tables, cut_caps
from eagle3_data.run_folder import atomic_file

_TEMPLATE: Final = Path(__file__).with_name("page.html.j2")
_CAPTIONS: Final = {
    "mixture": "Share of each source, by rows and by tokens",
    "completion_histogram": "Completion lengths; hatched rows were cut and are longer than shown",
    "survival": "Completions longer than a length, with 95 % bands",
    "reasoning_histogram": "Reasoning lengths; hatched rows were cut while thinking",
    "prompt_histogram": "Prompt lengths",
}
_VERDICTS: Final = {
    "enough": "cap is enough",
    "likely": "cap is likely enough",
    "too_small": "cap is too small",
    "cannot_tell": "cannot tell yet",
}


def render_page(report: LengthReport, title: str = "Lengths", comparison: Comparison | None = None) -> str:
    """Return the page of a report, and below it how the report compares with another, where that is given.

    Without matplotlib the page has no figures and says what to install.
    """
    from eagle3_data.lengths.views.figures import svg_uris

    try:
        drawn, missing = svg_uris(report), ""
    except UsageError as error:
        drawn, missing = {}, str(error)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    values = report.to_dict()
    return template.render(
        title=title,
        values=values,
        sources=[_source(name, section) for name, section in values["sources"].items()],
        figures=[(name, caption, drawn[name]) for name, caption in _CAPTIONS.items() if name in drawn],
        missing=missing,
        compact=[_table(table) for table in compact_tables(values)],
        tables=[_table(table) for table in report_tables(values)],
        comparison=_comparison(comparison.to_dict()) if comparison else None,
        wording=wording,
        # A "<" in a name could end the block, or begin something else.
        data=json.dumps(values, sort_keys=True, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
    )


def write_page(report: LengthReport, path: Path, title: str = "Lengths", comparison: Comparison | None = None) -> None:
    """Write the page, whole or not at all; see `render_page`."""
    html = render_page(report, title, comparison)
    with atomic_file(path) as file:
        file.write(html.encode())


def _source(name: str, section: dict[str, Any]) -> dict[str, Any]:
    advice = section["advice"]
    completion = section["lengths"]["completion"]
    return {
        "name": name,
        "verdict": advice["verdict"],
        "badge": _VERDICTS[advice["verdict"]],
        "line": advice["line"].replace(" %", "\u00a0%"),
        "command": advice["command"],
        "words": [sentence.replace(" %", "\u00a0%") for sentence in advice["words"]],
        "facts": [
            ("rows", wording.tokens(section["rows"])),
            ("median", wording.tokens_with_interval(completion["quantiles"]["p50"], completion["known_until"])),
            ("truncated", wording.share_with_interval(section["truncated"]["share"]).replace(" %", "\u00a0%")),
            ("cap of the cut rows", cut_caps(section)),
        ],
    }


def _comparison(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": " and ".join(values["names"]),
        "words": values["words"],
        "note": NOTE,
        "tables": [_table(table) for table in comparison_tables(values)],
    }


def _table(table: Table) -> dict[str, Any]:
    rows = [[cell.replace("**", "") for cell in row] for row in table.rows]
    return {"name": table.name, "title": table.title, "columns": table.columns, "rows": rows, "note": table.note}
