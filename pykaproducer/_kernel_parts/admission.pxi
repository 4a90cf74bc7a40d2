# Admission: send(), up to the row in the open chunk of its topic.

cdef struct Payload:
    Py_buffer views[3]
    int open                            # bit i: views[i] must be released
    const uint8_t *data[3]              # key, value, headers
    Py_ssize_t size[3]                  # -1: None
    Py_ssize_t total                    # key and value
    Py_ssize_t headers_size


@cython.final
cdef class TopicSlot:
    """One topic's open chunk, and the full ones that wait before it."""

    cdef readonly str topic
    cdef Chunk chunk
    cdef list full
    cdef bint announced                 # the dispatcher has been told and has not come yet


cdef class Admission:
    """The front door: ``send()`` in one compiled call. ``producer.Producer`` derives from it.

    A subclass gives what is not per message: ``_announce(slot)`` (tell the dispatcher that a
    topic has an open chunk), ``_start()`` (first use), ``_refuse()`` (raise: no more messages are
    taken), ``_wait_for_space(bytes, until)``, ``_check_topic(topic)``, ``_too_large(...)``,
    ``_serialize(...)``.
    """

    cdef Budget budget
    cdef dict slots
    cdef object announce
    cdef object home                    # goes along with each chunk, for its handles
    cdef bint unconfirmed
    cdef object fake_clock              # None: the machine's
    cdef int64_t timeout                # ns
    cdef Py_ssize_t max_request_size
    cdef int64_t serial
    cdef readonly int64_t accepted      # messages, ever
    cdef public bint _ready             # started, and taking messages
    cdef bint serializing
    cdef cython.pymutex lock

    def _open(self, Budget budget, announce, home, *, double delivery_timeout,
              Py_ssize_t max_request_size, bint serializing, bint unconfirmed, fake_clock=None):
        """Set up, empty: at construction, and again in a forked child.

        *delivery_timeout* in seconds; *fake_clock*: a clock object to ask instead of the
        machine's, for tests.
        """
        self.budget = budget
        self.slots = {}
        self.announce = announce
        self.home = home
        self.unconfirmed = unconfirmed
        self.timeout = <int64_t>(delivery_timeout * _NS)
        self.max_request_size = max_request_size
        self.serializing = serializing
        self.fake_clock = fake_clock
        self.serial = 0
        self.accepted = 0

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None,
             *, on_delivery=None, delivery_timeout_ms=None):
        """Accept one message and return its :class:`Delivery` at once.

        Never waits for the network. With less than the message's bytes left of ``buffer_memory``
        it waits for space up to ``max_block_ms`` (KIP-286).

        Args:
            topic (str): topic name.
            value: bytes-like, or None (a tombstone); anything with ``value_serializer`` set.
            key: bytes-like, or None; decides the partition. Anything with ``key_serializer`` set.
            headers: list of ``(str, bytes or None)``, or None.
            partition (int): send it there; None: the partitioner decides.
            timestamp_ms (int): milliseconds since the epoch; None: now.
            on_delivery: ``on_delivery(error, delivery)``, called once in the Reports thread; error
                is None if the message is in the log.
            delivery_timeout_ms (int): for this message, instead of ``delivery_timeout_ms``.

        Raises:
            TypeError, ValueError: it can never be right (type, topic name, negative partition,
                larger than ``max_request_size``); nothing is accepted.
            BufferFullError: no space for ``max_block_ms``; in a callback, at once.
            ProducerClosedError: after ``close()``.
            ProducerBrokenError: a stage died of a bug; the cause is chained.
        """
        cdef TopicSlot slot
        cdef PyObject *found
        cdef Payload payload
        cdef Py_ssize_t cost, reserved = 0
        cdef int64_t now, timeout, timestamp
        cdef int32_t wanted = -1
        cdef Delivery handle
        cdef object encoded = None
        cdef object until = None
        if not self._ready:
            self._start()
        found = PyDict_GetItem(self.slots, topic)
        slot = <TopicSlot>found if found != NULL else self.new_slot(topic)
        if self.serializing:
            key, value = self._serialize(topic, key, value, headers)
        if partition is not None:
            wanted = checked_int(partition, "partition", 0, 0x7fffffff)
        timeout = self.timeout
        if delivery_timeout_ms is not None:
            timeout = 1000000 * checked_int(delivery_timeout_ms, "delivery_timeout_ms", 1,
                                            0x7fffffff)
        timestamp = -1
        if timestamp_ms is not None:
            timestamp = checked_int(timestamp_ms, "timestamp_ms", 0, 1 << 62)
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        payload.open = 0
        try:
            payload_take(&payload, 0, key, "key")
            payload_take(&payload, 1, value, "value")
            payload.headers_size = 0
            if headers is not None:
                encoded = self.encode_headers(headers)
                payload.data[2] = <const uint8_t *>PyBytes_AS_STRING(encoded)
                payload.headers_size = len(<bytes>encoded)
            cost = payload.total + payload.headers_size
            if cost + _HEADER + _RECORD > self.max_request_size:
                self._too_large(topic, cost + _HEADER + _RECORD)
            now = self.now()
            while True:
                while not self.budget.take(cost + _ROW_COST):
                    until = self._wait_for_space(cost + _ROW_COST, until)
                    if not self._ready:
                        self._start()   # closed, broken or forked while it waited
                reserved = cost + _ROW_COST
                # From here to the append no Python code runs: a KeyboardInterrupt finds the
                # message either not accepted, or accepted and on its way.
                handle = self.append(slot, &payload, wanted, timestamp, now, timeout, on_delivery)
                if handle is not None:
                    reserved = 0        # from now on it is the chunk that gives it back
                    break
                self.budget.give_back(reserved)
                reserved = 0
                self._start()           # closed or broken while a serializer ran
        finally:
            payload_release(&payload)
            if reserved:
                self.budget.give_back(reserved)
        if not slot.announced:
            slot.announced = True
            try:
                self.announce(slot)
            except BaseException:
                # The message is accepted: if this is a KeyboardInterrupt it is told of once more,
                # and if that fails too, by the next send, or flush.
                slot.announced = False
                self.announce(slot)
                slot.announced = True
                raise
        return handle

    cdef int64_t now(self) except -1:
        """The monotonic clock, ns."""
        if self.fake_clock is None:
            return kernel_clock(0)
        return <int64_t>(self.fake_clock.monotonic() * _NS)

    cdef int64_t since_epoch(self) except -1:
        """What to add to ``now()`` for the time since the epoch. Taken once a chunk: a look at
        one clock costs about a tenth of a ``send()``."""
        if self.fake_clock is None:
            return kernel_clock(1) - kernel_clock(0)
        return <int64_t>((self.fake_clock.time() - self.fake_clock.monotonic()) * _NS)

    cdef TopicSlot new_slot(self, topic):
        cdef TopicSlot slot
        self._check_topic(topic)
        slot = TopicSlot.__new__(TopicSlot)
        slot.topic = str.__str__(topic)     # of a member of a StrEnum: its text
        slot.full = []
        return <TopicSlot>self.slots.setdefault(slot.topic, slot)

    cdef Delivery append(self, TopicSlot slot, Payload *payload, int32_t partition,
                         int64_t timestamp, int64_t now, int64_t timeout, on_delivery):
        """Append one message to the topic's open chunk; None if messages are not taken any more."""
        cdef Delivery handle = Delivery.__new__(Delivery)
        cdef Chunk spare = None
        cdef Chunk chunk
        cdef Py_ssize_t size = payload.total + payload.headers_size
        cdef bint done
        while True:
            if slot.chunk is None or slot.chunk.count >= _CHUNK_ROWS \
                    or slot.chunk.nbytes + size > _CHUNK_BYTES:
                spare = self.new_chunk(slot)
            with self.lock:
                if not self._ready:
                    return None
                if spare is not None and (
                        slot.chunk is None or slot.chunk.count >= _CHUNK_ROWS
                        or slot.chunk.nbytes + size > _CHUNK_BYTES):
                    if slot.chunk is not None:
                        slot.full.append(slot.chunk)
                    slot.chunk = spare
                chunk = slot.chunk
                done = chunk is not None and append_row(
                    chunk, payload, partition,
                    timestamp if timestamp >= 0 else (now + chunk.since_epoch) // 1000000,
                    now + timeout, <PyObject *>on_delivery)
                if done:
                    handle.chunk = chunk
                    handle.row = chunk.count - 1
                    hold(&chunk.held, &chunk.rows[handle.row].holders, 1)
                    self.accepted += 1
            if done:
                return handle
            if chunk is not None:
                raise MemoryError("no memory for a message, although buffer_memory allows it")
            # The dispatcher took the chunk between our look and our lock: look again.

    cdef Chunk new_chunk(self, TopicSlot slot):
        cdef Chunk chunk = Chunk.__new__(Chunk)
        chunk.topic = slot.topic
        chunk.budget = self.budget
        chunk.errors = []
        chunk.home = self.home
        chunk.since_epoch = self.since_epoch()
        chunk.opened = self.now() / <double>_NS
        chunk.unconfirmed = self.unconfirmed
        self.serial += 1
        chunk.serial = self.serial
        return chunk

    def _take(self, TopicSlot slot):
        """Close the topic's open chunk and hand over all that wait, in order."""
        cdef Chunk chunk
        cdef list chunks, fresh = []
        with self.lock:
            slot.announced = False
            chunks = slot.full
            slot.full = fresh
            chunk = slot.chunk
            slot.chunk = None
        if chunk is not None and chunk.count:
            chunks.append(chunk)
        for chunk in chunks:
            chunk.unreported = chunk.count
            chunk.closed = True
        return chunks

    def _take_all(self):
        """The chunks of every topic, taken."""
        return [chunk for slot in list(self.slots.values()) for chunk in self._take(slot)]

    def _unannounced(self):
        """Slots with rows that the dispatcher may not have been told of: a KeyboardInterrupt has
        cut the announcement short, or the thread that makes it has not come so far."""
        with self.lock:
            pass                        # whoever appends at this moment is seen
        return [slot for slot in list(self.slots.values())
                if (<TopicSlot>slot).chunk is not None]

    cdef bytes encode_headers(self, headers):
        """The headers in wire form; nothing if there are none."""
        cdef bytearray out = bytearray()
        cdef tuple fixed
        if not isinstance(headers, (list, tuple)):
            raise TypeError(f"headers must be a list of pairs (str, bytes), "
                            f"not {type(headers).__name__}")
        fixed = tuple(headers)          # it might change while it is encoded
        if not fixed:
            return b""
        put_int(out, len(fixed))
        for position, header in enumerate(fixed):
            try:
                name, data = header
            except (TypeError, ValueError):
                raise TypeError(f"headers[{position}] must be a pair (str, bytes), "
                                f"not {type(header).__name__}") from None
            if not isinstance(name, str):
                raise TypeError(f"headers[{position}]: the name must be str, "
                                f"not {type(name).__name__}")
            try:
                name = name.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"headers[{position}]: the name {name!r} cannot be written as "
                                 f"UTF-8") from error
            put_int(out, len(name))
            out += name
            if data is None:
                put_int(out, -1)
            elif isinstance(data, (bytes, bytearray, memoryview)):
                data = bytes(data)
                put_int(out, len(data))
                out += data
            else:
                raise TypeError(f"headers[{position}]: the value must be bytes or None, "
                                f"not {type(data).__name__}")
        return bytes(out)


