# Handles: what send() returns.

cdef inline Delivery new_handle(Chunk chunk, uint32_t row):
    cdef Delivery handle = Delivery.__new__(Delivery)
    handle.chunk = chunk
    handle.row = row
    hold(&chunk.held, holders_at(chunk, row), 1)
    return handle


@cython.no_gc
@cython.freelist(512)
@cython.final
cdef class Delivery:
    """One message's future and report: returned by ``send()``, given to ``on_delivery``.

    It is a chunk and a row number, and nothing else, so that a million of them cost tens of bytes
    each and the garbage collector none. (A subclass written in Python would be tracked by it.)
    Methods that wait or make objects are written in ``delivery.py``.
    """

    cdef readonly Chunk chunk
    cdef readonly uint32_t row

    def __dealloc__(self):
        if self.chunk is not None:
            if hold(&self.chunk.held, holders_at(self.chunk, self.row), -1) == 0:
                if self.chunk.kept is not None:
                    self.chunk.kept.pop(self.row, None)

    def __init__(self):
        raise TypeError("a Delivery is made by send()")

    def __reduce__(self):
        raise TypeError("a Delivery cannot be copied or pickled: its outcome comes to this one")

    def __eq__(self, other):
        if not isinstance(other, Delivery):
            return NotImplemented
        return (<Delivery>other).chunk is self.chunk and (<Delivery>other).row == self.row

    def __hash__(self):
        return hash((id(self.chunk), self.row))

    @property
    def topic(self):
        """The topic that the message was sent to."""
        return self.chunk.topic

    @property
    def partition(self):
        """The partition, None until it has been chosen."""
        cdef int32_t partition = outcome_of(self.chunk, self.row).partition
        return None if partition < 0 else partition

    @property
    def offset(self):
        """Offset in the partition; None until delivered, -1 where the broker gave none."""
        cdef Outcome outcome = outcome_of(self.chunk, self.row)
        if outcome.flags & (SETTLED | FAILED) != SETTLED:
            return None
        return outcome.offset

    @property
    def timestamp(self):
        """Milliseconds since the epoch: the message's, or the broker's once delivered, where the
        topic says LogAppendTime."""
        return outcome_of(self.chunk, self.row).timestamp

    @property
    def key(self):
        """The serialized key: until the message is reported, and for as long as the handle lives
        if it failed; None otherwise or if there is none."""
        return payload_of(self, 0)

    @property
    def value(self):
        """The serialized value, as long as :attr:`key`."""
        return payload_of(self, 1)

    @property
    def serialized_key_size(self):
        """Bytes of the key, -1 if there is none."""
        return outcome_of(self.chunk, self.row).key_size

    @property
    def serialized_value_size(self):
        """Bytes of the value, -1 if there is none."""
        return outcome_of(self.chunk, self.row).value_size

    def settled(self):
        """Whether the message has its outcome."""
        return flags_of(self.chunk, self.row) & SETTLED != 0

    def possibly_persisted(self):
        """Whether an attempt may have put the message into the log."""
        return flags_of(self.chunk, self.row) & (POSSIBLY | CLAIMED) != 0

    def failure(self):
        """The error of a message that failed, else None; the outcome counts as told."""
        if tell(self.chunk, self.row) & FAILED:
            return error_of(self.chunk, self.row)
        return None

    def look(self):
        """As :meth:`failure`; but the outcome does not count as told."""
        if flags_of(self.chunk, self.row) & FAILED:
            return error_of(self.chunk, self.row)
        return None

    def watch(self, lock):
        """Have *lock* released when the outcome is there; False if it is there already."""
        return add_waiter(self.chunk, self.row, lock)

    def unwatch(self, lock):
        """Give up waiting."""
        if self.chunk.waiters is not None:
            drop_waiter(self.chunk, self.row, lock)

    def when_settled(self, function):
        """Have ``function(handle)`` called in the Reports thread; False if already settled."""
        return add_extra(self.chunk, self.row, function)

    # -- as concurrent.futures.Future has them -----------------------------------------------

    def result(self, timeout=None):
        """Wait for the outcome, and return where the message is.

        Args:
            timeout (float): seconds; None: until there is an outcome, which there is by the
                message's deadline. 0: do not wait.

        Returns:
            RecordMetadata: of a message that was delivered.

        Raises:
            DeliveryError: the message's own error; of which kind, its class says.
            OutcomeTimeoutError: no outcome after *timeout*; the message is still on its way. It
                is a TimeoutError, and a KafkaTimeoutError.
            CallbackThreadError: it is pending, and this is a callback or a partitioner, which
                would wait for its own thread.
            ForkedProducerError: it was pending in the parent when this process was forked; the
                outcome is known there only.
        """
        return _behaviour.result(self, timeout)

    def exception(self, timeout=None):
        """Wait for the outcome, and return the message's error, None if it was delivered.

        Args:
            timeout (float): as for :meth:`result`.

        Returns:
            DeliveryError: what :meth:`result` would raise; None: the message was delivered.

        Raises:
            OutcomeTimeoutError, CallbackThreadError, ForkedProducerError: as for :meth:`result`.
        """
        return _behaviour.exception(self, timeout)

    def done(self):
        """Whether the message has its outcome."""
        return self.settled()

    def add_done_callback(self, function):
        """Have ``function(delivery)`` called once there is an outcome: in the Reports thread, or
        at once in this one if there is one already."""
        _behaviour.add_done_callback(self, function)

    def __await__(self):
        return _behaviour.wait_in_event_loop(self)

    # -- as kafka-python's FutureRecordMetadata has them ---------------------------------------

    def get(self, timeout=None):
        """kafka-python's name for :meth:`result`.

        ``KafkaTimeoutError``, which it raises there, is a kind of error here that says either that
        there is no outcome yet (``OutcomeTimeoutError``) or that the message has failed at its own
        deadline (``DeliveryTimeoutError``).
        """
        return _behaviour.result(self, timeout)

    def add_callback(self, function, *args, **kwargs):
        """Have ``function(*args, record_metadata, **kwargs)`` called if it is delivered."""
        return _behaviour.add_callback(self, function, args, kwargs)

    def add_errback(self, function, *args, **kwargs):
        """Have ``function(*args, error, **kwargs)`` called if it fails."""
        return _behaviour.add_errback(self, function, args, kwargs)

    def add_both(self, function, *args, **kwargs):
        """``add_callback`` and ``add_errback`` with the same function."""
        _behaviour.add_callback(self, function, args, kwargs)
        return _behaviour.add_errback(self, function, args, kwargs)

    def succeeded(self):
        """Whether it is delivered."""
        return tell(self.chunk, self.row) & (SETTLED | FAILED) == SETTLED

    def failed(self):
        """Whether it has failed."""
        return tell(self.chunk, self.row) & FAILED != 0

    @property
    def is_done(self):
        """Whether it has its outcome (an attribute, as in kafka-python)."""
        return self.settled()

    @property
    def error(self):
        """The error of a failed message, else None."""
        return self.failure()

    @property
    def status(self):
        """:class:`Status`: whether the message may be, is, or is not in the log."""
        return _behaviour.status(self)

    def __repr__(self):
        return _behaviour.describe(self)


# Not methods: a method in C would cost each handle the pointer to a table of methods.
cdef uint8_t tell(Chunk chunk, uint32_t row) noexcept:
    """Return the row's flags; if it has its outcome, mark that as reported."""
    cdef uint8_t flags = flags_of(chunk, row)
    if flags & SETTLED and chunk.rows != NULL:
        or_flags(flags_at(chunk, row), TOLD)
    return flags


cdef payload_of(Delivery handle, int which):
    cdef Chunk chunk = handle.chunk
    kept = chunk.kept.get(handle.row) if chunk.kept is not None else None
    if kept is not None:
        return kept[which]
    return chunk.payload_of(handle.row, which)
