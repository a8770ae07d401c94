"""One entry under `sources`: the keys that every source has, and those of its own `INFO.options`.

Goes in: the mapping that stands under a name. Comes out: a `SourceSpec` of the source that it names.
"""

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from eagle3_data import sources
from eagle3_data.recipe.values import (
    AUTO,
    FileShare,
    OneOrMore,
    RepoName,
    Revision,
    Text,
    TextOrList,
    TokenCount,
    WholeOrAuto,
)
from eagle3_data.sampling import Sampling
from eagle3_data.sources.registry import builder
from eagle3_data.validation import Like, Strict, Within, joined, mistake_at, not_known, not_that, wrong

_NAME: Final = Like(
    r"(?!default$)[A-Za-z][A-Za-z0-9_]*", "cannot name a data set's config; use letters, digits and '_'"
)
# Options of every builder that a recipe may give.
_SHARED_OPTIONS: Final = {
    "repo": "another Hub data set of the same schema",
    "upstream": "its config on the Hub, where it is not the usual one",
}


class FilterSpec(Strict):
    """Which upstream rows are taken, by label; `*` stands for anything."""

    origin: Annotated[TextOrList, Field(description="only rows of these origins")] = ()
    license: Annotated[TextOrList, Field(description="only rows of these licences")] = ()
    not_origin: Annotated[TextOrList, Field(description="no rows of these origins")] = ()
    not_license: Annotated[TextOrList, Field(description="no rows of these licences")] = ()


class Benchmark(Strict):
    """A set of test questions: prompts that share a passage with one of them are left out."""

    repo: Annotated[RepoName | None, Field(description="data set on the Hub")] = None
    config: Annotated[Text | None, Field(description="its config")] = None
    split: Annotated[Text, Field(description="its split")] = "test"
    revision: Annotated[Revision | None, Field(description="its commit; by default the newest")] = None
    data_files: Annotated[TextOrList | None, Field(description="in place of repo: local files")] = None
    column: Annotated[Text | None, Field(description="column of the question; by default every text column")] = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if bool(self.repo) == bool(self.data_files):
            raise wrong("give either repo (on the Hub) or data_files (local)")
        return self


class SourceSpec(Strict):
    """Which prompts, how many, and the cap on their answers."""

    name: Annotated[str, Field(alias="(name)")]
    source: Annotated[str, Field(description="the source to read; by default the entry's own name")]
    config: Annotated[str | None, Field(description="part or edition of the upstream data")] = None
    revision: Annotated[Revision | None, Field(description="commit of the Hub data set; by default the newest")] = None
    data_files: Annotated[
        TextOrList | None,
        Field(description="local files, relative to the recipe, in place of the Hub; `samples`: the shipped rows"),
    ] = None
    split: Annotated[Text | None, Field(description="split of the upstream data set")] = None
    turns: Annotated[
        Literal["first", "last", "prefix", "rollout"],
        Field(
            description="which turns are answered: first, last, every one on upstream's history (prefix), or every "
            "one on the target's own earlier answers (rollout)"
        ),
    ] = "first"
    tool_results: Annotated[
        Literal["match", "any", "stop"],
        Field(
            description="rollout: upstream's results go to calls of the same names (match), to any calls by place "
            "(any), or to none (stop)"
        ),
    ] = "match"
    max_turns: Annotated[int | None, Within(1, 10_000), Field(description="rollout: answered turns of a dialogue")] = (
        None
    )
    rows: Annotated[int | None, Within(1), Field(description="a seeded uniform sample of so many prompts")] = None
    tokens: Annotated[
        int | None,
        Within(1, 10**15),
        TokenCount(),
        Field(description="in place of rows: as many, in draw order, as give so many output tokens, such as 200M"),
    ] = None
    files: Annotated[
        FileShare | None,
        Field(description="only a seeded choice of the upstream files: a share below 1, or a number"),
    ] = None
    samples: Annotated[int, Within(1, 10_000), Field(description="answers to each prompt (not at temperature 0)")] = 1
    holdout: Annotated[int, Within(0), Field(description="prompts that go into the split validation")] = 0
    max_new_tokens: Annotated[
        WholeOrAuto, Field(description="the cap on an answer; auto: what `pilot` found for truncation_target")
    ]
    truncation_target: Annotated[
        float | None,
        Within(0, 1, open_low=True, open_high=True),
        Field(description="share of answers that the cap may cut; for `pilot` and auto"),
    ] = None
    sampling: Annotated[Sampling | None, Field(description="parameters that differ from the recipe's own")] = None
    thinking: Annotated[bool | None, Field(description="where it differs from target.thinking")] = None
    decontaminate: Annotated[
        Annotated[tuple[Benchmark, ...], OneOrMore()] | None,
        Field(description="in place of the recipe's own decontaminate"),
    ] = None
    filter: Annotated[FilterSpec, Field(description="which upstream rows are taken")] = FilterSpec()
    num_proc: Annotated[int | None, Within(1, 1024), Field(description="files read at once")] = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of this source that were given."""
        own = type(self).model_fields.keys() - SourceSpec.model_fields.keys()
        return {key: value for key in sorted(own) if (value := getattr(self, key)) is not None}

    @property
    def filters(self) -> dict[str, list[str]]:
        """The filter as sources take it."""
        return {key: list(values) for key, values in self.filter if values}

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain values, for the manifest."""
        shared = self.model_dump(mode="json", include=set(SourceSpec.model_fields))
        files = "samples" if self.data_files == ("samples",) else shared["data_files"]
        return {**shared, "data_files": files, "filter": self.filters, "options": self.options}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.max_new_tokens == AUTO and self.truncation_target is None:
            raise mistake_at("max_new_tokens", "auto needs truncation_target, such as 0.01")
        if self.rows is not None and self.tokens is not None:
            raise mistake_at("tokens", "give either rows or tokens, not both")
        for key in ("tool_results", "max_turns"):
            if key in self.model_fields_set and self.turns != "rollout":
                raise mistake_at(key, "belongs to turns: rollout")
        if self.rows is not None and self.holdout >= self.rows:
            raise mistake_at("holdout", f"{self.holdout} of {self.rows} rows leaves none to train on")
        return self


