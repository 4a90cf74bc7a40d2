"""gunicorn's gevent worker, with real threads (``docs/web.rst`` has the same lines)."""

from gevent import monkey
from gunicorn.workers.ggevent import GeventWorker


class Worker(GeventWorker):
    """Patches all but threads."""

    def patch(self) -> None:
        """Called by gunicorn in place of its own."""
        monkey.patch_all(thread=False)
