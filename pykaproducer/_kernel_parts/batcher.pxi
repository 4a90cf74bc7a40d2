# Batching for one broker: when a batch is due, and which rows it takes.

from collections import OrderedDict
from heapq import heapify, heappop, heappush

#: Number of batches of a producer id that a broker remembers for each partition.
cdef int _REMEMBERED = 5
#: Maximum number of buffers that Batcher.is_small() adds up.
cdef int _FEW_BUFFERS = 16
#: With at most this many open buffers, messages that arrive now are soon in turn, and cost little.
cdef int _FEW_IN_TURN = 16
#: How long before its deadline a lingering message is sent, at most half of its time (seconds).
cdef double _MARGIN = 0.2
#: Number of timers below which outdated ones are not pruned.
cdef Py_ssize_t _FEW_TIMERS = 64


@cython.final
cdef class Batcher:
    """The partition buffers of one broker, ordered by when their batches are due.

    A partition buffer's batch is due when it is full in bytes or in messages, has lingered long
    enough (*linger*, seconds), is needed by a flush, or is a retry. *batch_size*: its maximum size
    in bytes before compression. *batch_messages*: its maximum number of messages, 0 for no limit.
    *sealed_limit*: maximum number of unanswered batches of a buffer.
    """

    cdef double linger
    cdef public Py_ssize_t batch_size
    cdef readonly int64_t batch_messages
    cdef public Py_ssize_t sealed_limit
    # Buffers with pending items that have not failed; changed by this class only.
    cdef readonly dict waiting
    # Waiting buffers that may send a batch now; the next in turn is first.
    cdef object in_turn
    # The number of these, and of those of them that need not linger.
    cdef Py_ssize_t n_open, n_ready
    # Bytes of the slices in the open buffers.
    cdef Py_ssize_t nbytes
    # When the other open buffers have lingered long enough. An entry is valid while its buffer is
    # open and its time matches the buffer's first item.
    cdef readonly list timers
    cdef Py_ssize_t prune_above
    cdef int64_t entries, round

    def __init__(self, *, double linger, Py_ssize_t batch_size, int64_t batch_messages,
                 Py_ssize_t sealed_limit):
        self.linger = linger
        self.batch_size = batch_size
        self.batch_messages = batch_messages or (1 << 31) - 1
        self.sealed_limit = sealed_limit
        self.waiting = {}
        self.in_turn = OrderedDict()
        self.timers = []
        self.prune_above = _FEW_TIMERS

    # -- what is pending ---------------------------------------------------------------------

    def fills(self, Py_ssize_t size):
        """Return whether the next request is full: waiting would not make it larger.

        That is the case if a batch is full or already sealed, or if *size* bytes are pending.
        """
        return self.n_ready > 0 or self.nbytes >= size

    def many_fill(self, Py_ssize_t size):
        """Return whether many buffers fill the next request of *size* bytes, each with one batch.

        As the buffers take turns, messages that arrive now could not be in it.
        """
        if self.nbytes < size or self.n_open <= _FEW_IN_TURN:
            return False
        for buffer in self.in_turn:
            size -= size_of_next(self, <BufferState>buffer)
            if size <= 0:
                return True
        return False

    def is_small(self, Py_ssize_t limit):
        """Return whether at most *limit* bytes are pending.

        Also False if there are too many buffers to add up cheaply.
        """
        cdef Py_ssize_t total = 0
        if len(self.waiting) > _FEW_BUFFERS:
            return False
        for buffer in self.waiting:
            total += (<BufferState>buffer).n_bytes
        return total <= limit

    def add(self, BufferState buffer not None, item, double now):
        """Put *item* into *buffer*: a Slice, a Batch or a Backlog."""
        add_item(self, buffer, item, now)

    def add_new(self, list items not None):
        """Put new slices into their buffers. Return the items that are not ordinary, in order.

        *items*: pairs of a buffer and a slice. Those of a buffer that has failed, or is not
        attached yet, are left to the caller.
        """
        cdef list others = []
        cdef BufferState buffer
        cdef Slice part
        for item in items:
            buffer, part = item
            if buffer.failing or not buffer.attached:
                others.append(item)
            else:
                add_item(self, buffer, part, since(self, part))
        return others

    def lingers_since(self, item, double now):
        """Return since when *item* lingers, which arrives now. A retry does not linger."""
        return since(self, <Slice>item) if type(item) is Slice and not item.level else now

    # -- when it is due ----------------------------------------------------------------------

    def reschedule(self, BufferState buffer not None):
        """Update the schedule after *buffer* has changed: its items, its batches, or a failure.

        The cost does not depend on the number of buffers.
        """
        reschedule(self, buffer)

    def _prune_timers(self):
        """Remove outdated timers, so that each open buffer has at most one.

        :meth:`next_due` removes those at the head of the heap, but is not called without a
        connection. During an outage, each message that arrives and expires may add one.
        """
        cdef dict kept = {}
        cdef BufferState buffer
        for entry in self.timers:
            buffer = <BufferState>entry[2]
            if buffer.timer != <double>entry[0]:
                continue
            if buffer.open:
                kept[buffer] = entry
            else:
                buffer.timer = -1
        self.timers = list(kept.values())
        heapify(self.timers)
        self.prune_above = max(_FEW_TIMERS, 2 * len(self.timers))

    cpdef next_due(self):
        """Return when the next buffer is due: 0 for at once, None if none may send."""
        cdef BufferState buffer
        cdef double due
        if self.n_ready:
            return 0.0
        while self.timers:
            entry = self.timers[0]
            due = <double>entry[0]
            buffer = <BufferState>entry[2]
            if buffer.open and due == <double>buffer.enqueued_at[0] + self.linger:
                return due
            heappop(self.timers)
            if buffer.timer == due:
                buffer.timer = -1
        return None

    # -- the next request --------------------------------------------------------------------

    def due(self, double now, *, bint flushing):
        """Yield the buffers of the next request, each once; none if none is due.

        If one is due, all buffers that may send are included: one request for all partitions costs
        the broker less than a request for each.

        The buffers take turns. Each yielded buffer moves to the end, so a caller that stops because
        the request is full continues from there with the next request. Without that, a few busy
        buffers would fill every request.
        """
        if self.begin_round(now, flushing=flushing):
            while (buffer := next_in_turn(self)) is not None:
                yield buffer

    def begin_round(self, double now, *, bint flushing):
        """Begin a request if one is due: each open buffer has a turn. Return whether it is."""
        due = self.next_due()
        if due is None or not (flushing or <double>due <= now):
            return False
        self.round += 1
        return True

    def stays_first(self, BufferState buffer not None):
        """Keep *buffer* first for the next request, as it did not fit into this one."""
        if buffer.open:
            self.in_turn.move_to_end(buffer, last=False)

    def put_back(self, BatchState batch not None):
        """Put back *batch*, just sealed, as the first of the next request: it did not fit."""
        (<object>batch.buffer).put_back(batch)
        reschedule(self, batch.buffer)
        self.stays_first(batch.buffer)

    def size_of_next(self, BufferState buffer not None):
        """Estimate the size of the next batch of *buffer*, before compression."""
        return size_of_next(self, buffer)

    def take(self, BufferState buffer not None):
        """Return the next batch of *buffer*: a sealed one, or claimed slices for a new one.

        The list is empty if the pending items have expired. In each case, the caller calls
        :meth:`reschedule` afterwards.
        """
        head = buffer.pending[0]
        if isinstance(head, BatchState):
            drop_head(buffer)
            return head
        return take_slices(self, buffer)


