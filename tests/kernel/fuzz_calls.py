"""The calls of the fuzzer, with any arguments, and their expected results."""

from __future__ import annotations

import collections
import contextlib
import decimal
import fractions
import gc
import itertools
import math
import threading
from collections.abc import Callable
from typing import Any

from pykaproducer import (
    BlockDelivery,
    BlockFailures,
    BufferFullError,
    DeliveryError,
    DeliveryFailures,
    FlushTimeoutError,
    KafkaProducer,
    MessageTooLargeError,
    OutcomeTimeoutError,
    Producer,
    ProducerBrokenError,
    ProducerClosedError,
)
from pykaproducer.confluent import KafkaException, Message
from pykaproducer.delivery import Delivery
from pykaproducer.testing import FakeClock, ScriptedCluster
from tests.confluent.helper import on

from .odd import ANY, WRONG, BoomError, Hostile, LyingText, Made, Odd, whole
from .odd_arrow import OddArrow

#: The exceptions documented for send(), send_many() and send_arrow().
REFUSED = (TypeError, ValueError, BufferError, BufferFullError, ProducerClosedError, BoomError)
#: Those documented for methods of handles, and for produce().
OF_HANDLES = (*REFUSED, DeliveryError, BlockFailures, OutcomeTimeoutError, LookupError)
OF_PRODUCE = (*REFUSED, KafkaException, NotImplementedError, OverflowError, RuntimeError)

PARTITIONS = 4
MOST_PARTITION = (1 << 31) - 1
MOST_TIMESTAMP = 1 << 62
#: Timeouts for which nothing waits.
TIMEOUTS = (0, -1, -2.5, -(1 << 80), -(10**400), math.nan, -math.inf, "x", b"1", [], 1j, print)
TIMEOUTS += (decimal.Decimal(-1), decimal.Decimal("sNaN"), fractions.Fraction(-1, 3))
#: The methods that wait, and the other methods and attributes of handles.
WAITING = ("result", "get", "exception", "outcome")
METHODS = (
    *("done", "succeeded", "failed", "add_done_callback", "add_callback", "add_errback"),
    *("add_both", "__eq__", "__hash__", "__repr__", "__reduce__", "__bool__", "__len__"),
    *("key", "value", "status", "partition", "offset", "timestamp", "error", "accepted"),
)
#: The methods of a delivery report of confluent-kafka that read it.
OF_MESSAGES = [name for name in dir(Message) if not name.startswith(("_", "set_"))]

#: What makes an argument.
Maker = Callable[[], Made]
#: The content of a message: key, value, headers, partition, timestamp.
Content = list[Any]


class MisjudgedError(Exception):
    """A valid call was rejected, an invalid one was accepted, or a message was changed."""


class Callback:
    """A function that calls back, and may raise."""

    def __init__(self, odd: Odd) -> None:
        self._odd = odd
        self.calls = 0

    def __call__(self, *outcome: Any) -> None:
        self.calls += 1
        self._odd.interfere()
        for each in outcome:
            repr(each)
            if isinstance(each, Message):
                for name in OF_MESSAGES:
                    getattr(each, name)()
        if self._odd.often(0.2):
            raise LookupError("a callback raised")

    def __del__(self) -> None:
        self._odd.interfere()


