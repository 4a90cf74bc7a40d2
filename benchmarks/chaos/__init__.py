"""Chaos: a producer under load, three real brokers, and faults; then an audit of the log.

``python -m benchmarks chaos`` (``command.py``) plays one act for each seed:

1. ``stage.py`` starts three brokers, each behind a fault proxy, and makes a topic.
2. ``load.py``, in a fresh process, sends numbered messages at a steady rate with one of the clients
   (``producers.py``) and writes down every outcome (``ledger.py``).
3. ``faults.py`` strikes, one fault after the other, each while batches are unanswered.
4. ``readback.py`` reads the whole log with another client, past the proxies.
5. ``audit.py`` holds the outcomes against the log.
"""
