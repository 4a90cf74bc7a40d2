"""The methods of a producer for the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pykaproducer._net.inspect import list_cluster
from pykaproducer.confluent.arguments import seconds
from pykaproducer.confluent.errors import KafkaError, exception, text_of
from pykaproducer.confluent.metadata import ClusterMetadata, cluster_metadata
from pykaproducer.errors import MetadataTimeoutError

if TYPE_CHECKING:
    from pykaproducer.confluent.settings import Translated
    from pykaproducer.producer import Producer as Core


def refuse_closed() -> NoReturn:
    """Raise the error of a producer that was closed or never created."""
    raise RuntimeError("Producer has been closed")


class ClusterMethods:
    """The methods for the cluster, from which ``Producer`` derives."""

    # Of PolledAdmission. None also in a subclass that does not call our constructor: it acts as a
    # closed producer.
    _core: Core | None
    _settings: Translated

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Return the brokers and topics of the cluster.

        Args:
            topic: return this topic only. Brokers may create it, if they are configured so.
            timeout: seconds; a negative number waits until a broker answers.

        Raises:
            KafkaException: no broker answered (_TRANSPORT); the text says why.
        """
        if topic is not None and not isinstance(topic, str):
            raise TypeError(f"argument 1 must be str or None, not {type(topic).__name__}")
        allowed = seconds(timeout)
        core = self._core
        if core is None:
            raise RuntimeError("Handle has been closed")
        try:
            found = list_cluster(core.config, allowed, topic, create=True)
        except MetadataTimeoutError as error:
            raise exception(
                KafkaError._TRANSPORT, f"Failed to get metadata: {text_of(-195)}: {error}"
            ) from error
        return cluster_metadata(found)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """Return the cluster's id; the arguments are as for :meth:`list_topics`."""
        return self.list_topics(timeout=timeout).cluster_id

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials for new connections and reauthentications.

        Existing connections remain open. No effect except with the mechanisms PLAIN and SCRAM.
        """
        for at, given in enumerate((username, password), start=1):
            if not isinstance(given, str):
                raise TypeError(f"argument {at} must be str, not {type(given).__name__}")
        core = self._core
        if core is None:
            raise RuntimeError("Handle has been closed")
        if "sasl_mechanism" not in self._settings.ours:
            return
        changed = {"sasl_plain_username": username, "sasl_plain_password": password}
        self._settings.ours.update(changed)
        for name, value in changed.items():
            # The object is otherwise immutable; each authentication reads these two again.
            object.__setattr__(core.config, name, value)
