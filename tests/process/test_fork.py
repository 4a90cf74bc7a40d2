"""``os.fork`` at any moment: the child's producer is empty and works, the parent's is unaffected.

Each test is a separate program.
"""

from __future__ import annotations

import os
import pathlib
import textwrap

import pytest

from pykaproducer.testing import KafkaCluster
from tests._support import programs
from tests.cluster.readback import read_log

PROLOGUE = """
    import asyncio, gc, itertools
    from pykaproducer import ForkedProducerError, Producer

    # On a slow machine close() reports what it waits for.
    logging.getLogger("pykaproducer").setLevel("ERROR")
    servers, topic = sys.argv[1:]
    os.dup2(1, 2)  # a program without output writes no error either

    def sockets():
        found = set()
        for entry in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{entry}"))
            except OSError:
                pass  # the descriptor that lists this directory
        return {name for name in found if name.startswith("socket:")}

    def use(producer, name, count=3):
        \"\"\"Send, flush and close in a child, and leave nothing.\"\"\"
        gc.collect()
        before = sockets()
        assert len(os.listdir("/proc/self/task")) == threading.active_count() == 1
        sent = [producer.send(topic, b"%s %d" % (name, number)) for number in range(count)]
        producer.flush(30)
        assert all(delivery.result(0).offset >= 0 for delivery in sent)
        assert producer.accepted == count
        producer.close(30)
        assert threading.active_count() == 1, threading.enumerate()
        assert producer._budget.used == 0
        del sent
        gc.collect()
        assert sockets() <= before
    """


def run(script: str, cluster: KafkaCluster, topic: str, **variables: str) -> None:
    """Run a program that must end successfully and without output."""
    cluster.create_topic(topic)
    text = programs.FORKS + textwrap.dedent(PROLOGUE) + textwrap.dedent(script)
    environment = {**os.environ, **variables}
    assert programs.run(text, cluster.bootstrap_servers, topic, env=environment) == ""


def program(script: str) -> str:
    """Return the output of a program that forks, without a cluster."""
    return programs.run(programs.FORKS + textwrap.dedent(script))


def by_sender(cluster: KafkaCluster, topic: str) -> dict[bytes, list[int]]:
    """Return the numbers of each sender's messages, in the order of the log."""
    found: dict[bytes, list[int]] = {}
    for value in read_log(cluster, topic).values:
        name, number = (value or b"").split()
        found.setdefault(name, []).append(int(number))
    return found


def test_a_fork_while_other_threads_use_producers(cluster: KafkaCluster, topic: str) -> None:
    """The child never waits for a lock that they hold at that moment."""
    script = """
        producer = Producer(bootstrap_servers=servers)
        stop = threading.Event()
        counts = {}

        def repeat(work):
            while not stop.is_set():
                work()

        def sender(name):
            numbers = itertools.count()

            def send():
                for _ in range(100):
                    delivery = producer.send(topic, b"%s %d" % (name, next(numbers)))
                delivery.result(30)
                counts[name] = next(numbers)
                producer.send(topic, b"%s %d" % (name, counts[name]))
            return send

        def start_and_close():
            with Producer(bootstrap_servers=servers) as short:
                short.send(topic, b"short 0")

        threads = [
            threading.Thread(target=repeat, args=(work,))
            for work in (
                sender(b"one"),
                sender(b"two"),
                lambda: producer.flush(30),
                lambda: producer.partitions_for(topic),
                start_and_close,
            )
        ]
        for thread in threads:
            thread.start()
        for number in range(25):
            join(fork(use, producer, b"child%d" % number))
        stop.set()
        for thread in threads:
            thread.join(30)
        producer.close(30)
        producer = Producer(bootstrap_servers=servers)
        for name, count in counts.items():
            producer.send(topic, b"%s %d" % (name, count + 1))
        producer.close(30)
        """
    run(script, cluster, topic)
    found = by_sender(cluster, topic)
    assert set(found.pop(b"short")) == {0}
    for name in (b"one", b"two"):
        numbers = found.pop(name)
        assert numbers == list(range(len(numbers)))
    assert found == {b"child%d" % number: [0, 1, 2] for number in range(25)}


