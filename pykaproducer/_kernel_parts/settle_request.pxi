# Settling the confirmed batches of a request in one call.

@cython.final
cdef class RequestSettler:
    """Settles confirmed batches.

    *batcher*: of the broker. *moved*: buffers that are released after a response. *errors*: the
    last errors of partitions, by (topic, partition), and *rejected*: those of topics, from which
    confirmed ones are removed. *metrics*: of the producer.
    """

    cdef Batcher batcher
    cdef set moved
    cdef dict errors, rejected
    cdef RequestMetrics metrics

    def __init__(self, Batcher batcher not None, set moved not None, dict errors not None,
                 dict rejected not None, RequestMetrics metrics not None):
        self.batcher = batcher
        self.moved = moved
        self.errors = errors
        self.rejected = rejected
        self.metrics = metrics

    def settle(self, ProduceRequest request not None, double now):
        """Settle the batches of *request*, which is confirmed, unless a buffer is not ordinary.

        Returns the places of the batches that were left as they are, because their buffer has
        failed or is to be released. Afterwards ``request.reports`` has the slices of settled rows,
        which the caller is to report, and ``request.finished`` the chunks that are complete and
        have nothing to report. Both have None in the remaining places. Wakes no thread. Raises
        ValueError if *request* is not confirmed, and MemoryError; what was settled before that is
        in the lists.
        """
        if not request.confirmed:
            raise ValueError("the response does not confirm the request")
        request.prepare_settling()
        settle_request(self, request, now)
        return request.left


cdef int settle_request(RequestSettler self, ProduceRequest request, double now) except -1:
    """Settle as RequestSettler.settle(). Runs no Python code if no row has an outcome yet."""
    cdef Py_ssize_t place, i, settled, n_reports = 0, n_finished = 0
    cdef list reports = request.reports
    cdef BatchState batch
    cdef Result *result
    cdef int64_t rows, nbytes
    cdef Slice part
    for place in range(len(request.batches)):
        batch = <BatchState>request.batches[place]
        if batch.buffer is None or batch.buffer.failing or batch.buffer in self.moved:
            request.left.append(place)
            continue
        list_all_rows(batch.parts)
        settle_batch(self, batch)
        # Nothing below may raise, because settled rows must be reported.
        result = &request.results[place]
        rows = nbytes = 0
        settled = deliver_slices(batch.parts, result.offset, result.timestamp,
                                 self.metrics.delivery, now, reports, n_reports, &rows, &nbytes)
        if rows:
            count_delivered(self.metrics, batch.buffer, now, rows, nbytes)
        for i in range(n_reports, settled):
            part = <Slice>reports[i]
            reports[i] = None
            if needs_report(part.chunk):
                reports[n_reports] = part
                n_reports += 1
                if part.chunk.n_settled == part.chunk.count:
                    begin_reporting(part.chunk)
            elif part.finish():
                request.finished[n_finished] = part.chunk
                n_finished += 1
    return 0


cdef int settle_batch(RequestSettler self, BatchState batch) except -1:
    """Update what is known of the partition of *batch*, which is confirmed."""
    cdef BufferState buffer = batch.buffer
    if self.metrics.partitions.get(buffer.place) is None:
        self.metrics.partition(batch.topic, batch.partition)
    drop(buffer.unanswered, batch)
    if batch.first_sequence >= 0:
        record_delivered(buffer.sequencer, batch.number)
    reschedule(self.batcher, buffer)
    if self.errors:                     # as LastErrors.delivered()
        self.errors.pop(buffer.place, None)
    if self.rejected:
        self.rejected.pop(batch.topic, None)
    return 0


cdef bint needs_report(Chunk chunk) noexcept:
    """Return whether settled rows of *chunk* are to be reported.

    If not, no thread is to be woken, no callback to be run, and no failure to be remembered.
    """
    return has_waiters(chunk) or has_failures(chunk) or has_callbacks(chunk)


cdef void begin_reporting(Chunk chunk) noexcept:
    """Note that *chunk*, whose rows are settled, waits for Reports only.

    So callers need not wait until it is reported: see is_usual().
    """
    if chunk.origin is not None and not chunk.reporting:
        chunk.reporting = True
        atomic_add(&chunk.origin.reporting, 1)
