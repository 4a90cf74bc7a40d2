"""The display of ``top``, made with rich and fitted to the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pykaproducer.cli._top_history import History
from pykaproducer.cli.common import human_bytes

#: Minimum width for two columns of tables.
_WIDE = 140
_LEAST_WIDTH = 30
#: Minimum number of lines for all stages to be shown.
_TIGHT = 30
#: Minimum width of number columns, so that they do not move with the number of digits.
_NUMBER = 7
#: Maximum width of a table, so that numbers stay near their labels; broker errors may be longer.
_WIDEST = 100
#: Maximum number of failing topics listed.
_FAILING = 3
#: Fill levels of the buffer that are shown in red (send() will block soon) and yellow.
_FULL, _FILLING = 0.9, 0.6
#: Minimum age of a message for yellow (seconds).
_OLD = 1.0

#: Stages that are hidden first if there is little space, because they are mostly idle.
_ASIDE = frozenset(("RetryHandler", "Reports", "LogWriter", "Metadata"))
_STATES = {"running": "green", "idle": "cyan", "closing": "yellow", "broken": "bold red"}
_TRANSACTION_STATES = {
    "ready": "cyan",
    "open": "green",
    "flushing": "green",
    "committing": "green",
    "abortable": "bold red",
    "aborting": "yellow",
    "fatal": "bold red",
}
_BROKER_STATES = {"connected": "green", "connecting": "yellow", "down": "bold red"}
_HEADER = "black on cyan"


@dataclass(frozen=True)
class Room:
    """The current size and abilities of the terminal."""

    width: int
    #: None if the number of lines is unlimited.
    height: int | None = None
    #: Whether the terminal is limited to ASCII.
    ascii_only: bool = False


def frame(history: History, room: Room, footer: str = "") -> RenderableType:
    """Return one frame of the display; *footer* is its last line."""
    width = max(room.width, _LEAST_WIDTH)
    lines = _header(history, width, room.height is not None, room.ascii_only)
    rest = None if room.height is None else room.height - len(lines) - bool(footer)
    # With little space, idle stages are hidden to make room for the partitions.
    tight = width < _WIDE and rest is not None and rest < _TIGHT
    left, right = (
        [_latency(history), _stages(history, tight)],
        [_brokers(history), _partitions(history)],
    )
    if width >= _WIDE:
        body, used = _beside(*(_stack(half, rest, width // 2) for half in (left, right)))
    else:
        body, used = _stack([*left, *right], rest, width)
    if not footer:
        return Group(*lines, body)
    blank = [Text()] * max(0, (rest or used) - used)
    return Group(*lines, body, *blank, Text(footer, "dim", no_wrap=True, overflow="ellipsis"))


#: A renderable and its height.
_Sized = tuple[RenderableType, int]


def _beside(*halves: _Sized) -> _Sized:
    grid = Table.grid(expand=True, padding=(0, 1))
    for _ in halves:
        grid.add_column(ratio=1)
    grid.add_row(*(half for half, _ in halves))
    return grid, max(height for _, height in halves)


def _stack(sections: Sequence[_Section], lines: int | None, width: int) -> _Sized:
    """Stack the sections that fit into *lines*. Return them and their height."""
    shares = _shares([len(section.rows) for section in sections], lines)
    shown = [(each, rows) for each, rows in zip(sections, shares, strict=True) if rows is not None]
    tables = [section.table(rows, width) for section, rows in shown]
    return Group(*tables), sum(rows + 1 for _, rows in shown)


def _shares(wanted: Sequence[int], lines: int | None) -> list[int | None]:
    """Distribute *lines*, header included, over the sections; None hides a section."""
    if lines is None:
        return list(wanted)
    shares: list[int | None] = []
    for count in wanted:
        # A header without any row is not worth showing.
        given = min(count, lines - 1)
        if given < min(count, 1) or lines < 1:
            shares.append(None)
            continue
        shares.append(given)
        lines -= given + 1
    return shares


# The header ---------------------------------------------------------------------------------------


def _header(history: History, width: int, on_a_screen: bool, ascii_only: bool) -> list[Text]:
    now = history.now
    lines = [_title(history), _traffic(history), _buffer(now, ascii_only), _requests(history)]
    if now.get("transactions") is not None:
        lines.append(_transactions(history))
    lines.append(_sparkline(history, width, ascii_only))
    lines.extend(_failing(now))
    for line in lines if on_a_screen else ():
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _failing(now: dict[str, Any]) -> list[Text]:
    """Return lines for errors of the cluster and of topics."""
    cluster_error = now.get("cluster_error")
    # A cluster error affects every topic; show it once.
    found = [row for row in now["topics"] if row["error"] not in (None, cluster_error)]
    lines = [Text(f"topic     {row['topic']}: {row['error']}", "bold red") for row in found]
    if len(lines) > _FAILING:
        lines[_FAILING - 1 :] = [Text(f"          and {len(lines) - _FAILING + 1} more", "red")]
    if cluster_error is not None:
        lines.insert(0, Text(f"error     {cluster_error}", "bold red"))
    return lines


def _title(history: History) -> Text:
    now = history.now
    line = Text.assemble(
        (now["client_id"], "bold"),
        f"  pid {now['pid']}  ",
        (now["state"], _STATES.get(now["state"], "")),
    )
    started = now.get("started")
    if started is not None:
        line.append(f"  up {_duration(now['time'] - started)}")
    if history.silent:
        line.append(f"  no answer for {history.silent:.0f} s", style="bold red")
    return line


def _traffic(history: History) -> Text:
    messages = history.now["messages"]
    failed = messages["failed"]
    line = Text.assemble(
        "delivered ",
        (_rate(history, "messages", "delivered"), "bold green"),
        "  ",
        (_bytes_rate(history), "bold green"),
        "  pending ",
        (_count(messages["pending"]), "bold"),
    )
    line.append(f"  failed {_count(failed)}", style="bold red" if failed else "")
    line.append(f"  total {_count(messages['delivered'])} of {_count(messages['accepted'])}")
    return line


def _rate(history: History, section: str, field: str) -> str:
    if not history.measured:
        return "-/s"
    return f"{_count(history.rate(section, field))}/s"


def _bytes_rate(history: History) -> str:
    return f"{human_bytes(history.rate('bytes', 'delivered'))}/s" if history.measured else "-"


def _buffer(now: dict[str, Any], ascii_only: bool) -> Text:
    buffer = now["buffer"]
    share = buffer["used"] / buffer["limit"] if buffer["limit"] else 0.0
    style = "red" if share >= _FULL else "yellow" if share >= _FILLING else "green"
    full, empty = "#." if ascii_only else "\u2588\u2591"
    whole = min(20, round(20 * share))
    line = Text.assemble(
        "buffer    ",
        (full * whole, style),
        (empty * (20 - whole), "dim"),
        f" {share:.0%} of {human_bytes(buffer['limit'])}",
    )
    if buffer["waiting_senders"]:
        line.append(f"  {buffer['waiting_senders']} blocked in send()", style="bold red")
    return line


def _requests(history: History) -> Text:
    found = history.now["requests"]
    line = Text(f"requests  {_rate(history, 'requests', 'sent')}")
    line.append(f"  in flight {max(0, found['sent'] - found['answered'] - found['lost'])}")
    for field, text in (("lost", "lost"), ("retried_batches", "batches retried")):
        line.append(f"  {text} {_count(found[field])}", style="yellow" if found[field] else "")
    if found["throttle_ms"]:
        line.append(f"  throttled {found['throttle_ms'] / 1000:.1f} s", style="yellow")
    return line


def _transactions(history: History) -> Text:
    found = history.now["transactions"]
    line = Text.assemble(
        "txns      ",
        (found["state"], _TRANSACTION_STATES.get(found["state"], "")),
    )
    if found["open_s"] is not None:
        line.append(f" {_age(found['open_s'])}")
        partitions = found["partitions"]
        line.append(f"  {partitions} partition{'' if partitions == 1 else 's'}")
    line.append(f"  committed {_rate(history, 'transactions', 'committed')}")
    line.append(f"  total {_count(found['committed'])}  aborted {_count(found['aborted'])}")
    if found["protocol"] is not None:
        line.append(f"  epoch {found['producer_epoch']}  protocol {found['protocol']}", "dim")
    if found["error"] is not None:
        line.append(f"  {found['error']}", "bold red")
    return line


def _sparkline(history: History, width: int, ascii_only: bool) -> Text:
    """Draw the rates of the last snapshots, the newest at the right."""
    steps = " .:-=+*#" if ascii_only else "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
    rates = list(history.rates)
    most = max(rates, default=0.0)
    label = f" max {_count(most)}/s"
    room = max(0, width - len("messages/s") - 10 - len(label))
    shown = rates[-room:] if room else []
    drawn = "".join(steps[round((len(steps) - 1) * rate / most) if most else 0] for rate in shown)
    return Text.assemble("rate      ", (drawn, "cyan"), (label if rates else "", "dim"))


# The sections -------------------------------------------------------------------------------------


@dataclass
class _Section:
    """A table that can be limited to a number of rows."""

    #: Column titles; those that begin with a space are right-aligned.
    titles: Sequence[str]
    rows: list[tuple[Text | str, ...]]
    #: (First column to drop, minimum width that avoids this) for narrow terminals.
    narrow: tuple[int, int] | None = None
    #: Whether it may use more than a table's maximum width.
    unlimited: bool = False

    def table(self, count: int, width: int = _WIDE) -> Table:
        table = Table(
            box=None,
            expand=True,
            width=None if self.unlimited else min(width, _WIDEST),
            padding=(0, 1, 0, 0),
            pad_edge=False,
            header_style=_HEADER,
        )
        kept = len(self.titles)
        if self.narrow is not None and width < self.narrow[1]:
            kept = self.narrow[0]
        for place, title in enumerate(self.titles[:kept]):
            table.add_column(
                title.strip(),
                justify="right" if title.startswith(" ") else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=_NUMBER if title.startswith(" ") else None,
                ratio=1 if place == self._wide(kept) else None,
            )
        for row in self._shown(count):
            table.add_row(*row[:kept])
        return table

    def _wide(self, kept: int) -> int:
        """Return the column that takes the remaining width: the last text column."""
        return max(place for place in range(kept) if not self.titles[place].startswith(" "))

    def _shown(self, count: int) -> list[tuple[Text | str, ...]]:
        if count >= len(self.rows) or count < 2:
            return self.rows[:count]
        more = len(self.rows) - count + 1
        return [*self.rows[: count - 1], (Text(f"and {more} more", style="dim"),)]


def _latency(history: History) -> _Section:
    rows: list[tuple[Text | str, ...]] = []
    for name, label in (
        ("delivery", "send() to outcome"),
        ("queue", "send() to batch"),
        ("request", "request to response"),
        ("commit", "commit"),
    ):
        found = history.now["latency_ms"].get(name)
        if found is None:
            continue
        numbers = (_milliseconds(found[field]) for field in ("p50", "p95", "p99", "max", "mean"))
        rows.append((label, *numbers))
    return _Section(("LATENCY ms", " p50", " p95", " p99", " max", " mean"), rows, (5, 60))


def _stages(history: History, tight: bool) -> _Section:
    rows: list[tuple[Text | str, ...]] = []
    for kind in history.stages():
        if tight and kind["stage"] in _ASIDE and not kind["inbox"] and not kind["rows"]:
            continue
        age = kind["oldest_s"]
        rows.append(
            (
                kind["stage"],
                str(kind["count"]),
                # A stage without its own thread runs in the threads of neighbouring stages.
                str(kind["threads"] or "-"),
                _busy(kind["inbox"]),
                _busy(kind["rows"]),
                human_bytes(kind["bytes"]) if kind["bytes"] else "-",
                Text(_age(age), style="yellow" if age is not None and age >= _OLD else ""),
            )
        )
    titles = ("STAGE", " count", " threads", " inbox", " messages", " bytes", " oldest")
    return _Section(titles, rows, (5, 56))


def _brokers(history: History) -> _Section:
    rows: list[tuple[Text | str, ...]] = []
    for row in sorted(history.now["brokers"], key=lambda row: row["id"]):
        rows.append(
            (
                str(row["id"]),
                row["address"],
                Text(row["state"], style=_BROKER_STATES.get(row["state"], "dim")),
                str(row["references"]),
                _busy(row["unanswered_requests"]),
                Text(row["last_error"] or "", style="red"),
            )
        )
    titles = ("BROKER", "address", "state", " partitions", " unanswered", "last error")
    return _Section(titles, rows, (5, 70), unlimited=True)


def _partitions(history: History) -> _Section:
    rows: list[tuple[Text | str, ...]] = [
        (
            row["topic"],
            str(row["partition"]),
            str(row["leader"]) if row["leader"] >= 0 else Text("none", style="bold red"),
            _busy(row["rate"]) if history.measured else "-",
            _busy(row["waiting_rows"]),
            human_bytes(row["waiting_bytes"]) if row["waiting_bytes"] else "-",
            _busy(row["unanswered_batches"]),
            Text(str(row["level"]), style="yellow") if row["level"] else "-",
        )
        for row in history.partitions()
    ]
    titles = (
        "TOPIC",
        " partition",
        " leader",
        " rate/s",
        " waiting",
        " bytes",
        " unacked",
        " retries",
    )
    return _Section(titles, rows, (5, 66))


# Numbers ------------------------------------------------------------------------------------------


def _count(number: float) -> str:
    """Format a count: 1234567 -> '1.23M'."""
    if number < 10_000:
        return f"{number:,.0f}"
    for unit in ("k", "M", "G"):
        number /= 1000
        if number < 1000 or unit == "G":
            return f"{number:.3g}{unit}" if number < 999.5 else f"{number:.0f}{unit}"
    raise AssertionError("unreachable")


def _busy(number: float) -> Text | str:
    return Text(_count(number), style="bold") if round(number) else "-"


def _milliseconds(number: float | None) -> str:
    if number is None:
        return "-"
    return (
        f"{number:.2f}" if number < 10 else f"{number:.1f}" if number < 1000 else f"{number:,.0f}"
    )


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
