# Arrow arrays through the PyCapsule interface, without an Arrow library.
#
# Source: "The Arrow C data interface", "The Arrow C stream interface" and "The Arrow PyCapsule
# Interface" in the Arrow documentation. The structs are moved out of their capsules, so that
# nothing else can release them while they are read.

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
        void (*release)(ArrowSchema *) noexcept nogil
    cdef struct ArrowArray:
        int64_t length, null_count, offset, n_buffers, n_children
        const void **buffers
        ArrowArray **children
        ArrowArray *dictionary
        void (*release)(ArrowArray *) noexcept nogil
    cdef struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream *, ArrowSchema *) noexcept nogil
        int (*get_next)(ArrowArrayStream *, ArrowArray *) noexcept nogil
        const char *(*get_last_error)(ArrowArrayStream *) noexcept nogil
        void (*release)(ArrowArrayStream *) noexcept nogil


#: No schema of a stream without batches may have more fields.
cdef int64_t _MOST_FIELDS = 10000
#: An array with fewer rows is released with the GIL held.
cdef int64_t _FEW_ROWS = 4096


@cython.final
cdef class Imported:
    """An Arrow array or record batch and its schema, released with this object."""

    cdef ArrowSchema schema
    cdef ArrowArray array

    def __cinit__(self):
        self.schema.release = NULL
        self.array.release = NULL

    def __dealloc__(self):
        if self.array.release != NULL:
            if self.array.length < _FEW_ROWS:
                self.array.release(&self.array)
            else:
                with nogil:
                    self.array.release(&self.array)
                    want_gil()
                got_gil()
        if self.schema.release != NULL:
            self.schema.release(&self.schema)

    cdef take(self, exported):
        """Move the structs out of the two capsules that ``__arrow_c_array__()`` returned."""
        cdef ArrowSchema *schema
        cdef ArrowArray *array
        if not isinstance(exported, tuple) or len(exported) != 2:
            raise TypeError(f"__arrow_c_array__() must return two capsules, not {exported!r:.100}")
        schema = <ArrowSchema *>in_capsule(exported[0], "arrow_schema")
        array = <ArrowArray *>in_capsule(exported[1], "arrow_array")
        if schema.release == NULL or array.release == NULL:
            raise ValueError("the Arrow array has been released already: its capsule can be "
                             "imported only once")
        self.schema = schema[0]
        schema.release = NULL
        self.array = array[0]
        array.release = NULL


cdef void *in_capsule(capsule, const char *name) except NULL:
    if not PyCapsule_IsValid(capsule, name):
        raise TypeError(f"expected an Arrow capsule named {name.decode()!r}, not {capsule!r:.100}")
    return PyCapsule_GetPointer(capsule, name)


cdef Imported imported(data):
    cdef Imported found = Imported.__new__(Imported)
    found.take(data.__arrow_c_array__())
    return found


cdef int64_t take_arrow_cells(Columns columns, Cells *cells, data, str name) except -1:
    cdef Imported found = imported(data)
    columns.owners.append(found)
    arrow_cells(columns, cells, &found.schema, &found.array, 0, found.array.length, name)
    return found.array.length


cdef int64_t take_arrow_numbers(Columns columns, Numbers *numbers, data, str name,
                                int64_t most) except -1:
    cdef Imported found = imported(data)
    columns.owners.append(found)
    arrow_numbers(columns, numbers, &found.schema, &found.array, 0, found.array.length, name)
    check_numbers(numbers, found.array.length, name, most, 0)
    return found.array.length


# -- record batches ----------------------------------------------------------------------------

cdef tuple _COLUMNS = ("value", "key", "topic", "partition", "headers", "timestamp")


cdef list column_names(ArrowSchema *schema):
    """Return the names of a record batch's columns."""
    cdef int64_t i
    cdef list names = []
    for i in range(schema.n_children):
        name = text_of(child_schema(schema, i).name)
        if name not in _COLUMNS:
            raise ValueError(f"unknown column {name!r}; columns are value, key, topic, partition, "
                             f"headers and timestamp")
        if name in names:
            raise ValueError(f"column {name!r} occurs more than once")
        names.append(name)
    if "value" not in names:
        raise ValueError(f"there is no column 'value' (columns: {', '.join(names) or 'none'})")
    return names


