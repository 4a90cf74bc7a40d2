"""What a load does, as the command line has it, and how it ended; embedded and on Spark."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from pykaproducer._load.grammar import SelectionError
from pykaproducer._load.select import Selection
from pykaproducer._load.summary import Summary
from pykaproducer.cli.common import UserError
from pykaproducer.config import Config


@dataclass(frozen=True)
class Outcome:
    """How a load ended."""

    summary: Summary
    #: Of the producer that sent: how the cluster is reached.
    config: Config
    seconds: float
    #: What could not be read, or None.
    trouble: str | None = None
    #: The number of the signal that ended it, or 0.
    signal: int = 0


def selection_of(options: argparse.Namespace, schema: Any) -> Any:
    """The mapping of a source with this ``pyarrow.Schema``, as ``--select`` has it."""
    try:
        if options.select is None:
            selection = Selection.default(schema)
        else:
            selection = Selection.parse(options.select)
        mapping = selection.bind(schema)
    except SelectionError as error:
        raise UserError(f"--select: {error}") from None
    by_row = "topic" in [name for name, _, _ in mapping.made]
    if options.topic is None and not by_row:
        raise UserError("no topic: -t TOPIC, or topic=COLUMN in --select")
    if options.topic is not None and by_row and options.select is not None:
        raise UserError(
            f"-t {options.topic} and topic= in --select: one of them says where rows go"
        )
    return mapping


def rejects_of(options: argparse.Namespace) -> Any:
    """Where refused rows are kept, or None."""
    from pykaproducer._load.rejects import RejectsDirectory

    if options.rejects is None:
        return None
    if options.rejects in options.source:
        raise UserError(
            f"--rejects {options.rejects}: it is the source, too; keep those of this load elsewhere"
        )
    directory = RejectsDirectory.of(options.rejects)
    try:
        directory.prepare()
    except (OSError, ValueError) as error:
        raise UserError(f"--rejects {options.rejects}: {error}") from None
    return directory
