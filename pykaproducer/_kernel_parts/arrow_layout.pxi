# The memory layout of Arrow arrays, by their formats.
#
# The description in the C data interface is checked where that costs next to nothing: the buffers
# and children present, their numbers of rows, and the offsets and indices of each cell. The
# interface does not give the size of a buffer, so the exporter is trusted that offsets end within
# it.

#: No array may be longer, so that sums and products of lengths and offsets do not overflow.
cdef int64_t _MOST_ROWS = 1 << 56
#: Maximum nesting of dictionaries. Deeper nesting can only be a cycle.
cdef int _MOST_DICTIONARIES = 8


cdef str text_of(const char *text):
    """Return a name or a format as a str; a NULL name counts as empty."""
    return "" if text == NULL else text.decode("utf-8", "replace")


cdef invalid(str subject, str what):
    return ValueError(f"{subject} is not valid Arrow data: {what}")


cdef check_array(ArrowSchema *schema, ArrowArray *array, int64_t rows, str subject):
    """Raise a ValueError unless *array* has *rows* rows and matches its schema."""
    if array.length < 0 or array.length > _MOST_ROWS:
        raise invalid(subject, f"its length is {array.length}")
    if array.offset < 0 or array.offset > _MOST_ROWS:
        raise invalid(subject, f"its offset is {array.offset}")
    if array.length < rows:
        raise invalid(subject, f"it has {array.length} rows, but {rows} are required")
    if array.n_buffers < 0 or (array.n_buffers and array.buffers == NULL):
        raise invalid(subject, "it has no buffers")
    if schema.n_children != array.n_children or schema.n_children < 0:
        raise invalid(subject, f"it has {array.n_children} children, but its schema has "
                               f"{schema.n_children}")
    if (schema.dictionary == NULL) != (array.dictionary == NULL):
        raise invalid(subject, "only one of the schema and the array has a dictionary")


cdef ArrowSchema *child_schema(ArrowSchema *schema, int64_t i) except NULL:
    if schema.children == NULL or schema.children[i] == NULL:
        raise ValueError(f"the Arrow schema is not valid: child {i} is missing")
    return schema.children[i]


cdef ArrowArray *child_array(ArrowArray *array, int64_t i) except NULL:
    if array.children == NULL or array.children[i] == NULL:
        raise ValueError(f"the Arrow array is not valid: child {i} is missing")
    return array.children[i]


cdef const uint8_t *validity_of(ArrowArray *array, str subject) except? NULL:
    """Return the bitmap of the rows that are not null; NULL if none is null."""
    if array.n_buffers == 0 or array.null_count == 0:
        return NULL
    if array.buffers[0] == NULL and array.null_count > 0:
        raise invalid(subject, f"{array.null_count} rows are null, but there is no validity buffer")
    return <const uint8_t *>array.buffers[0]


cdef const void *buffer_of(ArrowArray *array, int64_t i, str subject) except? NULL:
    """Return buffer *i*, which may be missing if there are no rows."""
    if i >= array.n_buffers or (array.buffers[i] == NULL and array.length):
        raise invalid(subject, f"buffer {i} is missing")
    return array.buffers[i]


