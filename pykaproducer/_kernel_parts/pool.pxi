# The memory pool: reused memory for payload blocks, row tables and record batches.
#
# malloc() takes large pieces from the system and returns them to it. When they are mapped again,
# each of their pages causes a page fault and is cleared. Large pieces therefore come from slabs of
# 2 MiB, each of which the system may map as one huge page (one fault for 512 pages; a tenth of the
# time where faults are expensive). A few empty slabs are kept for all producers of the process; the
# rest is returned.
#
# There is no lock, so the pool may be used without the GIL and a fork finds no lock held. A slab's
# `room` has one bit for each free piece. The thread that clears a bit owns that piece. The thread
# that clears all of them owns the slab and may unmap it. A non-NULL `base` does not change as long
# as a piece is in use.

cdef extern from *:
    """
    #include <sys/mman.h>

    #define SLAB ((size_t)2 << 20)
    #define PIECES 64
    #define PIECE (SLAB / PIECES)
    #define SLABS 1024          /* beyond 2 GiB, malloc() is used */
    #define EMPTY_SLABS 8       /* kept for reuse: 16 MiB */

    static struct {
        char *base;             /* NULL: no slab */
        uint64_t room;
    } slabs[SLABS];
    static int slabs_end;       /* one past the last index ever used */

    static inline int pieces_of(size_t size) { return (int)((size + PIECE - 1) / PIECE); }
    static inline uint64_t run_of(int pieces) {
        return pieces == PIECES ? ~(uint64_t)0 : ((uint64_t)1 << pieces) - 1;
    }
    /* Index of the first run of that many adjacent free pieces; -1 if there is none. */
    static inline int find_run(uint64_t room, int pieces) {
        int have = 1;
        while (have < pieces) {
            int more = have < pieces - have ? have : pieces - have;
            room &= room >> more;
            have += more;
        }
        return room ? __builtin_ctzll(room) : -1;
    }

    static void *take_pieces(int pieces) {
        int end = __atomic_load_n(&slabs_end, __ATOMIC_ACQUIRE);
        for (int i = 0; i < end; i++) {
            uint64_t room = __atomic_load_n(&slabs[i].room, __ATOMIC_RELAXED);
            int at;
            while (room && (at = find_run(room, pieces)) >= 0) {
                if (__atomic_compare_exchange_n(&slabs[i].room, &room,
                                                room & ~(run_of(pieces) << at), 0,
                                                __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
                    return slabs[i].base + at * PIECE;
            }
        }
        return NULL;
    }

    static char *map_slab(void) {
        char *mapped = mmap(NULL, 2 * SLAB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                            -1, 0);
        if (mapped == MAP_FAILED) return NULL;
        char *base = (char *)(((uintptr_t)mapped + SLAB - 1) & ~(uintptr_t)(SLAB - 1));
        if (base > mapped) munmap(mapped, base - mapped);
        if (mapped + SLAB > base) munmap(base + SLAB, mapped + SLAB - base);
    #ifdef MADV_HUGEPAGE
        madvise(base, SLAB, MADV_HUGEPAGE);
    #endif
        return base;
    }

    /* Add a new slab with *room* to the list. Returns its base, or NULL if the list is full. */
    static void *enlist(char *base, uint64_t room) {
        for (int i = 0; i < SLABS; i++) {
            char *none = NULL;
            if (!__atomic_compare_exchange_n(&slabs[i].base, &none, base, 0, __ATOMIC_ACQ_REL,
                                             __ATOMIC_RELAXED)) continue;
            __atomic_store_n(&slabs[i].room, room, __ATOMIC_RELEASE);
            int end = __atomic_load_n(&slabs_end, __ATOMIC_RELAXED);
            while (end < i + 1
                   && !__atomic_compare_exchange_n(&slabs_end, &end, i + 1, 0, __ATOMIC_ACQ_REL,
                                                   __ATOMIC_RELAXED)) {}
            return base;
        }
        munmap(base, SLAB);
        return NULL;
    }

    static int empty_slabs(int end) {
        int found = 0;
        for (int i = 0; i < end; i++)
            found += __atomic_load_n(&slabs[i].room, __ATOMIC_RELAXED) == ~(uint64_t)0;
        return found;
    }

    static void give_pieces(int slab, char *memory, int pieces) {
        uint64_t run = run_of(pieces) << ((memory - slabs[slab].base) / PIECE);
        uint64_t all = ~(uint64_t)0;
        if (__atomic_or_fetch(&slabs[slab].room, run, __ATOMIC_ACQ_REL) != all) return;
        if (empty_slabs(__atomic_load_n(&slabs_end, __ATOMIC_ACQUIRE)) <= EMPTY_SLABS) return;
        if (__atomic_compare_exchange_n(&slabs[slab].room, &all, 0, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
            char *base = slabs[slab].base;
            __atomic_store_n(&slabs[slab].base, NULL, __ATOMIC_RELEASE);
            munmap(base, SLAB);
        }
    }

    /* Count the bytes of all slabs, and how many of them are in use. */
    static void count_pool(int64_t *mapped, int64_t *out) {
        int end = __atomic_load_n(&slabs_end, __ATOMIC_ACQUIRE);
        *mapped = *out = 0;
        for (int i = 0; i < end; i++) {
            if (__atomic_load_n(&slabs[i].base, __ATOMIC_RELAXED) == NULL) continue;
            uint64_t room = __atomic_load_n(&slabs[i].room, __ATOMIC_RELAXED);
            *mapped += SLAB;
            *out += SLAB - PIECE * __builtin_popcountll(room);
        }
    }
    static int slabs_are_left(void) {
    #ifdef PYKAPRODUCER_NO_POOL         /* a sanitizer only tracks malloc() blocks */
        return 0;
    #endif
        for (int i = 0; i < SLABS; i++)
            if (__atomic_load_n(&slabs[i].base, __ATOMIC_RELAXED) == NULL) return 1;
        return 0;
    }
    /* Return whether the next large allocation would have to map a new slab. */
    static int pool_is_low(void) {
        int end = __atomic_load_n(&slabs_end, __ATOMIC_ACQUIRE);
        return end > 0 && empty_slabs(end) == 0 && slabs_are_left();
    }
    /* Map a slab in advance and touch its pages: it takes the system long to clear them. */
    static void fill_pool(void) {
        char *base = map_slab();
        if (base == NULL) return;
        for (size_t at = 0; at < SLAB; at += 4096) ((volatile char *)base)[at] = 0;
        enlist(base, ~(uint64_t)0);
    }

    /* For tests: after `granted` allocations, the next `refusals` fail. */
    static int64_t granted, refusals;
    static inline int is_refused(void) {
        if (__builtin_expect(__atomic_load_n(&refusals, __ATOMIC_RELAXED) == 0, 1)) return 0;
        if (__atomic_sub_fetch(&granted, 1, __ATOMIC_RELAXED) >= 0) return 0;
        return __atomic_fetch_sub(&refusals, 1, __ATOMIC_RELAXED) > 0;
    }

    /* Reserved address space, never touched. A stage needs row numbers to settle rows, and that
       must not fail when memory is short. The reserve is unmapped then, and mapped again later. */
    #define RESERVE ((size_t)4 << 20)
    static void *reserve;
    static void fill_reserve(void) {
        if (__atomic_load_n(&reserve, __ATOMIC_RELAXED) != NULL) return;
        void *none = NULL;
        void *made = mmap(NULL, RESERVE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) return;
        if (!__atomic_compare_exchange_n(&reserve, &none, made, 0,
                                         __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            munmap(made, RESERVE);
    }
    /* As malloc(), but use the reserve if necessary. For small, short-lived arrays. */
    static void *new_numbers(size_t size) {
        void *found = is_refused() ? NULL : malloc(size);
        if (found != NULL) {
            fill_reserve();
            return found;
        }
        void *held = __atomic_exchange_n(&reserve, NULL, __ATOMIC_SEQ_CST);
        if (held == NULL) return NULL;
        munmap(held, RESERVE);
        return is_refused() ? NULL : malloc(size);
    }

    static void *new_memory(size_t size) {
        void *found = NULL;
        if (is_refused()) return NULL;
        if (size >= PIECE && size <= SLAB) {
            int pieces = pieces_of(size);
            found = take_pieces(pieces);
            if (found == NULL && slabs_are_left()) {
                found = map_slab();
                if (found != NULL) found = enlist(found, ~run_of(pieces));
            }
        }
        return found != NULL ? found : malloc(size ? size : 1);
    }
    /* Return the slab that contains *memory* of that size; -1 if malloc() allocated it. */
    static int slab_of(void *memory, size_t size) {
        if (memory == NULL || size < PIECE || size > SLAB) return -1;
        char *base = (char *)((uintptr_t)memory & ~(uintptr_t)(SLAB - 1));
        int end = __atomic_load_n(&slabs_end, __ATOMIC_ACQUIRE);
        for (int i = 0; i < end; i++)
            if (__atomic_load_n(&slabs[i].base, __ATOMIC_ACQUIRE) == base) return i;
        return -1;
    }
    /* `size` is the size that was requested from new_memory(). */
    static void free_memory(void *memory, size_t size) {
        int slab = slab_of(memory, size);
        if (slab < 0) free(memory);
        else give_pieces(slab, memory, pieces_of(size));
    }
    /* Release the bytes after the first `needed`. Returns the remaining size. */
    static size_t shrunk_memory(void *memory, size_t size, size_t needed) {
        if (needed < PIECE) needed = PIECE;     /* a smaller size would mean malloc() memory */
        int slab = slab_of(memory, size), kept = pieces_of(needed);
        if (slab < 0 || kept >= pieces_of(size)) return size;
        give_pieces(slab, (char *)memory + kept * PIECE, pieces_of(size) - kept);
        return needed;
    }
    /* As realloc(): NULL if there is no memory, with the old allocation unchanged. */
    static void *grown_memory(void *memory, size_t size, size_t grown) {
        if (grown < PIECE) return realloc(memory, grown);
        void *larger = new_memory(grown);
        if (larger != NULL) {
            if (size) memcpy(larger, memory, size);
            free_memory(memory, size);
        }
        return larger;
    }
    """
    void count_pool(int64_t *mapped, int64_t *out) noexcept nogil
    bint pool_is_low() noexcept nogil
    void fill_pool() noexcept nogil
    int64_t granted, refusals
    void *new_numbers(size_t size) noexcept nogil
    void *new_memory(size_t size) noexcept nogil
    void free_memory(void *memory, size_t size) noexcept nogil
    size_t shrunk_memory(void *memory, size_t size, size_t needed) noexcept nogil
    void *grown_memory(void *memory, size_t size, size_t grown) noexcept nogil


