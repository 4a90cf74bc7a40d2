"""Random numbers for backoffs and choices, without the global state of :mod:`random`.

That state belongs to the application. If the application seeds it, it expects reproducible numbers,
which a producer's threads must not disturb. The system's generator has no state, so any thread may
use it, and forked children do not all draw the same backoff.
"""

from __future__ import annotations

import random

system_random = random.SystemRandom()
