"""Where a server is and how requests to it begin.

Goes in: the root of a server as the recipe has it, and the key. Comes out: host, port, TLS, and the head of a request
up to its Content-Length, made once.
"""

import base64
import ssl
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from eagle3_data.errors import UsageError


class Address(NamedTuple):
    """A server's address and the beginning of every request to it (the secrets included)."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    head: bytes

    @classmethod
    def of(cls, url: str, api_key: str | None) -> "Address":
        """Read a URL, http or https; user:password@ in it becomes basic authentication where there is no key.

        Raises:
            UsageError: the URL names no host, or the key cannot be sent in a header.
        """
        try:
            parts = urlsplit(url)
            # A name with letters beyond ASCII is looked up and sent in its ASCII form; all else passes unchanged.
            host, port = (parts.hostname or "").encode("idna").decode("ascii"), parts.port
        except ValueError:
            host = ""
        if not host:
            raise UsageError(f"engine.urls: {shown(url)} names no host and port")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        inside = f"[{host}]" if ":" in host else host
        lines = [
            f"POST {quote(parts.path.rstrip('/'), safe='/%:@!$&()*+,;=~')}/generate HTTP/1.1",
            f"Host: {inside}:{port}" if port else f"Host: {inside}",
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
                f"{shown(url)}: the address or the key holds a line break or a character that HTTP cannot carry"
            )
        return cls(host, port or (443 if tls else 80), tls, "\r\n".join([*lines, "Content-Length: "]).encode("ascii"))


def shown(url: str) -> str:
    """Return a URL without the user and password in it."""
    scheme, mark, rest = url.partition("://")
    return scheme + mark + rest.rpartition("@")[2]
