"""The keys of a recipe: one model for each section, with every key's type, range, default and meaning.

Goes in: the plain values of a YAML text. Comes out: a frozen `Recipe`. The JSON Schema and the key table of the README
are made from these models, so a new key is a field here (or in `source_entry`) and the code that uses it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from eagle3_data.recipe.source_entry import Benchmark, Entries, SourceSpec
from eagle3_data.recipe.values import (
    KeyVariable,
    OneOrMore,
    RepoName,
    Revision,
    RunName,
    ServerUrl,
    Text,
    VersionNumber,
    WholeOrAuto,
)
from eagle3_data.sampling import Sampling
from eagle3_data.validation import Strict, Within, joined, mistake_at, wrong


class TargetSpec(Strict):
    """The model that the drafter will serve."""

    model: Annotated[Text, Field(description="Hub id, or a local folder")]
    revision: Annotated[Revision | None, Field(description="commit or tag of its tokenizer")] = None
    trust_remote_code: Annotated[bool, Field(description="run the code that comes with the tokenizer")] = False
    thinking: Annotated[bool | None, Field(description="on or off, where the template can switch it")] = None
    control_text: Annotated[
        Literal["escape", "naive"],
        Field(description="control strings in messages: as ordinary text (escape), or as the tokenizer would (naive)"),
    ] = "escape"
    profile: Annotated[
        Mapping[str, Any], Field(description="token ids that cannot be read off the template; `plan` names them")
    ] = {}


class EngineSpec(Strict):
    """Where answers come from: SGLang servers, or the embedded engine."""

    urls: Annotated[
        tuple[ServerUrl, ...],
        OneOrMore(),
        Field(description="roots of the SGLang servers, of the same weights"),
    ] = ()
    embedded: Annotated[
        Text | None, Field(description="in place of urls: `smollm2-135m` or a GGUF file, on this machine's CPU")
    ] = None
    deterministic: Annotated[bool, Field(description="embedded: one slot, no prompt cache, answers repeat")] = False
    slots: Annotated[int | None, Within(1, 1024), Field(description="embedded: requests at once")] = None
    concurrency: Annotated[WholeOrAuto, Field(description="requests in flight over all servers")] = "auto"
    api_key_env: Annotated[
        KeyVariable | None, Field(description="the environment variable that holds the servers' key")
    ] = None
    weights: Annotated[
        tuple[Annotated[float, Within(0, 1e6, open_low=True)], ...],
        OneOrMore(),
        Field(description="each server's share of the work"),
    ] = ()
    timeout: Annotated[
        float | None,
        Within(1, 7 * 86_400),
        Field(description="seconds without a byte until a request is repeated"),
    ] = None
    context_length: Annotated[
        int | None, Within(16, 1 << 30), Field(description="where a router hides the servers' own")
    ] = None

    round_tokens: Annotated[
        int | None,
        Within(64),
        Field(description="tokens asked for at once; by default all, until a balancer is seen to cut silent requests"),
    ] = None
    proxy: Annotated[ServerUrl | None, Field(description="HTTP proxy of the servers (HTTP_PROXY is not read)")] = None
    answer_timeout: Annotated[
        float | None, Within(1, 30 * 86_400), Field(description="seconds that one whole answer may take")
    ] = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if bool(self.urls) == bool(self.embedded):
            raise wrong("give either urls (of SGLang servers) or embedded (a model), not both")
        if self.urls and (self.deterministic or self.slots):
            key = "deterministic" if self.deterministic else "slots"
            raise mistake_at(key, "deterministic and slots belong to the embedded engine, not to urls")
        if self.embedded and self.context_length:
            raise mistake_at("context_length", "the embedded engine reports its own; this is for routers")
        if self.embedded and self.proxy:
            raise mistake_at("proxy", "the embedded engine is asked on this machine, without a proxy")
        if self.proxy and not self.proxy.startswith("http://"):
            raise mistake_at(
                "proxy", f"{self.proxy} must begin with http:// (https:// servers are reached through it)"
            )
        if self.deterministic and (self.slots or 1) > 1:
            raise mistake_at("slots", "deterministic answers need one slot")
        if self.weights and len(self.weights) != len(self.urls):
            raise mistake_at("weights", f"{len(self.weights)} weights for {len(self.urls)} urls")
        return self


class ExtendSpec(Strict):
    """How `run` continues truncated rows by itself."""

    up_to: Annotated[int, Within(1), Field(description="tokens of an answer in all")]
    rounds: Annotated[int, Within(1, 100), Field(description="in how many steps")] = 3


class PublishSpec(Strict):
    """Where `run` publishes when it is done."""

    repo: Annotated[RepoName, Field(description="data set on the Hub")]
    private: Annotated[bool, Field(description="create it private")] = False
    version: Annotated[VersionNumber | None, Field(description="three numbers, such as 1.0.0, or auto")] = None
    training: Annotated[
        Literal["specforge", "speculators", "plain"] | None,
        Field(description="also a config `train_rows` that this trainer reads as it is"),
    ] = None
    drop: Annotated[
        tuple[Literal["loop", "cut", "cap", "context"], ...], OneOrMore(), Field(description="rows to leave out")
    ] = ()


class Recipe(Strict):
    """A whole run."""

    name: Annotated[RunName, Field(description="the run lives in `runs/<name>`")]
    target: Annotated[TargetSpec | None, Field(description="the model that the drafter will serve")] = None
    engine: Annotated[EngineSpec, Field(description="where answers come from")]
    sampling: Annotated[Sampling, Field(description="how the target draws its tokens")] = Sampling()
    draw_seed: Annotated[int, Within(0), Field(description="of the samples that `rows` takes")] = 0
    sources: Annotated[tuple[SourceSpec, ...], Entries(), Field(description="the prompts, by name in the data set")]
    dedupe_across: Annotated[bool, Field(description="drop prompts that an earlier source has")] = False
    decontaminate: Annotated[
        tuple[Benchmark, ...],
        OneOrMore(),
        Field(description="leave out prompts that share a passage with these benchmarks"),
    ] = ()
    extend: Annotated[ExtendSpec | None, Field(description="continue truncated rows at once")] = None
    publish: Annotated[PublishSpec | None, Field(description="publish when the run is done")] = None

    _text: str = PrivateAttr("")
    _file: str = PrivateAttr("")
    _left_out: tuple[str, ...] | None = PrivateAttr(None)
    _anonymous: bool = PrivateAttr(False)

    @property
    def text(self) -> str:
        """The YAML as it was read, for the manifest and the published data set."""
        return self._text

    @property
    def file(self) -> str:
        """What errors and hints call the recipe; "" where it was not read from anywhere."""
        return self._file

    def read_from(self, text: str, file: str) -> Self:
        """Return this recipe, which was read from `text` in `file`."""
        self._text, self._file = text, file
        return self

    def from_stranger(self, left_out: tuple[str, ...], *, anonymous: bool) -> Self:
        """Return this recipe, which came from the Hub: without some keys, its data read without the Hub's token."""
        self._left_out, self._anonymous = left_out, anonymous
        return self

    @property
    def is_foreign(self) -> bool:
        """Whether it came from the Hub."""
        return self._left_out is not None

    @property
    def left_out(self) -> tuple[str, ...]:
        """A line for each key of a stranger's recipe that is the reader's to decide."""
        return self._left_out or ()

    @property
    def anonymous(self) -> bool:
        """Whether its data are read without the Hub's token."""
        return self._anonymous

    def with_consent(self, *, trust_remote_code: bool) -> Self:
        """Return this recipe with the caller's word on whether the tokenizer's own code may run."""
        if self.target is None or self.target.trust_remote_code == trust_remote_code:
            return self
        target = self.target.model_copy(update={"trust_remote_code": trust_remote_code})
        return self.model_copy(update={"target": target})

    def data_files(self, spec: SourceSpec | Benchmark) -> str | list[str] | None:
        """Return the files of a source, or of a benchmark: relative paths start from the folder of the recipe."""
        if spec.data_files is None or spec.data_files == ("samples",):
            return "samples" if spec.data_files else None
        folder = Path(self._file).parent
        return [name if "://" in name else str(folder / Path(name).expanduser()) for name in spec.data_files]

    def sampling_of(self, spec: SourceSpec) -> dict[str, float | int]:
        """Return every sampling parameter of a source: its own, or else the recipe's."""
        return {**self.sampling.values(), **(spec.sampling.given() if spec.sampling else {})}

    def thinking_of(self, spec: SourceSpec) -> bool | None:
        """Return whether the target thinks in a source, None for what the template does by itself."""
        return spec.thinking if spec.thinking is not None else self.target.thinking if self.target else None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for spec in self.sources:
            if spec.samples > 1 and self.sampling_of(spec)["temperature"] == 0:
                message = f"at temperature 0 all {spec.samples} answers would be the same; leave it out"
                raise joined({"sources": joined({spec.name: mistake_at("samples", message)})})
        if self.target is None and self.engine.embedded is None:
            raise wrong("the key 'target' is missing; only engine.embedded brings its own")
        if self.target is not None and self.engine.embedded:
            raise mistake_at("target", "with engine.embedded the target is that model; leave 'target' out")
        return self


def places_of_keys() -> dict[str, str]:
    """Return where every key belongs, for those who write it elsewhere."""
    places = dict.fromkeys(Recipe.user_keys(), "at the top of the recipe")
    places |= dict.fromkeys(SourceSpec.user_keys(), "in a source, such as sources.B1_glaive")
    sections: dict[str, type[Strict]] = {
        "sampling": Sampling,
        "publish": PublishSpec,
        "extend": ExtendSpec,
        "engine": EngineSpec,
        "target": TargetSpec,
    }
    for name, section in sections.items():
        places |= dict.fromkeys(section.user_keys(), f"under {name}")
    return places
