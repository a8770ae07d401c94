"""The sources of this package by name, and the table through which `datasets.load_dataset` finds a source.

Goes in: nothing. Comes out: names and module names, known without importing any of those modules, so that the package
can make them known to `datasets` at once.
"""

import functools
import hashlib
import sys
from pathlib import Path
from typing import Final

MODULES: Final = {
    "B1_glaive": "eagle3_data.sources.b1_glaive",
    "B4_mixturethoughts": "eagle3_data.sources.b4_mixturethoughts",
    "B5_openthoughts": "eagle3_data.sources.b5_openthoughts",
    "B8_sweagent": "eagle3_data.sources.b8_sweagent",
    "chat": "eagle3_data.sources.chat",
}


@functools.cache
def code_hash() -> str:
    """Return a hash over the code that prompts depend on, so that caches change when it does."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in sorted([*(here / "sources").glob("*.py"), here / "schema.py"]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def tell_datasets(name: str, module: str) -> None:
    """Make `load_dataset(name, …)` use the builder of a module, where `datasets` is loaded and has such a table."""
    # A private table, so its absence is no error: load_source does not need it.
    table = getattr(sys.modules.get("datasets.packaged_modules"), "_PACKAGED_DATASETS_MODULES", None)
    if isinstance(table, dict):
        table[name] = (module, code_hash())
