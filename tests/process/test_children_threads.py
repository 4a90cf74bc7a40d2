"""A child of ``multiprocessing`` with threads that only the interpreter's shutdown ends."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import concurrent.futures, multiprocessing, sys
    from pykaproducer import Producer

    def with_an_executor():
        global executor, producer
        executor = concurrent.futures.ThreadPoolExecutor(2)
        executor.submit(int).result()
        producer = Producer(bootstrap_servers="127.0.0.1:1", exit_flush_timeout_ms=1)
        producer.send("t", b"1")

    if __name__ == "__main__":
        child = multiprocessing.get_context(sys.argv[1]).Process(target=with_an_executor)
        child.start()
        child.join(30)
        if child.is_alive():
            child.kill()
            child.join()
        sys.exit(child.exitcode != 0)
    """


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_with_an_idle_executor_ends(tmp_path: pathlib.Path, method: str) -> None:
    file = tmp_path / "program.py"  # a module that a new interpreter can import
    file.write_text(textwrap.dedent(SCRIPT))
    program = subprocess.run(
        [sys.executable, str(file), method], capture_output=True, timeout=60, check=False
    )
    assert program.returncode == 0, program.stderr
