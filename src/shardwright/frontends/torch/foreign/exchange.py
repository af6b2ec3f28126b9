"""`Exchanges`: where the ranks of a job meet for collectives, and what the calls of a meeting must agree in.

PyTorch does not compare the calls of a group: where they differ it hangs, or gives garbage.  Here they are compared
before anything is computed, and `Mismatch` names both lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch

from ....errors import TraceError
from ....ir.graph import SourceLine
from .world import World

Combine = Callable[[Any, Any], Any]
COMBINE: dict[str, Combine] = {
    "sum": torch.add, "avg": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum,
    "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
}  # fmt: skip
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


class Mismatch(TraceError):
    """Calls of one collective that do not go together."""


@dataclass(frozen=True)
class Call:
    """One rank's part in a collective."""

    rank: int
    kind: str
    group: tuple[int, ...]
    reduce: str
    root: int
    given: tuple[Any, ...]
    back: tuple[Any, ...] | None
    source: SourceLine | None

    def __str__(self) -> str:
        shapes = ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in self.given)
        how = f" by {self.reduce}" if self.reduce else ""
        where = f", at {self.source}" if self.source else ""
        return f"{self.kind}{how} of {shapes or 'nothing'} over ranks {list(self.group)}{where}"


@dataclass
class _Meeting:
    calls: dict[int, Call] = field(default_factory=dict)
    results: dict[int, list[Any]] | None = None


class Exchanges:
    def __init__(self, world: World) -> None:
        self.world = world
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._meetings: dict[tuple[Any, ...], _Meeting] = {}
        self._sent: dict[tuple[Any, ...], Any] = {}

    def number(self, rank: int, *channel: Any) -> int:
        """How many calls this rank has made on a channel before."""
        self._counts[(rank, *channel)] += 1
        return self._counts[(rank, *channel)] - 1

    def meet(self, call: Call, name: str) -> tuple[int, list[Any]]:
        """Wait for the others of the group; the number of the meeting, and what comes back."""
        channel = (call.group, name)
        number = self.number(call.rank, *channel)
        meeting = self._meetings.setdefault((*channel, number), _Meeting())
        for other in meeting.calls.values():
            check_agree(other, call)
        meeting.calls[call.rank] = call
        if len(meeting.calls) < len(call.group):
            self.world.wait(call.rank, lambda: meeting.results is not None, str(call))
        else:
            meeting.results = _computed([meeting.calls[rank] for rank in call.group])
        assert meeting.results is not None
        return number, meeting.results[call.rank]

    def send(self, source: int, to: int, tag: int, tensor: Any) -> int:
        number = self.number(source, "send", to, tag)
        self._sent[source, to, tag, number] = tensor
        return number

    def expect(self, source: int, to: int, tag: int) -> int:
        """The number of the message that a call is to receive: the order is that of calls, whenever they end."""
        return self.number(to, "receive", source, tag)

    def receive(self, source: int, to: int, tag: int, number: int, like: Any, place: SourceLine | None) -> Any:
        key = (source, to, tag, number)
        at = f", at {place}" if place else ""
        self.world.wait(to, lambda: key in self._sent, f"a tensor from rank {source}{at}")
        found = self._sent.pop(key)
        if found.numel() != like.numel() or found.dtype != like.dtype:
            raise Mismatch(
                "what is sent is not what is received",
                rows=[
                    (f"rank {source} sends", f"{found.dtype} {list(found.shape)}"),
                    (f"rank {to} receives", f"{like.dtype} {list(like.shape)}{at}"),
                ],
            )
        return found.reshape(like.shape)


def check_agree(one: Call, other: Call) -> None:
    """Whether two calls of a group can meet."""
    facts = []
    if one.kind != other.kind:
        facts.append("kind")
    if one.reduce != other.reduce:
        facts.append("reduction")
    if one.root != other.root:
        facts.append("root")
    if {x.dtype for x in one.given} != {x.dtype for x in other.given} and one.given and other.given:
        facts.append("element type")
    if not facts and one.kind in ("all_reduce", "reduce_scatter", "reduce", "broadcast"):
        if [x.numel() for x in one.given] != [x.numel() for x in other.given]:
            facts.append("size")
        elif [x.shape for x in one.given] != [x.shape for x in other.given]:
            facts.append("shape")
    into_one = one.kind == "all_gather" and one.back is None and other.back is None
    if not facts and into_one and one.given[0].shape != other.given[0].shape:
        facts.append("shape")
    if not facts and one.kind == "all_to_all":
        for source, to in ((one, other), (other, one)):
            sent = source.given[source.group.index(to.rank)]
            expected = (to.back or to.given)[to.group.index(source.rank)]
            if sent.numel() != expected.numel():
                facts.append(f"what rank {source.rank} sends to rank {to.rank}")
    if facts:
        raise Mismatch(
            f"a collective differs between ranks in its {', '.join(facts)}: it hangs, or gives garbage",
            rows=[(f"rank {one.rank}", str(one)), (f"rank {other.rank}", str(other))],
            help="every rank of a group has to make the same collective calls, in the same order",
        )


def _combined(reduce_by: str, parts: Sequence[Any]) -> Any:
    total = reduce(COMBINE[reduce_by], parts).clone()
    if reduce_by != "avg":
        return total
    rounding = None if total.is_floating_point() or total.is_complex() else "trunc"
    return torch.div(total, len(parts), rounding_mode=rounding)


def _computed(calls: Sequence[Call]) -> dict[int, list[Any]]:
    """What comes back on each rank, with real numbers where there are some."""
    with torch.no_grad():
        return {call.rank: [x.clone() for x in _back(calls, i, call)] for i, call in enumerate(calls)}


def _back(calls: Sequence[Call], i: int, call: Call) -> list[Any]:
    kind, root = call.kind, next((c for c in calls if c.rank == call.root), call)
    if kind == "all_reduce" or (kind == "reduce" and call is root):
        return [_combined(call.reduce, [c.given[0] for c in calls])]
    if kind == "all_gather" or (kind == "gather" and call is root):
        return [c.given[0] for c in calls]
    if kind == "reduce_scatter":
        return [_combined(call.reduce, [c.given[i] for c in calls])]
    if kind == "all_to_all":
        parts = [c.given[i] for c in calls]
        return parts if call.back is None else [part.reshape(like.shape) for part, like in zip(parts, call.back)]
    if kind == "broadcast":
        return [root.given[0]]
    if kind == "scatter":
        return [root.given[i]]
    return []
