# What is counted of batches, requests and responses. The other statistics: _pipeline/metrics.py.

cdef class TopicMetrics:
    """The statistics of one topic."""

    cdef readonly SampledStat records, batches, compression, retries, errors

    def __init__(self, double window, int samples):
        self.records = SampledStat(window, samples)
        self.batches = SampledStat(window, samples)
        self.compression = SampledStat(window, samples)
        self.retries = SampledStat(window, samples)
        self.errors = SampledStat(window, samples)


cdef class ConnectionMetrics:
    """The statistics of the connections to one broker."""

    cdef readonly SampledStat outgoing, incoming, latency, throttle, made, lost

    def __init__(self, double window, int samples):
        self.outgoing = SampledStat(window, samples)
        self.incoming = SampledStat(window, samples)
        self.latency = SampledStat(window, samples)
        self.throttle = SampledStat(window, samples)
        self.made = SampledStat(window, samples)
        self.lost = SampledStat(window, samples)


cdef class RequestMetrics:
    """The statistics of one producer that compiled steps record. Extended by ProducerMetrics."""

    cdef readonly SampledStat delivery, request, queue, requests, largest
    cdef readonly dict partitions       # bytes of delivered messages by (topic, partition)
    cdef public object trace

    def __init__(self, double window, int samples):
        self.delivery = SampledStat(window, samples, True)
        self.request = SampledStat(window, samples, True)
        self.queue = SampledStat(window, samples, True)
        self.requests = SampledStat(window, samples)
        self.largest = SampledStat(window, samples)
        self.partitions = {}

    def batch_sealed(self, BatchState batch not None, double now, TopicMetrics topic not None):
        """Count a batch of *topic* that is ready to be sent, for the first time or for a retry."""
        count_sealed(self, batch, now, topic)

    def request_written(self, ProduceRequest request not None, double now, Py_ssize_t size,
                        ConnectionMetrics link not None):
        """Count *request*, *size* bytes in all, which is being written."""
        count_request(self, request, now, size, link)

    def request_answered(self, double sent, double now, double throttle,
                         ConnectionMetrics link not None):
        """Count the response to a request that was given to the connection at *sent*."""
        count_response(self, sent, now, throttle, link)


cdef void count_sealed(RequestMetrics metrics, BatchState batch, double now,
                       TopicMetrics topic) noexcept:
    cdef RecordBatch payload = batch.payload
    cdef double plain = payload.plain_size
    topic.records.record(now, batch.count, 1)
    topic.batches.record(now, payload.size, 1)
    topic.compression.record(now, payload.size / plain if plain else 1.0, 1)
    metrics.largest.record(now, payload.largest_record, 1)
    if not batch.level:
        metrics.queue.record(now, now - (<Slice>batch.parts[0]).chunk.opened, batch.count)


cdef void count_request(RequestMetrics metrics, ProduceRequest request, double now,
                        Py_ssize_t size, ConnectionMetrics link) noexcept:
    metrics.requests.record(now, request.rows, 1)
    link.outgoing.record(now, size, 1)


cdef void count_response(RequestMetrics metrics, double sent, double now, double throttle,
                         ConnectionMetrics link) noexcept:
    metrics.request.record(now, now - sent, 1)
    link.latency.record(now, now - sent, 1)
    link.throttle.record(now, throttle, 1)


cdef int count_delivered(RequestMetrics metrics, BufferState buffer, double now, int64_t rows,
                         int64_t nbytes) except -1:
    """Count delivered messages of a partition, which has statistics already."""
    (<SampledStat?>metrics.partitions[buffer.place]).record(now, nbytes / <double>rows, rows)
    return 0
