# Columns: many keys and values in Python objects, NumPy arrays or Arrow arrays.
#
# A column is a C struct that locates cell i. Cells are read in place, without the GIL, and copied
# once, into the chunk, or not at all (refer.pxi).

cdef enum CellKind:
    ABSENT          # no such column: every cell is null
    OBJECTS         # bytes objects, or None
    OFFSETS32       # Arrow binary and string
    OFFSETS64       # Arrow large_binary and large_string
    FIXED           # NumPy bytes, Arrow fixed_size_binary
    VIEWS           # Arrow binary_view and string_view
    DICTIONARY      # Arrow dictionary: indices into another column
    SPANS           # parts of a bytes object (lines.pxi)

cdef struct Span:               # a cell of kind SPANS
    int64_t start
    int64_t size                # -1: null

cdef struct Cells:
    CellKind kind
    int64_t offset              # of cell 0, in an Arrow array
    const uint8_t *validity     # Arrow's bitmap; NULL: no cell is null
    PyObject **items
    const uint8_t *data
    const void *offsets
    int64_t width, stride       # bytes
    bint strip                  # strip the NULs with which NumPy pads values
    const uint8_t **buffers     # the buffers that views point into
    int64_t n_buffers           # their number
    const void *buffer_sizes    # their sizes, 64 bits each
    bint text                   # Arrow strings: UTF-8
    Numbers index
    Cells *dictionary
    int64_t count               # of a dictionary: its number of cells

cdef struct HeaderCells:        # Arrow lists of key and value
    bint there
    bint large                  # offsets of 64 bits
    int64_t offset
    const uint8_t *validity
    const void *offsets
    const uint8_t *entries_validity     # of the structs; a null struct has no name
    int64_t entries_offset
    int64_t n_entries
    Cells key, value

cdef enum CellSize:             # returned in place of a size
    _NULL = -1          # the cell is null; of a row's headers: one has no name
    _BROKEN = -2        # the cell is outside its column's data

#: Larger than any message. Larger cells count as this size, so that sums of sizes do not overflow.
cdef int64_t _MOST_CELL = 1 << 40


cdef inline int64_t offset_at(const void *offsets, bint large, int64_t i) noexcept nogil:
    return int64_at(<const int64_t *>offsets + i) if large \
        else int32_at(<const int32_t *>offsets + i)


cdef inline const uint8_t *cell(const Cells *cells, int64_t i, int64_t *size) noexcept nogil:
    """Return the address of cell *i*. *size* is _NULL if it is null, _BROKEN if it is invalid."""
    cdef int64_t start, end
    cdef PyObject *item
    size[0] = _NULL
    if cells.kind == ABSENT:
        return NULL
    if cells.kind == OBJECTS:
        item = cells.items[i]
        if item == <PyObject *>None:
            return NULL
        size[0] = bytes_size(item)
        return bytes_data(item)
    if is_null(cells.validity, i + cells.offset):
        return NULL
    if cells.kind == OFFSETS32 or cells.kind == OFFSETS64:
        i += cells.offset
        start = offset_at(cells.offsets, cells.kind == OFFSETS64, i)
        end = offset_at(cells.offsets, cells.kind == OFFSETS64, i + 1)
        if start < 0 or end < start or (end > start and cells.data == NULL):
            size[0] = _BROKEN
            return NULL
        size[0] = min(end - start, _MOST_CELL)
        return cells.data + start
    return rarer_cell(cells, i, size)


cdef const uint8_t *rarer_cell(const Cells *cells, int64_t i, int64_t *size) noexcept nogil:
    """Return the address of a non-null cell of one of the less frequent kinds."""
    cdef int64_t start
    cdef const uint8_t *p
    cdef const Span *span
    if cells.kind == SPANS:
        span = <const Span *>cells.offsets + i
        size[0] = span.size
        return cells.data + span.start
    if cells.kind == FIXED:
        p = cells.data + (i + cells.offset) * cells.stride
        start = cells.width
        while cells.strip and start > 0 and p[start - 1] == 0:
            start -= 1
        size[0] = start
        return p
    if cells.kind == VIEWS:
        return viewed_cell(cells, cells.data + (i + cells.offset) * 16, size)
    start = stored_number(&cells.index, i)
    if not 0 <= start < cells.dictionary.count:
        size[0] = _BROKEN
        return NULL
    return cell(cells.dictionary, start, size)


