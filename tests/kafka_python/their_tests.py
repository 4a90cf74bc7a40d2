"""kafka-python's own tests of settings for idempotence and transactions, with the import changed.

They are in its repository only, not in its source distribution, whose tests are run by
``tests/peers``. So this is not part of the suite, but is run by hand with a checkout::

    python -m tests.kafka_python.their_tests path/to/kafka-python

Tests are left out that look at attributes of kafka-python's own transaction manager.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

FILE = "test/producer/test_kip679_config.py"
SELECTED = "Strict or (Conflicts and not all_string)"
IMPORT, OURS = "from kafka import KafkaProducer\n", "from pykaproducer import KafkaProducer\n"


def main(checkout: pathlib.Path) -> int:
    """Run the tests, and return pytest's exit status."""
    text = (checkout / FILE).read_text()
    assert text.count(IMPORT) == 1
    with tempfile.TemporaryDirectory() as into:
        changed = pathlib.Path(into) / pathlib.Path(FILE).name
        changed.write_text(text.replace(IMPORT, OURS))
        command = [sys.executable, "-m", "pytest", "-v", "-c", os.devnull, "-p", "no:cacheprovider"]
        return subprocess.run(
            [*command, "--rootdir", into, "-k", SELECTED, str(changed)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
