"""Conversion of Arrow batches to messages, with an outcome for every row.

Shared by the Spark sink (:mod:`pykaproducer.spark`) and the command ``pykaproducer load``. In the
order in which they process a row:

* only for the command: ``sources`` (the batches to load; ``files`` finds the files, ``formats``
  chooses the ``reader`` of each: ``text``, ``columnar`` or ``avro_file``), ``select`` (the columns
  that make a message: ``grammar`` parses the text, ``binding`` resolves it against the columns,
  ``mapping`` makes messages, ``encoders`` and ``avro`` make bytes), and ``job`` (the load as a
  whole);
* ``writer`` (sends through a producer and collects each row's outcome), ``refused`` (handles rows
  that were not delivered; for the command: ``rejects``), ``summary`` (counts the others);
  ``cells`` and ``checksum`` process single messages, where this is needed.
"""
