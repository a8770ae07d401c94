"""HTTP to one server: bodies for `/generate` go in, whole replies come out, over aiohttp's kept-alive connections.

Goes in: the root of a server and bodies. Comes out: status, Retry-After and the whole body of each reply, or an
OSError; never part of a body. What aiohttp does not do by itself is here: one repetition where the server closed a
kept connection as it was used again, no reply that nobody asked for, bounds on size and time, and errors that say what
happened. The environment's HTTP(S)_PROXY are ignored: servers stand in the same network, and prompts must not leave it
by a setting that was made for something else.
"""

import asyncio
import contextlib
import functools
import os
import ssl
import time
from typing import Any, Final, NamedTuple

import aiohttp
from yarl import URL

from eagle3_data.errors import EngineError, UsageError
from eagle3_data.foreign_text import foreign_text, protect

_CONNECT_SECONDS: Final = 30.0
_IDLE_SECONDS: Final = 30.0
# A server that closes a connection it thinks idle does so within this time of a request that crosses it on the way.
_CROSSING_SECONDS: Final = 1.0
_ERROR_BYTES: Final = 65_536
_LARGEST_BODY: Final = 1 << 26
_LINE_BYTES: Final = 16_384  # of the status line, and of one header
_TRUST_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class Reply(NamedTuple):
    """A whole reply."""

    status: int
    retry_after: str  # "" when the header was not there
    body: bytes


class Cut(ConnectionError):
    """A connection that ended before the reply did, or a reply that cannot be read."""


class TooLarge(ConnectionError):
    """A body that exceeds its bound. The rest of it was not read."""


class HttpClient:
    """Connections to one server, as many as requests are under way. Belongs to one event loop.

    Args:
        url: root of the server, http or https.
        api_key: sent as a bearer token.
        silence: seconds without a byte after which a request is given up.
        proxy: URL of an HTTP proxy; None for a direct connection.

    Raises:
        UsageError: as `server_url` and `key_headers`.
    """

    def __init__(self, url: str, api_key: str | None, silence: float, proxy: str | None = None) -> None:
        root = server_url(url)
        self._url = root.with_path(f"{root.raw_path.rstrip('/')}/generate", encoded=True)
        self._silence = silence
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence)
        self._api_key = api_key
        self._proxy = proxy
        key_headers(api_key)
        if proxy is not None:
            proxy_url(proxy)
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = (
            None  # for repetitions, which must not meet another dead connection
        )
        self._last_reply = -_IDLE_SECONDS
        self._closed = False
        self._under_way: set[asyncio.Timeout] = set()

    async def post(self, body: bytes, limit: int = _LARGEST_BODY, seconds: float | None = None) -> Reply:
        """Send one request and return its reply. Cancelling it closes its connection.

        Args:
            body: the JSON to send.
            limit: the largest body of a 200 reply, in bytes; of other replies the first 64 KiB are read.
            seconds: for the whole of it; None for as long as bytes keep coming.

        Raises:
            TimeoutError: no connection within 30 s, no byte for `silence` seconds, or no whole reply in `seconds`.
            TooLarge: the body exceeds `limit`.
            OSError: no connection, or it ended before the reply did.
            EngineError: the client is closed.
        """
        began = time.monotonic()
        if self._kept is None:
            self._kept = open_session(self._api_key, self._proxy)
        # Only a connection that was used before can have been closed as idle.
        reusing = began - self._last_reply < _IDLE_SECONDS
        try:
            return await self._post(self._kept, body, limit, seconds)
        except _Disconnected:
            if not reusing or time.monotonic() - began > _CROSSING_SECONDS:
                raise
        if self._fresh is None:
            self._fresh = open_session(self._api_key, self._proxy, keep=False)
        return await self._post(self._fresh, body, limit, seconds)

    async def _post(self, session: aiohttp.ClientSession, body: bytes, limit: int, seconds: float | None) -> Reply:
        patience, headers_read = asyncio.timeout(seconds), False
        try:
            if self._closed:
                raise _closed()
            async with patience:
                self._under_way.add(patience)
                async with session.post(self._url, data=body, timeout=self._timeout, allow_redirects=False) as reply:
                    headers_read = True
                    self._last_reply = time.monotonic()
                    if reply.status < 200:
                        raise Cut(f"the reply is not HTTP/1.1: status {reply.status}")
                    whole = await read_body(reply, limit)
                    return Reply(reply.status, reply.headers.get("Retry-After", ""), whole)
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            if self._closed:
                raise _closed() from None
            raise _cause(error, headers_read, self._silence, seconds) from error
        finally:
            self._under_way.discard(patience)

    async def close(self) -> None:
        """End all connections. Requests under way end with an EngineError."""
        self._closed = True
        for patience in list(self._under_way):
            if not patience.expired():
                patience.reschedule(0.0)
        for turn in range(100):  # those under way are told within the next turns of the loop
            await asyncio.sleep(0.0 if turn < 10 else 0.01)
            if not self._under_way:
                break
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()


class _Disconnected(Cut):
    """A connection that ended before the first byte of a reply."""


class _Connector(aiohttp.TCPConnector):
    """Gives out no kept connection on which something came that nobody asked for: it would be taken for a reply."""

    async def _get(self, key: Any, traces: Any) -> Any:
        while (kept := await super()._get(key, traces)) is not None:
            if kept.protocol is not None and not kept.protocol.should_close:
                break
            kept.close()
        return kept


