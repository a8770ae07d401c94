"""llama.cpp's own server inside this process (continuous batching), asked over a private Unix socket.

Goes in: a GGUF file, the number of slots, context and threads; then token ids. Comes out: token ids.

Found by running xllamacpp 2026.10: a streamed answer loses tokens whose bytes are only part of a character, so nothing
is streamed from it; a stop by end of generation gives that token as the last of `tokens`; `logprob` is of the model's
own distribution, before bias and sampling, and is missing for a token that completes no character; an id ≥ 2^32 is cut
to 32 bits without a word (the caller checks ids); a request that closes its connection is cancelled.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import orjson

from eagle3_data.engine.model import EXTRA_INSTALL
from eagle3_data.errors import EngineError

# 2 is llama.cpp's level of warnings, 1 errors, 0 silence
_VERBOSITY: Final = 1


def usable_cpus() -> int:
    """Return how many CPUs this process may use: its affinity, cut by a cgroup's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no cgroup v2, or "max"
    return max(1, count)


@dataclass(frozen=True)
class Piece:
    """A run of tokens that llama.cpp generated.

    Attributes:
        ids: the tokens, the one that ended generation included.
        logprobs: natural logarithm of each token's probability; empty unless asked for.
        ended: llama.cpp stopped at a token that it counts as end of generation.
        cached: prompt tokens that were not computed anew.
    """

    ids: list[int]
    logprobs: list[float]
    ended: bool
    cached: int


class LlamaServer:
    """llama.cpp's server with `slots` places, for the life of this object.

    Args:
        model: GGUF file.
        slots: requests generated at once.
        context: tokens that one request may hold, prompt and answer together.
        threads: CPU threads; None takes every usable CPU.

    Raises:
        EngineError: xllamacpp is missing, or llama.cpp cannot load the model.
    """

    def __init__(self, model: Path, *, slots: int, context: int, threads: int | None = None) -> None:
        # read when the OpenMP library is loaded. By default its threads spin at every barrier: with other work on the
        # same CPUs (our own client is such) generation was 10 to 100 times slower than with threads that sleep.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        try:
            import xllamacpp
        except ImportError as error:
            raise EngineError(f"embedded engine: the package xllamacpp is not installed; {EXTRA_INSTALL}") from error
        self.version: str = xllamacpp.__version__
        self.slots, self.context = slots, context
        self._folder = tempfile.TemporaryDirectory(prefix="eagle3-data-")
        self._socket = f"{self._folder.name}/llama.sock"
        self._session: aiohttp.ClientSession | None = None
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(model)
        parameters.hostnames = [self._socket]
        parameters.n_parallel = slots
        parameters.n_ctx = slots * context
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads or usable_cpus()
        # every request's id_slot and cache_prompt are set below; nothing else may reuse what came before
        parameters.cache_ram_mib = 0
        parameters.cache_idle_slots = False
        parameters.fit_params = False
        parameters.warmup = False
        parameters.ui = False
        parameters.n_threads_http = slots + 4
        parameters.verbosity = _VERBOSITY
        try:
            self._server = xllamacpp.Server(parameters)
        except (RuntimeError, ValueError, MemoryError) as error:
            self._folder.cleanup()
            raise EngineError(f"{model}: llama.cpp cannot load this model ({error})") from error

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(path=self._socket, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession("http://llama", connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
        del self._server
        self._folder.cleanup()

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        assert self._session is not None
        data = orjson.dumps(body)
        async with self._session.post(path, data=data, headers={"Content-Type": "application/json"}) as reply:
            answer = orjson.loads(await reply.read())
        if reply.status != 200:
            raise EngineError(f"llama.cpp refused a request ({reply.status}): {answer.get('error', answer)}")
        return answer

    async def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of `text` by the model's own tokenizer; control tokens in the text become their ids."""
        body = {"content": text, "add_special": add_special, "parse_special": True}
        ids: list[int] = (await self._post("/tokenize", body))["tokens"]
        return ids

    async def complete(
        self, ids: Sequence[int], budget: int, slot: int, *, reuse: bool, logprobs: bool, sampling: dict[str, Any]
    ) -> Piece:
        """Generate up to `budget` tokens after `ids` in `slot`.

        Args:
            reuse: keep what the slot has already computed of `ids`; otherwise compute all of it.
            logprobs: give the log-probability of each token too; then `budget` must be 1.
            sampling: llama.cpp's own sampling fields.
        """
        body = {
            "prompt": list(ids),
            "n_predict": budget,
            "id_slot": slot,
            "cache_prompt": reuse,
            "return_tokens": True,
            "n_probs": 1 if logprobs else 0,
            **sampling,
        }
        answer = await self._post("/completion", body)
        new: list[int] = answer["tokens"]
        values: list[float] = []
        if logprobs and new:
            given = answer.get("completion_probabilities") or []
            values = [given[0]["logprob"] if given else await self._logprob(ids, new[0], slot)]
        return Piece(new, values, answer["stop_type"] == "eos", answer["timings"].get("cache_n", 0))

    async def score(self, ids: Sequence[int], token: int, slot: int, *, reuse: bool) -> float:
        """Return the natural logarithm of the probability of `token` after `ids`."""
        # a bias this large makes the token certain, and the reported value is from before the bias
        sampling = {"temperature": 0.0, "samplers": ["temperature"], "logit_bias": [[token, 1e9]]}
        piece = await self.complete(ids, 1, slot, reuse=reuse, logprobs=True, sampling=sampling)
        if piece.ids != [token]:
            raise EngineError(f"llama.cpp gave token {piece.ids} where {token} was to be scored")
        return piece.logprobs[0]

    async def _logprob(self, ids: Sequence[int], token: int, slot: int) -> float:
        # llama.cpp lists no probability beside a token that leaves a character incomplete: force a token that does
        # not, and look this one up in the whole distribution
        for other in await self.tokenize(" a", add_special=False):
            body = {
                "prompt": list(ids),
                "n_predict": 1,
                "id_slot": slot,
                "cache_prompt": True,
                "n_probs": 1 << 20,
                "temperature": 0.0,
                "samplers": ["temperature"],
                "logit_bias": [[other, 1e9]],
            }
            answer = await self._post("/completion", body)
            for entry in answer["completion_probabilities"][0]["top_logprobs"]:
                if entry["id"] == token:
                    return float(entry["logprob"])
        raise EngineError(f"llama.cpp gives no probability of token {token}")
