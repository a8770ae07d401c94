"""What a run says of itself: `manifest.json` as one typed object, on disk and in a published version.

Goes in: the JSON values of a manifest. Comes out: a frozen `Manifest`, or one error that names the file and the field.
Nothing else reads a raw key of it, and the cap of a source is worked out here alone. Keys that this version does not
know are kept and written again. A change is `manifest.model_copy(update={...})`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eagle3_data.errors import DataError

MANIFEST_FORMAT: Final = 2


class _Part(BaseModel):
    """A frozen part of the manifest: values have their own type, unknown keys are kept."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, protected_namespaces=(), populate_by_name=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the values that were given, as JSON has them."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class TargetFacts(_Part):
    """Which target made the records: `Target.identity()`."""

    model: str = ""
    revision: str | None = None
    thinking: bool | None = None
    vocabulary_size: int | None = None


class Weights(_Part):
    """The weights as the first server reported them."""

    model_path: str | None = None
    weight_version: str | None = None


class Identity(_Part):
    """What may not change between the runs in one folder; keys that were never written are not compared."""

    target: TargetFacts = TargetFacts()
    weights: Weights = Weights()
    sampling: Mapping[str, Any] = {}
    draw_seed: int | None = None


class Engine(_Part):
    """The engine that answered."""

    kind: str | None = None
    version: str | None = None
    context_length: int | None = None
    deterministic: bool | None = None
    api_key_env: str | None = None


class SourceExtent(_Part):
    """A source entry of the recipe, and the caps that its rows were really given."""

    source: str = ""
    config: str | None = None
    revision: str | None = None
    data_files: str | list[str] | None = None
    turns: str = ""
    rows: int | None = None
    tokens: int | None = None  # in place of rows: output tokens to be reached
    token_rows: int | None = None  # how many prompts were drawn for them
    tokens_final: bool = False  # no more are: they are reached, or the source has no more prompts
    holdout: int = 0
    truncation_target: float | None = None
    max_new_tokens: int | str | None = None  # as in the recipe: a number, or "auto"
    sent_cap: int | None = Field(default=None, alias="caps")  # the number that was sent
    extended_to: int | None = None  # the budget to which `extend` took rows that were cut

    @property
    def cap(self) -> int | None:
        """The cap of the source's answers in tokens; None where it is not known (yet)."""
        return next((cap for cap in (self.sent_cap, self.max_new_tokens) if isinstance(cap, int) and cap > 0), None)

    @property
    def continued_to(self) -> int | None:
        """The higher cap up to which cut rows were continued; None where they were not."""
        further = self.extended_to
        return further if further and (self.cap is None or further > self.cap) else None

    @property
    def furthest(self) -> int | None:
        """The most tokens that a row may have been given: the highest of all caps that are stated."""
        stated = (self.max_new_tokens, self.sent_cap, self.extended_to)
        return max((cap for cap in stated if isinstance(cap, int) and cap > 0), default=None)


class Extent(_Part):
    """What may grow between runs."""

    sources: Mapping[str, SourceExtent] = {}


class DrawReport(_Part):
    """What became of the upstream rows of a source: `SourceReport`."""

    builder: str = ""
    config: str | None = None
    turns: str = ""
    upstream: str = ""
    revision: str = ""
    requested: int | None = None
    read: int = 0
    kept: int = 0
    duplicates: int = 0
    rejected: Mapping[str, int] = {}
    prompts: int = 0
    drawn: int = 0
    attribution: Any = None
    files: Sequence[Mapping[str, Any]] = ()
    files_of: int = 0  # of how many the files were chosen, 0 if all were read
    screened: Mapping[str, int] = {}  # drawn prompts that the template or a benchmark refused, by reason
    benchmarks: Sequence[Mapping[str, Any]] = ()  # searched for: name, revision, columns, rows
    differences: Sequence[str] = ()  # where the counts are not those that the source states

    @property
    def short(self) -> bool:
        """Whether fewer prompts were drawn than requested."""
        return self.requested is not None and self.drawn < self.requested


class Counts(_Part):
    """What became of the prompts of a source when its records were last written: `SourceCounts`."""

    records: int = 0
    validation: int = 0
    failed: int = 0
    skipped: int = 0
    missing: int = 0
    truncated: int = 0
    completion_tokens: int = 0
    dialogues: int = 0
    complete: int = 0
    turns_scripted: int = 0
    ended: Mapping[str, int] = {}


class PilotCap(_Part):
    """The cap that a pilot found for a source."""

    max_new_tokens: int = Field(gt=0)


class Throughput(_Part):
    """Time and tokens of all generation so far."""

    seconds: float = 0.0
    completion_tokens: int = 0

    @property
    def tokens_per_second(self) -> float | None:
        """The measured rate; None before anything was generated."""
        return self.completion_tokens / self.seconds if self.seconds and self.completion_tokens else None

    def plus(self, seconds: float, tokens: int) -> "Throughput":
        """Return the sum with another stretch of work."""
        return Throughput(seconds=round(self.seconds + seconds, 3), completion_tokens=self.completion_tokens + tokens)


