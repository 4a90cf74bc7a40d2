"""The producer's ordering, retries and sequence numbers against a simulated cluster.

Every stage of the product except the sockets runs here, without threads: the model decides which
stage runs next, what each broker does with each request, and how time passes. ``machine.py`` has
the rules and the promises, ``cluster.py`` the brokers and their logs, and ``stages.py`` the
pipeline without threads.

The long run: ``pytest tests/model --hypothesis-profile=nightly``.
"""
