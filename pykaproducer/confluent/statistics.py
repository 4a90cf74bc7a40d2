"""The argument of ``stats_cb``: ``Producer.stats()`` with librdkafka's names, where both have it.

Times are in microseconds there, and windows are separate objects.
"""

from __future__ import annotations

from typing import Any

from pykaproducer.confluent.settings import Translated

#: Our states of a broker -> librdkafka's.
_STATES = {"connected": "UP", "connecting": "TRY_CONNECT", "down": "DOWN"}

#: Our states of transactions -> librdkafka's of transactions, and of the producer id.
_TRANSACTION_STATES = {
    "uninitialized": ("Init", "Init"),
    "initializing": ("WaitPID", "WaitPID"),
    "ready": ("Ready", "Assigned"),
    "open": ("InTransaction", "Assigned"),
    "flushing": ("BeginCommit", "Assigned"),
    "committing": ("CommittingTransaction", "Assigned"),
    "abortable": ("AbortableError", "Assigned"),
    "aborting": ("AbortingTransaction", "Assigned"),
    "fatal": ("FatalError", "FatalError"),
}


def statistics(
    stats: dict[str, Any], settings: Translated, waiting: int, now: float, age: float
) -> dict[str, Any]:
    """Return one snapshot.

    *waiting* is the number of events that wait for poll(), *now* the monotonic clock, *age* that of
    the producer.
    """
    messages = stats["messages"]
    size = stats["bytes"]
    found = {
        "name": stats["client_id"],
        "client_id": stats["client_id"],
        "type": "producer",
        "ts": int(now * 1e6),
        "time": int(stats["time"]),
        "age": int(age * 1e6),
        "replyq": waiting,
        "msg_cnt": messages["pending"],
        "msg_size": stats["buffer"]["used"],
        "msg_max": settings.max_messages,
        "msg_size_max": stats["buffer"]["limit"],
        "tx": stats["requests"]["sent"],
        "rx": stats["requests"]["answered"],
        "txmsgs": messages["delivered"],
        "txmsg_bytes": size["delivered"],
        "metadata_cache_cnt": len(stats["topics"]),
        "int_latency": _window(stats["latency_ms"]["queue"]),
        "rtt": _window(stats["latency_ms"]["request"]),
        "brokers": {
            f"{broker['address']}/{broker['id']}": _broker(broker) for broker in stats["brokers"]
        },
        "topics": {topic["topic"]: _topic(topic, stats) for topic in stats["topics"]},
    }
    if stats["transactions"] is not None:
        found["eos"] = _transactions(stats["transactions"])
    return found


def _transactions(found: dict[str, Any]) -> dict[str, Any]:
    """Return librdkafka's section for transactions; ages are in milliseconds there."""
    state, assigned = _TRANSACTION_STATES.get(found["state"], ("Init", "Init"))
    age = found["assigned_s" if assigned == "Assigned" else "state_s"]
    return {
        "idemp_state": assigned,
        "idemp_stateage": int((age or 0) * 1000),
        "txn_state": state,
        "txn_stateage": int((found["state_s"] or 0) * 1000),
        "txn_may_enq": state == "InTransaction",
        "producer_id": found["producer_id"],
        "producer_epoch": found["producer_epoch"],
        "epoch_cnt": found["assignments"],
    }


def _broker(broker: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": f"{broker['address']}/{broker['id']}",
        "nodeid": broker["id"],
        "nodename": broker["address"],
        "source": "learned",
        "state": _STATES.get(broker["state"], "INIT"),
        "waitresp_cnt": broker["unanswered_requests"],
    }


def _topic(topic: dict[str, Any], stats: dict[str, Any]) -> dict[str, Any]:
    partitions = {
        str(one["partition"]): {
            "partition": one["partition"],
            "leader": one["leader"],
            "broker": one["leader"],
            "msgq_cnt": one["waiting_rows"],
            "msgq_bytes": one["waiting_bytes"],
            "txmsgs": one.get("delivered", 0),
            "txbytes": one.get("bytes", 0),
        }
        for one in stats["partitions"]
        if one["topic"] == topic["topic"]
    }
    return {"topic": topic["topic"], "partitions": partitions}


def _window(latency: dict[str, Any]) -> dict[str, int]:
    """Return a window of latencies in microseconds; zeros if there are none."""
    values = {name: latency[name] or 0 for name in ("mean", "max", "p50", "p95", "p99")}
    whole = {name: int(value * 1000) for name, value in values.items()}
    return {
        "cnt": int(latency["count"] or 0),
        "avg": whole["mean"],
        "max": whole["max"],
        "p50": whole["p50"],
        "p95": whole["p95"],
        "p99": whole["p99"],
    }
