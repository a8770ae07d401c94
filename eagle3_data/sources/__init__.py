"""Sources: raw upstream rows in, prompts out, every row accounted for."""

from eagle3_data.sources.base import SourceBuilder
from eagle3_data.sources.columns import Column
from eagle3_data.sources.description import ConfigInfo, SourceConfig, SourceInfo
from eagle3_data.sources.dialogue import REASONS, Dialogue, Reject
from eagle3_data.sources.draw import Drawn, draw, load_source
from eagle3_data.sources.registry import SOURCES, register, register_installed
from eagle3_data.sources.report import SourceReport
from eagle3_data.sources.screening import Benchmarks, Screen, TemplateScreen
from eagle3_data.sources.script import Script, dialogue_id
from eagle3_data.sources.upstream import sample_files as sample_rows

__all__ = [
    "REASONS",
    "SOURCES",
    "Benchmarks",
    "Column",
    "ConfigInfo",
    "Dialogue",
    "Drawn",
    "Reject",
    "Screen",
    "Script",
    "SourceBuilder",
    "SourceConfig",
    "SourceInfo",
    "SourceReport",
    "TemplateScreen",
    "dialogue_id",
    "draw",
    "load_source",
    "register",
    "register_installed",
    "sample_rows",
]
