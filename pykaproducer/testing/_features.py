"""The levels of a cluster's features, as ``kafka-features`` changes them (KIP-584)."""

from __future__ import annotations

from pykaproducer.testing import _admin
from pykaproducer.testing._admin_messages import UpdateFeaturesRequest
from pykaproducer.testing._messages import ApiVersionsRequest

#: Kafka's numbers of the kinds of changes. A downgrade without loss is the only one used here.
_UPGRADE = 1
_SAFE_DOWNGRADE = 2


def set_level(port: int, name: str, level: int) -> None:
    """Change the level of a feature; raise ClusterError if the cluster rejects it."""
    known = current_level(port, name)
    if known == level:
        return
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature=name,
        max_version_level=level,
        upgrade_type=_UPGRADE if level > known else _SAFE_DOWNGRADE,
    )
    request = UpdateFeaturesRequest(
        version=1, timeout_ms=int(_admin.TOPIC_TIMEOUT * 1000), feature_updates=[update]
    )
    answer = _admin.ask(port, request, _admin.TOPIC_TIMEOUT + _admin.REQUEST_TIMEOUT)
    for each in (answer, *answer.results):
        _admin.check(each.error_code, f"set {name} to {level}", each.error_message)


def current_level(port: int, name: str) -> int:
    """Return the level that the broker at *port* applies; 0: the feature is off."""
    request = ApiVersionsRequest(
        version=4, client_software_name="pykaproducer-testing", client_software_version="1"
    )
    answer = _admin.ask(port, request, _admin.REQUEST_TIMEOUT)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return int(levels.get(name, 0))
