"""What every source shares: its description, its options, and a `datasets` builder around one function per row.

Goes in: the files of an upstream data set. Comes out: prompts in file order, stateless row by row, so that it works
the same in one process, under `num_proc` and streamed. A source is a subclass with `INFO`, `columns` and `read`; what
looks across rows (dedupe, sampling, accounting) is `draw.py`.

The module must import under datasets 3.6, where each source file is also a loading script.
"""

import abc
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Final, NamedTuple, cast

import datasets

from eagle3_data.errors import SourceError
from eagle3_data.schema import PROMPT_FEATURES, content_hash
from eagle3_data.source_names import code_hash
from eagle3_data.sources.columns import BadRow, Column, Wanted, fault, unpacked
from eagle3_data.sources.description import SourceConfig, SourceInfo, matches, nearest
from eagle3_data.sources.dialogue import STRUCTURAL, Dialogue, Prompt, Reject, excerpt, prompts
from eagle3_data.sources.reading import read_rows, suffix_of
from eagle3_data.sources.script import Script
from eagle3_data.sources.upstream import SourceFile, file_revision, hub_files, pinned_files

_PROBED_ROWS: Final = 64
REJECT_COLUMNS: Final = {"reject_reason": datasets.Value("string"), "reject_detail": datasets.Value("string")}


class Outcome(NamedTuple):
    """What became of one upstream row: prompts, or the reason why there are none."""

    row: int
    prompts: list[Prompt]
    reject: Reject | None


