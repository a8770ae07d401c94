"""What a `/generate` body may say: SGLang's own checks, defaults and sentences (recorded from SGLang 0.5.23).

Goes in: the decoded JSON body. Comes out: the requests in it, or `Refused` with the status and body that SGLang gives.
A parameter that llama.cpp cannot honour exactly is refused too; none is dropped. Unlike SGLang, which dies of one, an
id outside the vocabulary is refused.
"""

import math
import uuid
from dataclasses import dataclass
from typing import Any, Final

from eagle3_data.engine.model import Vocabulary
from eagle3_data.engine.refusals import Refused, bad_request, check_range, flag, invalid, number

RESERVED_TOKENS: Final = 6  # max_req_input_len is the context length less these
_CLAMP: Final = 2  # prompt and answer together end this far below the context length
_DEFAULT_MAX_NEW_TOKENS: Final = 128
_MAX_STOPS: Final = 32
_GREEDY_BELOW: Final = 1e-6
_INT64: Final = 2**63

_SAMPLING_FIELDS: Final = (
    "max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens", "n", "json_schema", "regex",
    "ebnf", "structural_tag", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim",
    "stream_interval", "logit_bias", "sampling_seed", "custom_params", "beam_width", "watermark", "choice",
)  # fmt: skip

# Known to SGLang, not to this engine: accepted only at a value that asks for nothing.
_SAMPLING_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "stop_regex": (None, "", []),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_new_tokens": (None, 0),
    "n": (None, 1),
    "json_schema": (None, ""),
    "regex": (None, ""),
    "ebnf": (None, ""),
    "structural_tag": (None, ""),
    "custom_params": (None, {}),
    "beam_width": (None, 1),
    "watermark": (None, {}),
    "choice": (None, []),
}
_BODY_NEUTRAL: Final = (
    "input_embeds", "image_data", "video_data", "audio_data", "session_params", "lora_path", "custom_logit_processor",
    "token_ids_logprob", "top_logprobs_num", "return_sampling_mask", "return_hidden_states", "return_routed_experts",
    "return_flat_raw_top_logprobs", "max_thinking_tokens", "positional_embed_overrides",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What one request may ask: the context length and the vocabulary of the model."""

    context: int
    vocabulary: Vocabulary

    @property
    def max_req_input_len(self) -> int:
        """SGLang's name for the prompt length that is refused (a prompt must be shorter)."""
        return self.context - RESERVED_TOKENS


@dataclass(frozen=True)
class Request:
    """One prompt to answer, checked.

    Attributes:
        rid: request id, unique among those running.
        ids: prompt.
        max_new_tokens: budget after SGLang's silent clamp.
        stop_ids: tokens that end the answer, end of sequence included unless `ignore_eos`.
        stops: strings that end the answer.
        temperature, top_p, top_k, min_p: temperature 0 is greedy; top_k 0 is off.
        seed: of the sampling, or None for a new one each time.
        logit_bias: (token, bias) added to the model's logits.
        logprob_start: first prompt position to score; −1 for none; None when no log-probabilities are wanted.
    """

    rid: str
    ids: list[int]
    max_new_tokens: int
    stop_ids: frozenset[int]
    stops: tuple[str, ...]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    logit_bias: tuple[tuple[int, float], ...]
    logprob_start: int | None
    text_in_logprobs: bool
    skip_special_tokens: bool
    no_stop_trim: bool
    stream_interval: int


@dataclass(frozen=True)
class Call:
    """A body: its requests in order, whether it was a list, and whether the answer is a stream."""

    requests: list[Request]
    batch: bool
    stream: bool


def _check_ids(value: Any) -> None:
    rows = value if isinstance(value, list) and value and all(isinstance(row, list) for row in value) else [value]
    for row in rows:
        if not isinstance(row, list):
            raise invalid(("body", "input_ids"), "Value error, must be a list of integers or of lists of them", value)
        for item in row:
            if isinstance(item, bool) or not isinstance(item, int):
                what = f"'{type(item).__name__}' object cannot be interpreted as an integer"
                raise invalid(("body", "input_ids"), f"Value error, contains non-int64 element: {what}", value)
            if not -_INT64 <= item < _INT64:
                raise invalid(
                    ("body", "input_ids"), "Value error, contains non-int64 element: int too big to convert", value
                )


def prompts_of(body: Any) -> tuple[list[list[int]] | list[str], bool]:
    """Return the prompts of a body, as ids or as texts still to be tokenised, and whether they came as a list.

    Raises:
        Refused: the body is not an object, or holds no valid prompt.
    """
    if not isinstance(body, dict):
        detail = {
            "type": "dataclass_type",
            "loc": ("body",),
            "msg": "Input should be a dictionary or an instance of GenerateReqInput",
            "input": body,
        }
        raise bad_request(detail)
    for name in _BODY_NEUTRAL:
        if body.get(name):
            raise Refused.saying(f"The embedded engine does not support {name}; leave it out.")
    text: Any = body.get("text")
    ids: Any = body.get("input_ids")
    if ids is not None:
        _check_ids(ids)
    if text is None and ids is None:
        raise Refused.saying("Either text, input_ids or input_embeds should be provided.")
    if text is not None:
        texts = text if isinstance(text, list) else [text]
        if not texts or not all(isinstance(item, str) and item for item in texts):
            raise Refused.saying("text must be a non-empty string, or a list of them.")
        return texts, isinstance(text, list)
    if not ids or any(row == [] for row in ids):
        raise Refused.saying("input_ids cannot be empty.")
    return (ids, True) if isinstance(ids[0], list) else ([ids], False)


def _spread(body: dict[str, Any], name: str, count: int, batch: bool) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list):
        return [value] * count
    if not batch or len(value) != count:
        raise Refused.saying(f"{name} holds {len(value)} values for {count} prompts.")
    return value