def test_threads_of_a_child_that_use_it_first_at_once_share_one_pipeline(
    cluster: KafkaCluster, topic: str
) -> None:
    script = """
        producer = Producer(bootstrap_servers=servers, client_id="forked")
        producer.send(topic, b"parent 0")
        producer.flush(30)

        def begin_together(name):
            sys.setswitchinterval(1e-6)
            start = threading.Barrier(8)

            def begin(number):
                start.wait(30)
                sent.append(producer.send(topic, b"%s-%d 0" % (name, number)))

            sent = []
            threads = [threading.Thread(target=begin, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            producer.flush(30)
            assert len({delivery.result(0).offset for delivery in sent}) == 8
            producer.close(30)
            # The threads of a second pipeline would be left.
            assert threading.active_count() == 1, threading.enumerate()

        for number in range(20):
            join(fork(begin_together, b"child%d" % number))
        producer.close(30)
        """
    run(script, cluster, topic)
    found = by_sender(cluster, topic)
    assert found.pop(b"parent") == [0]
    assert found == {b"child%d-%d" % (c, thread): [0] for c in range(20) for thread in range(8)}


def test_what_was_pending_at_the_fork_stays_the_parents(cluster: KafkaCluster, topic: str) -> None:
    script = """
        producer = Producer(bootstrap_servers=servers, linger_ms=60_000)
        settled = producer.send(topic, b"parent 0")
        producer.flush(30)
        told = []
        pending = producer.send(
            topic, b"parent 1", on_delivery=lambda error, delivery: told.append(os.getpid())
        )
        pending.add_done_callback(lambda delivery: told.append(os.getpid()))

        async def wait():
            return await pending

        def look(name):
            waits = (pending.result, pending.exception, pending.get, lambda: asyncio.run(wait()))
            for wait_for_it in waits:
                try:
                    wait_for_it()
                except ForkedProducerError as error:
                    assert topic in str(error)
                else:
                    raise AssertionError(wait_for_it)
            assert settled.result(0).offset == 0
            use(producer, name)
            assert not pending.done()
            assert told == []

        # Before and after another one, and in a child of a child.
        join(fork(look, b"child0"))
        join(fork(lambda: join(fork(look, b"child1"))))
        assert not pending.done()
        producer.flush(30)
        assert told == [os.getpid()] * 2
        assert pending.result(0).offset > 0
        producer.close(30)
        """
    run(script, cluster, topic)
    found = by_sender(cluster, topic)
    assert found == {b"parent": [0, 1], b"child0": [0, 1, 2], b"child1": [0, 1, 2]}


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_large_values_that_are_pending_at_the_fork(
    cluster: KafkaCluster, topic: str, codec: str
) -> None:
    """They are the objects that the program has passed, which the child's memory has, too."""
    script = """
        producer = Producer(
            bootstrap_servers=servers, linger_ms=60_000, compression_type=os.environ["CODEC"]
        )
        for number in range(3):
            producer.send(topic, b"%d" % number * 100_000)

        def use_in_child():
            producer.send(topic, b"child" * 20_000)
            producer.close(60)
            gc.collect()

        child = fork(use_in_child)
        assert os.waitpid(child, 0)[1] == 0
        producer.close(60)
        """
    run(script, cluster, topic, CODEC=codec)
    assert read_log(cluster, topic).values == [
        b"child" * 20_000,
        *(b"%d" % number * 100_000 for number in range(3)),
    ]


