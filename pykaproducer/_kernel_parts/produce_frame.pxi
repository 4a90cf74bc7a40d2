# The topics of a Produce request, around record batches that are already encoded.

#: Record batches of at most this many bytes are copied. A large one is a buffer by itself, and each
#: buffer costs more than copying this much.
COPIED_BATCH = 4096
cdef Py_ssize_t _COPIED_BATCH = COPIED_BATCH
# Upper bounds on bytes. Around all topics: their number, tagged fields.
cdef Py_ssize_t _TOPICS_OVERHEAD = 5 + 1
# Of a topic: the length of its name, the number of its partitions, tagged fields.
cdef Py_ssize_t _TOPIC_OVERHEAD = 5 + 5 + 1
# Around a record batch: its partition, its length, tagged fields.
cdef Py_ssize_t _RECORDS_OVERHEAD = 4 + 5 + 1


cdef inline uint8_t *put_length(uint8_t *p, int64_t n, int size, bint flexible) noexcept nogil:
    """Write the length *n* in *size* bytes; in a flexible version, as the varint of n + 1."""
    if flexible:
        return put_uvarint(p, <uint32_t>(n + 1))
    if size == 2:
        put_be16(p, <uint16_t>n)
    else:
        put_be32(p, <uint32_t>n)
    return p + size


def produce_frame(bytes head not None, int32_t correlation_id, int32_t timeout_ms, batches,
                  bint flexible):
    """Return the buffers of a framed Produce request.

    *head*: everything between the length and the topics. The correlation id, its bytes 4 to 7, and
    the timeout, its last four, are replaced by *correlation_id* and *timeout_ms*. *batches*: tuples
    (topic, partition, record batch), grouped by topic in the order in which the topics first
    appear. *flexible*: the version has compact lengths and tagged fields. A batch of more than
    COPIED_BATCH bytes is a buffer by itself, or its pieces are; the others are copied. Raises
    MemoryError.
    """
    cdef dict topics = {}
    cdef Py_ssize_t room = 4 + len(head) + _TOPICS_OVERHEAD, size
    cdef uint8_t *scratch
    cdef list buffers
    cdef bytes name
    cdef Py_ssize_t i
    for batch in batches:
        topic, partition, records = batch
        if topic not in topics:
            name = (<str>topic).encode()
            topics[topic] = [name]          # and then its partitions
            room += len(name) + _TOPIC_OVERHEAD
        (<list>topics[topic]).append((partition, records))
        size = bytes_of(records)
        room += _RECORDS_OVERHEAD + (size if size <= _COPIED_BATCH else 0)
    scratch = <uint8_t *>malloc(room)
    if scratch == NULL:
        raise MemoryError()
    try:
        buffers = lay_out(scratch, head, correlation_id, timeout_ms, topics, flexible)
    finally:
        free(scratch)
    return buffers


cdef Py_ssize_t bytes_of(records) except -1:
    if type(records) is RecordBatch:
        return (<RecordBatch>records).size
    return memoryview(records).nbytes


cdef list lay_out(uint8_t *scratch, bytes head, int32_t correlation_id, int32_t timeout_ms,
                  dict topics, bint flexible):
    cdef list buffers = [], partitions
    cdef uint8_t *begin = scratch
    cdef uint8_t *p = scratch + 4                   # the length of the request
    cdef Py_ssize_t size, total = 0
    cdef bytes name, first
    memcpy(p, PyBytes_AS_STRING(head), len(head))
    put_be32(p + 4, <uint32_t>correlation_id)
    put_be32(p + len(head) - 4, <uint32_t>timeout_ms)
    p = put_length(p + len(head), len(topics), 4, flexible)
    for partitions in topics.values():
        name = <bytes>partitions[0]
        p = put_length(p, len(name), 2, flexible)
        memcpy(p, PyBytes_AS_STRING(name), len(name))
        p = put_length(p + len(name), len(partitions) - 1, 4, flexible)
        for partition, records in partitions[1:]:
            size = bytes_of(records)
            put_be32(p, <uint32_t><int32_t>partition)
            p = put_length(p + 4, size, 4, flexible)
            if size <= _COPIED_BATCH:
                p = put_records(p, records)
            else:
                buffers.append(PyBytes_FromStringAndSize(<char *>begin, p - begin))
                add_records(buffers, records)
                total += p - begin + size
                begin = p
            p = end_fields(p, flexible)
        p = end_fields(p, flexible)
    p = end_fields(p, flexible)
    if p > begin:
        buffers.append(PyBytes_FromStringAndSize(<char *>begin, p - begin))
        total += p - begin
    first = <bytes>buffers[0]
    # Nothing else refers to it yet.
    put_be32(<uint8_t *>PyBytes_AS_STRING(first), <uint32_t>(total - 4))
    return buffers


cdef inline uint8_t *end_fields(uint8_t *p, bint flexible) noexcept nogil:
    """Write that there are no tagged fields."""
    if flexible:
        p[0] = 0
        return p + 1
    return p


cdef add_records(list buffers, records):
    """Add the buffers of *records*: one, or its pieces."""
    if type(records) is RecordBatch and (<RecordBatch>records).pieces is not None:
        buffers.extend((<RecordBatch>records).pieces)
    else:
        buffers.append(records)


cdef uint8_t *put_records(uint8_t *p, records) except NULL:
    cdef Py_buffer view
    if type(records) is RecordBatch:
        memcpy(p, (<RecordBatch>records).data, (<RecordBatch>records).size)
        return p + (<RecordBatch>records).size
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    memcpy(p, view.buf, view.len)
    p += view.len
    PyBuffer_Release(&view)
    return p
