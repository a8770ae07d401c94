"""A run folder that is there already, opened by the commands that read it.

Goes in: what the user named as a data set. Comes out: the run folder that it is, and the run's target where at hand.
"""

from pathlib import Path

from eagle3_data.errors import DataError, UsageError
from eagle3_data.pipeline.keeping import check_whole
from eagle3_data.pipeline.opening import load_target
from eagle3_data.recipe import parse_recipe
from eagle3_data.run_folder import RunFolder
from eagle3_data.target import Target


def run_folder_of(dataset: str | Path, *, whole: bool = True) -> RunFolder | None:
    """Return the run folder that `dataset` is, None when it is something else; nothing is written.

    Raises:
        DataError: `whole`, and rows are missing that the manifest states; its manifest is damaged.
    """
    folder = RunFolder(dataset)
    if not folder.manifest_path.is_file():
        return None
    if whole:
        check_whole(folder)
    return folder


def target_of(folder: RunFolder, *, trust_remote_code: bool = False) -> Target | None:
    """Return the target of a run, to decode its example; None where its tokenizer cannot be loaded here.

    Whether the code of its tokenizer may run is the caller's word: a folder may be a stranger's.
    """
    try:
        recipe = parse_recipe(folder.read_manifest().recipe, str(folder.manifest_path))
        return load_target(recipe.with_consent(trust_remote_code=trust_remote_code))
    except (UsageError, DataError):
        return None
