"""The handling of messages that the producer below does not accept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pykaproducer._config.schema import INT_MAX
from pykaproducer.confluent.arguments import is_topic
from pykaproducer.confluent.errors import (
    KafkaError,
    KafkaException,
    exception,
    text_of,
    transaction_error,
)
from pykaproducer.confluent.message import Message
from pykaproducer.confluent.settings import log
from pykaproducer.errors import (
    BufferFullError,
    MessageTooLargeError,
    ProducerBrokenError,
    ProducerClosedError,
    TransactionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pykaproducer.confluent.delivery_queue import Events
    from pykaproducer.producer import Producer as Core

#: librdkafka's limit for topic names. Longer ones fail immediately, other invalid ones later.
_LONGEST_TOPIC = 512

#: Our settings that errors name -> confluent-kafka's.
_NAMES = {
    "max_request_size": "message.max.bytes",
    "buffer_memory": "queue.buffering.max.kbytes",
}


class RejectionHandling:
    """The handling of errors in ``produce()``, from which ``Producer`` derives."""

    _core: Core | None
    _events: Events
    produce: Callable[..., None]

    def _refused(self, error: Exception, core: Core, callback: Any, *message: Any) -> None:
        """Translate an error of send() to confluent-kafka's, or make it the message's outcome."""
        topic, value, key, partition, timestamp, headers = message
        match error:
            case MessageTooLargeError():
                reason = f"Unable to produce message: {text_of(KafkaError.MSG_SIZE_TOO_LARGE)}"
                text = _in_confluents_names(str(error))
                raise exception(KafkaError.MSG_SIZE_TOO_LARGE, f"{reason}: {text}") from error
            case BufferFullError():
                text = f"{text_of(KafkaError._QUEUE_FULL)} (queue.buffering.max.kbytes): {error}"
                raise BufferError(text) from error
            case TransactionError():
                code = KafkaError._FATAL if error.fatal else KafkaError._STATE
                raise KafkaException(transaction_error(error, code)) from error
            case ProducerBrokenError():
                raise exception(KafkaError._FATAL, str(error), fatal=True) from error
            case ProducerClosedError():
                if core is self._core or self._core is None:
                    raise RuntimeError("Producer has been closed") from error
                # purge() has replaced the producer in the meantime.
                self.produce(topic, value, key, partition, callback, None, timestamp, headers)
            case ValueError() if not is_topic(topic):
                if len(topic) > _LONGEST_TOPIC:
                    reason = f"Unable to produce message: {text_of(KafkaError._INVALID_ARG)}"
                    raise exception(KafkaError._INVALID_ARG, f"{reason}: {error}") from error
                self._fails(KafkaError.TOPIC_EXCEPTION, error, callback, *message[:4])
            case ValueError() if partition > INT_MAX:
                raise OverflowError("signed integer is greater than maximum") from error
            case ValueError() if partition < -1:
                self._fails(KafkaError._UNKNOWN_PARTITION, error, callback, *message[:4])
            case TypeError() if "_serializer" in str(error):
                # Remove the hint, because the setting does not exist here.
                raise TypeError(str(error).partition("; set ")[0]) from None
            case _:
                raise error

    def _fails(
        self,
        code: int,
        cause: Exception,
        callback: Any,
        topic: str,
        value: Any,
        key: Any,
        place: int,
    ) -> None:
        """Fail the message later, because librdkafka accepts it."""
        error = KafkaError(code, f"{text_of(code)}: {cause}")
        error.origin = cause
        if callback is None:
            log.error("a message without a callback was not delivered: %s", error.str())
            return
        message = Message(topic, place, -1, key, value, None, error, (0, -1), 0.0)
        self._events.put(callback, error, message)


def _in_confluents_names(text: str) -> str:
    """Replace our names of settings by those that the user has set."""
    for ours, theirs in _NAMES.items():
        text = text.replace(ours, theirs)
    return text
