"""What a server says about itself, read at the start, on its return after a loss, and while it works.

Goes in: an aiohttp session and a URL. Comes out: its model, version, weights and limits, and how many requests it runs
and queues. Understands SGLang and sglang-router (which hides most of this and answers 404).
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from eagle3_data.errors import EngineError, EngineUnavailable
from eagle3_data.generation.budget import ContextLimits

_PATIENCE: Final = aiohttp.ClientTimeout(total=20)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server's own account; empty text or 0 where it does not tell."""

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
            body = await reply.read()
            if reply.status in (401, 403):
                raise EngineError(f"{url}: the server refuses the key ({reply.status}); set engine.api_key_env")
            if reply.status != 200:
                return None
    except aiohttp.ClientConnectorCertificateError as error:
        reason = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
        raise EngineError(
            f"{url}: its certificate is not trusted ({reason}); name the file of its authority in the environment "
            "variable SSL_CERT_FILE"
        ) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineUnavailable(
            f"{url}: nothing answers ({error or type(error).__name__}); start the server or mend engine.urls"
        ) from error
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


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
        model_path=str(info.get("model_path") or model.get("model_path") or ""),
        version=str(info.get("version") or ""),
        weight_version=str(model.get("weight_version") or info.get("weight_version") or ""),
        limits=limits,
        slots=slots,
    )


async def fetch_load(session: aiohttp.ClientSession, url: str) -> Load | None:
    """Return how busy a server is, or None when it does not tell (older versions, the router)."""
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


async def is_healthy(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a server takes requests: any answer of `/health` but 5xx, or none in time: busy is not dead."""
    patience = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
    try:
        async with session.get(url + "/health", timeout=patience) as reply:
            return reply.status < 500
    except aiohttp.SocketTimeoutError:
        return True
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
