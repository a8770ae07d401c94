"""Publish a run as a version on the Hub: `v1.0.0` of `org/name`.

Goes in: a finished run folder (or a data set of records). Comes out: one commit that holds the whole version, and its
tag. Readers of `main` see the old version or the new one, never a mixture: contents are sent first, where nobody can
see them; then one commit makes them visible, on the condition that nobody else committed meanwhile; then comes the
tag. Whatever breaks, the same command completes it, and contents that arrived are not sent again.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

from eagle3_data.errors import HubError, HubUnreachable
from eagle3_data.publishing.hub.errors import (
    TRIES,
    is_expired_upload,
    is_passing,
    patiently,
    status_of,
    wait_for,
)
from eagle3_data.publishing.hub.plan import FIRST_VERSION, changes_since, listing, make_plan, next_version
from eagle3_data.publishing.hub.repository import KIND, Repository, parse_repo
from eagle3_data.publishing.hub.request import (
    AUTO,
    Head,
    Order,
    check_succession,
    make_order,
    read_head,
    same_manifest,
    same_records,
)
from eagle3_data.publishing.inputs import Run, Wanted, gather
from eagle3_data.publishing.publish_report import PublishReport
from eagle3_data.publishing.staging import Exclusion
from eagle3_data.publishing.training.trainers import Trainer
from eagle3_data.publishing.version_files import MANIFEST, VersionFile, plain_version

if TYPE_CHECKING:
    from eagle3_data.target import Target

_COMMIT_TRIES: Final = 5


def publish(
    run: Run | Sequence[Run],
    repo: str,
    version: str,
    *,
    onto: str | None = None,
    drop_sources: Sequence[str] = (),
    drop: Sequence[str] = (),
    exclude_ids: Path | str | Sequence[str] | None = None,
    training: Trainer | None = None,
    private: bool | None = None,
    gated: Literal["auto", "manual"] | None = None,
    create_pr: bool = False,
    branch: str | None = None,
    dry_run: bool = False,
    allow_failed: bool = False,
    template: Path | None = None,
    target: "Target | None" = None,
    token: str | None = None,
) -> PublishReport:
    """Publish finished runs as a version.

    Args:
        run: a run folder; a data set of records, or a dictionary of its splits (`load_version(...).filter(...)`, which
            keeps the identity of its version; or `eagle3_data.records(out)` with `target`); or several of these of one
            target, oldest first: sources side by side, and of two records of one (sample_id, sample) the one that
            ended by itself, else the later one.
        repo: `org/name`; created when it is not there.
        version: "1.0.0"; its tag is "v1.0.0". A version that exists is never overwritten. "auto" counts on from the
            last one: a patch where rows were only continued or taken out, a minor version for more rows, a major one
            for another target or other columns.
        onto: a version of `repo`, as in "v1.0.0", whose rows come first.
        drop_sources: sources to leave out; those that the recipe no longer has are left out anyway.
        drop: records to leave out: "loop", "cut", "cap", "context" (see `selection`); the card says how many.
        exclude_ids: sample_ids to leave out, or a file with one on each line. Later versions leave them out too.
        training: also publish the config `train_rows` for this trainer: `input_ids` (prompt + output), `loss_mask`.
        private: whether a new repository is private; True is refused for one that is public.
        gated: make readers ask for access, granted at once ("auto") or by hand.
        create_pr: open a pull request in place of committing; publish again once it is merged, to set the tag.
        branch: commit there in place of `main`; made from `main` when it is not there.
        dry_run: list files, sizes and the card; nothing is sent.
        allow_failed: publish although rows failed; the card says how many.
        template: a card template in place of the shipped one.
        target: decodes the record that the card shows.
        token: of the Hub; that of HF_TOKEN or `hf auth login` when None.

    Returns:
        A report; `status` is "published", "completed" (a publish that had been cut was finished), "tagged" (the same
        content under a new number), "nothing to do", "pull request" or "dry run".

    Raises:
        UsageError: the version, repository or a source name is wrong, the version is older than the last one, or the
            runs are of different targets.
        DataError: a run is not finished, has failed rows, is damaged, or a file holds a secret.
        HubError: the Hub refused, or the version exists with other records.
    """
    repository = Repository(parse_repo(repo)[0], token)
    if repository.token is None and not dry_run:
        raise HubError(f"{repository.name}: no token to publish with; log in with `hf auth login` or set HF_TOKEN")
    plain = version if version == AUTO else plain_version(version)
    exclude = Exclusion.of(exclude_ids)
    exclude = exclude.with_earlier(_excluded_before(repository, branch))
    wanted = Wanted(onto, drop_sources, drop, exclude if exclude.rows else None, allow_failed, training)
    with tempfile.TemporaryDirectory(prefix="eagle3-data-") as folder:
        gathered = gather(run, wanted, repository, Path(folder), target)
        order = make_order(gathered, plain, branch, template, target, repository.token)
        if dry_run:
            return _dry_run(repository, order)
        _ensure_repository(repository, private, gated)
        tags = repository.tags()
        head = read_head(repository, order, create=True)
        if order.version == AUTO:
            order = replace(order, version=next_version(repository, order, head, tags))
        if order.tag in tags:
            return _existing_version(repository, order, tags[order.tag])
        check_succession(repository, order, head, tags)
        if done := _already_there(repository, order, head, tags):
            _tag(repository, order, head.commit)
            return done
        return _commit(repository, order, head, create_pr)


def _excluded_before(repository: Repository, branch: str | None) -> list[str]:
    """Return the ids that the version before left out; none where the Hub cannot be reached (a dry run goes on)."""
    try:
        main = repository.info()
        info = (repository.info(branch) if branch and main is not None else None) or main
        manifest = repository.manifest(info.sha) if info is not None and info.sha else {}
    except HubUnreachable:
        return []
    return [str(row) for row in manifest.get("excluded", [])]


def _ensure_repository(repository: Repository, private: bool | None, gated: Literal["auto", "manual"] | None) -> None:
    info = repository.info()
    if info is None:
        if kind := repository.other_kind():
            raise HubError(
                f"{repository.name}: that is a {kind} repository; choose another name, or create the data set of the "
                f"same name first (`hf repo create {repository.name} --repo-type dataset`)"
            )
        with repository.errors("create"):
            patiently(
                lambda: repository.api.create_repo(repository.name, repo_type=KIND, private=private, exist_ok=True)
            )
    elif private and not info.private:
        raise HubError(
            f"{repository.name}: it is public and --private was asked for; make it private on its settings page, or "
            "publish without --private"
        )
    if gated is not None:
        with repository.errors("gate"):
            patiently(lambda: repository.api.update_repo_settings(repository.name, gated=gated, repo_type=KIND))


def _existing_version(repository: Repository, order: Order, commit: str) -> PublishReport:
    if not same_records(order, repository.files(commit)):
        raise HubError(
            f"{repository.name}: {order.tag} exists and holds other records; a version is never overwritten, publish "
            "under the next number"
        )
    return PublishReport(repository.name, order.version, "nothing to do", commit=commit)


def _already_there(repository: Repository, order: Order, head: Head, tags: Mapping[str, str]) -> PublishReport | None:
    """Find that only the tag is missing: its commit arrived without it, or the content is a version already.

    Returns:
        What setting the tag makes of it ("completed", "tagged"); None where a commit is needed.
    """
    if head.version == order.version and same_records(order, head.files):
        return PublishReport(repository.name, order.version, "completed", commit=head.commit)
    if head.version and f"v{head.version}" in tags and same_records(order, head.files):
        # rendered as that version, everything must come out as it stands there
        past = replace(order, version=head.version)
        again = make_plan(repository, past, head, list(head.manifest.get("changes", [])), [])
        volatile = {MANIFEST} if same_manifest(order, head) else set()
        if not again.delete and not [file for file in again.add if file.path not in volatile]:
            note = f"the same files as v{head.version}, so both tags name one commit"
            return PublishReport(repository.name, order.version, "tagged", commit=head.commit, note=note)
    return None


def _commit(repository: Repository, order: Order, head: Head, create_pr: bool) -> PublishReport:
    sent: dict[str, CommitOperationAdd] = {}
    commit, pull_request = "", ""
    for attempt in range(_COMMIT_TRIES):
        history, lines = changes_since(repository, order, head)
        changes = [{"version": order.version, "lines": lines}, *history]
        plan = make_plan(repository, order, head, changes, lines)
        adds = [_operation(file, sent) for file in plan.add]
        _send(repository, order, adds, create_pr)
        operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
            *adds,
            *(CommitOperationDelete(path) for path in plan.delete),
        ]
        with repository.errors("publish to"):
            try:
                done = repository.api.create_commit(
                    repository.name,
                    operations,
                    commit_message=f"Release {order.tag}",
                    commit_description="\n".join(f"- {line}" for line in lines),
                    repo_type=KIND,
                    revision=order.branch,
                    parent_commit=head.commit,
                    create_pr=create_pr,
                )
            except OfflineModeIsEnabled:
                raise
            except (HTTPError, ConnectionError, TimeoutError) as error:
                if attempt == _COMMIT_TRIES - 1 or not is_passing(error, 409, 412):
                    raise
                wait_for(error, attempt)
            else:
                commit, pull_request = done.oid, str(done.pr_url or "")
                break
        now = read_head(repository, order, create=False)
        if not create_pr and now.version == order.version and same_records(order, now.files):
            # our own commit had arrived, and only its answer was lost
            commit = now.commit
            break
        head = now
    report = PublishReport(
        repository.name,
        order.version,
        "pull request" if create_pr else "published",
        commit=commit,
        pull_request=pull_request if create_pr else "",
        changes=tuple(lines),
        card=plan.card,
        files=listing(plan, head),
        note="\n".join(plan.notes),
    )
    if not create_pr:
        _tag(repository, order, report.commit)
    return report


def _send(repository: Repository, order: Order, adds: Sequence[CommitOperationAdd], create_pr: bool) -> None:
    """Send contents, where nobody sees them yet. Upload addresses that expired meanwhile are asked for anew."""
    with repository.errors("send files to"):
        for attempt in range(TRIES):
            try:
                repository.api.preupload_lfs_files(
                    repository.name,
                    adds,
                    repo_type=KIND,
                    revision=order.branch,
                    create_pr=create_pr,
                    free_memory=False,
                )
                return
            except RuntimeError as error:
                # huggingface_hub wraps what the storage answered
                cause = error.__cause__
                if cause is None or attempt == TRIES - 1 or not is_expired_upload(cause):
                    raise
                wait_for(cause, attempt)


def _operation(file: VersionFile, sent: dict[str, CommitOperationAdd]) -> CommitOperationAdd:
    """Return the operation that adds a file; contents that were sent in an earlier try are not read again."""
    key = f"{file.path}:{file.sha256}"
    if key not in sent:
        content = file.content if isinstance(file.content, bytes) else str(file.content)
        sent[key] = CommitOperationAdd(file.path, content)
    return sent[key]


def _tag(repository: Repository, order: Order, commit: str) -> None:
    with repository.errors(f"tag {order.tag} in"):
        try:
            patiently(
                lambda: repository.api.create_tag(
                    repository.name,
                    tag=order.tag,
                    tag_message=f"Release {order.tag}",
                    revision=commit,
                    repo_type=KIND,
                )
            )
        except HfHubHTTPError as error:
            # the answer to an earlier try may have been lost
            if status_of(error) != 409 or repository.tags().get(order.tag) != commit:
                raise


def _dry_run(repository: Repository, order: Order) -> PublishReport:
    """Say what a publish would do. A Hub that cannot be reached is no hindrance, and the report says so first.

    Raises:
        UsageError, HubError: what the publish itself would be refused for, such as a token that the Hub does not take.
    """
    note, head = "", Head()
    try:
        tags = repository.tags() if repository.info() is not None else {}
        if order.tag in tags:
            return _existing_version(repository, order, tags[order.tag])
        if repository.info(order.branch) is not None:
            head = read_head(repository, order, create=False)
        if order.version == AUTO:
            order = replace(order, version=next_version(repository, order, head, tags))
            if order.tag in tags:
                return _existing_version(repository, order, tags[order.tag])
        check_succession(repository, order, head, tags)
        if done := _already_there(repository, order, head, tags):
            note = done.note or f"{order.tag}: only its tag is missing, which a publish would set"
            return replace(done, status="dry run", note=note)
        history, lines = changes_since(repository, order, head)
    except HubUnreachable as error:
        note, head = f"not compared with the Hub: {error}", Head()
        order = replace(order, version=FIRST_VERSION) if order.version == AUTO else order
        history, lines = changes_since(None, order, head)
    plan = make_plan(repository, order, head, [{"version": order.version, "lines": lines}, *history], lines)
    return PublishReport(
        repository.name,
        order.version,
        "dry run",
        commit=head.commit,
        changes=tuple(lines),
        card=plan.card,
        files=listing(plan, head),
        note="\n".join([*([note] if note else []), *plan.notes]),
    )
