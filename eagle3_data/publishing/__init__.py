"""From a finished run to a version on the Hub, and from a version to what trainers read."""

from eagle3_data.publishing.card import render_card, template_path, write_card

__all__ = ["render_card", "template_path", "write_card"]
