"""``--stats-socket``: the socket on which ``pykaproducer top`` can watch a command."""

from __future__ import annotations

import argparse
from typing import Any

from pykaproducer.cli.common import UserError
from pykaproducer.stats import default_stats_socket

_NONE = "none"


def add_stats_socket(parser: argparse.ArgumentParser) -> None:
    """Add ``--stats-socket``."""
    parser.add_argument(
        "--stats-socket",
        metavar="PATH",
        help='Unix socket for "pykaproducer top" (default: where top looks); %%p is replaced by '
        'the process id; "none" disables it',
    )


def with_stats_socket(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Return *settings* with ``stats_socket`` set according to ``--stats-socket``.

    The default is a convenience: if its directory cannot be created, there is no socket.
    """
    path = options.stats_socket
    if settings.get("stats_socket") is not None:
        if path is not None:
            raise UserError("the socket is given twice: by --stats-socket and by -X; remove one")
        return settings
    if path == _NONE:
        return settings
    if path is None:
        try:
            path = default_stats_socket()
        except OSError:
            return settings
    elif not path:
        raise UserError("--stats-socket: must not be empty")
    return {**settings, "stats_socket": path}
