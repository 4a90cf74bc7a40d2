"""Real signals: at random moments, and in each wait."""

from __future__ import annotations

import textwrap

import pytest

from tests._support.programs import INTERRUPTS, run

STORM = """
    import threading
    from collections import Counter
    from pykaproducer.testing import ScriptedCluster

    def send_many():
        for _ in range(2000):
            value = b"%d" % len(tried)
            tried.append(value)
            accepted[value] = producer.send("events", value, on_delivery=report)

    def report(error, delivery):
        told[delivery.value] += 1
        assert error is None

    with ScriptedCluster(topics={"events": 3}) as cluster:
        rounds = 0
        while struck < 60:
            rounds += 1
            before = sum(len(cluster.log("events", p)) for p in range(3))
            tried, told = [b"first"], Counter()
            producer = cluster.producer(linger_ms=chance.choice([0, 100]), client_id="storm")
            accepted = {b"first": producer.send("events", b"first", on_delivery=report)}
            accepted[b"first"].result(30)
            for _ in range(6):
                interrupt(send_many)
                interrupt(producer.flush, 30)
                interrupt(send_many)
                interrupt(lambda: list(accepted.values())[-1].result(30))
            interrupt(producer.close, 30)
            producer.close(30)
            values = [r.value for p in range(3) for r in cluster.log("events", p)]
            assert len(values) - before == producer.accepted
            assert {delivery.exception(0) for delivery in accepted.values()} <= {None}
            assert sum(told.values()) == len(told) == producer.accepted
            assert set(accepted) <= set(told) <= set(tried)
            assert producer._budget.used == 0
            # A start() that was interrupted leaves a thread without ident in the list of the
            # threading module: it never ran, and another one was started in its place.
            left = [t for t in threading.enumerate() if t.ident and t.name.startswith("storm-")]
            for thread in left:
                thread.join(30)  # that of the interrupted close() may be about to end
            assert not any(thread.is_alive() for thread in left), left
    print("struck", struck, "rounds", rounds)
    """

WAIT = """
    import os, pathlib, signal, sys, threading
    from pykaproducer.testing import ScriptedCluster
    from pykaproducer.testing._processes import tick
    from pykaproducer.testing.scripted import Hold

    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored

    state = pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/stat")

    def is_waiting(thread):
        "Return whether it sleeps in a call: Python sees an earlier signal when the wait ends."
        # A thread that waits for the interpreter's lock sleeps, too.
        waits = sys._current_frames()[thread.ident].f_code.co_name == "acquire"
        return waits and state.read_text().rpartition(")")[2].split()[0] == "S"

    def strike():
        while not is_waiting(threading.main_thread()):
            tick()
        os.kill(os.getpid(), signal.SIGINT)

    with ScriptedCluster(topics={"events": 1}) as cluster:
        producer, other = cluster.producer(), cluster.producer(transactional_id="other")
        other.init_transactions()
        other.begin_transaction()
        other.send("events", b"committed").result(30)
        hold, held_end = Hold(), Hold()
        cluster.next("produce", hold)
        cluster.next("end_txn", held_end)
        delivery = producer.send("events", b"value")
        hold.wait_until_held()
        ends = (producer.flush, producer.close, other.commit_transaction)
        for wait in (delivery.result, delivery.exception, *ends):
            killer = threading.Thread(target=strike)
            try:
                killer.start()
                wait()
            except KeyboardInterrupt:
                print(wait.__name__)
            killer.join()
        assert not delivery.done()
        hold.release()
        producer.close(30)
        held_end.release()
        other.commit_transaction(30)
        other.close(30)
        assert delivery.result(0).offset == 1
        values = [record.value for record in cluster.log("events", committed=True)]
        assert values == [b"committed", b"value"]
    """


@pytest.mark.parametrize("seed", range(2))
def test_signals_at_random_moments_lose_nothing(seed: int) -> None:
    assert run(INTERRUPTS + textwrap.dedent(STORM), str(seed)).startswith("struck")


def test_sigint_ends_every_wait_and_the_message_and_the_commit_go_on() -> None:
    waits = ["result", "exception", "flush", "close", "commit_transaction"]
    assert run(WAIT).split() == waits
