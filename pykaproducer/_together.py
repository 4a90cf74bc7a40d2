"""Settings that are each in range, and what they mean for one another."""

from __future__ import annotations

import importlib.util
from typing import Protocol

from pykaproducer._settings import COMPRESSION_LEVELS
from pykaproducer.errors import ConfigurationError

#: A buffer into which hardly a message fits is a mistake (bytes).
_SMALLEST_BUFFER = 1_000


class Decided(Protocol):
    """What of a configuration is looked at here."""

    @property
    def acks(self) -> int: ...
    @property
    def enable_idempotence(self) -> bool | None: ...
    @property
    def retries(self) -> int: ...
    @property
    def max_in_flight_requests_per_connection(self) -> int: ...
    @property
    def delivery_timeout_ms(self) -> float: ...
    @property
    def linger_ms(self) -> float: ...
    @property
    def buffer_memory(self) -> int: ...
    @property
    def compression_type(self) -> str | None: ...
    @property
    def compression_level(self) -> int | None: ...


def conflicts_of(config: Decided) -> list[str]:
    """What idempotence cannot be kept with."""
    found = []
    if config.acks != -1:
        found.append(f"acks={config.acks}")
    if config.retries == 0:
        found.append("retries=0")
    if config.max_in_flight_requests_per_connection > 5:
        found.append(
            "max_in_flight_requests_per_connection="
            f"{config.max_in_flight_requests_per_connection} (above 5)"
        )
    return found


def check_together(config: Decided) -> None:
    """Settings that are each in range and yet cannot be had together."""
    if config.enable_idempotence and (conflicts := conflicts_of(config)):
        raise ConfigurationError(
            f"setting enable_idempotence: True cannot be had with {' and '.join(conflicts)}; it "
            f"needs acks='all', retries above 0 and at most 5 requests in flight"
        )
    if config.delivery_timeout_ms < config.linger_ms:
        raise ConfigurationError(
            f"setting delivery_timeout_ms: {config.delivery_timeout_ms} was given; allowed: at "
            f"least linger_ms, which is {config.linger_ms}"
        )
    if config.buffer_memory < _SMALLEST_BUFFER:
        raise ConfigurationError(
            f"setting buffer_memory: {config.buffer_memory} was given; allowed: at least "
            f"{_SMALLEST_BUFFER} bytes, as a message takes a hundred beside its key and value"
        )
    _check_compression(config.compression_type, config.compression_level)


def _check_compression(compression: str | None, level: int | None) -> None:
    if compression == "zstd" and importlib.util.find_spec("zstandard") is None:
        raise ConfigurationError(
            "setting compression_type: 'zstd' needs the package zstandard: "
            "pip install 'pykaproducer[zstd]', or choose gzip, snappy or lz4"
        )
    if level is None:
        return
    levels = COMPRESSION_LEVELS.get(compression or "none")
    if levels is None or not levels[0] <= level <= levels[1]:
        allowed = f"a whole number from {levels[0]} to {levels[1]}" if levels else "none"
        raise ConfigurationError(
            f"setting compression_level: {level} was given; allowed with compression_type "
            f"{compression!r}: {allowed}"
        )
