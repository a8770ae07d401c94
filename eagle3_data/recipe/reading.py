"""A recipe from where it lies: a path, a shipped one by name, a version on the Hub.

Goes in: what the user named, or the text itself. Comes out: a `Recipe`, or one RecipeError that lists every mistake,
each with file, line and key.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from eagle3_data import sources
from eagle3_data.errors import RecipeError
from eagle3_data.foreign_text import foreign_text
from eagle3_data.recipe.document import Document, KeyPath, read_document
from eagle3_data.recipe.foreign import allowed, reduced
from eagle3_data.recipe.models import Recipe, places_of_keys
from eagle3_data.validation import dotted, mistakes

_SUFFIXES: Final = (".yaml", ".yml")
_MOST_BYTES: Final = 4_000_000
_LOOKED_AT: Final = 1_000  # names in a folder, for a suggestion


def shipped_recipes() -> list[str]:
    """Return the names of the recipes that come with the package, those in folders as `folder/name`."""
    folder = _shipped_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


@dataclass(frozen=True)
class Settings:
    """What the reader of a recipe decides, whatever the recipe says; each wins over its key."""

    overlay: Path | None = None  # a YAML file of one's own, laid over the recipe key by key
    urls: tuple[str, ...] = ()
    api_key_env: str | None = None
    trust_remote_code: bool = False
    publish: str | None = None  # org/name@1.0.0
    use_token: bool = False  # read the data of a recipe from the Hub with one's own token


def load_recipe(where: str | Path, settings: Settings | None = None) -> Recipe:
    """Read and validate a recipe.

    A recipe from the Hub is a stranger's: it gives prompts, sampling and caps. Where to ask, with which key, whether
    its code may run and where to publish come from `settings` alone.

    Args:
        where: a path, the name of a shipped recipe, or `hf://datasets/org/name@version`.
        settings: what the reader decides.

    Raises:
        RecipeError: there is no such recipe, or it is wrong; the message names file, line and key of every mistake.
        HubError: the Hub does not give it.
    """
    own = settings or Settings()
    if str(where).startswith("hf://"):
        return _from_hub(str(where), own)
    path = _found(str(where))
    return _settled(_read(_text_of(path), str(path)), own, text=_text_of(path))


def parse_recipe(text: str, file: str = "<recipe>") -> Recipe:
    """Validate the text of a recipe; `file` is what errors call it. Raises RecipeError."""
    return _settled(_read(text, file), Settings(), text=text)


def _read(text: str, file: str) -> Document:
    document = read_document(text, file)
    if document.values is None and not document.mistakes:
        raise RecipeError(f"{file}: the recipe is empty; see the shipped ones: {', '.join(shipped_recipes())}")
    return document


def _from_hub(where: str, own: Settings) -> Recipe:
    from eagle3_data import publishing

    repo, commit = publishing.locate_recipe(where)
    document = _read(publishing.fetch_recipe(f"{repo}@{commit}"), where)
    foreign = reduced(document.values, repo, commit)
    document.values = foreign.values
    recipe = _settled(document, own, refused=foreign.refused)
    return recipe.from_stranger(tuple(map(foreign_text, foreign.left_out)), anonymous=not own.use_token)


def _settled(
    document: Document, own: Settings, *, text: str = "", refused: Mapping[KeyPath, str] | None = None
) -> Recipe:
    """Return the recipe of a document, with what its reader decides; `text` is its own where that changes nothing."""
    changed = refused is not None
    over: Any = None
    if own.overlay is not None:
        top = _read(_text_of(own.overlay), str(own.overlay))
        _make_absolute(top.values, own.overlay.absolute().parent)
        _choose_engine(document.values, top.values)
        document, changed, over = top.laid_over(document), True, top.values
    options: list[tuple[KeyPath, Any, str]] = [
        (("engine", "urls"), list(own.urls), "--url"),
        (("engine", "api_key_env"), own.api_key_env, "--api-key-env"),
        (("target", "trust_remote_code"), own.trust_remote_code, "--trust-remote-code"),
    ]
    if own.publish is not None:
        repo, _, version = own.publish.partition("@")
        options += [(("publish", "repo"), repo, "--publish"), (("publish", "version"), version, "--publish")]
    for path, value, option in options:
        if value and isinstance(document.values, dict):
            if option == "--url":
                _choose_engine(document.values, {"engine": {"urls": value}})
            document.put(path, value, option)
            changed = True
    for path, sentence in (refused or {}).items():
        if not allowed(path, over, own.urls):
            document.mistakes.append((*document.place(path), f"{dotted(path)}: {sentence}"))
    if changed:
        text = yaml.safe_dump(document.values, sort_keys=False, allow_unicode=True, width=119)
    return _validated(document).read_from(text, document.file)


def _choose_engine(base: Any, top: Any) -> None:
    """Let servers take the place of the embedded engine, and the other way round."""
    below, above = (part.get("engine") if isinstance(part, dict) else None for part in (base, top))
    if isinstance(below, dict) and isinstance(above, dict):
        gone: tuple[str, ...] = ("embedded", "deterministic", "slots") if "urls" in above else ()
        gone = (
            ("urls", "weights", "context_length", "round_tokens", "proxy", "answer_timeout")
            if "embedded" in above
            else gone
        )
        for key in gone:
            below.pop(key, None)


def _make_absolute(values: Any, folder: Path) -> None:
    """Let the files of an overlay be relative to the overlay, not to the recipe below it."""
    entries = values.get("sources") if isinstance(values, dict) else None
    for entry in entries.values() if isinstance(entries, dict) else ():
        if isinstance(entry, dict) and entry.get("data_files") not in (None, "samples"):
            given = entry["data_files"]
            files = given if isinstance(given, list) else [given]
            entry["data_files"] = [
                str(folder / Path(file).expanduser()) if isinstance(file, str) and "://" not in file else file
                for file in files
            ]


def _validated(document: Document) -> Recipe:
    """Validate the values of a document. Raises RecipeError with every mistake, a line each."""
    sources.register_installed()
    found = list(document.mistakes)
    recipe: Recipe | None = None
    try:
        recipe = Recipe.model_validate(document.values, context=places_of_keys())
    except ValidationError as error:
        for mistake in mistakes(error, document.values):
            of_key = "unknown key" in mistake.sentence or "cannot name" in mistake.sentence
            found.append((*document.place(mistake.path, of_key=of_key), mistake.sentence))
    if recipe is None or found:
        lines = [
            foreign_text(f"{file}:{line}: {sentence}" if line else f"{file}: {sentence}", limit=600)
            for file, line, sentence in sorted(found)
        ]
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
    near = [str(path) for path in others] or difflib.get_close_matches(name, [*shipped_recipes(), *_beside(name)], n=1)
    if Path(name).is_dir():
        hint = "this is a folder; name a file in it"
    elif near:
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = f"the shipped ones are {', '.join(shipped_recipes())}"
    raise RecipeError(f"no recipe {name!r}: neither a file nor the name of a shipped recipe; {hint}")


def _beside(name: str) -> list[str]:
    """Return the YAML files in the folder that a name points into, at most some, as the name would be written."""
    folder = Path(name).parent
    try:
        files = [path for path in islice(folder.iterdir(), _LOOKED_AT) if path.suffix in _SUFFIXES]
    except OSError:
        return []
    return [str(path) for path in files]


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