cdef arrow_cells(Columns columns, Cells *cells, ArrowSchema *schema, ArrowArray *array,
                 int64_t shift, int64_t count, str name, int depth=0):
    """Describe *count* cells of an array from cell *shift* (the offset of the struct around it)."""
    cdef str text = text_of(schema.format), subject = f"column {name!r}"
    check_array(schema, array, shift + count, subject)
    cells.offset = array.offset + shift
    cells.count = count
    cells.validity = validity_of(array, subject)
    if schema.dictionary != NULL:
        check_depth(depth, subject)
        cells.kind = DICTIONARY
        stored_integers(&cells.index, schema, array, shift, name)
        cells.dictionary = <Cells *>columns.hold(sizeof(Cells))
        arrow_cells(columns, cells.dictionary, schema.dictionary, array.dictionary, 0,
                    array.dictionary.length, name, depth + 1)
        cells.text = cells.dictionary.text
    elif text in ("z", "u", "Z", "U"):
        cells.kind = OFFSETS32 if text in "zu" else OFFSETS64
        cells.text = text in "uU"
        cells.offsets = buffer_of(array, 1, subject)
        if array.n_buffers < 3:
            raise invalid(subject, "buffer 2 is missing")
        cells.data = <const uint8_t *>array.buffers[2]      # NULL if all cells are empty
    elif text in ("vz", "vu"):
        arrow_views(cells, array, subject)
        cells.text = text == "vu"
    elif text.startswith("w:"):
        cells.kind = FIXED
        cells.width = cells.stride = fixed_width(text, subject)
        if cells.width:
            cells.data = <const uint8_t *>buffer_of(array, 1, subject)
    elif text == "n":
        cells.kind = ABSENT
    else:
        raise TypeError(f"{subject} must be binary or string (large, view, fixed-size or "
                        f"dictionary-encoded too), not of Arrow format {text!r}")


cdef check_depth(int depth, str subject):
    if depth >= _MOST_DICTIONARIES:
        raise invalid(subject, f"its dictionaries are nested {depth} levels deep")


cdef int64_t fixed_width(str text, str subject) except -1:
    """Return the size of a cell in a format such as "w:16"."""
    if not text[2:].isdecimal() or len(text) > 12:
        raise invalid(subject, f"its format is {text!r:.100}")
    return int(text[2:])


cdef arrow_views(Cells *cells, ArrowArray *array, str subject):
    """Describe views: their buffer, the buffers that they point into, and these buffers' sizes."""
    cells.kind = VIEWS
    cells.data = <const uint8_t *>buffer_of(array, 1, subject)
    cells.buffers = <const uint8_t **>array.buffers + 2
    cells.n_buffers = array.n_buffers - 3
    if cells.n_buffers > 0:
        cells.buffer_sizes = buffer_of(array, array.n_buffers - 1, subject)


#: Integers by Arrow's format: bytes, signed.
cdef dict _INTEGERS = {
    "c": (1, True), "C": (1, False), "s": (2, True), "S": (2, False),
    "i": (4, True), "I": (4, False), "l": (8, True), "L": (8, False),
}
#: Arrow's units of time: factor and divisor that give milliseconds.
cdef dict _UNITS = {"tss": (1000, 1), "tsm": (1, 1), "tsu": (1, 1000), "tsn": (1, 1000000)}


cdef arrow_numbers(Columns columns, Numbers *numbers, ArrowSchema *schema, ArrowArray *array,
                   int64_t shift, int64_t count, str name, int depth=0):
    """Describe numbers as arrow_cells does: integers, Arrow timestamps, or a dictionary."""
    cdef str subject = f"column {name!r}", unit
    check_array(schema, array, shift + count, subject)
    if text_of(schema.format) == "n":
        return                              # none is there
    numbers.there = True
    if schema.dictionary != NULL:
        check_depth(depth, subject)
        stored_integers(numbers, schema, array, shift, name)
        numbers.dictionary = <Numbers *>columns.hold(sizeof(Numbers))
        numbers.dictionary.count = array.dictionary.length
        arrow_numbers(columns, numbers.dictionary, schema.dictionary, array.dictionary, 0,
                      array.dictionary.length, name, depth + 1)
        return
    unit = text_of(schema.format).partition(":")[0]
    if unit in _UNITS and name.startswith("timestamp"):
        numbers.times, numbers.parts = _UNITS[unit]
        numbers.width = 8
        numbers.signed = True
        lie_in(numbers, array, shift, subject)
    else:
        stored_integers(numbers, schema, array, shift, name)


cdef stored_integers(Numbers *numbers, ArrowSchema *schema, ArrowArray *array, int64_t shift,
                     str name):
    """Describe stored integers: numbers, or indices into a dictionary."""
    cdef str text = text_of(schema.format)
    if text not in _INTEGERS:
        raise TypeError(f"column {name!r} must have integers, not Arrow format {text!r}")
    numbers.width, numbers.signed = _INTEGERS[text]
    numbers.times = numbers.parts = 1
    lie_in(numbers, array, shift, f"column {name!r}")


