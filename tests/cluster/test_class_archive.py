"""The class-data archive of a broker: made once, used by later starts, never an obstacle."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from pykaproducer.testing import KafkaCluster, _archive, _jars
from pykaproducer.testing._archive import ClassArchive
from pykaproducer.testing._processes import GuardedProcesses, tick
from tests._support.pairs import partly
from tests._support.programs import exists

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
ROOT = Path(__file__).parents[2]
#: How long a test waits for what must happen, in seconds; only a hang takes as long.
PATIENCE = 300.0
#: The options of each cluster here.
OPTIONS: dict[str, Any] = {"fast_start": True}
#: Archives of other versions, one of them not used for a month.
RECENT, UNUSED = "kafka-1.0.0-recent.jsa", "kafka-1.0.0-unused.jsa"


def new_cache(directory: Path) -> Path:
    """Return a cache that knows the jars of the user's cache, but contains no archive."""
    jars = _jars.kafka_jars()
    cache = directory / "pykaproducer"
    cache.mkdir()
    _jars._write_listing(cache / f"kafka-{_jars.KAFKA_VERSION}.json", jars)
    return cache


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each cluster wait for its archive, on a slow machine too."""
    monkeypatch.setattr(_archive, "_PATIENCE", PATIENCE)
    monkeypatch.setattr(_archive, "_waited", False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = new_cache(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the archive that two clusters have made, in a cache with two older ones."""
    base = tmp_path_factory.mktemp("cache")
    directory = new_cache(base)
    (directory / RECENT).touch()
    (directory / UNUSED).touch()
    month_ago = time.time() - 31 * 24 * 3600
    os.utime(directory / UNUSED, (month_ago, month_ago))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_CACHE_HOME", str(base))
        monkeypatch.setattr(_archive, "_PATIENCE", PATIENCE)
        monkeypatch.setattr(_archive, "_waited", False)
        # The second one stops while the first one's guard makes the archive, or has made it.
        with KafkaCluster(**OPTIONS), KafkaCluster(**OPTIONS):
            pass
    (archive,) = (each for each in archives(directory) if each.name not in (RECENT, UNUSED))
    return archive


def archives(cache: Path) -> list[Path]:
    """Return the archives in a cache, complete or not."""
    return [*cache.glob("*.jsa"), *cache.glob("*.partial")]


def maps(pid: int, archive: Path) -> bool:
    """Return whether a process has mapped an archive, which only a use of it does."""
    return str(archive) in Path(f"/proc/{pid}/maps").read_text()


def assert_serves(cluster: KafkaCluster) -> None:
    cluster.create_topic("events")
    assert cluster.leader_of("events", 0) == 0


# Making and using


@linux
def test_clusters_that_start_together_make_one_archive_and_later_ones_use_it(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.parent.parent))
    before = made.stat()
    with KafkaCluster(2, features={"transaction.version": 0}, heap_mb=256, **OPTIONS) as cluster:
        assert all(maps(broker.pid, made) for broker in cluster.brokers)
        cluster.kill(0)
        cluster.restart(0)
        assert maps(cluster.brokers[0].pid, made)
        cluster.create_topic("events")
    after = made.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)


def test_each_java_and_each_set_of_jars_has_another_archive(cache: Path, tmp_path: Path) -> None:
    jars = _jars.kafka_jars()
    java = tmp_path / "java" / "bin" / "java"
    release = tmp_path / "java" / "release"
    java.parent.mkdir(parents=True)

    def path(*classpath: Path) -> Path | None:
        return ClassArchive(java, classpath, tmp_path)._path

    assert path(*jars) is None
    release.write_text('JAVA_VERSION="25.0.2"\n')
    first = path(*jars)
    assert first is not None
    assert first == path(*jars)
    assert first.parent == cache
    assert path(*jars[1:]) != first
    release.write_text('JAVA_VERSION="25.0.3"\n')
    assert path(*jars) not in (None, first)


def test_an_archive_that_is_no_longer_used_goes_when_another_is_made(made: Path) -> None:
    assert {archive.name for archive in archives(made.parent)} == {made.name, RECENT}


# What must not prevent a start


