"""SGLang's raw `/generate`: the exact request, and every check that an answer must pass to become data.

Goes in: prompt ids, sampling parameters, a budget; the body of a reply. Comes out: the bytes to send; an `Answer`, or
an `AnswerError` that holds the evidence. Protocol facts were measured on SGLang 0.5.23 and are recorded in the tests.
The rules of `check` that concern one answer are applied here, so that a bad one costs a request and not a data set.
"""

import codecs
import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import simdjson

from eagle3_data.foreign_text import foreign_text
from eagle3_data.generation.journal.entry import Ids

# A token is at most about 20 bytes as a number and as escaped text, except for rare ones that are long runs of spaces.
_TOKEN_BYTES: Final = 64
_STOP: Final = 1
_FORBIDDEN: Final = 2
_BODY_MARGIN: Final = 1 << 20
# Parameters that look back at the tokens of one request: a continued answer is drawn otherwise than a whole one.
_LOOKING_BACK: Final = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
}
_ENGLISH_OF_TOO_LONG: Final = re.compile(r"(?:longer than|exceed).*(?:context|maximum)|(?:context|maximum).*exceed")
_CONTEXT_NUMBER: Final = re.compile(r"context length(?: of)? \(?(\d+) tokens")
_INPUT_MARGIN: Final = 6  # SGLang's max_req_input_len lies so far below its context
_INPUT_NUMBER: Final = re.compile(r"maximum allowed length \((\d+) tokens")


class RequestBody:
    """Builds the JSON of a request; all but ids and budget is written once.

    Args:
        sampling: every parameter, as `complete_sampling` returns them.
        stop_token_ids: ids that end an answer.
    """

    def __init__(self, sampling: Mapping[str, float | int], stop_token_ids: Sequence[int]) -> None:
        constant = {
            **sampling,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
            "stop_token_ids": list(stop_token_ids),
            "ignore_eos": False,
        }
        self._tail = b"," + orjson.dumps(constant)[1:] + b"}"
        # Whether an answer that is fetched in pieces is drawn as one that comes whole.
        self.continues = all(sampling.get(name, neutral) == neutral for name, neutral in _LOOKING_BACK.items())

    def build(self, ids: Ids, budget: int) -> bytes:
        """Return the body that asks for at most `budget` tokens after `ids`, int32, shape (tokens,)."""
        return b"".join(
            (
                b'{"input_ids":',
                orjson.dumps(np.ascontiguousarray(ids), option=orjson.OPT_SERIALIZE_NUMPY),
                b',"sampling_params":{"max_new_tokens":%d' % budget,
                self._tail,
            )
        )


@dataclass(slots=True)
class Answer:
    """A reply that passed every check."""

    output_ids: Ids
    stopped: bool
    stop_token_id: int
    cached_tokens: int
    weight_version: str
    trimmed: int = 0  # tokens that stood behind the end token of an answer that met its cap, dropped

    def before(self, later: "Answer") -> "Answer":
        """Return this answer and the one that continues it as one."""
        ids = np.concatenate([self.output_ids, later.output_ids])
        return dataclasses.replace(later, output_ids=ids, cached_tokens=self.cached_tokens)


