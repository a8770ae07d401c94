"""The embedded engine's server is for this machine: web pages, foreign names and late requests are turned away."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

pytest.importorskip("xllamacpp", reason="the extra `embedded` is not installed")

from eagle3_data.engine import EmbeddedEngine, serve
from eagle3_data.engine.engine import DRAIN_SECONDS
from eagle3_data.errors import EngineError, UsageError

pytestmark = pytest.mark.embedded
JSON = "application/json"
ASK = {"input_ids": [1, 9690, 198], "sampling_params": {"max_new_tokens": 2, "temperature": 0.0}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with EmbeddedEngine(deterministic=True) as running:
            yield running.url
    except EngineError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))


def post(url: str, path: str, body: object, headers: dict[str, str], timeout: float = 100) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": JSON}, 200),
        ({"Content-Type": "application/json; charset=utf-8", "Origin": "http://localhost:8888"}, 200),
        ({"Content-Type": JSON, "Host": "[::1]:30000"}, 200),
        ({"Content-Type": JSON, "Host": "rebound.example:30000"}, 403),
        ({"Content-Type": JSON, "Host": "127.evil.example"}, 403),
        ({"Content-Type": JSON, "Host": "[bad"}, 403),
        ({"Content-Type": JSON, "Origin": "https://evil.example"}, 403),
        ({"Content-Type": JSON, "Origin": "null"}, 403),
        ({"Content-Type": JSON, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
    ],
)
def test_a_web_page_cannot_use_it(url: str, headers: dict[str, str], status: int) -> None:
    for path, body in (("/generate", ASK), ("/abort_request", {"abort_all": True}), ("/tokenize", {"prompt": "a"})):
        given, text = post(url, path, body, headers)
        # the HTTP library itself refuses a Host that is none
        assert given == status or (headers.get("Host") == "[bad" and given == 400), (path, text)


@pytest.mark.parametrize("key", ["9" * 5000, "-1", "49152", "000000", "x", "٣" * 9])
def test_a_logit_bias_outside_the_vocabulary_is_a_400(url: str, key: str) -> None:
    sampling = {"max_new_tokens": 2, "logit_bias": {key: 1.0}}
    status, text = post(url, "/generate", ASK | {"sampling_params": sampling}, {"Content-Type": JSON})
    assert status == 400 and "logit_bias" in text and len(text) < 300


def test_other_machines_need_a_key() -> None:
    with pytest.raises(UsageError, match="--api-key-env"):
        serve(host="0.0.0.0", port=0)


def test_after_sigterm_nothing_new_is_taken_and_it_ends() -> None:
    code = "from eagle3_data.engine import serve; serve(port=0, slots=1, on_ready=lambda url: print(url, flush=True))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        answers: list[tuple[int, str]] = []
        long = ASK | {"sampling_params": {"max_new_tokens": 150, "temperature": 0.0, "ignore_eos": True}}
        running = threading.Thread(target=lambda: answers.append(post(url, "/generate", long, {"Content-Type": JSON})))
        running.start()
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        status, text = post(url, "/generate", ASK, {"Content-Type": JSON})
        assert status == 503 and "stopping" in text
        running.join(DRAIN_SECONDS + 10)
        assert answers[0][0] == 200 and len(json.loads(answers[0][1])["output_ids"]) == 150
        assert process.wait(DRAIN_SECONDS + 10) == 0
    finally:
        process.kill()
        process.wait()


def test_a_wrong_key_is_a_401_whatever_its_bytes() -> None:
    code = (
        "from eagle3_data.engine import serve\n"
        "serve(port=0, slots=1, api_key='right', on_ready=lambda url: print(url, flush=True))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        place = urlsplit(process.stdout.readline().strip())
        found = []
        for given in (b"", b"Bearer wrong", b"Bearer \xff\xfe", b"\xc3\x28", b"Bearer right"):
            with socket.create_connection((place.hostname, place.port), timeout=30) as wire:
                wire.sendall(b"GET /server_info HTTP/1.1\r\nHost: localhost\r\nAuthorization: " + given + b"\r\n\r\n")
                found.append(wire.recv(64).split()[1])
        assert found == [b"401"] * 4 + [b"200"]
    finally:
        process.kill()
        process.wait()
