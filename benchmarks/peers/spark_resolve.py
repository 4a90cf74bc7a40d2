"""Ask jgo for the jars of Spark's own Kafka sink: a script, run in a separate process.

Their dependencies are excluded, because Spark includes them in its own versions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from jgo.maven import MavenContext

#: The timeout of one answer of the repository (seconds).
_TIMEOUT = 60


def main() -> None:
    """``spark_resolve.py OUTPUT COORDINATE ...``: write the paths of the jars as a JSON list.

    The exit status is 3 if the repository does not have all of them.
    """
    output, *coordinates = sys.argv[1:]
    context = MavenContext(timeout=_TIMEOUT)
    jars = []
    for coordinate in coordinates:
        group, name, version = coordinate.split(":")
        artifact = context.project(group, name).at_version(version).artifact()
        try:
            jars.append(str(artifact.resolve()))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            sys.exit(3)
    Path(output).write_text(json.dumps(jars))


if __name__ == "__main__":
    main()
