"""``pykaproducer transactions``: list the transactions of a cluster, describe and abort them."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pykaproducer._errors.formatting import counted, format_error_code, name_shown
from pykaproducer.cli import _signals
from pykaproducer.cli.common import (
    CommandError,
    UserError,
    add_servers,
    add_settings,
    log_shown,
    notify,
    parser_like,
    servers_text,
    settings_from,
)
from pykaproducer.errors import ConfigurationError, TransactionError, TransactionTimeoutError

if TYPE_CHECKING:
    from pykaproducer.transaction_control import TransactionControl, TransactionDescription

#: Timeout for each answer, unless max_block_ms is set (milliseconds).
_PATIENCE_MS = 10_000.0

#: Meanings of the error codes of a transactional id.
_MEANING = {
    53: "this client may not see the id; grant it Describe on the transactional id",
    105: "the cluster has no such transactional id, or has forgotten it",
}

#: Units of a duration: its milliseconds, and from how many of them on the next one is used.
_UNITS = (("ms", 1, 1000), ("s", 1000, 120), ("min", 60_000, 120), ("h", 3_600_000, 48))
_DAY = 86_400_000

_LIST_EXAMPLES = """\
examples:
  pykaproducer transactions list        all ids of localhost:9092
  pykaproducer transactions list --open --prefix orders-
  pykaproducer transactions list --overdue --config client.properties --json

A transaction that is open for longer than its timeout was not ended by its
coordinator: readers of committed messages wait for it. "open for" is measured
with this computer's clock.

exit status:
  0  success
  1  a transaction is open for longer than its timeout, or a broker did not
     answer within max_block_ms (here 10 s by default)
  2  invalid command line
"""

_DESCRIBE_EXAMPLES = """\
examples:
  pykaproducer transactions describe orders-0
  pykaproducer transactions describe orders-0 orders-1 --json

exit status:
  0  success
  1  no broker answered, or an id does not exist or may not be seen
  2  invalid command line
"""

_FENCE_EXAMPLES = """\
examples:
  pykaproducer transactions fence orders-0
  pykaproducer transactions fence orders-0 orders-1 --dry-run
  pykaproducer transactions fence orders-0 --config client.properties --json

The producer that has begun the transaction cannot commit it any more: it gets
ProducerFencedError. Ids without an open transaction are left alone. It needs
the rights Describe and Write on the transactional id.

exit status:
  0  no transaction of the ids is left open (--dry-run: it can be tried)
  1  no broker answered, an id does not exist, or a right is missing; the other
     ids were tried all the same
  2  invalid command line
