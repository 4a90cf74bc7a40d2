# Handles: what send() returns.

cdef object _behaviour = None

def set_behaviour(behaviour):
    """Where a Delivery's methods that wait or make objects are written: ``delivery.py``."""
    global _behaviour
    _behaviour = behaviour


cdef inline Delivery new_handle(Chunk chunk, uint32_t row):
    cdef Delivery handle = Delivery.__new__(Delivery)
    handle.chunk = chunk
    handle.row = row
    hold(&chunk.held, chunk.holders_at(row), 1)
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
            if hold(&self.chunk.held, self.chunk.holders_at(self.row), -1) == 0:
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
        cdef int32_t partition = self.chunk.outcome_of(self.row).partition
        return None if partition < 0 else partition

    @property
    def offset(self):
        """Offset in the partition; None until delivered, -1 where the broker gave none."""
        cdef Outcome outcome = self.chunk.outcome_of(self.row)
        if outcome.flags & (SETTLED | FAILED) != SETTLED:
            return None
        return outcome.offset

    @property
    def timestamp(self):
        """Milliseconds since the epoch: the message's, or the broker's once delivered, where the
        topic says LogAppendTime."""
        return self.chunk.outcome_of(self.row).timestamp

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
        return self.chunk.outcome_of(self.row).key_size

    @property
    def serialized_value_size(self):
        """Bytes of the value, -1 if there is none."""
        return self.chunk.outcome_of(self.row).value_size

    def settled(self):
        """Whether the message has its outcome."""
        return self.chunk.flags_of(self.row) & SETTLED != 0

    def possibly_persisted(self):
        """Whether an attempt may have put the message into the log."""
        return self.chunk.flags_of(self.row) & (POSSIBLY | CLAIMED) != 0

    def failure(self):
        """The error of a message that failed, else None; the outcome counts as told."""
        cdef uint8_t *flags = self.chunk.flags_at(self.row)
        if flags[0] & SETTLED:
            flags[0] |= TOLD
        if flags[0] & FAILED:
            return self.chunk.errors[self.chunk.outcome_of(self.row).error]
        return None

    def watch(self, lock):
        """Have *lock* released when the outcome is there; False if it is there already."""
        return self.chunk.add_waiter(self.row, lock)

    def unwatch(self, lock):
        """Give up waiting."""
        if self.chunk.waiters is not None:
            self.chunk.drop_waiter(self.row, lock)

    def when_settled(self, function):
        """Have ``function(handle)`` called in the Reports thread; False if already settled."""
        return self.chunk.add_extra(self.row, function)

    # -- as concurrent.futures.Future has them -----------------------------------------------

    def result(self, timeout=None):
        """Wait for the outcome; returns :class:`RecordMetadata` or raises the message's error.

        *timeout* in seconds; :class:`TimeoutError` if there is no outcome by then.
        """
        return _behaviour.result(self, timeout)

    def exception(self, timeout=None):
        """Wait for the outcome; returns the message's error, None if it was delivered."""
        return _behaviour.exception(self, timeout)

    def done(self):
        """Whether the message has its outcome."""
        return self.settled()

    def add_done_callback(self, function):
        """Have ``function(delivery)`` called once there is an outcome: in the Reports thread, or
        at once in this one if there is one already."""
        _behaviour.add_done_callback(self, function)

    def __await__(self):
        return _behaviour.wait_in_event_loop(self).__await__()

    # -- as kafka-python's FutureRecordMetadata has them ---------------------------------------

    def get(self, timeout=None):
        """kafka-python's name for :meth:`result`; raises ``KafkaTimeoutError`` at the timeout."""
        return _behaviour.get(self, timeout)

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
        return self.settled() and self.failure() is None

    def failed(self):
        """Whether it has failed."""
        return self.settled() and self.failure() is not None

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


# Not a method: a method in C would cost each handle the pointer to a table of methods.
cdef payload_of(Delivery handle, int which):
    cdef Chunk chunk = handle.chunk
    kept = chunk.kept.get(handle.row) if chunk.kept is not None else None
    if kept is not None:
        return kept[which]
    return chunk.payload_of(handle.row, which)
