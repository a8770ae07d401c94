"""`plan` and `pilot`: what a run will be, and which cap each source needs, before the GPUs are paid for.

Goes in: a run. Comes out: of `plan`, the token profile, exact prompt lengths, budgets, the first prompt as the target
sees it, and the cost, without a request being sent; of `pilot`, real answers to a random sample under a high cap, and
the caps that follow.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.dataset as pds
import pyarrow.parquet as pq

from eagle3_data.errors import EngineUnavailable, UsageError
from eagle3_data.foreign_text import foreign_text
from eagle3_data.generation import ContextLimits
from eagle3_data.generation.client.preflight import ServerInfo
from eagle3_data.lengths import (
    LengthReport,
    PromptReport,
    Worth,
    count_characters,
    prompt_report,
    rows_for_cap,
    worth_of_rows,
)
from eagle3_data.lengths.views import wording
from eagle3_data.manifest import Extent, PilotCap
from eagle3_data.pipeline.generate import check_servers, generate_locked, tools_warnings
from eagle3_data.pipeline.lengths import describe, recipe_words
from eagle3_data.pipeline.opening import Run, load_target
from eagle3_data.pipeline.prepare import Prepared, prepare_locked
from eagle3_data.pipeline.tables import show_table
from eagle3_data.recipe import AUTO, ExtendSpec, SourceSpec
from eagle3_data.run_folder import RunFolder
from eagle3_data.schema import clean_messages
from eagle3_data.sources import Script
from eagle3_data.target import Target

PLAN_ROWS: Final = 20_000
HIGH_CAP: Final = 32_768
_DEFAULT_TARGET: Final = 0.01
_BATCH: Final = 1_000
_PILOT_ROUNDS: Final = 3
_PILOT_SPARE: Final = 1  # rows of a pilot that may be lost or cut, and it still finds a cap


@dataclass(frozen=True)
class Plan:
    """What a run will be. `server` is None where none answered, with the reason in `no_server`."""

    prepared: Prepared
    target: Target
    prompts: Mapping[str, PromptReport]
    worth: Mapping[str, Worth]
    example: str
    server: ServerInfo | None
    no_server: str
    cost: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    script: str = ""  # of one dialogue, where dialogues are had

    def to_dict(self) -> dict[str, Any]:
        """Return the plan, ready for JSON."""
        return {
            "sources": self.prepared.to_dict()["sources"],
            "target": self.target.identity(),
            "profile": self.target.profile.to_dict(),
            "prompts": {name: report.to_dict() for name, report in self.prompts.items()},
            "worth": {name: worth.to_dict() for name, worth in self.worth.items()},
            "example": self.example,
            "script": self.script,
            "server": _facts(self.server),
            "no_server": self.no_server,
            "cost": dict(self.cost),
            "warnings": list(self.warnings),
        }

    def to_text(self) -> str:
        """Return the plan for people."""
        parts = [self.prepared.to_text()]
        profile = [[key, _words(self.target, key, value)] for key, value in self.target.profile.to_dict().items()]
        parts.append(show_table(f"Token profile of {self.target.model}", ["field", "value"], profile))
        if self.server:
            parts.append(
                f"Server {self.server.url}: SGLang {self.server.version}, {self.server.model_path}, context "
                f"{self.server.context_length:,} tokens; {self.server.evidence}"
            )
        else:
            parts.append(f"No server was asked, so budgets are not known: {self.no_server}")
        parts.append("\n".join(line for report in self.prompts.values() for line in report.sentences()))
        parts.append("\n".join(f"{name}: {line}" for name, worth in self.worth.items() for line in worth.sentences()))
        parts.append(_cost_words(self.cost))
        parts.append(f"The first prompt, as the target sees it (⟦…⟧ are control tokens), {self.example}")
        if self.script:
            parts.append(f"The script of one dialogue, {self.script}")
        parts += [f"Warning: {warning}" for warning in self.warnings]
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
    server, no_server = None, "the embedded engine starts with the run"
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
    reports: dict[str, PromptReport] = {}
    worth: dict[str, Worth] = {}
    answers: dict[str, int] = {}
    example = script = ""
    for spec in run.recipe.sources:
        path = run.folder.prompts_path(spec.name)
        tokens, characters = _measured(path, target, PLAN_ROWS)
        rows = pq.ParquetFile(path).metadata.num_rows
        cap = spec.max_new_tokens if spec.max_new_tokens != AUTO else None
        reports[spec.name] = prompt_report(spec.name, tokens, characters, prompts=rows, cap=cap, limits=limits)
        worth[spec.name] = worth_of_rows(rows, spec.truncation_target or _DEFAULT_TARGET)
        turns, longest = _turns(path)
        answers[spec.name] = turns * spec.samples
        script = script or (_script(path, longest, spec.name) if turns > rows else "")
        if not example and rows:
            example = _first_prompt(path, target)
    return Plan(
        prepared,
        target,
        reports,
        worth,
        example,
        server,
        no_server,
        _cost(run, reports, answers),
        tools_warnings(run, target),
        script,
    )


def _measured(path: Path, target: Target, most: int) -> tuple[Any, Any]:
    """Return token and character counts of the first prompts in draw order, which are a random sample of all."""
    tokens: list[int] = []
    characters: list[int] = []
    for messages, tools in _chats(path, most):
        tokens += [len(ids) for ids in target.render_batch(messages, tools)]
        characters += [count_characters(*chat) for chat in zip(messages, tools, strict=True)]
    return np.array(tokens, np.int64), np.array(characters, np.int64)


def _chats(path: Path, most: int) -> Iterator[tuple[list[Any], list[Any]]]:
    left = most
    for batch in pq.ParquetFile(path).iter_batches(batch_size=_BATCH, columns=["messages", "tools", "source_turn"]):
        taken = batch.slice(0, left)
        chats = zip(taken["messages"].to_pylist(), taken["source_turn"].to_pylist(), strict=True)
        # what follows the message that is answered first is the script of later turns
        yield [clean_messages(chat[: turn + 1]) for chat, turn in chats], taken["tools"].to_pylist()
        left -= taken.num_rows
        if left <= 0:
            return


def _turns(path: Path) -> tuple[int, int]:
    """Return the turns to be answered in all prompts, and the row that has most of them."""
    turns, longest, most, start = 0, 0, -1, 0
    for batch in pq.ParquetFile(path).iter_batches(columns=["later_turns"]):
        later = batch["later_turns"].value_lengths().to_numpy(zero_copy_only=False)
        turns += batch.num_rows + int(later.sum())
        if len(later) and later.max() > most:
            longest, most = start + int(later.argmax()), int(later.max())
        start += batch.num_rows
    return turns, longest


def _script(path: Path, row: int, source: str) -> str:
    """Show what one dialogue will be made of: upstream's turns, and the places of the target's answers."""
    columns = ["sample_id", "messages", "tools", "source_turn", "later_turns"]
    (found,) = pds.dataset(path, format="parquet").take([row], columns=columns).to_pylist()
    script = Script(clean_messages(found["messages"]), found["tools"], found["source_turn"])
    lines = [f"{found['sample_id']} of {source}, {len(script.turns)} answers:"]
    for index, message in enumerate(script.messages):
        if index > script.source_turn and message["role"] == "assistant":
            calls = ", ".join(name for _, name in script.calls(index - 1))
            lines.append("  assistant: the target's answer" + (f" (upstream called {calls})" if calls else ""))
        else:
            lines.append(f"  {message['role']}: {foreign_text(message['content'], 80)}")
    return "\n".join([*lines, "  assistant: the target's answer"])


def _first_prompt(path: Path, target: Target) -> str:
    messages, tools = next(_chats(path, 1))
    ids = target.render(messages[0], tools[0])
    return f"{len(ids):,} tokens:\n{target.show(ids)}"


def _cost(run: Run, reports: Mapping[str, PromptReport], answers: Mapping[str, int]) -> dict[str, Any]:
    """Requests and tokens at most; hours at the throughput this run has measured so far."""
    requests = sum(answers.values())
    means = {name: report.values["lengths"]["mean"]["value"] or 0 for name, report in reports.items()}
    caps = _known_caps(run)
    prompt = sum(means[name] * answers[name] for name in reports)
    most = sum(caps[name] * answers[name] for name in reports if name in caps)
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
        f"{words}: at most {cost['hours_at_most']:,.1f} h at the measured {cost['tokens_per_second']:,.0f} tokens/s."
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


# -- pilot
@dataclass(frozen=True)
class Pilot:
    """What a pilot found: the lengths of its sample, and the cap of every source."""

    folder: Path
    lengths: LengthReport
    caps: Mapping[str, Mapping[str, Any]]
    exit_status: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the caps, ready for JSON."""
        return {"folder": str(self.folder), "caps": dict(self.caps)}

    def to_text(self) -> str:
        """Return the caps with what they rest on."""
        rows: list[list[str | int]] = []
        notes: list[str] = []
        for name, found in self.caps.items():
            low, high = found["interval"]
            interval = f"{_or_none(low)} – {_or_none(high)}"
            rows.append([name, found["rows"], found["max_new_tokens"] or "cannot tell", interval])
            if found["max_new_tokens"] is None and found["prompts"] < found["rows_needed"]:
                notes.append(_too_few_prompts(name, found))
        columns = ["source", "rows", "max_new_tokens", "smallest (95 %)"]
        table = show_table("Caps that meet the truncation targets", columns, rows, *notes)
        found_any = any(found["max_new_tokens"] for found in self.caps.values())
        last = "\nmax_new_tokens: auto in the recipe takes these caps" if found_any else ""
        return f"{self.lengths.to_text()}\n{table}{last}"


