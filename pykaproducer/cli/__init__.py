"""The command line: ``pykaproducer`` and ``python -m pykaproducer``.

Each command is a module with ``add_parser(subparsers)`` and ``run(options) -> exit status``. A
user's mistake is one line on standard error and status 2, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pykaproducer._version import VERSION
from pykaproducer.cli import cluster, demo, produce
from pykaproducer.cli.common import UserError

_EXAMPLES = """\
examples:
  pykaproducer demo                                    see it work, on a broker of its own
  pykaproducer cluster start                           a real Kafka broker until Ctrl-C
  pykaproducer produce -t events access.log            one message a line
  zcat old.gz | pykaproducer produce -t events -X compression_type=lz4 --rejects lost.log
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="pykaproducer",
        description="A Kafka producer made of threads that each do one thing.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pykaproducer {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (demo, produce, cluster):
        module.add_parser(commands)
    options = parser.parse_args(argv)
    try:
        status: int = options.run(options)
    except UserError as error:
        print(f"pykaproducer: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
