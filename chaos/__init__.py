"""Chaos: a producer under load, three real brokers, and faults; then an audit of the log.

``python -m chaos`` (``command.py``) plays one act (``acts.py``) for each seed; with messages
(``messages.py``), or with transactions (``transactions``):

1. ``stage.py`` starts three brokers, each reached through a fault proxy, and creates a topic.
2. ``load.py``, in a fresh process, sends numbered messages at a steady rate with one of the clients
   (``producers.py``) and records every outcome (``ledger.py``).
3. ``faults.py`` injects one fault after the other, each while batches are in flight; also into
   responses (``altered.py``), TLS (``secured.py``) and the process's memory (``shortage.py``).
4. ``readback.py`` reads the whole log with another client, bypassing the proxies.
5. ``audit.py`` compares the outcomes with the log.
"""