def _too_few_prompts(name: str, found: Mapping[str, Any]) -> str:
    """What to do where no pilot can be large enough; the advice on the lengths says everything else."""
    return (
        f"{name} has only {wording.count(found['prompts'], 'prompt')}, and a cap for a target of "
        f"{wording.percent(found['truncation_target'])} takes {wording.tokens(found['rows_needed'])}: give "
        "max_new_tokens as a number"
    )


def pilot(run: Run, *, rows: int | None = None, high_cap: int | None = None) -> Pilot:
    """Generate a random sample of every source under a high cap, in rounds, and find the cap each source needs.

    Args:
        run: the run that the caps are for; the pilot lives in its folder, under `pilot`.
        rows: prompts of each source, by default as many as its truncation target needs (474 for 1 %), one of which may
            be lost or longer than the high cap. Not bounded by the recipe's rows: a pilot may be larger than its run.
        high_cap: the longest answer the pilot lets through; the context bounds it as well.

    Raises:
        UsageError: the high cap is not above 0.
        EngineError and others: as `generate`.
    """
    folder = RunFolder(run.folder.path / "pilot")
    before = max([0, *(entry.extended_to or 0 for entry in folder.read_manifest().extent.sources.values())])
    top = max(HIGH_CAP, before) if high_cap is None else high_cap
    if top < 1:
        raise UsageError(f"--high-cap {top}: give a number of tokens above 0")
    if top < before:
        raise UsageError(f"--high-cap {top}: {folder.path} has answers under {before}; give that, or remove it")
    first = max(1, top // 2**_PILOT_ROUNDS)

    def small(spec: SourceSpec) -> SourceSpec:
        wanted = rows or rows_for_cap(spec.truncation_target or _DEFAULT_TARGET, allowed=_PILOT_SPARE)
        return spec.model_copy(update={"rows": wanted, "max_new_tokens": first, "holdout": 0})

    recipe = run.recipe.model_copy(
        update={
            "sources": tuple(small(spec) for spec in run.recipe.sources),
            "extend": ExtendSpec(up_to=top, rounds=_PILOT_ROUNDS),
            "publish": None,
        }
    )
    trial = Run(recipe, folder, run.progress)
    with run.folder.lock():
        with trial.folder.lock():
            prepared = prepare_locked(trial, again=False)
            generated = generate_locked(trial)
            _state_cap(trial.folder, top)
            targets = {spec.name: spec.truncation_target or _DEFAULT_TARGET for spec in run.recipe.sources}
            report = describe(trial.folder, targets, recipe=recipe_words(run.recipe), pilot=True)
        drawn = prepared.reports
        caps = {name: _choice(report, name, targets[name], drawn[name].prompts) for name in report.sources}
        manifest = run.folder.read_manifest()
        found = {name: PilotCap.model_validate(cap) for name, cap in caps.items() if cap["max_new_tokens"]}
        measured = manifest if manifest.throughput.tokens_per_second else trial.folder.read_manifest()
        changed = {
            "name": manifest.name or run.recipe.name,
            "pilot": {**manifest.pilot, **found},
            "throughput": measured.throughput,
        }
        run.folder.write_manifest(manifest.model_copy(update=changed))
    return Pilot(trial.folder.path, report, caps, generated.exit_status)


def _state_cap(folder: RunFolder, cap: int) -> None:
    """Let the pilot's manifest say how far its answers could go: the first round's cap is not what judges them."""
    manifest = folder.read_manifest()
    stated = {name: entry.model_copy(update={"extended_to": cap}) for name, entry in manifest.extent.sources.items()}
    folder.write_manifest(manifest.model_copy(update={"extent": Extent(sources=stated)}))


def _choice(report: LengthReport, name: str, target: float, prompts: int) -> dict[str, Any]:
    advice = report.to_dict()["sources"][name]["advice"]
    advised, smallest = advice["advised"], advice["advised"]["smallest"]
    return {
        "max_new_tokens": advised["cap"],
        "truncation_target": target,
        "rows": advice["rows"],
        "prompts": prompts,
        "rows_needed": advised["rows_needed"],
        "rows_good": rows_for_cap(target, allowed=_PILOT_SPARE),
        "reason": advised["reason"],
        "interval": [smallest["low"], smallest["high"]],
    }


def _or_none(value: int | None) -> str:
    return "no bound" if value is None else f"{value:,}"
