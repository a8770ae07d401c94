"""The request that is sent, and every check on an answer, against what a real server said."""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from support.shared import SHARED

from eagle3_data.generation.client.protocol import (
    AnswerError,
    AnswerReader,
    RequestBody,
    body_limit,
    error_text,
    stated_context,
)
from eagle3_data.sampling import complete_sampling

EXCHANGES = SHARED / "sglang" / "exchanges.jsonl"
PROMPT = np.array([1, 9690, 198, 2683], np.int32)


def recorded() -> list[dict[str, Any]]:
    if not EXCHANGES.exists():
        pytest.skip(f"no recorded exchanges at {EXCHANGES}")
    return [json.loads(line) for line in EXCHANGES.read_text().splitlines()]


def test_request_says_everything() -> None:
    body = RequestBody(complete_sampling({"temperature": 0, "top_p": 0.95}), [2, 7]).build(PROMPT, 30)
    assert json.loads(body) == {
        "input_ids": [1, 9690, 198, 2683],
        "sampling_params": {
            "max_new_tokens": 30,
            "temperature": 0.0,
            "top_p": 0.95,
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "min_new_tokens": 0,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
            "stop_token_ids": [2, 7],
            "ignore_eos": False,
        },
    }


@pytest.mark.parametrize(
    ("case", "stopped", "tokens", "cached"),
    [
        ("stop at the end of turn", True, 8, 0),
        ("length by the cap", False, 5, 36),
        ("other stop token", True, 6, 36),
        ("logprobs", True, 8, 36),
    ],
)
def test_recorded_answers(case: str, stopped: bool, tokens: int, cached: int) -> None:
    exchange = next(one for one in recorded() if one["case"] == case)
    prompt = np.array(exchange["request"]["input_ids"], np.int32)
    budget = exchange["request"]["sampling_params"]["max_new_tokens"]
    answer = AnswerReader(49_152).read(json.dumps(exchange["answer"]).encode(), prompt, budget)
    assert answer.output_ids.dtype == np.int32
    assert answer.output_ids.tolist() == exchange["answer"]["output_ids"]
    assert (answer.stopped, len(answer.output_ids), answer.cached_tokens) == (stopped, tokens, cached)
    assert answer.stop_token_id == (answer.output_ids[-1] if stopped else -1)


def test_recorded_error_bodies_give_their_sentence() -> None:
    seen = {one["case"]: error_text(json.dumps(one["answer"]).encode()) for one in recorded() if one["status"] == 400}
    assert seen["empty input_ids"] == "input_ids cannot be empty."
    assert seen["unknown sampling parameter"].startswith("unknown field `nonsense`")
    assert seen["float id"].startswith("1 validation error")
    assert error_text(b"upstream connect error") == "upstream connect error"
    assert error_text(b"") == "(empty body)"


def answer(**changes: Any) -> bytes:
    meta = {
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "weight_version": "default",
    }
    body: dict[str, Any] = {"output_ids": [5, 6, 2], "meta_info": meta}
    for name, value in changes.items():
        if name in ("output_ids", "meta_info"):
            body[name] = value
        elif value is ...:
            del meta[name]
        else:
            meta[name] = value
    return orjson.dumps(body)


