# C helpers: clocks, varints and big-endian numbers, hashes, atomic counters.

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #include <time.h>

    /* The clock that Python's time.monotonic() reads. */
    #ifdef __APPLE__
    #define KAFKA_MONOTONIC CLOCK_UPTIME_RAW
    #else
    #define KAFKA_MONOTONIC CLOCK_MONOTONIC
    #endif
    static inline int64_t kernel_clock(int which) {
        struct timespec t;
        clock_gettime(which ? CLOCK_REALTIME : KAFKA_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000LL + t.tv_nsec;
    }

    /* Zigzag varints, as the record format of KIP-98 writes every length and delta. */
    static inline uint64_t zigzag(int64_t n) { return ((uint64_t)n << 1) ^ (uint64_t)(n >> 63); }
    static inline int varint_size(int64_t n) {
        int bits = 64 - __builtin_clzll(zigzag(n) | 1);
        return (bits * 9 + 64) >> 6;            /* bits / 7, rounded up */
    }
    static inline uint8_t *put_varint(uint8_t *p, int64_t n) {
        uint64_t z = zigzag(n);
        while (__builtin_expect(z >= 0x80, 0)) { *p++ = (uint8_t)(z | 0x80); z >>= 7; }
        *p++ = (uint8_t)z;
        return p;
    }
    static inline void put_be16(uint8_t *p, uint16_t v) { p[0] = v >> 8; p[1] = v & 0xff; }
    static inline void put_be32(uint8_t *p, uint32_t v) {
        p[0] = v >> 24; p[1] = (v >> 16) & 0xff; p[2] = (v >> 8) & 0xff; p[3] = v & 0xff;
    }
    static inline void put_be64(uint8_t *p, uint64_t v) {
        put_be32(p, (uint32_t)(v >> 32)); put_be32(p + 4, (uint32_t)v);
    }

    /* Numbers of a response, and lengths as the flexible versions of the protocol write them. */
    static inline uint64_t get_be(const uint8_t *p, int size) {
        uint64_t n = 0;
        while (size--) n = n << 8 | *p++;
        return n;
    }
    static inline int uvarint_size(uint32_t n) {
        int size = 1;
        while (n >= 0x80) { n >>= 7; size++; }
        return size;
    }
    static inline uint8_t *put_uvarint(uint8_t *p, uint32_t n) {
        while (n >= 0x80) { *p++ = (uint8_t)(n | 0x80); n >>= 7; }
        *p++ = (uint8_t)n;
        return p;
    }

    /* Kafka's murmur2 (the Java client's Utils.murmur2), seed 0x9747b28c. */
    static uint32_t kafka_murmur2(const uint8_t *data, int32_t length) {
        const uint32_t m = 0x5bd1e995;
        uint32_t h = 0x9747b28cu ^ (uint32_t)length;
        int32_t left = length;
        while (left >= 4) {
            uint32_t k = (uint32_t)data[0] | (uint32_t)data[1] << 8
                       | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
            k *= m; k ^= k >> 24; k *= m;
            h *= m; h ^= k;
            data += 4; left -= 4;
        }
        switch (left) {
            case 3: h ^= (uint32_t)data[2] << 16; /* fall through */
            case 2: h ^= (uint32_t)data[1] << 8;  /* fall through */
            case 1: h ^= (uint32_t)data[0]; h *= m;
        }
        h ^= h >> 13; h *= m; h ^= h >> 15;
        return h;
    }
    /* CRC-32 as in zlib (polynomial 0xedb88320, reflected), four bytes at a time. Not zlib's own: a
       wheel would have to bring it along. */
    static uint32_t crc_table[4][256];
    static void fill_crc_table(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int bit = 0; bit < 8; bit++) c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
            crc_table[0][i] = c;
        }
        for (int i = 0; i < 256; i++)
            for (int k = 1; k < 4; k++)
                crc_table[k][i] = crc_table[k - 1][i] >> 8
                                ^ crc_table[0][crc_table[k - 1][i] & 255];
    }
    static uint32_t crc32_of(const uint8_t *data, int32_t length) {
        uint32_t c = 0xffffffffu;
        for (; length >= 4; data += 4, length -= 4) {
            c ^= (uint32_t)data[0] | (uint32_t)data[1] << 8
               | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
            c = crc_table[3][c & 255] ^ crc_table[2][c >> 8 & 255]
              ^ crc_table[1][c >> 16 & 255] ^ crc_table[0][c >> 24];
        }
        while (length-- > 0) c = crc_table[0][(c ^ *data++) & 255] ^ c >> 8;
        return ~c;
    }
    /* FNV-1a, 32 bits, as Sarama's hash partitioner uses it. */
    static uint32_t kafka_fnv1a(const uint8_t *data, int32_t length) {
        uint32_t h = 0x811c9dc5u;
        for (int32_t i = 0; i < length; i++) { h ^= data[i]; h *= 0x01000193u; }
        return h;
    }
    /* A handle is created (+1) or freed (-1). Returns the row's new handle count. */
    static inline int hold(uint32_t *held, uint8_t *handle_count, int change) {
        *held += (uint32_t)change;
        return *handle_count == 255 ? 255 : (*handle_count += (uint8_t)change);
    }
    static inline int64_t atomic_add(int64_t *n, int64_t change) {
        return __atomic_fetch_add(n, change, __ATOMIC_SEQ_CST);
    }
    /* Sets a flag. Returns its old value. */
    static inline int exchange_int(int *n, int value) {
        return __atomic_exchange_n(n, value, __ATOMIC_SEQ_CST);
    }
    /* Adds unless the sum would exceed the limit, so no thread ever sees a larger value. */
    static inline int atomic_add_below(int64_t *n, int64_t change, int64_t limit) {
        int64_t seen = __atomic_load_n(n, __ATOMIC_SEQ_CST);
        do {
            if (change > limit - seen) return 0;
        } while (!__atomic_compare_exchange_n(n, &seen, seen + change, 1,
                                              __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
        return 1;
    }
    /* A lock for short sections that run no Python code and do not release the GIL. With a GIL
       nothing more is needed. See "Locks" in _kernel.pyx. */
    typedef char Guard;
    #ifdef Py_GIL_DISABLED
    #include <sched.h>
    #define FREE_THREADED 1
    static inline int is_entered(Guard *guard) {
        return __atomic_exchange_n(guard, 1, __ATOMIC_ACQUIRE);
    }
    /* A thread waits detached from the interpreter, and enters attached. */
    static void pause_detached(int64_t ns) {
        struct timespec pause = {0, ns};
        PyThreadState *state = PyEval_SaveThread();
        if (ns > 0) nanosleep(&pause, NULL);
        else sched_yield();
        PyEval_RestoreThread(state);
    }
    static void wait_for_guard(Guard *guard) {
        for (;;) {
            for (int tries = 0; tries < 64; tries++)    /* a look disturbs less than an attempt */
                if (!__atomic_load_n(guard, __ATOMIC_RELAXED) && !is_entered(guard)) return;
            pause_detached(0);
        }
    }
    static inline void enter_guard(Guard *guard) {
        if (__builtin_expect(is_entered(guard), 0)) wait_for_guard(guard);
    }
    /* As enter_guard(), where several threads may come in tight loops. If they take turns, each
       entry moves all that the guard protects from one processor to another, which takes several
       times longer than the section. So if a thread had to wait less than CROWDED ns ago, the next
       one that has to wait pauses first, and the others make progress without it. */
    #define CROWDED 100000
    #define PAUSE 50000
    static void wait_in_crowd(Guard *guard, int64_t *waited_at) {
        int64_t now = kernel_clock(0);
        if (now - __atomic_exchange_n(waited_at, now, __ATOMIC_RELAXED) < CROWDED)
            pause_detached(PAUSE);
        wait_for_guard(guard);
    }
    static inline void enter_crowded_guard(Guard *guard, int64_t *waited_at) {
        if (__builtin_expect(is_entered(guard), 0)) wait_in_crowd(guard, waited_at);
    }
    /* For sections of a few C statements: a thread may enter one inside another section. */
    static inline void enter_short_guard(Guard *guard) {
        while (is_entered(guard)) sched_yield();
    }
    static inline void leave_guard(Guard *guard) { __atomic_store_n(guard, 0, __ATOMIC_RELEASE); }
    #define init_guard(guard) leave_guard(guard)
    #else
    #define FREE_THREADED 0
    #define init_guard(guard) ((void)(guard))
    #define enter_guard(guard) ((void)(guard))
    #define enter_crowded_guard(guard, waited_at) ((void)(guard), (void)(waited_at))
    #define enter_short_guard(guard) ((void)(guard))
    #define leave_guard(guard) ((void)(guard))
    #endif
    /* Numbers that one thread reads while another one changes them, without a lock. */
    static inline int load_int(const int *n) { return __atomic_load_n(n, __ATOMIC_ACQUIRE); }
    static inline void store_int(int *n, int value) {
        __atomic_store_n(n, value, __ATOMIC_RELEASE);
    }
    static inline int64_t load_long(const int64_t *n) {
        return __atomic_load_n(n, __ATOMIC_ACQUIRE);
    }
    static inline void store_long(int64_t *n, int64_t value) {
        __atomic_store_n(n, value, __ATOMIC_RELEASE);
    }
    /* Adds to a number that no other thread changes now. */
    static inline void increase(int64_t *n, int64_t change) {
        __atomic_store_n(n, *n + change, __ATOMIC_RELEASE);
    }
    /* A row's partition is written without the GIL, and read in the meantime. */
    static inline int32_t load_partition(const int32_t *p) {
        return __atomic_load_n(p, __ATOMIC_RELAXED);
    }
    static inline void store_partition(int32_t *p, int32_t value) {
        __atomic_store_n(p, value, __ATOMIC_RELAXED);
    }
    /* As PyDict_GetItemRef() of Python 3.13: -1 for an error, 0 if the key is missing. */
    static inline int find_item(PyObject *dict, PyObject *key, PyObject **found) {
    #if PY_VERSION_HEX >= 0x030D0000
        return PyDict_GetItemRef(dict, key, found);
    #else
        *found = PyDict_GetItemWithError(dict, key);
        Py_XINCREF(*found);
        return *found != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
    #endif
    }
    /* Converts seconds to nanoseconds, limited to 64 bits. NaN gives INT64_MIN. */
    static inline int64_t as_ns(double seconds) {
        double ns = seconds * 1e9;
        if (ns >= 9.2e18) return INT64_MAX;
        return ns > -9.2e18 ? (int64_t)ns : INT64_MIN;
    }
    /* A row's flags publish its outcome: written last, read first. */
    static inline uint8_t load_flags(const uint8_t *flags) {
        return __atomic_load_n(flags, __ATOMIC_ACQUIRE);
    }
    static inline void add_flags(uint8_t *flags, uint8_t more) {
        __atomic_store_n(flags, (uint8_t)(*flags | more), __ATOMIC_RELEASE);
    }
    /* As strict as Python's decoder: no overlong forms, no surrogates, nothing above U+10FFFF. */
    static int is_utf8(const uint8_t *p, int64_t size) {
        const uint8_t *end = p + size;
        while (p < end) {
            uint8_t c = *p++;
            if (c < 0x80) continue;
            int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
            if (c < 0xc2 || c > 0xf4 || end - p < more) return 0;
            if ((c == 0xe0 && *p < 0xa0) || (c == 0xed && *p > 0x9f)
                || (c == 0xf0 && *p < 0x90) || (c == 0xf4 && *p > 0x8f)) return 0;
            for (; more; more--)
                if ((*p++ & 0xc0) != 0x80) return 0;
        }
        return 1;
    }
    static inline PyObject **tuple_items(PyObject *items) {
        return ((PyTupleObject *)items)->ob_item;
    }
    static inline uint64_t next_random(uint64_t *state) {  /* xorshift64* */
        uint64_t x = *state;
        x ^= x >> 12; x ^= x << 25; x ^= x >> 27;
        *state = x;
        return x * 0x2545F4914F6CDD1DULL;
    }
    """
    ctypedef struct Guard:
        pass
    void init_guard(Guard *guard) noexcept nogil
    void enter_guard(Guard *guard) noexcept nogil
    void enter_crowded_guard(Guard *guard, int64_t *waited_at) noexcept nogil
    void enter_short_guard(Guard *guard) noexcept nogil
    void leave_guard(Guard *guard) noexcept nogil
    int FREE_THREADED
    int load_int(const int *n) noexcept nogil
    void store_int(int *n, int value) noexcept nogil
    int64_t load_long(const int64_t *n) noexcept nogil
    void store_long(int64_t *n, int64_t value) noexcept nogil
    void increase(int64_t *n, int64_t change) noexcept nogil
    int32_t load_partition(const int32_t *p) noexcept nogil
    void store_partition(int32_t *p, int32_t value) noexcept nogil
    int find_item(object mapping, object key, PyObject **found) except -1
    PyObject **tuple_items(object items)
    bint is_utf8(const uint8_t *p, int64_t size) nogil
    int64_t kernel_clock(int which) nogil
    int varint_size(int64_t n) nogil
    uint8_t *put_varint(uint8_t *p, int64_t n) nogil
    void put_be16(uint8_t *p, uint16_t v) nogil
    void put_be32(uint8_t *p, uint32_t v) nogil
    void put_be64(uint8_t *p, uint64_t v) nogil
    uint64_t get_be(const uint8_t *p, int size) nogil
    int uvarint_size(uint32_t n) nogil
    uint8_t *put_uvarint(uint8_t *p, uint32_t n) nogil
    uint32_t kafka_murmur2(const uint8_t *data, int32_t length) nogil
    void fill_crc_table()
    uint32_t crc32_of(const uint8_t *data, int32_t length) noexcept nogil
    uint32_t kafka_fnv1a(const uint8_t *data, int32_t length) nogil
    uint64_t next_random(uint64_t *state) nogil
    int64_t as_ns(double seconds) nogil
    int64_t atomic_add(int64_t *n, int64_t change) noexcept nogil
    int exchange_int(int *n, int value) noexcept nogil
    int atomic_add_below(int64_t *n, int64_t change, int64_t limit) nogil
    uint8_t load_flags(const uint8_t *flags) nogil
    void add_flags(uint8_t *flags, uint8_t more) nogil
    int hold(uint32_t *held, uint8_t *handle_count, int change) noexcept nogil
