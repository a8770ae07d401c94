"""One request from prompt ids to output ids, as SGLang would answer it, on llama.cpp's slots.

Goes in: a checked `Request`. Comes out: `Progress` after each run of tokens, the last one with its finish reason.
llama.cpp stops only where it sees an end of generation, so a request is generated in runs that continue one another
in the same slot: one that ended at a token which is no stop of this request goes on, one that passed a stop is cut.
Measured: runs of 1, 7 or 64 tokens give the same greedy ids as one long run, at 2.5 ms a run.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from eagle3_data.engine.llama import LlamaServer
from eagle3_data.engine.model import Vocabulary
from eagle3_data.engine.refusals import Refused
from eagle3_data.engine.requests import Request
from eagle3_data.errors import EngineError

# A run this long loses about one step in 64 of its slot's time, and lets an aborted request keep what it has.
_RUN: Final = 64
# Stops that llama.cpp does not know are found after the fact, so shorter runs waste less.
_RUN_WITH_STOPS: Final = 16
_MAX_SCORED: Final = 1024
_RANDOM: Final = -1  # llama.cpp draws a seed

ABORTED: Final[dict[str, Any]] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
ABORTED_IN_QUEUE: Final[dict[str, Any]] = {"type": "abort", "message": "Abort in waiting queue"}

T = TypeVar("T")


class _Aborted(Exception):
    pass


@dataclass
class Progress:
    """What a request has so far; `finish_reason` is None until it is done.

    Attributes:
        ids: output tokens, stop token included.
        finish_reason: SGLang's object: type stop, length or abort.
        cached: prompt tokens that were not computed anew.
        input_logprobs: (logprob or None, id) of the scored prompt positions.
        output_logprobs: of `ids`, when asked for.
        queued: the request was aborted before it began.
    """

    ids: list[int] = field(default_factory=list)
    finish_reason: dict[str, Any] | None = None
    cached: int = 0
    input_logprobs: list[tuple[float | None, int]] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    queued: bool = True


@dataclass(eq=False)
class Job:
    """A request that holds its id until it is done."""

    request: Request
    aborted: bool = False
    waiting: "asyncio.Future[Any] | None" = None

    async def step(self, work: Awaitable[T]) -> T:
        """Await `work`, so that an abort ends the wait (and with it the work in llama.cpp)."""
        self.waiting = task = asyncio.ensure_future(work)
        if self.aborted:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if self.aborted:
                raise _Aborted from None
            raise

    def abort(self) -> None:
        self.aborted = True
        if self.waiting is not None:
            self.waiting.cancel()


class Decoder:
    """Answers requests on the slots of a LlamaServer.

    Args:
        llama: the running server.
        vocabulary: of its model.
        deterministic: sampling without a seed takes one from the prompt, so that the same request has the same answer.
    """

    def __init__(self, llama: LlamaServer, vocabulary: Vocabulary, *, deterministic: bool) -> None:
        self._llama, self._vocabulary, self._deterministic = llama, vocabulary, deterministic
        self._slots: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(llama.slots):
            self._slots.put_nowait(slot)
        self._jobs: dict[str, Job] = {}

    @property
    def running(self) -> int:
        """Number of requests in a slot."""
        return self._llama.slots - self._slots.qsize()

    @property
    def known(self) -> int:
        """Number of requests running or queued."""
        return len(self._jobs)

    def claim(self, requests: list[Request]) -> list[Job]:
        """Take the requests' ids until `release`.

        Raises:
            Refused: an id is in use, or too many prompt positions are to be scored.
        """
        for request in requests:
            if request.rid in self._jobs:
                raise Refused.saying(f"Duplicate request ID detected: {request.rid}")
            if request.logprob_start is not None and request.logprob_start >= 0:
                scored = len(request.ids) - request.logprob_start
                if scored > _MAX_SCORED:
                    raise Refused.saying(
                        f"The embedded engine scores at most {_MAX_SCORED} prompt tokens a request, not {scored}."
                    )
        jobs = [Job(request) for request in requests]
        self._jobs.update((job.request.rid, job) for job in jobs)
        return jobs

    def release(self, jobs: list[Job]) -> None:
        """Free the ids of claimed requests."""
        for job in jobs:
            self._jobs.pop(job.request.rid, None)

    def abort(self, prefix: str | None) -> None:
        """Abort the requests whose id begins with `prefix`; None aborts all."""
        for rid, job in list(self._jobs.items()):
            if prefix is None or rid.startswith(prefix):
                job.abort()

    async def run(self, job: Job, *, stream: bool) -> AsyncGenerator[Progress]:
        """Answer a claimed request; with `stream`, yields after each run of tokens; at last, with a finish reason."""
        progress = Progress()
        place = asyncio.ensure_future(self._slots.get())
        try:
            await job.step(place)
            slot = place.result()
            progress.queued = False
            async for _ in self._decode(job, slot, progress, stream):
                yield progress
        except _Aborted:
            progress.finish_reason = ABORTED_IN_QUEUE if progress.queued else ABORTED
        finally:
            # a place that came in the moment of a cancellation must not be lost
            if place.done() and not place.cancelled():
                self._slots.put_nowait(place.result())
        yield progress

    async def _decode(self, job: Job, slot: int, progress: Progress, stream: bool) -> AsyncIterator[None]:
        request, llama = job.request, self._llama
        scoring = request.logprob_start is not None
        if request.logprob_start is not None and request.logprob_start >= 0:
            for position in range(request.logprob_start, len(request.ids)):
                token, value = request.ids[position], None
                if position > request.logprob_start:  # SGLang scores nothing at the start position itself
                    fresh = position == request.logprob_start + 1
                    value = await job.step(llama.score(request.ids[:position], token, slot, reuse=not fresh))
                progress.input_logprobs.append((value, token))
        run = self._run_length(request, scoring, stream)
        while len(progress.ids) < request.max_new_tokens:
            done = len(progress.ids)
            piece = await job.step(
                llama.complete(
                    request.ids + progress.ids,
                    min(run, request.max_new_tokens - done),
                    slot,
                    reuse=done > 0,
                    logprobs=scoring,
                    sampling=self._sampling(request, done),
                )
            )
            if not piece.ids:
                raise EngineError("llama.cpp answered without a token")
            if not done:
                progress.cached = piece.cached
            progress.output_logprobs += piece.logprobs
            progress.finish_reason = self._extend(progress.ids, piece.ids, request)
            if progress.finish_reason is not None:
                return
            if stream and len(progress.ids) < request.max_new_tokens:
                yield
        progress.finish_reason = {"type": "length", "length": request.max_new_tokens}

    def _run_length(self, request: Request, scoring: bool, stream: bool) -> int:
        if scoring:
            return 1
        if stream:
            return request.stream_interval
        return _RUN_WITH_STOPS if request.stops or request.stop_ids - self._vocabulary.eos else _RUN

    def _extend(self, ids: list[int], new: list[int], request: Request) -> dict[str, Any] | None:
        """Append `new` up to the first stop; return the finish reason, or None when there was none."""
        # each token holds at least one character of a stop string, save the few that hold part of one
        tail = max((len(stop.encode()) for stop in request.stops), default=0) + 4
        for token in new:
            ids.append(token)
            if request.stops:
                text = self._vocabulary.text(ids[-tail:])
                for stop in request.stops:
                    if stop in text:
                        return {"type": "stop", "matched": stop}
            if token in request.stop_ids:
                return {"type": "stop", "matched": token}
        return None

    def _sampling(self, request: Request, done: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"logit_bias": [list(pair) for pair in request.logit_bias]}
        if request.temperature == 0:
            return fields | {"temperature": 0.0, "samplers": ["temperature"]}
        # SGLang applies temperature, then top_p to the whole distribution, top_k, and min_p relative to the maximum
        return fields | {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "min_p": request.min_p,
            "samplers": ["temperature", "top_p", "top_k", "min_p"],
            "seed": self._seed(request, done),
        }

    def _seed(self, request: Request, done: int) -> int:
        if request.seed is not None:
            text = f"{request.seed} {done}"
        elif self._deterministic:
            text = f"{request.ids} {request.temperature} {request.top_p} {request.top_k} {request.min_p} {done}"
        else:
            return _RANDOM
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") & 0x7FFFFFFF
