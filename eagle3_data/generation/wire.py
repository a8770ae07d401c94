"""The wire to one server: requests over kept-alive HTTP/1.1 connections, at the cost of little more than the bytes.

Goes in: the root of a server and bodies for `/generate`. Comes out: status, Retry-After and the whole body of each
reply, or an OSError; never part of a body. A general client spends more on a request than all checks and the journal
do on its answer (see tests/benchmarks/generation.py), so this speaks the one request that matters over asyncio's own
transports. HTTP itself is read by llhttp (httptools), TLS by the standard library.
"""

import asyncio
import base64
import functools
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote, urlsplit

import httptools

from eagle3_data.errors import UsageError

_CONNECT_SECONDS: Final = 30.0
_IDLE_SECONDS: Final = 30.0
# A server that closes a connection it thinks idle does so within this time of a request that crosses it on the way.
_CROSSING_SECONDS: Final = 1.0
_BODILESS: Final = frozenset({204, 304})


class Reply(NamedTuple):
    """A whole reply."""

    status: int
    retry_after: str  # "" when the header was not there
    body: bytes


class Wire:
    """Connections to one server, as many as requests are under way. Belongs to one event loop.

    Args:
        url: root of the server, http or https; user:password@ in it is sent as basic authentication.
        api_key: sent as a bearer token.
        silence: seconds without a byte after which a request is given up.

    Raises:
        UsageError: the URL names no host, or the key cannot be sent in a header.
    """

    def __init__(self, url: str, api_key: str | None, silence: float) -> None:
        parts = urlsplit(url)
        try:
            self._host, port = parts.hostname or "", parts.port
        except ValueError:
            self._host, port = "", None
        if not self._host:
            raise UsageError(f"engine.urls: {_shown(url)} names no host and port")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._tls else 80)
        self._silence = silence
        shown = f"[{self._host}]" if ":" in self._host else self._host
        lines = [
            f"POST {parts.path.rstrip('/')}/generate HTTP/1.1",
            f"Host: {shown}:{port}" if port else f"Host: {shown}",
            "Accept: application/json",
            "Accept-Encoding: identity",
            "Content-Type: application/json",
        ]
        if api_key:
            lines.append(f"Authorization: Bearer {api_key}")
        elif parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            lines.append(f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}")
        if not all(line.isprintable() and line.isascii() for line in lines):
            raise UsageError(
                f"{_shown(url)}: the address or the key holds a line break or a character that HTTP cannot carry"
            )
        self._head = "\r\n".join([*lines, "Content-Length: "]).encode("ascii")
        self._idle: deque[_Line] = deque()
        self._lines: set[_Line] = set()

    async def post(self, body: bytes) -> Reply:
        """Send one request and return its reply. Cancelling it closes its connection.

        Raises:
            TimeoutError: no connection within 30 s, or no byte for `silence` seconds.
            OSError: no connection, or it ended before the reply did.
        """
        request = b"%s%d\r\n\r\n%s" % (self._head, len(body), body)
        while True:
            line = self._kept()
            crossing = line is not None
            if line is None:
                line = await self._connect()
            try:
                reply = await line.exchange(request, self._silence)
            except Cut as cut:
                if crossing and cut.crossed:
                    continue
                raise
            if line.keeps:
                self._idle.append(line)
            return reply

    def _kept(self) -> "_Line | None":
        """Return a connection that waits for work, the one used last: the others may time out."""
        while self._idle:
            line = self._idle.pop()
            if line.fresh:
                return line
            line.abort()
        return None

    async def _connect(self) -> "_Line":
        loop = asyncio.get_running_loop()
        make = functools.partial(_Line, loop, self._lines.discard)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, line = await loop.create_connection(make, self._host, self._port, ssl=self._tls)
        except TimeoutError:
            raise TimeoutError(f"no connection within {_CONNECT_SECONDS:.0f} s") from None
        self._lines.add(line)
        return line

    async def close(self) -> None:
        """End all connections."""
        self._idle.clear()
        for line in list(self._lines):
            line.abort()
        while self._lines:
            await asyncio.sleep(0)


class Cut(ConnectionError):
    """A connection that ended before the reply did. `crossed`: at once, and before the first byte of a reply."""

    def __init__(self, message: str, crossed: bool = False) -> None:
        super().__init__(message)
        self.crossed = crossed


class _Line(asyncio.Protocol):
    """One connection; one request at a time. Methods named on_… are called by the parser of HTTP."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: "Callable[[_Line], None]") -> None:
        self._loop = loop
        self._on_end = on_end
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Reply] | None = None
        self._chunks: list[bytes] = []
        self._retry_after = ""
        self._coding = b""
        self._framed = False
        self._headers_read = False
        self._heard = False
        self._used_at = self._last = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.keeps = False

    # --- for the wire -------------------------------------------------------------------------------------------

    async def exchange(self, request: bytes, silence: float) -> Reply:
        if self._transport is None or self._transport.is_closing():
            raise Cut("the connection was closed", crossed=True)
        loop = self._loop
        self._waiter = waiter = cast("asyncio.Future[Reply]", loop.create_future())
        self._heard = self.keeps = False
        self._used_at = self._last = loop.time()
        self._timer = loop.call_later(silence, self._check_silence, silence)
        self._transport.write(request)
        try:
            return await waiter
        finally:
            self._waiter = None
            self._timer.cancel()
            if not self.keeps:
                self.abort()

    @property
    def fresh(self) -> bool:
        """Whether it is open and was in use a short while ago."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._loop.time() - self._last < _IDLE_SECONDS

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _check_silence(self, silence: float) -> None:
        left = self._last + silence - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence, silence)
        else:
            self._fail(TimeoutError(f"no byte came for {silence:.0f} s"))

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are, though not by name
        made: Any = transport.get_extra_info("socket")
        # A machine that vanished shows only so: a reply that is an hour away looks the same until it comes.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 8)):
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:  # nobody asked for anything
            self.abort()
            return
        self._heard = True
        self._last = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Cut(f"the reply is not HTTP/1.1: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._on_end(self)
        if self._headers_read and not self._framed and error is None:
            self.on_message_complete()  # a reply without a length ends with its connection
        part = sum(map(len, self._chunks))
        where = f"after {part} bytes of the body" if self._headers_read else "before the reply"
        crossed = not self._heard and self._loop.time() - self._used_at < _CROSSING_SECONDS
        self._fail(Cut(f"the connection was closed {where}" + (f" ({error})" if error else ""), crossed))

    # --- the parser ---------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length" or name == b"transfer-encoding":
            self._framed = True
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1")
        elif name == b"content-encoding":
            self._coding = value.lower()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # below, only an announcement
            self._headers_read = True
            self._framed = self._framed or status in _BODILESS

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        chunks, self._chunks = self._chunks, []
        reply = Reply(status, self._retry_after, chunks[0] if len(chunks) == 1 else b"".join(chunks))
        coding, framed = self._coding, self._framed
        self._retry_after, self._coding, self._framed, self._headers_read = "", b"", False, False
        if status < 200:
            return
        if coding not in (b"", b"identity"):
            self._fail(Cut(f"the reply came compressed ({coding.decode('latin-1')}), which was not asked for"))
        elif self._waiter is not None and not self._waiter.done():
            self.keeps = framed and self._parser.should_keep_alive()
            self._waiter.set_result(reply)
        else:  # a reply too many
            self.keeps = False

    def _fail(self, error: OSError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.abort()


def _shown(url: str) -> str:
    """Return a URL without what may be secret in it."""
    return url.rpartition("@")[2]
