# Arrow arrays through the PyCapsule interface: no Arrow library is needed.
#
# Source: "The Arrow C data interface", "The Arrow C stream interface" and "The Arrow PyCapsule
# Interface" of the Arrow documentation. The structs are read, and stay their owner's.

cdef extern from *:
    """
    struct ArrowSchema {
        const char *format, *name, *metadata;
        int64_t flags, n_children;
        struct ArrowSchema **children, *dictionary;
        void (*release)(struct ArrowSchema *);
        void *private_data;
    };
    struct ArrowArray {
        int64_t length, null_count, offset, n_buffers, n_children;
        const void **buffers;
        struct ArrowArray **children, *dictionary;
        void (*release)(struct ArrowArray *);
        void *private_data;
    };
    struct ArrowArrayStream {
        int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
        int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
        const char *(*get_last_error)(struct ArrowArrayStream *);
        void (*release)(struct ArrowArrayStream *);
        void *private_data;
    };
    """
    cdef struct ArrowSchema:
        const char *format
        const char *name
        int64_t n_children
        ArrowSchema **children
        ArrowSchema *dictionary
        void (*release)(ArrowSchema *)
    cdef struct ArrowArray:
        int64_t length, null_count, offset, n_buffers, n_children
        const void **buffers
        ArrowArray **children
        ArrowArray *dictionary
        void (*release)(ArrowArray *)
    cdef struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream *, ArrowSchema *)
        int (*get_next)(ArrowArrayStream *, ArrowArray *)
        const char *(*get_last_error)(ArrowArrayStream *)


cdef int64_t take_arrow_cells(Columns columns, Cells *cells, data, str name) except -1:
    cdef tuple capsules = data.__arrow_c_array__()
    cdef ArrowSchema *s = <ArrowSchema *>PyCapsule_GetPointer(capsules[0], "arrow_schema")
    cdef ArrowArray *a = <ArrowArray *>PyCapsule_GetPointer(capsules[1], "arrow_array")
    columns.owners.append(capsules)
    arrow_cells(columns, cells, s, a, 0, name)
    return a.length


cdef int64_t take_arrow_numbers(Columns columns, Numbers *numbers, data, str name,
                                int64_t most) except -1:
    cdef tuple capsules = data.__arrow_c_array__()
    cdef ArrowSchema *s = <ArrowSchema *>PyCapsule_GetPointer(capsules[0], "arrow_schema")
    cdef ArrowArray *a = <ArrowArray *>PyCapsule_GetPointer(capsules[1], "arrow_array")
    columns.owners.append(capsules)
    arrow_numbers(numbers, s, a, 0, name)
    check_numbers(numbers, a.length, name, most, 0)
    return a.length


cdef check_numbers(const Numbers *numbers, int64_t count, str name, int64_t most, int64_t base):
    cdef int64_t i, n
    for i in range(count):
        n = number(numbers, i)
        if n != _NONE and not 0 <= n <= most:
            raise row_error(base + i, f"{name} must be between 0 and {most}, not {n}",
                            f"{name}[{base + i}] must be between 0 and {most}, not {n}")


cdef row_error(int64_t row, str about, str text=None):
    """A ValueError that says which row of the call it means, as ``row``, and what is wrong with it,
    without the number: ``about_row``."""
    error = ValueError(f"row {row}: {about}" if text is None else text)
    error.row = row
    error.about_row = about
    return error


