"""Where a server is, which key it wants, and how requests to it begin.

Goes in: the root of a server as the recipe has it, and the key. Comes out: host, port, TLS, and the head of a request
up to its Content-Length, made once. What is wrong with either is said here, and the key is in no message.
"""

import ssl
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from eagle3_data.errors import UsageError


class Address(NamedTuple):
    """A server's address and the beginning of every request to it (the key included)."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    head: bytes

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> "Address":
        """Read a URL, http or https.

        Raises:
            UsageError: the URL is no server's, holds a password, or the key cannot be sent in a header.
        """
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"engine.urls: {_without_login(url)!r} must begin with http:// or https://")
        try:
            parts = urlsplit(url)
            # A name with letters beyond ASCII is looked up and sent in its ASCII form; all else passes unchanged.
            host, port = (parts.hostname or "").encode("idna").decode("ascii"), parts.port
        except ValueError:
            host = ""
        if not host:
            raise UsageError(f"engine.urls: {_without_login(url)} names no host and port")
        if "@" in parts.netloc:  # it would be in every log and manifest
            raise UsageError(
                f"engine.urls: {_without_login(url)} is given with a user or password; take them out and name the "
                "variable that holds the key in engine.api_key_env"
            )
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        inside = f"[{host}]" if ":" in host else host
        lines = [
            f"POST {quote(parts.path.rstrip('/'), safe='/%:@!$&()*+,;=~')}/generate HTTP/1.1",
            f"Host: {inside}:{port}" if port else f"Host: {inside}",
            "Accept: application/json",
            "Accept-Encoding: identity",
            "Content-Type: application/json",
            *(f"{name}: {value}" for name, value in key_headers(api_key).items()),
        ]
        if not all(line.isprintable() and line.isascii() for line in lines):
            raise UsageError(f"engine.urls: {url!r} holds a character that HTTP cannot carry")
        return cls(host, port or (443 if tls else 80), tls, "\r\n".join([*lines, "Content-Length: "]).encode("ascii"))


def key_headers(api_key: str | None) -> dict[str, str]:
    """Return the headers that carry a key; none without one.

    Raises:
        UsageError: no header can carry it.
    """
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable()):
        raise UsageError(
            "the key of the servers holds a line break or a character that HTTP cannot carry; mend the variable that "
            "engine.api_key_env names"
        )
    return {"Authorization": f"Bearer {api_key}"}


def _without_login(url: str) -> str:
    known = next((scheme for scheme in ("http://", "https://") if url.startswith(scheme)), "")
    return known + url.removeprefix(known).rpartition("@")[2]
