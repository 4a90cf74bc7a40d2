# Statistics over recent samples: values recorded once per batch, and latencies of settled rows.

cdef extern from *:
    """
    /* Durations are counted in logarithmic buckets, 16 per power of two of microseconds. A bucket
       is 6 % wide, and 560 of them reach beyond a year. */
    #define STAT_BUCKETS 640
    static inline int stat_bucket(int64_t ns) {
        uint64_t us = ns <= 0 ? 0 : (uint64_t)ns / 1000;
        int power, index;
        if (us < 16) return (int)us;
        power = 63 - __builtin_clzll(us);
        index = (power - 3) * 16 + (int)((us >> (power - 4)) & 15);
        return index < STAT_BUCKETS ? index : STAT_BUCKETS - 1;
    }
    /* Return the smallest duration in a bucket, in ns. */
    static inline int64_t bucket_floor(int index) {
        int power;
        if (index < 16) return (int64_t)index * 1000;
        power = index / 16 + 3;
        return (((int64_t)1 << power) + ((int64_t)(index % 16) << (power - 4))) * 1000;
    }
    """
    int _BUCKETS "STAT_BUCKETS"
    int stat_bucket(int64_t ns) nogil
    int64_t bucket_floor(int index) nogil

cdef struct Sample:
    int64_t number          # ordinal of its window; -1: not used yet
    int64_t count
    double sum, largest
    uint32_t *buckets       # NULL if the stat has none


@cython.final
cdef class SampledStat:
    """Count, sum and maximum of recorded values, since the start and over recent samples.

    A sample covers *window* seconds, and *samples* of them are kept. Recent values are those of the
    current sample and of the ones before it. With *histogram* the values are durations in seconds,
    and percentiles are available, each accurate within 7 %.

    Any thread may add values, and read them.

    Raises ValueError if *window* is not positive or *samples* is less than 1.
    """

    # Since the start.
    cdef int64_t _count
    cdef double _sum, _largest
    cdef uint64_t *ever                 # buckets since the start; NULL without histogram
    cdef Sample *samples
    cdef int n_samples
    cdef double origin, window          # origin < 0: no value yet
    cdef int64_t current                # number of the current sample
    cdef Guard guard

    def __cinit__(self, double window, int samples, bint histogram=False):
        cdef int i
        init_guard(&self.guard)
        if not window > 0:
            raise ValueError(f"a window must be longer than 0 seconds, not {window}")
        if samples < 1:
            raise ValueError(f"a stat needs at least 1 sample, not {samples}")
        self.window = window
        self.origin = -1
        self.samples = <Sample *>calloc(samples, sizeof(Sample))
        if self.samples == NULL:
            raise MemoryError()
        self.n_samples = samples
        if histogram:
            self.ever = <uint64_t *>calloc(_BUCKETS, sizeof(uint64_t))
            if self.ever == NULL:
                raise MemoryError()
        for i in range(samples):
            self.samples[i].number = -1
            if histogram:
                self.samples[i].buckets = <uint32_t *>calloc(_BUCKETS, sizeof(uint32_t))
                if self.samples[i].buckets == NULL:
                    raise MemoryError()

    def __dealloc__(self):
        cdef int i
        for i in range(self.n_samples):
            free(self.samples[i].buckets)
        free(self.samples)
        free(self.ever)

    @property
    def count(self):
        """Return the number of values since the start."""
        cdef int64_t found
        enter_short_guard(&self.guard)
        found = self._count
        leave_guard(&self.guard)
        return found

    @property
    def sum(self):
        """Return the sum of all values since the start."""
        cdef double found
        enter_short_guard(&self.guard)
        found = self._sum
        leave_guard(&self.guard)
        return found

    @property
    def largest(self):
        """Return the largest value since the start; 0 if there is none above it."""
        cdef double found
        enter_short_guard(&self.guard)
        found = self._largest
        leave_guard(&self.guard)
        return found

    def add(self, double now, double value, int64_t times=1):
        """Record *value* *times* times at *now* (monotonic seconds)."""
        self.record(now, value, times)

    cdef void record(self, double now, double value, int64_t times) noexcept:
        cdef Sample *sample
        enter_short_guard(&self.guard)
        sample = self.sample_at(now)
        self.put(sample, value * times, value, times)
        self.drop_into(sample, as_ns(value), times)
        leave_guard(&self.guard)

    cdef Sample *sample_at(self, double now) noexcept nogil:
        """Return the sample for *now*, empty if it is a new one."""
        cdef Sample *sample
        cdef int64_t number
        if self.origin < 0:
            self.origin = now
        number = self.number_at(now)
        if number < self.current:       # another thread has recorded a later time
            number = self.current
        self.current = number
        sample = &self.samples[number % self.n_samples]
        if sample.number != number:
            sample.number = number
            sample.count = 0
            sample.sum = sample.largest = 0
            if sample.buckets != NULL:
                memset(sample.buckets, 0, _BUCKETS * sizeof(uint32_t))
        return sample

    cdef inline int64_t number_at(self, double now) noexcept nogil:
        """Return the number of the sample for *now*; negative before the first."""
        cdef double number = (now - self.origin) / self.window
        return <int64_t>number if -1 < number < 9e18 else -1

    cdef inline void put(self, Sample *sample, double sum, double largest,
                         int64_t times) noexcept nogil:
        sample.count += times
        sample.sum += sum
        self._count += times
        self._sum += sum
        if largest > sample.largest:
            sample.largest = largest
        if largest > self._largest:
            self._largest = largest

    cdef inline void drop_into(self, Sample *sample, int64_t ns, int64_t times) noexcept nogil:
        cdef int bucket
        if self.ever != NULL:
            bucket = stat_bucket(ns)
            sample.buckets[bucket] += <uint32_t>times
            self.ever[bucket] += times

    def histogram(self, bounds):
        """Return the number of durations since the start in each interval between *bounds*.

        *bounds* are in seconds, ascending. The result has one more number: the durations above the
        last bound. Accurate within one bucket (7 %).
        """
        cdef list limits = [], found
        cdef uint64_t[640] counts
        cdef int i, place = 0
        for bound in bounds:
            limits.append(as_ns(bound))
        found = [0] * (len(limits) + 1)
        if self.ever == NULL:
            return found
        enter_short_guard(&self.guard)
        memcpy(counts, self.ever, sizeof(counts))
        leave_guard(&self.guard)
        for i in range(_BUCKETS):
            while place < len(limits) and bucket_floor(i) >= <int64_t>limits[place]:
                place += 1
            found[place] += counts[i]
        return found

    def recent(self, double now):
        """Return ``(count, sum, largest, seconds)`` of the recent samples.

        *seconds* is the time that they cover.
        """
        cdef int64_t count = 0, last
        cdef double sum = 0, largest = 0, seconds = 0
        cdef Sample *sample
        cdef int i
        enter_short_guard(&self.guard)
        last = self.last_number(now)
        for i in range(self.n_samples):
            sample = &self.samples[i]
            if self.is_recent(sample, last):
                count += sample.count
                sum += sample.sum
                largest = max(largest, sample.largest)
        if self.origin >= 0:
            seconds = now - self.origin - self.window * max(0, last - self.n_samples + 1)
        leave_guard(&self.guard)
        return count, sum, largest, max(seconds, 0)

    def percentiles(self, double now, *fractions):
        """Return the recent durations (seconds) at these fractions, such as 0.99.

        Each is None if there are no recent durations.
        """
        cdef int64_t last
        cdef uint64_t[640] sums
        cdef uint64_t count = 0
        cdef double largest = 0
        cdef Sample *sample
        cdef int i, j
        cdef list found = []
        memset(sums, 0, sizeof(sums))
        enter_short_guard(&self.guard)
        last = self.last_number(now)
        for i in range(self.n_samples):
            sample = &self.samples[i]
            if self.is_recent(sample, last) and sample.buckets != NULL:
                largest = max(largest, sample.largest)
                for j in range(_BUCKETS):
                    sums[j] += sample.buckets[j]
                    count += sample.buckets[j]
        leave_guard(&self.guard)
        if not count:
            return [None] * len(fractions)
        for fraction in fractions:
            found.append(min(percentile(sums, count, fraction), largest))
        return found

    cdef int64_t last_number(self, double now) noexcept nogil:
        cdef int64_t number
        if self.origin < 0:
            return 0
        number = self.number_at(now)
        return number if number > self.current else self.current

    cdef inline bint is_recent(self, const Sample *sample, int64_t last) noexcept nogil:
        return sample.number >= 0 and sample.number > last - self.n_samples


