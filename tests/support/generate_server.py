"""A server that speaks SGLang's `/generate` as it was recorded, and misbehaves by row and try.

Its answer is a function of the prompt alone, token by token: the next id comes from the CRC-32 of all ids before it,
so that a continued answer equals one long answer. As a program, for tests that kill it:
    python generate_server.py --port 0 --log asked.txt --faults SEED
prints its port; appends one line `crc try fault` to the log for each request.
"""

import argparse
import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from eagle3_data.generation.client import canary

STOP_ID = 2
VOCABULARY = 49_152
TRANSIENT_FAULTS = ("reset", "cut", "503", "429", "500", "abort", "hang", "queued_abort")
PERMANENT_FAULTS = ("completion_tokens", "prompt_tail", "vocabulary", "prompt_tokens", "400")


def crc_of(ids: "list[int] | np.ndarray[Any, Any]") -> int:
    return zlib.crc32(np.asarray(ids, "<i4").tobytes())


def continuation(ids: list[int], budget: int, stop_every: int = 23) -> tuple[list[int], bool]:
    """Return at most `budget` ids and whether they end with the stop token."""
    state, output = crc_of(ids), []
    for _ in range(budget):
        token = STOP_ID if state % stop_every == 0 else 3 + state % (VOCABULARY - 3)
        output.append(token)
        if token == STOP_ID:
            return output, True
        state = zlib.crc32(token.to_bytes(4, "little"), state)
    return output, False


