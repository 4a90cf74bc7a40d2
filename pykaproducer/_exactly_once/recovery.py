"""The decision about a batch: a new one, or one that completes what was decided before.

No function here connects to Kafka: the results of tasks and the state are arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pykaproducer._exactly_once.errors import PartialCommitError, StateMismatchError
from pykaproducer._exactly_once.fates import Fate, of_fate, tasks_text
from pykaproducer._exactly_once.records import BatchKey, Decision, Marker
from pykaproducer._exactly_once.setup import OnPartialCommit, Setup
from pykaproducer._exactly_once.task import TaskResult

log = logging.getLogger("pykaproducer.exactly_once")

_MODULUS = 2**64


def next_decision(
    setup: Setup,
    key: BatchKey,
    last: Decision | None,
    results: Sequence[TaskResult],
    fates: Mapping[int, Fate],
    markers: Mapping[int, Marker],
) -> Decision | None:
    """Return the decision to be written for batch *key*; None if the batch is complete.

    Args:
        setup: the options.
        key: the batch.
        last: the last decision, of this batch or of one before.
        results: of all tasks of the replay, or of the first run.
        fates: of the transactions of *last*, by task; empty if *last* is of another batch.
        markers: of the tasks whose transactions are committed; empty if all are.

    Raises:
        PartialCommitError: a part of the batch is visible, and *results* cannot complete it.
        StateMismatchError: tasks skipped their rows because the batch was committed, but another
            driver has committed another batch since; or the number of partitions of the state
            topic has changed.
    """
    if last is None or last.key != key:
        return _new(key, last, results)
    if not last.tokens and any(each.token is not None for each in results):
        return _new(key, last, results)  # it was decided without rows
    lost, committed = of_fate(fates, Fate.LOST), of_fate(fates, Fate.COMMITTED)
    if not lost:
        _warn_if_rows_differ(setup, last, results)
        return None
    if not committed:
        return _new(key, last, results)
    if _replaces_lost(last, lost, results, markers):
        tokens = {each.task: each for each in last.tokens if each.task in markers}
        tokens |= {each.task: each.token for each in results if each.task in lost and each.token}
        log.warning(
            "%s: the transactions of %s timed out before they were committed; the replay has "
            "written their rows again, and commits them next",
            setup.what(key),
            tasks_text(lost),
        )
        return replace(last, tokens=tuple(tokens[task] for task in sorted(tokens)))
    return _apply_on_partial_commit(setup, key, last, results, lost, markers)


def _warn_if_rows_differ(setup: Setup, last: Decision, results: Sequence[TaskResult]) -> None:
    """Warn if *results* are not the rows of the batch that is committed."""
    rows = sum(each.rows for each in results)
    checksum = sum(each.checksum for each in results) % _MODULUS
    if (rows, checksum) != (last.rows, last.checksum):
        log.warning(
            "%s was already committed, with %s rows. The %s rows of this run differ from them, and "
            "were not written. Several writes of one batch need a transactionalIdPrefix each; "
            "otherwise the query is not deterministic",
            setup.what(last.key),
            f"{last.rows:,}",
            f"{rows:,}",
        )


def _new(key: BatchKey, last: Decision | None, results: Sequence[TaskResult]) -> Decision:
    left_out = [each.task for each in results if each.rows and each.token is None]
    if left_out:
        raise StateMismatchError(
            f"batch {key.batch}: {tasks_text(left_out)} wrote nothing, because the batch was "
            f"committed, but another driver has committed another batch since. Nothing of this "
            f"attempt is visible. Let only one driver run the query, and run it again"
        )
    partitions = {each.partitions for each in results if each.partitions}
    if len(partitions) > 1:
        raise StateMismatchError(
            f"batch {key.batch}: the number of partitions of the state topic changed while the "
            f"tasks wrote ({', '.join(map(str, sorted(partitions)))}). Nothing of this attempt is "
            f"visible; run the query again: the replay writes the batch"
        )
    tokens = sorted(each.token for each in results if each.token is not None)
    attempts = [0 if last is None else last.most_attempts, *(each.attempt for each in results)]
    return Decision(
        key=key,
        partitions=next(iter(partitions), 0 if last is None else last.partitions),
        tasks=len(results),
        most_tasks=max(len(results), 0 if last is None else last.most_tasks),
        most_attempts=max(attempts),
        rows=sum(each.rows for each in results),
        checksum=sum(each.checksum for each in results) % _MODULUS,
        tokens=tuple(tokens),
    )


def _replaces_lost(
    last: Decision,
    lost: Sequence[int],
    results: Sequence[TaskResult],
    markers: Mapping[int, Marker],
) -> bool:
    """Return whether the tasks in *lost* have now written exactly the rows that are missing.

    So it is if each task with a marker has the same rows as before, and all tasks together have. A
    task that had no rows before may have some of the missing ones.
    """
    by_task = {each.task: each for each in results}
    return (
        len(results) == last.tasks
        and sum(each.rows for each in results) == last.rows
        and sum(each.checksum for each in results) % _MODULUS == last.checksum
        and all(task in by_task and by_task[task].token is not None for task in lost)
        and all(each.task in lost or each.task in markers for each in results if each.rows)
        and all(
            task in by_task
            and (by_task[task].rows, by_task[task].checksum) == (marker.rows, marker.checksum)
            for task, marker in markers.items()
        )
        and len(lost) + len(markers) == len(last.tokens)
    )


def _apply_on_partial_commit(
    setup: Setup,
    key: BatchKey,
    last: Decision,
    results: Sequence[TaskResult],
    lost: Sequence[int],
    markers: Mapping[int, Marker],
) -> Decision:
    """Return the decision that ``onPartialCommit`` asks for, or raise PartialCommitError."""
    visible = sum(each.rows for each in markers.values())
    missing = last.rows - visible
    found = (
        f"a part of {setup.what(key)} is visible: {visible:,} rows of "
        f"{tasks_text(sorted(markers))}; "
        f"{missing:,} rows of {tasks_text(lost)} are lost, because their transactions timed out "
        f"before they were committed. The replay has another layout ({len(results)} tasks instead "
        f"of {last.tasks}, or other rows in them), so the missing rows alone cannot be committed"
    )
    match setup.on_partial_commit:
        case OnPartialCommit.SKIP:
            log.warning("%s. onPartialCommit is skip: the missing rows stay lost", found)
            return replace(
                last, tokens=tuple(each for each in last.tokens if each.task not in lost)
            )
        case OnPartialCommit.DUPLICATE:
            log.warning("%s. onPartialCommit is duplicate: all rows are committed again", found)
            return _new(key, last, results)
        case OnPartialCommit.FAIL:
            raise PartialCommitError(
                f"{found}. {setup.once_more(key)} with the parallelism that it had; or set "
                f"onPartialCommit to duplicate (the visible rows are then duplicated), or to skip "
                f"(the missing rows then stay lost)"
            )
