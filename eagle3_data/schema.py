"""The columns of prompts and records, in one place.

Every other module takes its columns from here: a prompt is what a source builder yields, a record is what the target
model answered to it, and the failed and skipped rows of a run have tables of their own. Goes in: nothing. Comes out:
`datasets.Features` with the meaning of each column beside it, and the content hash that names a prompt.
"""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
from datasets import Features, Value

Message = Mapping[str, Any]

# `[...]` instead of datasets.List: the same module has to import under datasets 3.6, which has no List.
_TOOL_CALL = {
    "id": Value("string"),
    "type": Value("string"),
    "function": {"name": Value("string"), "arguments": Value("string")},
}
MESSAGE_FEATURES: Final[dict[str, Any]] = {
    "role": Value("string"),
    "content": Value("string"),
    "reasoning_content": Value("string"),
    "tool_calls": [_TOOL_CALL],
    "tool_call_id": Value("string"),
}

_ORIGIN_COLUMNS: Final[dict[str, Any]] = {
    "sample_id": Value("string"),  # <source>- and 24 hex digits of the content hash
    "source": Value("string"),  # name of the recipe's source entry
    "config": Value("string"),  # upstream config or split
    "source_revision": Value("string"),  # upstream commit, or hash of the local file
    "source_file": Value("string"),  # upstream path
    "source_row": Value("int64"),  # 0-based row within that file
    "source_turn": Value("int32"),  # 0-based index of the message that is answered
    "origin": Value("string"),  # component data set, domain or repository of the upstream row; "" if none
    "license": Value("string"),  # SPDX id of the upstream row, or "unknown"
}

_DIALOGUE_COLUMNS: Final[dict[str, Any]] = {
    "dialogue": Value("string"),  # sample_id of the first turn of the dialogue; its own where the row stands alone
    "turn": Value("int32"),  # 0-based place among the answered turns of the dialogue
}

PROMPT_FEATURES: Final = Features(
    {
        **_ORIGIN_COLUMNS,
        **_DIALOGUE_COLUMNS,
        "later_turns": [Value("string")],  # of a script (turns: rollout) the sample_ids of its turns after the first
        "expected_tokens": Value("int32"),  # length of the upstream answer in tokens, 0 if unknown: orders work only
        "messages": [MESSAGE_FEATURES],  # ends on the turn that is to be answered
        "tools": Value("string"),  # JSON list of OpenAI tool schemas, "[]" when there are none
    }
)

RECORD_FEATURES: Final = Features(
    {
        **_ORIGIN_COLUMNS,
        "sample": Value("int32"),  # which of several answers to one prompt, from 0
        **_DIALOGUE_COLUMNS,
        "input_ids": [Value("int32")],  # the prompt only, generation prompt included
        "output_ids": [Value("int32")],  # what the target wrote, stop token included
        "finish_reason": Value("string"),  # one of outcome.FINISH_REASONS
        "stop_token_id": Value("int32"),  # -1 where the answer was cut
        "prompt_tokens": Value("int32"),  # len(input_ids)
        "completion_tokens": Value("int32"),  # len(output_ids)
        "reasoning_tokens": Value("int32"),  # tokens of thinking, its end token included
        "tool_calls": Value("int32"),  # tool calls begun
        "max_new_tokens": Value("int32"),  # the budget that was sent, rounds summed
        "rounds": Value("int32"),  # 1, or more when a truncated row was continued
        "loop_tokens": Value("int32"),  # length of the tail of output_ids that repeats what is before it, 0 if none
    }
)

FAILURE_FEATURES: Final = Features(
    {
        "sample_id": Value("string"),
        "source": Value("string"),
        "reason": Value("string"),  # short machine-readable kind, such as "http_400" or "vocabulary"
        "http_status": Value("int32"),  # 0 when no answer came
        "message": Value("string"),  # the evidence, for people
        "attempts": Value("int32"),
    }
)

SKIPPED_FEATURES: Final = Features(
    {
        "sample_id": Value("string"),
        "source": Value("string"),
        "reason": Value("string"),  # "context": the prompt leaves no room to answer
        "prompt_tokens": Value("int32"),
        "limit_tokens": Value("int32"),  # the largest prompt that would have fitted
    }
)

REJECT_FEATURES: Final = Features(
    {
        "source": Value("string"),
        "source_file": Value("string"),
        "source_row": Value("int64"),
        "reason": Value("string"),
        "detail": Value("string"),
    }
)


def arrow_schema(features: Features) -> pa.Schema:
    """Return the Arrow schema of `features` without the `huggingface` metadata.

    Parquet that carries that metadata cannot be read by older `datasets` versions ("Feature type 'List' not found").
    """
    return pa.schema(list(features.arrow_schema)).remove_metadata()


def clean_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages without their null-valued keys and empty call lists, as dictionaries of plain Python values.

    Arrow gives every message every key of the struct, filled with nulls; templates and hashes must not see those.
    """
    return [
        {key: value for key, value in message.items() if value is not None and (value or key != "tool_calls")}
        for message in messages
    ]


def canonical_json(messages: Sequence[Message], tools: str) -> bytes:
    """Serialise a prompt's content in the one form that is hashed.

    Args:
        messages: chat messages in OpenAI form; null-valued keys are dropped.
        tools: JSON text of the list of tool schemas, "[]" when there are none.

    Returns:
        UTF-8 bytes with sorted keys, no spaces and no ASCII escapes.

    Raises:
        UnicodeEncodeError: a text holds a lone surrogate, which no UTF-8 file can carry.
        json.JSONDecodeError: `tools` is not JSON.
    """
    return b"[%b,%b]" % (_canonical(clean_messages(messages)), _canonical_tools(tools))


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _canonical(messages: list[dict[str, Any]]) -> bytes:
    # orjson writes texts as the standard library does, at a fifth of the time; numbers it may write otherwise.
    if all(type(value) is str for message in messages for value in message.values()):
        try:
            return orjson.dumps(messages, option=orjson.OPT_SORT_KEYS)
        except TypeError:  # a lone surrogate
            pass
    return _CANONICAL.encode(messages).encode()


@functools.lru_cache(maxsize=1024)  # most prompts of a source share few tool lists
def _canonical_tools(tools: str) -> bytes:
    return _CANONICAL.encode(json.loads(tools)).encode()


def content_hash(messages: Sequence[Message], tools: str) -> str:
    """Return the SHA-256 (64 hex digits) of a prompt's canonical JSON."""
    return hashlib.sha256(canonical_json(messages, tools)).hexdigest()


def prefix_hashes(messages: Sequence[Message], tools: str, ends: Sequence[int]) -> list[str]:
    """Return `content_hash(messages[:end], tools)` for each of `ends`, which rise; each message is encoded once."""
    digest, hashes, done = hashlib.sha256(b"[["), [], 0
    tail = b"],%b]" % _canonical_tools(tools)
    for end in ends:
        for message in clean_messages(messages[done:end]):
            digest.update((b"," if done else b"") + _canonical([message])[1:-1])
            done += 1
        whole = digest.copy()
        whole.update(tail)
        hashes.append(whole.hexdigest())
    return hashes


def sample_id(source: str, messages: Sequence[Message], tools: str) -> str:
    """Name a prompt by its content: `<source>-` and the first 24 hex digits of its SHA-256.

    The same prompt has the same id in every run and on every machine, so resume, dedupe and joins go by it.
    """
    return f"{source}-{content_hash(messages, tools)[:24]}"
