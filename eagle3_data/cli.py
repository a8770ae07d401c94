"""`eagle3-data`, the command line: thin, it only parses, calls and prints.

Goes in: arguments. Comes out: results on stdout (for machines with --json), progress and complaints on stderr, and an
exit status: 0 done; 1 finished with failed rows, or violations found; 2 wrong usage or recipe; 3 the engine or the Hub
refused; 4 this machine (disk, permission, lock); 130 interrupted, and resumable.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eagle3_data import __version__
from eagle3_data.errors import Eagle3DataError, RecipeError, UsageError

Command = Callable[[argparse.Namespace], int]
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _quiet_libraries()
    from eagle3_data.run_folder import machine_errors

    command: Command = options.command
    as_json = getattr(options, "progress", "") == "json"
    try:
        with _json_log() if as_json else contextlib.nullcontext(), machine_errors(Path(getattr(options, "runs", "."))):
            return command(options)
    except Eagle3DataError as error:
        # a server's own words may have several lines; an error has one, and a recipe one for each mistake
        mistakes = str(error).splitlines() if isinstance(error, RecipeError) else [str(error)]
        for text in mistakes:
            _complain(" ".join(_redacted(text).split()), as_json)
        return error.exit_status
    except KeyboardInterrupt:
        _complain("interrupted; run the same command again to go on where it stopped", as_json)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output went away (| head): not our error, and nothing is left to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _json_log() -> contextlib.AbstractContextManager[None]:
    from eagle3_data.progress import json_log

    return json_log()


def _complain(text: str, as_json: bool) -> None:
    if as_json:
        from eagle3_data.progress import log_line
    print(log_line("error", text) if as_json else f"eagle3-data: {text}", file=sys.stderr)


def _redacted(text: str) -> str:
    """Blank the Hub's token, should a library have put it into an error."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if secret := os.environ.get(name):
            text = text.replace(secret, "***")
    return text


def _quiet_libraries() -> None:
    # read when transformers is first imported; it would say on every start that it found no torch
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()


def _print(value: Any, text: Callable[[], str], options: argparse.Namespace) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2) if options.json else text())


# -- commands
def _sources(options: argparse.Namespace) -> int:
    from eagle3_data.pipeline import sources as listing

    _print(listing.describe_sources(), listing.sources_text, options)
    return 0


def _recipe(options: argparse.Namespace) -> int:
    from eagle3_data.recipe import load_recipe
    from eagle3_data.recipe.documentation import json_schema, key_table

    if options.schema:
        print(json.dumps(json_schema(), ensure_ascii=False, indent=2))
    elif options.recipe is None:
        print(key_table())
    else:
        recipe = load_recipe(options.recipe)
        print(f"{recipe.file}: {recipe.name} is right; its sources are {', '.join(s.name for s in recipe.sources)}")
    return 0


