"""The start-up check of a server: the right model passes, every other finding is one clear error."""

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.shared import SHARED

from eagle3_data.errors import EngineError, EngineUnavailable, WrongModelError
from eagle3_data.generation.client.preflight import ServerInfo, check_server

SGLANG = os.environ.get("EAGLE3_DATA_SGLANG", "")
KEY = "sk-very-secret"
ENGLISH = list(range(100, 140))


class FakeTokenizer:
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [100_000, *ENGLISH]  # the first is too large to be sent to an unknown model


class FakeTarget:
    tokenizer = FakeTokenizer()

    def canaries(self) -> list[tuple[str, list[int]]]:
        return [("ab", [1, 2]), ("日本", [3, 4, 5])]

    def identity(self) -> dict[str, Any]:
        return {"model": "org/target"}


class FakeServer:
    """SGLang's informative endpoints; attributes say in what way it is wrong."""

    tokens: dict[str, list[int]] | None = None
    info: dict[str, Any] | None = None
    known_ids = frozenset(ENGLISH)
    key = ""
    largest_id_seen = 0

    def __init__(self, **wrong: Any) -> None:
        self.tokens = dict(FakeTarget().canaries())
        self.info = {"version": "0.5.23", "model_path": "org/served", "max_req_input_len": 8186, "dp_size": 1}
        self.__dict__.update(wrong)

    async def handle(self, http: web.Request) -> web.Response:
        if self.key and http.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = await http.json() if http.method == "POST" else {}
        if http.path == "/v1/models":
            card = {"id": "org/served"} | ({} if self.info is None else {"max_model_len": 8192})
            return web.json_response({"data": [card]})
        if http.path == "/server_info" and self.info is not None:
            return web.json_response(self.info)
        if http.path == "/model_info" and self.info is not None:
            return web.json_response({"model_path": "org/served", "weight_version": "v7"})
        if http.path == "/tokenize" and self.tokens is not None:
            return web.json_response({"tokens": self.tokens[body["prompt"]]})
        if http.path == "/generate":
            self.largest_id_seen = max(self.largest_id_seen, *body["input_ids"])
            rows = [[-1.0 if i in self.known_ids else -12.0, i, None] for i in body["input_ids"]]
            rows[0][0] = None
            return web.json_response({"output_ids": [1], "meta_info": {"input_token_logprobs": rows}})
        return web.json_response({"detail": "Not Found"}, status=500 if http.path == "/tokenize" else 404)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def check(server: FakeServer, api_key: str | None = None) -> ServerInfo:
    async def run() -> ServerInfo:
        async with server.running() as url:
            return await check_server(url + "/", FakeTarget(), api_key)

    return asyncio.run(run())


def test_right_model_by_its_tokenizer() -> None:
    info = check(FakeServer(key=KEY), KEY)
    assert (info.checked_by, info.context_length, info.max_req_input_len) == ("tokenize", 8192, 8186)
    assert (info.version, info.model_path, info.weight_version) == ("0.5.23", "org/served", "v7")


def test_right_model_without_a_tokenizer() -> None:
    server = FakeServer(tokens=None)
    info = check(server)
    assert info.checked_by == "logprob" and "-1.0" in info.evidence and "-12.0" in info.evidence
    assert 0 < server.largest_id_seen < 32_000, "a larger id may kill a server with a smaller vocabulary"


def test_a_long_text_is_shown_where_its_ids_differ() -> None:
    text, ids = "word " * 100, list(range(100))
    server = FakeServer(tokens={**dict(FakeTarget().canaries()), text: [*ids[:50], 7, *ids[51:]]})

    class Long(FakeTarget):
        def canaries(self) -> list[tuple[str, list[int]]]:
            return [*super().canaries(), (text, ids)]

    async def run() -> None:
        async with server.running() as url:
            await check_server(url, Long())

    with pytest.raises(WrongModelError, match=r"\[…, 48, 49, 7, .*\[…, 48, 49, 50, ") as refused:
        asyncio.run(run())
    assert len(str(refused.value)) < 500


