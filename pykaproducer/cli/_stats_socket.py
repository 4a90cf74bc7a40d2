"""``--stats-socket``: where a command listens, so that ``pykaproducer top`` can watch it."""

from __future__ import annotations

import argparse
from typing import Any

from pykaproducer.cli.common import UserError
from pykaproducer.stats import default_stats_socket

_NONE = "none"


def add_stats_socket(parser: argparse.ArgumentParser) -> None:
    """The option."""
    parser.add_argument(
        "--stats-socket",
        metavar="PATH",
        help='where "pykaproducer top" can watch it (%%p: the process id); default: where top '
        "looks; none: nowhere",
    )


def with_stats_socket(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """*settings* with the setting ``stats_socket`` that ``--stats-socket`` asks for.

    The default is a convenience: where there is no directory for it, the command goes on without.
    """
    path = options.stats_socket
    if settings.get("stats_socket") is not None:
        if path is not None:
            raise UserError("the socket is named twice: --stats-socket, -X stats_socket")
        return settings
    if path == _NONE:
        return settings
    if path is None:
        try:
            path = default_stats_socket()
        except OSError:
            return settings
    elif not path:
        raise UserError("--stats-socket: it must not be empty")
    return {**settings, "stats_socket": path}