def _prepare(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    result = pipeline.prepare(_run(options))
    _print(result.to_dict(), result.to_text, options)
    return 0


def _plan(options: argparse.Namespace) -> int:
    from eagle3_data.pipeline import plan as planning

    result = planning.plan(_run(options))
    _print(result.to_dict(), result.to_text, options)
    return 0


def _pilot(options: argparse.Namespace) -> int:
    from eagle3_data.pipeline import plan as planning

    result = planning.pilot(_run(options), rows=options.rows, high_cap=options.high_cap)
    _print(result.to_dict(), result.to_text, options)
    return 0


def _generate(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    if options.ray is not None:
        from eagle3_data.pipeline.generate_on_ray import generate_on_ray

        result = generate_on_ray(_run(options), options.ray)
    else:
        result = pipeline.generate(_run(options), shard=options.shard)
    _print(result.to_dict(), result.to_text, options)
    return result.exit_status


def _extend(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    caps = dict(options.max_new_tokens)
    if "" in caps and len(options.max_new_tokens) > 1:
        raise UsageError("--max-new-tokens: give one number for all sources, or SOURCE=N for each")
    result = pipeline.extend(_run(options), max_new_tokens=caps.get("", caps), sources=options.source)
    _print(result.to_dict(), result.to_text, options)
    return result.exit_status


def _check(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    report = pipeline.check(options.dataset)
    _print(report.to_dict(), report.to_text, options)
    return 0 if report.ok else 1


def _lengths(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline
    from eagle3_data.lengths import compare_lengths
    from eagle3_data.lengths.views.page import write_page
    from eagle3_data.run_folder import write_json

    report = pipeline.measure(options.dataset)
    comparison = None
    if options.other:
        names = (options.dataset, options.other)
        comparison = compare_lengths(report, pipeline.measure(options.other), names)
    if options.html:
        write_page(report, Path(options.html), f"Lengths of {options.dataset}", comparison)
    result = comparison or report
    if options.json_file == "-":
        print(json.dumps(result.to_dict(), ensure_ascii=False, indent=2))
        return 0
    if options.json_file:
        write_json(Path(options.json_file), result.to_dict())
    print((comparison.to_text() if comparison else report.to_text(full=options.full)).rstrip("\n"))
    return 0


def _status(options: argparse.Namespace) -> int:
    from eagle3_data.pipeline import status

    if options.watch:
        status.watch(Path(options.run), as_json=options.json)
    else:
        found = status.status(Path(options.run))
        _print(found.to_dict(), found.to_text, options)
    return 0


def _vocab(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    print(
        pipeline.vocabulary(
            options.dataset, size=options.size, output=options.output, trust_remote_code=options.trust_remote_code
        ).to_text()
    )
    return 0


def _card(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    print(pipeline.card(Path(options.run), template=options.template, trust_remote_code=options.trust_remote_code))
    return 0


def _diff(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    report = pipeline.diff(options.dataset, options.other, trust_remote_code=options.trust_remote_code)
    _print(report.to_dict(), report.to_text, options)
    return 0


def _publish(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    report = pipeline.publish(
        [Path(run) for run in options.run],
        repo=options.repo,
        version=options.version_number,
        onto=options.onto,
        drop=options.drop,
        exclude_ids=Path(options.exclude_ids) if options.exclude_ids else None,
        training=options.training,
        private=options.private or None,
        gated=options.gated,
        create_pr=options.create_pr,
        dry_run=options.dry_run,
        allow_failed=options.allow_failed,
        branch=options.branch,
        drop_sources=options.drop_source,
        trust_remote_code=options.trust_remote_code,
    )
    _print(report.to_dict(), report.to_text, options)
    return 0


def _export(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    report = pipeline.export(
        options.dataset,
        to=options.to,
        output=options.output,
        max_length=options.max_length,
        overflow=options.overflow,
        min_loss_tokens=options.min_loss_tokens,
        per=options.per,
        drop=options.drop,
        split=None if options.split == "all" else options.split,
        sources=options.source or None,
        mix=dict(options.mix),
        shuffle=options.shuffle,
        format=options.format,
        shards=options.shards,
    )
    _print(report.to_dict(), report.to_text, options)
    return 0


def _show(options: argparse.Namespace) -> int:
    from eagle3_data.pipeline.show import Wanted, show

    wanted = Wanted(options.source, options.finish, options.id, options.n)
    texts = show(options.dataset, wanted, tokenizer=options.tokenizer, trust_remote_code=options.trust_remote_code)
    if sys.stdout.isatty():
        import pydoc

        pydoc.pager("\n\n".join(texts))
    else:
        for text in texts:
            print(text, end="\n\n")
    return 0


def _restore(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    result = pipeline.restore(Path(options.run), source=options.source, pack=options.pack)
    _print(result.to_dict(), result.to_text, options)
    return 0


def _serve(options: argparse.Namespace) -> int:
    from eagle3_data import engine as embedded
    from eagle3_data.pipeline.opening import key_of

    embedded.serve(
        options.model,
        host=options.host,
        port=options.port,
        deterministic=options.deterministic,
        slots=options.slots,
        context=options.context,
        api_key=key_of(options.api_key_env, "--api-key-env") if options.api_key_env else "",
        on_ready=lambda url: print(f"{url} answers /generate; Ctrl-C stops it", flush=True),
    )
    return 0


def _run_all(options: argparse.Namespace) -> int:
    from eagle3_data import pipeline

    result = pipeline.run(_run(options))
    _print(result.to_dict(), result.to_text, options)
    return result.exit_status


def _run(options: argparse.Namespace) -> Any:
    from eagle3_data import pipeline
    from eagle3_data.pipeline.consent import ask_consent

    run = pipeline.open_run(
        options.recipe, runs=Path(options.runs), progress=options.progress, settings=_settings(options)
    )
    ask_consent(run.recipe, yes=options.yes)
    return run


def _settings(options: argparse.Namespace) -> Any:
    from eagle3_data.recipe import Settings

    return Settings(
        overlay=Path(options.overlay) if options.overlay else None,
        urls=tuple(options.url),
        api_key_env=options.api_key_env,
        trust_remote_code=options.trust_remote_code,
        publish=getattr(options, "publish", None),
        use_token=options.use_token,
    )


# -- arguments
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eagle3-data",
        description="Training data for EAGLE-3 drafters, written by the target model itself, token for token.",
        epilog="RECIPE is a path, the name of a shipped recipe, or hf://datasets/org/name@v1.0.0. "
        "DATASET is a run folder, Parquet files or a Hub data set.",
    )
    parser.add_argument("--version", action="version", version=f"eagle3-data {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Command, text: str, *, recipe: bool = False, json_flag: bool = True) -> Any:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(command=command)
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

    add("sources", _sources, "what sources there are: upstream, licence, configs, rows, quirks handled")
    sub = add("recipe", _recipe, "check a recipe; without one, list every key", json_flag=False)
    sub.add_argument("recipe", metavar="RECIPE", nargs="?", help="a path, the name of a shipped recipe, or hf://…")
    sub.add_argument("--schema", action="store_true", help="print the JSON Schema for editors")
    add("prepare", _prepare, "read the raw rows and write the prompts, with the table of rejects", recipe=True)
    add("plan", _plan, "dry run: token profile, prompt lengths, budgets, the first prompt, cost", recipe=True)
    sub = add("pilot", _pilot, "a random sample under a high cap, then the cap that each source needs", recipe=True)
    sub.add_argument(
        "--rows",
        type=_positive,
        help="prompts of each source (default: as its truncation_target needs, 474 for 1 %%)",
    )
    sub.add_argument("--high-cap", type=_positive, help="the cap of the pilot (default: all that the context allows)")
    sub = add("generate", _generate, "ask the target for what has no answer yet", recipe=True)
    sub.add_argument("--shard", type=_shard, metavar="I/N", help="only this share of the prompts; shards are 0 … N-1")
    sub.add_argument("--ray", metavar="ADDRESS", help="run the shards on a Ray cluster that shares this folder")
    sub = add("extend", _extend, "continue the truncated rows from where they were cut, and only those", recipe=True)
    sub.add_argument(
        "--max-new-tokens",
        type=_cap,
        action="append",
        required=True,
        metavar="[SOURCE=]N",
        help="the new cap of every source, or of one; may be repeated",
    )
    sub.add_argument("--source", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    sub = add("check", _check, "verify every invariant of a record")
    sub.add_argument("dataset", metavar="DATASET")
    _add_trust(sub)
    sub = add(
        "lengths",
        _lengths,
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
    sub = add("show", _show, "records decoded, control tokens visible", json_flag=False)
    sub.add_argument("dataset", metavar="DATASET")
    sub.add_argument("--source", default="", metavar="S", help="of this source")
    sub.add_argument("--n", type=_positive, default=3, metavar="N", help="so many records (default: 3)")
    sub.add_argument("--finish", default="", metavar="REASON", help="with this finish_reason, such as length_cap")
    sub.add_argument("--id", default="", metavar="SAMPLE_ID", help="with this sample_id, or one that begins so")
    sub.add_argument("--tokenizer", default="", metavar="MODEL", help="decode with it (default: the run's)")
    _add_trust(sub)
    sub = add("diff", _diff, "rows added, removed, extended or changed between two data sets, by source")
    sub.add_argument("dataset", metavar="DATASET")
    sub.add_argument("other", metavar="OTHER")
    _add_trust(sub)
    sub = add("restore", _restore, "a run's journal again from its records, or a run from a published version")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("--from", dest="source", metavar="hf://…", help="a published version, into a new run folder")
    sub.add_argument("--pack", action="store_true", help="remove the journal of a finished run, when records hold all")
    sub = add("status", _status, "a running or finished run from outside, without its lock")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("--watch", action="store_true", help="draw it anew every two seconds until it has ended")
    sub = add("vocab", _vocab, "draft vocabulary (d2t, t2d) with its coverage", json_flag=False)
    sub.add_argument("dataset", metavar="DATASET")
    _add_trust(sub)
    sub.add_argument("--size", type=_positive, default=32_000)
    sub.add_argument("-o", "--output", metavar="F", required=True)
    sub = add("card", _card, "write the data set card of a run", json_flag=False)
    sub.add_argument("run", metavar="RUN")
    _add_trust(sub)
    sub.add_argument("--template", metavar="F", help="a card template of your own")
    sub = add("publish", _publish, "put a version on the Hub")
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
    sub = add("export", _export, "rows that trainers read: input_ids (prompt + output) and loss_mask")
    sub.add_argument("dataset", metavar="DATASET")
    _add_trust(sub)
    sub.add_argument("--to", choices=("specforge", "speculators", "plain"), required=True)
    sub.add_argument("-o", "--output", metavar="F", required=True)
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
    sub.add_argument("--shards", type=_positive, default=1, metavar="N", help="write N files")
    sub = add("serve", _serve, "the embedded engine, speaking SGLang's /generate on loopback", json_flag=False)
    sub.add_argument("model", nargs="?", default="smollm2-135m", metavar="MODEL.gguf")
    sub.add_argument("--host", default="127.0.0.1")
    sub.add_argument("--port", type=int, default=30000)
    sub.add_argument("--slots", type=_positive, help="requests generated at once (default: 8)")
    sub.add_argument("--context", type=_positive, help="tokens a request may hold (default: 8192 at most)")
    sub.add_argument("--api-key-env", metavar="NAME", help="variable that holds the key requests must bring")
    sub.add_argument("--deterministic", action="store_true", help="one slot, no prompt cache: answers repeat exactly")
    sub = add("run", _run_all, "prepare, generate, check, lengths, card; publish when the recipe says so", recipe=True)
    sub.add_argument("--publish", metavar="org/name@1.0.0", help="publish there when the run is done")
    return parser


if __name__ == "__main__":
    sys.exit(main())
