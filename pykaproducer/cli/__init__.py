"""The command line: ``pykaproducer`` and ``python -m pykaproducer``.

Each command is a module with ``add_parser(subparsers)`` and ``run(options) -> exit status``. A
user's mistake is a line on standard error and status 2, never a traceback.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from pykaproducer._version import VERSION
from pykaproducer.cli import (
    cluster,
    completion,
    demo,
    load,
    perf,
    produce,
    top,
    topics,
    trace,
    verify,
)
from pykaproducer.cli.common import CommandError, parser_like, tell
from pykaproducer.errors import PykaproducerError

#: In the order in which the help names them.
COMMANDS = (demo, produce, load, perf, verify, topics, top, trace, cluster, completion)

_EXAMPLES = """\
examples:
  pykaproducer demo                     see it work, on a Kafka of its own
  pykaproducer cluster start            a real Kafka broker until Ctrl-C
  pykaproducer produce -t events access.log
                                        each line a message
  pykaproducer load trips.parquet -t trips
                                        each row a message, as JSON
  pykaproducer perf -t scratch          how fast is it?
  pykaproducer verify -t scratch        is everything there, once, in order?
  tail -f access.log | pykaproducer produce -t events --rejects lost.log \\
      --bootstrap-servers kafka-1:9092 -X linger_ms=50
  pykaproducer produce -t events --config client.properties access.log

Without --bootstrap-servers it is localhost:9092. "pykaproducer COMMAND --help"
has more of each.
"""


#: What writing to standard output fails with when there is no room for it.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


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
    except OSError as error:
        if error.errno not in _FULL:
            raise
        tell(f"standard output: {error.strerror}")
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
    for module in COMMANDS:
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
