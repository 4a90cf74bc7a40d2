"""Decisions, without threads, queues, sockets, clocks, randomness or logging.

Events and ``now`` come in, effects go out; the stages in ``_pipeline`` perform them.
"""