@linux
@pytest.mark.parametrize(
    "damage", partly(["cut off", "empty", "other bytes", "foreign"], ["other bytes"])
)
def test_an_archive_that_java_cannot_use_does_no_harm(damage: str, made: Path, cache: Path) -> None:
    content = bytearray(made.read_bytes())
    if damage == "cut off":
        del content[len(content) // 2 :]
    elif damage == "empty":
        content.clear()
    elif damage == "other bytes":
        middle = len(content) // 2
        content[middle : middle + 4096] = bytes(byte ^ 0xFF for byte in content[middle:][:4096])
    else:
        # The version of the Java that made it is text in the first page.
        at = content.index(b"OpenJDK")
        content[at : at + 7] = b"AnyJDK!"
    archive = cache / made.name
    archive.write_bytes(content)
    with KafkaCluster(**OPTIONS) as cluster:
        assert not maps(cluster.brokers[0].pid, archive)
        assert_serves(cluster)


@pytest.mark.full
def test_a_cache_in_which_nothing_can_be_written_does_no_harm(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A directory in the place of the lock: the mode of the cache would not stop root.
    (cache / "archive.lock").mkdir()
    with KafkaCluster(**OPTIONS) as cluster:
        assert_serves(cluster)
    assert archives(cache) == []


@pytest.mark.full
def test_an_archive_that_cannot_be_made_does_no_harm(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: Java fails after the start, and leaves a part of the file or nothing."""
    command = _archive._server.archive_command
    monkeypatch.setattr(
        _archive._server, "archive_command", lambda *given: [*command(*given), "-XX:+NoSuchOption"]
    )
    with KafkaCluster(**OPTIONS) as cluster:
        assert_serves(cluster)
    assert archives(cache) == []


def test_an_archive_does_not_take_what_is_left_of_a_disk(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_archive, "_ROOM", shutil.disk_usage(cache).total + 1)
    with KafkaCluster(**OPTIONS) as cluster:
        assert_serves(cluster)
    assert list(cache.glob("*.lock")) == archives(cache) == []


# Several processes


@pytest.mark.full
def test_an_archive_that_another_process_makes_is_not_made_again(cache: Path) -> None:
    with (cache / "archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Returns: it neither waits for the lock nor for the archive.
        with KafkaCluster(**OPTIONS) as cluster:
            assert_serves(cluster)
        assert archives(cache) == []


@pytest.mark.full
@linux
@pytest.mark.parametrize("victim", ["owner", "guard", "maker"])
def test_a_death_while_an_archive_is_made_leaves_none(
    victim: str, cache: Path, tmp_path: Path
) -> None:
    """If the guard is killed, a file under the temporary name may stay for the next maker."""
    script = """
        import os, signal, sys
        from pykaproducer.testing import KafkaCluster
        with KafkaCluster(fast_start=True) as cluster:
            maker = cluster._archive._maker
            # Its end must not come before the kill.
            os.kill(maker, signal.SIGSTOP)
            guard = cluster._processes._guard.pid
            print(maker, guard, cluster._processes.directory, flush=True)
            sys.stdin.read()
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    maker, guard, directory = owner.stdout.readline().split()
    pids = {"owner": owner.pid, "guard": int(guard), "maker": int(maker)}
    os.kill(pids[victim], signal.SIGKILL)
    owner.communicate(timeout=PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while any(map(exists, pids.values())) or (Path(directory).exists() and victim != "guard"):
        assert time.monotonic() < deadline
        tick()
    assert list(cache.glob("*.jsa")) == []
    if victim != "guard":
        assert archives(cache) == []


def test_an_incomplete_file_of_a_killed_guard_is_replaced(cache: Path, tmp_path: Path) -> None:
    script = 'import sys; open(sys.argv[1].partition("=")[2], "w").write("complete")'
    path = cache / "an.jsa"
    path.with_name("an.jsa.partial").write_text("cut off by a power failure")
    with GuardedProcesses() as processes:
        maker = processes.make([sys.executable, "-c", script], {}, path, tmp_path / "log")
        assert maker is not None
        assert processes.wait(maker, PATIENCE) == 0
    assert path.read_text() == "complete"
    assert archives(cache) == [path]


@linux
def test_a_disk_that_is_slow_to_write_an_archive_does_not_stop_the_guard(
    cache: Path, tmp_path: Path
) -> None:
    # A pipe in the place of the file: it cannot be opened before the other end is.
    script = 'import os, sys; os.mkfifo(sys.argv[1].partition("=")[2])'
    path, partial = cache / "an.jsa", cache / "an.jsa.partial"
    with GuardedProcesses() as processes:
        maker = processes.make([sys.executable, "-c", script], {}, path, tmp_path / "log")
        assert maker is not None
        assert processes.wait(maker, PATIENCE) == 0
        guard = processes._guard.pid
        deadline = time.monotonic() + PATIENCE
        while not Path(f"/proc/{guard}/task/{guard}/children").read_text():
            assert time.monotonic() < deadline
            tick()
        assert processes.poll(maker) == 0
        with os.fdopen(os.open(partial, os.O_RDWR)):
            while partial.exists():
                assert time.monotonic() < deadline
                tick()
    assert archives(cache) == []


# The end of a cluster


@pytest.mark.full
def test_a_cluster_that_ends_with_an_error_does_not_wait(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object) -> None:
        pytest.fail("waited")

    monkeypatch.setattr(ClassArchive, "finish", wait)
    with pytest.raises(KeyboardInterrupt), KafkaCluster(**OPTIONS):
        raise KeyboardInterrupt
    assert archives(cache) == []


@pytest.mark.full
@linux
def test_a_run_of_tests_that_is_interrupted_does_not_wait(cache: Path, tmp_path: Path) -> None:
    script = """
        import os, signal
        from pykaproducer.testing import _archive

        _archive._PATIENCE = 600.0

        def test_that_is_interrupted(own_cluster):
            os.kill(own_cluster._archive._maker, signal.SIGSTOP)
            raise KeyboardInterrupt
    """
    (tmp_path / "test_interrupted.py").write_text(textwrap.dedent(script))
    plugins = [f"-ptests._support.fixtures.{name}" for name in ("keeping", "cluster")]
    options = ["-c", "/dev/null", "-p", "no:cacheprovider", *plugins]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_interrupted.py")],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == pytest.ExitCode.INTERRUPTED
    assert archives(cache) == []