@pytest.mark.parametrize(
    ("body", "reason", "transient"),
    [
        (answer(prompt_tokens=3), "prompt_tokens", False),
        (answer(prompt_tokens=...), "prompt_tokens", False),
        (answer(completion_tokens=2), "completion_tokens", False),
        (answer(completion_tokens=...), "completion_tokens", False),
        (answer(output_ids=[198, 2683, 5, 6, 2]), "prompt_tail", False),
        (answer(output_ids=[5, 49_152, 2]), "vocabulary", False),
        (answer(output_ids=[5, -1, 2]), "vocabulary", False),
        (answer(output_ids=[5, 2**40, 2]), "vocabulary", False),
        (answer(output_ids=[5, 6, 7]), "finish_reason", False),
        (answer(output_ids=[5, 6, 7], finish_reason={"type": "stop", "matched": "nan happened"}), "nan", False),
        (answer(finish_reason={"type": "stop", "matched": "Paris"}), "finish_reason", False),
        (answer(finish_reason={"type": "stop"}), "finish_reason", False),
        (answer(finish_reason=None), "finish_reason", False),
        (answer(finish_reason={"type": "length", "length": 8}), "budget", False),
        (answer(output_ids=[5] * 8 + [2], completion_tokens=9), "budget", False),
        (answer(output_ids=[], completion_tokens=0), "finish_reason", False),
        (answer(output_ids=[[5, 6, 2]]), "answer", False),
        (answer(output_ids=[[5], [6], [2]]), "answer", False),
        (answer(output_ids=[5, [6], 2]), "answer", False),
        (answer(output_ids=[5, 6, [2, []]]), "answer", False),
        (answer().replace(b"output_ids", b"output\\u005fids"), "answer", False),
        (b'{"output_ids":[5,6,2],' + answer()[1:], "answer", False),
        (b"\xef\xbb\xbf" + answer(), "answer", False),
        (answer(output_ids=[5, 6, 7], finish_reason={"type": "stop", "matched": 7}), "unknown_stop", False),
        (answer(output_ids=[5, 9, 2]), "control_token", False),
        (answer(output_ids=[5, 3, 2]), "stop_inside", False),
        (answer(output_ids=[8, 8, 2]), "prompt_tail", False),
        (answer(finish_reason={"type": "stop", "matched": "NaN happened"}), "nan", False),
        (answer(output_ids=[5, 6.5, 2]), "answer", False),
        (answer(output_ids=["5"]), "answer", False),
        (answer(output_ids=None), "answer", False),
        (answer(meta_info=None), "answer", False),
        (b"[]", "answer", False),
        (answer(finish_reason={"type": "abort", "message": "x"}), "abort", True),
        (answer(finish_reason={"type": "abort"}, output_ids=[], prompt_tokens=...), "abort", True),
        (answer()[:-9], "body", True),
        (b"", "body", True),
        (b"\xff\xfe", "body", True),
        (answer(weight_versions=[{"version": "a"}, {"version": "default"}]), "weights", True),
    ],
)
def test_what_must_not_become_data(body: bytes, reason: str, transient: bool) -> None:
    reader = AnswerReader(49_152, (2, 3), (9,), (8, 8))
    with pytest.raises(AnswerError) as caught:
        reader.read(body, PROMPT, 8)
    assert (caught.value.reason, caught.value.transient) == (reason, transient)
    assert caught.value.message
    assert reader.read(answer(), PROMPT, 8).output_ids.tolist() == [5, 6, 2]  # the reader works on


LENGTH = {"type": "length", "length": 5}


@pytest.mark.parametrize(
    ("ids", "kept", "stop", "trimmed"),
    [
        ([5, 6, 7, 8, 10], [5, 6, 7, 8, 10], -1, 0),
        ([5, 2, 7, 8, 10], [5, 2], 2, 3),
        ([5, 6, 3, 2, 10], [5, 6, 3], 3, 2),
        ([5, 6, 7, 8, 2], [5, 6, 7, 8, 2], 2, 0),
        ([2, 6, 7, 9, 10], [2], 2, 4),  # what stands behind the end is no part of the answer, whatever it is
    ],
)
def test_an_end_token_that_the_cap_ran_over(ids: list[int], kept: list[int], stop: int, trimmed: int) -> None:
    body = answer(output_ids=ids, completion_tokens=5, finish_reason=LENGTH)
    read = AnswerReader(49_152, (2, 3), (9,)).read(body, PROMPT, 5)
    assert read.output_ids.tolist() == kept
    assert (read.stop_token_id, read.stopped, read.trimmed) == (stop, stop >= 0, trimmed)


def test_texts_that_hold_what_the_reader_looks_for() -> None:
    whole = orjson.loads(answer())
    for text in ('"output_ids":[[', '\\"output_ids":[1,', "[[[", '{"meta_info":{}}', "\\"):
        read = AnswerReader(49_152, (2,)).read(orjson.dumps({"text": text, **whole}), PROMPT, 8)
        assert read.output_ids.tolist() == [5, 6, 2]


@pytest.mark.parametrize(
    ("text", "context"),
    [
        ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", 8192),
        ("Requested token count exceeds the model's maximum context length of 8192 tokens. You requested 9037", 8192),
        ("Input length (8186 tokens) exceeds the maximum allowed length (8186 tokens). Use a shorter input", 8192),
        ("prompt exceeds the maximum", 0),
        ("input_ids cannot be empty.", None),
        ("unknown field `nonsense`", None),
        ("The request queue is full.", None),
    ],
)
def test_a_refusal_names_the_context(text: str, context: int | None) -> None:
    assert stated_context(text) == context


def test_recorded_refusals_of_long_prompts_name_the_context() -> None:
    seen = {one["case"]: one for one in recorded() if one["status"] == 400}
    for case in (
        "prompt longer than the context",
        "prompt and cap over the context",
        "prompt one under max_req_input_len",
    ):
        assert stated_context(error_text(json.dumps(seen[case]["answer"]).encode())) == 8192
    others = [one for case, one in seen.items() if "prompt" not in case]
    assert [stated_context(error_text(json.dumps(one["answer"]).encode())) for one in others] == [None] * len(others)


def test_only_a_body_far_above_what_is_real_is_too_large() -> None:
    """Every token a run of 20 spaces, in ids of six digits: still within the bound."""
    body = orjson.dumps({"text": " " * 20 * 4096, "output_ids": [163_839] * 4096, "meta_info": {}})
    assert len(body) < body_limit(4096) < 2_000_000
