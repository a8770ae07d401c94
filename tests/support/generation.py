"""What the generation tests share: a target without a tokenizer, prompts, and servers in threads and processes."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from datasets import Dataset
from support.generate_server import STOP_ID, VOCABULARY, GenerateServer

from eagle3_data import schema

SERVER_FILE = Path(__file__).parent / "generate_server.py"


class PlainTarget:
    """Renders a chat to the numbers in its last message: the ids of a test are written as text."""

    vocabulary_size = VOCABULARY
    stop_token_ids = (STOP_ID,)

    def __init__(self, model: str = "plain") -> None:
        self.model = model

    def identity(self) -> dict[str, Any]:
        return {"model": self.model, "vocabulary_size": VOCABULARY}

    def reasoning_tokens(self, output_ids: "np.ndarray[Any, Any]", input_ids: Any = None) -> int:
        return len(output_ids) // 2

    def tool_calls(self, output_ids: "np.ndarray[Any, Any]", input_ids: Any = None) -> int:
        return 0

    def render_batch(self, messages: list[Any], tools: list[Any]) -> list["np.ndarray[Any, Any]"]:
        return [np.array([int(word) for word in chat[-1]["content"].split()], np.int32) for chat in messages]

    def forged(self, messages: list[Any], tools: Any) -> int:
        return 0


def prompt_ids(number: int, tokens: int = 6) -> list[int]:
    """Return ids that no other prompt has."""
    return [3 + (number * 7919 + at * (number + 13)) % 40_000 for at in range(tokens - 1)] + [3 + number]


def prompts(
    rows: int,
    source: str = "B1",
    *,
    start: int = 0,
    tokens: int = 6,
    expected: Sequence[int] | None = None,
    turns: int = 1,
) -> Dataset:
    """Return `rows` prompts; with `turns` above 1 that many prompts share a dialogue, in mixed order."""
    made = []
    for number in range(start, start + rows):
        row = (number * 7) % rows if turns > 1 else number
        text = " ".join(map(str, prompt_ids(start + row if turns > 1 else number, tokens)))
        chat = [{"role": "user", "content": text}]
        digest = schema.content_hash(chat, "[]")[:24]
        made.append(
            {
                "sample_id": f"{source}-{digest}",
                "source": source,
                "config": "all",
                "source_revision": "r",
                "source_file": "f.jsonl",
                "source_row": row // turns,
                "source_turn": row % turns,
                "origin": "",
                "license": "mit",
                "dialogue": f"{source}-dialogue-{row // turns}" if turns > 1 else f"{source}-{digest}",
                "turn": row % turns,
                "later_turns": [],
                "expected_tokens": expected[number - start] if expected else 0,
                "messages": chat,
                "tools": "[]",
            }
        )
    return Dataset.from_list(made, features=schema.PROMPT_FEATURES)


@contextlib.contextmanager
def serving(server: GenerateServer) -> Iterator[str]:
    """Run a server in a thread and yield its URL."""
    ready, done = threading.Event(), threading.Event()
    box: dict[str, Any] = {}

    async def serve() -> None:
        runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1)
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


class ServerProcess:
    """The same server as a process that can be killed and started again on its port."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER_FILE), "--port", str(self.port), *self.arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the test server did not start"
        self.port = int(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
