# Chunks that refer to the caller's bytes objects.
#
# They never change, so the rows of a block need not be copied. They point into the objects, which
# the chunk keeps until the last of these rows is reported, or has been detached. Short ones are
# copied all the same: an object takes more memory than its contents, which buffer_memory counts.
# Lines are referred to in any case: many of them are in one object.
#
# Arrow arrays and NumPy arrays are copied. Their memory may change, or be the mapping of a file
# that is truncated. A slice of an array keeps all of it, of unknown size. And when an array is
# released, its owner's code runs, which would be in a stage's thread.
#
# The payload counts as the chunk's first block, with one byte of memory. So it is released, and
# given back to buffer_memory, as other blocks are.

#: Rows are referred to if they have at least this many bytes for each object, on average.
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
    chunk.blocks = <Block *>malloc(sizeof(Block))
    if chunk.blocks == NULL:
        raise no_memory_for_block()
    chunk.blocks.data = <uint8_t *>new_memory(1)
    if chunk.blocks.data == NULL:
        raise no_memory_for_block()     # the chunk frees `blocks`
    chunk.blocks.capacity = 1
    chunk.blocks.used = chunk.blocks.live = 0
    chunk.n_blocks = 1
    chunk.source = objects


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
    """Release the objects to which the rows of *chunk* referred, once none of them does any more.

    The block of these rows has been freed then, and no reader is left that has pinned the chunk.
    """
    cdef tuple source = None            # released when this returns, without the lock
    enter_guard(&chunk.lock)
    if chunk.source is not None and chunk.pins == 0 and chunk.blocks.data == NULL:
        source = chunk.source
        chunk.source = None
    leave_guard(&chunk.lock)