cdef put_int(bytearray out, int64_t n):
    cdef uint8_t buffer[10]
    cdef uint8_t *end = put_varint(buffer, n)
    out += PyBytes_FromStringAndSize(<char *>buffer, end - buffer)


cdef int64_t checked_int(object number, str name, int64_t least, int64_t most) except? -1:
    cdef int64_t n
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name} must be an int, not {type(number).__name__}")
    if not least <= number <= most:
        raise ValueError(f"{name} must be between {least} and {most}, not {number}")
    n = number
    return n


cdef int payload_take(Payload *payload, int which, object data, str name) except -1:
    if which == 0:
        payload.total = 0
    if data is None:
        payload.data[which] = NULL
        payload.size[which] = -1
        return 0
    if PyBytes_CheckExact(data):
        payload.data[which] = <const uint8_t *>PyBytes_AS_STRING(data)
        payload.size[which] = len(<bytes>data)
    elif isinstance(data, (bytes, bytearray, memoryview)):
        try:
            PyObject_GetBuffer(data, &payload.views[which], PyBUF_SIMPLE)
        except BufferError as error:
            raise ValueError(f"{name} must be contiguous in memory") from error
        payload.open |= 1 << which
        payload.data[which] = <const uint8_t *>payload.views[which].buf
        payload.size[which] = payload.views[which].len
    else:
        raise TypeError(f"{name} must be bytes, bytearray, memoryview or None, "
                        f"not {type(data).__name__}; set {name}_serializer to send other types")
    payload.total += payload.size[which]
    return 0


