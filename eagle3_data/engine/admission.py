"""Which HTTP requests the embedded engine takes: its own machine's, in JSON; never one that a web page makes.

Goes in: a request, before anything of it is answered. Comes out: the reason why it is foreign, or its decoded body.
"""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from eagle3_data.engine.refusals import Refused


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine and is reached from it alone."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def foreign(request: web.Request) -> str:
    """Return why a request without a key comes from a web page or through a foreign name; "" where it does not.

    A browser sends what any page asks it to send to loopback, and a name that its owner points to 127.0.0.1 makes
    such a page read the answers too; the headers Host, Origin and Sec-Fetch-Site are what the page cannot change.
    """
    if not is_loopback(_host_of(f"//{request.host}")):
        return f"Host {request.host[:100]!r} is not this machine; ask 127.0.0.1 or localhost, or start with a key."
    origin = request.headers.get("Origin")
    cross_site = request.headers.get("Sec-Fetch-Site") == "cross-site"
    if cross_site or (origin is not None and not is_loopback(_host_of(origin))):
        return "Requests of web pages of other sites are refused; start with a key to let them in."
    return ""


async def read_json(http: web.Request) -> Any:
    # a page may send text/plain and forms anywhere without asking; JSON needs the consent of the server
    if http.content_type != "application/json":
        raise Refused({"error": {"message": "The body must be sent as Content-Type: application/json."}}, 415)
    data = await http.read()
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return data.decode("utf-8", errors="replace")
