"""`vocab`: a draft vocabulary from the output tokens of a data set.

Goes in: a run folder, Parquet files or a Hub data set. Comes out: the vocabulary and its coverage.
"""

from eagle3_data import publishing
from eagle3_data.pipeline.existing import run_folder_of, target_of
from eagle3_data.publishing import DraftVocabulary


def vocabulary(dataset: str, *, size: int, output: str, trust_remote_code: bool = False) -> DraftVocabulary:
    """Write a draft vocabulary; the target's byte tokens are pinned where its tokenizer is at hand."""
    folder = run_folder_of(dataset)
    target = target_of(folder, trust_remote_code=trust_remote_code) if folder else None
    return publishing.draft_vocabulary(folder or dataset, size, output, target=target)
