"""`card`: the data set card of a run, README.md.

Goes in: a run folder. Comes out: the path of its card.
"""

from pathlib import Path

from eagle3_data.pipeline.existing import run_folder_of, target_of
from eagle3_data.pipeline.lengths import describe_anew
from eagle3_data.publishing import write_card
from eagle3_data.run_names import no_run_folder


def card(run: Path, *, template: str | None = None, trust_remote_code: bool = False) -> Path:
    """Write the card of a run folder, measuring its lengths where that was not done since its records were written.

    Raises:
        UsageError: no run folder, or a wrong template.
        DataError: no records.
    """
    folder = run_folder_of(run)
    if folder is None:
        raise no_run_folder(run)
    describe_anew(folder)
    target = target_of(folder, trust_remote_code=trust_remote_code)
    return write_card(folder, Path(template) if template else None, target=target)
