"""The data set card: README.md of a run folder and of every version on the Hub.

Goes in: a run folder (manifest, records, lengths) and a template. Comes out: a card whose YAML lets `load_dataset`
open the folder as it lies, and whose text says what the data are, how they were made and what they may be used for.
Text that people added to an earlier card is kept.
"""

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2

from eagle3_data.errors import DataError, UsageError
from eagle3_data.publishing.card import check as card_check
from eagle3_data.publishing.card.facts import (
    SplitFacts,
    caps,
    card_metadata,
    find_prompt,
    read_counts,
    total,
    typical_record,
)
from eagle3_data.publishing.card.licenses import model_license
from eagle3_data.publishing.card.markdown import Markdown, block, code, escape, image, line, link
from eagle3_data.publishing.card.merge import merge_card
from eagle3_data.publishing.version_files import public_values
from eagle3_data.run_folder import RunFolder, atomic_file, read_json

if TYPE_CHECKING:
    from eagle3_data.target import Target

TEMPLATE_NAME: Final = "dataset_card.md.j2"
_EXAMPLE_CHARACTERS: Final = 6_000
_EXAMPLE_IDS: Final = 12
_CAPS_SHOWN: Final = 3
# Older versions stand in a file of their own.
VERSIONS_SHOWN: Final = 5
VERSIONS_NAME: Final = "VERSIONS.md"


def template_path() -> Path:
    """Return the card template that comes with the package (or lies in the checkout)."""
    packaged = Path(str(resources.files("eagle3_data"))) / "_cards" / TEMPLATE_NAME
    return packaged if packaged.is_file() else Path(__file__).resolve().parents[3] / "cards" / TEMPLATE_NAME


def render_card(
    run: RunFolder,
    template: Path | None = None,
    *,
    target: "Target | None" = None,
    repo: str | None = None,
    version: str | None = None,
    sources: Sequence[str] | None = None,
    changes: Sequence[Mapping[str, Any]] = (),
    existing: str | None = None,
    notes: list[str] | None = None,
) -> str:
    """Render the card of a run.

    Args:
        run: a run folder with records and `lengths.json`.
        template: a Jinja template; the one in `cards/` when None.
        target: decodes the example record; without it the example shows the prompt's messages and the ids.
        repo: Hub id shown in the examples; the folder itself when None.
        version: the version that is published, without "v"; None for a run folder.
        sources: the sources to describe; all of the run's when None.
        changes: the change list, newest first: `{"version": str, "lines": [str]}`.
        existing: the card that this one replaces; what people added to it is kept.
        notes: takes a line for each part of `existing` that cannot be read and is left out.

    Returns:
        The text of README.md.

    Raises:
        DataError: no records, damaged files, or `lengths.json` belongs to other records.
        UsageError: the template is missing or wrong.
    """
    manifest = public_values(run.read_manifest().to_dict())
    counts = read_counts(run, list(sources) if sources is not None else run.sources())
    facts = _context(run, manifest, counts, target)
    name = str(manifest.get("name") or run.path.name)
    pretty_name = f"EAGLE-3 data for {facts['target']['model']}"
    data = card_metadata(counts, manifest, pretty_name)
    data["eagle3"] = _identity_metadata(name, version, facts["target"])
    path = template or template_path()
    try:
        environment = jinja2.Environment(finalize=escape, keep_trailing_newline=True)
        card = environment.from_string(path.read_text(encoding="utf-8")).render(
            card_data=Markdown(data.to_yaml()),
            pretty_name=pretty_name,
            repo=repo or "/".join(run.path.resolve().parts[-2:]),
            published=repo is not None,
            revision=Markdown(f', revision="v{version}"' if version else ""),
            at_version=Markdown(f"@v{version}" if version else ""),
            changes=[
                {"version": change.get("version"), "lines": [line(text) for text in change.get("lines", [])]}
                for change in changes[:VERSIONS_SHOWN]
            ],
            older=len(changes) > VERSIONS_SHOWN,
            **facts,
        )
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: the card template cannot be read ({error})") from error
    except jinja2.TemplateError as error:
        place = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise UsageError(f"{path}{place}: the card template is wrong: {error}") from error
    body = re.sub(r"\n{3,}", "\n\n", card)
    return merge_card(body, existing, notes, lambda text: card_check.check_card(text, counts))


def write_card(
    run: RunFolder,
    template: Path | None = None,
    *,
    target: "Target | None" = None,
    sources: Sequence[str] | None = None,
) -> Path:
    """Write README.md of a run folder, keeping what people added to the one that is there. Raises as `render_card`."""
    existing = run.card_path.read_text(encoding="utf-8") if run.card_path.is_file() else None
    text = render_card(run, template, target=target, sources=sources, existing=existing)
    with atomic_file(run.card_path) as file:
        file.write(text.encode())
    return Path(run.card_path)


