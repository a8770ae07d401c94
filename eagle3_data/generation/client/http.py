"""The wire to one server: requests over kept-alive HTTP/1.1 connections, at the cost of little more than the bytes.

Goes in: the root of a server and bodies for `/generate`. Comes out: status, Retry-After and the whole body of each
reply, or an OSError; never part of a body. A general client spends more on a request than all checks and the journal
do on its answer (see tests/benchmarks/generation.py), so this speaks the one request that matters over asyncio's own
transports. HTTP itself is read by llhttp (httptools), TLS by the standard library.
"""

import asyncio
import contextlib
import socket
from collections import deque
from typing import Any, Final, NamedTuple, cast

import aiohappyeyeballs
import httptools

from eagle3_data.errors import EngineError
from eagle3_data.generation.client.address import Address

_CONNECT_SECONDS: Final = 30.0
_NEXT_ADDRESS_SECONDS: Final = 0.25  # RFC 8305: a name's second address is tried after so long
_PLACES_SECONDS: Final = 10.0
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
        url: root of the server, http or https.
        api_key: sent as a bearer token.
        silence: seconds without a byte after which a request is given up.

    Raises:
        UsageError: as `Address.of`.
    """

    def __init__(self, url: str, api_key: str | None, silence: float) -> None:
        self._address = Address.of(url, api_key)
        self._silence = silence
        self._places: list[Any] = []  # what the host's name resolves to
        self._places_until = 0.0
        self._looking_up = asyncio.Lock()
        self._connecting: set[asyncio.Timeout] = set()
        self._closed = False
        self.lines: set[_Line] = set()
        self.idle: deque[_Line] = deque()

    async def post(self, body: bytes) -> Reply:
        """Send one request and return its reply. Cancelling it closes its connection.

        Raises:
            TimeoutError: no connection within 30 s, or no byte for `silence` seconds.
            OSError: no connection, or it ended before the reply did.
            EngineError: the wire is closed.
        """
        request = b"%s%d\r\n\r\n%s" % (self._address.head, len(body), body)
        line = self._kept()
        if line is not None:
            try:
                return await line.exchange(request, self._silence)
            except Cut as cut:
                if not cut.crossed:
                    raise
        line = await self._connect()
        return await line.exchange(request, self._silence)

    def _kept(self) -> "_Line | None":
        """Return a connection that waits for work, the one used last: the others may time out."""
        while self.idle:
            line = self.idle.pop()
            if line.fresh:
                return line
            line.abort()
        return None

    async def _connect(self) -> "_Line":
        if self._closed:
            raise _closed()
        loop = asyncio.get_running_loop()
        host, _, tls, _ = self._address
        try:
            async with asyncio.timeout(_CONNECT_SECONDS) as patience:
                self._connecting.add(patience)
                try:
                    places = await self._look_up(loop)
                    made = await aiohappyeyeballs.start_connection(places, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)
                    _, line = await loop.create_connection(
                        lambda: _Line(loop, self), sock=made, ssl=tls, server_hostname=host if tls else None
                    )
                finally:
                    self._connecting.discard(patience)
        except TimeoutError:
            if self._closed:
                raise _closed() from None
            raise TimeoutError(f"no connection within {_CONNECT_SECONDS:.0f} s") from None
        return line

    async def _look_up(self, loop: asyncio.AbstractEventLoop) -> list[Any]:
        """Return the host's addresses. Requests that start together ask for them once."""
        async with self._looking_up:
            if loop.time() >= self._places_until:
                host, port, _, _ = self._address
                self._places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                self._places_until = loop.time() + _PLACES_SECONDS
        return self._places

    async def close(self) -> None:
        """End all connections. Requests under way end with an EngineError."""
        self._closed = True
        self.idle.clear()
        for patience in self._connecting:
            if not patience.expired():
                patience.reschedule(0.0)
        for line in list(self.lines):
            line.fail(_closed())
        for turn in range(100):  # sockets are closed, and waiters told, within the next turns of the loop
            await asyncio.sleep(0.0 if turn < 10 else 0.01)
            if not self.lines and not self._connecting:
                break


