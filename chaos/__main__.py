"""``python -m chaos``: faults on real brokers under load, and an audit. See ``README.rst``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from chaos import command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, and return the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="python -m chaos", description=command.HELP)
    command.add_arguments(parser)
    arguments = parser.parse_args(words)
    command.check(parser, arguments)
    return command.run(arguments, words)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    sys.exit(main())
