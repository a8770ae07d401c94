"""The loop detector on real text and on planted loops: false alarms, recall, and what it costs.

    python tests/benchmarks/loops.py [--cuts N] [TOKENIZER ...]

Real text: the sample rows in the shared folder, and the source, JSON, Markdown and CSV files of this Python
installation, cut at random places as a cap would cut them. Planted loops: a passage of real text repeated behind real
text. Both under each tokenizer; the cost is measured on the real cuts.
"""

import argparse
import random
import sys
import sysconfig
import time
from collections import Counter
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rendering import texts
from support.shared import SHARED

from eagle3_data.loops import MIN_PERIODS, MIN_TOKENS, NEAR_SHARE, loop_tokens, near_loop_share

TOKENIZERS = ("kimi-k2.5", "qwen3")
KINDS = {".py": "code", ".json": "JSON", ".md": "Markdown", ".csv": "CSV", ".txt": "text"}
CHARACTERS = 60_000


def real_texts(per_kind: int) -> dict[str, list[str]]:
    """Return long texts by kind: the sample rows, and files of this installation."""
    pick = random.Random(0)
    found = {"sample rows": sorted(set(texts()))}
    files = sorted(path for path in Path(sysconfig.get_paths()["purelib"]).parent.rglob("*") if path.suffix in KINDS)
    pick.shuffle(files)
    for path in files:
        kept = found.setdefault(KINDS[path.suffix], [])
        if len(kept) < per_kind and path.is_file() and path.stat().st_size > 4_000:
            kept.append(path.read_bytes()[:CHARACTERS].decode(errors="replace"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", nargs="*", default=TOKENIZERS)
    parser.add_argument("--cuts", type=int, default=5_000, help="cuts of real text a tokenizer")
    options = parser.parse_args()
    kinds = real_texts(200)
    for name in options.tokenizers:
        tokenizer = Tokenizer.from_file(str(SHARED / "tokenizers" / name / "tokenizer.json"))
        ids = {
            kind: [
                np.array(encoding.ids, np.int32)
                for encoding in tokenizer.encode_batch(found, add_special_tokens=False)
                if len(encoding.ids) > 2 * MIN_TOKENS
            ]
            for kind, found in kinds.items()
        }
        pick = random.Random(1)
        cuts, alarms, suspected, tokens, exact, near = Counter(), Counter(), Counter(), 0, 0.0, 0.0  # type: ignore[var-annotated]
        pools = [(kind, rows) for kind, rows in ids.items() if rows]
        for _ in range(options.cuts):
            kind, rows = pick.choice(pools)
            row = pick.choice(rows)
            cut = row[: pick.randrange(MIN_TOKENS + 1, len(row) + 1)]
            started = time.perf_counter()
            loop = loop_tokens(cut)
            middle = time.perf_counter()
            share = near_loop_share(cut)
            exact, near = exact + middle - started, near + time.perf_counter() - middle
            cuts[kind] += 1
            alarms[kind] += loop > 0
            suspected[kind] += share > NEAR_SHARE
            tokens += len(cut)
        shown = ", ".join(f"{kind} {alarms[kind]} of {cuts[kind]:,} ({suspected[kind]} suspected)" for kind in cuts)
        print(f"{name}: false alarms {sum(alarms.values())} of {options.cuts:,} cuts: {shown}")
        print(f"{name}: {exact / tokens * 1e6:.4f} s a million tokens, near loops {near / tokens * 1e6:.4f} s")
        long = [row for _, rows in pools for row in rows if len(row) > 1_200]
        for period in (1, 3, 10, 40, 120, 250, 400, 500):
            hits = 0
            for _ in range(300):
                row = pick.choice(long)
                start = pick.randrange(len(row) - period)
                repeated = max(MIN_TOKENS, (MIN_PERIODS - 1) * period) + pick.randrange(2_000)
                looping = np.resize(row[start : start + period], period + repeated)
                hits += loop_tokens(np.concatenate([row[:start], looping])) >= repeated
            print(f"{name}: period {period}: {hits} of 300 planted loops found")


if __name__ == "__main__":
    main()
