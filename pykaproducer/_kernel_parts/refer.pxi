# Rows that refer to the caller's bytes objects.
#
# These objects never change, so their bytes need not be copied into the chunk. Without compression
# they need not be copied into the batch either (encode.pxi).
#
# A row of send() refers to its value if the value is large. Such a row has a separate memory block,
# whose source is the value. The rows that send_many() adds refer to all objects of the call, which
# are the source of the chunk's first memory block. Short objects are copied: an object takes more
# memory than its contents, which buffer_memory counts. Lines are never copied: one object has many.
#
# Subclasses of bytes, Arrow arrays and NumPy arrays are copied. Their memory may change, or be the
# mapping of a file that is truncated. A slice of an array keeps all of it, of unknown size. And
# when an array is released, its owner's code runs, which would be in a stage's thread.
#
# A memory block with a source counts the payload of its rows, as any other block does, so that
# buffer_memory gets the bytes back in the same way. Once the block has been freed, the source is
# released, with the GIL.

#: The rows of a block refer to its objects if they have at least this many bytes for each object,
#: on average.
cdef int64_t _LEAST_OBJECT = 256


cdef tuple objects_to_refer_to(Columns columns):
    """Return the objects of the keys, values and headers of *columns*; None: copy them."""
    cdef int64_t kinds = 0
    if columns.in_objects:
        return tuple(columns.objects)
    if columns.headers.there:
        return None
    for kind in (columns.key.kind, columns.value.kind, columns.encoded.kind):
        if kind == OBJECTS:
            kinds += 1
        elif kind != ABSENT:
            return None
    if columns.size < columns.count * kinds * _LEAST_OBJECT:
        return None
    return tuple(columns.objects)


cdef refer_to(Chunk chunk, tuple objects):
    """Let all rows of a new *chunk* refer to *objects*."""
    cdef Block *block = chunk.new_block(1)
    if block == NULL:
        raise no_memory_for_block()
    block.live = 0
    set_source(chunk, block, <PyObject *>objects)
    chunk.refers = True


cdef inline void set_source(Chunk chunk, Block *block, PyObject *source) noexcept:
    Py_XINCREF(source)
    block.source = source
    chunk.n_sources += 1


cdef inline bint add_reference(Chunk chunk, const Payload *payload) noexcept nogil:
    """Add a row that refers to *payload*. Return false if there is no memory."""
    cdef Row *row = chunk.new_row(False)
    if row == NULL:
        return False
    row.key = payload.data[0]
    row.key_size = <int32_t>payload.size[0]
    row.value = payload.data[1]
    row.value_size = <int32_t>payload.size[1]
    row.headers = payload.data[2]
    row.headers_size = <int32_t>payload.size[2]
    row.block = 0
    chunk.blocks.used += <uint32_t>payload.total
    chunk.blocks.live += 1
    return True


cdef bint refer_to_value(Chunk chunk, Row *row, const Payload *payload) noexcept:
    """Let *row* refer to the value of *payload*; copy its key and headers.

    Return false if there is no memory.
    """
    cdef uint32_t copied = <uint32_t>(payload.total - payload.size[1])
    cdef Block *block = chunk.new_block(max(copied, 1))
    if block == NULL:
        return False
    block.used = <uint32_t>payload.total
    row.block = <uint16_t>(chunk.n_blocks - 1)
    row.key = block.data
    row.key_size = <int32_t>payload.size[0]
    row.headers = put_bytes(block.data, payload.data[0], payload.size[0])
    row.headers_size = <int32_t>payload.size[2]
    put_bytes(block.data + copied - payload.size[2], payload.data[2], payload.size[2])
    row.value = payload.data[1]
    row.value_size = <int32_t>payload.size[1]
    set_source(chunk, block, payload.large)
    return True


cdef release_sources(Chunk chunk):
    """Release the objects to which rows of *chunk* referred, once none of these does any more.

    The block of the rows has been freed then, and no reader is left that has pinned the chunk.
    After the last row nothing needs the array of blocks, which handles would keep.
    """
    cdef uint32_t i = 0
    cdef PyObject *source
    while True:
        source = NULL
        enter_guard(&chunk.lock)
        while source == NULL and chunk.n_unused and not chunk.pins and i < chunk.n_blocks:
            if chunk.blocks[i].data == NULL and chunk.blocks[i].source != NULL:
                source = chunk.blocks[i].source
                chunk.blocks[i].source = NULL
                chunk.n_sources -= 1
                chunk.n_unused -= 1
            i += 1
        if chunk.is_done() and not chunk.pins and not chunk.n_sources:
            chunk.free_blocks()
        leave_guard(&chunk.lock)
        if source == NULL:
            break
        Py_XDECREF(source)              # without the lock
