"""A tokenizer that is wrong is refused before a prompt is made."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.shared import SHARED

from eagle3_data.errors import TargetError
from eagle3_data.target import Target

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")


def other_split(description: dict[str, Any]) -> None:
    """GPT-2's splitting in place of the tokenizer's own: what transformers has made of Kimi's vocabulary."""
    description["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }


def shifted_controls(description: dict[str, Any]) -> None:
    """Every special id one off, their names moved by one."""
    tokens = description["added_tokens"]
    names = [token["content"] for token in tokens]
    for token, name in zip(tokens, [*names[1:], names[0]], strict=True):
        token["content"] = name


def no_split(description: dict[str, Any]) -> None:
    description["pre_tokenizer"] = {**description["pre_tokenizer"]["pretokenizers"][1], "use_regex": False}


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("kimi-k2.5", other_split, "encodes to"),
        ("kimi-k2.5", shifted_controls, "trust_remote_code"),
        ("qwen3", shifted_controls, "is 1516"),
        ("deepseek-v3.1", other_split, "encodes to"),
        ("smollm2", no_split, "encodes to"),
    ],
)
def test_wrong_tokenizer_is_refused(
    name: str, spoil: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / name
    shutil.copytree(SHARED / "tokenizers" / name, folder)
    folder.chmod(0o755)
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    spoil(description)
    path.unlink()
    path.write_text(json.dumps(description), encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    kept = json.loads(settings.read_text(encoding="utf-8"))
    kept.pop("added_tokens_decoder", None)
    kept["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.unlink()
    settings.write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(TargetError, match=message) as refused:
        Target.from_pretrained(folder)
    assert "transformers" in str(refused.value)


def test_no_tokenizer_there(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"tokenizer\.json"):
        Target.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["smollm2", "kimi-k2.5"])
def test_canaries_for_a_server_reach_rare_tokens_and_every_control(name: str) -> None:
    target = Target.from_pretrained(SHARED / "tokenizers" / name)
    found = dict(target.canaries())
    assert all(target.tokenizer.encode(text, add_special_tokens=False) == ids for text, ids in found.items())
    seen = {index for ids in found.values() for index in ids}
    ordinary = set(range(target.vocabulary_size)) - set(target.tokenizer.added_tokens_decoder)
    tenths = {index * 10 // target.vocabulary_size for index in seen & ordinary}
    assert tenths == set(range(10))
    profile = target.profile
    assert {*profile.end_of_turn_ids, profile.think_end_id, profile.tool_call_begin_id} - {None} <= seen
