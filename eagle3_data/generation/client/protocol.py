"""SGLang's raw `/generate`: the exact request, and every check that an answer must pass to become data.

Goes in: prompt ids, sampling parameters, a budget; the body of a reply. Comes out: the bytes to send; an `Answer`, or
an `AnswerError` that holds the evidence. Protocol facts were measured on SGLang 0.5.23 and are recorded in the tests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import simdjson

from eagle3_data.generation.journal.entry import Ids


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


class AnswerError(Exception):
    """A reply that must not become data.

    Args:
        reason: short machine-readable kind.
        message: the evidence.
        transient: whether asking again may mend it.
    """

    def __init__(self, reason: str, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.transient = transient


class AnswerReader:
    """Parses and checks replies. Holds one parser, so one thread may use it.

    Args:
        vocabulary_size: ids from this on cannot be the target's.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
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
            raise AnswerError("answer", f"output_ids is not a list of integers: {_excerpt(body)}")
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
        version = str(meta.get("weight_version", ""))
        parts = meta.get("weight_versions")
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and str(part.get("version", version)) != version:
                seen = sorted({version, str(part["version"])})
                raise AnswerError("weights", f"weights changed within the answer: {seen}", transient=True)
        cached = meta.get("cached_tokens")
        return Answer(
            output_ids=output.astype(np.int32),
            stopped=kind == "stop",
            stop_token_id=stop,
            cached_tokens=cached if isinstance(cached, int) else 0,
            weight_version=version,
        )

    def _parse(self, body: bytes) -> tuple["np.ndarray[Any, np.dtype[np.int64]] | None", dict[str, Any]]:
        try:
            document: Any = self._parser.parse(body)
            ids = document["output_ids"]
            output = np.frombuffer(ids.as_buffer(of_type="i"), np.int64)
            # as_buffer flattens nested lists; the count of the outer one gives them away.
            flat = len(ids) == len(output)
            meta = document["meta_info"].as_dict()
            del ids, document
            if flat and isinstance(meta, dict):
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

    @staticmethod
    def _check_finish(finish: Any, kind: Any, output: "np.ndarray[Any, np.dtype[np.int64]]", budget: int) -> int:
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
        if not isinstance(matched, int) or isinstance(matched, bool):
            raise AnswerError("finish_reason", f"stopped by {matched!r}, and only stop tokens were asked for")
        if not len(output) or int(output[-1]) != matched:
            last = int(output[-1]) if len(output) else "nothing"
            raise AnswerError("finish_reason", f"stopped by token {matched}, but output_ids ends with {last}")
        return matched


def error_text(body: bytes) -> str:
    """Return the sentence in an error body, whichever of SGLang's four shapes it has, at most 500 characters."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _excerpt(body)
    if isinstance(value, dict):
        for found in (value.get("error"), value.get("message"), value.get("detail")):
            inner = found.get("message") if isinstance(found, dict) else found
            if isinstance(inner, str) and inner:
                return inner[:500]
    return _excerpt(body)


def _excerpt(body: bytes) -> str:
    text = body[:200].decode("utf-8", "replace").strip()
    return f"{text}… ({len(body)} bytes)" if len(body) > 200 else text or "(empty body)"