cdef void payload_release(Payload *payload) noexcept:
    if payload.open & 1:
        PyBuffer_Release(&payload.views[0])
    if payload.open & 2:
        PyBuffer_Release(&payload.views[1])


cdef bint append_row(Chunk chunk, Payload *payload, int32_t partition, int64_t timestamp,
                     int64_t deadline, PyObject *callback) noexcept:
    """Copy one message into the chunk; false if there is no memory."""
    cdef bint with_callback = callback != <PyObject *>None
    cdef Py_ssize_t size = payload.total + payload.headers_size
    cdef Row *row = chunk.new_row(with_callback)
    cdef uint8_t *p
    cdef int i
    if row == NULL:
        return False
    p = chunk.room(size)
    if p == NULL:
        return False
    row.key = p
    row.key_size = <int32_t>payload.size[0]
    if payload.size[0] > 0:
        memcpy(p, payload.data[0], payload.size[0])
        p += payload.size[0]
    row.value = p
    row.value_size = <int32_t>payload.size[1]
    if payload.size[1] > 0:
        memcpy(p, payload.data[1], payload.size[1])
        p += payload.size[1]
    row.headers = p
    row.headers_size = <int32_t>payload.headers_size
    if payload.headers_size:
        memcpy(p, payload.data[2], payload.headers_size)
    row.timestamp = timestamp
    row.deadline = deadline
    row.partition = partition
    row.block = <uint16_t>(chunk.n_blocks - 1)
    row.flags = row.holders = 0
    row.error = 0
    if with_callback:
        Py_INCREF(<object>callback)
        chunk.callbacks[chunk.count] = callback
    if deadline < chunk.earliest:
        chunk.earliest = deadline
    chunk.nbytes += size
    chunk.count += 1
    return True
