"""``pykaproducer load --dry-run``: read and encode everything, and send nothing."""

from __future__ import annotations

import argparse
from typing import Any

from pykaproducer._errors.formatting import counted
from pykaproducer._load.names import QUERIES, is_uri
from pykaproducer._load.sources import LoadSource
from pykaproducer._load.summary import Summary
from pykaproducer._load.writer import Interrupted
from pykaproducer.cli import _signals
from pykaproducer.cli._load_embedded import LoadReading
from pykaproducer.cli._load_plan import files_of, rejects_of, selection_of
from pykaproducer.cli._progress import progress
from pykaproducer.cli.common import UserError, human_bytes, settings_from
from pykaproducer.config import Config

#: Number of messages to show, and of the characters of each part.
_MESSAGES = 3
_CHARACTERS = 300


def dry_run(options: argparse.Namespace) -> int:
    """Print the columns, the first messages and the rows that would be rejected, and why.

    Return the exit status of the load, as far as it does not depend on the cluster.
    """
    if options.format in QUERIES:
        raise UserError(f"--dry-run: reads files, not --format {options.format}")
    for name in filter(is_uri, options.source):
        raise UserError(f"--dry-run: reads files, not {name}, which only Spark reads")
    Config(**settings_from(options))
    source = files_of(options)
    rejects_of(options, dry=True)
    mapping = selection_of(options, source.schema)
    _print_columns(source)
    with _signals.counted() as signals:
        try:
            summary, rows, problem = _read(source, mapping, signals)
        except Interrupted:
            return 128 + signals.number
    print(f"{counted(rows, 'row')}, of which {summary.refused:,} would be rejected")
    for text, count in summary.reasons.values():
        print(f"  {count:,} rejected; the first: {text}")
    if problem is not None:
        print(problem)
    return int(summary.refused > 0 or problem is not None)


def _print_columns(source: LoadSource) -> None:
    from pykaproducer._load.json_text import is_json

    print(f"{counted(len(source.files), 'file')}, {human_bytes(source.size)}, with the columns:")
    for field in source.schema:
        kind = "JSON" if is_json(field.type) else str(field.type).replace("large_", "")
        print(f"  {field.name}: {kind}")


def _read(
    source: LoadSource, mapping: Any, signals: _signals.Signals
) -> tuple[Summary, int, str | None]:
    """Encode all rows. Return the rejected ones, the number of all, and why reading has ended."""
    from pykaproducer._load.cells import messages
    from pykaproducer._load.refused import RefusedRow
    from pykaproducer._load.rejects import Rejects

    rejects, summary = Rejects(None, "dry-run"), Summary()
    rows = shown = 0
    reading = LoadReading(source, mapping.columns, signals)
    with progress("read", source.size) as bar:
        for origin in reading.origins(bar):
            mapped = mapping(origin.batch)
            for message in messages(mapped.batch.slice(0, _MESSAGES - shown)):
                print("the first messages:" * (not shown), end="\n" * (not shown))
                print(f"  {_shown(message)}")
                shown += 1
            refused = [RefusedRow(rows + place, place, error) for place, error in mapped.refused]
            rejects.take(origin, refused)
            rows += origin.batch.num_rows
    rejects.finish(summary)
    return summary, rows, reading.problem


def _shown(message: Any) -> str:
    headers = [
        # The producer refuses names that are null or not UTF-8.
        (f"header {(name or b'null').decode(errors='backslashreplace')}", value)
        for name, value in message.headers
    ]
    parts = [("key", message.key), *headers, ("value", message.value)]
    return ", ".join(f"{name} {_text(value)}" for name, value in parts if value is not None)


def _text(value: bytes) -> str:
    text = value[: 4 * _CHARACTERS].decode("utf-8", "backslashreplace")
    return repr(text[:_CHARACTERS]) + "..." * (len(text) > _CHARACTERS)