def test_a_child_does_not_touch_its_parents_connections(cluster: KafkaCluster, topic: str) -> None:
    """Whether it uses the producer, only closes it, aborts, or drops the last reference."""
    script = """
        producer = Producer(bootstrap_servers=servers)
        numbers = itertools.count()

        def send():
            producer.send(topic, b"parent %d" % next(numbers)).result(30)

        def drop():
            global producer
            del producer
            gc.collect()

        send()
        before = sockets()
        assert before
        for work in (lambda: use(producer, b"child"), producer.close, producer.abort, drop):
            join(fork(work))
            send()
            assert sockets() == before
        producer.close(30)
        assert not sockets()
        """
    run(script, cluster, topic)
    assert by_sender(cluster, topic) == {b"parent": [0, 1, 2, 3, 4], b"child": [0, 1, 2]}


def test_a_callback_may_fork(cluster: KafkaCluster, topic: str) -> None:
    """Then the thread that runs callbacks in the parent is the child's only one."""
    script = """
        producer = Producer(bootstrap_servers=servers)
        forked = threading.Event()

        def report(error, delivery):
            join(fork(use, producer, b"child"))
            forked.set()

        producer.send(topic, b"parent 0", on_delivery=report)
        producer.send(topic, b"parent 1")
        assert forked.wait(30)
        producer.close(30)
        """
    run(script, cluster, topic)
    assert by_sender(cluster, topic) == {b"parent": [0, 1], b"child": [0, 1, 2]}


def test_a_child_that_returns_from_the_callback_runs_no_other_and_ends() -> None:
    script = """
        from pykaproducer.testing import ScriptedCluster

        def forks(error, delivery):
            gate.wait(30)
            if os.fork() == 0:
                os.write(1, b"child\\n")

        gate = threading.Event()
        with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as producer:
            for name in [b"same batch\\n", b"later\\n", b"last\\n"]:
                producer.send("t", b"", on_delivery=forks)
                say = lambda error, delivery, name=name: os.write(1, name)
                producer.send("t", b"", on_delivery=say)
                if name == b"same batch\\n":
                    gate.set()
        os.wait(), os.wait(), os.wait()
        """
    assert sorted(program(script).split("\n")) == sorted(
        ["", "child", "child", "child", "same batch", "later", "last"]
    )


def test_a_child_holds_none_of_its_parents_connections(cluster: KafkaCluster, topic: str) -> None:
    """The broker would not notice that the parent has closed one."""
    script = """
        def connections():
            with open("/proc/self/net/tcp") as table:
                inodes = {line.split()[9] for line in table}
            return {name for name in sockets() if name.removeprefix("socket:")[1:-1] in inodes}

        def look():
            assert not connections()

        with Producer(bootstrap_servers=servers) as producer:
            producer.send(topic, b"parent 0").result(30)
            assert connections()
            join(fork(look))
            producer.send(topic, b"parent 1").result(30)
        """
    run(script, cluster, topic)
    assert by_sender(cluster, topic) == {b"parent": [0, 1]}