cdef const uint8_t *viewed_cell(const Cells *cells, const uint8_t *view,
                                int64_t *size) noexcept nogil:
    """Return the cell of a view: up to 12 bytes are in the view, longer ones in a buffer."""
    cdef int64_t buffer, start
    cdef const uint8_t *data
    size[0] = int32_at(view)
    if 0 <= size[0] <= 12:
        return view + 4
    buffer = int32_at(view + 8)
    start = int32_at(view + 12)
    data = cells.buffers[buffer] if 0 <= buffer < cells.n_buffers else NULL
    if size[0] < 0 or start < 0 or data == NULL \
            or start + size[0] > int64_at(<const int64_t *>cells.buffer_sizes + buffer):
        size[0] = _BROKEN
        return NULL
    return data + start


# -- Arrow headers, in wire form -----------------------------------------------------------

cdef bint find_headers(const HeaderCells *headers, int64_t i, int64_t *first,
                       int64_t *last) noexcept nogil:
    """Look up the entries of row *i*, none if it is null. Return false if they are out of range."""
    first[0] = last[0] = 0
    if not headers.there or is_null(headers.validity, i + headers.offset):
        return True
    first[0] = offset_at(headers.offsets, headers.large, i + headers.offset)
    last[0] = offset_at(headers.offsets, headers.large, i + headers.offset + 1)
    return 0 <= first[0] <= last[0] <= headers.n_entries


cdef int64_t headers_size(const HeaderCells *headers, int64_t i) noexcept nogil:
    """Return the size of row *i*'s headers on the wire; _NULL: a header has no name; _BROKEN."""
    cdef int64_t first, last, j, size, total
    if not find_headers(headers, i, &first, &last):
        return _BROKEN
    if first == last:
        return 0
    total = varint_size(last - first)
    for j in range(first, last):
        cell(&headers.key, j, &size)
        if size == _BROKEN:
            return _BROKEN
        if size < 0 or is_null(headers.entries_validity, j + headers.entries_offset):
            return _NULL
        total += varint_size(size) + size
        cell(&headers.value, j, &size)
        if size == _BROKEN:
            return _BROKEN
        total += varint_size(size) + (size if size > 0 else 0)
        if total > _MOST_CELL:
            break
    return total


cdef bint put_headers(const HeaderCells *headers, int64_t i, uint8_t *p,
                      int64_t room) noexcept nogil:
    """Write row *i*'s headers to *p*. Return false unless they fill the *room* bytes exactly.

    They are read for the second time here, so nothing may be written by a size that has not been
    compared with the room:

    1. headers_size() measures them, and the caller allocates as many bytes;
    2. another thread, or a process that shares the memory, changes an offset or a size;
    3. this reads it.
    """
    cdef int64_t first, last, j
    cdef const uint8_t *end = p + room
    if not find_headers(headers, i, &first, &last) or varint_size(last - first) > room:
        return False
    p = put_varint(p, last - first)
    for j in range(first, last):
        p = put_cell(&headers.key, j, 0, p, end)
        if p != NULL:
            p = put_cell(&headers.value, j, _NULL, p, end)
        if p == NULL:
            return False
    return p == end


cdef uint8_t *put_cell(const Cells *cells, int64_t i, int64_t least, uint8_t *p,
                       const uint8_t *end) noexcept nogil:
    """Write the size of cell *i*, which is at least *least*, and the cell to *p*.

    Return their end, or NULL if they do not fit.
    """
    cdef int64_t size
    cdef const uint8_t *data = cell(cells, i, &size)
    if size < least or varint_size(size) + max(size, 0) > end - p:
        return NULL
    return put_bytes(put_varint(p, size), data, size)


