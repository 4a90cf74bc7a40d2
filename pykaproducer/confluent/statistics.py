"""The argument of ``stats_cb``: ``Producer.stats()`` with librdkafka's names, where both have it.

Times are in microseconds there, and windows are separate objects.
"""

from __future__ import annotations

from typing import Any

from pykaproducer.confluent.settings import Translated

#: Our states of a broker -> librdkafka's.
_STATES = {"connected": "UP", "connecting": "TRY_CONNECT", "down": "DOWN"}


def statistics(
    stats: dict[str, Any], settings: Translated, waiting: int, now: float, age: float
) -> dict[str, Any]:
    """Return one snapshot.

    *waiting* is the number of events that wait for poll(), *now* the monotonic clock, *age* that of
    the producer.
    """
    messages = stats["messages"]
    size = stats["bytes"]
    return {
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
