"""State machines, without threads, queues, sockets, clocks, randomness or logging.

They take events and ``now``, and return effects, which the stages in ``_pipeline`` perform.
"""
