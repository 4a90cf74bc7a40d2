"""What ``import pykaproducer`` imports; kafka-python's classes are the same in any order."""

from __future__ import annotations

import json
import sys

import pytest

from tests._support.fixtures.gil import FREE_THREADED
from tests._support.programs import run

#: Only some programs need these, or they take longer than all of this package.
NOT_IMPORTED = {
    "argparse",
    "asyncio",
    "concurrent.futures",
    "crc32c",
    "email",
    "http",
    "importlib.metadata",
    "javaproperties",
    "kafka",
    "kafka.errors",
    "lz4",
    "numpy",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pykaproducer._control",
    "pykaproducer._load",
    "pykaproducer._machines.transaction_record",
    "pykaproducer._net.secure",
    "pykaproducer._wire.kerberos",
    "pykaproducer._wire.mechanisms",
    "pykaproducer._wire.msk_iam",
    "pykaproducer.cli",
    "pykaproducer.confluent",
    "pykaproducer.contrib",
    "pykaproducer.interceptors",
    "pykaproducer.kafka_python",
    "pykaproducer.metrics",
    "pykaproducer.spark",
    "pykaproducer.testing",
    "pykaproducer.transaction_control",
    "pyspark",
    "rich",
    "snappy",
    "ssl",
    "subprocess",
    "urllib.request",
    "uuid",
    "zstandard",
}


def test_only_what_every_producer_needs_is_imported() -> None:
    program = """
import json, sys
before = set(sys.modules)
import pykaproducer
from pykaproducer import Delivery, DeliveryError, Producer, RecordMetadata, TopicPartition
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    assert not set(json.loads(run(program))) & NOT_IMPORTED


def test_a_command_imports_no_library_of_another() -> None:
    """kafka-python's consumer, for those that read back, takes longer than all the rest."""
    program = """
import json, sys
import pykaproducer.cli
print(json.dumps(sorted(sys.modules)))
"""
    theirs = {"kafka", "numpy", "pandas", "prometheus_client", "pyarrow", "pyspark", "rich"}
    assert not set(json.loads(run(program))) & theirs


def test_the_stages_import_nothing() -> None:
    """A stage that imports a module holds its lock: a fork at that moment locks the child up."""
    program = """
import sys, threading
from pykaproducer import Producer, TopicPartition
from pykaproducer.testing import ScriptedCluster

class Recorder:
    def find_spec(self, name, path=None, target=None):
        thread = threading.current_thread()
        if thread is not threading.main_thread() and "scripted" not in thread.name:
            print(thread.name, "imports", name)

sys.meta_path.insert(0, Recorder())
with ScriptedCluster(topics={"t": 3}) as cluster:
    for settings in {}, {"stage_threads": "own"}, {"compression_type": "lz4", "acks": 1}:
        with cluster.producer(**settings) as producer:
            outcomes = [producer.send("t", b"value", key=b"%d" % n) for n in range(50)]
            outcomes[0].add_callback(lambda metadata: None)
            assert outcomes[-1].result(20).topic == "t"
    with cluster.producer(transactional_id="orders") as producer:
        producer.init_transactions(20)
        with producer.transaction():
            producer.send("t", b"value")
            producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "readers")
    with cluster.producer(delivery_timeout_ms=1000, linger_ms=0) as producer:
        cluster.stop(0)
        expired = producer.send("t", b"value", partition=0)
        assert "not delivered" in str(expired.exception(20))
print("delivered")
"""
    assert run(program) == "delivered\n"


def test_transactions_import_nothing_after_the_constructor() -> None:
    """The thread of stats_socket, signal handlers and the last finalizers may call stats(), too."""
    program = """
import sys
from pykaproducer import Producer
from pykaproducer.errors import ProducerClosedError, TransactionTimeoutError

class Recorder:
    def find_spec(self, name, path=None, target=None):
        print("imports", name)

class Finalized:
    def __del__(self, print=print, sys=sys, closed=ProducerClosedError):
        assert sys.meta_path is None  # nothing can be imported any more
        print(self.producer.stats()["transactions"]["state"])
        try:
            self.producer.begin_transaction()
        except closed as error:
            print(error)

producer = Producer(bootstrap_servers="127.0.0.1:1", transactional_id="orders")
sys.meta_path.insert(0, Recorder())
print(producer.stats()["transactions"]["committed"])
try:
    producer.init_transactions(0)
except TransactionTimeoutError:
    print(producer.stats()["transactions"]["state"])
finalized = Finalized()
finalized.cycle, finalized.producer = finalized, producer
del sys.meta_path[0]  # it would keep these variables
"""
    # Python 3.13t has no last finalizers: no cycle is collected once a thread has been started.
    has_none = FREE_THREADED and sys.version_info < (3, 14)
    last = "" if has_none else "closed\nthe producer is closed\n"
    assert run(program) == f"0\ninitializing\n{last}"


