"""The last words of a run: what was made, what is wrong with it, what to do next, in ten lines at most.

Goes in: what the stages of a run gave. Comes out: text for the terminal. Tables and figures are what `lengths`,
`prepare` and `check` print.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from eagle3_data.check.report import CheckReport
from eagle3_data.lengths.views import wording
from eagle3_data.pipeline.generated import Generated, loop_costs
from eagle3_data.pipeline.prepare import Prepared
from eagle3_data.publishing import PublishReport

_MOST_WRONG: Final = 4
_MOST_NEXT: Final = 3
_MOST_SOURCES: Final = 5
_HIGHER: Final = ("extend", "raise")


def ending(
    prepared: Prepared,
    generated: Generated,
    checked: CheckReport | None,
    sections: Mapping[str, Any],
    card: Path | None,
    published: PublishReport | None,
    recipe: str,
) -> str:
    """Return the lines that end a run.

    Args:
        prepared, generated: what these stages gave.
        checked, card, published: what the later ones gave, None where it did not come to them.
        sections: of every source, as the length report's dictionary has them; empty without a report.
        recipe: how the user names the recipe on the command line.
    """
    wrong = list(_wrong(prepared, generated, checked, sections))
    made = _made(generated, card, published)
    following = _next(generated, checked, sections, recipe)
    if len(wrong) > _MOST_WRONG:
        wrong[_MOST_WRONG - 1 :] = [f"{len(wrong) - _MOST_WRONG + 1} more kinds; --json lists all of them"]
    return "\n".join(
        [
            *_block("made", made),
            *_block("wrong", wrong or ["nothing found"]),
            *_block("next", following),
        ]
    )


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title if not number else '':<7}{line}" for number, line in enumerate(lines)]


def _by_source(found: Mapping[str, str]) -> str:
    shown = [f"{name} {words}" for name, words in list(found.items())[:_MOST_SOURCES]]
    rest = len(found) - len(shown)
    return ", ".join(shown) + (f" and {rest} more sources" if rest else "")


def _made(generated: Generated, card: Path | None, published: PublishReport | None) -> list[str]:
    counts = generated.counts
    records = {name: f"{found.records:,}" for name, found in counts.items()}
    total = sum(found.records for found in counts.values())
    rate = ""
    if generated.tokens:
        speed = generated.tokens / max(generated.seconds, 1e-9)
        rate = f"; {generated.tokens:,} new tokens in {generated.seconds:,.0f} s ({speed:,.0f} tokens/s)"
    lines = [f"{wording.count(total, 'record')} in {generated.folder / 'records'}: {_by_source(records)}{rate}"]
    if generated.by_tokens:
        lines.append("; ".join(generated.by_tokens[:_MOST_SOURCES]))
    if card is not None:
        lines.append(f"the data set card {card}, the lengths {generated.folder / 'lengths.html'}")
    if published is not None:
        lines.append(published.to_text().splitlines()[0])
    return lines


def _wrong(
    prepared: Prepared, generated: Generated, checked: CheckReport | None, sections: Mapping[str, Any]
) -> Iterator[str]:
    counts = generated.counts
    if generated.interrupted:
        yield "interrupted: run the same command again to go on where it stopped"
    if checked is not None and not checked.ok:
        kinds = _by_source({found.kind: f"{found.count:,}" for found in checked.ordered()})
        yield f"records break the rules of `check`: {kinds}"
    if generated.failed:
        failed = {name: f"{found.failed:,}" for name, found in counts.items() if found.failed}
        yield f"rows without an answer: {_by_source(failed)}; why: {generated.folder / 'failures.parquet'}"
    if not generated.interrupted and (missing := {n: f"{c.missing:,}" for n, c in counts.items() if c.missing}):
        yield f"prompts not asked yet: {_by_source(missing)}"
    if short := {
        name: f"{report.drawn:,} of {report.requested:,}"
        for name, report in prepared.reports.items()
        if report.short and name not in prepared.by_tokens
    }:
        yield f"fewer prompts than the recipe asks for: {_by_source(short)}"
    if cut := {name: words for name, section in sections.items() if (words := _cut(section))}:
        yield f"cut by the cap, more than the target allows: {_by_source(cut)}"
    if loops := loop_costs(counts):
        yield f"answers that repeat themselves until they are cut: {_by_source(loops)}; --drop loop leaves them out"
    if skipped := {name: f"{found.skipped:,}" for name, found in counts.items() if found.skipped}:
        yield f"prompts that do not fit the context: {_by_source(skipped)}; see {generated.folder / 'skipped.parquet'}"
    if generated.below_cap:
        below = {name: f"{rows:,}" for name, rows in generated.below_cap.items()}
        yield f"rows that an earlier, lower cap cut: {_by_source(below)}"
    if ended := {
        name: f"{found.dialogues - found.complete:,} of {found.dialogues:,}"
        for name, found in counts.items()
        if found.dialogues > found.complete
    }:
        yield f"dialogues that ended early: {_by_source(ended)}"
    if forged := {name: f"{found.forged:,}" for name, found in counts.items() if found.forged}:
        yield f"records whose text spells a control token of the target (encoded as text): {_by_source(forged)}"
    yield from generated.warnings


def _cut(section: Mapping[str, Any]) -> str:
    advice = section["advice"]
    if advice["verdict"] != "too_small" or advice["cap"] is None:
        return ""
    over = advice["above_cap"]["value"]
    share = wording.share(over) if over is not None else "at least " + wording.share(advice["above_cap"]["low"] or 0)
    return f"{share} at {wording.tokens(advice['cap'])}"


def _next(generated: Generated, checked: CheckReport | None, sections: Mapping[str, Any], recipe: str) -> list[str]:
    folder = str(generated.folder)
    runs = [] if generated.folder.parent == Path("runs") else ["--runs", str(generated.folder.parent)]
    steps: list[str] = []
    if generated.interrupted or generated.failed:
        steps.append(f"{shlex.join(['eagle3-data', 'run', recipe, *runs])}   # asks for what has no answer")
    if checked is not None and not checked.ok:
        steps.append(f"{shlex.join(['eagle3-data', 'check', folder])}   # names the rows")
    if generated.below_cap:
        steps.append(generated.go_on)
    advices = {name: section["advice"] for name, section in sections.items()}
    caps = {name: advice["aim"] for name, advice in advices.items() if advice["action"] in _HIGHER and advice["aim"]}
    if caps and not generated.below_cap:
        alone = len(sections) == 1
        higher = [
            word for name, cap in caps.items() for word in ("--max-new-tokens", str(cap) if alone else f"{name}={cap}")
        ]
        steps.append(shlex.join(["eagle3-data", "extend", recipe, *runs, *higher]))
    others = [advice.get("command") or "" for name, advice in advices.items() if name not in caps]
    steps += list(dict.fromkeys(command for command in others if command))
    steps = steps[:_MOST_NEXT]
    look = "lengths" if sections else "status"
    words = {"lengths": "lengths, what the caps cut, every advice", "status": "how the run stands"}[look]
    return [*steps, f"{shlex.join(['eagle3-data', look, folder])}   # {words}"]
