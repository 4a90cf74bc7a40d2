# Chunks that refer to the caller's memory: the cells of Arrow arrays, and bytes objects.
#
# Neither changes, so the rows of a block need not be copied. They point into the columns, which the
# chunk keeps until the last of these rows is reported, or has been detached. The following are
# copied all the same:
#
# - NumPy arrays: a program may well use them again once send_many() has returned;
# - headers from Arrow, whose wire form has to be written;
# - short bytes objects: they take more memory than their contents, which buffer_memory counts.
#
# The payload counts as a block of its own, the first one of the chunk, with one byte of memory. So
# it is released, and given back to buffer_memory, as other blocks are.

#: Rows of Python objects are referred to if they have at least this many bytes on average.
cdef int64_t _LEAST_OBJECTS = 64


cdef bint can_be_referred_to(Columns columns) noexcept nogil:
    """Return whether chunks may refer to the keys, values and headers of *columns*."""
    cdef bint is_short = columns.size < columns.count * _LEAST_OBJECTS
    return not columns.headers.there and is_referable(&columns.key, is_short) \
        and is_referable(&columns.value, is_short) and is_referable(&columns.encoded, is_short)


cdef inline bint is_referable(const Cells *cells, bint is_short) noexcept nogil:
    if cells.kind == OBJECTS:
        return not is_short
    return cells.kind != FIXED or not cells.strip       # only those of NumPy are stripped


cdef refer_to(Chunk chunk, Columns columns):
    """Let the rows of a new *chunk* refer to *columns*, from which all of them will come."""
    chunk.blocks = <Block *>malloc(sizeof(Block))
    if chunk.blocks == NULL:
        raise MemoryError()
    chunk.blocks.data = <uint8_t *>new_memory(1)
    if chunk.blocks.data == NULL:
        raise MemoryError()             # `n_blocks` is 0
    chunk.blocks.capacity = 1
    chunk.blocks.used = chunk.blocks.live = 0
    chunk.n_blocks = 1
    chunk.source = columns


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
    chunk.blocks.used += <uint32_t>payload.total
    chunk.blocks.live += 1
    return True


cdef release_source(Chunk chunk):
    """Release the columns to which the rows of *chunk* referred, once none of them does any more.

    The block of these rows has been freed then, and no reader is left that has pinned the chunk.
    Releasing an array may run code of other libraries, so no lock is held.
    """
    cdef object source = None
    with chunk.lock:
        if chunk.source is not None and chunk.pins == 0 and chunk.blocks.data == NULL:
            source = chunk.source
            chunk.source = None
