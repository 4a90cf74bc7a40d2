"""Resolve Kafka's jars with jgo: a script for a separate process.

So the download has a time limit and ends with the process that needs it, and jgo's imports and log
messages do not affect that process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jgo


def main() -> None:
    """Run ``_resolve.py ENDPOINT OUTPUT``: write the paths of the jars as a JSON list."""
    endpoint, output = sys.argv[1:]
    # Not an environment that exists: a download that was interrupted leaves one without some jars.
    environment = jgo.build(endpoint, update=True)
    # jgo classifies most of Kafka's jars as modules; all of them belong on the class path.
    Path(output).write_text(json.dumps([str(jar) for jar in environment.all_jars]))


if __name__ == "__main__":
    main()
