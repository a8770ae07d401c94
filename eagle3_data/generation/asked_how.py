"""How each source is asked: its caps round by round, sampling, samples, target and request.

Goes in: a run's settings and those of single sources. Comes out: what holds for one source.
"""

from collections.abc import Mapping
from typing import Final

from eagle3_data.errors import UsageError
from eagle3_data.generation.asked_target import AskedTarget
from eagle3_data.generation.budget import Extend, ladder
from eagle3_data.generation.client.protocol import RequestBody
from eagle3_data.generation.dialogues import SourceSettings
from eagle3_data.outcome import Outcome
from eagle3_data.sampling import complete_sampling

_PLAIN: Final = SourceSettings()


class AskedHow:
    """How the sources of a run are asked.

    Args:
        target, sampling, max_new_tokens, extend, sources: as `Generator`.

    Raises:
        UsageError, RecipeError: one of them is wrong.
    """

    def __init__(
        self,
        target: AskedTarget,
        sampling: Mapping[str, float | int],
        max_new_tokens: int | Mapping[str, int],
        extend: bool | Extend,
        sources: Mapping[str, SourceSettings] | None,
    ) -> None:
        caps = dict(max_new_tokens) if isinstance(max_new_tokens, Mapping) else {"": max_new_tokens}
        for source, cap in caps.items():
            if isinstance(cap, bool) or not isinstance(cap, int) or cap < 1:
                name = f"max_new_tokens of {source}" if source else "max_new_tokens"
                raise UsageError(f"{name}: {cap!r} must be a whole number from 1")
        self.target = target
        self.sampling = complete_sampling(sampling)
        self.extends = bool(extend)  # whether finished rows may have to go on
        self.bodies: dict[str, RequestBody] = {}  # of sources with settings of their own
        self._sources = dict(sources or {})
        for source, settings in self._sources.items():
            sampling_here = self.sampling_of(source)
            if settings.samples > 1 and not sampling_here["temperature"]:
                raise UsageError(f"{source}: samples {settings.samples} at temperature 0 would all be the same answer")
            self.bodies[source] = RequestBody(sampling_here, target.stop_token_ids)
        self._ladders = {source: ladder(cap, extend) for source, cap in caps.items()}

    @property
    def names(self) -> list[str]:
        """The sources that are named somewhere."""
        return sorted({*self._sources, *self._ladders} - {""})

    def caps(self, source: str) -> list[int]:
        """Return the caps a row of `source` is taken to, round by round.

        Raises:
            UsageError: the source has none.
        """
        found = self._ladders.get(source) or self._ladders.get("")
        if found is None:
            raise UsageError(f"max_new_tokens: no cap for source {source!r}; there are {', '.join(self._ladders)}")
        return found

    def continues(self, outcome: Outcome, budget: int, caps: list[int]) -> bool:
        """Whether a finished row was cut at an older cap and is to go on."""
        return self.extends and outcome.extendable and budget < caps[-1]

    def settings_of(self, source: str) -> SourceSettings:
        """Return how a source is asked."""
        return self._sources.get(source, _PLAIN)

    def samples_of(self, source: str) -> int:
        """Return how many answers each prompt of a source gets."""
        return self.settings_of(source).samples

    def target_of(self, source: str) -> AskedTarget:
        """Return the target under the thinking switch of a source."""
        return self.settings_of(source).target or self.target

    def sampling_of(self, source: str) -> dict[str, float | int]:
        """Return every sampling parameter of a source."""
        own = self.settings_of(source).sampling
        return self.sampling if own is None else complete_sampling(own, f"sampling of {source}")
