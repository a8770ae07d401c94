"""`plan`: what a run will be, before the GPUs are paid for.

Goes in: a run. Comes out: the token profile, exact prompt lengths, budgets, one prompt of each source as the target
sees it, and the cost. Nothing is sent but the check of the servers; the prompts stay in the run folder, where
`generate` and `run` find them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.parquet as pq

from eagle3_data.errors import EngineUnavailable
from eagle3_data.generation import ContextLimits
from eagle3_data.generation.client.preflight import ServerInfo
from eagle3_data.lengths import PromptReport, Worth, prompt_report, worth_of_rows
from eagle3_data.lengths.report import DEFAULT_TARGET
from eagle3_data.lengths.views import wording
from eagle3_data.pipeline import plan_prompts
from eagle3_data.pipeline.generate import check_servers, tools_warnings
from eagle3_data.pipeline.opening import Run, load_target, source_targets
from eagle3_data.pipeline.prepare import Prepared, prepare_locked
from eagle3_data.pipeline.tables import show_table
from eagle3_data.pipeline.token_rows import TokenPlan, plan_of
from eagle3_data.target import Target

PLAN_ROWS: Final = 20_000
_EMBEDDED: Final = "the embedded engine starts with the run"


@dataclass(frozen=True)
class Plan:
    """What a run will be. `server` is None where none answered, with the reason in `no_server`.

    `fits` are, by source and trainer length, the least and the largest share of rows that can fit; `examples` one
    prompt of each source; `script` that of one dialogue, where dialogues are had.
    """

    prepared: Prepared
    target: Target
    prompts: Mapping[str, PromptReport]
    fits: Mapping[str, Mapping[int, tuple[float | None, float]]]
    worth: Mapping[str, Worth]
    examples: Mapping[str, str]
    server: ServerInfo | None
    no_server: str
    cost: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    script: str = ""
    by_tokens: tuple[TokenPlan, ...] = ()

    @property
    def trouble(self) -> str:
        """Why no server could be asked, although the recipe names some; "" where that is not so."""
        return "" if self.server or self.no_server == _EMBEDDED else self.no_server

    def to_dict(self) -> dict[str, Any]:
        """Return the plan, ready for JSON."""
        return {
            "sources": self.prepared.to_dict()["sources"],
            "target": self.target.identity(),
            "profile": self.target.profile.to_dict(),
            "prompts": {name: report.to_dict() for name, report in self.prompts.items()},
            "fits": {
                name: {str(length): list(shares) for length, shares in f.items()} for name, f in self.fits.items()
            },
            "worth": {name: worth.to_dict() for name, worth in self.worth.items()},
            "examples": dict(self.examples),
            "script": self.script,
            "server": _facts(self.server),
            "no_server": self.no_server,
            "cost": dict(self.cost),
            "tokens": {one.source: one.to_dict() for one in self.by_tokens},
            "warnings": list(self.warnings),
        }

    def to_text(self) -> str:
        """Return the plan for people."""
        parts = [f"{self.prepared.to_text()}\nThey are kept there: `generate` and `run` go on from them."]
        fields = {key: _words(self.target, key, value) for key, value in self.target.profile.to_dict().items()}
        found = [[key, words] for key, words in fields.items() if words != "none"]
        none = ", ".join(key for key, words in fields.items() if words == "none")
        profile = show_table(f"Token profile of {self.target.model}", ["field", "value"], found)
        parts.append(f"{profile}\nThe template has none of: {none}" if none else profile)
        parts.append("\n".join(line for report in self.prompts.values() for line in report.sentences()))
        parts.append(_fit_table(self.fits))
        parts.append(_worth_words(self.worth))
        parts += [
            f"One prompt of {name}, as the target sees it (⟦…⟧ are control tokens), {example}"
            for name, example in self.examples.items()
        ]
        if self.script:
            parts.append(f"The script of one dialogue, {self.script}")
        parts += [f"Warning: {warning}" for warning in self.warnings]
        if self.server:
            parts.append(
                f"Server {self.server.url}: SGLang {self.server.version}, {self.server.model_path}, context "
                f"{self.server.context_length:,} tokens; {self.server.evidence}"
            )
        elif not self.trouble:
            parts.append(f"No server was asked, so budgets are not known: {self.no_server}.")
        parts += ["\n".join(one.sentence() for one in self.by_tokens)] if self.by_tokens else []
        parts.append(_cost_words(self.cost))
        return "\n\n".join(parts)


def plan(run: Run) -> Plan:
    """Look at a run before it starts: reads the sources and renders prompts; sends nothing but the server check.

    Raises:
        SourceError, TargetError, IdentityError: as the stages.
        WrongModelError: the server has another model than the target.
    """
    with run.folder.lock():
        prepared = prepare_locked(run, again=False)
    target = load_target(run.recipe)
    targets = source_targets(run.recipe, target)
    server, no_server = None, _EMBEDDED
    if run.recipe.engine.urls:
        try:
            server, no_server = check_servers(run.recipe, target), ""
        except EngineUnavailable as error:
            no_server = str(error)
    limits = (
        ContextLimits(server.context_length, server.max_req_input_len, server.max_total_num_tokens)
        if server and server.context_length
        else None
    )
    caps = _known_caps(run)
    reports: dict[str, PromptReport] = {}
    fits: dict[str, dict[int, tuple[float | None, float]]] = {}
    worth: dict[str, Worth] = {}
    answers: dict[str, int] = {}
    examples: dict[str, str] = {}
    script = ""
    for spec in run.recipe.sources:
        path = run.folder.prompts_path(spec.name)
        asked = targets[spec.name]
        tokens, characters = plan_prompts.measured(path, asked, PLAN_ROWS)
        rows = pq.ParquetFile(path).metadata.num_rows
        cap = caps.get(spec.name)
        reports[spec.name] = prompt_report(spec.name, tokens, characters, prompts=rows, cap=cap, limits=limits)
        worth[spec.name] = worth_of_rows(rows, spec.truncation_target or DEFAULT_TARGET)
        turns, longest = plan_prompts.turns(path)
        answers[spec.name] = turns * spec.samples
        script = script or (plan_prompts.script(path, longest, spec.name) if turns > rows else "")
        if rows:
            fits[spec.name] = plan_prompts.fits(tokens, cap)
            examples[spec.name] = plan_prompts.example(path, asked)
    manifest = run.folder.read_manifest()
    by_tokens = tuple(plan_of(run.folder, spec, manifest) for spec in run.recipe.sources if spec.tokens)
    return Plan(
        prepared,
        target,
        reports,
        fits,
        worth,
        examples,
        server,
        no_server,
        _cost(run, reports, answers, by_tokens),
        tools_warnings(run, target),
        script,
        by_tokens,
    )


def _fit_table(fits: Mapping[str, Mapping[int, tuple[float | None, float]]]) -> str:
    rows = []
    for name, shares in fits.items():
        cells = []
        for least, most in shares.values():
            low, high = (None if share is None else f"{share * 100:.0f}" for share in (least, most))
            cells.append(f"≤ {high} %" if low is None else f"{high} %" if low == high else f"{low}–{high} %")
        rows.append([name, *cells])
    lengths = [f"{length:,}" for length in next(iter(fits.values()), {})]
    note = "At least: each answer as long as the cap. At most: prompts alone."
    return show_table("Rows (prompt + output) that fit a trainer's length", ["source", *lengths], rows, note)


def _worth_words(worth: Mapping[str, Worth]) -> str:
    """Each sentence once, with the sources that it is of."""
    of: dict[str, list[str]] = {}
    for name, found in worth.items():
        of.setdefault(" ".join(found.sentences()), []).append(name)
    return "\n".join(f"{', '.join(names)}: {text}" for text, names in of.items())


def _cost(
    run: Run, reports: Mapping[str, PromptReport], drawn: Mapping[str, int], by_tokens: Sequence[TokenPlan]
) -> dict[str, Any]:
    """Requests and tokens at most; hours at the throughput this run has measured so far.

    A source with `tokens` is reckoned with the prompts that it will take, where that is known, and its target.
    """
    targets = {one.source: one.tokens for one in by_tokens}
    grown = {one.source: one.high / one.drawn for one in by_tokens if one.high and one.drawn and not one.short}
    answers = {name: math.ceil(count * max(1.0, grown.get(name, 1.0))) for name, count in drawn.items()}
    requests = sum(answers.values())
    means = {name: report.values["lengths"]["mean"]["value"] or 0 for name, report in reports.items()}
    caps = _known_caps(run)
    prompt = sum(means[name] * answers[name] for name in reports)
    # the answer that reaches a target may go beyond it
    most = sum(
        targets[name] + caps[name] if name in targets else caps[name] * answers[name]
        for name in reports
        if name in caps
    )
    rate = run.folder.read_manifest().throughput.tokens_per_second
    return {
        "requests": requests,
        "prompt_tokens": round(prompt),
        "completion_tokens_at_most": most,
        "sources_without_cap": [name for name in reports if name not in caps],
        "tokens_per_second": rate,
        "hours_at_most": most / rate / 3600 if rate else None,
    }


def _known_caps(run: Run) -> dict[str, int]:
    manifest = run.folder.read_manifest()
    caps = {spec.name: manifest.cap_for(spec.name, spec.max_new_tokens) for spec in run.recipe.sources}
    return {name: cap for name, cap in caps.items() if cap is not None}


def _cost_words(cost: Mapping[str, Any]) -> str:
    words = (
        f"At most {cost['requests']:,} requests, about {cost['prompt_tokens']:,} prompt tokens, at most "
        f"{cost['completion_tokens_at_most']:,} completion tokens"
    )
    if cost["sources_without_cap"]:
        words += f" (without {', '.join(cost['sources_without_cap'])}, whose cap a pilot has to find)"
    if cost["hours_at_most"] is None:
        return f"{words}; a pilot measures the throughput that turns these into hours."
    return (
        f"{words}: at most {wording.hours(cost['hours_at_most'])} at the measured "
        f"{cost['tokens_per_second']:,.0f} tokens/s."
    )


def _facts(server: ServerInfo | None) -> dict[str, Any] | None:
    if server is None:
        return None
    names = ("url", "version", "model_path", "weight_version", "context_length", "max_req_input_len", "evidence")
    return {name: getattr(server, name) for name in names}


def _words(target: Target, key: str, value: Any) -> str:
    """A field of the profile, with the tokens beside their ids."""
    if key == "tool_turn_state" and value is None:
        return "as thinking_state"
    if not (key.endswith(("_id", "_ids")) or key == "bos") or value is None:
        return "none" if value is None else str(value)
    ids = value if isinstance(value, list) else [value]
    return ", ".join(f"{i} {target.tokenizer.convert_ids_to_tokens(i)!r}" for i in ids) or "none"
