"""Where the material beside the project lies: real tokenizers, sample rows, recorded exchanges.

Comes out: `SHARED`, a folder that may be absent; tests that need it skip with a reason.
EAGLE3_DATA_SHARED moves it.
"""

import os
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("EAGLE3_DATA_SHARED") or SUPPORT.parents[2] / "shared")
