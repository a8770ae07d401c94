"""What may refuse a prompt that was drawn: the target's template, or a benchmark whose questions must stay unseen.

Goes in: a drawn prompt. Comes out: None, or the reason why it is left out; the draw then goes on to the next prompt.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import datasets

from eagle3_data.errors import HubError, SourceError
from eagle3_data.sources.dialogue import Reject, excerpt
from eagle3_data.sources.upstream import file_revision, hub_commit

GRAM_WORDS: Final = 13  # the length that published decontaminations use
_MOST_GRAMS: Final = 20_000_000
_WORD: Final = re.compile(r"\w+")
_FORMATS: Final = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


class Screen(Protocol):
    """Judges drawn prompts one at a time, without memory of the others."""

    @property
    def key(self) -> str:
        """What the verdicts depend on: part of the name under which a draw is cached."""

    def __call__(self, row: Mapping[str, Any]) -> Reject | None:
        """Return why a prompt is left out; `row` is one of PROMPT_FEATURES, its messages without nulls."""


@dataclass(frozen=True)
class TemplateScreen:
    """Refuses prompts that the target's chat template refuses.

    Attributes:
        render: renders messages and tools, raising `error` where the template does.
        error: what it raises.
        identity: of the template.
    """

    render: Callable[[Any, Any], object]
    error: type[Exception]
    identity: str

    @property
    def key(self) -> str:
        """The template's identity."""
        return f"template {self.identity}"

    def __call__(self, row: Mapping[str, Any]) -> Reject | None:
        """Render the prompt; of a script, the prompt of its first turn."""
        try:
            self.render(row["messages"][: row["source_turn"] + 1], row["tools"])
        except self.error as error:
            return Reject("template", str(error))
        return None


@dataclass
class Benchmarks:
    """Refuses prompts of which a user turn shares 13 words running, or its whole text, with a benchmark's question.

    Attributes:
        sets: what was read of each benchmark: name, revision, columns, rows.
    """

    sets: list[dict[str, Any]] = field(default_factory=list)
    _grams: dict[int, int] = field(default_factory=dict)  # hash of 13 words, or of a whole text -> index in sets

    @property
    def key(self) -> str:
        """The benchmarks and their revisions."""
        named = [f"{one['name']} {one['revision']} {one['columns']} {one['rows']}" for one in self.sets]
        return f"benchmarks {GRAM_WORDS} {named}"

    def add(
        self,
        repo: str | None = None,
        *,
        config: str | None = None,
        split: str = "test",
        revision: str | None = None,
        data_files: Sequence[str] | None = None,
        column: str | None = None,
    ) -> None:
        """Read a benchmark: a Hub data set, or local files.

        Args:
            repo, config, split, revision: of the data set on the Hub.
            data_files: JSON Lines, JSON, CSV or Parquet files in its place.
            column: of the questions; every column of text if None.

        Raises:
            SourceError: a file cannot be read, or there is no such column of text.
            HubError: the Hub refused.
        """
        if repo:
            name, commit = repo, hub_commit(repo, revision)
            arguments: dict[str, Any] = {"path": repo, "name": config, "revision": commit}
        else:
            files = list(data_files or ())
            name = ", ".join(file.rsplit("/", 1)[-1] for file in files)
            commit = hashlib.sha256("".join(map(file_revision, files)).encode()).hexdigest()[:16]
            form = _FORMATS.get(f".{name.rpartition('.')[2].lower()}")
            if form is None:
                raise SourceError(f"decontaminate: {name}: not a {', '.join(_FORMATS)} file")
            arguments, split = {"path": form, "data_files": files}, "train"
        try:
            rows = datasets.load_dataset(**arguments, split=split)
        except Exception as error:  # `datasets` raises what its readers raise
            kind = HubError if repo else SourceError
            raise kind(f"decontaminate: {name}: cannot be read ({type(error).__name__}: {excerpt(error)})") from error
        texts = [
            key for key, kind in rows.features.items() if getattr(kind, "dtype", "") in ("string", "large_string")
        ]
        if column is not None and column not in texts:
            raise SourceError(
                f"decontaminate: {name}: no column of text '{column}'; there are {', '.join(texts) or 'none'}"
            )
        columns = [column] if column is not None else texts
        if not columns:
            raise SourceError(f"decontaminate: {name}: no column of text; there are {', '.join(rows.column_names)}")
        number = len(self.sets)
        for batch in rows.select_columns(columns).iter(1000):
            for text in itertools.chain.from_iterable(batch[key] for key in columns):
                for gram in _grams(_words(text or "")):
                    self._grams.setdefault(gram, number)
            if len(self._grams) > _MOST_GRAMS:
                raise SourceError(f"decontaminate: {name}: more than {_MOST_GRAMS:,} passages; name its column")
        self.sets.append({"name": name, "revision": commit, "columns": columns, "rows": rows.num_rows})

    def __call__(self, row: Mapping[str, Any]) -> Reject | None:
        """Compare the user turns of a prompt, or of a whole script."""
        for message in row["messages"]:
            if message["role"] != "user":
                continue
            words = _words(message["content"])
            for gram in _grams(words):
                if (found := self._grams.get(gram)) is not None:
                    return Reject("benchmark", f"shares a passage with {self.sets[found]['name']}")
        return None


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(words: list[str]) -> Iterator[int]:
    """Yield a hash for every 13 words running, or for the whole text where it is shorter; none for no words."""
    if 0 < len(words) < GRAM_WORDS:
        yield hash(" ".join(words))
    for start in range(len(words) - GRAM_WORDS + 1):
        yield hash(" ".join(words[start : start + GRAM_WORDS]))
