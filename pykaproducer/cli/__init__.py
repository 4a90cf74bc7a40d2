"""The command line: ``pykaproducer`` and ``python -m pykaproducer``.

Each command is a module with ``add_parser(subparsers)`` and ``run(options) -> exit status``. A
user's mistake produces a line on standard error and status 2, never a traceback.
"""

from __future__ import annotations

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
    settings,
    top,
    topics,
    trace,
    transactions,
    verify,
)
from pykaproducer.cli._parser import Parser
from pykaproducer.cli.common import CommandError, notify, parser_like
from pykaproducer.errors import PykaproducerError

#: The commands, in the order in which the help lists them.
COMMANDS = (
    demo,
    produce,
    load,
    perf,
    verify,
    topics,
    transactions,
    top,
    trace,
    cluster,
    settings,
    completion,
)

_EXAMPLES = """\
examples:
  pykaproducer demo                     demonstrate it on a temporary Kafka
  pykaproducer cluster start            run a real Kafka broker until Ctrl-C
  pykaproducer produce -t events access.log
                                        send each line as a message
  pykaproducer load trips.parquet -t trips
                                        send each row as a message, as JSON
  pykaproducer perf -t scratch          measure throughput and latency
  pykaproducer verify -t scratch        check for lost or duplicated messages
  tail -f access.log | pykaproducer produce -t events --rejects lost.log \\
      --bootstrap-servers kafka-1:9092 -X linger_ms=50
  pykaproducer produce -t events --config client.properties access.log

The default of --bootstrap-servers is localhost:9092. For more examples, see
"pykaproducer COMMAND --help".
"""


#: Errors raised when standard output cannot take more data.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    try:
        try:
            return _run(argv)
        finally:
            # Flush here, where an error can be caught, instead of at interpreter exit.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 1
    except OSError as error:
        if error.errno not in _FULL:
            raise
        notify(f"standard output: {error.strerror}")
        _discard_output()
        return 1


def _run(argv: Sequence[str] | None) -> int:
    parser = Parser(
        prog="pykaproducer",
        description="Command line tools of the pykaproducer library for Apache Kafka.",
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
        notify(str(error))
        return error.status
    except PykaproducerError as error:
        notify(str(error))
        return 1
    except KeyboardInterrupt:
        notify("interrupted")
        return 130
    return status


def _discard_output() -> None:
    """Redirect standard output to /dev/null: the final flush at exit would raise again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