cdef arrow_cells(Columns columns, Cells *cells, ArrowSchema *schema, ArrowArray *array,
                 int64_t shift, str name):
    """Cells of an array whose cell 0 is *shift* further (the offset of the struct around it)."""
    cdef str text = schema.format.decode()
    cells.offset = array.offset + shift
    if array.n_buffers and array.null_count != 0:
        cells.validity = <const uint8_t *>array.buffers[0]
    if schema.dictionary != NULL:
        cells.kind = DICTIONARY
        arrow_numbers(&cells.index, schema, array, shift, name)
        cells.dictionary = <Cells *>columns.hold(sizeof(Cells))
        arrow_cells(columns, cells.dictionary, schema.dictionary, array.dictionary, 0, name)
    elif text in ("z", "u", "Z", "U"):
        cells.kind = OFFSETS32 if text in "zu" else OFFSETS64
        cells.offsets = array.buffers[1]
        cells.data = <const uint8_t *>array.buffers[2]
    elif text in ("vz", "vu"):
        cells.kind = VIEWS
        cells.data = <const uint8_t *>array.buffers[1]
        cells.buffers = <const uint8_t **>array.buffers + 2
    elif text.startswith("w:"):
        cells.kind = FIXED
        cells.data = <const uint8_t *>array.buffers[1]
        cells.width = cells.stride = int(text[2:])
    elif text == "n":
        cells.kind = ABSENT
    else:
        raise TypeError(f"column {name!r} must be binary or string (large, view, fixed-size or "
                        f"dictionary-encoded too), not of Arrow format {text!r}")


#: Integers by Arrow's format: bytes, signed.
cdef dict _INTEGERS = {
    "c": (1, True), "C": (1, False), "s": (2, True), "S": (2, False),
    "i": (4, True), "I": (4, False), "l": (8, True), "L": (8, True),
}
#: Arrow's units of time: what makes milliseconds of them.
cdef dict _UNITS = {"tss": (1000, 1), "tsm": (1, 1), "tsu": (1, 1000), "tsn": (1, 1000000)}


cdef arrow_numbers(Numbers *numbers, ArrowSchema *schema, ArrowArray *array, int64_t shift,
                   str name):
    cdef str text = schema.format.decode()
    cdef str unit = text.partition(":")[0]
    if text not in _INTEGERS and unit not in _UNITS:
        raise TypeError(f"column {name!r} must be of integers, not of Arrow format {text!r}")
    integer = _INTEGERS.get(text, (8, True))
    numbers.width = integer[0]
    numbers.signed = integer[1]
    factors = _UNITS.get(unit, (1, 1))
    numbers.times = factors[0]
    numbers.parts = factors[1]
    numbers.stride = numbers.width
    numbers.offset = array.offset + shift
    if array.null_count != 0:
        numbers.validity = <const uint8_t *>array.buffers[0]
    numbers.data = <const uint8_t *>array.buffers[1]


cdef arrow_headers(Columns columns, HeaderCells *headers, ArrowSchema *schema, ArrowArray *array,
                   int64_t shift):
    """A list of structs of a name and a value, or a map."""
    cdef str text = schema.format.decode()
    cdef ArrowSchema *entry
    cdef ArrowArray *entries
    if text not in ("+l", "+L", "+m") or schema.children[0].n_children != 2:
        raise TypeError(f"column 'headers' must be a list of structs of key and value, or a map, "
                        f"not of Arrow format {text!r}")
    entry = schema.children[0]
    entries = array.children[0]
    if entry.format.decode() != "+s":
        raise TypeError(f"column 'headers' must be a list of structs of key and value, or a map, "
                        f"not a list of Arrow format {entry.format.decode()!r}")
    headers.there = True
    headers.entries_offset = entries.offset
    if entries.n_buffers and entries.null_count != 0:
        headers.entries_validity = <const uint8_t *>entries.buffers[0]
    headers.large = text == "+L"
    headers.offset = array.offset + shift
    if array.null_count != 0:
        headers.validity = <const uint8_t *>array.buffers[0]
    headers.offsets = array.buffers[1]
    arrow_cells(columns, &headers.key, entry.children[0], entries.children[0], entries.offset,
                "headers.key")
    arrow_cells(columns, &headers.value, entry.children[1], entries.children[1], entries.offset,
                "headers.value")