cdef lie_in(Numbers *numbers, ArrowArray *array, int64_t shift, str subject):
    numbers.stride = numbers.width
    numbers.offset = array.offset + shift
    numbers.validity = validity_of(array, subject)
    numbers.data = <const uint8_t *>buffer_of(array, 1, subject)


cdef arrow_headers(Columns columns, HeaderCells *headers, ArrowSchema *schema, ArrowArray *array,
                   int64_t shift, int64_t count):
    """Describe headers: a list of structs of a name and a value, or a map."""
    cdef str text = text_of(schema.format), kind, subject = "column 'headers'"
    cdef ArrowSchema *entry
    cdef ArrowArray *entries
    cdef int64_t key = 0
    if text not in ("n", "+l", "+L", "+m"):
        raise TypeError(f"{subject} must be a list of structs of key and value, or a map, "
                        f"not of Arrow format {text!r}")
    check_array(schema, array, shift + count, subject)
    if text == "n":
        return                              # no row has any
    if schema.n_children != 1:
        raise invalid(subject, f"a list has one child, not {schema.n_children}")
    entry = child_schema(schema, 0)
    entries = child_array(array, 0)
    kind = text_of(entry.format)
    if kind not in ("+s", "n"):             # "n": each of the lists is empty
        raise TypeError(f"{subject} must be a list of structs of key and value, or a map, "
                        f"not a list of Arrow format {kind!r}")
    check_array(entry, entries, 0, subject)
    headers.there = True
    headers.entries_offset = entries.offset
    headers.n_entries = entries.length
    headers.entries_validity = validity_of(entries, subject)
    headers.large = text == "+L"
    headers.offset = array.offset + shift
    headers.validity = validity_of(array, subject)
    headers.offsets = buffer_of(array, 1, subject)
    if kind == "n":
        return
    key = header_key(entry, text == "+m", subject)
    arrow_cells(columns, &headers.key, child_schema(entry, key), child_array(entries, key),
                headers.entries_offset, headers.n_entries, "headers.key")
    arrow_cells(columns, &headers.value, child_schema(entry, 1 - key),
                child_array(entries, 1 - key), headers.entries_offset, headers.n_entries,
                "headers.value")


cdef int64_t header_key(ArrowSchema *entry, bint is_map, str subject) except -1:
    """Return the index of the field with a header's name: a map's first, a struct's ``key``."""
    cdef int64_t i
    cdef list names = []
    if entry.n_children != 2:
        raise TypeError(f"{subject} must be a list of structs of key and value, or a map, "
                        f"not of structs of {entry.n_children} fields")
    if is_map:
        return 0
    for i in range(2):
        names.append(text_of(child_schema(entry, i).name))
    if sorted(names) != ["key", "value"]:
        raise TypeError(f"{subject} must be a list of structs of key and value, or a map, "
                        f"not of structs of {names[0]!r} and {names[1]!r}")
    return names.index("key")


cdef check_names(const HeaderCells *headers, int64_t count, int64_t base):
    """Reject header names that consumers could not decode. (Arrow strings are always UTF-8.)"""
    cdef int64_t i
    if headers.key.text:
        return
    with nogil:
        i = first_undecodable(headers, count)
        want_gil()
    got_gil()
    if i >= 0:
        raise row_error(base + i, "a header name is not valid UTF-8")


cdef int64_t first_undecodable(const HeaderCells *headers, int64_t count) noexcept nogil:
    """Return the first row with a header name that is not UTF-8, or -1."""
    cdef int64_t i, j, first, last, size
    cdef const uint8_t *name
    for i in range(count):
        if headers_size(headers, i) <= 0 or not find_headers(headers, i, &first, &last):
            continue                        # there are none, or measure() rejects the row
        for j in range(first, last):
            name = cell(&headers.key, j, &size)
            if not is_utf8(name, size):
                return i
    return -1
