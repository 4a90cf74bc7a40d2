# The state of a partition that compiled steps and the tables of `_machines` share.
#
# A compiled step handles the ordinary case of all partitions of a request in one call. The classes
# of `_machines` extend these and decide everything else, on the same fields. So no state is copied
# between the two: a step leaves a partition that is not in the ordinary state as it is, and returns
# it.

cdef class SequencerState:
    """The fields of a :class:`~pykaproducer._machines.sequencing.Sequencer`."""

    cdef public object producer             # a ProducerId, or None
    cdef public int64_t next_sequence
    cdef public bint stale
    cdef public object spent_id
    cdef public bint known
    cdef public int64_t sealed
    cdef public int64_t youngest_delivered
    cdef public int64_t youngest_expected

    def __init__(self, producer=None, int64_t next_sequence=0, bint known=False):
        self.producer = producer
        self.next_sequence = next_sequence
        self.known = known

    def take(self, int64_t count):
        """Take *count* sequence numbers for a batch; return the first."""
        return take_sequences(self, count)

    def delivered(self, int64_t number):
        """Record that a broker has confirmed the *number*-th batch."""
        record_delivered(self, number)


cdef inline void number_batch(SequencerState self, BatchState batch) noexcept:
    """Take the sequence numbers that *batch* was encoded with, if it has any."""
    if batch.first_sequence >= 0:
        take_sequences(self, batch.count)
        batch.number = self.sealed


cdef inline int64_t take_sequences(SequencerState self, int64_t count) noexcept:
    cdef int64_t first = self.next_sequence
    self.sealed += 1
    self.youngest_expected = self.sealed
    self.next_sequence = (first + count) % (<int64_t>1 << 31)
    return first


cdef inline void record_delivered(SequencerState self, int64_t number) noexcept:
    self.known = True
    if number > self.youngest_delivered:
        self.youngest_delivered = number


cdef class BatchState:
    """The fields of a :class:`~pykaproducer._machines.batch.Batch`."""

    cdef public str topic
    cdef public int32_t partition
    cdef public RecordBatch payload
    cdef public list parts
    cdef public int64_t count
    cdef public int level
    cdef public int retries_used
    cdef public int retried_soon
    cdef public bint possibly_persisted
    cdef public int64_t producer_id
    cdef public int producer_epoch
    cdef public int64_t first_sequence
    cdef public int64_t number
    cdef public int64_t most
    cdef public BufferState buffer

    def __init__(self, str topic, int32_t partition, RecordBatch payload, list parts, int64_t count,
                 int level, *, int64_t producer_id=-1, int producer_epoch=-1,
                 int64_t first_sequence=-1, int64_t number=0, BufferState buffer=None):
        self.topic = topic
        self.partition = partition
        self.payload = payload
        self.parts = parts
        self.count = count
        self.level = level
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.first_sequence = first_sequence
        self.number = number
        self.buffer = buffer


cdef class BufferState:
    """The fields of a :class:`~pykaproducer._machines.partition_buffer.PartitionBuffer`."""

    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly tuple place               # (topic, partition)
    cdef readonly SequencerState sequencer
    cdef readonly object pending            # deque of Slice, Batch and Backlog
    cdef int64_t n_bytes, n_rows            # changed by the owner alone, read by any thread
    cdef readonly object enqueued_at        # deque of float
    cdef public list unanswered
    cdef readonly list failed
    cdef public bint failing
    cdef public bint waits_for_id
    cdef public bint needs_backoff
    cdef public object invalid_from
    cdef public object chaser
    cdef public bint attached
    cdef public CallerPath path             # None: it was never lent to callers
    # Used by the Batcher only.
    cdef double timer                       # the latest time in its heap for this buffer; -1: none
    cdef int64_t round                      # the last request in which it had its turn
    cdef Py_ssize_t counted                 # the part of `n_bytes` that its sum includes
    cdef bint waiting, open, ready

    def __init__(self, str topic, int32_t partition, SequencerState sequencer not None):
        self.topic = topic
        self.partition = partition
        self.place = (topic, partition)
        self.sequencer = sequencer
        self.pending = deque()
        self.enqueued_at = deque()
        self.unanswered = []
        self.failed = []
        self.timer = -1

    @property
    def nbytes(self):
        return load_long(&self.n_bytes)

    @nbytes.setter
    def nbytes(self, int64_t nbytes):
        store_long(&self.n_bytes, nbytes)

    @property
    def rows(self):
        return load_long(&self.n_rows)

    @rows.setter
    def rows(self, int64_t rows):
        store_long(&self.n_rows, rows)

    def add(self, item, double now):
        """Add *item* as the youngest."""
        add_to_buffer(self, item, now)

    def drop_head(self):
        """Remove the first item, which has been taken."""
        drop_head(self)

    def requeue_front(self, list slices not None):
        """Put *slices* before the pending items."""
        cdef Slice part
        for part in reversed(slices):
            self.pending.appendleft(part)
            self.enqueued_at.appendleft(0.0)
            increase(&self.n_bytes, part.nbytes)
            increase(&self.n_rows, part.count)

    def sent(self, BatchState batch not None):
        """Record that *batch* is in flight, or sealed ahead of being sent."""
        batch.buffer = self
        self.unanswered.append(batch)

    def unpack(self):
        """If a backlog is at the front, put its first slice before it. Called by this class."""
        raise NotImplementedError


