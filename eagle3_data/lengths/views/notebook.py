"""The length report in a notebook: its compact tables and sentences as an HTML fragment.

Goes in: the values of `lengths.json`. Comes out: HTML, every value escaped.
"""

from collections.abc import Mapping
from typing import Any, Final

import jinja2

from eagle3_data.lengths.views.text import compact_tables

_FRAGMENT: Final = """{% for table, rows in tables %}
<table><caption>{{ table.title }}</caption>
<thead><tr>{% for column in table.columns %}<th>{{ column }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table>
{% endfor %}
<ul>{% for sentence in sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>"""


def render_tables(values: Mapping[str, Any]) -> str:
    """Return the compact tables and what they say as an HTML fragment, for a notebook."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    sentences = [words for section in values["sources"].values() for words in section["advice"]["words"]]
    tables = [
        (table, [[cell.replace("**", "") for cell in row] for row in table.rows]) for table in compact_tables(values)
    ]
    return environment.from_string(_FRAGMENT).render(tables=tables, sentences=[*values["remarks"], *sentences])
