"""Arrow batches into messages, every row accounted for.

What the Spark sink (:mod:`pykaproducer.spark`) and the command ``pykaproducer load`` share. In the
order in which a row meets them:

* only of the command: ``sources`` (which batches there are; ``files`` and ``formats`` find and
  read them), ``select`` (which columns make a message: ``grammar`` reads the text, ``binding``
  holds it against the columns, ``mapping`` makes messages, ``encoders`` and ``avro`` make bytes),
  and ``job`` (the load as a whole);
* ``writer`` (through a producer, and each row's outcome), ``refused`` (what becomes of a row that
  was not delivered; of the command: ``rejects``), ``summary`` (what is told of the others);
  ``cells`` and ``checksum`` look at single messages, where that is asked for.
"""
