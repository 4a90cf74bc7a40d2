# Routing: the slices of a chunk go to the buffers of their partitions' leaders in one call.

@cython.final
cdef class PartitionPath:
    """A partition's path to its leader, and the state that decides whether messages may take it.

    Owned and updated by its PartitionWorker. *inbox* and *running*: that stage's inbox, and the
    lock that is held by the thread that runs it. *ordering*: its ordering machine.
    """

    cdef object inbox, running
    cdef public object ordering
    cdef public object broker               # the leader's BrokerWorker; None: there is no path
    cdef public BufferState buffer
    # Called when the partition is at rest; None: it was not asked to rest, or has a message since.
    cdef public object when_at_rest

    def __init__(self, inbox, running, ordering):
        self.inbox = inbox
        self.running = running
        self.ordering = ordering


@cython.final
cdef class BorrowedPaths:
    """PartitionWorkers that a TopicWorker holds while it puts new messages into their paths.

    *paths*: the PartitionPath of each partition. *slices*: new messages, at most one slice for each
    partition. A PartitionWorker is held if it would only forward its slice: it has a path, no older
    message is being retried, no item waits for it, and no thread runs it. Until :meth:`give_back`
    no chaser can be sent, so the slice comes before any item that is put in the meantime.
    """

    cdef readonly dict new                  # BrokerWorker -> [(buffer, slice)]: to be put into it
    cdef readonly list others               # slices to be put into their PartitionWorker
    cdef list held                          # the lock of each PartitionWorker that is held, or None

    def __init__(self, dict paths not None, list slices not None):
        self.new = {}
        self.others = []
        # Before a lock is taken, so that each is given back without memory.
        self.held = [None] * len(slices)
        try:
            self.borrow(paths, slices)
        except BaseException:
            self.give_back()
            raise

    cdef int borrow(self, dict paths, list slices) except -1:
        cdef Py_ssize_t place
        cdef PartitionPath path
        cdef Slice part
        cdef list to_broker = None
        broker = None
        for place in range(len(slices)):
            part = <Slice?>slices[place]
            path = paths.get(part.partition)
            if path is None or path.inbox or not path.running.acquire(False):
                self.others.append(part)
                continue
            self.held[place] = path.running
            # An item may have been appended in the meantime.
            if path.inbox or path.buffer is None or path.ordering.high_watermark:
                self.held[place] = None
                path.running.release()
                self.others.append(part)
                continue
            path.when_at_rest = None
            if path.broker is not broker:
                broker = path.broker
                to_broker = self.new.setdefault(broker, [])
            to_broker.append((path.buffer, part))
        return 0

    def give_back(self):
        """Let other threads run the PartitionWorkers again.

        A thread that has put an item in the meantime has woken the stage's own thread.
        """
        cdef Py_ssize_t place
        for place in range(len(self.held)):
            running = self.held[place]
            if running is not None:
                self.held[place] = None
                running.release()
