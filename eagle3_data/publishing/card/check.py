"""Check a card without the Hub: the rules that the Hub, huggingface_hub and datasets hold its YAML to.

Goes in: the text of a card. Comes out: nothing, or a DataError that names the key. The Hub's own validator is a
network service; what can be told here is what `huggingface_hub` and `datasets` parse, and their lists of values.
"""

import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard

from eagle3_data.errors import DataError
from eagle3_data.publishing.card.facts import DEFAULT_CONFIG, SplitFacts, as_dict


def check_card(text: str, counts: Mapping[str, Mapping[str, SplitFacts]] | None = None) -> None:
    """Check the metadata of a card.

    Args:
        text: README.md.
        counts: the records it stands for; when given, configs and splits must be theirs.

    Raises:
        DataError: the YAML does not parse, or a key has a value that the Hub or `datasets` does not take.
    """
    try:
        data = DatasetCard(text).data
        configs = MetadataConfigs.from_dataset_card_data(data)
        default = configs.get_default_config_name()
    except (ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise DataError(f"README.md: its metadata does not parse: {error}") from error
    problems = [*_allowed_values(as_dict(data))]
    if default != DEFAULT_CONFIG:
        problems.append(f"configs: the default config is {default!r}, not {DEFAULT_CONFIG!r}")
    if counts is not None:
        problems += _counted(configs, counts)
    if problems:
        raise DataError(f"README.md: {'; '.join(problems)}")


def _allowed_values(data: Mapping[str, Any]) -> list[str]:
    sizes = json.loads((resources.files("datasets.utils.resources") / "size_categories.json").read_text("utf-8"))
    problems = [
        f"size_categories: {size!r} is none of the Hub's"
        for size in data.get("size_categories") or []
        if size not in sizes
    ]
    licenses = data.get("license")
    for value in licenses if isinstance(licenses, list) else [licenses]:
        if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", value):
            problems.append(f"license: {value!r} is no licence id of the Hub")
    if licenses == "other" and not data.get("license_name"):
        problems.append("license: `other` needs a `license_name`")
    for tag in data.get("tags") or []:
        if not isinstance(tag, str) or not tag.strip():
            problems.append(f"tags: {tag!r} is not text")
    return problems


def _counted(configs: MetadataConfigs, counts: Mapping[str, Mapping[str, SplitFacts]]) -> list[str]:
    problems = []
    for name in [DEFAULT_CONFIG, *counts]:
        selected = counts if name == DEFAULT_CONFIG else {name: counts[name]}
        wanted = {split for each in selected.values() for split in each}
        if name not in configs:
            problems.append(f"configs: {name} is missing")
        elif {entry["split"] for entry in configs[name].get("data_files", [])} != wanted:
            problems.append(f"configs: the splits of {name} are not {', '.join(sorted(wanted))}")
    return problems
