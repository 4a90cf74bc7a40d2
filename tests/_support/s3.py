"""A server of S3 for tests: moto's, in a separate process."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyarrow import fs

#: Variables that clients of S3 read.
_KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_PROGRAM = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def environment(port: int) -> dict[str, str]:
    """Return the variables for a server at *port* of this machine."""
    return {**_KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """Yield the port of a server, which ends with the session."""
    program = [sys.executable, "-W", "ignore", "-c", _PROGRAM]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())
        assert server.stdin is not None
        server.stdin.close()


def system() -> fs.FileSystem:
    """Return the store that the environment names."""
    return fs.FileSystem.from_uri("s3://bucket?allow_bucket_creation=true")[0]


def put(bucket: str, top: pathlib.Path) -> None:
    """Create a bucket with all files below *top*."""
    system().create_dir(bucket)
    fs.copy_files(str(top), bucket, destination_filesystem=system())
