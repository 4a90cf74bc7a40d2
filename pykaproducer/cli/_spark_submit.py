"""Script for spark-submit: ``spark-submit $(pykaproducer load --script) SOURCE -t TOPIC``.

Does the same as ``pykaproducer load --spark``, with the session that spark-submit prepares.
"""

from __future__ import annotations

import sys

from pykaproducer.cli import main
from pykaproducer.spark.load import SUBMITTED

if __name__ == "__main__":
    sys.exit(main(["load", "--spark", SUBMITTED, *sys.argv[1:]]))
