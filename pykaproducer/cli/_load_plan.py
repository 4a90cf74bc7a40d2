"""The options and the outcome of a load, embedded or on Spark."""

from __future__ import annotations

import argparse
import contextlib
import os
from dataclasses import dataclass
from typing import Any

from pykaproducer._load.grammar import SelectionError
from pykaproducer._load.select import Selection
from pykaproducer._load.sources import LoadSource, Options, SourceError, open_source
from pykaproducer._load.summary import Summary
from pykaproducer.cli._progress import Progress, progress
from pykaproducer.cli.common import UserError
from pykaproducer.config import Config


@dataclass(frozen=True)
class Outcome:
    """The outcome of a load."""

    summary: Summary
    #: Configuration of the producer, needed to connect for verification.
    config: Config
    seconds: float
    #: Why the load stopped early, or None.
    problem: str | None = None
    #: Number of the signal that interrupted the load, or 0.
    signal: int = 0


def files_of(options: argparse.Namespace) -> LoadSource:
    """Open the files that are the source."""
    try:
        return open_source(
            options.source,
            Options(
                options.format,
                options.delimiter,
                options.infer_types,
                options.encoding,
                whole_lines=options.select is None,
            ),
        )
    except SourceError as error:
        raise UserError(str(error)) from None


def selection_of(options: argparse.Namespace, schema: Any) -> Any:
    """Return the mapping that ``--select`` gives for a source with this ``pyarrow.Schema``."""
    try:
        if options.select is None:
            selection = Selection.default(schema)
        else:
            selection = Selection.parse(options.select)
        mapping = selection.bind(schema)
    except SelectionError as error:
        raise UserError(f"--select: {str(error).removeprefix('selection: ')}") from None
    by_row = "topic" in [name for name, _, _ in mapping.made]
    if options.topic is None and not by_row:
        raise UserError("no topic given: use -t TOPIC, or topic=COLUMN in --select")
    if options.topic is not None and by_row and options.select is not None:
        raise UserError(f"-t {options.topic} conflicts with topic= in --select; remove one of them")
    return mapping


def rejects_of(options: argparse.Namespace, *, dry: bool = False) -> Any:
    """Prepare and return the directory for rejected rows, or None. *dry*: do not create it."""
    from pykaproducer._load.rejects import RejectsDirectory

    if options.rejects is None:
        return None
    if os.path.realpath(options.rejects) in map(os.path.realpath, options.source):
        raise UserError(f"--rejects {options.rejects}: is also the source; name another directory")
    directory = RejectsDirectory.of(options.rejects)
    try:
        if dry:
            directory.check()
        else:
            directory.prepare()
    except (OSError, ValueError) as error:
        raise UserError(f"--rejects {options.rejects}: {error}") from None
    return directory


def load_progress(
    options: argparse.Namespace, size: int | None
) -> contextlib.AbstractContextManager[Progress]:
    """Show the progress of a load: also in a log, where a line each ten seconds says how far."""
    return progress(f"rows to {options.topic or 'their topics'}", size, in_lines=True)
