"""Chaos with transactions: ``python -m chaos --transactions``.

``play.py`` plays an act:

1. ``chaos/stage.py`` starts the brokers, and the proxies of ``watch.py`` before them.
2. ``instances.py`` starts the processes under load (``load.py``), and their successors. Each uses
   one of the ``clients.py``, and writes down every call and its outcome (``history.py``) in a way
   that survives ``kill -9``. ``points.py`` has the points at which it can be killed.
3. ``faults.py`` injects one fault after the other.
4. ``readback.py`` reads each partition twice: everything, with the markers of transactions, and
   what is committed; and the offsets of the groups.
5. ``audit.py`` compares what the producers reported with what can be read.
"""