def model_of(source: str) -> type[SourceSpec]:
    """Return the model of an entry that reads `source`; it has the options of that source too."""
    return _model_of(source, builder(source))


@functools.lru_cache(maxsize=256)
def _model_of(source: str, code: Any) -> type[SourceSpec]:
    info = sources.SOURCES[source]
    types = {option.name: type(option.default) for option in fields(code.BUILDER_CONFIG_CLASS)}
    told = {**_SHARED_OPTIONS, **info.options}
    own: dict[str, Any] = {
        name: (Annotated[types[name] | None, Field(description=text)], None)
        for name, text in told.items()
        if name in types
    }
    if info.configs:
        text = SourceSpec.model_fields["config"].description
        own["config"] = (Annotated[Literal[tuple(info.configs)] | None, Field(description=text)], None)
    return create_model(f"{source} entry", __base__=SourceSpec, **own)


class Entries:
    """The mapping under `sources`: every entry is checked by the model of its own source."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_entries)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        models = {name: _entry_schema(handler(model_of(name).__pydantic_core_schema__)) for name in sources.SOURCES}
        named = [
            {"allOf": [found, {"required": ["source"], "properties": {"source": {"const": name}}}]}
            for name, found in models.items()
        ]
        return {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": f"^{_NAME.pattern}$"},
            "properties": models,
            "additionalProperties": {"anyOf": named},
        }


def _entry_schema(found: dict[str, Any]) -> dict[str, Any]:
    # an entry's key is its name, and its source where none is given
    properties = {key: value for key, value in found["properties"].items() if key != "(name)"}
    required = [key for key in found.get("required", ()) if key not in ("(name)", "source")]
    return {**found, "properties": properties, "required": required}


def _entries(given: Any, info: ValidationInfo) -> tuple[SourceSpec, ...]:
    if not isinstance(given, Mapping):
        raise wrong("expected keys and values: the name of each source, and what to take from it")
    if not given:
        raise wrong("there are none; name at least one source")
    made: list[SourceSpec] = []
    errors: dict[str, Exception] = {}
    for name, value in given.items():
        try:
            made.append(_entry(name, value, info.context))
        except (ValidationError, ValueError) as error:
            errors[name] = error
    if errors:
        raise joined(errors)
    return tuple(made)


def _entry(name: str, value: Any, places: Any) -> SourceSpec:
    if not isinstance(value, Mapping):
        raise wrong("expected keys and values, such as {rows: 1000, max_new_tokens: 4096}")
    _NAME.check(name)
    source = value.get("source") or name
    if not isinstance(source, str):
        raise mistake_at("source", not_that(["text"], source))
    if source not in sources.SOURCES:
        error = wrong(not_known(source, list(sources.SOURCES)))
        raise error if source is name else joined({"source": error})
    return model_of(source).model_validate({**value, "source": source, "(name)": name}, context=places)
