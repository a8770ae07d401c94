"""What a server says about itself, read at the start, on its return after a loss, and while it works.

Goes in: an aiohttp session and a URL. Comes out: its model, version, weights and limits, and how many requests it runs
and queues. Understands SGLang and sglang-router (which hides most of this and answers 404).
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

import aiohttp
import orjson

from eagle3_data.errors import EngineError, EngineUnavailable
from eagle3_data.foreign_text import foreign_text
from eagle3_data.generation.budget import ContextLimits
from eagle3_data.generation.client.http import TooLarge, read_body
from eagle3_data.generation.client.protocol import error_text

_PATIENCE: Final = aiohttp.ClientTimeout(total=20)
_LARGEST_PAGE: Final = 1 << 22
_PROXY_WORDS: Final = re.compile(
    rb"\b(?:upstream|envoy|nginx|haproxy|traefik|istio|cloudflare|cloudfront|akamai|varnish|gateway|proxy|RBAC)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server's own account; empty text or 0 where it does not report it."""

    url: str
    model_path: str = ""
    version: str = ""
    weight_version: str = ""
    limits: ContextLimits | None = None
    slots: int = 0  # requests it runs at once


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a server is, in requests."""

    running: int
    waiting: int
    slots: int


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """Return the JSON object at `url`, or None when the server has no such page."""
    try:
        async with session.get(url, timeout=_PATIENCE) as reply:
            body = await read_body(reply, _LARGEST_PAGE)
    except aiohttp.ClientConnectorCertificateError as error:
        reason = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
        raise EngineError(
            f"{url}: its certificate is not trusted ({reason}); name the file of its authority in the environment "
            "variable SSL_CERT_FILE"
        ) from error
    except TooLarge as error:
        raise EngineError(f"{url}: {error}; engine.urls wants the root of an SGLang server") from None
    except aiohttp.ClientSSLError as error:
        raise EngineUnavailable(
            f"{url}: no TLS is spoken there ({_reason(error)}); write http:// in engine.urls for a server without TLS"
        ) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineUnavailable(
            f"{url}: nothing answers ({_reason(error)}); start the server or correct engine.urls"
        ) from error
    check_access(url, reply.status, body)
    if reply.status in (502, 503, 504):
        raise EngineUnavailable(f"{url}: answers {reply.status} ({error_text(body)}); start the server behind it")
    if reply.status != 200:
        return None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _reason(error: BaseException) -> str:
    """What the system says; aiohttp's own words speak of ssl where there is none."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    words = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return foreign_text(words, 200) or type(error).__name__


def check_access(url: str, status: int, body: bytes) -> None:
    """Say what is wrong where a question before the run was refused.

    Raises:
        EngineUnavailable: a proxy refused it (403).
        EngineError: the server refused the key.
    """
    if status == 403 and is_proxys(body):
        raise EngineUnavailable(f"{url}: a proxy in front of the server refuses ({status}: {error_text(body)})")
    if status in (401, 403):
        raise EngineError(f"{url}: the server refuses the key ({status}: {error_text(body)}); set engine.api_key_env")


def is_proxys(body: bytes) -> bool:
    """Whether an error's body is plainly a gateway's or balancer's: SGLang answers in JSON and names none of these."""
    return body.lstrip()[:1] == b"<" or _PROXY_WORDS.search(body) is not None


async def _first(session: aiohttp.ClientSession, url: str, *pages: str) -> dict[str, Any]:
    for page in pages:
        value = await _get(session, url + page)
        if value is not None:
            return value
    return {}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


async def fetch_facts(session: aiohttp.ClientSession, url: str, context_length: int | None = None) -> ServerFacts:
    """Ask a server what it serves.

    Args:
        session: carries the key, if one is needed.
        url: the server's root, without a trailing slash.
        context_length: takes the place of what the server tells, for those that hide it.

    Raises:
        EngineUnavailable: nothing answers.
        EngineError: the key is refused, or the server cuts prompts silently (--allow-auto-truncate).
    """
    models = await _first(session, url, "/v1/models")
    info = await _first(session, url, "/server_info", "/get_server_info")
    model = await _first(session, url, "/model_info", "/get_model_info")
    if not (models or info or model):
        raise EngineUnavailable(
            f"{url}: answers, but not as SGLang does (no /v1/models, no /server_info); engine.urls wants the root of "
            "a server, without /v1 or /generate"
        )
    if info.get("allow_auto_truncate"):
        raise EngineError(f"{url}: runs with --allow-auto-truncate, which cuts prompts silently; start it without")
    cards = models.get("data")
    card = cards[0] if isinstance(cards, list) and cards and isinstance(cards[0], dict) else {}
    length = context_length or _whole(card.get("max_model_len")) or _whole(info.get("context_length"))
    limits = None
    if length:
        limits = ContextLimits(length, _whole(info.get("max_req_input_len")), _whole(info.get("max_total_num_tokens")))
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    ranks = _whole(info.get("dp_size")) or 1
    slots = _whole(info.get("max_running_requests")) or ranks * _whole(
        state.get("effective_max_running_requests_per_dp")
    )
    return ServerFacts(
        url=url,
        model_path=foreign_text(info.get("model_path") or model.get("model_path"), 300),
        version=foreign_text(info.get("version"), 100),
        weight_version=foreign_text(model.get("weight_version") or info.get("weight_version"), 100),
        limits=limits,
        slots=slots,
    )


async def fetch_load(session: aiohttp.ClientSession, url: str) -> Load | None:
    """Return how busy a server is, or None when it does not report it (older versions, the router)."""
    try:
        value = await _get(session, url + "/v1/loads?include=core")
    except (EngineError, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError):
            raise
        return None
    loads = value.get("loads") if value else None
    if not isinstance(loads, list) or not all(isinstance(load, dict) for load in loads) or not loads:
        return None
    return Load(
        running=sum(_whole(load.get("num_running_reqs")) for load in loads),
        waiting=sum(_whole(load.get("num_waiting_reqs")) for load in loads),
        slots=sum(_whole(load.get("max_running_requests")) for load in loads),
    )


async def fetch_health(session: aiohttp.ClientSession, url: str) -> Literal["well", "unwell", "gone"]:
    """Ask whether a server takes requests: "unwell" where it (or what stands before it) says 5xx, "gone" where nothing
    answers. No answer in time is "well": busy is not dead.
    """
    patience = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
    try:
        async with session.get(url + "/health", timeout=patience) as reply:
            return "well" if reply.status < 500 else "unwell"
    except aiohttp.SocketTimeoutError:
        return "well"
    except (aiohttp.ClientError, TimeoutError, OSError):
        return "gone"
