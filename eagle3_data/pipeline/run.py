"""`run`: all stages in their order, and publishing when the recipe says so.

Goes in: a run. Comes out: a finished run folder and what to look at in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_data.check.check import CheckReport, check
from eagle3_data.errors import UsageError
from eagle3_data.lengths import LengthReport
from eagle3_data.pipeline.ending import ending
from eagle3_data.pipeline.existing import target_of
from eagle3_data.pipeline.generate import generate_locked
from eagle3_data.pipeline.generated import Generated
from eagle3_data.pipeline.lengths import describe, recipe_words
from eagle3_data.pipeline.opening import Run
from eagle3_data.pipeline.prepare import Prepared, prepare_locked
from eagle3_data.publishing import PublishReport, publish, write_card


@dataclass(frozen=True)
class Finished:
    """What a whole run gave. Later stages are None when an earlier one was interrupted or left nothing to describe."""

    prepared: Prepared
    generated: Generated
    recipe: str  # how the user names it
    checked: CheckReport | None = None
    lengths: LengthReport | None = None
    card: Path | None = None
    published: PublishReport | None = None

    @property
    def exit_status(self) -> int:
        """As generation's, or 1 when the check found violations."""
        if self.checked is not None and not self.checked.ok:
            return max(1, self.generated.exit_status)
        return self.generated.exit_status

    def to_dict(self) -> dict[str, Any]:
        """Return the results of all stages, ready for JSON."""
        return {
            "prepare": self.prepared.to_dict(),
            "generate": self.generated.to_dict(),
            "check": self.checked.to_dict() if self.checked else None,
            "lengths": str(self.generated.folder / "lengths.json") if self.lengths else None,
            "card": str(self.card) if self.card else None,
            "publish": self.published.to_dict() if self.published else None,
        }

    def to_text(self) -> str:
        """Return what was made, what is wrong with it and what to do next, in ten lines at most."""
        sections = self.lengths.to_dict()["sources"] if self.lengths else {}
        return ending(self.prepared, self.generated, self.checked, sections, self.card, self.published, self.recipe)


def run(run: Run) -> Finished:
    """Prepare, generate, check, measure, write the card; publish when the recipe says so. Each does what is missing.

    A run in which rows failed or a check found violations is finished, described, and not published.

    Raises:
        Eagle3DataError: as the stages.
    """
    recipe, folder = run.recipe, run.folder
    if recipe.publish and recipe.publish.version is None:
        raise UsageError(f"{recipe.file}: publish.version: give the version to publish, such as 1.0.0")
    with folder.lock():
        prepared = prepare_locked(run, again=False)
        generated = generate_locked(run)
        if generated.interrupted or not any(counts.records for counts in generated.counts.values()):
            return Finished(prepared, generated, recipe_words(recipe))
        checked = check(folder)
        lengths = describe(folder, recipe=recipe_words(recipe))
        target = target_of(folder, trust_remote_code=recipe.target is not None and recipe.target.trust_remote_code)
        card = write_card(folder, target=target)
        manifest = folder.read_manifest()
        stages = manifest.stages.model_copy(update={"check": checked.ok, "lengths": True, "card": True})
        folder.write_manifest(manifest.model_copy(update={"stages": stages}))
    published = None
    if recipe.publish and recipe.publish.version and checked.ok and not generated.failed:
        published = publish(
            folder,
            recipe.publish.repo,
            recipe.publish.version,
            drop=recipe.publish.drop,
            training=recipe.publish.training,
            private=recipe.publish.private or None,
            target=target,
        )
    return Finished(prepared, generated, recipe_words(recipe), checked, lengths, card, published)