cdef double since(Batcher self, Slice part) noexcept:
    """Return since when *part* lingers: since its chunk was opened, in which it has waited.

    Earlier if a row would expire otherwise: it is sent _MARGIN before its deadline.
    """
    cdef double opened = part.chunk.opened
    cdef double deadline = part.chunk.earliest / <double>_NS
    return min(opened, deadline - min(_MARGIN, (deadline - opened) / 2) - self.linger)


cdef int add_item(Batcher self, BufferState buffer, item, double now) except -1:
    cdef Py_ssize_t i
    cdef bint earlier = buffer.pending and now < <double>buffer.enqueued_at[0]
    add_to_buffer(buffer, item, now)
    # Those before it are sent with it. They stay sorted, so few of them are passed each time.
    for i in range(len(buffer.pending) - 2, -1, -1):
        if <double>buffer.enqueued_at[i] <= now:
            break
        buffer.enqueued_at[i] = now
    if earlier or not buffer.waiting or len(buffer.pending) == 1:
        reschedule(self, buffer)
    elif buffer.open:
        # Its first item is the same, and so are its turn and its timer.
        count_bytes(self, buffer)
        if not buffer.ready and is_ready(self, buffer):
            set_ready(self, buffer, True)
    return 0


cdef int reschedule(Batcher self, BufferState buffer) except -1:
    cdef double due
    cdef bint waiting = not buffer.failing and bool(buffer.pending)
    if waiting != buffer.waiting:
        if waiting:
            self.waiting[buffer] = None
        else:
            self.waiting.pop(buffer, None)
        buffer.waiting = waiting
    if not waiting or not may_send(self, buffer):
        close_buffer(self, buffer)
        return 0
    count_bytes(self, buffer)
    if not buffer.open:
        self.in_turn[buffer] = None
        buffer.open = True
        self.n_open += 1
    if is_ready(self, buffer):
        set_ready(self, buffer, True)
        return 0
    set_ready(self, buffer, False)
    due = <double>buffer.enqueued_at[0] + self.linger
    if buffer.timer != due:
        heappush(self.timers, (due, self.entries, buffer))
        buffer.timer = due
        self.entries += 1
        if len(self.timers) > self.prune_above:
            self._prune_timers()
    return 0


