# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=True, embedsignature=False, auto_pickle=False
# cython: freethreading_compatible=True
"""The compiled hot path: rows in columnar chunks, partitioned, encoded and settled in C.

A message is a *row*: one fixed-size ``Row`` in its chunk's table, with its key, value and encoded
headers side by side in one of the chunk's *blocks* of memory, or in the caller's bytes objects
(``refer.pxi``). The only Python object per message is the handle that ``send()`` returns, and the
cyclic garbage collector does not track it. (In an earlier prototype, repeatedly traversing a
million tracked objects was the largest cost.)

The life of a row:

1. ``Admission.send`` reserves its bytes in the ``Budget`` and appends it to its topic's open
   ``Chunk``.
2. The dispatcher takes the chunk from its ``TopicSlot``; ``Chunk.split`` partitions it and
   gives one ``Slice`` (chunk + row numbers) per partition.
3. ``BorrowedPaths`` passes the slices on to the leaders' buffers, and ``RequestSealer`` writes them
   as record batches of message format v2.
4. ``RequestSettler``, ``deliver_parts`` or ``Slice.fail`` settles rows, each once. ``Slice.report``
   runs the callbacks. The chunk's memory is released when its last row is settled and reported.

Locks. A ``Guard`` protects a short section that runs no Python code and does not release the GIL.
With a GIL that is all that is needed, and a Guard is nothing. In a free-threaded build it is a
lock. Three are nested in this order: the guard of ``Admission`` (the open chunks and the topic
slots), the lock of a ``TopicSlot``, and the lock of a ``Chunk`` (everything in it that changes).
Those of ``Budget``, ``SampledStat`` and the queues of outcomes are taken last.

A thread waits for a Guard detached from the interpreter, and enters it attached. So a stop of all
threads (a collection, a fork) never waits for a thread that waits for a stopped one. Nor should a
thread be detached inside a section: before a fork the interpreter stops all other threads, and the
child would never find that Guard free. (For the same reason ``PyMutex`` is not used: it is passed
on to a waiting thread that is detached.) Therefore:

- Containers are changed in a section only if nothing else uses them outside such sections. A thread
  might have to wait for the lock of the container.
- The last reference to an object is dropped outside. Even one of several references may have to be
  passed to the thread that created the object, which takes a lock. And a finalizer is Python code,
  which may enter the same Guard.

One case remains, which is improbable: a table that two threads look up while it grows. ``_open()``
makes the guard of the child anew.

The GIL is released for long operations: partitioning, encoding, writing to a socket and waiting for
one. It is kept for a walk over a slice's flags, because reacquiring it next to a busy thread costs
more than the walk.

This module imports nothing from the package.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromObject, PyBytes_FromStringAndSize
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals, PyErr_Clear
from cpython.memoryview cimport PyMemoryView_FromMemory, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF
from cpython.unicode cimport PyUnicode_AsUTF8String
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from collections import deque

cdef extern from "Python.h":
    ctypedef struct PyCodeObject:
        int co_flags
    int CO_COROUTINE
    bint PyFunction_Check(object)
    PyObject *PyFunction_GET_CODE(object)
    bint PyMethod_Check(object)
    PyObject *PyMethod_GET_FUNCTION(object)
    int64_t bytes_size "PyBytes_GET_SIZE"(PyObject *o) nogil
    uint8_t *bytes_data "(uint8_t *)PyBytes_AS_STRING"(PyObject *o) nogil
    object PyUnicode_DecodeUTF8(const char *data, Py_ssize_t size, const char *errors)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    PyObject *list_item "PyList_GET_ITEM"(PyObject *o, Py_ssize_t i) nogil
    bint PyBytes_CheckExact(object o)
    bint PyUnicode_CheckExact(object o)
    bint PyLong_CheckExact(object o)
    bint PyFloat_CheckExact(object o)
    long long PyLong_AsLongLongAndOverflow(object o, int *overflow)
    void PyObject_GC_Track(PyObject *o)
    void PyObject_GC_UnTrack(PyObject *o)
    bint PyObject_GC_IsTracked(PyObject *o)
    void *PyThread_allocate_lock()
    void PyThread_free_lock(void *lock)
    # Returns 0: not acquired; 1: acquired; 2: interrupted by a signal.
    int PyThread_acquire_lock_timed(void *lock, long long us, int interruptible) nogil
    void PyThread_release_lock(void *lock) nogil

include "_kernel_parts/c_helpers.pxi"
include "_kernel_parts/gil_handoff.pxi"


# ---------------------------------------------------------------------------
# Rows, blocks, chunks

cdef enum Flag:
    SETTLED = 1     # has its one outcome
    FAILED = 2      # that outcome is an error
    POSSIBLY = 4    # an attempt may have put it into the log (message status POSSIBLY_PERSISTED)
    CLAIMED = 16    # is in a sealed batch that has not been rejected, so it may be in flight
    OBSERVED = 8    # the outcome was read by the user or passed to a callback
    OWN_TIME = 32   # has its own delivery timeout: see accepted_at()
    LOG_TIME = 64   # its timestamp is the broker's (LogAppendTime)

cdef struct Row:            # one cache line
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers  # wire form: count, then each header
    int64_t timestamp       # ms since the epoch; the broker's once delivered with LogAppendTime
    int64_t deadline        # monotonic ns until settled; afterwards the offset
    int32_t key_size        # -1: None
    int32_t value_size      # -1: None
    int32_t headers_size    # 0: none
    int32_t partition       # -1 until partitioned
    uint16_t block
    uint8_t padding
    uint8_t handle_count    # its live handles; the count stays at 255 once it gets there
    uint16_t error          # index into Chunk.errors
    uint8_t flags           # written under the chunk's lock until SETTLED

cdef struct Outcome:        # the remainder of a Row once its chunk is reported, for handles
    int64_t timestamp
    int64_t offset
    int32_t key_size
    int32_t value_size
    int32_t partition
    uint16_t error
    uint8_t flags
    uint8_t handle_count

cdef struct Block:
    uint8_t *data
    uint32_t capacity
    uint32_t used
    uint32_t live           # rows in it that are not yet reported
    PyObject *source        # to which its rows refer, or NULL: refer.pxi

#: Bytes of `buffer_memory` that a row takes besides its payload: its table entry and its callback.
ROW_COST = sizeof(Row) + sizeof(void *)
#: A chunk is closed at this many rows or bytes, and the next one is opened.
CHUNK_ROWS = 32768
CHUNK_BYTES = 4 << 20
#: An upper bound on the bytes that the record format adds to a row's payload: length, attributes,
#: timestamp and offset deltas, key and value lengths, header count.
RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 1
#: Bytes assumed for each record besides its payload when the size of a batch is estimated before
#: encoding. The real overhead is 7 bytes for a small message alone in its batch, and 11 for a
#: kilobyte among thousands. The estimate is higher, so the records never exceed the size asked for.
RECORD_ALLOWANCE = 16
BATCH_HEADER = 61

cdef uint32_t _CHUNK_ROWS = CHUNK_ROWS
cdef Py_ssize_t _CHUNK_BYTES = CHUNK_BYTES
cdef Py_ssize_t _ROW_COST = ROW_COST
cdef uint32_t _FIRST_BLOCK = 512
cdef uint32_t _LARGEST_BLOCK = 256 * 1024
cdef uint32_t _NO_BLOCK = 0xffffffffu
#: A value of at least this many bytes is not copied, if it is a bytes object: refer.pxi.
LARGE = 4096
cdef Py_ssize_t _LARGE = LARGE
cdef int64_t _NS = 1000000000
cdef Py_ssize_t _HEADER = BATCH_HEADER
cdef Py_ssize_t _RECORD = RECORD_OVERHEAD
cdef Py_ssize_t _RECORD_ALLOWANCE = RECORD_ALLOWANCE
#: From this version on, Produce has compact strings and tagged fields.
cdef int _FLEXIBLE_PRODUCE = 9


cdef object _delivery_functions = None


def register_delivery_functions(functions):
    """Register the functions that implement the methods of :class:`Delivery` that wait.

    *functions* is a ``delivery.DeliveryFunctions``. Called once, when ``delivery.py`` is imported.
    """
    global _delivery_functions
    _delivery_functions = functions


cdef class TopicSlot
cdef class CallerRoute
cdef class CallerPath
cdef class BufferState
cdef class ProduceRequest

# In the order of a row's life. A class must come before those that use its C fields.
include "_kernel_parts/budget.pxi"
include "_kernel_parts/pool.pxi"
include "_kernel_parts/chunk.pxi"
include "_kernel_parts/outcome.pxi"
include "_kernel_parts/waiters.pxi"
include "_kernel_parts/sampled_stat.pxi"
include "_kernel_parts/polled_outcomes.pxi"
include "_kernel_parts/slice.pxi"
include "_kernel_parts/deliver.pxi"
include "_kernel_parts/release.pxi"
include "_kernel_parts/detach.pxi"
include "_kernel_parts/partition.pxi"
include "_kernel_parts/encode.pxi"
include "_kernel_parts/partition_state.pxi"
include "_kernel_parts/route.pxi"
include "_kernel_parts/batcher.pxi"
include "_kernel_parts/request_metrics.pxi"
include "_kernel_parts/seal_request.pxi"
include "_kernel_parts/produce_frame.pxi"
include "_kernel_parts/produce_request.pxi"
include "_kernel_parts/settle_request.pxi"
include "_kernel_parts/handle.pxi"
include "_kernel_parts/payload.pxi"
include "_kernel_parts/numbers.pxi"
include "_kernel_parts/columns.pxi"
include "_kernel_parts/lines.pxi"
include "_kernel_parts/arrow.pxi"
include "_kernel_parts/arrow_layout.pxi"
include "_kernel_parts/row_checksum.pxi"
include "_kernel_parts/refer.pxi"
include "_kernel_parts/block_tally.pxi"
include "_kernel_parts/block_rows.pxi"
include "_kernel_parts/open_chunks.pxi"
include "_kernel_parts/admission_steps.pxi"
include "_kernel_parts/admission.pxi"
include "_kernel_parts/block_admission.pxi"
include "_kernel_parts/polled_admission.pxi"
include "_kernel_parts/write.pxi"
include "_kernel_parts/wait.pxi"
include "_kernel_parts/tls.pxi"
include "_kernel_parts/caller.pxi"
include "_kernel_parts/reports_inbox.pxi"
include "_kernel_parts/caller_link.pxi"
include "_kernel_parts/caller_request.pxi"
include "_kernel_parts/caller_response.pxi"


# Only the C code of this module may create these: an instance without a chunk would have invalid
# pointers.
cdef extern from *:
    """
    static PyObject *refuse_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
        const char *dot = strrchr(type->tp_name, '.');
        const char *name = dot ? dot + 1 : type->tp_name;
        (void)args, (void)kwargs;
        PyErr_Format(PyExc_TypeError, "a %s can only be created by %s", name,
                     strcmp(name, "Delivery") ? "the library itself" : "send()");
        return NULL;
    }
    /* Compiled code is not affected: it calls the original tp_new function by name. */
    static void forbid_new(PyObject *type) {
        ((PyTypeObject *)type)->tp_new = refuse_new;
        ((PyTypeObject *)type)->tp_vectorcall = NULL;   /* which would bypass tp_new */
        PyType_Modified((PyTypeObject *)type);
    }
    """
    void forbid_new(object type)

forbid_new(Delivery)
forbid_new(Chunk)
forbid_new(Slice)
forbid_new(Segment)
forbid_new(TopicSlot)
