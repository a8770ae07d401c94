"""Canary secrets over real sockets: whatever a server sends back, the key arrives in no message and in no file."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.generate_server import GenerateServer
from support.generation import PlainTarget, prompts, serving

from eagle3_data.errors import EngineError
from eagle3_data.foreign_text import MASK
from eagle3_data.generation import Generator, RetryPolicy, run_generation, write_records
from eagle3_data.generation.client.facts import fetch_facts
from eagle3_data.generation.client.http import open_session
from eagle3_data.generation.client.preflight import check_server
from eagle3_data.run_folder import RunFolder

KEY = "sk-canary-5f1d0c7a"
TOKEN = "hf_canaryOfTheHub9"
EVIL = f"\x1b]0;owned\x07\x1b[31m{KEY} {TOKEN}\r\nsecond line\u202e"


@pytest.fixture(autouse=True)
def hub_token(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield


class Echo(GenerateServer):
    """Sends the key back wherever a server has words."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(weight_version=f"w {EVIL}", model_path=f"/models/{EVIL}", **changes)

    async def server_info(self, request: web.Request) -> web.Response:
        reply = await super().server_info(request)
        return web.json_response({**json.loads(reply.body), "version": EVIL})  # type: ignore[arg-type]


def clean(text: str) -> bool:
    return KEY not in text and TOKEN not in text and all(char.isprintable() or char == "\n" for char in text)


def target_checked() -> Any:
    class Target(PlainTarget):
        class tokenizer:
            @staticmethod
            def encode(text: str, add_special_tokens: bool) -> list[int]:
                return []

        def canaries(self) -> list[tuple[str, list[int]]]:
            return [("a", [1, 2])]

    return Target()


def test_what_a_server_says_of_itself_is_cleaned() -> None:
    async def work(url: str) -> Any:
        async with open_session(KEY) as session:
            return await fetch_facts(session, url)

    with serving(Echo()) as url:
        facts = asyncio.run(work(url))
    for text in (facts.model_path, facts.version, facts.weight_version):
        assert MASK in text and clean(text) and "\n" not in text


def test_a_run_keeps_no_secret_in_any_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    folder = RunFolder(tmp_path / "run")
    given = prompts(30)
    faults = ["", "400", "422", "500", "503", "abort", "completion_tokens"]
    server = Echo(fault=lambda crc, turn: faults[crc % 7], key=KEY)
    policy = RetryPolicy(attempts=2, first_wait=0.01, longest_wait=0.01, busy_patience=0.05)
    with (
        serving(server) as url,
        Generator(
            PlainTarget(), [url], {}, 40, folder.journal_path, api_key=KEY, retries=policy, max_failure_share=1.0
        ) as step,
    ):
        run_generation({"B1": given}, step)
        write_records({"B1": given}, folder, PlainTarget(), journal=step.journal)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 3
    for path in files:
        data = path.read_bytes()
        assert KEY.encode() not in data and TOKEN.encode() not in data, path
    assert any(MASK.encode() in path.read_bytes() for path in files)  # the words are there, without the secret
    assert all(clean(record.getMessage()) for record in caplog.records if record.name.startswith("eagle3_data"))


def reply(status: int, body: str) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    return handle


@pytest.mark.parametrize("status", [400, 401, 403, 404, 500, 502])
@pytest.mark.parametrize("body", [EVIL, f"<html>{EVIL} nginx</html>", json.dumps({"error": {"message": EVIL}})])
def test_the_check_at_the_start_shows_no_secret(status: int, body: str) -> None:
    class Everywhere:
        def app(self) -> web.Application:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", reply(status, body))
            return app

    with serving(Everywhere()) as url, pytest.raises(EngineError) as caught:  # type: ignore[arg-type]
        asyncio.run(check_server(url, target_checked(), KEY))
    assert clean(str(caught.value)) and "\n" not in str(caught.value)


@pytest.mark.parametrize("page", ["/v1/models", "/server_info", "/model_info", "/tokenize"])
@pytest.mark.parametrize("kind", ["endless", "gzip bomb", "deep"])
def test_the_check_at_the_start_is_bounded(page: str, kind: str) -> None:
    import gzip

    bodies = {"gzip bomb": gzip.compress(b"[" * 30_000_000), "deep": b"[" * 3_000_000}

    async def handle(request: web.Request) -> web.StreamResponse:
        if kind != "endless":
            headers = {"Content-Encoding": "gzip"} if kind == "gzip bomb" else {}
            return web.Response(body=bodies[kind], headers=headers)
        out = web.StreamResponse()
        await out.prepare(request)
        for _ in range(1000):
            await out.write(b"x" * 65_536)
        return out

    class Hostile(GenerateServer):
        def app(self) -> web.Application:
            app = web.Application()
            app.router.add_route("*", page, handle)
            for path, handler in (
                ("/v1/models", self.models),
                ("/server_info", self.server_info),
                ("/model_info", self.model_info),
                ("/tokenize", self.show_tokens),
                ("/generate", self.generate),
            ):
                if path != page:
                    app.router.add_route("*", path, handler)
            return app

    with serving(Hostile(tokenize=lambda text: [1, 2])) as url:
        try:
            info = asyncio.run(check_server(url, target_checked(), KEY))
        except EngineError as error:
            assert url in str(error) and clean(str(error))
        else:
            assert info.checked_by == "tokenize"
