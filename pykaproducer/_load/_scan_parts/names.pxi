# The names of members of JSON objects, as a tree.

cdef struct Node:
    int32_t parent
    #: The name that came next, or as the first in an object, when this node was met last.
    int32_t follower
    int32_t first
    int32_t length
    int64_t at  # of the name in the text of all names
    uint64_t seen  # the object in which it was met last
    int32_t column
    uint32_t hash
    bint raw  # the name stands like this in JSON
    bint direct  # not within an array


@cython.final
cdef class _Names:
    """A tree of all names met: the members of the root are columns, below are nested objects.

    It serves three purposes. A member met twice in the same object is refused, which is seen by the
    object's number in its node. The columns of a file are the root's members, in the order of first
    appearance. And a member that a line needs is found by its node.

    Lines resemble each other: each node remembers which one followed it last time, and comparing
    these bytes is all that a name costs then. A tree that grows too large (ids used as names) is
    cut down to its first nodes.
    """

    cdef Node *nodes
    cdef int32_t count
    cdef int32_t room
    #: Nodes that are kept when the tree is cut down.
    cdef int32_t kept
    cdef int32_t *table
    cdef int64_t table_size
    cdef uint8_t *text
    cdef int64_t text_size
    cdef int64_t text_room
    cdef uint64_t seed

    def __cinit__(self):
        self.seed = <uint64_t>hash("a name") | 1  # differs from process to process
        self.room = 64
        self.table_size = 256
        self.text_room = 1024
        self.nodes = <Node *>malloc(self.room * sizeof(Node))
        self.table = <int32_t *>malloc(self.table_size * sizeof(int32_t))
        self.text = <uint8_t *>malloc(self.text_room)
        if self.nodes == NULL or self.table == NULL or self.text == NULL:
            raise MemoryError
        self.nodes[ROOT] = Node(-1, -1, -1, 0, 0, 0, PLAIN, 0, False, True)
        self.count = self.kept = 1
        memset(self.table, 0xFF, self.table_size * sizeof(int32_t))

    def __dealloc__(self):
        free(self.nodes)
        free(self.table)
        free(self.text)

    cdef uint32_t hashed(self, int32_t parent, const uint8_t *name, int64_t length) noexcept nogil:
        cdef uint64_t value = self.seed + <uint64_t>parent * 0x9E3779B97F4A7C15ULL
        cdef uint64_t word
        while length > 0:
            word = 0
            memcpy(&word, name, 8 if length > 8 else length)
            value = (value ^ word ^ <uint64_t>length) * 0x9E3779B97F4A7C15ULL
            value ^= value >> 29
            name += 8
            length -= 8
        return <uint32_t>(value >> 16)

    cdef int32_t find(self, int32_t parent, const uint8_t *name, int64_t length,
                      bint raw) noexcept nogil:
        """Return the node of a member, which is added if it is new, or -1 without memory."""
        cdef uint32_t value = self.hashed(parent, name, length)
        cdef int64_t place = value & (self.table_size - 1)
        cdef int32_t found
        cdef Node *node
        while self.table[place] >= 0:
            found = self.table[place]
            node = &self.nodes[found]
            if (node.hash == value and node.parent == parent and node.length == length
                    and memcmp(self.text + node.at, name, length) == 0):
                if raw:
                    node.raw = True
                return found
            place = (place + 1) & (self.table_size - 1)
        if self.count >= MOST_NAMES or not self.reserve(length):
            return -1
        memcpy(self.text + self.text_size, name, length)
        node = &self.nodes[self.count]
        node[0] = Node(parent, -1, -1, <int32_t>length, self.text_size, 0, PLAIN, value, raw, False)
        self.text_size += length
        self.count += 1
        self.enter(self.count - 1)
        return self.count - 1

    cdef void enter(self, int32_t found) noexcept nogil:
        """Enter a node into the table."""
        cdef int64_t place = self.nodes[found].hash & (self.table_size - 1)
        while self.table[place] >= 0:
            place = (place + 1) & (self.table_size - 1)
        self.table[place] = found

    cdef bint reserve(self, int64_t length) noexcept nogil:
        """Make room for one more node with a name of *length* bytes."""
        cdef void *new
        cdef int32_t place
        if self.text_size + length > self.text_room:
            new = realloc(self.text, (self.text_size + length) * 2)
            if new == NULL:
                return False
            self.text = <uint8_t *>new
            self.text_room = (self.text_size + length) * 2
        if self.count < self.room:
            return True
        new = realloc(self.nodes, self.room * 2 * sizeof(Node))
        if new == NULL:
            return False
        self.nodes = <Node *>new
        new = malloc(self.table_size * 2 * sizeof(int32_t))
        if new == NULL:
            return False
        free(self.table)
        self.table = <int32_t *>new
        self.table_size *= 2
        self.room *= 2
        memset(self.table, 0xFF, self.table_size * sizeof(int32_t))
        for place in range(1, self.count):
            self.enter(place)
        return True

    cdef void cut(self, bint members) noexcept nogil:
        """Drop all nodes but those to keep; *members*: keep those of the root, too."""
        cdef int32_t place
        cdef int64_t size = 0
        cdef int32_t count = 1
        for place in range(1, self.count):
            if place < self.kept or (members and self.nodes[place].parent == ROOT):
                self.nodes[count] = self.nodes[place]
                memmove(self.text + size, self.text + self.nodes[count].at,
                        self.nodes[count].length)
                self.nodes[count].at = size
                size += self.nodes[count].length
                count += 1
        self.count = count
        self.text_size = size
        memset(self.table, 0xFF, self.table_size * sizeof(int32_t))
        for place in range(count):
            self.nodes[place].follower = self.nodes[place].first = -1
            if place:
                self.enter(place)

    cdef str name(self, int32_t place):
        cdef Node *node = &self.nodes[place]
        return PyUnicode_DecodeUTF8(<char *>self.text + node.at, node.length, "replace")
