"""Names of sources: whose file system they are in, and the error that begins with one."""

from __future__ import annotations

import os
import re

#: Formats that only Spark reads, and that are not files.
QUERIES = ("table", "sql")


class SourceError(Exception):
    """A source cannot be opened, or cannot be read to its end.

    The text names the file, the row if it is known, and what to do. Batches read before the error
    stay valid.
    """


def is_stored(name: str) -> bool:
    """Return whether *name* is in an object store."""
    return re.match(r"(?:s3|gs|abfss?)://", name) is not None


def is_uri(name: str) -> bool:
    """Return whether *name* is a URI, whose file system only Spark reads."""
    return re.match(r"\w\w+://", name) is not None and not is_stored(name)


def refuse_secrets(name: str) -> None:
    """Raise SourceError if a URI contains a password, which errors and logs would show."""
    scheme, _, rest = name.partition("://")
    secrets = r"[^/]*:[^/]*@|[^?]*\?[^/]*(secret|password|token|key|sig)[^/=&]*="
    if rest and re.match(secrets, rest, re.IGNORECASE):
        raise SourceError(
            f"{scheme}://...: errors and logs would show the secret in it; set the credentials in "
            f"the environment"
        )


def is_pipe(name: str) -> bool:
    """Return whether *name* is standard input, a pipe or a device, which can be read only once."""
    is_other = os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name))
    return name == "-" or is_other