class AnswerError(Exception):
    """A reply that must not become data.

    Args:
        reason: short machine-readable kind.
        message: the evidence.
        transient: whether asking the same server again may help.
    """

    def __init__(self, reason: str, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = foreign_text(message)
        self.transient = transient


class AnswerReader:
    """Parses and checks replies. Holds one parser, so one thread may use it.

    Args:
        vocabulary_size: ids from this on cannot be the target's.
        stop_token_ids: those that were sent; an answer ends with one of them. Unchecked where none is given.
        forbidden_ids: control tokens that only the template writes; an answer that holds one is no data.
        prompt_end: how every prompt ends (the generation prompt); an answer must not repeat it.
    """

    def __init__(
        self,
        vocabulary_size: int,
        stop_token_ids: Sequence[int] = (),
        forbidden_ids: Sequence[int] = (),
        prompt_end: Sequence[int] = (),
    ) -> None:
        self._vocabulary_size = vocabulary_size
        self._stops = sorted(set(stop_token_ids))
        self._kinds = np.zeros(vocabulary_size, np.uint8)  # a look-up takes a twentieth of np.isin's time
        self._kinds[list(forbidden_ids)] = _FORBIDDEN
        self._kinds[self._stops] = _STOP
        self._prompt_end = np.array(prompt_end, np.int64)
        self._version: tuple[object, str] = ("", "")
        self._parser = simdjson.Parser()

    def read(self, body: bytes, prompt: Ids, budget: int) -> Answer:
        """Return the checked answer in the body of a 200 reply.

        Raises:
            AnswerError: see the module's text; `abort` and a body that is cut off are transient.
        """
        output, meta = self._parse(body)
        finish = meta.get("finish_reason")
        kind = finish.get("type") if isinstance(finish, dict) else None
        if isinstance(finish, dict) and kind == "abort":
            raise AnswerError("abort", f"the server aborted it: {finish.get('message', '')}", transient=True)
        if output is None:
            raise AnswerError("answer", f"output_ids is not a flat list of integers: {_excerpt(body)}")
        self._check_counts(output, meta, prompt)
        # Seen as unsigned, a negative id is above every vocabulary too.
        if len(output) and np.maximum.reduce(output.view(np.uint64)) >= self._vocabulary_size:
            wrong = output[(output < 0) | (output >= self._vocabulary_size)]
            raise AnswerError(
                "vocabulary",
                f"output_ids holds {int(wrong[0])}, outside the target's {self._vocabulary_size} tokens "
                f"({len(wrong)} such ids); the server serves another model",
            )
        stop = self._check_finish(finish, kind, output, budget)
        whole = len(output)
        inside = self._kinds[output[: whole - (kind == "stop")]]
        if inside.any():
            output, stop = self._without_overrun(output, inside, kind == "stop", stop)
        self._check_beginning(output)
        version = self._shown_version(meta.get("weight_version", ""))
        parts = meta.get("weight_versions")
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and self._shown_version(part.get("version", version)) != version:
                seen = sorted({version, self._shown_version(part["version"])})
                raise AnswerError("weights", f"weights changed within the answer: {seen}", transient=True)
        cached = meta.get("cached_tokens")
        return Answer(
            output_ids=output.astype(np.int32),
            stopped=stop >= 0,
            stop_token_id=stop,
            cached_tokens=cached if isinstance(cached, int) else 0,
            weight_version=version,
            trimmed=whole - len(output),
        )

    def _shown_version(self, given: object) -> str:
        """Return a weight version as it may be kept; all answers of a run have the same."""
        if given != self._version[0]:
            self._version = (given, foreign_text(given, 100))
        return self._version[1]

    @staticmethod
    def _without_overrun(
        output: "np.ndarray[Any, np.dtype[np.int64]]",
        kinds: "np.ndarray[Any, np.dtype[np.uint8]]",
        stopped: bool,
        stop: int,
    ) -> "tuple[np.ndarray[Any, np.dtype[np.int64]], int]":
        """Return the answer up to a stop token that its cap ran over, and that token.

        A server that accepts several tokens at a step (speculative decoding) may meet the cap in the same step.

        Raises:
            AnswerError: a stop token stands inside an answer that was stopped by another, or there is an id that only
                the template writes.
        """
        ends = np.flatnonzero(kinds == _STOP)
        if ends.size:
            if stopped:
                raise AnswerError(
                    "stop_inside", f"stop token {int(output[ends[0]])} stands inside, at place {ends[0]}"
                )
            output = output[: int(ends[0]) + 1]
            stop = int(output[-1])
        hits = np.flatnonzero(kinds[: len(output)] == _FORBIDDEN)
        if hits.size:
            raise AnswerError(
                "control_token",
                f"output_ids holds {int(output[hits[0]])} at place {hits[0]}, which only the template writes",
            )
        return output, stop

    def _check_beginning(self, output: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
        size = len(self._prompt_end)
        if size > 1 and np.array_equal(output[:size], self._prompt_end):
            raise AnswerError("prompt_tail", "output_ids begins with the generation prompt; upgrade the server")

    def _parse(self, body: bytes) -> tuple["np.ndarray[Any, np.dtype[np.int64]] | None", dict[str, Any]]:
        if body.startswith(codecs.BOM_UTF8):  # which the parser passes over
            raise AnswerError("answer", f"begins with a byte order mark: {_excerpt(body)}")
        try:
            document: Any = self._parser.parse(body)
            ids = document["output_ids"]
            output = np.frombuffer(ids.as_buffer(of_type="i"), np.int64)
            meta = document["meta_info"].as_dict()
            del ids, document
            if _is_flat(body) and isinstance(meta, dict):
                return output, meta
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError):
            self._parser = simdjson.Parser()
        return None, self._parse_slowly(body)

    def _parse_slowly(self, body: bytes) -> dict[str, Any]:
        """Return meta_info of a reply whose output_ids cannot be used, or say what is wrong with the reply."""
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise AnswerError("body", f"not whole JSON ({error}): {_excerpt(body)}", transient=True) from None
        meta = value.get("meta_info") if isinstance(value, dict) else None
        if not isinstance(meta, dict):
            raise AnswerError("answer", f"no meta_info in the answer: {_excerpt(body)}")
        return meta

    def _check_counts(self, output: "np.ndarray[Any, np.dtype[np.int64]]", meta: dict[str, Any], prompt: Ids) -> None:
        counted, completed = meta.get("prompt_tokens"), meta.get("completion_tokens")
        if counted != len(prompt):
            raise AnswerError(
                "prompt_tokens",
                f"{len(prompt)} ids were sent and the server counted {counted}; it cuts or re-tokenises prompts",
            )
        if completed != len(output):
            extra = len(output) - completed if isinstance(completed, int) else 0
            if 0 < extra <= len(prompt) and np.array_equal(output[:extra], prompt[-extra:]):
                raise AnswerError(
                    "prompt_tail", f"output_ids begins with the last {extra} ids of the prompt; upgrade the server"
                )
            raise AnswerError(
                "completion_tokens", f"output_ids holds {len(output)} ids and completion_tokens says {completed}"
            )

    def _check_finish(self, finish: Any, kind: Any, output: "np.ndarray[Any, np.dtype[np.int64]]", budget: int) -> int:
        if len(output) > budget:
            raise AnswerError("budget", f"{len(output)} tokens came where {budget} were asked for")
        if kind == "length":
            if len(output) != budget:
                raise AnswerError(
                    "budget", f"ended by length after {len(output)} tokens where {budget} were asked for"
                )
            return -1
        if kind != "stop":
            raise AnswerError("finish_reason", f"unknown finish_reason {finish!r}")
        matched = finish.get("matched")
        if isinstance(matched, str) and "nan" in matched.lower():
            raise AnswerError("nan", f"the server computed no number, and stopped with {matched!r}")
        if not isinstance(matched, int) or isinstance(matched, bool):
            raise AnswerError("finish_reason", f"stopped by {matched!r}, and only stop tokens were asked for")
        if not len(output) or int(output[-1]) != matched:
            last = int(output[-1]) if len(output) else "nothing"
            raise AnswerError("finish_reason", f"stopped by token {matched}, but output_ids ends with {last}")
        if self._stops and matched not in self._stops:
            raise AnswerError(
                "unknown_stop",
                f"stopped by token {matched}, which was not asked for ({self._stops} were); where it ends "
                "the target's turns, add it to target.profile.end_of_turn_ids",
            )
        return matched


def _is_flat(body: bytes) -> bool:
    """Whether the list of output_ids holds no other list: the parser would flatten it.

    Within a text the name would have a backslash before its second quotation mark.
    """
    if body.count(b'"output_ids"') != 1:
        return False
    begin = body.index(b"[", body.index(b'"output_ids"'))
    return body.count(b"[", begin, body.index(b"]", begin)) == 1


def body_limit(budget: int) -> int:
    """Return the most bytes that a reply to a request for `budget` tokens may have."""
    return _BODY_MARGIN + _TOKEN_BYTES * budget


def stated_context(text: str) -> int | None:
    """Return the context length in a refusal of a prompt that is too long, 0 where it names none; None for others."""
    if not _ENGLISH_OF_TOO_LONG.search(text):
        return None
    if found := _CONTEXT_NUMBER.search(text):
        return int(found[1])
    found = _INPUT_NUMBER.search(text)
    return int(found[1]) + _INPUT_MARGIN if found else 0


def error_text(body: bytes) -> str:
    """Return the sentence in an error body, whichever of SGLang's four shapes it has, as `foreign_text`."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _excerpt(body)
    if isinstance(value, dict):
        for found in (value.get("error"), value.get("message"), value.get("detail")):
            inner = found.get("message") if isinstance(found, dict) else found
            if isinstance(inner, str) and inner:
                return foreign_text(inner)
    return _excerpt(body)


def _excerpt(body: bytes) -> str:
    text = foreign_text(body[:2000], 200)
    return f"{text} ({len(body)} bytes)" if len(body) > 200 else text or "(empty body)"
