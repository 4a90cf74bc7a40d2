"""How often each transition of the ordering machine is taken: the product's own, watched."""

from __future__ import annotations

from collections import Counter

from pykaproducer._machines.ordering import Effect, Item, Ordering

Transitions = Counter[str]

#: Every transition of the table in ``_machines/ordering.py``, and the ways in which one can go.
ALL = frozenset(
    {
        "pass on",
        "pass on: wait for a path",
        "rise",
        "rise by several levels",
        "buffer",
        "chaser below the watermark",
        "descend by one level",
        "descend over several levels",
        "descend to a level that expects its chaser",
        "path found, items waiting",
    }
)
#: What the table allows and the stages never do. A chaser is sent for the watermark, which falls
#: only when that chaser is back. The leader is looked for only when something waits for it.
NEVER = frozenset({"chaser above the watermark", "path found, nothing waits"})


class CountedOrdering(Ordering):
    """Counts what it does."""

    def __init__(self, transitions: Transitions) -> None:
        super().__init__()
        self._transitions = transitions

    def item(self, item: Item) -> list[Effect]:
        before, had_path = self.high_watermark, self.has_path
        effects = super().item(item)
        if item.level < before:
            self._transitions["buffer"] += 1
        elif item.level > before:
            self._transitions["rise"] += 1
            self._transitions["rise by several levels"] += item.level > before + 1
        else:
            self._transitions["pass on" if had_path else "pass on: wait for a path"] += 1
        return effects

    def chaser(self, level: int) -> list[Effect]:
        before = self.high_watermark
        effects = super().chaser(level)
        if level < before:
            self._transitions["chaser below the watermark"] += 1
        elif level > before:
            self._transitions["chaser above the watermark"] += 1
        else:
            steps = before - self.high_watermark
            self._transitions["descend by one level"] += steps == 1
            self._transitions["descend over several levels"] += steps > 1
            self._transitions["descend to a level that expects its chaser"] += (
                self.high_watermark > 0
            )
        return effects

    def path_found(self) -> list[Effect]:
        effects = super().path_found()
        which = "path found, items waiting" if effects else "path found, nothing waits"
        self._transitions[which] += 1
        return effects