cdef Columns columns_of_batch(ArrowSchema *schema, ArrowArray *array, owner, int64_t base):
    """The columns of ``send_arrow``, by their names in a record batch; *base*: rows before it."""
    cdef Columns columns = Columns.__new__(Columns)
    cdef int64_t i
    cdef ArrowSchema *s
    cdef ArrowArray *a
    columns.owners.append(owner)
    columns.count = array.length
    if schema.format.decode() != "+s":
        raise TypeError("send_arrow() takes a record batch or a table with a column 'value'; one "
                        "array goes with send_many()")
    names = [schema.children[i].name.decode() for i in range(schema.n_children)]
    for name in names:
        if name not in ("value", "key", "topic", "partition", "headers", "timestamp"):
            raise ValueError(f"unknown column {name!r}; columns are value, key, topic, partition, "
                             f"headers and timestamp")
        if names.count(name) > 1:
            raise ValueError(f"column {name!r} is there {names.count(name)} times")
    if "value" not in names:
        raise ValueError(f"there is no column 'value' (columns: {', '.join(names) or 'none'})")
    for i in range(schema.n_children):
        s = schema.children[i]
        a = array.children[i]
        if names[i] == "value":
            arrow_cells(columns, &columns.value, s, a, array.offset, "value")
        elif names[i] == "key":
            arrow_cells(columns, &columns.key, s, a, array.offset, "key")
        elif names[i] == "topic":
            arrow_cells(columns, &columns.topic, s, a, array.offset, "topic")
        elif names[i] == "headers":
            arrow_headers(columns, &columns.headers, s, a, array.offset)
        elif names[i] == "partition":
            arrow_numbers(&columns.partition, s, a, array.offset, "partition")
            check_numbers(&columns.partition, columns.count, "partition", _MOST_PARTITION,
                          base)
        else:
            arrow_numbers(&columns.timestamp, s, a, array.offset, "timestamp")
            check_numbers(&columns.timestamp, columns.count, "timestamp", _MOST_TIMESTAMP,
                          base)
    return columns


@cython.final
cdef class Released:
    """Releases the structs that a stream has given."""

    cdef ArrowSchema schema
    cdef ArrowArray array

    def __cinit__(self):
        self.schema.release = NULL
        self.array.release = NULL

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)
        if self.schema.release != NULL:
            self.schema.release(&self.schema)


def columns_of_arrow(data):
    """The columns of each record batch of *data*, in order: a RecordBatch, a Table, whatever has
    ``__arrow_c_array__`` or ``__arrow_c_stream__``. A stream is read to its end."""
    cdef tuple capsules
    if hasattr(data, "__arrow_c_array__"):
        capsules = data.__arrow_c_array__()
        return [columns_of_batch(
            <ArrowSchema *>PyCapsule_GetPointer(capsules[0], "arrow_schema"),
            <ArrowArray *>PyCapsule_GetPointer(capsules[1], "arrow_array"), capsules, 0)]
    if not hasattr(data, "__arrow_c_stream__"):
        raise TypeError(f"send_arrow() takes Arrow data (with __arrow_c_array__ or "
                        f"__arrow_c_stream__), not {type(data).__name__}")
    return read_stream(data.__arrow_c_stream__())


cdef list read_stream(capsule):
    cdef ArrowArrayStream *stream = <ArrowArrayStream *>PyCapsule_GetPointer(
        capsule, "arrow_array_stream")
    cdef Released schema = Released.__new__(Released)
    cdef Released batch
    cdef list found = []
    cdef int64_t rows = 0
    if stream.get_schema(stream, &schema.schema):
        raise ValueError(f"the Arrow stream gives no schema: {stream_error(stream)}")
    while True:
        batch = Released.__new__(Released)
        if stream.get_next(stream, &batch.array):
            raise ValueError(f"the Arrow stream ends with an error: {stream_error(stream)}")
        if batch.array.release == NULL:
            return found
        found.append(columns_of_batch(&schema.schema, &batch.array, [schema, batch], rows))
        rows += (<Columns>found[len(found) - 1]).count


cdef str stream_error(ArrowArrayStream *stream):
    cdef const char *text = stream.get_last_error(stream)
    return "no reason given" if text == NULL else text.decode("utf-8", "replace")