cdef double percentile(const uint64_t *sums, uint64_t count, double fraction) noexcept nogil:
    """Return the percentile *fraction* in seconds, interpolated within its bucket."""
    cdef double wanted = fraction * count, seen = 0
    cdef int64_t least, most
    cdef int i
    for i in range(_BUCKETS):
        if sums[i] and seen + sums[i] >= wanted:
            least, most = bucket_floor(i), bucket_floor(i + 1)
            return (least + (most - least) * (wanted - seen) / sums[i]) / _NS
        seen += sums[i]
    return bucket_floor(_BUCKETS) / <double>_NS


# -- ages of rows, recorded while they are settled ------------------------------------------

cdef struct Run:                # consecutive rows in the same bucket
    double now                  # monotonic seconds
    int64_t low, high           # bounds of that bucket
    int64_t rows, sum
    int64_t largest             # of all


cdef inline int64_t accepted_at(Chunk chunk, const Row *row) noexcept nogil:
    """Return when send() accepted an unsettled row, ns.

    This time is not stored for a row with its own delivery timeout: then it is the time at which
    the chunk was opened.
    """
    if row.flags & OWN_TIME:
        return <int64_t>(chunk.opened * _NS)
    return row.deadline - chunk.timeout


cdef inline void add_age(SampledStat stat, Run *run, int64_t age) noexcept nogil:
    """Record the age of a delivered row.

    Rows arrive in the order of their send(), so consecutive rows mostly share a bucket. Such a run
    is counted at once.
    """
    if run.rows and run.low <= age < run.high:
        run.rows += 1
        run.sum += age
    else:
        end_run(stat, run)
        run.rows = 1
        run.sum = age
        run.low = bucket_floor(stat_bucket(age))
        run.high = bucket_floor(stat_bucket(age) + 1)
    if age > run.largest:
        run.largest = age


cdef void end_run(SampledStat stat, Run *run) noexcept nogil:
    cdef Sample *sample
    if run.rows:
        enter_short_guard(&stat.guard)
        sample = stat.sample_at(run.now)
        stat.put(sample, run.sum / <double>_NS, run.largest / <double>_NS, run.rows)
        stat.drop_into(sample, run.low, run.rows)
        leave_guard(&stat.guard)
    run.rows = 0
