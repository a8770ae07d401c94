"""The arguments of `eagle3-data`: every command, its flags, and an example of each.

Goes in: nothing. Comes out: a parser whose result names the command in `command`. Imports nothing heavy, so that
`--help` answers at once.
"""

import argparse
from typing import Any, Final

from eagle3_data import __version__

EXAMPLES: Final = {
    "sources": "eagle3-data sources",
    "recipe": "eagle3-data recipe mine.yaml",
    "prepare": "eagle3-data prepare mine.yaml",
    "plan": "eagle3-data plan mine.yaml",
    "pilot": "eagle3-data pilot mine.yaml --rows 500",
    "generate": "eagle3-data generate mine.yaml --shard 0/4",
    "extend": "eagle3-data extend mine.yaml --max-new-tokens B5_openthoughts=32768",
    "check": "eagle3-data check runs/mine",
    "lengths": "eagle3-data lengths runs/mine --html lengths.html",
    "show": "eagle3-data show runs/mine --source B1_glaive --finish length_cap",
    "diff": "eagle3-data diff org/name@v1.0.0 org/name@v1.1.0",
    "restore": "eagle3-data restore runs/mine --from hf://datasets/org/name@v1.0.0",
    "status": "eagle3-data status runs/mine --watch",
    "vocab": "eagle3-data vocab runs/mine --size 32000 -o vocab",
    "card": "eagle3-data card runs/mine",
    "publish": "eagle3-data publish runs/mine --repo org/name --version auto --dry-run",
    "export": "eagle3-data export runs/mine --to specforge -o train.jsonl",
    "serve": "eagle3-data serve model.gguf --port 30000",
    "run": "eagle3-data run quickstart",
}