class Round:
    """A producer, and what is sent with it."""

    def __init__(self, number: int) -> None:
        self.odd = Odd(number, self.act)
        self.chance = self.odd.chance
        self._arrow = OddArrow(self.odd)
        self._clock = FakeClock()
        self._cluster = ScriptedCluster(topics={"t": PARTITIONS, "block": 1, "polled": 1})
        more = {"buffer_memory": 2 << 20, "max_block_ms": 0, "max_request_size": 1 << 20}
        drawn = self.chance.choice([Producer, KafkaProducer])
        own = {
            "_network_type": staticmethod(lambda config: self._cluster.network),
            "_clock": self._clock,
        }
        self._producer: Producer = type(f"Scripted{drawn.__name__}", (drawn,), own)(
            bootstrap_servers=self._cluster.bootstrap_servers, **more
        )
        self._polled: Any = None
        #: What is sent, with the expected content; and the values of messages without a handle.
        self._sent: list[tuple[Delivery, Content]] = []
        self._plain_values: list[bytes] = []
        self._blocks: list[tuple[BlockDelivery, list[Any]]] = []
        #: Callbacks that must be called, once each.
        self._due: list[Callback] = []
        self._ended = False

    def act(self) -> None:
        """Call back into the producer, from the special methods of odd objects."""
        draw = self.odd.chance.random()
        if draw < 0.3 and not self._ended:
            self._send_plain()
        elif draw < 0.35 and not self._ended:
            self.send_block()
        elif draw < 0.4:
            self._producer.stats()
        elif draw < 0.405:
            gc.collect()

    def _refused(self, expected: Any, error: Exception) -> None:
        """Raise if the call was valid, according to *expected*, and must not be rejected."""
        other = (MessageTooLargeError, BufferFullError, ProducerClosedError)
        if isinstance(expected, list) and not isinstance(error, other):
            raise MisjudgedError("a valid call was rejected") from error

    # send() ---------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send one message with any arguments."""
        given = {
            "key": self.odd.payload(),
            "value": self.odd.payload(),
            "headers": self.odd.headers(),
            "partition": self.odd.number([0, 1, 2, 3], 0, MOST_PARTITION),
            "timestamp_ms": self.odd.number([7], 0, MOST_TIMESTAMP),
            "delivery_timeout_ms": self.odd.number([100_000], 1, MOST_PARTITION),
            "on_delivery": self._callback(),
            "topic": self._topic(),
        }
        contents = [content for _, content in given.values()]
        empty = given["key"][0] is None and given["value"][0] is None
        if empty and isinstance(self._producer, KafkaProducer):
            contents.append(WRONG)  # as kafka-python's
        expected = whole(contents)
        try:
            handle = self._producer.send(**{name: thing for name, (thing, _) in given.items()})
        except REFUSED as error:
            self._refused(expected, error)
            if "\n" in str(error):
                raise MisjudgedError("an error of more than one line") from error
            return
        if expected is WRONG:
            raise MisjudgedError("an invalid call was accepted")
        callback = given["on_delivery"][0]
        if isinstance(callback, Callback):
            self._due.append(callback)
        self._sent.append((handle, contents[:5]))

    def _send_plain(self) -> None:
        """Send a message that must be accepted, whatever else runs at this moment."""
        data = self.odd.raw()
        try:
            self._producer.send("t", data, partition=1)
        except (BufferFullError, ProducerClosedError):
            return
        self._plain_values.append(data)

    def _callback(self) -> Made:
        """Return an ``on_delivery`` argument."""
        draw = self.chance.random()
        if draw < 0.5:
            return None, None
        if draw < 0.85:
            return Callback(self.odd), None
        if draw < 0.95:
            return self.chance.choice([Hostile(), Hostile().release]), ANY
        return self.chance.choice([5, "x", b"", [], object()]), WRONG

    def _topic(self) -> Made:
        draw = self.chance.random()
        if draw < 0.9:
            return "t", "t"
        if draw < 0.95:
            return LyingText("t"), ANY
        return self.chance.choice(["", "a/b", "ä", None, b"t", 5, object(), Hostile()]), WRONG

    # send_many(), send_arrow() --------------------------------------------------------------------

    def send_block(self) -> None:
        """Send columns of any objects."""
        odd, count = self.odd, self.odd.chance.choice([0, 1, 2, 2, 5, 20])
        columns = {
            "keys": self._column(count, self._plain, odd.cell),
            "values": self._column(count, self._plain, odd.cell, share=1),
            "headers": self._column(count, odd.headers, odd.headers, absent=[]),
            "partitions": self._column(
                count, lambda: (0, 0), lambda: odd.number([0], 0, MOST_PARTITION)
            ),
            "timestamps_ms": self._column(
                count, lambda: (7, 7), lambda: odd.number([7], 0, MOST_TIMESTAMP)
            ),
        }
        callback = Callback(odd) if odd.often(0.2) else None
        more = {name: thing for name, (thing, _) in columns.items()}
        self._accept(
            lambda: self._producer.send_many("block", on_delivery=callback, **more),
            [expected for _, expected in columns.values()],
            callback,
        )

    def _plain(self) -> Made:
        data = self.odd.raw()
        return data, data

    def _column(
        self, count: int, plain: Maker, odd: Maker, absent: Any = None, share: float = 0.4
    ) -> Made:
        """Return a column, sometimes of another length, or None if it is not given."""
        if not self.odd.often(share):
            return None, [absent] * count
        cell = plain if self.odd.often(0.6) else odd
        thing, expected = self.odd.column([cell() for _ in range(count)])
        if type(thing) is list and self.odd.often(0.03):
            return [*thing, None], ANY
        return thing, expected

    def send_arrow(self) -> None:
        """Send Arrow data of any layout, broken or not."""
        count = self.chance.choice([0, 1, 2, 9, 30])
        batch, found = self._arrow.batch(count)
        empty = {"headers": [[]] * count}
        names = ("key", "value", "headers", "partition", "timestamp")
        expected = [found.get(name, empty.get(name, [None] * count)) for name in names]
        data, draw = batch, self.chance.random()
        if draw < 0.4:
            data, expected = self._arrow.broken(batch), [ANY] * 5
        elif draw < 0.6:
            times = self.chance.choice([0, 1, 2])
            data, fails = self._arrow.stream(batch, times)
            expected = [WRONG if fails else column * times for column in expected]
        elif draw < 0.63:
            data, expected = self._arrow.batch(100)[0], [ANY] * 5
            with self._arrow.changing(data):
                self._accept(lambda: self._producer.send_arrow(data, "block"), expected, None)
            return
        self._accept(lambda: self._producer.send_arrow(data, "block"), expected, None)

    def _accept(
        self, send: Callable[[], BlockDelivery], columns: list[Any], callback: Callback | None
    ) -> None:
        """Send a block; its rows must match *columns*."""
        expected = whole(columns)
        try:
            block = send()
        except REFUSED as error:
            self._refused(expected, error)
            return
        if expected is WRONG:
            raise MisjudgedError("an invalid column was accepted")
        if callback is not None:
            self._due.append(callback)
        self._blocks.append((block, columns))

    # produce(), handles ---------------------------------------------------------------------------

    def produce(self) -> None:
        """Produce a message as a program of confluent-kafka does, and serve reports."""
        if self._polled is None:
            self._polled = on(self._cluster, self._clock)
        odd = self.odd
        callback, _ = self._callback()
        more = {
            "value": odd.payload()[0],
            "key": self.chance.choice(["key", odd.payload()[0]]),
            "partition": odd.number([-1, 0], 0, MOST_PARTITION)[0],
            "timestamp": odd.number([7], 0, MOST_TIMESTAMP)[0],
            "headers": odd.headers()[0],
        }
        given = {name: thing for name, thing in more.items() if odd.often(0.5)}
        try:
            self._polled.produce("polled", on_delivery=callback, **given)
            if isinstance(callback, Callback):
                self._due.append(callback)
            self._poll()
        except OF_PRODUCE:
            return

    def _poll(self) -> None:
        with contextlib.suppress(LookupError, TypeError, BoomError):  # raised by a callback
            self._polled.poll(0)

    def use(self) -> None:
        """Call a method of a handle with any arguments."""
        things = [each for each, _ in (*self._sent[-9:], *self._blocks[-9:])]
        names = [*WAITING, *METHODS]
        if not things:
            self.send()
            return
        thing, name = self.chance.choice(things), self.chance.choice(names)
        arguments = [self.chance.choice(TIMEOUTS)]
        if name not in WAITING:
            makers = (Hostile, lambda: Callback(self.odd), self.odd.nonsense)
            arguments = [
                self.chance.choice(makers)() for _ in range(self.chance.choice([0, 1, 1, 2]))
            ]
        with contextlib.suppress(*OF_HANDLES):
            found = getattr(thing, name, None)
            if callable(found):
                found(*arguments)

    # The end --------------------------------------------------------------------------------------

    def end(self) -> None:
        """Wait for all outcomes; check the records, the callbacks, and the memory."""
        self._ended = True
        while not self._is_written():
            threading.Event().wait(0.001)
        seconds = 1.0
        while not self._is_flushed():  # messages to partitions that do not exist
            threading.Event().wait(0.001)
            self._clock.jump(seconds)
            seconds *= 2
        used = self._producer.stats()["buffer"]["used"]
        if used:
            raise MisjudgedError(f"{used} bytes are in use at the end")
        self._producer.close()
        if self._polled is not None:
            self._polled.close()
            with contextlib.suppress(RuntimeError):  # it is closed
                self._polled.produce("polled")
        for delivery, content in self._sent:
            try:
                found = delivery.get(0)
            except ProducerBrokenError:
                raise
            except DeliveryError:
                continue
            self._compare(content, found.topic, found.partition, found.offset)
        for block, columns in self._blocks:
            self._check_block(block, columns)
        if any(callback.calls != 1 for callback in self._due):
            raise MisjudgedError("a callback has not run, or has run twice")
        self._cluster.close()

    def _is_written(self) -> bool:
        """Return whether all messages are written that time alone does not end."""
        usual = (None, *range(PARTITIONS))
        if any(
            not each.is_done for each, (*_, partition, _time) in self._sent if partition in usual
        ):
            return False
        for block, columns in self._blocks:
            partitions = columns[3]
            if partitions is not ANY and set(partitions) <= {None, 0} and not block.done():
                return False
        written = collections.Counter(record.value for record in self._cluster.log("t", 1))
        return not collections.Counter(self._plain_values) - written

    def _is_flushed(self) -> bool:
        if self._polled is not None:
            self._poll()
        try:
            self._producer.flush(0)
        except FlushTimeoutError:
            return False
        except DeliveryFailures:
            pass
        return self._polled is None or not len(self._polled)

    def _check_block(self, block: BlockDelivery, columns: list[Any]) -> None:
        found = block.outcome(0)
        failed = dict(found.failed)
        rows = [row for row in range(found.rows) if row not in failed]
        ranges = [each for every in found.offsets.values() for each in every]
        for row, offset in zip(rows, itertools.chain(*ranges), strict=True):
            # A column that lies about its length may have made the block longer.
            content = [ANY if row >= len(column) else column[row] for column in columns]
            self._compare(content, "block", 0, offset)

    def _compare(self, expected: Content, topic: str, partition: Any, offset: Any) -> None:
        """Check a record of the log, which is read by kafka-python."""
        record = self._cluster.log(topic, partition)[offset]
        found = (record.key, record.value, list(record.headers), partition, record.timestamp)
        names = ("key", "value", "headers", "partition", "timestamp")
        for name, wanted, got in zip(names, expected, found, strict=True):
            # A partition or timestamp that was not given is chosen by the producer.
            if wanted is ANY or (wanted is None and name in names[3:]):
                continue
            if wanted != got:
                raise MisjudgedError(f"{name}: {got!r} was written, and {wanted!r} was passed")