def test_router_that_hides_the_server() -> None:
    info = check(FakeServer(info=None, tokens=None))
    assert (info.context_length, info.version, info.checked_by) == (0, "", "logprob")


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (
            {"tokens": {"ab": [1, 2], "日本": [9]}},
            WrongModelError,
            ["日本", "[9]", "[3, 4, 5]", "org/target", "org/served"],
        ),
        ({"tokens": None, "known_ids": frozenset()}, WrongModelError, ["-12.0", "org/target", "org/served"]),
        ({"info": {"allow_auto_truncate": True}}, EngineError, ["--allow-auto-truncate"]),
        ({"key": "another"}, EngineError, ["401", "engine.api_key_env"]),
    ],
)
def test_wrong_servers(wrong: dict[str, Any], error: type[EngineError], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        check(FakeServer(**wrong), KEY)
    text = str(caught.value)
    assert all(word in text for word in [*words, "http://127.0.0.1:"]) and KEY not in text and "\n" not in text


def test_nothing_listening() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(EngineUnavailable) as caught:
        asyncio.run(check_server(f"http://127.0.0.1:{port}", FakeTarget()))
    assert f"sglang.launch_server --model-path org/target --port {port}" in str(caught.value)
    assert "ssl" not in str(caught.value)
    served = ["/models/my target", "--trust-remote-code"]
    with pytest.raises(EngineUnavailable, match=r"--model-path '/models/my target' --trust-remote-code --port"):
        asyncio.run(check_server(f"http://127.0.0.1:{port}", FakeTarget(), served=served))


def test_https_for_a_server_without_tls() -> None:
    async def run() -> None:
        async with await asyncio.start_server(
            lambda r, w: w.write(b"HTTP/1.1 400 Bad\r\n\r\n"), "127.0.0.1", 0
        ) as plain:
            await check_server(f"https://127.0.0.1:{plain.sockets[0].getsockname()[1]}", FakeTarget())

    with pytest.raises(EngineUnavailable, match=r"no TLS is spoken there .*write http:// in engine\.urls"):
        asyncio.run(run())


def test_a_page_of_the_server_instead_of_its_root() -> None:
    async def run() -> None:
        async with FakeServer().running() as url:
            await check_server(f"{url}/v1", FakeTarget())

    with pytest.raises(EngineUnavailable, match=r"/v1: answers, but not as SGLang does .* without /v1 or /generate"):
        asyncio.run(run())


def test_a_certificate_that_nobody_vouches_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    if not shutil.which("openssl") or subprocess.run([*command, "-keyout", key, "-out", cert]).returncode:
        pytest.skip("no openssl command that makes a certificate")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)

    async def run() -> None:
        async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=tls) as listener:
            await check_server(f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}", FakeTarget())

    with pytest.raises(EngineError, match=r"certificate is not trusted \(self-signed certificate\); .*SSL_CERT_FILE"):
        asyncio.run(run())


@pytest.mark.embedded
def test_embedded_engine() -> None:
    pytest.importorskip("xllamacpp", reason="the extra `embedded` is not installed")
    from eagle3_data.engine import EmbeddedEngine
    from eagle3_data.target import Target

    try:
        with EmbeddedEngine(slots=1, context=1024) as engine:
            target = Target.from_gguf(engine.gguf_path)
            info = asyncio.run(check_server(engine.url, target))
            assert (info.checked_by, info.context_length, info.max_req_input_len) == ("tokenize", 1024, 1018)
            with pytest.raises(WrongModelError):
                asyncio.run(check_server(engine.url, FakeTarget()))
    except EngineError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.skipif(not SGLANG, reason="EAGLE3_DATA_SGLANG does not name the folder of a real SGLang")
@pytest.mark.parametrize("flags", [[], ["--skip-tokenizer-init"]], ids=["with tokenizer", "without"])
def test_real_sglang(flags: list[str]) -> None:
    from eagle3_data.target import Target

    port = 31110
    pid = subprocess.run(
        [SHARED / "sglang" / "start.sh", SGLANG, str(port), *flags], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    url = f"http://127.0.0.1:{port}"
    try:
        right = Target.from_pretrained(str(Path(SGLANG) / "smollm2-135m"))
        info = asyncio.run(check_server(url, right))
        assert info.checked_by == ("logprob" if flags else "tokenize") and info.context_length == 8192
        wrong = Target.from_pretrained(str(SHARED / "tokenizers" / "qwen3"))
        with pytest.raises(WrongModelError):
            asyncio.run(check_server(url, wrong))
        assert asyncio.run(check_server(url, right)) == info, "the wrong target's ids did the server no harm"
    finally:
        os.kill(int(pid), 15)
