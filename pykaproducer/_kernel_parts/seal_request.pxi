# Sealing a request: one call for all its ordinary batches.

#: Bytes that a request has for each batch in addition to the batch: its partition and its length.
BATCH_OVERHEAD = 16
#: The bit of a batch's attributes that marks it as part of a transaction (KIP-98).
TRANSACTIONAL = 0x10
cdef Py_ssize_t _BATCH_OVERHEAD = BATCH_OVERHEAD


@cython.final
cdef class RequestSealer:
    """Seals batches of new messages, each with the next sequence numbers of its partition.

    *batcher*: of the broker. *batch_type*: the class of batches. *checksum*: as for
    :func:`encode_batch`. *compressor*: ``None``, or an object with ``compress`` and ``attribute``.
    *metrics*: a :class:`~pykaproducer._pipeline.metrics.ProducerMetrics`. *transactional*: the
    batches belong to transactions. Then only a partition whose sequencer has the very object
    :attr:`transaction` as its producer id is sealed here.
    """

    cdef Batcher batcher
    cdef object batch_type, checksum, compress, metrics
    cdef int attributes
    cdef bint idempotent, transactional
    #: The ProducerId of the open transaction; None if none is open.
    cdef public object transaction
    #: Bytes left in the request.
    cdef public Py_ssize_t room
    #: Number of batches sealed so far.
    cdef readonly int64_t sealed_so_far
    #: The buffer in hand when :meth:`seal` returned or raised.
    cdef readonly BufferState buffer
    # The statistics of the last batch's topic, which may be forgotten between two requests.
    cdef str topic
    cdef SampledStat records, batches, compression

    def __init__(self, Batcher batcher not None, batch_type, checksum, compressor, metrics, *,
                 bint idempotent, bint transactional=False):
        self.batcher = batcher
        self.batch_type = batch_type
        self.checksum = checksum
        self.compress = None if compressor is None else compressor.compress
        self.attributes = 0 if compressor is None else compressor.attribute
        if transactional:
            self.attributes |= TRANSACTIONAL
        self.metrics = metrics
        self.idempotent = idempotent
        self.transactional = transactional

    def begin(self, Py_ssize_t room):
        """Begin a request of at most *room* bytes."""
        self.room = room
        self.topic = None

    def seal(self, list batches not None, double now, *, bint only_next=False):
        """Seal a batch of each ordinary buffer in turn, as far as they fit, into *batches*.

        Returns the first buffer that is not ordinary, for the caller to handle before it calls this
        again; None when the request is complete. A buffer is ordinary if new messages are first in
        it, and its sequence numbers are valid. With *only_next*, the next buffer is returned in
        each case. Raises MemoryError if there is no memory for a batch of :attr:`buffer`: its
        unsettled rows are pending again, and no sequence number was used.
        """
        cdef BufferState buffer
        while True:
            buffer = self.buffer = next_in_turn(self.batcher)
            if buffer is None or only_next or not self.is_ordinary(buffer):
                return buffer
            if not self.fits(buffer, batches) or not self.seal_next(buffer, batches, now):
                return None

    def fits(self, BufferState buffer not None, list batches not None):
        """Return whether *buffer*'s next batch fits behind *batches*. If not, it stays first."""
        if not batches or self.compress is not None \
                or size_of_next(self.batcher, buffer) <= self.room:
            return True
        self.batcher.stays_first(buffer)
        return False

    cdef bint is_ordinary(self, BufferState buffer) except -1:
        head = buffer.pending[0]
        if type(head) is not Slice or (<Slice>head).level or (<Slice>head).most:
            return False
        if not self.idempotent:
            return True
        if buffer.sequencer.producer is None or buffer.sequencer.stale:
            return False
        return not self.transactional or buffer.sequencer.producer is self.transaction

    def seal_next(self, BufferState buffer not None, list batches not None, double now):
        """Seal the next batch of *buffer*, and add it to *batches* unless it does not fit.

        *buffer* starts with a slice, and has a producer id if that is needed. Returns whether there
        may be room for more. Raises MemoryError as :meth:`seal`.
        """
        cdef BatchState batch
        cdef list parts
        self.find_statistics(buffer.topic)      # first, as this may raise
        parts = take_slices(self.batcher, buffer)
        if parts:
            batch = self.sealed(buffer, parts, batches)
            if len(batches) > 1 and batch.payload.size > self.room:
                batches.pop()
                self.batcher.put_back(batch)
                return False
            self.count(batch, now)
            self.room -= batch.payload.size + _BATCH_OVERHEAD
        # If this raises, the batch is sent all the same.
        reschedule(self.batcher, buffer)
        return True

    cdef BatchState sealed(self, BufferState buffer, list parts, list batches):
        """Make a batch of *parts*, claimed slices of *buffer*, and add it to *batches*.

        It is unanswered from now on.
        """
        cdef SequencerState sequencer = buffer.sequencer
        cdef RecordBatch payload
        cdef BatchState batch
        cdef Slice part
        cdef BatchHeader header
        cdef int level = 0, retries_used = 0
        header.attributes = self.attributes
        header.producer_id = header.producer_epoch = -1
        header.base_sequence = -1
        if self.idempotent:
            header.producer_id = sequencer.producer.producer_id
            header.producer_epoch = sequencer.producer.epoch
            header.base_sequence = sequencer.next_sequence
        for part in parts:
            level = max(level, part.level)
            retries_used = max(retries_used, part.retries_used)
        try:
            payload = encode_parts(parts, self.checksum, self.compress, &header)
            batch = self.batch_type(buffer.topic, buffer.partition, payload, parts, header.count,
                                    level)
            batches.append(batch)
            try:
                buffer.unanswered.append(batch)
            except MemoryError:
                batches.pop()
                raise
        except MemoryError:
            for part in parts:
                part.unclaim()
            buffer.requeue_front(parts)
            raise
        batch.buffer = buffer
        batch.retries_used = retries_used
        if self.idempotent:
            batch.producer_id = header.producer_id
            batch.producer_epoch = header.producer_epoch
            batch.first_sequence = take_sequences(sequencer, header.count)
            batch.number = sequencer.sealed
        self.sealed_so_far += 1
        return batch

    def split(self, BatchState batch not None):
        """Seal the rows of *batch* again, as two batches over its sequence numbers.

        *batch* has several rows, and was not appended. Returns None if a row has an outcome: then
        its number would be missing. Raises MemoryError; then *batch* is as it was.
        """
        cdef list halves, made = []
        cdef BatchState half
        cdef BatchHeader header
        cdef int64_t rows = 0
        halves = claimed_again(batch.parts, batch.count, (batch.count + 1) // 2)
        if halves is None:
            return None
        try:
            while halves:
                parts = halves.pop(0)
                header.attributes = self.attributes
                header.producer_id = batch.producer_id
                header.producer_epoch = batch.producer_epoch
                header.base_sequence = (batch.first_sequence + rows) % (<int64_t>1 << 31)
                payload = encode_parts(parts, self.checksum, self.compress, &header)
                half = self.batch_type(batch.topic, batch.partition, payload, parts, header.count,
                                       batch.level)
                half.retries_used = batch.retries_used
                half.producer_id = batch.producer_id
                half.producer_epoch = batch.producer_epoch
                half.first_sequence = header.base_sequence
                half.number = batch.number
                half.buffer = batch.buffer
                made.append(half)
                rows += header.count
        finally:
            unpin_all(halves)
        self.sealed_so_far += len(made) - 1
        return made

    cdef int find_statistics(self, str topic) except -1:
        if self.topic is not topic:
            stats = self.metrics.topic(topic)
            self.records = stats.records
            self.batches = stats.batches
            self.compression = stats.compression
            self.topic = topic
        return 0

    cdef int count(self, BatchState batch, double now) except -1:
        """Do what ``ProducerMetrics.batch_sealed()`` does, with the statistics found before."""
        count_sealed(batch.payload, batch.count, now, self.records, self.batches, self.compression,
                     self.metrics.largest)
        if not batch.level:
            (<SampledStat?>self.metrics.queue).record(
                now, now - (<Slice>batch.parts[0]).chunk.opened, batch.count)
        return 0


cdef list claimed_again(list parts, int64_t count, int64_t most):
    """Claim the *count* rows of *parts*, which are claimed, for batches of *most* rows each.

    Returns the slices of each batch, or None if a row has an outcome. Leaves *parts* as they are.
    """
    cdef list found = [], last = []
    cdef Slice part, rest, piece
    cdef int64_t room = 0
    try:
        for part in parts:
            rest = part.chunk.pick(part.row_numbers(), part.partition)
            while rest.count:
                if room == 0:
                    last = []
                    found.append(last)
                    room = most
                last.append(None)       # its place, before rows are claimed
                piece = rest.claim((<Py_ssize_t>1 << 62), room)
                if piece is None:
                    last.pop()
                    break
                last[len(last) - 1] = piece
                room -= piece.count
                count -= piece.count
    except MemoryError:
        unpin_all(found)
        raise
    if count:
        unpin_all(found)
        return None
    return found


cdef unpin_all(list batches):
    """Unpin the slices of *batches*, which are not encoded after all."""
    cdef list parts
    for parts in batches:
        for part in parts:
            if part is not None:
                unpin((<Slice>part).chunk)
