"""The exactly-once protocol of the Spark sink, without Spark.

Tasks write the rows of a batch, on any machines. Each task writes its rows in a separate
transaction, and leaves it open. The driver then records the decision to commit all of these
transactions, in one further transaction, and commits them. A driver that finds the decision after
a crash completes it.

To follow a batch, read the modules in this order:

1. :mod:`~pykaproducer._exactly_once.task`: a task looks for a decision about its batch, writes its
   rows (:mod:`~pykaproducer._exactly_once.rows`) and a marker, and returns the token of its
   transaction.
2. :mod:`~pykaproducer._exactly_once.commit`: the driver decides and commits, or aborts the batch.
3. :mod:`~pykaproducer._exactly_once.fates`: the driver ends the transactions of a decision.
4. :mod:`~pykaproducer._exactly_once.recovery`: what a replay decides about a batch that an earlier
   driver had decided to commit.

:mod:`~pykaproducer._exactly_once.names` has the names of all ids and groups,
:mod:`~pykaproducer._exactly_once.records` the format of the state in Kafka, and
:mod:`~pykaproducer._exactly_once.state` reads and writes it.
:mod:`~pykaproducer._exactly_once.setup` has the options,
:mod:`~pykaproducer._exactly_once.errors` the errors. In tests, a process fails at a point of
:mod:`~pykaproducer._exactly_once.points`.
"""