IDENTITY = """
import inspect, pickle, sys
{first}
import kafka
import pykaproducer
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition
assert kafka.errors.KafkaTimeoutError is KafkaTimeoutError
assert issubclass(pykaproducer.DeliveryTimeoutError, KafkaTimeoutError)
assert pykaproducer.TopicPartition is TopicPartition is kafka.TopicPartition
try:
    raise pykaproducer.BufferFullError("full")
except kafka.errors.KafkaError:
    pass
for name in "kafka.errors", "kafka.structs":
    module = sys.modules[name]
    assert getattr(kafka, name[6:]) is module, name
    assert (module.__name__, module.__spec__.name, module.__package__) == (name, name, "kafka")
    assert module.__file__.endswith(name[6:] + ".py")
    assert type(module.__loader__) is type(kafka.__loader__) is type(module.__spec__.loader)
    assert all(
        kind.__module__ == name for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, (Exception, tuple))
    )
assert inspect.getsource(KafkaTimeoutError).startswith("class KafkaTimeoutError(")
error = pickle.loads(pickle.dumps(KafkaTimeoutError("text")))
assert type(error) is KafkaTimeoutError and error.args == ("text",)
assert not [each for each in sys.meta_path if type(each).__module__.startswith("pykaproducer")]
assert not [name for name in sys.modules if name.startswith("pykaproducer._errors.kafka_python.")]
print("the same")
"""


@pytest.mark.parametrize(
    "first",
    [
        "import pykaproducer",
        "import kafka",
        "import kafka.errors",
        "import pykaproducer; import kafka.structs",
        "import pykaproducer; from kafka import errors",
        "import pykaproducer; from kafka.errors import KafkaError",
        "import kafka.consumer",
    ],
)
def test_kafka_pythons_classes_are_the_same_in_any_order(first: str) -> None:
    assert run(IDENTITY.format(first=first)) == "the same\n"


def test_threads_that_import_both_at_once_get_the_same_classes() -> None:
    program = """
import importlib, threading
start = threading.Barrier(4)
def load(name):
    start.wait()
    importlib.import_module(name)
names = ["kafka", "pykaproducer"] * 2
threads = [threading.Thread(target=load, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    for _ in range(5):
        assert run(IDENTITY.format(first=program)) == "the same\n"


def test_an_error_of_a_broker_survives_a_process_that_has_not_imported_kafka() -> None:
    made = run("""
import pickle, sys
from pykaproducer.errors import Status, delivery_error_for
error = delivery_error_for(29, topic="t", status=Status.NOT_PERSISTED)
print(pickle.dumps(error).hex())
""")
    found = run(f"""
import pickle
error = pickle.loads(bytes.fromhex({made.strip()!r}))
import kafka.errors
assert isinstance(error, kafka.errors.TopicAuthorizationFailedError)
assert type(error.__cause__) is kafka.errors.TopicAuthorizationFailedError
print(error.code)
""")
    assert found == "29\n"


def test_a_new_class_for_an_unknown_code_belongs_to_kafka_run() -> None:
    program = (
        "import pykaproducer\nfrom kafka.errors import for_code\nprint(for_code(9999).__module__)"
    )
    assert run(program) == "kafka.errors\n"


def test_the_drop_in_is_imported_on_first_use() -> None:
    program = """
import sys, pykaproducer
assert "KafkaProducer" in dir(pykaproducer)
assert "pykaproducer.kafka_python.producer" not in sys.modules
from pykaproducer import KafkaProducer
assert pykaproducer.KafkaProducer is KafkaProducer
assert issubclass(KafkaProducer, pykaproducer.Producer)
from pykaproducer import *
try:
    pykaproducer.NoSuchName
except AttributeError as error:
    print(error)
"""
    assert run(program) == "module 'pykaproducer' has no attribute 'NoSuchName'\n"


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the module has another name")
def test_a_second_interpreter_is_told_why_it_cannot_import_it() -> None:
    script = """
        import _xxsubinterpreters as interpreters
        import pykaproducer

        try:
            interpreters.run_string(interpreters.create(), "import pykaproducer")
        except Exception as error:
            print(error)
        """
    assert "another interpreter of this process has loaded it" in run(script)