class SourceBuilder(datasets.GeneratorBasedBuilder):  # type: ignore[misc]
    """A `datasets` builder over the prompts of one upstream data set."""

    INFO: ClassVar[SourceInfo]
    VERSION = datasets.Version("1.0.0")
    BUILDER_CONFIG_CLASS = SourceConfig
    DEFAULT_WRITER_BATCH_SIZE = 256  # a prompt with its history can be long

    @classmethod
    @abc.abstractmethod
    def columns(cls, config: Any) -> Sequence[Column]:
        """Return the upstream columns that `read` looks at."""

    @classmethod
    @abc.abstractmethod
    def read(cls, row: dict[str, Any], config: Any) -> Dialogue | list[dict[str, Any]]:
        """Understand one upstream row; a source without labels and tools may return its messages alone.

        Raises:
            Reject: the row has no faithful form.
        """

    @classmethod
    def make_config(cls, name: str | None = None, **options: Any) -> Any:
        """Return a checked configuration.

        Raises:
            SourceError: an unknown config or option, with the nearest right one, or an impossible value.
        """
        name = name or cls.INFO.default_config
        if name not in cls.INFO.configs:
            raise SourceError(
                f"{cls.INFO.name}: no config {name!r}{nearest(name, cls.INFO.configs)}; "
                f"there are {', '.join(cls.INFO.configs)}"
            )
        inherited = {item.name for item in fields(datasets.BuilderConfig)}
        known = {item.name for item in fields(cls.BUILDER_CONFIG_CLASS)} - inherited
        for key in options:
            if key not in known:
                raise SourceError(f"{cls.INFO.name}: unknown option {key!r}{nearest(key, known)}")
        config = cls.BUILDER_CONFIG_CLASS(name=name, **options)
        cls._check(config)
        return config

    @classmethod
    def _check(cls, config: Any) -> None:
        try:
            config.check()
        except SourceError as error:
            raise SourceError(f"{cls.INFO.name}: {error}") from error

    @classmethod
    def outcome(cls, number: int, row: dict[str, Any] | BadRow, config: Any, columns: Sequence[Column]) -> Outcome:
        """Judge one upstream row; never raises for what the row holds."""
        opened = unpacked(row, columns) if isinstance(row, dict) else row
        if (bad := fault(opened, columns)) is not None:
            return Outcome(number, [], Reject(bad.reason, bad.detail))
        row = cast("dict[str, Any]", opened)
        try:
            read = cls.read(row, config)
            dialogue = Dialogue(iter(read)) if isinstance(read, list) else read  # messages alone, without labels
            dialogue.messages = iter(dialogue.messages)
            for key, wanted in (config.filter or {}).items():
                label = dialogue.license if key.endswith("license") else dialogue.origin
                if matches(label, wanted) == key.startswith("not_"):
                    raise Reject("filter", f"{key.removeprefix('not_')} {label!r}")
            return Outcome(number, prompts(dialogue, config.turns, config.max_turns), None)
        except Reject as reject:
            return Outcome(number, [], reject)
        except RecursionError:
            return Outcome(number, [], Reject("not_json", "nested too deeply"))

    @classmethod
    def outcomes(cls, path: str, name: str, config: Any, wanted: Wanted = None) -> Iterator[Outcome]:
        """Yield what becomes of each row of a file, in order.

        Raises:
            SourceError: the file is not what the source expects (as opposed to single rows of it).
        """
        columns = cls.columns(config)
        held: list[Outcome] = []
        probing = wanted is None and suffix_of(name) != ".traj"  # of those, each file is a single row
        try:
            for number, row in read_rows(path, name, columns, wanted):
                outcome = cls.outcome(number, row, config, columns)
                if not probing:
                    yield outcome
                    continue
                held.append(outcome)
                if outcome.reject is None or outcome.reject.reason not in STRUCTURAL:
                    probing = False
                elif len(held) >= _PROBED_ROWS:
                    break
                if not probing:
                    yield from held
                    held = []
        except SourceError as error:
            raise SourceError(f"{cls.INFO.name}: {excerpt(error, 1000)}{cls._advice(config)}") from error
        if held:
            raise cls.not_this_source(name, held, config)

    @classmethod
    def not_this_source(cls, name: str, held: Sequence[Outcome], config: Any) -> SourceError:
        """Return the error for a file none of whose rows look like the source's."""
        reject = held[0].reject
        assert reject is not None
        count = f"the first {len(held)} rows" if len(held) > 1 else "its row"
        return SourceError(
            f"{cls.INFO.name}: {excerpt(name)}: {count} cannot be read, row {held[0].row}: {reject.reason}, "
            f"{reject.detail}{cls._advice(config)}"
        )

    @classmethod
    def _advice(cls, config: Any) -> str:
        others = [name for name in cls.INFO.configs if name != config.name]
        if not others:
            return ""
        return f"; it was read as config '{config.name}', others are {', '.join(others)}"

    @classmethod
    def rows_of(cls, outcome: Outcome, file: SourceFile, config: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows in PROMPT_FEATURES that an outcome gives."""
        entry = config.entry or cls.INFO.name
        for turn, prompt in enumerate(outcome.prompts):
            yield {
                "sample_id": f"{entry}-{prompt.digest[:24]}",
                "source": entry,
                "config": config.name,
                "source_revision": file.revision,
                "source_file": file.name,
                "source_row": outcome.row,
                "source_turn": prompt.turn,
                "origin": prompt.origin,
                "license": prompt.license,
                "dialogue": f"{entry}-{outcome.prompts[0].digest[:24]}",
                "turn": turn,
                "later_turns": Script(prompt.messages, prompt.tools, prompt.turn).later_ids(entry),
                "expected_tokens": prompt.expected_tokens,
                "messages": [_full(message) for message in prompt.messages],
                "tools": prompt.tools,
            }

    # The `datasets` side.

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        data_files = kwargs.get("data_files")
        if isinstance(data_files, dict) and any(isinstance(key, datasets.NamedSplit) for key in data_files):
            name = self.INFO.name
            raise SourceError(
                f"{name}: no data_files were given, so `datasets` would read whatever lies in this directory; "
                f'type load_dataset("{name}", data_files=…) or eagle3_data.load_source("{name}")'
            )
        if data_files is not None:
            kwargs["data_files"] = pinned_files(data_files, kwargs.get("token"))
        # Without the hash of the shared modules, changed code would be answered from an older cache.
        kwargs["hash"] = hashlib.sha256(f"{kwargs.get('hash') or ''}{code_hash()}".encode()).hexdigest()
        super().__init__(*args, **kwargs)

    def _create_builder_config(self, *args: Any, **kwargs: Any) -> Any:
        # Without data_files the prompts come from the Hub: its commit must be part of the cache's name.
        if kwargs.get("data_files") is None and not kwargs.get("revision"):
            name = kwargs.get("config_name") or self.INFO.default_config
            if name in self.INFO.configs:
                config = self.make_config(
                    name, **{k: v for k, v in kwargs.items() if k in ("repo", "split", "upstream")}
                )
                kwargs["revision"] = hub_files(self.INFO, config).revision
        config, config_id = super()._create_builder_config(*args, **kwargs)
        self._check(config)
        return config, config_id

    def _info(self) -> Any:
        extra = REJECT_COLUMNS if self.config.keep_rejects else {}
        return datasets.DatasetInfo(
            description=self.INFO.title,
            features=datasets.Features({**PROMPT_FEATURES, **extra}),
            homepage=self.INFO.homepage,
            license=self.INFO.license,
        )

    def _split_generators(self, dl_manager: Any) -> list[Any]:
        if self.config.data_files is not None:
            splits = {split: [str(file) for file in files] for split, files in self.config.data_files.items()}
        else:
            found = hub_files(self.INFO, self.config)
            splits = {found.split: found.urls}
        generators = []
        for split, urls in splits.items():
            local = dl_manager.download(urls)
            files = SourceFile.named(urls, local)
            if files:  # a foreign file is told here, where `datasets` does not wrap the error in its own
                next(self.outcomes(files[0].path, files[0].name, self.config), None)
            gen = {"files": [(file.path, file.name, file.revision) for file in files]}
            generators.append(datasets.SplitGenerator(name=str(split), gen_kwargs=gen))
        return generators

    def _generate_examples(self, files: list[tuple[str, str, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
        for path, name, revision in files:
            file = SourceFile(path, name, revision or file_revision(path))
            for outcome in self.outcomes(path, name, self.config):
                if outcome.reject is not None:
                    if self.config.keep_rejects:
                        yield f"{name}:{outcome.row}", self._reject_row(outcome, file)
                    continue
                for row in self.rows_of(outcome, file, self.config):
                    if self.config.keep_rejects:
                        row.update(reject_reason="", reject_detail="")
                    yield f"{name}:{outcome.row}:{row['source_turn']}", row

    def _reject_row(self, outcome: Outcome, file: SourceFile) -> dict[str, Any]:
        assert outcome.reject is not None
        empty = Outcome(outcome.row, [Prompt([], "[]", "", "unknown", 0, content_hash([], "[]"), 0)], None)
        row = next(self.rows_of(empty, file, self.config))
        row.update(sample_id="", dialogue="", source_turn=-1)
        return {**row, "reject_reason": outcome.reject.reason, "reject_detail": outcome.reject.detail}


_MESSAGE_KEYS: Final = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")


def _full(message: dict[str, Any]) -> dict[str, Any]:
    return {key: message.get(key) for key in _MESSAGE_KEYS}
