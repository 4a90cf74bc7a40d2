"""Access control lists of a test cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pykaproducer.testing import _admin
from pykaproducer.testing._admin_messages import (
    AclOperation,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)

#: Kafka's numbers of resource types.
_KINDS = {"topic": 2, "group": 3, "transactional_id": 5}
_CLUSTER = 4
# Kafka's numbers of a pattern that is a name, and of a permission.
_LITERAL = 3
_ALLOW = 3
#: Kafka's name of the only resource of the type cluster.
_CLUSTER_NAME = "kafka-cluster"
#: Rules apply to clients at any address.
_ANY_HOST = "*"


class Rule(NamedTuple):
    """Permission for one user and one operation on a resource (``"*"``: any) or the cluster (None).

    *kind* of the resource: ``"topic"``, ``"group"`` or ``"transactional_id"``.
    """

    user: str
    name: str | None
    operation: str
    kind: str = "topic"

    @property
    def resource(self) -> tuple[int, str]:
        """Type and name of the resource."""
        return (_CLUSTER, _CLUSTER_NAME) if self.name is None else (_KINDS[self.kind], self.name)

    @property
    def code(self) -> int:
        """Kafka's code of the operation."""
        return int(AclOperation[self.operation])


def rules(user: str, name: str | None, operations: Sequence[str], kind: str) -> list[Rule]:
    """Return the rules.

    Raises :class:`ValueError` for an operation or a kind of resource that does not exist.
    """
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    out = []
    for operation in operations or ("ALL",):
        known = operation.upper().replace("-", "_")
        if known not in AclOperation.__members__:
            raise ValueError(f"unknown operation {operation!r}; use WRITE, DESCRIBE, ALL ...")
        out.append(Rule(user, name, known, kind))
    return out


def create(port: int, wanted: Sequence[Rule]) -> None:
    """Add rules; raise :class:`ClusterError` if the cluster rejects them."""
    request = CreateAclsRequest(
        version=3,
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=rule.resource[0],
                resource_name=rule.resource[1],
                resource_pattern_type=_LITERAL,
                principal=f"User:{rule.user}",
                host=_ANY_HOST,
                operation=rule.code,
                permission_type=_ALLOW,
            )
            for rule in wanted
        ],
    )
    answer = _admin.ask(port, request, _admin.REQUEST_TIMEOUT)
    for rule, result in zip(wanted, answer.results, strict=True):
        _admin.check(result.error_code, f"allow {rule}", result.error_message)


def delete(port: int, unwanted: Sequence[Rule]) -> None:
    """Delete rules; raise :class:`ClusterError` if the cluster rejects this."""
    request = DeleteAclsRequest(
        version=3,
        filters=[DeleteAclsRequest.DeleteAclsFilter(**_just(rule)) for rule in unwanted],
    )
    answer = _admin.ask(port, request, _admin.REQUEST_TIMEOUT)
    for rule, result in zip(unwanted, answer.filter_results, strict=True):
        _admin.check(result.error_code, f"revoke {rule}", result.error_message)


def known(port: int, rule: Rule) -> bool:
    """Return whether the broker at *port* applies a rule."""
    request = DescribeAclsRequest(version=3, **_just(rule))
    answer = _admin.ask(port, request, _admin.REQUEST_TIMEOUT)
    _admin.check(answer.error_code, f"look for {rule}", answer.error_message)
    return bool(answer.resources)


def _just(rule: Rule) -> dict[str, Any]:
    """Return the fields of a filter that matches only this rule."""
    resource_type, resource_name = rule.resource
    return {
        "resource_type_filter": resource_type,
        "resource_name_filter": resource_name,
        "pattern_type_filter": _LITERAL,
        "principal_filter": f"User:{rule.user}",
        "host_filter": _ANY_HOST,
        "operation": rule.code,
        "permission_type": _ALLOW,
    }
