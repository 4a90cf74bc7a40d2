"""The stages of the pipeline.

A message passes ``dispatcher`` → ``topic`` → ``partition`` → ``broker`` → ``bridge`` → the wire,
and returns through ``broker`` to ``reports``, or is retried through ``retry``. ``metadata`` has the
view of the cluster. ``wiring`` creates the stages and connects them. ``worker`` has their base
class: a thread with an inbox.
"""
