"""Chance for backoffs and choices, without the state of :mod:`random`.

That state is the program's: one that seeds it wants its own numbers to come again, whatever a
producer's threads do meanwhile. The system's generator has none, so it may be asked by any thread,
and the children of a fork do not all wait for the same time.
"""

from __future__ import annotations

import random

chance = random.SystemRandom()
