"""What brokers and time make impossible: the error says what to do, and nothing is visible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from pykaproducer import PykaproducerError
from pykaproducer._exactly_once.errors import ExactlyOnceError, TransactionsExpiredError
from pykaproducer._exactly_once.names import Names
from pykaproducer._exactly_once.setup import WriteKind
from pykaproducer.testing import KafkaCluster, Security
from tests.exactly_once.helper import ROWS, Query, four_tasks

MakeQuery = Callable[..., Query]


@pytest.mark.full
def test_a_timeout_above_the_brokers_limit(query: MakeQuery) -> None:
    made = query(timeout_ms=3_600_000)
    with pytest.raises(ExactlyOnceError) as raised:
        made.task(0, four_tasks, 0)
    assert str(raised.value) == (
        "option kafka.transaction.timeout.ms: 3600000 is above the brokers' "
        "transaction.max.timeout.ms; lower it, or raise that of the brokers"
    )
    assert made.visible() == Counter()
    assert made.open_transactions() == []


@pytest.mark.parametrize(
    ("kind", "what", "remedies"),
    [
        (
            WriteKind.STREAM,
            "batch 0: ",
            ("the replay writes the batch again", "make batches smaller"),
        ),
        (WriteKind.SINGLE, "the write: ", ("start it again", "write fewer rows at once")),
    ],
)
def test_a_stage_that_takes_too_long(
    query: MakeQuery, kind: WriteKind, what: str, remedies: tuple[str, ...]
) -> None:
    made = query(kind=kind, timeout_ms=8_000)
    results = made.stage(0, four_tasks)
    made.wait_for_timeouts()
    with pytest.raises(TransactionsExpiredError) as raised:
        made.commit(0, results)
    text = str(raised.value)
    assert text.startswith(f"{what}the transaction of task 0 is not open any more. Nothing is")
    assert "kafka.transaction.timeout.ms (8000 ms) a stage may take 6 s" in text
    assert "transaction.max.timeout.ms" in text
    assert [each for each in remedies if each not in text] == []
    assert ("batch" in text) == (kind is WriteKind.STREAM)
    assert made.visible() == Counter()
    with made.twin(timeout_ms=60_000) as patient:
        patient.write(0)
        assert sum(patient.visible().values()) == ROWS


@pytest.mark.kafka
def test_the_rights_that_the_guide_lists() -> None:
    """Each that is missing is named, and all of them are enough."""
    user = "spark"
    security = Security("SASL_PLAINTEXT", mechanism="PLAIN", users={user: "secret"}, authorize=True)
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": "secret",
    }
    with KafkaCluster(security=security, fast_start=True) as secured:
        secured.create_topic("t", partitions=3)
        settings = {**secured.settings(), **settings}
        servers = secured.bootstrap_servers
        missing = [
            ("X.tasks", "READ", "group", "X.tasks"),
            ("X.driver", "READ", "group", "X.driver"),
            ("X.0", "WRITE", "transactional_id", "X.0"),
            ("X.driver", "WRITE", "transactional_id", "X.driver"),
            ("t", "WRITE", "topic", "'t'"),
            ("t", "READ", "topic", "'t'"),
        ]
        names = Names("X", "t")
        ids = [names.driver, *(names.task(task, n) for task in range(4) for n in range(4))]
        every = [
            *((name, "WRITE", "transactional_id") for name in ids),
            *((f"X.{name}", "READ", "group") for name in ("driver", "tasks", "tasks.1")),
            ("t", "WRITE", "topic"),
            ("t", "READ", "topic"),
        ]
        for name, operation, kind in every:
            secured.allow(user, name, operation, kind=kind)
        for name, operation, kind, said in missing:
            secured.revoke(user, name, operation, kind=kind)
            with (
                Query(servers, "t", prefix="X", settings=settings) as made,
                pytest.raises(PykaproducerError, match=said),
            ):
                made.write(0)
            secured.allow(user, name, operation, kind=kind)
        with Query(servers, "t", prefix="X", settings=settings) as made:
            made.write(0)
            made.write(1)
