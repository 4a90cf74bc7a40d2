"""Ask jgo for Kafka's jars: a script, run in a process of its own.

So a download has a time limit and ends with the process that wants it, and what jgo imports
and logs stays out of that process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jgo


def main() -> None:
    """``_resolve.py ENDPOINT OUTPUT``: write the paths of the jars as a JSON list."""
    endpoint, output = sys.argv[1:]
    environment = jgo.build(endpoint)
    # Most of Kafka's jars are modules to jgo; they belong on the class path all the same.
    Path(output).write_text(json.dumps([str(jar) for jar in environment.all_jars]))


if __name__ == "__main__":
    main()
