"""Whether a server is fit for a run: it answers, cuts nothing silently, and serves the target's model.

Goes in: a URL and the target. Comes out: what the server says of itself, and how its model was compared.
Where `/tokenize` works, texts must have the target's ids. Under `--skip-tokenizer-init` it answers 500, and no
endpoint tells even the vocabulary size; then the model itself is asked: plain English in the target's ids must be much
likelier to it than the same ids shifted, which is noise to any model. Measured with SmolLM2-135M on SGLang 0.5.23,
nats a token: its own ids −1.4 (shifted −11.0); ids of Qwen3 −13.6 (−11.1), Kimi-K2.5 −12.3 (−11.0), DeepSeek-V3.1
−13.2 (−12.8).
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import aiohttp
import orjson

from eagle3_data.errors import EngineError, EngineUnavailable, WrongModelError
from eagle3_data.foreign_text import foreign_text
from eagle3_data.generation.client.facts import ServerFacts, check_access, fetch_facts
from eagle3_data.generation.client.http import TooLarge, open_session, read_body, server_url
from eagle3_data.generation.client.protocol import error_text

_PATIENCE: Final = aiohttp.ClientTimeout(total=120)
_LARGEST_BODY: Final = 1 << 22
_ENGLISH: Final = (
    "The capital of France is Paris, and the capital of Italy is Rome. The sun rises in the east and sets in the "
    "west. One, two, three, four, five, six, seven, eight, nine, ten. Once upon a time there was a king who had two "
    "sons."
)
# An id outside a server's vocabulary kills it, and this server may have a smaller one than the target's: 32,000 is the
# smallest in wide use. Common words have small ids in every vocabulary that is ordered by frequency or merges.
_SAFE_ID: Final = 32_000
_SHIFT: Final = 1_000
_FEWEST_IDS: Final = 20
_MARGIN: Final = 2.0  # nats a token


class CheckedTarget(Protocol):
    """What this check asks of a Target."""

    tokenizer: Any

    def canaries(self) -> list[tuple[str, list[int]]]:
        """Return texts with their ids."""
        ...

    def identity(self) -> dict[str, Any]:
        """Return what the target is; `model` names it."""
        ...


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself; "" or 0 where it does not report it (sglang-router reports almost nothing).

    Attributes:
        url: the server's root.
        version, model_path, weight_version: its own words.
        context_length: tokens that prompt and answer may hold together.
        max_req_input_len: prompts must be shorter than this many tokens.
        max_total_num_tokens: tokens in its KV pool, over all requests.
        slots: requests that it runs at once.
        checked_by: `tokenize` (texts have the target's ids) or `logprob` (the model knows the target's ids).
        evidence: the comparison in one line.
    """

    url: str
    version: str
    model_path: str
    weight_version: str
    context_length: int
    max_req_input_len: int
    max_total_num_tokens: int
    slots: int
    checked_by: str
    evidence: str


def launch_command(model: Sequence[str], url: str) -> str:
    """Return the command that starts SGLang where `url` points; `model` is its path or id, then its flags."""
    port = str(urlsplit(url).port or 30000)
    words = ["python", "-m", "sglang.launch_server", "--model-path", *model, "--port", port, "--skip-tokenizer-init"]
    return shlex.join(words)


