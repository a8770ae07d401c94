"""What stands before a server, as it was reported: it passes requests on, until it says something of its own.

GatewayTo(url, rules) gives the URL of a proxy that asks `say(number, body)` for each POST: None passes it on,
a Reply answers at once or after a time, CUT ends the connection after a time.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp import web


@dataclass(frozen=True)
class Says:
    """A reply of the gateway itself; status 0 ends the connection."""

    status: int
    body: bytes = b""
    after: float = 0.0
    content_type: str = "text/html"


ENVOY_403 = Says(403, b"upstream request timeout", content_type="text/plain")
NGINX_504 = Says(504, b"<html><head><title>504 Gateway Time-out</title></head><body>nginx</body></html>")
NGINX_502 = Says(502, b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>")

Rule = Callable[[int, dict[str, Any]], Says | None]


class Gateway:
    """Passes everything on to `backend`; `rule(number, request)` is asked before each `/generate`."""

    def __init__(self, backend: str, rule: Rule = lambda number, asked: None, *, idle: float = 0.0) -> None:
        self.backend = backend
        self.rule = rule
        self.idle = idle  # seconds after which a request without an answer is ended with 504; 0 for never
        self.requests = 0
        self.budgets: list[int] = []
        self.health: int | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path == "/health" and self.health is not None:
            return web.Response(status=self.health)
        if request.path == "/generate":
            asked = orjson.loads(body)
            if len(asked["input_ids"]) != 8 or asked["input_ids"][0] != 310:  # the model canary
                self.requests += 1
                self.budgets.append(asked["sampling_params"]["max_new_tokens"])
                says = self.rule(self.requests - 1, asked)
                if says is not None:
                    await asyncio.sleep(says.after)
                    if not says.status:
                        assert request.transport is not None
                        request.transport.abort()  # type: ignore[attr-defined]
                    return web.Response(status=says.status or 500, body=says.body, content_type=says.content_type)
        timeout = aiohttp.ClientTimeout(total=self.idle or None)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(request.method, self.backend + request.path_qs, data=body) as reply,
            ):
                return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)
        except TimeoutError:
            return web.Response(status=504, body=NGINX_504.body, content_type="text/html")
        except aiohttp.ClientError:
            return web.Response(status=502, body=NGINX_502.body, content_type="text/html")


@contextlib.contextmanager
def before(gateway: Gateway) -> Iterator[str]:
    """Run a gateway in a thread and yield its URL."""
    ready, done, box = threading.Event(), threading.Event(), {}

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", gateway.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        box["port"] = runner.addresses[0][1]
        ready.set()
        while not done.is_set():
            await asyncio.sleep(0.02)
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{box['port']}"
    finally:
        done.set()
        thread.join(10)
