"""Recipes: one YAML text, validated, that says what a run is before anything is read or sent."""

from eagle3_data.recipe.models import EngineSpec, ExtendSpec, PublishSpec, Recipe, TargetSpec
from eagle3_data.recipe.reading import Settings, load_recipe, parse_recipe, shipped_recipes
from eagle3_data.recipe.source_entry import SourceSpec
from eagle3_data.recipe.values import AUTO

__all__ = [
    "AUTO",
    "EngineSpec",
    "ExtendSpec",
    "PublishSpec",
    "Recipe",
    "Settings",
    "SourceSpec",
    "TargetSpec",
    "load_recipe",
    "parse_recipe",
    "shipped_recipes",
]