def test_descriptors_end_with_the_producer_and_in_a_child(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    """They do not pile up in a chain of forks, nor wait for the cyclic garbage collector."""
    script = """
        def descriptors():
            return sorted(os.listdir("/proc/self/fd"))

        gc.disable()
        before = descriptors()
        producer = Producer(bootstrap_servers=servers, stats_socket=os.environ["STATS"])

        def use(generation):
            for _ in range(3):  # callers send the later ones
                producer.send(topic, b"v").result(30)
            if generation:
                join(fork(inherit, generation - 1))

        def inherit(generation):
            assert descriptors() == before
            use(generation)
            producer.close(30)
            assert descriptors() == before

        use(3)
        producer.close(30)
        assert descriptors() == before
        """
    run(script, cluster, topic, STATS=str(tmp_path / "%p"))


def test_a_producer_that_cannot_be_reset_does_not_keep_others_from_it() -> None:
    script = """
        from pykaproducer import Producer

        class Broken(Producer):
            def _forked(self):
                raise RuntimeError("broken")

        producers = [kind(bootstrap_servers="127.0.0.1:1") for kind in [Producer, Broken] * 5]
        for producer in producers:
            producer.send("t", b"parent's")
        join(fork(lambda: print([producer.accepted for producer in producers[::2]])))
        for producer in producers:
            producer.abort()
        """
    assert program(script) == "[0, 0, 0, 0, 0]\n"


def test_a_fork_waits_for_a_line_that_a_stage_writes() -> None:
    """Otherwise the child could wait forever for the lock of the file to which it is written.

    1. A line of a stage is being written.
    2. The main thread begins to fork; the hook that runs first lets the writer continue.
    3. The child exists once the line is written.
    """
    script = """
        from pykaproducer import Producer

        entered, go_on, lines = threading.Event(), threading.Event(), []

        class Handler(logging.Handler):
            def emit(self, record):
                entered.set()
                go_on.wait(30)
                lines.append(record.getMessage())

        logging.getLogger("pykaproducer").addHandler(Handler())
        producer = Producer(bootstrap_servers="127.0.0.1:1")
        producer.send("t", b"value")
        assert entered.wait(30)
        os.register_at_fork(before=go_on.set)
        join(fork(lambda: print(len(lines) > 0)))
        producer.abort()
        """
    assert program(script) == "True\n"


def test_a_fork_finds_a_moment_between_many_lines() -> None:
    """The lines that wait are written after the fork."""
    script = """
        from pykaproducer.testing import ScriptedCluster
        from pykaproducer._util.guarded_log import GuardedLogger

        inside, entered, finished = False, threading.Event(), threading.Event()

        class Handler(logging.Handler):
            def emit(self, record):
                global inside
                inside = True
                entered.set()
                finished.wait(0.01)  # a fork that did not wait would hit it
                inside = False

        def partitioner(key, everything, available):
            for number in range(900):
                log.error("line %d", number)
            return 0

        log = GuardedLogger("pykaproducer.broker")
        logging.getLogger("pykaproducer").addHandler(Handler())
        with ScriptedCluster(topics={"t": 1}) as cluster:
            producer = cluster.producer(partitioner=partitioner)
            producer.send("t", b"value").result(30)
            for _ in range(5):
                entered.clear()
                assert entered.wait(30)
                join(fork(lambda: print(inside)))
            finished.set()
            producer.close()
        """
    assert program(script) == "False\n" * 5


def test_a_partitioner_forks_while_another_stage_fails_messages_of_the_transaction() -> None:
    """Its message fails in the child, too, which then ends."""
    script = """
        from pykaproducer.testing import ScriptedCluster

        children, failing, forked = [], threading.Event(), threading.Event()

        def partitioner(key, everything, available):
            assert failing.wait(30)
            child = os.fork()
            if not child:
                signal.alarm(20)
                return 99
            children.append(child)
            forked.set()
            return 0

        with ScriptedCluster(topics={"t": 1}) as cluster:
            producer = cluster.producer(transactional_id="mine", partitioner=partitioner)
            producer.init_transactions()
            producer.begin_transaction()
            delivery = producer.send("t", b"value", b"key")
            with producer._pipeline.settler.failing:
                failing.set()
                assert forked.wait(30)
            delivery.result(30)
            join(children[0])
            producer.commit_transaction()
            producer.close()
        """
    assert program(script) == ""


def test_a_handler_may_fork() -> None:
    """The fork must not wait for the line that its own thread writes; the child has no lines."""
    script = """
        from pykaproducer import Producer

        forked = threading.Event()

        class Handler(logging.Handler):
            def emit(self, record):
                if not forked.is_set():
                    join(fork(lambda: print("child", producer.abort())))
                    forked.set()

        logging.getLogger("pykaproducer").addHandler(Handler())
        producer = Producer(bootstrap_servers="127.0.0.1:1")
        producer.send("t", b"value")
        assert forked.wait(30)
        producer.abort()
        """
    assert program(script) == "child None\n"


@pytest.mark.parametrize(
    "wait", ["flush", "close", "result", "exception", "block", "send", "partitions_for"]
)
def test_a_signal_handler_that_forks_during_a_wait(wait: str) -> None:
    """The wait goes on in the parent. In the child nothing would ever end it."""
    script = """
        import sys
        from pykaproducer import PykaproducerError
        from pykaproducer.testing import ScriptedCluster

        wait = sys.argv[1]
        with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster:
            producer = cluster.producer(buffer_memory=5_000)
            producer.send("t", b"first").result(30)
            cluster.next("metadata" if wait == "partitions_for" else "produce", answer)
            try:
                match wait:
                    case "partitions_for":
                        assert producer.partitions_for("u") == {0}
                    case "send":
                        producer.send("t", bytes(4_000))
                        producer.send("t", bytes(4_000))  # waits for the space of the one before
                        assert children != [0] or producer.accepted == 1
                    case "block":
                        producer.send_many("t", [b"value"]).outcome()
                    case "flush" | "close":
                        producer.send("t", b"value")
                        getattr(producer, wait)()
                    case _:
                        getattr(producer.send("t", b"value"), wait)()
            except PykaproducerError as error:
                assert children == [0], error
            if children == [0]:
                os._exit(7)
            producer.close()
            print(len(cluster.log("t")))
        """
    script = programs.FORKING_HANDLER + textwrap.dedent(script)
    delivered = {"partitions_for": 1, "send": 3}.get(wait, 2)
    assert programs.run(script, wait) == f"child: 7\n{delivered}\n"


@pytest.mark.parametrize("step", ["_bootstrap", "_run_target"])
def test_a_signal_handler_that_forks_while_a_thread_starts(step: str) -> None:
    """The thread that send() waits for does not exist in the child."""
    script = """
        import sys
        from pykaproducer._pipeline.worker import _Thread
        from pykaproducer.testing import ScriptedCluster

        real = getattr(_Thread, sys.argv[1])

        def first_step(thread):
            while not hold._released.wait(0.1):
                signal.pthread_kill(main, signal.SIGUSR1)
            real(thread)

        with ScriptedCluster(topics={"t": 1}) as cluster:
            producer = cluster.producer()
            setattr(_Thread, sys.argv[1], first_step)
            delivery = producer.send("t", b"value")
            if children == [0]:
                os._exit(7)
            delivery.result(30)
            producer.close()
            print(len(cluster.log("t")))
        """
    script = programs.FORKING_HANDLER + textwrap.dedent(script)
    assert programs.run(script, step) == "child: 7\n1\n"


def test_a_producer_of_a_scripted_cluster_is_empty_in_a_child() -> None:
    script = """
        from pykaproducer.testing import ScriptedCluster

        with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as producer:
            producer.send("t", b"v").result(30)
            join(fork(lambda: print(producer.accepted, producer._pipeline)))
        """
    assert program(script) == "0 None\n"


def test_a_fork_in_a_serializer() -> None:
    """The child's message is separate: it has an outcome there, and its bytes are released."""
    script = """
        from pykaproducer.testing import ScriptedCluster

        child = None

        def forks(value):
            global child
            if value == b"fork":
                child = os.fork()
            return value

        with ScriptedCluster(topics={"t": 1}) as cluster:
            # No stage takes the parent's chunk: it is open at the fork.
            producer = cluster.producer(
                value_serializer=forks, linger_ms=0, stage_threads="own"
            )
            producer.send("t", b"first").result(30)
            producer._pipeline.dispatcher.wake = lambda **_: None
            producer.send("t", b"the parent's")
            delivery = producer.send("t", b"fork")
            if child == 0:
                leave(lambda: print("child:", producer.accepted, len(delivery.chunk), delivery.row))
            assert os.waitpid(child, 0)[1] == 0
            print("parent:", producer.accepted, len(delivery.chunk), delivery.row)
            del producer._pipeline.dispatcher.wake
            producer.flush(30)
            print([record.value for record in cluster.log("t")])
            producer.close()
        """
    assert program(script) == (
        "child: 1 1 0\nparent: 3 2 1\n[b'first', b\"the parent's\", b'fork']\n"
    )
