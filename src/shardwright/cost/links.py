"""How devices talk: the three kinds of link, each pricing a collective inside one group.

A *message* is what NCCL's tests call it: the full buffer of one device, gathered or to be reduced; for an all_to_all
the send buffer; for a permute what is sent.  `comm` makes it from the bytes that one device sends (`spec.collective`)
and hands it on as a fraction, so that nothing is rounded on the way.

| link | a collective costs |
|---|---|
| `Link` | a launch, a latency for each step of a ring, and the bytes sent at one rate |
| `LinkTable` | what was measured, by kind, group size and message |
| `AlphaBetaLink` | Alpa's formulas, tie-breaking constants included |

Between two messages of a table time is a straight line in bytes, a launch and a rate of its own for each octave: with
every other measurement withheld that errs 4.5%, a straight line in logarithms 5.4% (`benchmarks/cost_accuracy.py`).
Measurements break laws that plans rely on, so a table prices the cheapest algorithm of a collective: a
reduce_scatter never more than an all_reduce, an all_reduce never more than its two halves and one latency, an
all_to_all never more than gathering everything (5% more, from 1 MiB on: below that it is what devices really do).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..errors import HardwareError, near_misses
from ..spec.collective import COLLECTIVES

PS = 10**12
"""Picoseconds in a second."""
US = 10**6
"""Picoseconds in a microsecond."""
MIB = 2**20


def trips(kind: str) -> int:
    """How often a message goes around: an all_reduce scatters, then gathers."""
    return 2 if kind == "all_reduce" else 1


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class Link:
    """A ring: a collective costs a launch, ``alpha`` a step, and bytes at ``beta``."""

    alpha: float
    """Seconds for one step of a ring."""
    beta: int
    """Bytes a second that one device sends."""
    launch: float = 0.0
    """Seconds to start a collective."""

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.launch < 0 or self.beta <= 0:
            raise HardwareError("a link needs alpha and launch of at least 0, and a beta above 0")

    @property
    def alpha_ps(self) -> int:
        return round(self.alpha * PS)

    @property
    def launch_ps(self) -> int:
        return round(self.launch * PS)

    def time(self, kind: str, ways: int, over: int, under: int = 1) -> int:
        """Picoseconds of a collective over ``ways`` devices with a message of ``over / under`` bytes."""
        if kind == "collective_permute":
            return self.launch_ps + self.alpha_ps + ceil_div(over * PS, under * self.beta)
        steps = trips(kind) * (ways - 1)
        return self.launch_ps + steps * self.alpha_ps + ceil_div(over * steps * PS, under * ways * self.beta)


@dataclass(frozen=True, slots=True)
class AlphaBetaLink:
    """Alpa's costs of one mesh axis, in units of its own; a unit counts as a microsecond.

    >>> AlphaBetaLink(1.0, 0.1).time("all_reduce", 4, 1000) / 10**6  # 1 + 2 * 0.1 * 3/4 * 1000 + 0.01
    151.01
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta < 0:
            raise HardwareError("alpha and beta must not be below 0")

    def time(self, kind: str, ways: int, over: int, under: int = 1) -> int:
        sent = (over, under) if kind == "collective_permute" else (over * trips(kind) * (ways - 1), under * ways)
        if kind == "all_to_all":
            sent = sent[0] * ways, sent[1] * 2
        fixed = round(self.alpha * US) + _TIES.get(kind, 0)
        return fixed + ceil_div(sent[0] * round(self.beta * US), sent[1])