def parse_call(body: dict[str, Any], prompts: list[list[int]], batch: bool, limits: Limits) -> Call:
    """Return the checked requests of a body whose prompts are `prompts`.

    Raises:
        Refused: as SGLang would, or because llama.cpp cannot honour a parameter exactly.
    """
    count = len(prompts)
    rids: list[Any] = _spread(body, "rid", count, batch)
    if batch and isinstance(body.get("rid"), str):
        rids = [f"{body['rid']}_{index}" for index in range(count)]
    rids = [uuid.uuid4().hex if given is None else given for given in rids]
    if not all(isinstance(rid, str) for rid in rids):
        raise Refused.saying("rid must be a string, or a list of strings.")
    if len(set(rids)) < count:
        raise Refused.saying("Duplicate request IDs detected within the request.")
    sampling = _spread(body, "sampling_params", count, batch)
    logprobs = _spread(body, "return_logprob", count, batch)
    starts = _spread(body, "logprob_start_len", count, batch)
    requests = []
    for index, ids in enumerate(prompts):
        start = (-1 if starts[index] is None else starts[index]) if logprobs[index] else None
        requests.append(
            _parse_request(rids[index], ids, sampling[index], start, bool(body.get("return_text_in_logprobs")), limits)
        )
    return Call(requests, batch, bool(body.get("stream")))