# -- the columns of one block ----------------------------------------------------------------

@cython.final
cdef class Columns:
    """The columns of one block, with a cell of each for each row. Owns the cells' memory."""

    cdef readonly int64_t count
    cdef int64_t size                   # payload bytes, once they are measured
    cdef int64_t most                   # payload bytes of a row, as of then
    cdef Cells value, key, topic
    cdef Cells encoded                  # headers in wire form, from Python objects
    cdef HeaderCells headers
    cdef Numbers partition, timestamp
    cdef list owners
    cdef list objects                   # tuples of bytes objects: the cells of kind OBJECTS
    cdef bint in_objects                # all cells are in bytes objects, which are in `objects`

    def __cinit__(self):
        self.owners = []
        self.objects = []

    cdef void *hold(self, Py_ssize_t size) except NULL:
        """Allocate zeroed memory that lives as long as this object."""
        memory = PyBytes_FromStringAndSize(NULL, size)
        memset(PyBytes_AS_STRING(memory), 0, size)
        self.owners.append(memory)
        return PyBytes_AS_STRING(memory)


def columns_of(values, keys=None, headers=None, partitions=None, timestamps_ms=None):
    """Return the columns of ``send_many``.

    *values* and *keys* are sequences of bytes-like objects or None, or NumPy or Arrow arrays.
    *headers*: a sequence of lists of pairs. *partitions* and *timestamps_ms*: sequences or Arrow
    arrays of integers or None. Raises TypeError or ValueError, naming the column and the row.
    *values* may also be the columns of :class:`Lines`, which have the other parts.
    """
    if isinstance(values, Columns):
        return values
    cdef Columns columns = Columns.__new__(Columns)
    cdef int64_t count = take_cells(columns, &columns.value, values, "values")
    columns.count = count
    if keys is not None:
        check_length(take_cells(columns, &columns.key, keys, "keys"), count, "keys")
    if headers is not None:
        take_header_lists(columns, headers)
    if partitions is not None:
        check_length(take_numbers(columns, &columns.partition, partitions, "partitions",
                                  _MOST_PARTITION), count, "partitions")
    if timestamps_ms is not None:
        check_length(take_numbers(columns, &columns.timestamp, timestamps_ms, "timestamps_ms",
                                  _MOST_TIMESTAMP), count, "timestamps_ms")
    return columns


cdef check_length(int64_t length, int64_t count, str name):
    if length != count:
        raise ValueError(f"{name} has {length} entries, values has {count}")