def _add_trust(sub: Any) -> None:
    sub.add_argument("--trust-remote-code", action="store_true", help="run the code that comes with the tokenizer")


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    try:
        shard = int(index), int(count)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N, such as 0/4") from None
    if not 0 <= shard[0] < shard[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: shards are 0/N to N-1/N")
    return shard


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _weight(text: str) -> tuple[str, float]:
    name, _, weight = text.rpartition("=")
    try:
        return name, float(weight)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write SOURCE=WEIGHT, as in B1_glaive=0.5") from None


def _cap(text: str) -> tuple[str, int]:
    name, _, cap = text.rpartition("=")
    return name, _positive(cap)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="eagle3-data",
        description="Training data for EAGLE-3 drafters, written by the target model itself, token for token.",
        epilog="RECIPE is a path, the name of a shipped recipe, or hf://datasets/org/name@v1.0.0. "
        "DATASET is a run folder, Parquet files or a Hub data set.",
    )
    top.add_argument("--version", action="version", version=f"eagle3-data {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, text: str, *, recipe: bool = False, json_flag: bool = True) -> Any:
        sub = commands.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", epilog=f"example: {EXAMPLES[name]}"
        )
        if recipe:
            sub.add_argument(
                "recipe", metavar="RECIPE", help="a path, the name of a shipped recipe, or hf://datasets/…"
            )
            sub.add_argument("--runs", default="runs", metavar="DIR", help="where run folders lie (default: runs)")
            sub.add_argument("--progress", choices=("auto", "bar", "json", "none"), default="auto", help="on stderr")
            own = sub.add_argument_group(
                "yours to decide", "These win over the recipe; one from the Hub (hf://…) decides none of them."
            )
            own.add_argument("--with", dest="overlay", metavar="F", help="a YAML file laid over the recipe")
            own.add_argument("--url", action="append", default=[], help="a server to ask; may be repeated")
            own.add_argument("--api-key-env", metavar="NAME", help="variable that holds the servers' key")
            _add_trust(own)
            own.add_argument("--use-token", action="store_true", help="read a Hub recipe's data with your HF_TOKEN")
            own.add_argument("--yes", action="store_true", help="do not ask before a recipe from the Hub is run")
        if json_flag:
            sub.add_argument("--json", action="store_true", help="print the result as JSON")
        return sub

    add("sources", "what sources there are: upstream, licence, configs, rows, quirks handled")
    sub = add("recipe", "check a recipe; without one, list every key", json_flag=False)
    sub.add_argument("recipe", metavar="RECIPE", nargs="?", help="a path, the name of a shipped recipe, or hf://…")
    sub.add_argument("--schema", action="store_true", help="print the JSON Schema for editors")
    add("prepare", "read the raw rows and write the prompts, with the table of rejects", recipe=True)
    add("plan", "dry run: token profile, prompt lengths, budgets, the first prompt, cost", recipe=True)
    sub = add("pilot", "a random sample under a high cap, then the cap that each source needs", recipe=True)
    sub.add_argument(
        "--rows",
        type=_positive,
        help="prompts of each source (default: as its truncation_target needs, 474 for 1 %%)",
    )
    sub.add_argument("--high-cap", type=_positive, help="the cap of the pilot (default: all that the context allows)")
    sub = add("generate", "ask the target for what has no answer yet", recipe=True)
    sub.add_argument("--shard", type=_shard, metavar="I/N", help="only this share of the prompts; shards are 0 … N-1")
    sub.add_argument("--ray", metavar="ADDRESS", help="run the shards on a Ray cluster that shares this folder")
    sub = add("extend", "continue the truncated rows from where they were cut, and only those", recipe=True)
    sub.add_argument(
        "--max-new-tokens",
        type=_cap,
        action="append",
        required=True,
        metavar="[SOURCE=]N",
        help="the new cap of every source, or of one; may be repeated",
    )
    sub.add_argument("--source", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    sub = add("check", "verify every invariant of a record")
    sub.add_argument("dataset", metavar="DATASET")
    _add_trust(sub)
    sub = add(
        "lengths",
        "length distributions, truncation and advice; two data sets: the comparison",
        json_flag=False,
    )
    sub.add_argument("dataset", metavar="DATASET")
    _add_trust(sub)
    sub.add_argument("other", metavar="OTHER", nargs="?")
    sub.add_argument(
        "--json", dest="json_file", metavar="F", help="also write the numbers to this file (- for stdout)"
    )
    sub.add_argument("--html", metavar="F", help="also write a page that needs no network")
    sub.add_argument("--full", action="store_true", help="every table with every interval, as the card has them")
    sub = add("show", "records decoded, control tokens visible", json_flag=False)
    sub.add_argument("dataset", metavar="DATASET")
    sub.add_argument("--source", default="", metavar="S", help="of this source")
    sub.add_argument("--n", type=_positive, default=3, metavar="N", help="so many records (default: 3)")
    sub.add_argument("--finish", default="", metavar="REASON", help="with this finish_reason, such as length_cap")
    sub.add_argument("--id", default="", metavar="SAMPLE_ID", help="with this sample_id, or one that begins so")
    sub.add_argument("--tokenizer", default="", metavar="MODEL", help="decode with it (default: the run's)")
    _add_trust(sub)
    sub = add("diff", "rows added, removed, extended or changed between two data sets, by source")
    sub.add_argument("dataset", metavar="DATASET")
    sub.add_argument("other", metavar="OTHER")
    _add_trust(sub)
    sub = add("restore", "a run's journal again from its records, or a run from a published version")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("--from", dest="source", metavar="hf://…", help="a published version, into a new run folder")
    sub.add_argument("--pack", action="store_true", help="remove the journal of a finished run, when records hold all")
    sub = add("status", "a running or finished run from outside, without its lock")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("--watch", action="store_true", help="draw it anew every two seconds until it has ended")
    sub = add("vocab", "draft vocabulary (d2t, t2d) with its coverage", json_flag=False)
    sub.add_argument("dataset", metavar="DATASET")
    _add_trust(sub)
    sub.add_argument("--size", type=_positive, default=32_000)
    sub.add_argument("-o", "--output", metavar="F", required=True)
    sub = add("card", "write the data set card of a run", json_flag=False)
    sub.add_argument("run", metavar="RUN")
    _add_trust(sub)
    sub.add_argument("--template", metavar="F", help="a card template of your own")
    sub = add("publish", "put a version on the Hub")
    sub.add_argument("run", nargs="+", metavar="RUN", help="run folders of one target, oldest first")
    _add_trust(sub)
    sub.add_argument("--repo", required=True, metavar="org/name")
    sub.add_argument(
        "--version", dest="version_number", required=True, metavar="1.0.0", help="or auto: count on from the last one"
    )
    sub.add_argument("--onto", metavar="v1.0.0", help="a version of the same repository, whose rows come first")
    sub.add_argument("--drop", type=_names, default=(), metavar="A,B", help="leave out: loop, cut, cap, context")
    sub.add_argument("--exclude-ids", metavar="F", help="a file of sample_ids to leave out, in later versions too")
    sub.add_argument(
        "--training",
        choices=("specforge", "speculators", "plain"),
        help="also publish a config train_rows, which trainers read as it is",
    )
    sub.add_argument("--branch", default="main", help="the branch that takes the commit (default: main)")
    sub.add_argument(
        "--drop-source", action="append", default=[], metavar="NAME", help="leave a source out; may be repeated"
    )
    sub.add_argument("--gated", choices=("auto", "manual"), help="readers ask for access, granted at once or by hand")
    for flag, text in (
        ("--private", "create the repository private"),
        ("--create-pr", "open a pull request instead of committing"),
        ("--dry-run", "list files, sizes and the card; send nothing"),
        ("--allow-failed", "publish although rows failed; the card says how many"),
    ):
        sub.add_argument(flag, action="store_true", help=text)
    sub = add("export", "rows that trainers read: input_ids (prompt + output) and loss_mask")
    sub.add_argument("dataset", metavar="DATASET")
    _add_trust(sub)
    sub.add_argument("--to", choices=("specforge", "speculators", "plain"), required=True)
    sub.add_argument(
        "-o", "--output", metavar="F", required=True, help="F.jsonl, F.parquet, or a folder (Arrow): see --format"
    )
    sub.add_argument("--max-length", type=_positive, help="longest row in tokens (default: whole rows)")
    sub.add_argument(
        "--overflow", choices=("truncate", "drop"), default="truncate", help="what happens to longer rows"
    )
    sub.add_argument(
        "--min-loss-tokens", type=_positive, default=1, metavar="N", help="least output tokens of a row (default: 1)"
    )
    sub.add_argument(
        "--per",
        choices=("turn", "dialogue"),
        default="turn",
        help="dialogue joins turns whose ids continue one another",
    )
    sub.add_argument("--drop", type=_names, default=(), metavar="A,B", help="leave out: loop, cut, cap, context")
    sub.add_argument("--split", choices=("train", "validation", "all"), default="train")
    sub.add_argument("--source", action="append", metavar="NAME", help="only this source; may be repeated")
    sub.add_argument(
        "--mix", nargs="+", type=_weight, default=(), metavar="SOURCE=W", help="rows of a source W times: 0.5, or 2"
    )
    sub.add_argument("--shuffle", type=int, metavar="SEED", help="write the rows in a random order")
    sub.add_argument("--format", choices=("jsonl", "parquet", "arrow"), help="default: by the ending of F")
    sub.add_argument(
        "--shards", type=_positive, default=1, metavar="N", help="write N files (not for SpecForge, which reads one)"
    )
    sub = add("serve", "the embedded engine, speaking SGLang's /generate on loopback", json_flag=False)
    sub.add_argument("model", nargs="?", default="smollm2-135m", metavar="MODEL.gguf")
    sub.add_argument("--host", default="127.0.0.1")
    sub.add_argument("--port", type=int, default=30000)
    sub.add_argument("--slots", type=_positive, help="requests generated at once (default: 8)")
    sub.add_argument("--context", type=_positive, help="tokens a request may hold (default: 8192 at most)")
    sub.add_argument("--api-key-env", metavar="NAME", help="variable that holds the key requests must bring")
    sub.add_argument("--deterministic", action="store_true", help="one slot, no prompt cache: answers repeat exactly")
    sub = add("run", "prepare, generate, check, lengths, card; publish when the recipe says so", recipe=True)
    sub.add_argument("--publish", metavar="org/name@1.0.0", help="publish there when the run is done")
    return top