cdef void free_block(Block *block) noexcept nogil:
    """Free the memory of *block*."""
    free_memory(block.data, block.capacity)
    block.data = NULL
    block.used = 0


def pool_use():
    """Return ``(mapped, out)``: bytes of all slabs of this process, and how many are in use."""
    cdef int64_t mapped, out
    count_pool(&mapped, &out)
    return mapped, out


def refuse_memory(int64_t after, int64_t times):
    """Let the kernel's next *after* allocations succeed, then fail *times* of them, for tests."""
    global granted, refusals
    refusals = 0
    granted = after
    refusals = times


@cython.final
@cython.no_gc
cdef class Referred:
    """A part of the memory of an immutable object, as a read-only buffer."""

    cdef const uint8_t *data
    cdef Py_ssize_t size
    cdef object source                  # a tuple of bytes objects

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *>self.data, self.size, True, flags)
        Py_DECREF(None)         # as below


cdef Referred referred(const uint8_t *data, Py_ssize_t size, source):
    cdef Referred made = Referred.__new__(Referred)
    made.data, made.size, made.source = data, size, source
    return made


@cython.final
@cython.no_gc
cdef class RecordBatch:
    """The bytes of a record batch, for a socket or a codec: a read-only buffer, or pieces."""

    cdef uint8_t *data
    cdef Py_ssize_t size, capacity
    cdef list pieces                        # read-only buffers, the first of them bytes; or None
    cdef readonly Py_ssize_t plain_size     # its size without compression, in bytes
    cdef readonly Py_ssize_t largest_record  # bytes of its largest record, without the length

    def __cinit__(self, Py_ssize_t capacity):
        self.data = <uint8_t *>new_memory(capacity)
        if self.data == NULL:
            raise MemoryError(f"out of memory: cannot allocate a batch of {capacity:,} bytes")
        self.size = self.capacity = capacity

    def __dealloc__(self):
        free_memory(self.data, self.capacity)

    def __len__(self):
        return self.size

    cdef void end_at(self, Py_ssize_t size) noexcept nogil:
        """Set the number of bytes used, and release the rest."""
        self.capacity = shrunk_memory(self.data, self.capacity, size)
        self.size = size

    cdef void become(self, list pieces) noexcept:
        """Consist of *pieces*, whose sizes add up to :attr:`size`."""
        free_memory(self.data, self.capacity)
        self.data, self.capacity = NULL, 0
        self.pieces = pieces

    cdef uint8_t *begin(self) noexcept:
        """Return its first bytes, the header. To be changed only while nothing else reads them."""
        return self.data if self.pieces is None else <uint8_t *>PyBytes_AS_STRING(self.pieces[0])

    cdef uint32_t checksum(self, function) except? 0:
        """Return the checksum of all but the first 21 bytes; *function*: see encode_batch()."""
        cdef Py_ssize_t i
        if self.pieces is None:
            return <uint32_t>function(memoryview(self)[21:])
        found = function(memoryview(self.pieces[0])[21:])
        for i in range(1, len(self.pieces)):
            found = function(self.pieces[i], found)
        return <uint32_t>found

    def __bytes__(self):
        if self.pieces is None:
            return PyBytes_FromStringAndSize(<char *>self.data, self.size)
        return b"".join(self.pieces)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.pieces is not None:
            raise BufferError("the batch consists of pieces; use bytes()")
        PyBuffer_FillInfo(view, self, self.data, self.size, True, flags)
        Py_DECREF(None)         # Cython stored None in `view.obj`, and the call has replaced it
