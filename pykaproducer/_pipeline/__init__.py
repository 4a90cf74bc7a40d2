"""The stages, in the order in which a message passes them.

``dispatcher`` → ``topic`` → ``partition`` → ``broker`` → ``bridge`` → the wire, and back through
``broker`` to ``reports``, or round again through ``retry``. ``metadata`` knows the cluster,
``wiring`` makes the stages and connects them, ``worker`` is what each of them is: a thread and its
inbox.
"""