cdef Columns columns_of_batch(ArrowSchema *schema, ArrowArray *array, owner, int64_t base,
                              bint check=True):
    """Return the columns of a record batch for ``send_arrow``. *base*: number of rows before it.

    *check*: raise a ValueError because of a row that cannot be sent.
    """
    cdef Columns columns = Columns.__new__(Columns)
    cdef int64_t i, shift = array.offset, count = array.length
    cdef ArrowSchema *s
    cdef ArrowArray *a
    columns.owners.append(owner)
    if text_of(schema.format) != "+s":
        raise TypeError("send_arrow() takes a record batch or a table with a column 'value'; pass "
                        "a single array to send_many()")
    check_array(schema, array, 0, "the record batch")
    columns.count = count
    if check:
        refuse_null_rows(array, base)
    for i, name in enumerate(column_names(schema)):
        s = child_schema(schema, i)
        a = child_array(array, i)
        if name == "value":
            arrow_cells(columns, &columns.value, s, a, shift, count, name)
        elif name == "key":
            arrow_cells(columns, &columns.key, s, a, shift, count, name)
        elif name == "topic":
            arrow_cells(columns, &columns.topic, s, a, shift, count, name)
        elif name == "headers":
            arrow_headers(columns, &columns.headers, s, a, shift, count)
            if check:
                check_names(&columns.headers, count, base)
        elif name == "partition":
            arrow_numbers(columns, &columns.partition, s, a, shift, count, name)
            if check:
                check_numbers(&columns.partition, count, name, _MOST_PARTITION, base)
        else:
            arrow_numbers(columns, &columns.timestamp, s, a, shift, count, name)
            if check:
                check_numbers(&columns.timestamp, count, name, _MOST_TIMESTAMP, base)
    return columns


cdef refuse_null_rows(ArrowArray *array, int64_t base):
    """Raise a ValueError if a struct is null, because its cells are undefined.

    A record batch has no null rows, but an array of structs may have some.
    """
    cdef const uint8_t *validity = validity_of(array, "the record batch")
    cdef int64_t i
    for i in range(array.length if validity != NULL else 0):
        if is_null(validity, array.offset + i):
            raise row_error(base + i, "the struct is null; each row must be a struct with a field "
                                      "'value', which may be null")


# -- streams -----------------------------------------------------------------------------------

@cython.final
cdef class Stream:
    """An Arrow stream, moved out of its capsule.

    Its functions run without the GIL, because they may wait for threads that need it, such as those
    that read files through Python code.
    """

    cdef ArrowArrayStream stream

    def __cinit__(self):
        self.stream.release = NULL

    def __dealloc__(self):
        if self.stream.release != NULL:
            with nogil:
                self.stream.release(&self.stream)
                want_gil()
            got_gil()

    cdef take(self, capsule):
        cdef ArrowArrayStream *stream = <ArrowArrayStream *>in_capsule(capsule,
                                                                       "arrow_array_stream")
        if stream.release == NULL:
            raise ValueError("the Arrow stream has been released already: it can be read only once")
        self.stream = stream[0]
        stream.release = NULL

    cdef read_schema(self, Imported found):
        cdef int failed
        with nogil:
            failed = self.stream.get_schema(&self.stream, &found.schema)
            want_gil()
        got_gil()
        if failed:
            found.schema.release = NULL
            raise ValueError(f"the Arrow stream has no schema: {self.error()}")
        if found.schema.release == NULL:
            raise ValueError("the Arrow stream has no schema")

    cdef bint read_batch(self, Imported found) except -1:
        """Read the next batch. Return false at the end of the stream."""
        cdef int failed
        with nogil:
            failed = self.stream.get_next(&self.stream, &found.array)
            want_gil()
        got_gil()
        if failed:
            found.array.release = NULL
            raise ValueError(f"the Arrow stream failed: {self.error()}")
        # No bytecode runs between batches, so Ctrl-C would have to wait for the end of the stream.
        PyErr_CheckSignals()
        return found.array.release != NULL

    cdef str error(self):
        cdef const char *text = self.stream.get_last_error(&self.stream)
        return "no reason given" if text == NULL else text.decode("utf-8", "replace")