_TIES = {"all_gather": US // 10, "all_reduce": US // 100, "reduce_scatter": US // 1000, "all_to_all": US // 1000}

_LIKE = {"reduce_scatter": "all_reduce", "all_gather": "all_reduce", "all_to_all": "all_gather"}
"""Where a kind was not measured it is taken to cost as much as this one with the same message."""


@dataclass(frozen=True, slots=True)
class LinkTable:
    """Measured times.

    >>> table = LinkTable.of([1000, 2000], {"all_reduce": {2: [10.0, 12.0]}})
    >>> [table.time("all_reduce", 2, message) / 10**6 for message in (1000, 1500, 3000)]
    [10.0, 11.0, 14.0]
    """

    sizes: tuple[int, ...]
    """Messages in bytes, growing."""
    times: tuple[tuple[str, int, tuple[int, ...]], ...]
    """Kind, group size, picoseconds by message."""
    _series: dict[str, dict[int, tuple[int, ...]]] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] <= 0 or any(a >= b for a, b in pairwise(self.sizes)):
            raise HardwareError("the messages of a table must be above 0 and grow")
        for kind, ways, row in self.times:
            where = [("series", f"{kind} over {ways}")]
            if kind not in COLLECTIVES:
                raise HardwareError(f"no collective is called {kind!r}", help=near_misses(kind, COLLECTIVES))
            if ways < 2:
                raise HardwareError("a group has two devices at least", rows=where)
            if len(row) != len(self.sizes):
                raise HardwareError(f"{len(row)} times for {len(self.sizes)} messages", rows=where)
            if row[0] <= 0 or any(a > b for a, b in pairwise(row)):
                raise HardwareError("times must be above 0 and must not fall", rows=where)
            if ways in self._series.setdefault(kind, {}):
                raise HardwareError("a series stands twice in one table", rows=where)
            self._series[kind][ways] = row
        for kind, known in self._series.items():
            self._series[kind] = dict(sorted(known.items()))
        if "all_reduce" not in self._series:
            raise HardwareError("a table needs times of all_reduce at least")

    @classmethod
    def of(cls, sizes: Sequence[int], microseconds: Mapping[str, Mapping[int, Sequence[float]]]) -> LinkTable:
        """From microseconds by kind and group size."""
        return cls(
            tuple(sizes),
            tuple(
                (kind, ways, tuple(round(time * US) for time in row))
                for kind, known in microseconds.items()
                for ways, row in known.items()
            ),
        )

    def time(self, kind: str, ways: int, over: int, under: int = 1) -> int:
        """Picoseconds of a collective over ``ways`` devices with a message of ``over / under`` bytes."""
        if kind == "collective_permute" and kind not in self._series:
            # Each of a pair sends half of its buffer to the other.
            return self.time("all_to_all", 2, 2 * over, under)
        found = self._measured(kind, ways, over, under)
        if kind in ("reduce_scatter", "all_reduce"):
            whole = found if kind == "all_reduce" else self._measured("all_reduce", ways, over, under)
            part = found if kind == "reduce_scatter" else self._measured("reduce_scatter", ways, over, under)
            part = min(part, whole - whole // 1000)  # less, whatever rounding does to the bytes
            if kind == "reduce_scatter":
                return part
            halves = part + self._measured("all_gather", ways, over, under)
            # The latency only matters where the whole is more expensive than its halves.
            return found if found <= halves else min(found, halves + self._measured("all_gather", ways, 0, 1))
        if kind == "all_to_all":
            gather = self._measured("all_gather", ways, max(over * ways, MIB * under), under)
            return min(found, gather * 104 // 100)
        return found

    def _measured(self, kind: str, ways: int, over: int, under: int) -> int:
        """Between group sizes: at equal bytes sent, on a line in the number of devices; beyond them latency grows."""
        while kind not in self._series:
            kind = _LIKE[kind]
        known = self._series[kind]
        if kind == "collective_permute":
            return self._at(next(iter(known.values())), over, under)
        row = known.get(ways)
        if row is not None:
            return self._at(row, over, under)
        above = next((size for size in known if size > ways), None)
        below = next((size for size in reversed(known) if size < ways), None)
        if below is None or above is None:
            near = above or below
            assert near is not None
            time = self._scaled(known, near, ways, over, under)
            return time if below is None else time + self._growth(known, near, ways)
        low, high = (self._scaled(known, size, ways, over, under) for size in (below, above))
        return ceil_div(low * (above - ways) + high * (ways - below), above - below)

    def _scaled(self, known: Mapping[int, tuple[int, ...]], near: int, ways: int, over: int, under: int) -> int:
        """In a group of another size the message by which one device sends as much."""
        return self._at(known[near], over * (ways - 1) * near, under * ways * (near - 1))

    def _growth(self, known: Mapping[int, tuple[int, ...]], last: int, ways: int) -> int:
        """Latency that a group larger than any measured adds: for each doubling what the last doubling added."""
        before = max((size for size in known if size < last), default=None)
        latency = known[last][0]
        if before is None:
            step = latency // 2
        else:
            step = max(0, latency - known[before][0]) * US // _doublings(last, before)
        return step * _doublings(ways, last) // US

    def _at(self, row: Sequence[int], over: int, under: int) -> int:
        sizes = self.sizes
        i = bisect_right(sizes, over // under)
        if i == 0 or len(sizes) == 1:
            # Below the first message latency alone: a slight slope, so that fewer bytes are never more expensive.
            start, stop, a, b = 0, sizes[0], row[0] - row[0] // 1000, row[0]
        else:
            i = min(i, len(sizes) - 1)
            start, stop, a, b = sizes[i - 1], sizes[i], row[i - 1], row[i]
        return a + ceil_div((b - a) * (over - start * under), (stop - start) * under)


def _doublings(ways: int, from_: int) -> int:
    """How often a group doubles on its way from one size to another, in millionths: exact, a line between powers."""
    whole = 0
    while ways >= 2 * from_:
        from_ *= 2
        whole += 1
    return whole * US + (ways - from_) * US // from_


Wire = Link | LinkTable | AlphaBetaLink
"""Whatever joins devices."""
