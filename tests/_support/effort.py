"""How much a search tries: a part in each run, everything in ``tox -e nightly``."""

from __future__ import annotations

import os

#: Whether this run may take hours.
NIGHTLY = bool(os.environ.get("PYKAPRODUCER_NIGHTLY"))
