"""The machine and the software versions, recorded with the figures."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import peers
from pykaproducer.testing import _jars


def describe(command: Sequence[str], clients: Sequence[str]) -> dict[str, Any]:
    """Return the command, the machine and the versions of all components."""
    return {
        "command": " ".join(command),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "load_average": os.getloadavg(),
        },
        "python": sys.version,
        "switch_interval": sys.getswitchinterval(),
        "kafka": _jars.KAFKA_VERSION,
        "commit": _commit(),
        "clients": {client: peers.TABLE[client].version() for client in clients},
    }


def headline(description: dict[str, Any]) -> str:
    """Return the description in three lines."""
    machine = description["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in description["clients"].items())
    return (
        f"{description['command']}\n"
        f"{versions}; Python {platform.python_version()}; one broker, Apache Kafka "
        f"{description['kafka']}, on the same machine\n"
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory'] / 2**30:.0f} GiB, "
        f"{machine['system']}; load before: {machine['load_average'][0]:.2f}"
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _commit() -> str | None:
    """Return the source tree's commit, marked if the tree has changes; None if it is unknown."""
    root = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True
        )
    except FileNotFoundError:
        return None
    return found.stdout.strip() or None
