"""What a producer says of the cluster, and what it does not build: transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pykaproducer._net.inspect import list_cluster
from pykaproducer.confluent.arguments import seconds
from pykaproducer.confluent.errors import KafkaError, exception, text_of
from pykaproducer.confluent.metadata import ClusterMetadata, cluster_metadata
from pykaproducer.errors import MetadataTimeoutError, UnsupportedFeatureError

if TYPE_CHECKING:
    from pykaproducer.confluent.settings import Translated
    from pykaproducer.producer import Producer as Core


def refuse_closed() -> NoReturn:
    """The producer was closed, or never made."""
    raise RuntimeError("Producer has been closed")


class ClusterMethods:
    """``Producer`` derives from it."""

    # What a subclass finds that does not call our constructor: a closed producer.
    _core: Core | None = None
    _settings: Translated

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Ask the cluster for its brokers and topics.

        Args:
            topic: this one alone, which may be created thereby, if the brokers do such things.
            timeout: seconds; below 0: until somebody answers.

        Raises:
            KafkaException: nobody answered (_TRANSPORT); the text says why.
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
        """The cluster's id. As :meth:`list_topics`."""
        return self.list_topics(timeout=timeout).cluster_id

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Authenticate with these from now on: when a connection is made, or authenticates again.

        Connections that stand stay. Only with the mechanisms PLAIN and SCRAM; else no effect.
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
            # Frozen to everybody else; each authentication reads these two anew.
            object.__setattr__(core.config, name, value)

    # What is not built ----------------------------------------------------------------------------

    def init_transactions(self, timeout: float = -1) -> NoReturn:
        """Not built."""
        self._refuse("init_transactions()")

    def begin_transaction(self) -> NoReturn:
        """Not built."""
        self._refuse("begin_transaction()")

    def send_offsets_to_transaction(
        self, positions: object, group_metadata: object, timeout: float = -1
    ) -> NoReturn:
        """Not built."""
        self._refuse("send_offsets_to_transaction()")

    def commit_transaction(self, timeout: float = -1) -> NoReturn:
        """Not built."""
        self._refuse("commit_transaction()")

    def abort_transaction(self, timeout: float = -1) -> NoReturn:
        """Not built."""
        self._refuse("abort_transaction()")

    def _refuse(self, method: str) -> NoReturn:
        if self._core is None:
            refuse_closed()
        reason = f"{method}: transactions are not built"
        raise exception(KafkaError._NOT_IMPLEMENTED, reason) from UnsupportedFeatureError(reason)
