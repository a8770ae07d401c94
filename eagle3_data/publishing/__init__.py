"""From a finished run to a version on the Hub, and from a version to what trainers read."""

from eagle3_data.publishing.card.card import render_card, template_path, write_card
from eagle3_data.publishing.differences import Difference, compare_records
from eagle3_data.publishing.hub.client import publish
from eagle3_data.publishing.hub.versions import (
    RowVersion,
    fetch_recipe,
    history,
    list_versions,
    load_version,
    locate_recipe,
    missing_prompts,
)
from eagle3_data.publishing.publish_report import PublishReport
from eagle3_data.publishing.training.exports import ExportReport, export
from eagle3_data.publishing.training.views import to_training
from eagle3_data.publishing.training.vocabulary import (
    DraftVocabulary,
    TokenCounts,
    build_vocabulary,
    count_tokens,
    draft_vocabulary,
    write_vocabulary,
)

__all__ = [
    "Difference",
    "DraftVocabulary",
    "ExportReport",
    "PublishReport",
    "RowVersion",
    "TokenCounts",
    "build_vocabulary",
    "compare_records",
    "count_tokens",
    "draft_vocabulary",
    "export",
    "fetch_recipe",
    "history",
    "list_versions",
    "load_version",
    "locate_recipe",
    "missing_prompts",
    "publish",
    "render_card",
    "template_path",
    "to_training",
    "write_card",
    "write_vocabulary",
]
