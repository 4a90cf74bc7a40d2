# Columns: many keys and values as they lie in memory, of Python's objects, of NumPy or of Arrow.
#
# A column is a C struct that says where cell i is. Cells are looked at where they lie, without the
# GIL, and copied once: into the chunk.

cdef enum CellKind:
    ABSENT          # no such column: every cell is null
    OBJECTS         # bytes objects, or None
    OFFSETS32       # Arrow's binary and string
    OFFSETS64       # Arrow's large ones
    FIXED           # NumPy's bytes, Arrow's fixed_size_binary
    VIEWS           # Arrow's binary_view and string_view
    DICTIONARY      # Arrow's dictionary: numbers of cells of another column

cdef struct Numbers:            # a column of integers
    const uint8_t *data         # NULL: no such column
    int64_t offset, stride
    int width                   # bytes of one
    bint signed
    const uint8_t *validity
    int64_t times, parts        # of a unit: the number is multiplied and divided

cdef struct Cells:
    CellKind kind
    int64_t offset              # of cell 0, in an Arrow array
    const uint8_t *validity     # Arrow's bitmap; NULL: none is null
    PyObject **items
    const uint8_t *data
    const void *offsets
    int64_t width, stride       # bytes
    bint strip                  # NumPy pads with NULs, which are not the value's
    const uint8_t **buffers     # what views point into
    Numbers index
    Cells *dictionary

cdef struct HeaderCells:        # Arrow's lists of key and value
    bint there
    bint large                  # offsets of 64 bits
    int64_t offset
    const uint8_t *validity
    const void *offsets
    const uint8_t *entries_validity     # of the structs; a null one has no name
    int64_t entries_offset
    Cells key, value

cdef int64_t _MOST_PARTITION = 0x7fffffff
cdef int64_t _MOST_TIMESTAMP = 1 << 62
#: A number that is not given.
cdef int64_t _NONE = -0x7fffffffffffffff - 1


cdef inline bint is_null(const uint8_t *validity, int64_t i) noexcept nogil:
    return validity != NULL and not validity[i >> 3] >> (i & 7) & 1


cdef inline int64_t offset_at(const void *offsets, bint large, int64_t i) noexcept nogil:
    return (<const int64_t *>offsets)[i] if large else (<const int32_t *>offsets)[i]


cdef inline const uint8_t *cell(const Cells *cells, int64_t i, int64_t *size) noexcept nogil:
    """Where cell *i* begins; *size* -1 if it is null."""
    cdef int64_t start
    cdef PyObject *item
    size[0] = -1
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
        size[0] = offset_at(cells.offsets, cells.kind == OFFSETS64, i + 1) - start
        return cells.data + start
    return rarer_cell(cells, i, size)


cdef const uint8_t *rarer_cell(const Cells *cells, int64_t i, int64_t *size) noexcept nogil:
    """One that is not null, of the kinds that are left."""
    cdef int64_t start
    cdef const uint8_t *p
    i += cells.offset
    if cells.kind == FIXED:
        p = cells.data + i * cells.stride
        start = cells.width
        while cells.strip and start > 0 and p[start - 1] == 0:
            start -= 1
        size[0] = start
        return p
    if cells.kind == VIEWS:
        p = cells.data + i * 16
        size[0] = (<const int32_t *>p)[0]
        if size[0] <= 12:
            return p + 4
        return cells.buffers[(<const int32_t *>p)[2]] + (<const int32_t *>p)[3]
    start = number(&cells.index, i - cells.offset)
    return NULL if start == _NONE else cell(cells.dictionary, start, size)


cdef int64_t number(const Numbers *numbers, int64_t i) noexcept nogil:
    """Number *i*; _NONE if it is null."""
    cdef int64_t n
    cdef const uint8_t *p
    i += numbers.offset
    if is_null(numbers.validity, i):
        return _NONE
    p = numbers.data + i * numbers.stride
    if numbers.width == 1:
        n = (<const int8_t *>p)[0] if numbers.signed else p[0]
    elif numbers.width == 2:
        n = (<const int16_t *>p)[0] if numbers.signed else (<const uint16_t *>p)[0]
    elif numbers.width == 4:
        n = (<const int32_t *>p)[0] if numbers.signed else (<const uint32_t *>p)[0]
    else:
        n = (<const int64_t *>p)[0]
    if n == _NONE:
        return n
    return n * numbers.times // numbers.parts if numbers.parts > 1 else n * numbers.times


# -- headers of Arrow, in wire form --------------------------------------------------------

cdef int64_t headers_size(const HeaderCells *headers, int64_t i) noexcept nogil:
    """Bytes of row *i*'s headers in wire form, 0 for none; -1: a header without a name."""
    cdef int64_t first, last, j, size, total
    if not headers.there or is_null(headers.validity, i + headers.offset):
        return 0
    first = offset_at(headers.offsets, headers.large, i + headers.offset)
    last = offset_at(headers.offsets, headers.large, i + headers.offset + 1)
    if first == last:
        return 0
    total = varint_size(last - first)
    for j in range(first, last):
        cell(&headers.key, j, &size)
        if size < 0 or is_null(headers.entries_validity, j + headers.entries_offset):
            return -1
        total += varint_size(size) + size
        cell(&headers.value, j, &size)
        total += varint_size(size) + (size if size > 0 else 0)
    return total


