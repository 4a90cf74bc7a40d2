"""Access control lists of a test cluster: who may do what with which topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kafka.protocol.admin import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)

from pykaproducer.testing import _admin

# The types of resources; of these kafka-python exports no enumeration beside the requests.
_TOPIC = 2
_CLUSTER = 4
#: Kafka's name of the one resource of the type cluster.
_CLUSTER_NAME = "kafka-cluster"
#: A rule is for clients at any address.
_ANY_HOST = "*"


class Rule(NamedTuple):
    """One user may do one thing with a topic (``"*"``: any), or with the cluster (None)."""

    user: str
    topic: str | None
    operation: str

    @property
    def resource(self) -> tuple[int, str]:
        """Type and name."""
        return (_CLUSTER, _CLUSTER_NAME) if self.topic is None else (_TOPIC, self.topic)

    @property
    def code(self) -> int:
        """Kafka's number of the operation."""
        return int(ACLOperation[self.operation])


def rules(user: str, topic: str | None, operations: Sequence[str]) -> list[Rule]:
    """The rules, or :class:`ValueError` for an operation that does not exist."""
    out = []
    for operation in operations or ("ALL",):
        name = operation.upper().replace("-", "_")
        if name not in ACLOperation.__members__ or name in ("UNKNOWN", "ANY"):
            raise ValueError(f"there is no operation {operation!r}: such are WRITE, DESCRIBE, ALL")
        out.append(Rule(user, topic, name))
    return out


def create(port: int, wanted: Sequence[Rule]) -> None:
    """Add rules; :class:`ClusterError` when the cluster refuses."""
    request = CreateAclsRequest(
        version=3,
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=rule.resource[0],
                resource_name=rule.resource[1],
                resource_pattern_type=int(ACLResourcePatternType.LITERAL),
                principal=f"User:{rule.user}",
                host=_ANY_HOST,
                operation=rule.code,
                permission_type=int(ACLPermissionType.ALLOW),
            )
            for rule in wanted
        ],
    )
    answer = _admin.ask(port, request, _admin.REQUEST_TIMEOUT)
    for rule, result in zip(wanted, answer.results, strict=True):
        _admin.check(result.error_code, f"allow {rule}", result.error_message)


def delete(port: int, unwanted: Sequence[Rule]) -> None:
    """Take rules away; :class:`ClusterError` when the cluster refuses."""
    request = DeleteAclsRequest(
        version=3,
        filters=[DeleteAclsRequest.DeleteAclsFilter(**_just(rule)) for rule in unwanted],
    )
    answer = _admin.ask(port, request, _admin.REQUEST_TIMEOUT)
    for rule, result in zip(unwanted, answer.filter_results, strict=True):
        _admin.check(result.error_code, f"revoke {rule}", result.error_message)


def known(port: int, rule: Rule) -> bool:
    """Whether the broker at *port* goes by a rule."""
    request = DescribeAclsRequest(version=3, **_just(rule))
    answer = _admin.ask(port, request, _admin.REQUEST_TIMEOUT)
    _admin.check(answer.error_code, f"look for {rule}", answer.error_message)
    return bool(answer.resources)


def _just(rule: Rule) -> dict[str, Any]:
    """The fields of a filter that finds this rule and no other."""
    resource_type, resource_name = rule.resource
    return {
        "resource_type_filter": resource_type,
        "resource_name_filter": resource_name,
        "pattern_type_filter": int(ACLResourcePatternType.LITERAL),
        "principal_filter": f"User:{rule.user}",
        "host_filter": _ANY_HOST,
        "operation": rule.code,
        "permission_type": int(ACLPermissionType.ALLOW),
    }
