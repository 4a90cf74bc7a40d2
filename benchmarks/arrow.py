"""Arrow: ``send_arrow`` with record batches of one column, built before the clock starts.

The baseline is ``raw``: the same messages in prebuilt requests, on a bare socket.
"""

from __future__ import annotations

import argparse
import importlib.util

from benchmarks import bulk, send
from benchmarks.report import Column
from benchmarks.runner import Session

PEERS = ("raw",)

HELP = "throughput and processor time of Arrow's record batches"

COLUMNS = (
    Column("messages_per_s", "M rows/s", unit=1e6),
    Column("cpu_us", "CPU us/row"),
    Column("loop_ns", "calls ns/row", ".0f"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    bulk.add_block_options(parser)
    parser.set_defaults(outcome="arrow")


def missing() -> str | None:
    """Return what is required and missing, if anything."""
    from pykaproducer import Producer

    if importlib.util.find_spec("pyarrow") is None:
        return "pyarrow is not installed: pip install -r benchmarks/requirements.txt"
    return None if hasattr(Producer, "send_arrow") else "this pykaproducer has no send_arrow()"


def run(arguments: argparse.Namespace, session: Session) -> None:
    send.run(arguments, session)