def render_versions(changes: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole change list as a page of its own, newest version first."""
    lines = ["# Versions", ""]
    for change in changes:
        lines += [f"## {escape(change.get('version'))}", "", *(f"- {line(text)}" for text in change["lines"]), ""]
    return "\n".join(lines)


def _identity_metadata(name: str, version: str | None, target: Mapping[str, Any]) -> dict[str, Any]:
    values = {"recipe": name, "version": version, "target": target["model"], "target_revision": target.get("revision")}
    return {key: value for key, value in values.items() if value}


def _context(
    run: RunFolder,
    manifest: Mapping[str, Any],
    counts: Mapping[str, Mapping[str, SplitFacts]],
    target: "Target | None",
) -> dict[str, Any]:
    identity = manifest.get("identity", {})
    described = {"model": "an unnamed model", **{k: v for k, v in identity.get("target", {}).items() if v is not None}}
    engine = manifest.get("engine", {})
    weights = identity.get("weights", {})
    example_source = max(counts, key=lambda name: (sum(f.rows for f in counts[name].values()), name))
    example, decoded = _example(run, example_source, target)
    lengths = _read_lengths(run)
    entries = {name: _source(name, manifest, splits, lengths) for name, splits in counts.items()}
    return {
        "target": described,
        "target_license": model_license(str(described["model"])),
        "thinking": _thinking(described.get("thinking"), manifest.get("profile", {})),
        "engine": _words(
            {"": engine.get("kind"), "version": engine.get("version"), "context": engine.get("context_length")}
        )
        or "not recorded",
        "weights": _words({"": weights.get("model_path"), "version": weights.get("weight_version")}) or "not recorded",
        "sampling": _words(identity.get("sampling", {})) or "not recorded",
        "draw_seed": identity.get("draw_seed", "not recorded"),
        "versions": _words(manifest.get("versions", {})) or "not recorded",
        "counts": counts,
        "all": total(counts),
        "all_splits": {"train": total(counts, "train").rows, "validation": total(counts, "validation").rows},
        "failed": sum(entry["failed"] for entry in entries.values()),
        "sources": entries,
        "only_samples": all(entry["samples"] for entry in entries.values()),
        "all_public": all("/" in entry["upstream"] for entry in entries.values()),
        "lengths": Markdown(lengths_markdown(run, counts).replace("<", "&lt;")),
        "figures": [
            image(path.stem.replace("_", " ").replace("-", " "), f"figures/{path.name}")
            for path in sorted(run.figures_path.glob("*.png"))
        ],
        "training": manifest.get("training") or {},
        "thinks": manifest.get("profile", {}).get("thinking_state") != "none",
        "leaks": any(
            (each["attribution"] or {}).get("contamination") and not each["samples"] for each in entries.values()
        ),
        "reasons": list(dict.fromkeys(reason for entry in entries.values() for reason in entry["left_out"])),
        "selected_from": manifest.get("selected_from") or {},
        "has_recipe": bool(manifest.get("recipe")),
        "several_runs": len(manifest.get("runs") or []),
        "other_sampling": any(entry["sampling"] for entry in entries.values()),
        "example_source": example_source,
        "example": example,
        "example_decoded": decoded,
        "number": lambda value: f"{value:,}" if isinstance(value, int | float) else escape(value),
        "percent": lambda part, whole: f"{100 * part / whole:.1f} %" if whole else "–",
        "code": code,
        "link": link,
        "cell": escape,
        "as_written": line,
    }


def _asked_otherwise(extent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling and the thinking of a source where they are its own."""
    thinking = extent.get("thinking")
    switched = {} if thinking is None else {"thinking": "on" if thinking else "off"}
    return {**(extent.get("sampling") or {}), **switched}


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}".strip() for key, value in values.items() if value is not None and value != "")


def _thinking(asked: Any, profile: Mapping[str, Any]) -> str:
    state = profile.get("thinking_state")
    words = {
        "open": "the prompt ends inside the thinking block",
        "closed": "the prompt closes the thinking block before the answer",
        "model": "the model opens the thinking block itself",
        "none": "the model has no thinking block",
    }
    setting = {True: "on", False: "off", None: "as the chat template sets it"}.get(asked, str(asked))
    return f"{setting}; {words[state]}" if state in words else setting