"""


def add_parser(commands: Any) -> None:
    """Add ``transactions list``, ``transactions describe`` and ``transactions fence``."""
    parser = commands.add_parser(
        "transactions",
        help="show or abort transactions of a cluster",
        description="Show or abort transactions, using the producer's connection settings.",
        epilog='"pykaproducer transactions ACTION --help" shows examples.\n',
        **parser_like,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list",
        help="list transactional ids and their transactions",
        description="Print the state of each transactional id that the brokers know.",
        epilog=_LIST_EXAMPLES,
        **parser_like,
    )
    listing.add_argument(
        "--prefix", default="", metavar="TEXT", help="only ids that begin with this text"
    )
    listing.add_argument("--open", action="store_true", help="only open transactions")
    listing.add_argument(
        "--overdue", action="store_true", help="only those open for longer than their timeout"
    )
    _add_common(listing)
    listing.add_argument("--json", action="store_true", help="print one JSON array")
    listing.set_defaults(run=run_list)
    describe = actions.add_parser(
        "describe",
        help="show transactions with their partitions",
        description="Print the state of transactional ids, and the partitions of the transactions.",
        epilog=_DESCRIBE_EXAMPLES,
        **parser_like,
    )
    _add_ids(describe)
    _add_common(describe)
    describe.add_argument("--json", action="store_true", help="print one JSON array")
    describe.set_defaults(run=run_describe)
    fence = actions.add_parser(
        "fence",
        help="abort open transactions whose program is gone",
        description="Abort the open transactions of these ids, and fence their producers.",
        epilog=_FENCE_EXAMPLES,
        **parser_like,
    )
    _add_ids(fence)
    fence.add_argument(
        "--dry-run", action="store_true", help="print what would be done, and do nothing"
    )
    _add_common(fence)
    fence.add_argument("--json", action="store_true", help="print one JSON array")
    fence.set_defaults(run=run_fence)


def _add_ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="transactional ids")


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_servers(parser)
    add_settings(parser)


def run_list(options: argparse.Namespace) -> int:
    """Print the transactional ids."""
    from pykaproducer.transaction_control import OPEN_STATES

    with _control(options) as control:
        states = OPEN_STATES if options.open or options.overdue else ()
        seen = control.list(options.prefix)
        # An older broker does not know each of the states.
        listed = [each for each in seen if not states or each.state in states]
        others = not seen and options.prefix and not options.json and control.list()
        open_ones = [each.transactional_id for each in listed if each.state in OPEN_STATES]
        described = control.describe(open_ones) if open_ones else {}
    now = time.time() * 1000
    rows = []
    for each in listed:
        found = described.get(each.transactional_id)
        row: dict[str, Any] = {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            **(_not_open() if found is None or found.error_code else _figures(found, now)),
        }
        if row["overdue"] or not options.overdue:
            rows.append(row)
    overdue = [row for row in rows if row["overdue"]]
    if options.json:
        print(json.dumps(rows, indent=2))
    elif rows:
        print("\n".join(_table(rows)))
    elif not seen:
        if others:
            notify(
                f"none of the transactional ids that this client may see (right: Describe) begins "
                f"with {options.prefix!r}"
            )
        else:
            notify("there is no transactional id that this client may see (right: Describe)")
    elif not options.overdue:
        of = f" of the ids that begin with {options.prefix!r}" if options.prefix else ""
        notify(f"there is no open transaction{of}")
    if overdue:
        are = "transaction is" if len(overdue) == 1 else "transactions are"
        notify(
            f"{len(overdue)} {are} open for longer than the timeout; "
            "'pykaproducer transactions fence ID' aborts one"
        )
    return 1 if overdue else 0


def run_describe(options: argparse.Namespace) -> int:
    """Print what the coordinators know about the ids."""
    ids = _ids(options)
    with _control(options) as control:
        described = control.describe(ids)
    now = time.time() * 1000
    there = [each for each in described.values() if not each.error_code]
    if options.json:
        rows = [{"transactional_id": e.transactional_id, **_figures(e, now)} for e in there]
        print(json.dumps(rows, indent=2))
    elif there:
        print("\n\n".join("\n".join(_lines(each, now)) for each in there))
    _report_problems(described)
    return 0 if len(there) == len(described) else 1


def run_fence(options: argparse.Namespace) -> int:
    """Abort open transactions."""
    ids = _ids(options)
    results: list[dict[str, Any]] = []
    with _control(options) as control:
        described = control.describe(ids)
        now = time.time() * 1000
        answers = True
        for name, each in described.items():
            result = _result(name, each, now)
            results.append(result)
            if result["action"] == "abort" and not options.dry_run:
                if answers:
                    answers = _fence(control, result)
                else:
                    result.update(action="none", error="not tried, as no broker has answered")
            if not options.json:
                _tell_result(result, dry_run=options.dry_run)
    if options.json:
        print(json.dumps(results, indent=2))
    return 1 if any(result["error"] for result in results) else 0


def _result(name: str, found: TransactionDescription, now: float) -> dict[str, Any]:
    """Return what is to be done with an id, as the command prints it."""
    result: dict[str, Any] = {"transactional_id": name, "action": "none", "error": None}
    if found.error_code:
        nothing = {"state": None, "producer_id": None, **_not_open()}
        return {**result, **nothing, "error": _problem(found.error_code)}
    if found.state == "Ongoing":
        result["action"] = "abort"
    return {**result, **_figures(found, now)}


def _fence(control: TransactionControl, result: dict[str, Any]) -> bool:
    """Abort one transaction, and put the outcome into *result*. Return whether a broker answers."""
    try:
        if not control.fence([result["transactional_id"]]):
            result["action"] = "none"  # it has just ended
    except TransactionError as error:
        result.update(action="none", error=str(error))
        return not isinstance(error, TransactionTimeoutError)
    return True


def _tell_result(result: Mapping[str, Any], *, dry_run: bool) -> None:
    """Print what was done, or would be done, with an id."""
    from pykaproducer.transaction_control import OPEN_STATES

    if result["error"]:
        notify(f"transactional id {result['transactional_id']!r}: {result['error']}")
        return
    name, state = name_shown(result["transactional_id"]), result["state"]
    if result["action"] == "abort":
        would = "would abort" if dry_run else "aborted"
        count = counted(len(result["partitions"]), "partition")
        age = f"open for {_duration(result['open_ms'])}, timeout {_duration(result['timeout_ms'])}"
        print(f"{name}: {would} its transaction ({age}, {count})", flush=True)
    elif state == "Ongoing":
        print(f"{name}: its transaction has just ended", flush=True)
    elif state in OPEN_STATES:
        print(f"{name}: its transaction is being ended already ({name_shown(state)})", flush=True)
    else:
        print(f"{name}: no open transaction ({name_shown(state)})", flush=True)


@contextlib.contextmanager
def _control(options: argparse.Namespace) -> Iterator[TransactionControl]:
    """Connect to the cluster that *options* name, and translate the errors."""
    from pykaproducer.transaction_control import TransactionControl

    settings = settings_from(options, sends=False)
    settings.setdefault("max_block_ms", _PATIENCE_MS)
    with TransactionControl(**settings) as control, _signals.raised(), log_shown():
        try:
            yield control
        except TransactionTimeoutError as error:
            servers = servers_text(control.config.bootstrap_servers)
            raise CommandError(f"{error} (bootstrap servers: {servers})") from None


def _ids(options: argparse.Namespace) -> Sequence[str]:
    from pykaproducer.config import resolve

    for name in options.ids:
        try:
            resolve({"transactional_id": name})
        except ConfigurationError:
            raise UserError(f"{name!r:.60} is not a transactional id") from None
    return list(dict.fromkeys(options.ids))


def _report_problems(described: Mapping[str, TransactionDescription]) -> None:
    for name, each in described.items():
        if each.error_code:
            notify(f"transactional id {name!r}: {_problem(each.error_code)}")


def _problem(error_code: int) -> str:
    code, text = format_error_code(error_code), _MEANING.get(error_code)
    return f"{text}: {code}" if text else code


# Figures ------------------------------------------------------------------------------------------


def _not_open() -> dict[str, Any]:
    none: dict[str, Any] = dict.fromkeys(["producer_epoch", "timeout_ms", "start_ms", "open_ms"])
    return {**none, "overdue": False, "partitions": []}


def _figures(found: TransactionDescription, now: float) -> dict[str, Any]:
    from pykaproducer.transaction_control import OPEN_STATES

    is_open = found.state in OPEN_STATES and found.start_ms >= 0
    open_ms = max(0, int(now - found.start_ms)) if is_open else None
    return {
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms if is_open else None,
        "open_ms": open_ms,
        "overdue": open_ms is not None and open_ms > found.timeout_ms,
        "partitions": [
            {"topic": topic, "partition": partition} for topic, partition in found.partitions
        ],
    }


def _table(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Format *figures* as a table."""
    rows = [("transactional id", "state", "producer id", "open for", "timeout", "partitions")]
    for each in figures:
        is_open = each["open_ms"] is not None
        rows.append(
            (
                name_shown(each["transactional_id"]),
                name_shown(each["state"]),
                str(each["producer_id"]),
                _duration(each["open_ms"]) if is_open else "",
                _duration(each["timeout_ms"]) + " (passed)" * each["overdue"] if is_open else "",
                str(len(each["partitions"])) if is_open else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _lines(found: TransactionDescription, now: float) -> Iterator[str]:
    """Format one id."""
    figures = _figures(found, now)
    yield f"{name_shown(found.transactional_id)}: {name_shown(found.state)}"
    yield f"    producer id  {found.producer_id}, epoch {found.producer_epoch}"
    if figures["open_ms"] is None:
        yield f"    timeout      {_duration(found.timeout_ms)}"
        return
    passed = ", which has passed" if figures["overdue"] else ""
    yield f"    open for     {_duration(figures['open_ms'])}"
    yield f"    timeout      {_duration(found.timeout_ms)}{passed}"
    topics: dict[str, list[int]] = {}
    for topic, partition in found.partitions:
        topics.setdefault(topic, []).append(partition)
    yield f"    written to   {counted(len(found.partitions), 'partition')}"
    for topic, partitions in topics.items():
        yield f"        {name_shown(topic)}: {', '.join(map(str, partitions))}"


def _duration(milliseconds: int) -> str:
    """Format a duration in one unit: 75000 -> '75 s'."""
    for name, size, most in _UNITS:
        if milliseconds < size * most:
            return f"{milliseconds // size} {name}"
    return f"{milliseconds // _DAY} d"