class Cut(ConnectionError):
    """A connection that ended before the reply did. `crossed`: at once, and before the first byte of a reply."""

    def __init__(self, message: str, crossed: bool = False) -> None:
        super().__init__(message)
        self.crossed = crossed


class _Line(asyncio.Protocol):
    """One connection; one request at a time. Methods named on_… are called by the parser of HTTP."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wire: Wire) -> None:
        self._loop = loop
        self._wire = wire
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[Reply] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0  # when the request went out or the last byte came in
        self._heard = False
        self._keeps = False
        self._ended = False
        self._forget()

    def _forget(self) -> None:
        """Make ready for the next reply."""
        self._chunks: list[bytes] = []
        self._retry_after = ""
        self._coding = b""
        self._framed = self._headers_read = False

    # --- for the wire -------------------------------------------------------------------------------------------

    async def exchange(self, request: bytes, silence: float) -> Reply:
        """Send a request, wait for its reply, and put the connection back if it can take another."""
        if self._ended:
            raise Cut("the connection was closed before the reply", crossed=True)
        self._waiter = waiter = cast("asyncio.Future[Reply]", self._loop.create_future())
        self._heard = False
        self._last = self._loop.time()
        if self._timer is None:  # it outlives the request: most requests neither make nor cancel one
            self._timer = self._loop.call_later(silence, self._check_silence, silence)
        try:
            self._transport.write(request)
            reply = await waiter
        except BaseException:  # also when the reply came just before the cancellation
            self.abort()
            raise
        finally:
            self._waiter = None
        if self._ended or not self._keeps:
            self.abort()
        else:
            self._wire.idle.append(self)
        return reply

    @property
    def fresh(self) -> bool:
        """Whether it is open and was in use a short while ago."""
        return not self._ended and self._loop.time() - self._last < _IDLE_SECONDS

    def fail(self, error: Exception) -> None:
        """End the connection, and the request on it with `error`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.abort()

    def abort(self) -> None:
        """End the connection."""
        self._ended = True
        self._transport.abort()

    def _check_silence(self, silence: float) -> None:
        self._timer = None
        if self._waiter is None:
            return
        left = self._last + silence - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence, silence)
        else:
            self.fail(TimeoutError(f"no byte came for {silence:.0f} s"))

    def _cut(self, error: Exception | None) -> None:
        part = sum(map(len, self._chunks))
        where = f"after {part} bytes of the body" if self._headers_read else "before the reply"
        crossed = not self._heard and self._loop.time() - self._last < _CROSSING_SECONDS
        self.fail(Cut(f"the connection was closed {where}" + (f" ({error})" if error else ""), crossed))

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are, though not by name
        self._wire.lines.add(self)
        made: Any = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # macOS: the peer is gone already, which `connection_lost` will tell
            # A machine that vanished shows only so: a reply that is an hour away looks the same until it comes.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 8)):
                if hasattr(socket, name):
                    made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        self._last = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(Cut(f"the reply is not HTTP/1.1: {error}"))

    def eof_received(self) -> None:
        if self._headers_read and not self._framed:
            self.on_message_complete()  # a reply without a length ends with its connection
        self._cut(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._wire.lines.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._cut(error)

    # --- the parser ---------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._waiter is None or self._waiter.done():  # nobody asked for it: the next request must not get it
            self.abort()

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
        reply = Reply(status, self._retry_after, b"".join(self._chunks))
        coding, framed = self._coding, self._framed
        self._forget()
        if status < 200 or self._waiter is None or self._waiter.done():
            return
        if coding not in (b"", b"identity"):
            if status == 200:
                self.fail(Cut(f"the reply came compressed ({coding.decode('latin-1')}), which was not asked for"))
                return
            reply = reply._replace(body=b"")  # the status says enough
        self._keeps = framed and self._parser.should_keep_alive()
        self._waiter.set_result(reply)


def _closed() -> EngineError:
    return EngineError("the connections to the servers were closed")
