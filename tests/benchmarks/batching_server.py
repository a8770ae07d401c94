"""A stub that models continuous batching: so many slots, one token a slot and step, the rest waits in a queue.

Goes in: the answer length of every row (a row's number is its first prompt id). Comes out: a server for `serving`, and
how many steps it took.
"""

import asyncio
import time
from collections import deque
from typing import Any

import numpy as np
import orjson
from aiohttp import web


class BatchingServer:
    """Args: lengths in tokens, the number of slots, seconds of one step."""

    def __init__(self, lengths: "np.ndarray[Any, Any]", slots: int, step_seconds: float) -> None:
        self._lengths = lengths
        self._slots = slots
        self._step_seconds = step_seconds
        self.steps = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._running: dict[int, list[asyncio.Future[None]]] = {}
        self._busy = 0
        self._clock: asyncio.Task[None] | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/generate", self._generate)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/health", self._health)
        return app

    async def _run(self) -> None:
        """Steps follow the clock, so that a late wake-up costs the model nothing."""
        began, first = time.monotonic(), self.steps
        while self._busy or self._queue:
            target = first + int((time.monotonic() - began) / self._step_seconds)
            while self.steps < target and (self._busy or self._queue):
                self._fill()
                self.steps += 1
                for future in self._running.pop(self.steps, ()):
                    self._busy -= 1
                    if not future.done():
                        future.set_result(None)
            self._fill()
            await asyncio.sleep(self._step_seconds)
        self._clock = None

    def _fill(self) -> None:
        while self._queue and self._busy < self._slots:
            length, future = self._queue.popleft()
            self._busy += 1
            self._running.setdefault(self.steps + length, []).append(future)

    async def _generate(self, request: web.Request) -> web.Response:
        asked = orjson.loads(await request.read())
        row = asked["input_ids"][0] - 3
        length = int(self._lengths[row])
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((length, future))
        if self._clock is None:
            self._clock = asyncio.create_task(self._run())
        await future
        output = [5] * (length - 1) + [2]
        meta = {
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": len(asked["input_ids"]),
            "completion_tokens": length,
            "cached_tokens": 0,
            "weight_version": "default",
        }
        return web.Response(body=orjson.dumps({"output_ids": output, "meta_info": meta}))

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "stub", "max_model_len": 131_072}]})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "stub", "max_running_requests": self._slots})

    async def _loads(self, request: web.Request) -> web.Response:
        load = {
            "num_running_reqs": self._busy,
            "num_waiting_reqs": len(self._queue),
            "max_running_requests": self._slots,
        }
        return web.json_response({"loads": [load]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()