class Stages(_Part):
    """Which stages are finished."""

    prepare: bool = False
    generate: bool = False
    check: bool = False
    lengths: bool = False
    card: bool = False


class Change(_Part):
    """What a published version changed."""

    version: str = ""
    lines: Sequence[str] = ()


class Manifest(_Part):
    """A run of eagle3-data, or a published version of one.

    `profile` holds TokenProfile fields ({} when the target was never loaded), `source_profiles` those of sources in
    which it thinks otherwise, `reports` what became of the upstream
    rows, `generation` what became of the prompts. `version` and `changes` stand in published manifests only.
    """

    format: int = MANIFEST_FORMAT
    name: str = ""
    recipe: str = ""
    versions: Mapping[str, str] = {}
    identity: Identity = Identity()
    profile: Mapping[str, Any] = {}
    source_profiles: Mapping[str, Mapping[str, Any]] = {}
    engine: Engine = Engine()
    extent: Extent = Extent()
    reports: Mapping[str, DrawReport] = Field(default={}, alias="sources")
    generation: Mapping[str, Counts] = {}
    pilot: Mapping[str, PilotCap] = {}
    throughput: Throughput = Throughput()
    stages: Stages = Stages()
    version: str = ""
    changes: Sequence[Change] = ()

    @classmethod
    def parse(cls, values: Any, where: str) -> Self:
        """Return the manifest that JSON values are; `where` is what errors call it.

        Raises:
            DataError: it is of another format, of another program, or damaged; the message names the first field.
        """
        if not isinstance(values, Mapping) or "format" not in values:
            raise DataError(
                f"{where}: not a manifest of eagle3-data (a JSON object with a format); is this the right folder?"
            )
        if (found := values["format"]) != MANIFEST_FORMAT:
            if isinstance(found, int) and found < MANIFEST_FORMAT:
                raise DataError(
                    f"{where}: written by an earlier version of eagle3-data, whose records had no dialogue, turn and "
                    "loop_tokens; give the recipe another name (its rows are asked again), or use that version"
                )
            raise DataError(
                f"{where}: not a manifest of format {MANIFEST_FORMAT} but {str(found)[:20]!r}; upgrade eagle3-data"
            )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            field = ".".join(map(str, first["loc"]))[:200]
            raise DataError(
                f"{where}: damaged at {field} ({first['msg']}, found {str(first['input'])[:60]!r}); restore this "
                "file, or remove it and run the recipe again: the journal keeps every answer"
            ) from None

    @classmethod
    def parse_text(cls, text: bytes, where: str) -> Self:
        """Return the manifest that the bytes of a manifest.json are; raises as `parse`."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not valid JSON ({error})") from None
        return cls.parse(values, where)

    @classmethod
    def of(cls, values: "Manifest | Mapping[str, Any] | None") -> "Manifest":
        """Return a manifest from one, or from some of its JSON values; raises as `parse`."""
        if isinstance(values, Manifest):
            return values
        return cls.parse({"format": MANIFEST_FORMAT, **(values or {})}, "the manifest given")

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing: a folder without manifest.json."""
        return not (self.model_fields_set - {"format"} or self.model_extra)

    def extent_of(self, source: str) -> SourceExtent:
        """Return what is known of a source's entry and caps; an empty one for a source that is not known."""
        return self.extent.sources.get(source) or SourceExtent()

    def counts_of(self, source: str) -> Counts:
        """Return the counts of a source; zeros where its records were never written."""
        return self.generation.get(source) or Counts()

    def report_of(self, source: str) -> DrawReport:
        """Return what became of a source's upstream rows."""
        return self.reports.get(source) or DrawReport()

    def cap_for(self, source: str, asked: int | str) -> int | None:
        """Return the cap of a source as its recipe asks for it, `auto` taken from the pilot; None before a pilot."""
        if isinstance(asked, int):
            return asked
        return self.pilot[source].max_new_tokens if source in self.pilot else None

    @property
    def vocabulary_size(self) -> int | None:
        """Size of the target's vocabulary; None where nothing says so."""
        size = self.profile.get("vocabulary_size") or self.identity.target.vocabulary_size
        return size if isinstance(size, int) else None

    def only(self, sources: Sequence[str]) -> Self:
        """Return the manifest of some of the sources."""

        def kept(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in values.items() if name in sources}

        extent = self.extent.model_copy(update={"sources": kept(self.extent.sources)})
        parts = {"extent": extent, "reports": kept(self.reports), "generation": kept(self.generation)}
        return self.model_copy(update={key: part for key, part in parts.items() if key in self.model_fields_set})

    def to_json(self) -> str:
        """Return the text of manifest.json."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return what is known, as JSON has it; {} where nothing is."""
        return {} if self.is_empty else {**super().to_dict(), "format": MANIFEST_FORMAT}
