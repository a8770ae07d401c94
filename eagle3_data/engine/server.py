"""The HTTP routes of the embedded engine, in the shapes and status codes that SGLang 0.5.23 was recorded to give.

Goes in: HTTP requests on loopback. Comes out: `/generate` (one prompt, a list, a stream), `/v1/models`,
`/server_info`, `/model_info`, `/health`, `/ready`, `/ping`, `/tokenize`, `/abort_request`, `/flush_cache`.
"""

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web

from eagle3_data.engine.admission import foreign, read_json
from eagle3_data.engine.decoding import Decoder, Job, Progress
from eagle3_data.engine.llama import LlamaServer
from eagle3_data.engine.model import Vocabulary
from eagle3_data.engine.refusals import Refused
from eagle3_data.engine.requests import Call, Limits, Request, parse_call, prompts_of
from eagle3_data.errors import EngineError

_MAX_BODY: Final = 256 * 2**20
_OPEN_PATHS: Final = frozenset({"/health", "/ready", "/ping"})
_HEALTH_PATHS: Final = frozenset({*_OPEN_PATHS, "/health_generate"})
_WEIGHT_VERSION: Final = "default"


@dataclass(frozen=True)
class ServerConfig:
    """What the server says of itself.

    Attributes:
        model: the GGUF file.
        version: text for `/server_info`.
        deterministic: one slot, the same request has the same answer.
        api_key: Bearer key to ask for, "" for none.
    """

    model: Path
    version: str
    deterministic: bool
    api_key: str = ""


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