cdef int64_t take_cells(Columns columns, Cells *cells, data, str name) except -1:
    """Reference one column in place and return its number of cells."""
    cdef tuple items
    if hasattr(data, "__arrow_c_array__"):
        return take_arrow_cells(columns, cells, data, name)
    if hasattr(data, "__arrow_c_stream__"):
        data = cells_of_stream(data.__arrow_c_stream__(), name)
    if numpy_kind(data) == "S" and not hasattr(data, "mask"):
        return take_fixed(columns, cells, data, name)
    if isinstance(data, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{name} must be a sequence of bytes, not {type(data).__name__}")
    items = items_of(data, name, "bytes")
    for row, item in enumerate(items):
        if item is not None and type(item) is not bytes:
            items = as_cells(items, name)
            break
    columns.objects.append(items)
    cells.kind = OBJECTS
    cells.items = tuple_items(items)
    return len(items)


cdef numpy_kind(data):
    """Return the dtype kind of a NumPy array, or None if *data* is not a NumPy array."""
    if not hasattr(data, "__array_interface__"):
        return None
    return getattr(getattr(data, "dtype", None), "kind", None)


cdef tuple items_of(data, str name, str what):
    """Return the items of a sequence as a tuple, so that the measured items are those sent.

    A sequence may change while it is read, and one written in Python may yield a number of items
    that differs from its ``len()``.
    """
    if hasattr(data, "__array_interface__") and hasattr(data, "tolist"):
        data = data.tolist()
    if isinstance(data, (str, bytes)) or not hasattr(data, "__len__"):
        raise TypeError(f"{name} must be a sequence of {what}, not {type(data).__name__}")
    return tuple(data)


cdef tuple as_cells(tuple items, str name):
    cdef list cells = []
    for number, item in enumerate(items):
        cells.append(as_cell(item, name, number))
    return tuple(cells)


cdef as_cell(item, str name, row):
    if item is None or type(item) is bytes:
        return item
    if isinstance(item, (bytes, bytearray, memoryview)):
        return PyBytes_FromObject(item)
    what = name.removesuffix("s")
    raise of_row(row, TypeError(
        f"{name}[{row}] must be bytes, bytearray, memoryview or None, not "
        f"{type(item).__name__}; set {what}_serializer to send other types"))


cdef int64_t take_fixed(Columns columns, Cells *cells, array, str name) except -1:
    """Reference a NumPy array of bytes ("S"), whose padding NULs are stripped as NumPy does.

    The address comes from the buffer protocol, which also keeps it valid. Attributes of the array
    may be wrong.
    """
    cdef const Py_buffer *buffer
    view = memoryview(array)
    buffer = PyMemoryView_GET_BUFFER(view)
    if buffer.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {buffer.ndim}")
    if buffer.suboffsets != NULL and buffer.suboffsets[0] >= 0:
        raise ValueError(f"{name} must be an array of bytes, not of pointers to its elements")
    columns.owners.append(view)
    cells.kind = FIXED
    cells.data = <const uint8_t *>buffer.buf
    cells.width = buffer.itemsize
    cells.stride = buffer.strides[0]
    cells.strip = True
    return buffer.shape[0]


cdef take_header_lists(Columns columns, headers):
    cdef tuple lists = items_of(headers, "headers", "lists of pairs")
    cdef list encoded = []
    cdef tuple items
    check_length(len(lists), columns.count, "headers")
    for row, one in enumerate(lists):
        try:
            encoded.append(None if one is None else encode_headers(one))
        except TypeError as error:
            raise of_row(row, TypeError(f"headers[{row}]: {error}")) from error
        except ValueError as error:
            raise of_row(row, ValueError(f"headers[{row}]: {error}")) from error
    items = tuple(encoded)
    columns.objects.append(items)
    columns.encoded.kind = OBJECTS
    columns.encoded.items = tuple_items(items)


cdef int64_t take_numbers(Columns columns, Numbers *numbers, data, str name,
                          int64_t most) except -1:
    """Read a column of integers, in which None means "not given". Return its length."""
    cdef int64_t *found
    cdef uint8_t *given
    cdef Py_ssize_t row
    cdef tuple items
    if hasattr(data, "__arrow_c_array__"):
        return take_arrow_numbers(columns, numbers, data, name, most)
    if numpy_kind(data) in ("M", "m"):
        raise TypeError(f"{name} must be integers, not an array of {data.dtype}; convert it to "
                        f"milliseconds with array.astype('datetime64[ms]').astype('int64')")
    items = items_of(data, name, "int")
    found = <int64_t *>columns.hold((len(items) + 1) * sizeof(int64_t))
    given = <uint8_t *>columns.hold(len(items) // 8 + 1)
    for row, item in enumerate(items):
        if item is not None:
            try:
                found[row] = checked_int(item, f"{name}[{row}]", 0, most)
            except (TypeError, ValueError) as error:
                raise of_row(row, error)
            given[row >> 3] |= <uint8_t>(1 << (row & 7))
    numbers.there = True
    numbers.data = <const uint8_t *>found
    numbers.validity = given
    numbers.width = numbers.stride = sizeof(int64_t)
    numbers.signed = True
    numbers.times = numbers.parts = 1
    return len(items)