cdef void put_headers(const HeaderCells *headers, int64_t i, uint8_t *p) noexcept nogil:
    cdef int64_t first = offset_at(headers.offsets, headers.large, i + headers.offset)
    cdef int64_t last = offset_at(headers.offsets, headers.large, i + headers.offset + 1)
    cdef int64_t j, size
    cdef const uint8_t *data
    p = put_varint(p, last - first)
    for j in range(first, last):
        data = cell(&headers.key, j, &size)
        p = put_bytes(put_varint(p, size), data, size)
        data = cell(&headers.value, j, &size)
        p = put_bytes(put_varint(p, size), data, size)


# -- the columns of one block ----------------------------------------------------------------

@cython.final
cdef class Columns:
    """What is sent at once: a cell of each column for each row. Holds what the cells lie in."""

    cdef readonly int64_t count
    cdef Cells value, key, topic
    cdef Cells encoded                  # headers in wire form, of Python's objects
    cdef HeaderCells headers
    cdef Numbers partition, timestamp
    cdef list owners
    cdef list inner                     # Memory of structs that others point to

    def __cinit__(self):
        self.owners = []

    cdef void *hold(self, Py_ssize_t size) except NULL:
        """Zeroed memory that lives as long as this."""
        memory = PyBytes_FromStringAndSize(NULL, size)
        memset(PyBytes_AS_STRING(memory), 0, size)
        self.owners.append(memory)
        return PyBytes_AS_STRING(memory)


def columns_of(values, keys=None, headers=None, partitions=None, timestamps_ms=None):
    """The columns of ``send_many``: sequences of bytes (or None), NumPy's or Arrow's arrays.

    Raises TypeError or ValueError, naming the column and the row.
    """
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
    """Look at one column where it lies; how many cells it has."""
    cdef tuple items
    if hasattr(data, "__arrow_c_array__"):
        return take_arrow_cells(columns, cells, data, name)
    if hasattr(data, "__arrow_c_stream__"):
        raise TypeError(f"{name} is an Arrow array in pieces (a ChunkedArray): call its "
                        f"combine_chunks(), or send_arrow() with the table")
    if hasattr(data, "__array_interface__") and not isinstance(data, (bytes, bytearray)):
        if data.dtype.kind == "S":
            return take_fixed(columns, cells, data, name)
        data = data.tolist()
    if isinstance(data, (str, bytes, bytearray, memoryview)) or not hasattr(data, "__len__"):
        raise TypeError(f"{name} must be a sequence of bytes, not {type(data).__name__}")
    items = tuple(data)
    for row, item in enumerate(items):
        if item is not None and type(item) is not bytes:
            items = tuple([as_cell(one, name, number) for number, one in enumerate(items)])
            break
    columns.owners.append(items)
    cells.kind = OBJECTS
    cells.items = tuple_items(items)
    return len(items)


cdef as_cell(item, str name, row):
    if item is None or type(item) is bytes:
        return item
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    what = name.removesuffix("s")
    raise TypeError(f"{name}[{row}] must be bytes, bytearray, memoryview or None, not "
                    f"{type(item).__name__}; set {what}_serializer to send other types")


cdef int64_t take_fixed(Columns columns, Cells *cells, array, str name) except -1:
    """NumPy's array of bytes ("S"), which pads with NULs: they are stripped, as NumPy does."""
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {array.ndim}")
    columns.owners.append(array)
    cells.kind = FIXED
    cells.data = <const uint8_t *><size_t>array.ctypes.data
    cells.width = array.dtype.itemsize
    cells.stride = array.strides[0]
    cells.strip = True
    return len(array)


cdef take_header_lists(Columns columns, headers):
    if isinstance(headers, (str, bytes)) or not hasattr(headers, "__len__"):
        raise TypeError(f"headers must be a sequence with a list of pairs for each row, not "
                        f"{type(headers).__name__}")
    check_length(len(headers), columns.count, "headers")
    encoded = []
    for row, one in enumerate(headers):
        try:
            encoded.append(None if one is None else encode_headers(one))
        except (TypeError, ValueError) as error:
            raise type(error)(f"headers[{row}]: {error}") from None
    items = tuple(encoded)
    columns.owners.append(items)
    columns.encoded.kind = OBJECTS
    columns.encoded.items = tuple_items(items)


cdef int64_t take_numbers(Columns columns, Numbers *numbers, data, str name,
                          int64_t most) except -1:
    """A column of integers; None in it stands for "not given"."""
    cdef int64_t *found
    cdef Py_ssize_t row
    if hasattr(data, "__arrow_c_array__"):
        return take_arrow_numbers(columns, numbers, data, name, most)
    if isinstance(data, (str, bytes)) or not hasattr(data, "__len__"):
        raise TypeError(f"{name} must be a sequence of int, not {type(data).__name__}")
    items = data.tolist() if hasattr(data, "__array_interface__") else data
    found = <int64_t *>columns.hold(max(len(items), 1) * sizeof(int64_t))
    for row, item in enumerate(items):
        found[row] = _NONE
        if item is not None:
            found[row] = checked_int(item, f"{name}[{row}]", 0, most)
    numbers.data = <const uint8_t *>found
    numbers.width = numbers.stride = sizeof(int64_t)
    numbers.signed = True
    numbers.times = numbers.parts = 1
    return len(items)
