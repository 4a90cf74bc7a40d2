"""Real signals: at random moments, and in each wait."""

from __future__ import annotations

import pytest

from tests._support.programs import run

STORM = """
    import random, signal, threading
    from collections import Counter
    from pykaproducer.testing import ScriptedCluster

    armed, struck = False, 0

    def strike(number, frame):
        global struck
        if armed:
            struck += 1
            raise KeyboardInterrupt

    def interrupt(operation, *arguments):
        global armed
        try:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-3))
                operation(*arguments)
            finally:
                armed = False
        except KeyboardInterrupt:
            pass

    def send_many():
        for _ in range(2000):
            value = b"%d" % len(tried)
            tried.append(value)
            accepted[value] = producer.send("events", value, on_delivery=report)

    def report(error, delivery):
        told[delivery.value] += 1
        assert error is None

    signal.signal(signal.SIGALRM, strike)
    chance = random.Random(SEED)
    with ScriptedCluster(topics={"events": 3}) as cluster:
        rounds = 0
        while struck < 60:
            rounds += 1
            before = sum(len(cluster.log("events", p)) for p in range(3))
            tried, accepted, told = [], {}, Counter()
            producer = cluster.producer(linger_ms=chance.choice([0, 100]), client_id="storm")
            producer.send("events", b"first", on_delivery=report).result(30)
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
            assert set(accepted) <= set(told) <= {b"first", *tried}
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
        frame = sys._current_frames()[thread.ident]
        while frame is not None and frame.f_code.co_name != "start":
            frame = frame.f_back
        return frame is None and state.read_text().rpartition(")")[2].split()[0] == "S"

    def strike():
        while not is_waiting(threading.main_thread()):
            tick()
        os.kill(os.getpid(), signal.SIGINT)

    with ScriptedCluster(topics={"events": 1}) as cluster:
        producer = cluster.producer()
        hold = Hold()
        cluster.next("produce", hold)
        delivery = producer.send("events", b"value")
        hold.wait_until_held()
        for wait in (delivery.result, delivery.exception, producer.flush, producer.close):
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
        assert delivery.result(0).offset == 0
        assert [record.value for record in cluster.log("events")] == [b"value"]
    """


@pytest.mark.parametrize("seed", range(2))
def test_signals_at_random_moments_lose_nothing(seed: int) -> None:
    assert run(STORM.replace("SEED", str(seed))).startswith("struck")


def test_sigint_ends_every_wait_and_the_message_goes_on() -> None:
    assert run(WAIT).split() == ["result", "exception", "flush", "close"]