def _percentiles(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the median and the 95th percentile of a source's output tokens, "" where they are not known."""
    quantiles = section.get("lengths", {}).get("completion", {}).get("quantiles", {})
    values = {name: quantiles.get(key, {}).get("value") for name, key in (("median", "p50"), ("p95", "p95"))}
    return {name: f"{value:,.0f}" if isinstance(value, int | float) else "" for name, value in values.items()}


def _source(
    name: str, manifest: Mapping[str, Any], splits: Mapping[str, SplitFacts], lengths: Mapping[str, Any]
) -> dict[str, Any]:
    """Gather what the manifest says about one source; the counts are those of the records themselves."""
    report = manifest.get("sources", {}).get(name, {})
    extent = manifest.get("extent", {}).get("sources", {}).get(name, {})
    generation = manifest.get("generation", {}).get(name, {})
    rejected = report.get("rejected", {})
    cap, further = caps(extent)
    whole = sum(splits.values(), SplitFacts())
    files = extent.get("data_files")
    return {
        "upstream": report.get("upstream") or ("sample rows of eagle3-data" if files == "samples" else "local files"),
        "samples": files == "samples",
        "revision": str(report.get("revision") or extent.get("revision") or ""),
        "config": extent.get("config") or report.get("config"),
        "turns": extent.get("turns") or report.get("turns"),
        "requested": extent.get("rows", report.get("requested")),
        "tokens": extent.get("tokens"),
        "output_tokens": whole.completion_tokens,
        "cap": _cap_words(cap if cap is not None else extent.get("max_new_tokens"), further, whole.cut_at),
        "validation": splits["validation"].rows if "validation" in splits else 0,
        "read": report.get("read", 0),
        "kept": report.get("kept", 0),
        "duplicates": report.get("duplicates", 0),
        "rejected": rejected,
        "rejects": sum(rejected.values()),
        "failed": generation.get("failed", 0),
        "skipped": generation.get("skipped", 0),
        "licenses": whole.licenses,
        "attribution": report.get("attribution"),
        "left_out": manifest.get("left_out", {}).get(name, {}),
        "sampling": _words(_asked_otherwise(extent)),
        **_percentiles(lengths.get("sources", {}).get(name, {})),
        "benchmarks": report.get("benchmarks", []),
        "files_of": report.get("files_of", 0),
        "files_read": len(report.get("files", [])),
    }


def _cap_words(cap: Any, further: int | None, cut_at: Mapping[int, int]) -> str:
    """Say under which caps the rows of a source were made: those of the recipe, and others that rows were cut at."""
    words = f"{cap:,}" if isinstance(cap, int) else str(cap or "not recorded")
    if further is not None:
        words += f", cut rows continued up to {further:,}"
    others = {tokens: rows for tokens, rows in sorted(cut_at.items()) if tokens not in (cap, further)}
    if len(others) > _CAPS_SHOWN:
        rows, caps_met = sum(others.values()), list(others)
        return f"{words}; {rows:,} rows were cut at other caps, {caps_met[0]:,} to {caps_met[-1]:,}"
    for tokens, rows in others.items():
        words += f"; {rows:,} {'row was' if rows == 1 else 'rows were'} cut at {tokens:,}"
    return words


def lengths_markdown(run: RunFolder, counts: Mapping[str, Mapping[str, SplitFacts]]) -> str:
    """Return the length tables of `lengths.json` as Markdown.

    Raises:
        DataError: there is no `lengths.json`, or it was measured on another number of records.
    """
    from eagle3_data.lengths.views.markdown import to_markdown

    values = _read_lengths(run)
    for name, splits in counts.items():
        rows = sum(facts.rows for facts in splits.values())
        measured = values.get("sources", {}).get(name, {}).get("rows", 0)
        if measured != rows:
            raise DataError(
                f"{run.lengths_path}: measured on {measured:,} records of {name}, and there are {rows:,}; run "
                f"`eagle3-data lengths {run.path}` again"
            )
    return to_markdown(values)


def _read_lengths(run: RunFolder) -> dict[str, Any]:
    try:
        values: dict[str, Any] = read_json(run.lengths_path)
    except FileNotFoundError as error:
        raise DataError(f"{run.lengths_path}: missing; run `eagle3-data lengths {run.path}` first") from error
    return values


def _example(run: RunFolder, source: str, target: "Target | None") -> tuple[str, bool]:
    record = typical_record(run, source)
    if record is None:
        return Markdown("No record finished."), False
    if target is not None:
        return block(_shorten(target.describe(record))), True
    messages = find_prompt(run, source, record["sample_id"])
    shown = {key: _abbreviate(value) for key, value in record.items()}
    text: str = block("\n".join(f"{key}: {value}" for key, value in shown.items()))
    if messages is not None:
        prompt = _shorten(json.dumps(messages, indent=1, ensure_ascii=False))
        text += "\n\nThe messages behind `input_ids`:\n\n" + block(prompt, "json")
    return Markdown(text), False


def _abbreviate(value: Any) -> Any:
    if isinstance(value, list) and len(value) > 2 * _EXAMPLE_IDS:
        head, tail = (", ".join(map(str, part)) for part in (value[:_EXAMPLE_IDS], value[-_EXAMPLE_IDS:]))
        return f"[{head}, … {len(value) - 2 * _EXAMPLE_IDS} more …, {tail}]"
    return value


def _shorten(text: str) -> str:
    if len(text) <= _EXAMPLE_CHARACTERS:
        return text
    half = _EXAMPLE_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
