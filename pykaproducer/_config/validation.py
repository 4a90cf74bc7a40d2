"""Validation of settings that depend on each other."""

from __future__ import annotations

from typing import Protocol

from pykaproducer._util.compression import CODECS
from pykaproducer.errors import ConfigurationError

#: A smaller buffer would hold hardly any message, and is considered a mistake (bytes).
_SMALLEST_BUFFER = 1_000


class Decided(Protocol):
    """The part of the configuration that is validated here."""

    @property
    def acks(self) -> int: ...
    @property
    def enable_idempotence(self) -> bool | None: ...
    @property
    def transactional_id(self) -> str | None: ...
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


def idempotence_conflicts(config: Decided) -> list[str]:
    """Return the settings that rule out idempotence, as ``name=value``."""
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


def validate_combination(config: Decided) -> None:
    """Reject combinations of individually valid settings that conflict."""
    if config.transactional_id is not None:
        conflicts = idempotence_conflicts(config)
        if config.enable_idempotence is False:
            conflicts = ["enable_idempotence=False", *conflicts]
        if conflicts:
            raise ConfigurationError(
                f"setting transactional_id: {config.transactional_id!r} conflicts with "
                f"{' and '.join(conflicts)}; there is no transactional_id without "
                f"enable_idempotence, acks='all', retries above 0 and at most 5 requests in flight"
            )
    if config.enable_idempotence and (conflicts := idempotence_conflicts(config)):
        raise ConfigurationError(
            f"setting enable_idempotence: True conflicts with {' and '.join(conflicts)}; it "
            f"requires acks='all', retries above 0 and at most 5 requests in flight"
        )
    if config.delivery_timeout_ms < config.linger_ms:
        raise ConfigurationError(
            f"setting delivery_timeout_ms: {config.delivery_timeout_ms} was given; allowed: at "
            f"least linger_ms, which is {config.linger_ms}"
        )
    if config.buffer_memory < _SMALLEST_BUFFER:
        raise ConfigurationError(
            f"setting buffer_memory: {config.buffer_memory} was given; allowed: at least "
            f"{_SMALLEST_BUFFER} bytes, as a message needs about 100 besides its key and value"
        )
    _check_compression(config.compression_type, config.compression_level)


def _check_compression(compression: str | None, level: int | None) -> None:
    codec = None if compression is None else CODECS[compression]
    if codec is not None and not codec.is_installed():
        others = [other.name for other in CODECS.values() if other.is_installed()]
        raise ConfigurationError(
            f"setting compression_type: {compression!r} needs the package "
            f"{codec.modules[0]}: pip install '{codec.install}', or choose {' or '.join(others)}"
        )
    if level is None:
        return
    levels = None if codec is None else codec.levels
    if levels is None:
        raise ConfigurationError(
            f"setting compression_level: {level} was given, but compression_type {compression!r} "
            f"has no levels; remove compression_level, or choose another compression_type"
        )
    if not levels[0] <= level <= levels[1]:
        raise ConfigurationError(
            f"setting compression_level: {level} was given; allowed with compression_type "
            f"{compression!r}: an integer from {levels[0]} to {levels[1]}"
        )
