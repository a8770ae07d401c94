"""Finds a target's tokenizer and the end ids of its configuration.

Goes in: a local folder, a Hub id or a GGUF file. Comes out: the transformers tokenizer, the codec over it, and the
ids that end an answer by config.json and generation_config.json.
"""

import functools
import json
from pathlib import Path
from typing import Any

from eagle3_data.errors import TargetError
from eagle3_data.target.controls import AddedToken
from eagle3_data.target.encoding import Codec, FastCodec, SlowCodec, TiktokenCodec
from eagle3_data.target.profile_reading import EndIds


def load_tokenizer(path_or_id: str, revision: str | None, trust_remote_code: bool) -> Any:
    """Load a transformers tokenizer.

    Raises:
        TargetError: there is none at the path, the Hub cannot be reached, or it needs remote code that was not
        allowed.
    """
    from transformers import AutoTokenizer

    if path_or_id.startswith(("/", "./", "../", "~")) and not Path(path_or_id).exists():
        raise TargetError(f"{path_or_id}: there is no such folder; give one that holds tokenizer.json, or a Hub id")
    try:
        return AutoTokenizer.from_pretrained(path_or_id, revision=revision, trust_remote_code=trust_remote_code)
    except ImportError as error:
        raise TargetError(f"{path_or_id}: its tokenizer needs another package: {error}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if "trust_remote_code" in str(error):
            raise TargetError(
                f"{path_or_id}: its tokenizer is code of the model repository; read it, then allow it with "
                "`trust_remote_code: true` under target"
            ) from error
        raise TargetError(
            f"{path_or_id}: no tokenizer could be loaded ({reason}); give a folder that holds tokenizer.json and "
            "tokenizer_config.json, or a Hub id that can be reached"
        ) from error
    except Exception as error:
        # tokenizers raises bare Exception for a tokenizer.json that it cannot read.
        raise TargetError(f"{path_or_id}: its tokenizer cannot be read ({error})") from error


def make_codec(tokenizer: Any) -> Codec:
    """Return the codec that suits the class of a tokenizer."""
    model: Any = getattr(tokenizer, "model", None)
    if type(model).__module__.startswith("tiktoken"):
        special = set(tokenizer.all_special_ids)
        ids = {content: model.encode_single_token(content) for content in model.special_tokens_set}
        added = [
            AddedToken(index, content, index in special)
            for content, index in sorted(ids.items(), key=lambda pair: pair[1])
        ]
        codec = TiktokenCodec(
            model, added, str(getattr(tokenizer, "vocab_file", "")), str(getattr(tokenizer, "pat_str", ""))
        )
        codec.vocabulary = dict(tokenizer.get_vocab())
        return codec
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return SlowCodec(tokenizer) if backend is None else FastCodec(backend)


def model_files(path_or_id: str, revision: str | None) -> dict[str, dict[str, Any]]:
    """Return the parsed config.json and generation_config.json of a model, those that are there."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("config.json", "generation_config.json"):
        path = _file(path_or_id, name, revision)
        if path is None:
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TargetError(f"{path}: not readable JSON ({error})") from error
        if isinstance(value, dict):
            found[name] = value
    return found


def _file(path_or_id: str, name: str, revision: str | None) -> Path | None:
    folder = Path(path_or_id)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from transformers.utils.hub import cached_file

    try:
        path = cached_file(
            path_or_id,
            name,
            revision=revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError:
        return None
    return Path(path) if path else None


def tokenizer_file(path_or_id: str, revision: str | None) -> Path | None:
    """Return the tokenizer.json of a model, None where there is none."""
    return _file(path_or_id, "tokenizer.json", revision)


def end_ids(files: dict[str, dict[str, Any]], tokenizer: Any) -> EndIds:
    """Return the ids that end an answer by a model's files and its tokenizer."""
    config = files.get("config.json", {})
    own = tokenizer.eos_token_id
    return EndIds(
        generation_config=_ids(files.get("generation_config.json", {}).get("eos_token_id")),
        config=_ids(config.get("eos_token_id", _text_config(config).get("eos_token_id"))),
        tokenizer=_ids(own),
    )


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else {}


def _ids(value: Any) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, list) else ()


def embedding_rows(files: dict[str, dict[str, Any]]) -> int | None:
    """Return how many ids the model has embeddings for, None where no config.json says it."""
    config = files.get("config.json", {})
    size = config.get("vocab_size", _text_config(config).get("vocab_size"))
    return size if isinstance(size, int) else None


@functools.lru_cache(maxsize=8)
def resolved_revision(path_or_id: str, revision: str | None) -> str | None:
    """Return the commit that a Hub id's tokenizer was read at, the revision as given where that is not known."""
    if Path(path_or_id).is_dir():
        return revision
    path = _file(path_or_id, "tokenizer_config.json", revision)
    parts = path.parts if path else ()
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else revision