cdef int close_buffer(Batcher self, BufferState buffer) except -1:
    """Let *buffer* send nothing for now."""
    if buffer.open:
        self.in_turn.pop(buffer, None)
        buffer.open = False
        self.n_open -= 1
    set_ready(self, buffer, False)
    self.nbytes -= buffer.counted
    buffer.counted = 0
    return 0


cdef inline void set_ready(Batcher self, BufferState buffer, bint ready) noexcept:
    if buffer.ready != ready:
        buffer.ready = ready
        self.n_ready += 1 if ready else -1


cdef inline void count_bytes(Batcher self, BufferState buffer) noexcept:
    self.nbytes += buffer.n_bytes - buffer.counted
    buffer.counted = buffer.n_bytes


cdef int may_send(Batcher self, BufferState buffer) except -1:
    """Return whether *buffer* may have one more batch in flight, the first that is pending."""
    cdef int64_t number = buffer.sequencer.sealed + 1
    if not buffer.unanswered:
        return not buffer.waits_for_id and self.sealed_limit > 0
    head = buffer.pending[0]
    if buffer.sequencer.stale and type(head) is Slice:
        return False  # it starts a new epoch, after the responses to batches of the old one
    if isinstance(head, BatchState):
        number = (<BatchState>head).number
    return may_follow(self, buffer, number)


cdef int may_follow(Batcher self, BufferState buffer, int64_t number) except -1:
    """Return whether the *number*-th batch may be sent after those of *buffer* in flight."""
    cdef Py_ssize_t unanswered = len(buffer.unanswered)
    cdef BatchState oldest = <BatchState>buffer.unanswered[0]
    cdef BatchState youngest = <BatchState>buffer.unanswered[unanswered - 1]
    if buffer.waits_for_id:
        return False
    if youngest.first_sequence >= 0 and not buffer.sequencer.known:
        return False
    if oldest.first_sequence >= 0 and would_be_forgotten(number, oldest):
        return False
    return unanswered < self.sealed_limit


cdef bint would_be_forgotten(int64_t number, BatchState oldest) noexcept:
    """Return whether the *number*-th batch is too far from the *oldest* one in flight.

    A broker recognises a retried batch only among the last five batches that it appended.
    Limiting the number of batches in flight does not limit how many it appends:

    1. Batches 1 and 2 are sent. 1 is appended, but the response is an error or is lost; 2 is
       appended and confirmed.
    2. 1 is retried, and 3 is sent after it. The same happens: 3 is confirmed, 1 is not.
    3. The same happens with 4, 5 and 6. The broker now remembers 2 to 6.
    4. 1 is retried once more. It is out of order, and whether it is in the log cannot be known. It
       would have to fail, although it was delivered.

    So a batch is sent only while the broker would still remember the oldest one.
    """
    return number - oldest.number >= _REMEMBERED


cdef bint is_ready(Batcher self, BufferState buffer) except -1:
    """Return whether *buffer* need not linger."""
    if buffer.n_bytes >= self.batch_size or buffer.n_rows >= self.batch_messages:
        return True
    head = buffer.pending[0]
    return isinstance(head, BatchState) or (<Slice?>head).level > 0


cdef Py_ssize_t size_of_next(Batcher self, BufferState buffer) except -1:
    head = buffer.pending[0]
    if isinstance(head, BatchState):
        return (<BatchState>head).payload.size
    return min(buffer.n_bytes, self.batch_size)


cdef BufferState next_in_turn(Batcher self):
    """Return the next buffer of this round, and put it at the end; None: all had their turn."""
    cdef BufferState buffer
    if not self.n_open:
        return None
    buffer = <BufferState>next(iter(self.in_turn))
    if buffer.round == self.round:
        return None
    buffer.round = self.round
    self.in_turn.move_to_end(buffer)
    return buffer


cdef list take_slices(Batcher self, BufferState buffer):
    """Claim slices of *buffer*, of which the first item is one, for a new batch."""
    cdef list parts = []
    cdef Py_ssize_t room = self.batch_size, nbytes
    cdef int64_t most = self.batch_messages
    cdef uint32_t rows
    cdef Slice head, part
    while buffer.pending and most > 0:
        item = buffer.pending[0]
        if type(item) is not Slice or (parts and (<Slice>item).most):
            break
        head = <Slice>item
        nbytes, rows = head.nbytes, head.count
        try:
            parts.append(None)  # its place, before rows are claimed
            part = head.claim(room, most, len(parts) == 1)
        except MemoryError:
            if parts and parts[len(parts) - 1] is None:
                parts.pop()
            if parts:
                break  # a smaller batch
            raise
        increase(&buffer.n_bytes, head.nbytes - nbytes)
        increase(&buffer.n_rows, <int64_t>head.count - rows)
        if part is None:
            parts.pop()
        else:
            parts[len(parts) - 1] = part
            room -= part.nbytes + _RECORD_ALLOWANCE * part.count
            most -= part.count
        if head.count:
            break  # the batch is full
        drop_head(buffer)
        if head.most:
            break  # slices of a split batch are sealed alone
    set_ready(self, buffer, False)
    return parts
