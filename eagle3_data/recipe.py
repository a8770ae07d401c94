"""One YAML recipe, validated: what a run is, before anything is read or sent.

Goes in: a path, the name of a shipped recipe, or `hf://datasets/org/name@version`. Comes out: a frozen `Recipe`. A key
that is unknown, of a wrong type or impossible is one RecipeError that names the file, the line and the key.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import ValidationError

from eagle3_data import sources
from eagle3_data.errors import RecipeError
from eagle3_data.sampling import SAMPLING_DEFAULTS, Sampling
from eagle3_data.sources.registry import builder
from eagle3_data.validation import mistakes

AUTO: Final = "auto"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class TargetSpec:
    """The model that the drafter will serve."""

    model: str
    revision: str | None = None
    trust_remote_code: bool = False
    thinking: bool | None = None
    control_text: Literal["escape", "naive"] = "escape"
    profile: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineSpec:
    """Where answers come from: SGLang servers, or the embedded engine."""

    urls: tuple[str, ...] = ()
    embedded: str | None = None
    deterministic: bool = False
    slots: int | None = None
    concurrency: int | Literal["auto"] = AUTO
    api_key_env: str | None = None
    weights: tuple[float, ...] = ()
    timeout: float | None = None
    context_length: int | None = None  # where a router hides the servers' own


@dataclass(frozen=True)
class SourceSpec:
    """One entry under `sources`: which prompts, how many, and the cap on their answers."""

    name: str
    source: str
    max_new_tokens: int | Literal["auto"]
    config: str | None = None
    revision: str | None = None
    data_files: str | tuple[str, ...] | None = None
    split: str | None = None
    turns: Literal["first", "last", "prefix"] = "first"
    num_proc: int | None = None
    rows: int | None = None
    holdout: int = 0
    truncation_target: float | None = None
    filter: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExtendSpec:
    """How `run` continues truncated rows by itself."""

    up_to: int
    rounds: int = 3


@dataclass(frozen=True)
class PublishSpec:
    """Where `run` publishes when it is done."""

    repo: str
    private: bool = False
    version: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A whole run. `text` is the YAML as it was read, for the manifest and the published data set."""

    name: str
    sources: tuple[SourceSpec, ...]
    engine: EngineSpec
    target: TargetSpec | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    draw_seed: int = 0
    dedupe_across: bool = False
    extend: ExtendSpec | None = None
    publish: PublishSpec | None = None
    text: str = ""
    file: str = ""


def shipped_recipes() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in _shipped_folder().glob("*.yaml"))


