"""Starting and stopping the embedded engine: in a child process for a run, or in this process for `eagle3-data serve`.

Goes in: a model name, a port, slots. Comes out: a URL that answers. The child ends with its parent whatever becomes of
that one, because it looks every half second whether it still has the same one.
"""

import argparse
import asyncio
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from aiohttp import web

from eagle3_data.engine.admission import is_loopback
from eagle3_data.engine.llama import LlamaServer
from eagle3_data.engine.model import SMOLLM2, locate_model, read_vocabulary
from eagle3_data.engine.server import EmbeddedServer, ServerConfig
from eagle3_data.errors import EngineError, MachineError, UsageError

DEFAULT_SLOTS: Final = 8
MAX_CONTEXT: Final = 8192
DEFAULT_PORT: Final = 30000
_READY: Final = "ready "
_START_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 5.0
_PARENT_SECONDS: Final = 0.5
DRAIN_SECONDS: Final = 30.0


def _slots(slots: int | None, deterministic: bool) -> int:
    if deterministic:
        if slots not in (None, 1):
            raise UsageError(f"embedded engine: deterministic means one slot, not {slots}; leave slots out")
        return 1
    slots = DEFAULT_SLOTS if slots is None else slots
    if slots < 1:
        raise UsageError(f"embedded engine: slots must be at least 1, not {slots}")
    return slots


class EmbeddedEngine:
    """The embedded engine in a child process, for the length of a `with` block.

    Args:
        model: `smollm2-135m`, the path of a GGUF file, or `org/repo/file.gguf` on the Hub.
        port: 0 takes a free one.
        deterministic: one slot, nothing kept between requests: the same request has the same answer, bit for bit,
            whatever came before. Otherwise an answer may depend on what else is generated at the time.
        slots: requests generated at once (default 8, deterministic 1).
        context: tokens that a request may hold (default: what the model was trained for, at most 8192).
        threads: CPU threads (default: every CPU that this process may use).

    Raises:
        UsageError, HubError, EngineError: as `locate_model`; or llama.cpp cannot run the model.
        EngineError: the engine did not start; the message holds the end of its log.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = SMOLLM2,
        *,
        port: int = 0,
        deterministic: bool = False,
        slots: int | None = None,
        context: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.slots = _slots(slots, deterministic)
        self.gguf_path = locate_model(model)
        self.deterministic = deterministic
        self._port, self._context, self._threads = port, context, threads
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """Base URL of the running engine.

        Raises:
            EngineError: it is not running.
        """
        if not self._url:
            raise EngineError("embedded engine: not started; use it in a `with` block")
        return self._url

    @property
    def pid(self) -> int | None:
        """Process id of the child while it runs."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the child and wait until it answers."""
        command = [
            sys.executable, "-m", "eagle3_data.engine.engine", str(self.gguf_path),
            "--port", str(self._port), "--slots", str(self.slots), "--parent", str(os.getpid()),
            *(["--deterministic"] if self.deterministic else []),
            *(["--context", str(self._context)] if self._context else []),
            *(["--threads", str(self._threads)] if self._threads else []),
        ]  # fmt: skip
        # a file, not a pipe: nobody would read the pipe once the engine runs
        self._log = tempfile.TemporaryFile(prefix="eagle3-data-engine-")  # noqa: SIM115
        # its own session, so that Ctrl-C reaches this process alone and the run can end in order
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        try:
            self._url = self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> str:
        process = self._process
        assert process is not None and process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(_START_SECONDS) else None
        if line is None:
            raise EngineError(f"embedded engine: no answer after {_START_SECONDS:.0f} s; {self._log_tail()}")
        if not line.startswith(_READY):
            process.wait(_STOP_SECONDS)
            raise EngineError(f"embedded engine: it did not start with {self.gguf_path}; {self._log_tail()}")
        return line.removeprefix(_READY).strip()

    def _log_tail(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"its log ends: {' | '.join(lines[-3:])}" if lines else "its log is empty"

    def stop(self) -> None:
        """Stop the child; requests in flight are cut off. Harmless when it is not running."""
        process, self._process, self._url = self._process, None, ""
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if self._log is not None:
            self._log.close()
            self._log = None


def serve(
    model: str | os.PathLike[str] = SMOLLM2,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    deterministic: bool = False,
    slots: int | None = None,
    context: int | None = None,
    threads: int | None = None,
    api_key: str = "",
    drain: bool = True,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Run the engine in this process until SIGINT or SIGTERM; arguments as of `EmbeddedEngine`.

    Args:
        host: address to listen on; anything but loopback needs an `api_key`.
        port: 0 takes a free one.
        api_key: Bearer key that requests must bring, "" for none.
        drain: on SIGTERM finish the requests in flight first, for 30 s at most, while everything new is answered 503;
            otherwise cut them off.
        on_ready: called with the URL once the engine answers.

    Raises:
        MachineError: the port is taken.
        UsageError: `host` is not loopback and there is no `api_key`.
        UsageError, HubError, EngineError: as `EmbeddedEngine`.
    """
    if not api_key and not is_loopback(host):
        raise UsageError(
            f"--host {host}: other machines could use the engine; name a variable that holds a key with --api-key-env"
        )
    path = locate_model(model)
    vocabulary = read_vocabulary(path)
    count = _slots(slots, deterministic)
    length = min(context or MAX_CONTEXT, vocabulary.context_length)
    if length < 64:
        raise UsageError(f"embedded engine: a context of {length} tokens is too short; give at least 64")
    llama = LlamaServer(path, slots=count, context=length, threads=threads)
    config = ServerConfig(path, f"xllamacpp-{llama.version}", deterministic, api_key)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(llama, EmbeddedServer(llama, vocabulary, config), host, port, on_ready, drain))


async def _serve(
    llama: LlamaServer,
    server: EmbeddedServer,
    host: str,
    port: int,
    on_ready: Callable[[str], None] | None,
    drain: bool,
) -> None:
    stop = asyncio.Event()

    def finish() -> None:
        server.stopping = True
        stop.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, finish)
    async with llama:
        runner = web.AppRunner(server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            try:
                await site.start()
            except OSError as error:
                raise MachineError(
                    f"{host}:{port}: cannot listen there ({error.strerror}); choose another with --port"
                ) from error
            actual: Any = runner.addresses[0]
            if on_ready is not None:
                on_ready(f"http://{host}:{actual[1]}")
            await stop.wait()
            deadline = time.monotonic() + DRAIN_SECONDS
            while drain and server.busy and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
        finally:
            await runner.cleanup()


def _watch_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _child() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    for name in ("--port", "--slots", "--context", "--threads", "--parent"):
        parser.add_argument(name, type=int)
    parser.add_argument("--deterministic", action="store_true")
    given = parser.parse_args()
    _watch_parent(given.parent)
    try:
        serve(
            given.model,
            port=given.port,
            deterministic=given.deterministic,
            slots=given.slots,
            context=given.context,
            threads=given.threads,
            # the run is over when its engine is told to stop: nobody waits for what is still being generated
            drain=False,
            on_ready=lambda url: print(f"{_READY}{url}", flush=True),
        )
    except (EngineError, MachineError, UsageError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _child()