cdef int add_to_buffer(BufferState self, item, double now) except -1:
    self.pending.append(item)
    self.enqueued_at.append(now)
    if type(item) is Slice:
        increase(&self.n_bytes, (<Slice>item).nbytes)
        increase(&self.n_rows, (<Slice>item).count)
    elif not isinstance(item, BatchState):
        increase(&self.n_bytes, item.nbytes)
        increase(&self.n_rows, item.count)
        if len(self.pending) == 1:
            self.unpack()
    return 0


cdef int drop_head(BufferState self) except -1:
    self.pending.popleft()
    self.enqueued_at.popleft()
    if self.pending:
        head = self.pending[0]
        if type(head) is not Slice and not isinstance(head, BatchState):
            self.unpack()
    return 0


#: Stands for "only after a response" in WindowState.
cdef double _AFTER_RESPONSE = -1


#: Minimum timeout of a request, within the request timeout (seconds).
cdef double _MIN_REQUEST_TIMEOUT = 3
#: Allowed duration of a request, as a multiple of the last one's: see WindowState.patience().
cdef double _SPARE = 2


cdef class WindowState:
    """The fields of a :class:`~pykaproducer._machines.window.Window` on which its opening depends.

    *limit*: maximum number of requests in flight. *always*: how many may be in flight in any case.
    *pause*: the shortest time between further ones that are not full. *timeout*: how long a request
    may take (seconds).
    """

    cdef readonly int limit, always
    cdef readonly double pause, timeout
    #: Time that the last answered request took after the previous response (seconds).
    cdef public double took
    cdef public double answered_at, sealed_at
    #: Time from the sending of the last answered request to the response.
    cdef public double round_trip

    def __init__(self, int limit, int always, double pause, double timeout):
        self.limit = limit
        self.always = always
        self.pause = pause
        self.timeout = timeout

    def opens_at(self, int under_way, *, bint full):
        """Return when the next request may be sealed: 0 for now, None for after a response.

        *under_way*: number of requests that are sealed and not answered. *full*: whether the
        pending items fill a batch or a request. (With a limit of 1, a full request is sealed ahead
        and waits.)
        """
        cdef double found = opening(self, under_way, full)
        return None if found == _AFTER_RESPONSE else found

    cpdef double patience(self, double least) noexcept:
        """Return the timeout of a request whose messages' deadlines leave *least* seconds.

        It is longer on a connection that is slow but works: closing that for messages that are late
        anyway would delay the following ones even more.
        """
        return min(self.timeout, max(least, _SPARE * self.took))

    cpdef double request_deadline(self, list batches, double now):
        """Return when a request with *batches*, sent now, counts as lost if it is not answered.

        A request whose messages are about to expire does not wait long, because a silent broker
        would block its partitions. But after an outage the head of a backlog is always about to
        expire. If a request timed out with its oldest message (as in librdkafka and Kafka):

        1. the brokers are back, the oldest message has 1 ms left, and the request is sent;
        2. the message expires, the connection is considered lost, and everything is backed off;
        3. now the next messages have 1 ms left. The partition never catches up, and neither do the
           broker's other partitions.

        So each request gets _MIN_REQUEST_TIMEOUT, or more on a slow connection. This does not delay
        the expiry of messages: the dispatcher settles them in time.
        """
        cdef double found = now + self.patience(_MIN_REQUEST_TIMEOUT)
        cdef BatchState batch
        for batch in batches:
            found = max(found, oldest_deadline(batch, now + self.timeout))
        return min(found, now + self.timeout)

    def record_answer(self, double now, double sent):
        """Record that a request, sent at *sent*, was answered at *now* (monotonic seconds)."""
        record_answer(self, now, sent)


cdef double opening(WindowState self, Py_ssize_t under_way, bint full) noexcept:
    """As opens_at(); _AFTER_RESPONSE for None."""
    if under_way < min(self.always, self.limit):
        return 0
    if under_way >= max(self.always, self.limit):
        return _AFTER_RESPONSE
    if full:
        return 0
    if self.limit < self.always:
        return _AFTER_RESPONSE
    return self.sealed_at + max(self.pause, self.round_trip / self.limit)


cdef void record_answer(WindowState self, double now, double sent) noexcept:
    """Record that a request, sent at *sent*, was answered."""
    self.round_trip = now - sent
    # The broker answers in order, so it started on this request after the previous response.
    self.took = now - max(sent, self.answered_at)
    self.answered_at = now
