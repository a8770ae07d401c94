"""What there is to know about a source, and the options that all sources share.

Goes in: a source's own statement of its configs, licences and quirks. Comes out: the values of cards and listings, and
options that are checked before a file is opened.

The module must import under datasets 3.6, where each source file is also a loading script.
"""

import difflib
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Final

import datasets

from eagle3_data.errors import SourceError
from eagle3_data.sources.dialogue import TURN_POLICIES

_FILTER_KEYS: Final = ("origin", "license", "not_origin", "not_license")


@dataclass(frozen=True)
class ConfigInfo:
    """One upstream data set, or part of one, that a source reads."""

    repo: str  # Hub id
    upstream: str | None = None  # config name on the Hub, None for the only one
    rows: int = 0  # by upstream's card; 0 if unknown
    distinct: int = 0  # prompts that are different, about, with turns: first; 0 if unknown
    split: str = "train"
    splits: tuple[str, ...] = ("train",)
    license: str = "unknown"


@dataclass(frozen=True)
class SourceInfo:
    """What there is to know about a source before loading it."""

    name: str
    title: str
    license: str  # SPDX id of the whole
    configs: dict[str, ConfigInfo]
    default_config: str
    quirks: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    homepage: str = ""
    terms: str = ""  # the licence in words, where the SPDX id does not say it all
    notes: tuple[str, ...] = ()  # attributions and obligations that a card must state, one sentence each
    contamination: str = ""  # benchmarks whose problems, or close relatives of them, are among the rows
    languages: tuple[str, ...] = ()  # ISO 639-1 codes; empty where nobody looked

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        configs = {name: {**vars(config), "splits": list(config.splits)} for name, config in self.configs.items()}
        lists = {name: list(getattr(self, name)) for name in ("quirks", "notes", "languages")}
        return {**vars(self), **lists, "configs": configs, "options": dict(self.options)}

    def attribution(self) -> dict[str, Any]:
        """Return what a card of derived data must say; empty for a source that is no one data set."""
        if not self.homepage:
            return {}
        return {
            "title": self.title,
            "url": self.homepage,
            "license": self.terms or self.license,
            "notes": list(self.notes),
            "contamination": self.contamination,
            "languages": list(self.languages),
        }


@dataclass
class SourceConfig(datasets.BuilderConfig):  # type: ignore[misc]
    """Options that all sources share."""

    turns: str = "first"  # first, prefix, last or rollout
    max_turns: int = 0  # with turns: rollout, the most turns of a dialogue that are answered; 0 for all
    entry: str = ""  # name in the recipe; the source's own name if empty
    filter: dict[str, Any] | None = None  # {origin, license, not_origin, not_license: value or list of values}
    keep_rejects: bool = False  # yield rejected rows too, with reject_reason and reject_detail
    repo: str = ""  # another Hub data set of the same schema
    upstream: str = ""  # config name in that data set, where it is not the usual one
    revision: str = ""  # of the Hub data set; the newest, recorded, if empty
    split: str = ""  # of the upstream data set, where nothing else says which

    def check(self) -> None:
        """Raise SourceError if an option has an impossible value.

        `datasets` sets options on a finished config, behind `__post_init__`.
        """
        for item in fields(self):
            value, default = getattr(self, item.name), item.default
            if isinstance(default, bool | str | int) and item.name != "name" and type(value) is not type(default):
                raise SourceError(f"option {item.name} must be {type(default).__name__}, not {value!r}")
        if self.turns not in TURN_POLICIES:
            raise SourceError(f"turns: {self.turns!r} is not one of {', '.join(TURN_POLICIES)}")
        if self.max_turns < 0 or (self.max_turns and self.turns != "rollout"):
            raise SourceError(f"max_turns: {self.max_turns} needs turns: rollout and a number of turns from 1")
        if not isinstance(self.filter or {}, dict):
            raise SourceError(f"filter must map {', '.join(_FILTER_KEYS)} to texts, not be {self.filter!r}")
        for key, value in (self.filter or {}).items():
            if key not in _FILTER_KEYS:
                raise SourceError(f"filter: unknown key {key!r}; it may have {', '.join(_FILTER_KEYS)}")
            values = [value] if isinstance(value, str) else value
            if not isinstance(values, list | tuple) or not all(isinstance(item, str) for item in values):
                raise SourceError(f"filter: {key} must be a text or a list of texts")


def matches(label: str, wanted: Any) -> bool:
    """Whether a label, or one of its parts between colons, is one of the texts or patterns."""
    items = [wanted] if isinstance(wanted, str) else wanted
    parts = (label, *label.split(":"))
    return any(fnmatchcase(part, item) for item in items for part in parts)


def nearest(word: str, among: Any) -> str:
    """Return `, did you mean '…'?` for a misspelt word, or ""."""
    close = difflib.get_close_matches(word, list(among), 1)
    return f", did you mean '{close[0]}'?" if close else ""
