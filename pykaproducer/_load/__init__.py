"""Arrow batches into messages, every row accounted for.

What the Spark sink (:mod:`pykaproducer.spark`) and the command ``pykaproducer load`` share. In the
order in which a row meets them: :mod:`~pykaproducer._load.sources` (only the command: where
batches come from), :mod:`~pykaproducer._load.select` and
:mod:`~pykaproducer._load.encoders` (which columns make a message), :mod:`~pykaproducer._load.writer`
(through a producer, and each row's outcome), :mod:`~pykaproducer._load.refused` (what becomes of a
row that was not delivered), :mod:`~pykaproducer._load.summary` (what is told of the others).
"""
