"""The command line: ``pykaproducer`` and ``python -m pykaproducer``.

Each command is a module with ``add_parser(subparsers)`` and ``run(options) -> exit status``. A
user's mistake is a line on standard error and status 2, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pykaproducer._version import VERSION
from pykaproducer.cli import cluster, demo, load, produce
from pykaproducer.cli.common import CommandError, parser_like, tell
from pykaproducer.errors import PykaproducerError

_EXAMPLES = """\
examples:
  pykaproducer demo                       see it work, on a Kafka broker of its own
  pykaproducer cluster start              a real Kafka broker on this machine until Ctrl-C
  pykaproducer produce -t events access.log
                                          each line a message, to localhost:9092
  pykaproducer load trips.parquet -t trips
                                          each row a message, as JSON
  tail -f access.log | pykaproducer produce -t events --bootstrap-servers kafka-1:9092 \\
      -X compression_type=lz4 -X linger_ms=50 --rejects lost.log

"pykaproducer COMMAND --help" has more of each.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    try:
        try:
            return _run(argv)
        finally:
            # Here, where it can be caught, and not when the interpreter ends.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 1


def _run(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="pykaproducer",
        description="A Kafka producer made of threads that each do one thing.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    parser.add_argument("--version", action="version", version=f"pykaproducer {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (demo, produce, load, cluster):
        module.add_parser(commands)
    options = parser.parse_args(argv)
    try:
        status: int = options.run(options)
    except CommandError as error:
        tell(str(error))
        return error.status
    except PykaproducerError as error:
        tell(str(error))
        return 1
    except KeyboardInterrupt:
        tell("interrupted")
        return 130
    return status


def _discard_output() -> None:
    """Whoever read our output has left. Python would complain of what is buffered at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