def load_recipe(where: str | Path) -> Recipe:
    """Read and validate a recipe.

    Args:
        where: a path, the name of a shipped recipe, or `hf://datasets/org/name@version`.

    Raises:
        RecipeError: there is no such recipe, or it is wrong; the message names file, line and key.
    """
    if str(where).startswith("hf://"):
        from eagle3_data import publishing

        return parse_recipe(publishing.fetch_recipe(str(where)), str(where))
    path = Path(where)
    if not path.is_file():
        shipped = _shipped_folder() / f"{where}.yaml"
        if path.suffix in (".yaml", ".yml") or "/" in str(where) or not shipped.is_file():
            names = shipped_recipes()
            near = difflib.get_close_matches(str(where), names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the shipped ones are {', '.join(names)}"
            raise RecipeError(f"no recipe {str(where)!r}: neither a file nor the name of a shipped recipe; {hint}")
        path = shipped
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    return parse_recipe(text, str(path))


def parse_recipe(text: str, file: str = "<recipe>") -> Recipe:
    """Validate the text of a recipe; `file` is what errors call it. Raises RecipeError."""
    sources.register_installed()
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise RecipeError(f"{file}{line}: not valid YAML: {getattr(error, 'problem', error)}") from error
    if root is None:
        raise RecipeError(f"{file}: the recipe is empty; see the shipped ones: {', '.join(shipped_recipes())}")
    return _Reader(file).recipe(root, text)


def _shipped_folder() -> Path:
    packaged = Path(str(resources.files("eagle3_data"))) / "_recipes"
    return packaged if packaged.is_dir() else packaged.parents[1] / "recipes"


Check = Callable[[yaml.Node, str], Any]


class _Reader:
    """Turns YAML nodes into values, with every complaint placed at a line and a key."""

    def __init__(self, file: str) -> None:
        self.file = file

    def fail(self, node: yaml.Node, message: str) -> RecipeError:
        return RecipeError(f"{self.file}:{node.start_mark.line + 1}: {message}")

    # -- shapes ---------------------------------------------------------------------------------------------------
    def items(self, node: yaml.Node, key: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self.fail(node, f"{key}: expected keys and values, found {self.found(node)}")
        out: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value in node.value:
            name = str(key_node.value)
            if name in out:
                raise self.fail(key_node, f"{key}: the key {name!r} stands twice")
            out[name] = (key_node, value)
        return out

    def mapping(self, node: yaml.Node, key: str, checks: Mapping[str, Check], required: Sequence[str] = ()) -> Any:
        out: dict[str, Any] = {}
        for name, (key_node, value) in self.items(node, key).items():
            path = name if key == "the recipe" else f"{key}.{name}"
            if name not in checks:
                near = difflib.get_close_matches(name, list(checks), n=1, cutoff=0.4)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(checks)}"
                raise self.fail(key_node, f"{path}: unknown key; {hint}")
            # an empty value reads as "not given", as YAML users expect of `revision:`
            if not self.is_null(value):
                out[name] = checks[name](value, path)
        for name in required:
            if name not in out:
                raise self.fail(node, f"{key}: the key {name!r} is missing")
        return out

    @staticmethod
    def is_null(node: yaml.Node) -> bool:
        return node.tag == "tag:yaml.org,2002:null"

    @staticmethod
    def found(node: yaml.Node) -> str:
        if isinstance(node, yaml.ScalarNode):
            return f"{node.tag.rpartition(':')[2]} {node.value!r}"
        return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"

    def scalar(self, node: yaml.Node, key: str, tags: Sequence[str], expected: str) -> Any:
        if not isinstance(node, yaml.ScalarNode) or node.tag.rpartition(":")[2] not in tags:
            raise self.fail(node, f"{key}: expected {expected}, found {self.found(node)}")
        return yaml.SafeLoader("").construct_object(node)

    # -- values ---------------------------------------------------------------------------------------------------
    def text(self, node: yaml.Node, key: str) -> str:
        value = str(self.scalar(node, key, ("str",), "text"))
        if not value.strip():
            raise self.fail(node, f"{key}: is empty")
        return value

    def revision(self, node: yaml.Node, key: str) -> str:
        # a commit of digits alone reads as a number in YAML, and 0123 as an octal one: quote it
        return str(self.scalar(node, key, ("str",), "text (put a commit or tag in quotes)"))

    def flag(self, node: yaml.Node, key: str) -> bool:
        return bool(self.scalar(node, key, ("bool",), "true or false"))

    def whole(self, low: int, high: int = 2**31 - 1) -> Check:
        def check(node: yaml.Node, key: str) -> int:
            value = int(self.scalar(node, key, ("int",), "a whole number"))
            if not low <= value <= high:
                bound = f"at least {low}" if high == 2**31 - 1 else f"from {low} to {high}"
                raise self.fail(node, f"{key}: {value} is impossible; it must be {bound}")
            return value

        return check

    def number(self, low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> Check:
        def check(node: yaml.Node, key: str) -> float:
            value = float(self.scalar(node, key, ("int", "float"), "a number"))
            inside = (low < value if open_low else low <= value) and (value < high if open_high else value <= high)
            if not inside or not math.isfinite(value):
                interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
                raise self.fail(node, f"{key}: {value:g} is impossible; it must lie in {interval}")
            return value

        return check

    def choice(self, *values: str) -> Check:
        def check(node: yaml.Node, key: str) -> str:
            value = str(self.scalar(node, key, ("str",), f"one of {', '.join(values)}"))
            if value not in values:
                near = difflib.get_close_matches(value, values, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it must be one of {', '.join(values)}"
                raise self.fail(node, f"{key}: {value!r} is not known; {hint}")
            return value

        return check

    def or_auto(self, check: Check) -> Check:
        def either(node: yaml.Node, key: str) -> Any:
            if isinstance(node, yaml.ScalarNode) and node.value == AUTO:
                return AUTO
            if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":str"):
                raise self.fail(node, f"{key}: expected a whole number or auto, found {node.value!r}")
            return check(node, key)

        return either

    def one_or_more(self, check: Check) -> Check:
        def either(node: yaml.Node, key: str) -> tuple[Any, ...]:
            nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
            if not nodes:
                raise self.fail(node, f"{key}: the list is empty")
            return tuple(check(item, key) for item in nodes)

        return either

    def plain(self, node: yaml.Node, key: str) -> Any:
        loader = yaml.SafeLoader("")
        return loader.construct_object(node, deep=True)

    def fields(self, node: yaml.Node, key: str) -> dict[str, Any]:
        return {name: self.plain(value, f"{key}.{name}") for name, (_, value) in self.items(node, key).items()}

    # -- the recipe -------------------------------------------------------------------------------------------------
    def recipe(self, root: yaml.Node, text: str) -> Recipe:
        keys = self.mapping(
            root,
            "the recipe",
            {
                "name": self.name,
                "target": self.target,
                "engine": self.engine,
                "sampling": self.sampling,
                "draw_seed": self.whole(0),
                "sources": self.sources,
                "dedupe_across": self.flag,
                "extend": self.extend,
                "publish": self.publish,
            },
            required=("name", "engine", "sources"),
        )
        engine: EngineSpec = keys["engine"]
        if "target" not in keys and engine.embedded is None:
            raise self.fail(root, "the recipe: the key 'target' is missing; only engine.embedded brings its own")
        if engine.embedded and "target" in keys:
            raise self.fail(root, "the recipe: with engine.embedded the target is that model; leave 'target' out")
        keys["sampling"] = keys.get("sampling", dict(SAMPLING_DEFAULTS))
        return Recipe(**keys, text=text, file=self.file)

    def name(self, node: yaml.Node, key: str) -> str:
        value = self.text(node, key)
        if not _NAME.fullmatch(value):
            raise self.fail(node, f"{key}: {value!r} cannot name a folder; use letters, digits, '.', '_' and '-'")
        return value

    def target(self, node: yaml.Node, key: str) -> TargetSpec:
        checks: dict[str, Check] = {
            "model": self.text,
            "revision": self.revision,
            "trust_remote_code": self.flag,
            "thinking": self.flag,
            "control_text": self.choice("escape", "naive"),
            "profile": self.fields,
        }
        return TargetSpec(**self.mapping(node, key, checks, required=("model",)))

    def engine(self, node: yaml.Node, key: str) -> EngineSpec:
        checks: dict[str, Check] = {
            "urls": self.one_or_more(self.url),
            "embedded": self.text,
            "deterministic": self.flag,
            "slots": self.whole(1, 1024),
            "concurrency": self.or_auto(self.whole(1, 100_000)),
            "api_key_env": self.text,
            "weights": self.one_or_more(self.number(0, 1e6, open_low=True)),
            "timeout": self.number(1, 7 * 86_400),
            "context_length": self.whole(16, 1 << 30),
        }
        spec = EngineSpec(**self.mapping(node, key, checks))
        if bool(spec.urls) == bool(spec.embedded):
            raise self.fail(node, f"{key}: give either urls (of SGLang servers) or embedded (a model), not both")
        if spec.urls and (spec.deterministic or spec.slots):
            raise self.fail(node, f"{key}: deterministic and slots belong to the embedded engine, not to urls")
        if spec.embedded and spec.context_length:
            raise self.fail(node, f"{key}.context_length: the embedded engine tells its own; it is for routers")
        if spec.deterministic and (spec.slots or 1) > 1:
            raise self.fail(node, f"{key}.slots: deterministic answers need one slot")
        if spec.weights and len(spec.weights) != len(spec.urls):
            raise self.fail(node, f"{key}.weights: {len(spec.weights)} weights for {len(spec.urls)} urls")
        return spec

    def url(self, node: yaml.Node, key: str) -> str:
        value = self.text(node, key)
        if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", value):
            raise self.fail(node, f"{key}: not a server's URL; write http://host:port, keys go through api_key_env")
        return value.rstrip("/")

    def sampling(self, node: yaml.Node, key: str) -> dict[str, float | int]:
        nodes = self.items(node, key)
        given = {name: self.plain(value, key) for name, (_, value) in nodes.items() if not self.is_null(value)}
        try:
            return Sampling.model_validate(given).values()
        except ValidationError as error:
            path, sentence = mistakes(error, given, (key,))[0]
            key_node, value = nodes[str(path[1])]
            raise self.fail(value if path[1] in Sampling.model_fields else key_node, sentence) from None

    def sources(self, node: yaml.Node, key: str) -> tuple[SourceSpec, ...]:
        entries = self.items(node, key)
        if not entries:
            raise self.fail(node, f"{key}: there are none")
        return tuple(self.source(name, key_node, value) for name, (key_node, value) in entries.items())

    def source(self, name: str, key_node: yaml.Node, node: yaml.Node) -> SourceSpec:
        key = f"sources.{name}"
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name == "default":
            raise self.fail(key_node, f"{key}: cannot name a data set's config; use letters, digits and '_'")
        entries = self.items(node, key)
        known = self.choice(*sources.SOURCES)
        chosen = known(*_value(entries, "source", key)) if "source" in entries else known(key_node, key)
        info, options = sources.SOURCES[chosen], _options(chosen)
        checks: dict[str, Check] = {
            "source": known,
            "config": self.choice(*info.configs) if info.configs else self.text,
            "revision": self.revision,
            "data_files": self.data_files,
            "split": self.text,
            "turns": self.choice("first", "last", "prefix"),
            "num_proc": self.whole(1, 1024),
            "rows": self.whole(1),
            "holdout": self.whole(0),
            "max_new_tokens": self.or_auto(self.whole(1)),
            "truncation_target": self.number(0, 1, open_low=True, open_high=True),
            "filter": self.filter,
            **dict.fromkeys(options, self.plain),
        }
        keys = self.mapping(node, key, checks, required=("max_new_tokens",))
        given = {option: keys.pop(option) for option in options if option in keys}
        for option, value in given.items():
            if type(value) is not options[option]:
                wanted = "true or false" if options[option] is bool else "text"
                raise self.fail(entries[option][1], f"{key}.{option}: expected {wanted}, found {value!r}")
        spec = SourceSpec(**{**keys, "name": name, "source": chosen, "options": given})
        if spec.max_new_tokens == AUTO and spec.truncation_target is None:
            raise self.fail(node, f"{key}: max_new_tokens: auto needs truncation_target, such as 0.01")
        if spec.rows is not None and spec.holdout >= spec.rows:
            raise self.fail(node, f"{key}.holdout: {spec.holdout} of {spec.rows} rows leaves none to train on")
        return spec

    def data_files(self, node: yaml.Node, key: str) -> str | tuple[str, ...]:
        files: tuple[str, ...] = self.one_or_more(self.text)(node, key)
        return "samples" if files == ("samples",) else files

    def filter(self, node: yaml.Node, key: str) -> dict[str, tuple[str, ...]]:
        checks: dict[str, Check] = dict.fromkeys(
            ("origin", "license", "not_origin", "not_license"), self.one_or_more(self.text)
        )
        return dict(self.mapping(node, key, checks))

    def extend(self, node: yaml.Node, key: str) -> ExtendSpec:
        checks: dict[str, Check] = {"up_to": self.whole(1), "rounds": self.whole(1, 100)}
        return ExtendSpec(**self.mapping(node, key, checks, required=("up_to",)))

    def publish(self, node: yaml.Node, key: str) -> PublishSpec:
        checks: dict[str, Check] = {"repo": self.repo, "private": self.flag, "version": self.version}
        return PublishSpec(**self.mapping(node, key, checks, required=("repo",)))

    def repo(self, node: yaml.Node, key: str) -> str:
        value = self.text(node, key)
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", value):
            raise self.fail(node, f"{key}: {value!r} is not a Hub repository; write organisation/name")
        return value

    def version(self, node: yaml.Node, key: str) -> str:
        value = self.text(node, key)
        if not re.fullmatch(r"\d+\.\d+\.\d+", value):
            raise self.fail(node, f"{key}: {value!r} is not a version; write three numbers, such as 1.0.0")
        return value


def _options(source: str) -> dict[str, type]:
    """Return the options that a source has beside those of every source, with their types."""
    names = {*sources.SOURCES[source].options, "repo", "upstream"}
    config = builder(source).BUILDER_CONFIG_CLASS
    return {option.name: type(option.default) for option in fields(config) if option.name in names}


def _value(entries: Mapping[str, tuple[yaml.Node, yaml.Node]], name: str, key: str) -> tuple[yaml.Node, str]:
    return entries[name][1], f"{key}.{name}"