def columns_of_arrow(data):
    """Return the columns of each record batch of *data*, in order.

    *data*: a RecordBatch, a Table, or any object with ``__arrow_c_array__`` or
    ``__arrow_c_stream__``. A stream is read to its end. Raises TypeError or ValueError.
    """
    cdef Imported found
    if hasattr(data, "__arrow_c_array__"):
        found = imported(data)
        return [columns_of_batch(&found.schema, &found.array, found, 0)]
    if not hasattr(data, "__arrow_c_stream__"):
        raise TypeError(f"send_arrow() takes Arrow data (with __arrow_c_array__ or "
                        f"__arrow_c_stream__), not {type(data).__name__}")
    return read_stream(data.__arrow_c_stream__())


cdef list read_stream(capsule):
    cdef Stream stream = Stream.__new__(Stream)
    cdef Imported schema = Imported.__new__(Imported)
    cdef Imported batch
    cdef Columns columns
    cdef list found = []
    cdef int64_t rows = 0
    stream.take(capsule)
    stream.read_schema(schema)
    while True:
        batch = Imported.__new__(Imported)
        if not stream.read_batch(batch):
            break
        columns = columns_of_batch(&schema.schema, &batch.array, [schema, batch], rows)
        found.append(columns)
        rows += columns.count
    if not found:
        columns = Columns.__new__(Columns)
        columns_of_batch(&schema.schema, empty_array(columns, &schema.schema), columns, 0)
    return found


cdef list cells_of_stream(capsule, str name):
    """Return copies of the cells of a chunked array: bytes objects, or None."""
    cdef Stream stream = Stream.__new__(Stream)
    cdef Imported schema = Imported.__new__(Imported)
    cdef Imported chunk
    cdef Columns columns = Columns.__new__(Columns)
    cdef list found = []
    cdef int64_t i, size
    cdef const uint8_t *data
    stream.take(capsule)
    stream.read_schema(schema)
    # Checks the type, even if there is no chunk.
    arrow_cells(columns, &columns.value, &schema.schema, empty_array(columns, &schema.schema), 0, 0,
                name)
    while True:
        chunk = Imported.__new__(Imported)
        if not stream.read_batch(chunk):
            return found
        arrow_cells(columns, &columns.value, &schema.schema, &chunk.array, 0, chunk.array.length,
                    name)
        for i in range(columns.value.count):
            data = cell(&columns.value, i, &size)
            if size == _BROKEN:
                raise row_error(len(found), broken(name))
            found.append(None if size == _NULL
                         else PyBytes_FromStringAndSize(<const char *>data, size))


cdef ArrowArray *empty_array(Columns owner, ArrowSchema *schema, int depth=0) except NULL:
    """Return an array of *schema* without rows, in memory of *owner*."""
    cdef ArrowArray *array = <ArrowArray *>owner.hold(sizeof(ArrowArray))
    cdef int64_t i
    if depth > 2 * _MOST_DICTIONARIES or not 0 <= schema.n_children <= _MOST_FIELDS:
        raise ValueError(f"the Arrow schema is not valid: it has {schema.n_children} fields, "
                         f"{depth} levels deep")
    array.n_buffers = 3
    array.buffers = <const void **>owner.hold(3 * sizeof(void *))
    array.n_children = schema.n_children
    array.children = <ArrowArray **>owner.hold((schema.n_children + 1) * sizeof(ArrowArray *))
    for i in range(schema.n_children):
        array.children[i] = empty_array(owner, child_schema(schema, i), depth + 1)
    if schema.dictionary != NULL:
        array.dictionary = empty_array(owner, schema.dictionary, depth + 1)
    return array
