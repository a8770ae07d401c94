"""A recipe from where it lies: a path, a shipped one by name, a version on the Hub.

Goes in: what the user named, or the text itself. Comes out: a `Recipe`, or one RecipeError that lists every mistake,
each with file, line and key.
"""

import difflib
from importlib import resources
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from eagle3_data import sources
from eagle3_data.errors import RecipeError
from eagle3_data.recipe.document import Document, read_document
from eagle3_data.recipe.models import Recipe, places_of_keys
from eagle3_data.validation import mistakes

_SUFFIXES: Final = (".yaml", ".yml")
_MOST_BYTES: Final = 4_000_000


def shipped_recipes() -> list[str]:
    """Return the names of the recipes that come with the package, those in folders as `folder/name`."""
    folder = _shipped_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def load_recipe(where: str | Path) -> Recipe:
    """Read and validate a recipe.

    Args:
        where: a path, the name of a shipped recipe, or `hf://datasets/org/name@version`.

    Raises:
        RecipeError: there is no such recipe, or it is wrong; the message names file, line and key of every mistake.
    """
    if str(where).startswith("hf://"):
        from eagle3_data import publishing

        return parse_recipe(publishing.fetch_recipe(str(where)), str(where))
    path = _found(str(where))
    return parse_recipe(_text_of(path), str(path))


def parse_recipe(text: str, file: str = "<recipe>") -> Recipe:
    """Validate the text of a recipe; `file` is what errors call it. Raises RecipeError."""
    document = read_document(text, file)
    if document.values is None and not document.mistakes:
        raise RecipeError(f"{file}: the recipe is empty; see the shipped ones: {', '.join(shipped_recipes())}")
    return recipe_of(document).read_from(text, file)


def recipe_of(document: Document) -> Recipe:
    """Validate the values of a document. Raises RecipeError with every mistake, a line each."""
    sources.register_installed()
    found = list(document.mistakes)
    recipe: Recipe | None = None
    try:
        recipe = Recipe.model_validate(document.values, context=places_of_keys())
    except ValidationError as error:
        for mistake in mistakes(error, document.values):
            of_key = "unknown key" in mistake.sentence or "cannot name" in mistake.sentence
            found.append((document.line(mistake.path, of_key=of_key), mistake.sentence))
    if recipe is None or found:
        lines = [f"{document.file}:{line}: {sentence}" for line, sentence in sorted(found)]
        raise RecipeError("\n".join(dict.fromkeys(lines)))
    return recipe


def _found(name: str) -> Path:
    try:
        if Path(name).is_file():
            return Path(name)
        shipped = _shipped_folder() / f"{name}.yaml"
        if name in shipped_recipes():
            return shipped
        others = [path for suffix in _SUFFIXES if (path := Path(name).with_suffix(suffix)).is_file()]
    except (OSError, ValueError) as error:  # a name that no file can have
        raise RecipeError(f"no recipe {name[:80]!r}: {getattr(error, 'strerror', None) or error}") from None
    near = [str(path) for path in others] or difflib.get_close_matches(name, shipped_recipes(), n=1)
    if Path(name).is_dir():
        hint = "this is a folder; name a file in it"
    elif near:
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = f"the shipped ones are {', '.join(shipped_recipes())}"
    raise RecipeError(f"no recipe {name!r}: neither a file nor the name of a shipped recipe; {hint}")


def _text_of(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise RecipeError(f"{path}: larger than {_MOST_BYTES:,} bytes; this is no recipe")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def _shipped_folder() -> Path:
    packaged = Path(str(resources.files("eagle3_data"))) / "_recipes"
    return packaged if packaged.is_dir() else packaged.parents[1] / "recipes"
