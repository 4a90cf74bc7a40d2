"""Summaries of micro-batches on their way from the sink to a :class:`ProgressListener`: as files.

The sink leaves a file in a directory of the listener before Spark considers the batch written, and
Spark reports its progress after that. So the file is there when the listener receives the progress.
The listener removes it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import shutil
from typing import Any

from pykaproducer._load.summary import Summary, Written
from pykaproducer.delivery import TopicPartition

log = logging.getLogger("pykaproducer.spark")

#: Files in a directory. The oldest are removed if the listener does not.
MOST = 1000


def leave(directory: str, run: str, batch: int, summary: Summary) -> None:
    """Leave the summary of a batch for the listener. A failure is logged: the batch is written.

    Args:
        directory: of the listener. Nothing happens if it is gone: the listener is closed, or its
            program has ended.
        run: the id of the query's run. A restarted query may write a batch again before Spark has
            reported the first time.
        batch: its number.
        summary: what was written.
    """
    path = pathlib.Path(directory) / f"{run}-{batch}.json"
    try:
        path.write_text(_as_json(summary))
        _remove_oldest(path.parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()  # it may be incomplete
        log.warning("batch %s is written, but its listener will not know it: %s", batch, error)


def take(directory: str, run: str, batch: int) -> Summary | None:
    """Return the summary of a batch, and remove it. None if the sink has not left one.

    Those of earlier batches are removed, too: Spark did not report their progress.
    """
    found = None
    for path in pathlib.Path(directory).glob(f"{run}-*.json"):
        number = int(path.stem.rpartition("-")[2])
        if number <= batch:
            with contextlib.suppress(FileNotFoundError):  # the sink has removed it
                if number == batch:
                    found = _from_json(path.read_text())
                path.unlink()
    return found


def remove(directory: str, process: int) -> None:
    """Remove the directory, if called in the *process* that owns it, and not in its child."""
    if os.getpid() != process:
        return
    # A sink may be writing a file: (1) the files are listed, (2) the sink adds one, (3) the
    # directory cannot be removed, as it is not empty. After renaming it the sink adds none.
    renamed = f"{directory}-closed"
    with contextlib.suppress(FileNotFoundError):
        os.rename(directory, renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def _remove_oldest(directory: pathlib.Path) -> None:
    if len(os.listdir(directory)) > MOST:
        by_age = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in by_age[:-MOST]:
            path.unlink()


def _as_json(summary: Summary) -> str:
    return json.dumps(
        {
            "partitions": [[*place, *written] for place, written in summary.partitions.items()],
            "refused": summary.refused,
            "reasons": summary.reasons,
            "repeated": summary.repeated,
            "troubles": summary.troubles,
        }
    )


def _from_json(text: str) -> Summary:
    fields: dict[str, Any] = json.loads(text)
    return Summary(
        partitions={
            TopicPartition(topic, partition): Written(*written)
            for topic, partition, *written in fields["partitions"]
        },
        refused=fields["refused"],
        reasons={kind: (text, count) for kind, (text, count) in fields["reasons"].items()},
        repeated=fields["repeated"],
        troubles=fields["troubles"],
    )
