"""gunicorn's gevent worker, with real threads (``docs/web.rst`` has the same lines)."""

from gevent import monkey
from gunicorn.workers.ggevent import GeventWorker


class Worker(GeventWorker):
    """A worker that patches everything except threads."""

    def patch(self) -> None:
        """Patch; called by gunicorn instead of the built-in method."""
        monkey.patch_all(thread=False)
