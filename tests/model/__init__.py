"""The producer's ordering, retries and sequence numbers against a simulated cluster.

Every stage of the product but the sockets, without threads: the model decides who runs next, what
each broker does with each request, how time passes. ``machine.py`` has the rules and the promises,
``cluster.py`` the brokers and their logs, ``stages.py`` the pipeline without threads.

The long run: ``pytest tests/model --hypothesis-profile=nightly``.
"""