async def check_server(
    url: str,
    target: CheckedTarget,
    api_key: str | None = None,
    session: aiohttp.ClientSession | None = None,
    *,
    context_length: int | None = None,
    proxy: str | None = None,
    served: Sequence[str] = (),
) -> ServerInfo:
    """Ask the server at `url` what it is, and compare its model with the target.

    Args:
        url: the root of a server or of a router.
        target: what the run is for.
        api_key: Bearer key; it is never shown.
        session: one to use instead of a new one; then it carries the key itself.
        context_length: in place of what the server reports, for a router that hides it.
        proxy: URL of an HTTP proxy; the environment's HTTP(S)_PROXY are ignored.
        served: path or id of the model, and flags, for the launch command in a message; the target's name if empty.

    Raises:
        EngineUnavailable: nothing answers there; the message gives the launch command.
        WrongModelError: the server has another model, or another tokenizer, than the target.
        EngineError: it wants a key, cuts prompts silently, or cannot be compared.
        UsageError: the URL or the key cannot be used.
    """
    url = url.rstrip("/")
    if session is None:
        server_url(url)
        async with open_session(api_key, proxy) as own:
            return await check_server(url, target, None, own, context_length=context_length, served=served)
    name = str(target.identity().get("model", ""))
    try:
        facts = await fetch_facts(session, url, context_length)
    except EngineUnavailable as error:
        raise EngineUnavailable(f"{error}; to start one: {launch_command(served or [name], url)}") from error
    evidence = await compare_texts(session, facts, target)
    checked_by = "tokenize"
    if evidence is None:
        evidence, checked_by = await _compare_likelihood(session, facts, target, name), "logprob"
    limits = facts.limits
    return ServerInfo(
        url=url,
        version=facts.version,
        model_path=facts.model_path,
        weight_version=facts.weight_version,
        context_length=limits.context_length if limits else 0,
        max_req_input_len=limits.max_req_input_len if limits else 0,
        max_total_num_tokens=limits.max_total_num_tokens if limits else 0,
        slots=facts.slots,
        checked_by=checked_by,
        evidence=evidence,
    )


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Return the status and the decoded answer, or its text where it is not JSON."""
    headers = {"Content-Type": "application/json"}
    try:
        async with session.post(url, data=orjson.dumps(body), headers=headers, timeout=_PATIENCE) as reply:
            data = await read_body(reply, _LARGEST_BODY)
    except TooLarge as error:
        raise EngineError(f"{url}: {error}") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        said = foreign_text(error, 200) or type(error).__name__
        raise EngineUnavailable(f"{url}: the connection was lost ({said})") from error
    check_access(url, reply.status, data)
    try:
        return reply.status, orjson.loads(data)
    except orjson.JSONDecodeError:
        return reply.status, foreign_text(data)


async def _tokenize(session: aiohttp.ClientSession, url: str, text: str, special: bool) -> list[int] | None:
    status, answer = await _post(session, f"{url}/tokenize", {"prompt": text, "add_special_tokens": special})
    tokens = answer.get("tokens") if status == 200 and isinstance(answer, dict) else None
    return [i for i in tokens if isinstance(i, int)] if isinstance(tokens, list) else None


async def compare_texts(session: aiohttp.ClientSession, facts: ServerFacts, target: CheckedTarget) -> str | None:
    """Return the evidence that the server's tokenizer is the target's, or None where the server has no tokenizer.

    Raises:
        WrongModelError: texts have other ids.
        EngineUnavailable, EngineError: it does not answer, or wants a key.
    """
    canaries, name = target.canaries(), str(target.identity().get("model", ""))
    for text, ids in canaries:
        given = await _tokenize(session, facts.url, text, False)
        if given is None:
            return None
        if given != ids:
            at = next((place for place, (one, other) in enumerate(zip(given, ids, strict=False)) if one != other), 0)
            raise WrongModelError(
                f"{facts.url}: serves {facts.model_path or 'another model'}, whose ids of {_shown(text)} are "
                f"{_short(given, at)}; the target {name} has {_short(ids, at)}; point engine.urls at a server with "
                "the target's model"
            )
    return f"{len(canaries)} texts have the same ids"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}…"


def _short(ids: Sequence[int], at: int) -> str:
    """Show some ids from a little before the place where they differ."""
    first = 0 if len(ids) <= 8 else max(0, at - 2)
    shown = [str(index) for index in ids[first : first + 8]]
    return f"[{', '.join([*(['…'] if first else []), *shown, *(['…'] if first + 8 < len(ids) else [])])}]"


async def _compare_likelihood(
    session: aiohttp.ClientSession, facts: ServerFacts, target: CheckedTarget, name: str
) -> str:
    ids = [i for i in target.tokenizer.encode(_ENGLISH, add_special_tokens=False) if i < _SAFE_ID]
    if len(ids) < _FEWEST_IDS:
        raise EngineError(
            f"{facts.url}: its model cannot be compared with {name}, whose ids are too large to be sent to an unknown "
            "model; start the server without --skip-tokenizer-init"
        )
    right = await _mean_logprob(session, facts.url, ids)
    noise = await _mean_logprob(session, facts.url, [(i + _SHIFT) % _SAFE_ID for i in ids])
    evidence = f"plain English has mean log-probability {right:.1f} a token, shifted ids {noise:.1f}"
    if not right - noise >= _MARGIN:
        raise WrongModelError(
            f"{facts.url}: serves {facts.model_path or 'another model'}, which does not know the ids of {name}: "
            f"{evidence}; point engine.urls at a server with the target's model"
        )
    return evidence


async def _mean_logprob(session: aiohttp.ClientSession, url: str, ids: list[int]) -> float:
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    status, answer = await _post(session, f"{url}/generate", body)
    if status != 200:
        raise EngineError(f"{url}: refused to score a prompt ({status}: {error_text(orjson.dumps(answer))})")
    try:
        rows = answer["meta_info"]["input_token_logprobs"]
        values = [row[0] for row in rows if row[0] is not None]
        mean = math.fsum(values) / len(values)
    except (KeyError, TypeError, IndexError, ZeroDivisionError) as error:
        raise EngineError(f"{url}: gave no log-probabilities of a prompt; its model cannot be compared") from error
    return mean
