"""`eagle3-data`, the command line: calls what the arguments name, and prints what comes of it.

Goes in: arguments. Comes out: results on stdout (for machines with --json), progress and errors on stderr, and the
exit status that `errors` gives each kind of error: 0 done; 1 finished with failed rows, or violations found; 130
interrupted.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from eagle3_data import arguments
from eagle3_data.errors import INTERRUPTED, INTERRUPTED_TEXT, Eagle3DataError, RecipeError, UsageError

Command = Callable[[argparse.Namespace], int]


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = arguments.parser().parse_args(words)
    as_json = getattr(options, "progress", "") == "json"
    try:
        _quiet_libraries()
        from eagle3_data.run_folder import machine_errors

        with _json_log() if as_json else contextlib.nullcontext(), machine_errors(Path(getattr(options, "runs", "."))):
            return COMMANDS[options.command](options)
    except Eagle3DataError as error:
        # a server's own words may have several lines; an error has one, and a recipe one for each mistake
        mistakes = str(error).splitlines() if isinstance(error, RecipeError) else [str(error)]
        for text in mistakes:
            _report(" ".join(_redacted(text).split()), as_json)
        return error.exit_status
    except KeyboardInterrupt:
        _report(INTERRUPTED_TEXT, as_json)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output went away (| head): not our error, and nothing is left to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _json_log() -> contextlib.AbstractContextManager[None]:
    from eagle3_data.progress import json_log

    return json_log()


def _report(text: str, as_json: bool) -> None:
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
    from eagle3_data.pipeline.plan import plan

    result = plan(_run(options))
    _print(result.to_dict(), result.to_text, options)
    if result.trouble:
        sys.stdout.flush()
        _report(f"budgets are not known, because no server was asked: {result.trouble}", options.progress == "json")
    return 0


def _pilot(options: argparse.Namespace) -> int:
    from eagle3_data.pipeline.pilot import pilot

    result = pilot(_run(options), rows=options.rows, high_cap=options.high_cap)
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


def _whole_run(options: argparse.Namespace) -> int:
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


COMMANDS: Final[dict[str, Command]] = {
    "sources": _sources,
    "recipe": _recipe,
    "prepare": _prepare,
    "plan": _plan,
    "pilot": _pilot,
    "generate": _generate,
    "extend": _extend,
    "check": _check,
    "lengths": _lengths,
    "show": _show,
    "diff": _diff,
    "restore": _restore,
    "status": _status,
    "vocab": _vocab,
    "card": _card,
    "publish": _publish,
    "export": _export,
    "serve": _serve,
    "run": _whole_run,
}