def _parse_request(
    rid: str, ids: list[int], params: Any, logprob_start: Any, text_in_logprobs: bool, limits: Limits
) -> Request:
    params = {} if params is None else params
    if not isinstance(params, dict):
        raise Refused.saying("sampling_params must be an object.")
    for name in params:
        if name not in _SAMPLING_FIELDS:
            known = ", ".join(f"`{field}`" for field in _SAMPLING_FIELDS)
            raise Refused({"error": f"unknown field `{name}`, expected one of {known}"})
        if name in _SAMPLING_NEUTRAL and params[name] not in _SAMPLING_NEUTRAL[name]:
            raise Refused.saying(
                f"The embedded engine cannot honour {name}={params[name]!r} exactly; leave it out or use SGLang."
            )
    budget = params.get("max_new_tokens", _DEFAULT_MAX_NEW_TOKENS)
    if budget is not None:
        budget = number(params, "max_new_tokens", _DEFAULT_MAX_NEW_TOKENS, whole=True)
        check_range(budget >= 0, "max_new_tokens", "at least 0", budget)
    _check_lengths(len(ids), budget, limits)

    size = limits.vocabulary.size
    for token in ids:
        if not 0 <= token < size:
            raise Refused.saying(f"input_ids holds {token}, which is outside the vocabulary of {size} tokens.")
    temperature = number(params, "temperature", 1.0)
    valid = math.isfinite(temperature) and temperature >= 0
    check_range(valid, "temperature", "a non-negative finite number", temperature)
    top_p, min_p = number(params, "top_p", 1.0), number(params, "min_p", 0.0)
    check_range(0 < top_p <= 1, "top_p", "in (0, 1]", top_p)
    check_range(0 <= min_p <= 1, "min_p", "in [0, 1]", min_p)
    top_k = number(params, "top_k", -1, whole=True)
    check_range(top_k == -1 or top_k >= 1, "top_k", "-1 (disable) or at least 1", top_k)
    seed = number(params, "sampling_seed", -1, whole=True) if params.get("sampling_seed") is not None else None
    interval = number(params, "stream_interval", 1, whole=True)
    check_range(interval >= 1, "stream_interval", "at least 1", interval)
    if logprob_start is not None:
        if isinstance(logprob_start, bool) or not isinstance(logprob_start, int):
            raise Refused.saying("logprob_start_len must be an integer.")
        if logprob_start > len(ids):
            raise Refused.saying(f"logprob_start_len ({logprob_start}) is beyond the prompt's {len(ids)} tokens.")
        if temperature >= _GREEDY_BELOW and temperature != 1:
            raise Refused.saying("The embedded engine gives log-probabilities at temperature 0 or 1 only.")
        if params.get("logit_bias"):
            raise Refused.saying("The embedded engine gives no log-probabilities together with logit_bias.")
    stop_ids = _stop_ids(params, limits)
    flag(params, "spaces_between_special_tokens", True)  # without effect on a byte-level vocabulary, in SGLang too
    return Request(
        rid=rid,
        ids=ids,
        max_new_tokens=max(0, min(_INT64 if budget is None else budget, limits.context - _CLAMP - len(ids))),
        stop_ids=stop_ids,
        stops=_stop_strings(params),
        temperature=0.0 if temperature < _GREEDY_BELOW else float(temperature),
        top_p=float(top_p),
        top_k=max(0, top_k),
        min_p=float(min_p),
        seed=seed,
        logit_bias=_logit_bias(params, size),
        logprob_start=logprob_start,
        text_in_logprobs=text_in_logprobs,
        skip_special_tokens=flag(params, "skip_special_tokens", True),
        no_stop_trim=flag(params, "no_stop_trim", False),
        stream_interval=interval,
    )


def _check_lengths(prompt: int, budget: int | None, limits: Limits) -> None:
    context = limits.context
    if prompt >= context:
        raise Refused.saying(
            f"The input ({prompt} tokens) is longer than the model's context length ({context} tokens)."
        )
    if budget is not None and prompt + budget > context:
        raise Refused.saying(
            f"Requested token count exceeds the model's maximum context length of {context} tokens. "
            f"You requested a total of {prompt + budget} tokens: {prompt} tokens from the input messages "
            f"and {budget} tokens for the completion. "
            "Please reduce the number of tokens in the input messages or the completion to fit within the limit."
        )
    longest = limits.max_req_input_len
    if prompt >= longest:
        raise Refused.saying(
            f"Input length ({prompt} tokens) exceeds the maximum allowed length ({longest} tokens). "
            "Use a shorter input or enable --allow-auto-truncate."
        )


def _stop_ids(params: dict[str, Any], limits: Limits) -> frozenset[int]:
    given = params.get("stop_token_ids") or []
    if not isinstance(given, list) or any(isinstance(item, bool) or not isinstance(item, int) for item in given):
        raise Refused({"error": "Expected `array` of `int` - at `$.stop_token_ids`"})
    # ignore_eos also silences stop_token_ids, as SGLang does
    return frozenset() if flag(params, "ignore_eos", False) else frozenset(given) | limits.vocabulary.eos


def _stop_strings(params: dict[str, Any]) -> tuple[str, ...]:
    stop = params.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(item, str) and item for item in stops):
        raise Refused({"error": "Expected `str | array<str>` - at `$.stop`"})
    if len(stops) > _MAX_STOPS:
        raise Refused.saying(f"at most {_MAX_STOPS} stop strings are allowed, got {len(stops)}")
    return tuple(stops)


def _logit_bias(params: dict[str, Any], size: int) -> tuple[tuple[int, float], ...]:
    given = params.get("logit_bias") or {}
    if not isinstance(given, dict):
        raise Refused({"error": f"Expected `object`, got `{type(given).__name__}` - at `$.logit_bias`"})
    pairs = []
    for token, bias in given.items():
        # the length first: Python refuses to read numbers of more than 4,300 digits
        if not token.isdecimal() or len(token) > len(str(size)) or int(token) >= size:
            raise Refused.saying(f"logit_bias must has keys in [0, {size - 1}], got {token[:40]}.")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not math.isfinite(bias):
            raise Refused.saying(f"logit_bias must hold finite numbers, got {bias} for token {token}.")
        pairs.append((int(token), float(bias)))
    return tuple(pairs)