def open_session(api_key: str | None, proxy: str | None = None, *, keep: bool = True) -> aiohttp.ClientSession:
    """Return a session whose replies come uncompressed and with bounded headers. Read bodies with `read_body`.

    Args:
        api_key: sent as a bearer token.
        proxy: URL of an HTTP proxy.
        keep: whether connections are used again.

    Raises:
        UsageError: no header can carry the key, or the proxy is no URL.
    """
    kept: dict[str, Any] = {"keepalive_timeout": _IDLE_SECONDS} if keep else {"force_close": True}
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, ssl=_trusted(*map(os.environ.get, _TRUST_VARIABLES)), **kept),
        headers={
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            **key_headers(api_key),
        },
        skip_auto_headers=("User-Agent",),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # nothing compressed was asked for, and a small body may unpack without end
        max_line_size=_LINE_BYTES,
        max_field_size=_LINE_BYTES,
        proxy=None if proxy is None else proxy_url(proxy),
    )


@functools.lru_cache(maxsize=1)
def _trusted(*_: str | None) -> ssl.SSLContext:
    """Return the authorities that OpenSSL trusts under these values of its variables."""
    return ssl.create_default_context()


async def read_body(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body of a reply: whole if its status is 200, else at most its first 64 KiB.

    Raises:
        TooLarge: a 200 reply with more than `limit` bytes.
        Cut: a 200 reply that is compressed.
        aiohttp.ClientError, TimeoutError: as aiohttp.
    """
    fine = reply.status == 200
    coding = reply.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        if fine:
            raise Cut(f"the reply came compressed ({foreign_text(coding, 20)}), which was not asked for")
        reply.close()
        return b""  # the status says enough
    limit = limit if fine else _ERROR_BYTES
    length = reply.content_length
    if length is not None and length <= limit:
        return await reply.read()
    parts, got = [], 0
    if length is None or not fine:
        while got <= limit and (part := await reply.content.readany()):
            parts.append(part)
            got += len(part)
        if got <= limit:
            return b"".join(parts)
    reply.close()
    if fine:
        size = f"{length} bytes" if length is not None else "without end"
        raise TooLarge(f"the body is too large ({size}; at most {limit} bytes are read)")
    return b"".join(parts)[:limit]


def server_url(url: str) -> URL:
    """Read the root of a server.

    Raises:
        UsageError: the URL is not that of a server, or holds a password.
    """
    shown = f"engine.urls: {_without_login(url)!r}"
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{shown} must begin with http:// or https://")
    try:
        read = URL(url)
        host, port = read.host, read.port
        if host and ":" not in host:
            host.encode("idna")  # refuses what no name server can be asked for
    except ValueError:
        host = None
    if not host:
        raise UsageError(f"{shown} names no host and port")
    if read.raw_user is not None or "@" in (read.raw_authority or ""):  # it would be in every log and manifest
        raise UsageError(
            f"{shown} is given with a user or password; take them out and name the variable that holds the key in "
            "engine.api_key_env"
        )
    if not port or not url.isprintable():
        raise UsageError(f"{shown} holds a character or a port that HTTP cannot carry")
    return read


def proxy_url(proxy: str) -> URL:
    """Read the URL of a proxy, which may hold a user and a password; they are kept out of every message.

    Raises:
        UsageError: it is not the URL of an HTTP proxy.
    """
    with contextlib.suppress(ValueError):
        read = URL(proxy)
        if read.scheme == "http" and read.host:
            protect(read.password)
            return read
    raise UsageError(
        f"engine.proxy: {_without_login(proxy)!r} must be the URL of an HTTP proxy, such as http://host:3128"
    )


def key_headers(api_key: str | None) -> dict[str, str]:
    """Return the headers that carry a key; none without one. From here on the key is kept out of foreign texts.

    Raises:
        UsageError: no header can carry it.
    """
    if not api_key:
        return {}
    protect(api_key)
    if not (api_key.isascii() and api_key.isprintable()):
        raise UsageError(
            "the key of the servers holds a line break or a character that HTTP cannot carry; correct the variable "
            "that engine.api_key_env names"
        )
    return {"Authorization": f"Bearer {api_key}"}


def _without_login(url: str) -> str:
    known = next((scheme for scheme in ("http://", "https://") if url.startswith(scheme)), "")
    return foreign_text(known + url.removeprefix(known).rpartition("@")[2], 200)


def _closed() -> EngineError:
    return EngineError("the connections to the servers were closed")


def _cause(error: Exception, headers_read: bool, silence: float, seconds: float | None) -> OSError:
    """Return what happened as an OSError whose class and errno tell the kind; aiohttp's words only where they help."""
    if isinstance(error, Cut | TooLarge):
        return error
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return TimeoutError(f"no connection within {_CONNECT_SECONDS:.0f} s")
    if isinstance(error, aiohttp.SocketTimeoutError):
        return TimeoutError(f"no byte came for {silence:.0f} s")
    if isinstance(error, TimeoutError):
        return TimeoutError(f"no whole reply within {seconds or 0:.0f} s")
    if isinstance(error, aiohttp.ClientConnectorCertificateError) and isinstance(error.certificate_error, OSError):
        return error.certificate_error
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error
    if isinstance(error, aiohttp.ClientResponseError):
        return Cut(f"the reply is not HTTP/1.1: {foreign_text(error.message, 100)}")
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError) and not headers_read:
        reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        return _Disconnected(f"the connection was closed before the reply{reason}")
    reason = foreign_text(error.__cause__ or error, 100)
    return Cut(f"the connection was closed in the body of the reply ({reason})")