class GenerateServer:
    """Configure, then `app()`.

    Args:
        fault: (crc of the prompt, 0-based try) -> name of a fault, or "".
        slots: requests that run at once; more wait.
        tokenize: what `/tokenize` answers with; None for a server that has none.
        delay: seconds of one request (a number, or a function of the prompt's ids).
        rate: tokens a second of one request, on top of `delay`; 0 for no limit.
        refuses_over: prompt and budget together that it really takes, where that is less than what it reports.
        salt: another number is another model.
    """

    def __init__(
        self,
        fault: Callable[[int, int], str] = lambda crc, turn: "",
        *,
        context: int = 8192,
        slots: int = 0,
        delay: float | Callable[[list[int]], float] = 0.0,
        log: Path | None = None,
        stop_every: int = 23,
        weight_version: str = "default",
        model_path: str = "smollm2-135m",
        loads: bool = False,
        queue: int = 0,
        key: str = "",
        retry_after: str = "",
        router: bool = False,
        tokenize: Callable[[str], list[int]] | None = None,
        rate: float = 0.0,
        refuses_over: int = 0,
        salt: int = 0,
    ) -> None:
        self.fault = fault
        self.context = context
        self.slots = slots
        self.delay = delay
        self.stop_every = stop_every
        self.weight_version = weight_version
        self.model_path = model_path
        self.loads = loads
        self.queue = queue
        self.key = key
        self.retry_after = retry_after
        self.router = router
        self.tokenize = tokenize
        self.rate = rate
        self.refuses_over = refuses_over
        self.refused = 0
        self.salt = salt
        self.asked: Counter[int] = Counter()
        self.canaries = 0  # short greedy requests that show which model answers; counted nowhere else
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = self.waiting = self.most = 0
        self.healthy = True
        self._log = log.open("a", buffering=1) if log else None
        self._place = asyncio.Semaphore(slots) if slots else None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/generate", self.generate)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        if not self.router:
            app.router.add_get("/server_info", self.server_info)
            app.router.add_get("/model_info", self.model_info)
        if self.tokenize:
            app.router.add_post("/tokenize", self.show_tokens)
        if self.loads:
            app.router.add_get("/v1/loads", self.show_loads)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        card: dict[str, Any] = {"id": self.model_path, "object": "model"}
        if not self.router:
            card["max_model_len"] = self.context
        return web.json_response({"object": "list", "data": [card]})

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "version": "0.5.23",
                "status": "ready",
                "model_path": self.model_path,
                "max_total_num_tokens": 1 << 20,
                "max_req_input_len": self.context - 6,
                "allow_auto_truncate": False,
                "max_running_requests": self.slots or None,
                "dp_size": 1,
                "internal_states": [{"effective_max_running_requests_per_dp": self.slots or 2048}],
            }
        )

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": self.model_path, "weight_version": self.weight_version})

    async def show_tokens(self, request: web.Request) -> web.Response:
        assert self.tokenize
        ids = self.tokenize((await request.json())["prompt"])
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": self.context})

    async def show_loads(self, request: web.Request) -> web.Response:
        load = {
            "num_running_reqs": self.running,
            "num_waiting_reqs": self.waiting,
            "max_running_requests": self.slots or 2048,
        }
        return web.json_response({"loads": [load]})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        ids, budget = asked["input_ids"], asked["sampling_params"]["max_new_tokens"]
        if tuple(ids) == canary.PROMPT:
            self.canaries += 1
            return web.json_response(self.answer("", ids, budget))
        crc = crc_of(ids)
        turn = self.asked[crc]
        self.asked[crc] += 1
        if self._log is None:
            self.requests.append(asked)
            self.headers.append(dict(request.headers))
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if self.queue and self.running + self.waiting >= self.slots + self.queue:
            return web.json_response({"error": {"message": "The request queue is full."}}, status=503)
        fault = self.fault(crc, turn)
        if self._log:
            self._log.write(f"{crc} {turn} {fault}\n")
        if self.refuses_over and len(ids) + budget > self.refuses_over:
            self.refused += 1
            most = f"the model's context length ({self.refuses_over} tokens)"
            said = f"The input ({len(ids)} tokens) is longer than {most}."
            return web.json_response({"error": {"message": said}}, status=400)
        if len(ids) >= self.context - 6 or len(ids) + budget > self.context:
            return web.json_response({"error": {"message": "exceeds the maximum allowed length"}}, status=400)
        return await self._faulty(request, fault, ids, budget)

    async def _faulty(self, request: web.Request, fault: str, ids: list[int], budget: int) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        if fault == "reset":
            transport.abort()  # type: ignore[attr-defined]
            return web.Response()
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault in ("503", "429", "500", "502", "504", "408", "425", "400", "401", "422"):
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            # As some proxies do, it sends back what it was sent.
            sent = f" to {key}" if (key := request.headers.get("Authorization")) else ""
            body = {"error": {"message": f"made to say {fault}{sent}"}}
            return web.json_response(body, status=int(fault), headers=headers)
        self.waiting += 1
        if self._place:
            await self._place.acquire()
        self.waiting -= 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            seconds = self.delay(ids) if callable(self.delay) else self.delay
            if self.rate:
                seconds += len(continuation(ids, budget, self.stop_every)[0]) / self.rate
            if seconds:
                await asyncio.sleep(seconds)
        finally:
            self.running -= 1
            if self._place:
                self._place.release()
        body = json.dumps(self.answer(fault, ids, budget)).encode()
        if fault == "cut":
            reply = web.StreamResponse(headers={"Content-Length": str(len(body)), "Content-Type": "application/json"})
            await reply.prepare(request)
            await reply.write(body[: len(body) // 2])
            transport.abort()  # type: ignore[attr-defined]
            return reply
        return web.Response(body=body, content_type="application/json")

    def written(self, ids: list[int], budget: int) -> tuple[list[int], bool]:
        """Return what the model writes after `ids`, and whether it ends with a stop token."""
        return continuation(ids, budget, self.stop_every)

    def answer(self, fault: str, ids: list[int], budget: int) -> dict[str, Any]:
        output, stopped = self.written(ids, budget)
        if self.salt:
            output = [
                3 + (token * 31 + self.salt) % (VOCABULARY - 3) if token != STOP_ID else token for token in output
            ]
        limit = self.context - 2 - len(ids)
        output, stopped = output[:limit], stopped and len(output) <= limit
        finish: dict[str, Any] = (
            {"type": "stop", "matched": output[-1]} if stopped else {"type": "length", "length": budget}
        )
        meta: dict[str, Any] = {
            "id": f"{crc_of(ids):x}",
            "finish_reason": finish,
            "prompt_tokens": len(ids),
            "completion_tokens": len(output),
            "cached_tokens": 0,
            "reasoning_tokens": 0,
            "weight_version": self.weight_version,
            "num_retractions": 0,
            "dp_rank": None,
            "e2e_latency": 0.1,
        }
        if fault == "completion_tokens":
            meta["completion_tokens"] += 1
        if fault == "prompt_tokens":
            meta["prompt_tokens"] -= 1
        if fault == "prompt_tail":
            output = ids[-2:] + output
        if fault == "overrun" and stopped and len(output) < budget:  # as speculative decoding at the cap may
            output += [7] * (budget - len(output))
            meta |= {"completion_tokens": budget, "finish_reason": {"type": "length", "length": budget}}
        if fault == "nan":
            meta["finish_reason"] = {"type": "stop", "matched": "NaN happened"}
        if fault == "vocabulary":
            output[0] = VOCABULARY
        if fault == "clamp":
            meta["finish_reason"], output = {"type": "length", "length": budget}, output[:-1] or [5]
            meta["completion_tokens"] = len(output)
        if fault in ("abort", "queued_abort"):
            meta["finish_reason"] = {"type": "abort", "message": "Aborted by test", "status_code": None}
            output = output[: len(output) // 2] if fault == "abort" else []
            meta["completion_tokens"] = len(output)
            if fault == "queued_abort":
                del meta["prompt_tokens"]
        return {"text": "", "output_ids": output, "meta_info": meta}


def random_faults(seed: int, share: float = 0.3, broken: float = 0.03) -> Callable[[int, int], str]:
    """Return faults drawn by row and try: some rows are broken for good, the others get worse and better luck."""

    def fault(crc: int, turn: int) -> str:
        row = zlib.crc32(f"{seed} {crc}".encode())
        if row % 10_000 < broken * 10_000:
            return PERMANENT_FAULTS[row % len(PERMANENT_FAULTS)]
        draw = zlib.crc32(f"{seed} {crc} {turn}".encode())
        if turn < 4 and draw % 10_000 < share * 10_000:
            return TRANSIENT_FAULTS[(draw // 10_000) % len(TRANSIENT_FAULTS)]
        return ""

    return fault


def _tokenizer(folder: Path | None, shift: int) -> Callable[[str], list[int]] | None:
    if folder is None:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: [i + shift for i in tokenizer.encode(text, add_special_tokens=False).ids]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--faults", type=int)
    parser.add_argument("--broken", type=float, default=0.03)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--weight-version", default="default")
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer behind /tokenize")
    parser.add_argument("--shift", type=int, default=0, help="added to what /tokenize says: another model's ids")
    parser.add_argument("--salt", type=int, default=0)
    parser.add_argument("--router", action="store_true", help="hide what sglang-router hides")
    arguments = parser.parse_args()

    async def serve() -> None:
        fault = (
            random_faults(arguments.faults, arguments.share, arguments.broken)
            if arguments.faults is not None
            else lambda crc, turn: ""
        )
        server = GenerateServer(
            fault,
            tokenize=_tokenizer(arguments.tokenizer, arguments.shift),
            slots=arguments.slots,
            delay=arguments.delay,
            log=arguments.log,
            weight_version=arguments.weight_version,
            router=arguments.router,
            salt=arguments.salt,
        )
        runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, arguments.host, arguments.port, reuse_address=True)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