class EmbeddedServer:
    """The routes over one LlamaServer."""

    def __init__(self, llama: LlamaServer, vocabulary: Vocabulary, config: ServerConfig) -> None:
        self._llama, self._vocabulary, self._config = llama, vocabulary, config
        self._limits = Limits(llama.context, vocabulary)
        self._decoder = Decoder(llama, vocabulary, deterministic=config.deterministic)
        self._started = int(time.time())
        self.stopping = False

    @property
    def busy(self) -> bool:
        """Whether any request runs or waits."""
        return self._decoder.known > 0

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._guard])
        app.add_routes(
            [
                web.post("/generate", self._generate),
                web.put("/generate", self._generate),
                web.get("/v1/models", self._models),
                web.get("/server_info", self._server_info),
                web.get("/get_server_info", self._server_info),
                web.get("/model_info", self._model_info),
                web.get("/get_model_info", self._model_info),
                *(web.get(path, self._health) for path in ("/health", "/health_generate", "/ready", "/ping")),
                web.post("/tokenize", self._tokenize),
                web.post("/v1/tokenize", self._tokenize),
                web.post("/abort_request", self._abort),
                web.get("/flush_cache", self._flush),
                web.post("/flush_cache", self._flush),
            ]
        )
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        key = self._config.api_key
        if key and request.path not in _OPEN_PATHS:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {key}".encode()):
                return _json({"error": "Unauthorized"}, 401)
        if not key and (fault := foreign(request)):
            return _json({"error": {"message": fault}}, 403)
        if self.stopping and request.path not in _HEALTH_PATHS:
            return _json({"error": {"message": "The embedded engine is stopping and takes no new requests."}}, 503)
        try:
            return await handler(request)
        except Refused as refused:
            return _json(refused.body, refused.status)
        except web.HTTPException as error:
            return _json({"detail": error.reason}, error.status)
        except EngineError as error:
            return _json({"error": {"message": str(error)}}, 500)

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        started = time.perf_counter()
        body = await read_json(http)
        try:
            prompts, batch = prompts_of(body)
            ids = [await self._llama.tokenize(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
            call = parse_call(body, ids, batch, self._limits)
            jobs = self._decoder.claim(call.requests)
        except Refused as refused:
            error = refused.body.get("error")
            if not (_streams(body) and isinstance(error, dict)):
                raise
            return await _stream_error(http, error)
        try:
            if call.stream:
                return await self._stream(http, call, jobs, started)
            answers = await asyncio.gather(*(self._answer(job, started) for job in jobs))
        finally:
            self._decoder.release(jobs)
        return _json(answers if call.batch else answers[0])

    async def _answer(self, job: Job, started: float) -> dict[str, Any]:
        async with contextlib.aclosing(self._decoder.run(job, stream=False)) as steps:
            progress = [progress async for progress in steps][-1]
        answer = self._reply(job.request, progress, started)
        answer["meta_info"]["response_sent_to_client_ts"] = time.time()
        return answer

    async def _stream(self, http: web.Request, call: Call, jobs: list[Job], started: float) -> web.StreamResponse:
        response = await _open_stream(http)
        async for index, progress in self._merged(jobs):
            chunk = self._reply(jobs[index].request, progress, started)
            if call.batch:
                chunk["index"] = index
            await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _merged(self, jobs: list[Job]) -> AsyncIterator[tuple[int, Progress]]:
        """Yield the progress of all jobs as it comes, with the index of the job."""
        queue: asyncio.Queue[tuple[int, Progress] | None] = asyncio.Queue()

        async def follow(index: int, job: Job) -> None:
            async with contextlib.aclosing(self._decoder.run(job, stream=True)) as steps:
                async for progress in steps:
                    await queue.put((index, progress))

        async def follow_all() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    for index, job in enumerate(jobs):
                        group.create_task(follow(index, job))
            finally:
                await queue.put(None)

        task = asyncio.create_task(follow_all())
        try:
            while (item := await queue.get()) is not None:
                yield item
            await task
        finally:
            task.cancel()

    def _reply(self, request: Request, progress: Progress, started: float) -> dict[str, Any]:
        finish, count = progress.finish_reason, len(progress.ids)
        meta: dict[str, Any] = {"id": request.rid, "finish_reason": finish}
        if progress.queued:
            # SGLang knows no more of a request that it dropped from its queue
            meta |= {"weight_version": _WEIGHT_VERSION, "e2e_latency": time.perf_counter() - started}
            return {"text": "", "output_ids": [], "meta_info": meta | {"completion_tokens": 0}}
        meta |= {"prompt_tokens": len(request.ids), "weight_version": _WEIGHT_VERSION, "num_retractions": 0}
        if request.logprob_start is not None:
            shown = self._shown if request.text_in_logprobs else lambda _: None
            outputs = zip(progress.output_logprobs, progress.ids, strict=False)
            meta |= {
                "input_token_logprobs": [[value, token, shown(token)] for value, token in progress.input_logprobs],
                "output_token_logprobs": [[value, token, shown(token)] for value, token in outputs],
                "output_token_logprobs_length": count,
            }
        cached = progress.cached
        meta |= {"reasoning_tokens": 0, "completion_tokens": count, "cached_tokens": cached}
        if finish is not None:
            meta["weight_versions"] = [{"version": _WEIGHT_VERSION, "start": 0, "end": count}]
        meta |= {"cached_tokens_details": {"device": cached, "host": 0} if cached else None, "dp_rank": None}
        if finish is not None:
            meta["e2e_latency"] = time.perf_counter() - started
        return {"text": self._text(request, progress), "output_ids": progress.ids, "meta_info": meta}

    def _shown(self, token: int) -> str:
        return self._vocabulary.text([token])

    def _text(self, request: Request, progress: Progress) -> str:
        finish = progress.finish_reason or {}
        matched, ids = finish.get("matched"), progress.ids
        if isinstance(matched, int) and not request.no_stop_trim:
            ids = ids[:-1]
        text = self._vocabulary.text(ids, skip_special_tokens=request.skip_special_tokens, partial=not finish)
        if isinstance(matched, str) and not request.no_stop_trim:
            text = text.partition(matched)[0]
        return text

    async def _models(self, _: web.Request) -> web.Response:
        name = self._config.model.stem
        model = {"id": name, "object": "model", "created": self._started, "owned_by": "eagle3-data", "root": name}
        return _json({"object": "list", "data": [model | {"parent": None, "max_model_len": self._llama.context}]})

    def _identity(self) -> dict[str, Any]:
        path = str(self._config.model)
        return {"model_path": path, "tokenizer_path": path, "served_model_name": self._config.model.stem}

    async def _server_info(self, _: web.Request) -> web.Response:
        llama, config = self._llama, self._config
        pool = llama.context * llama.slots
        return _json(
            {
                "version": config.version,
                "status": "stopping" if self.stopping else "ready",
                **self._identity(),
                "context_length": None,
                "max_total_num_tokens": pool,
                "max_req_input_len": self._limits.max_req_input_len,
                "max_queued_requests": None,
                "allow_auto_truncate": False,
                "stream_interval": 1,
                "skip_tokenizer_init": False,
                "incremental_streaming_output": False,
                "dtype": "gguf",
                "tp_size": 1,
                "dp_size": 1,
                "max_running_requests": llama.slots,
                "enable_deterministic_inference": config.deterministic,
                "sampling_defaults": "openai",
                "internal_states": [
                    {
                        "max_total_tokens": pool,
                        "max_running_requests": llama.slots,
                        "effective_max_running_requests_per_dp": llama.slots,
                        "num_running_reqs": self._decoder.running,
                        "num_waiting_reqs": max(0, self._decoder.known - self._decoder.running),
                    }
                ],
            }
        )

    async def _model_info(self, _: web.Request) -> web.Response:
        return _json(
            {
                **self._identity(),
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": _WEIGHT_VERSION,
                "load_format": "gguf",
                "reasoning_parser": None,
                "tool_call_parser": None,
                "disaggregation_mode": "null",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": self._vocabulary.architecture,
                "architectures": [self._vocabulary.architecture],
            }
        )

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.stopping else 200)

    async def _tokenize(self, http: web.Request) -> web.Response:
        body = await read_json(http)
        prompt = body.get("prompt") if isinstance(body, dict) else None
        texts: list[Any] = prompt if isinstance(prompt, list) else [prompt]
        if not all(isinstance(text, str) for text in texts):
            raise Refused({"object": "error", "message": "prompt must be a string or a list of strings", "code": 400})
        special = body.get("add_special_tokens", True) is not False
        tokens = [await self._llama.tokenize(text, add_special=special) for text in texts]
        counts = [len(ids) for ids in tokens]
        many = isinstance(prompt, list)
        answer = {"tokens": tokens if many else tokens[0], "count": counts if many else counts[0]}
        return _json(answer | {"max_model_len": self._llama.context})

    async def _abort(self, http: web.Request) -> web.Response:
        body = await read_json(http)
        if isinstance(body, dict):
            rid = body.get("rid")
            if body.get("abort_all"):
                self._decoder.abort(None)
            elif isinstance(rid, str) and rid:
                self._decoder.abort(rid)
        return web.Response(status=200)

    async def _flush(self, _: web.Request) -> web.Response:
        # nothing is kept from one request to the next, so there is nothing to drop
        if self.busy:
            return web.Response(status=400, text="Flush cache failed: requests are running or waiting.\n")
        return web.Response(text="Cache flushed.\n")


def _streams(body: Any) -> bool:
    return isinstance(body, dict) and bool(body.get("stream"))


async def _open_stream(http: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(http)
    return response


async def _stream_error(http: web.Request, error: dict[str, Any]) -> web.StreamResponse:
    response = await _open_stream(http)
    chunk = {"error": {**error, "type": "invalid_request_error", "code": 400, "retryable": False}}
    await response.write(b"data: " + orjson.dumps(chunk) + b"\n\ndata: [DONE]\n\n")
    return response
