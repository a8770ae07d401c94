"""B5: the OpenThoughts family, one question and one reasoned answer a row.

Goes in: rows of `conversations` (roles user/assistant or human/gpt), with a system text (114k), a source (2-1M), a
domain and source (3-1.2M), or the parts of the prompt (114k's `metadata`). Comes out: the question, labelled
`<domain>:<source>` so that a filter can leave parts out. Also a loading script for datasets 3.6.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_data.sources.base import SourceBuilder
from eagle3_data.sources.chat import turns
from eagle3_data.sources.columns import Column
from eagle3_data.sources.description import ConfigInfo, SourceConfig, SourceInfo
from eagle3_data.sources.dialogue import Dialogue, Reject, excerpt, message

_BOXED = "Return your final response within \\boxed{}. "
_CODE = "Generate an executable Python function generated from the given prompt."
_STDIN = (
    f"{_CODE} The function should take stdin as input and print the output. "
    "Simply call the function after the definition."
)
_FUNCTION = f"{_CODE} Return the function body without invoking it at the final solution."
_THOUGHT = ("<|begin_of_thought|>", "<|end_of_thought|>", "<|begin_of_solution|>", "<|end_of_solution|>")
_METADATA = "openthoughts-114k-metadata"
# Upstream collections whose prompts are not under the licence of the whole, by a part of their names.
_PARTS = {
    "camel": "CC-BY-NC-4.0",
    "code_contests": "CC-BY-4.0",
    "codecontests": "CC-BY-4.0",
    "taco": "Apache-2.0",
    "apps": "MIT",
    "riddle_sense": "unknown",
}

INFO = SourceInfo(
    name="B5_openthoughts",
    title="OpenThoughts: reasoning about mathematics, code, science and puzzles",
    license="Apache-2.0",
    configs={
        "openthoughts-114k": ConfigInfo("open-thoughts/OpenThoughts-114k", "default", 113_957, license="Apache-2.0"),
        _METADATA: ConfigInfo("open-thoughts/OpenThoughts-114k", "metadata", 113_957, license="Apache-2.0"),
        "openthoughts2-1m": ConfigInfo("open-thoughts/OpenThoughts2-1M", None, 1_143_205, license="Apache-2.0"),
        "openthoughts3-1.2m": ConfigInfo(
            "open-thoughts/OpenThoughts3-1.2M", None, 1_200_000, 65_000, license="Apache-2.0"
        ),
    },
    default_config="openthoughts-114k",
    quirks=(
        "the system text of 114k asks for literal <|begin_of_thought|> tags and is dropped",
        "114k does not say where a question is from: code and mathematics show by their first words, the rest is "
        f"`science-puzzle` with licence unknown; config {_METADATA} has the same questions with domain and source",
        "3-1.2M holds about 65,000 questions, most of them 16 times",
        "files are ordered by domain: a sample is drawn from the whole split",
    ),
    options={"keep_system": "keep the system text of 114k"},
    homepage="https://huggingface.co/open-thoughts",
    terms="Apache-2.0 for the collection; its prompts come from sources with licences of their own",
    notes=(
        "Science prompts out of CAMEL are CC-BY-NC-4.0, which is **non-commercial**: leave them out by `origin` where "
        "that matters.",
        "Code prompts come from code_contests (CC-BY-4.0), TACO (Apache-2.0) and APPS (MIT); the terms of "
        "riddle_sense are unclear.",
    ),
    contamination="mathematics and code competitions; upstream removed close matches of known benchmarks by fuzzy "
    "matching only",
    languages=("en",),
)


@dataclass
class OpenThoughtsConfig(SourceConfig):
    """Options of B5."""

    keep_system: bool = False


class B5OpenThoughts(SourceBuilder):
    """Prompts of the OpenThoughts family."""

    INFO = INFO
    BUILDER_CONFIG_CLASS = OpenThoughtsConfig
    BUILDER_CONFIGS = [OpenThoughtsConfig(name=name) for name in INFO.configs]  # noqa: RUF012
    DEFAULT_CONFIG_NAME = INFO.default_config

    @classmethod
    def columns(cls, config: Any) -> Sequence[Column]:
        """What each member of the family has."""
        # Filters and licences go by these, so they must not be gone, though a row may hold null.
        source, domain = Column("source", nullable=True), Column("domain", nullable=True)
        if config.name == _METADATA:
            more = ("starter_code", "test_cases", "deepseek_reasoning", "deepseek_solution")
            return (Column("problem"), Column("domain"), source, *(Column(name, "text", False) for name in more))
        if config.name == "openthoughts-114k":
            return (Column("system"), Column("conversations", "list"))
        if config.name == "openthoughts2-1m":
            return (Column("conversations", "list"), source)
        return (Column("conversations", "list"), source, domain)

    @classmethod
    def read(cls, row: dict[str, Any], config: Any) -> Dialogue:
        """Understand one upstream row."""
        if config.name == _METADATA:
            origin = _label(row.get("domain"), row.get("source"))
            return Dialogue(_from_parts(row), origin=origin, license=_license(origin, row["source"]))
        if config.name == "openthoughts-114k":
            origin = _domain(row["conversations"])
            system = row["system"] if config.keep_system else None
            license = "unknown" if origin == "science-puzzle" else "Apache-2.0"
            messages = turns(_untagged(row["conversations"]), system, keep_unclosed=True)
            return Dialogue(messages, origin=origin, license=license)
        source = row["source"]
        if not source and config.name == "openthoughts2-1m":
            # The part that came from 114k has no source; its mathematics and code show by their first words.
            shown = _domain(row["conversations"])
            source = shown if shown in ("code", "math") else None
        origin = _label(row.get("domain"), source)
        return Dialogue(
            turns(row["conversations"], keep_unclosed=True), origin=origin, license=_license(origin, source)
        )


def _label(domain: Any, source: Any) -> str:
    return ":".join(part for part in (domain, source) if isinstance(part, str) and part)


def _license(origin: str, source: str | None) -> str:
    if not source:
        return "unknown"
    # A part is looked for as a word: `apps` must not be found in `mapps`.
    words = origin.lower().replace("-", "_").replace("/", " ").replace(":", " ").replace(".", " ")
    padded = f" {words} ".replace("_", " ")
    for part, license in _PARTS.items():
        if f" {part.replace('_', ' ')} " in padded:
            return license
    return "Apache-2.0"


def _domain(conversation: Sequence[Any]) -> str:
    first = conversation[0] if conversation and isinstance(conversation[0], dict) else {}
    text = first.get("value") or first.get("content")
    if not isinstance(text, str):
        return ""
    if text.startswith(_CODE):
        return "code"
    return "math" if text.startswith(_BOXED.strip()) else "science-puzzle"


def _untagged(conversation: Sequence[Any]) -> Iterator[Any]:
    """Turn 114k's thought and solution tags of an answer into the usual thinking tags."""
    begin, end, solution, over = _THOUGHT
    for turn in conversation:
        text = turn.get("value") if isinstance(turn, dict) else None
        if isinstance(text, str) and text.lstrip().startswith(begin):
            thought, _, answer = text.lstrip().removeprefix(begin).partition(end)
            answer = answer.replace(solution, "").replace(over, "").strip()
            turn = {**turn, "value": f"<think>{thought}</think>{answer}"}
        yield turn


def _from_parts(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Build the prompt of a `metadata` row as upstream built that of the same row in `default`."""
    problem, domain = row["problem"], row["domain"]
    if not problem.strip():
        raise Reject("empty_turn", "user", "user")
    if domain == "code":
        starter = row.get("starter_code")
        opening = _FUNCTION if _calls_function(row.get("test_cases")) else _STDIN
        yield message("user", opening + problem + (f"\n{starter}" if isinstance(starter, str) else ""))
    else:
        yield message("user", (_BOXED if domain == "math" else "") + problem)
    thought, solution = row.get("deepseek_reasoning"), row.get("deepseek_solution")
    made = message("assistant", solution if isinstance(solution, str) else "")
    if isinstance(thought, str) and thought:
        made["reasoning_content"] = thought
    yield made


def _calls_function(test_cases: Any) -> bool:
    try:
        cases = json.loads(test_cases) if isinstance(test_cases, str) else {}
    except (ValueError, RecursionError) as error:
        raise Reject("wrong_type", f"test_cases is not JSON: {excerpt(error)}") from error
    return isinstance(cases, dict) and bool(cases.get("fn_name"))
