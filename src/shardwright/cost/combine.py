"""Collectives after combining: what a runtime with buckets would start, rather than what a Program lists.

Collectives of one kind, over the same axes, with the same reduction and element type, can share one start if none of
them waits for another.  That alone is not enough for all groups together (a before b in one pair, b before a in
another), so groups are read off an order in which they can really run: everything local that can run does, and when
only collectives are left, all that are ready and alike run as one.  Where several kinds are ready, one goes first for
which waiting brings nothing, because all others like it depend on it; else the one that is first in the Program.

With one kind of collective there are as many groups as the longest chain of them is long, and no way to combine them
has fewer.  An op that only asks for the shape of what it reads (ones like the loss) waits for nothing.

A Program may gather one input twice, since it gave up the first copy on purpose (as ZeRO-3 does for the
backward pass); two gathers of the same input never share a start.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ..ir.program import Instr, Program
from ..rules.registry import find
from ..spec.axes import axes_text
from ..spec.op_record import slots_of

Key = tuple[str, str, str, str]


class Group(NamedTuple):
    """Collectives that run as one."""

    kind: str
    axis: str
    bytes: int
    """What one device sends, in all of them."""
    members: tuple[int, ...]
    """Instructions of the Program."""


def combined(program: Program) -> dict[str, int]:
    """How many collectives of each kind are left after combining.

    >>> import numpy as np, shardwright as sw
    >>> mapped = sw.shard_map(lambda a, b: (np.exp(a), np.exp(b)), "d=4", in_specs="[d]", out_specs="[_]")
    >>> program = mapped.program(np.ones(8), np.ones(8))
    >>> [c.kind for c in program.collectives], combined(program)
    (['all_gather', 'all_gather'], {'all_gather': 1})
    """
    return dict(Counter(group.kind for group in combined_groups(program)))


def combined_groups(program: Program) -> tuple[Group, ...]:
    """The groups, in an order in which they can run."""
    return _Combining(program).run()


class _Combining:
    """A Program being run in groups."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.waits: list[set[int]] = []
        """For each instruction the instructions that make what it reads and did not run yet."""
        self.readers: dict[int, list[int]] = {}
        self.before: dict[int, frozenset[int]] = {}
        """Collective -> all collectives that it depends on."""
        self.moved = {value: value for value in program.inputs}
        """Value -> the input that it shows: views, parts and copies."""
        self.done: set[int] = set()
        self._read()

    def _read(self) -> None:
        maker: dict[int, int] = {}
        above: list[frozenset[int]] = []
        moved = self.moved
        for n, instr in enumerate(self.program.instrs):
            reads = () if self._looks_away(instr) else instr.inputs
            makers = {maker[value] for value in reads if value in maker}
            self.waits.append(set(makers))
            for m in makers:
                self.readers.setdefault(m, []).append(n)
            found = frozenset[int]().union(*(above[m] for m in makers))
            if instr.is_collective:
                self.before[n] = found
                found |= {n}
            above.append(found)
            if len(reads) == 1 and reads[0] in moved and (instr.views or instr.node is None):
                moved.update(dict.fromkeys(instr.results, moved[reads[0]]))
            maker.update(dict.fromkeys(instr.results, n))

    def _looks_away(self, instr: Instr) -> bool:
        """Whether an op asks only for the shape of what it reads: its rule takes it pending in any way, for nothing."""
        record, reads = find(instr.op), instr.inputs
        if record is None or len(reads) != 1:
            return False
        read, *made = (self.program.values[value].type.shape for value in (*reads, *instr.results))
        rows = record.bind([read], made, dict(instr.attrs), slots_of(instr.operands)).transfers
        return any(row.operands == ("P(any)",) and {*row.results} == {"R"} for row in rows)

    def run(self) -> tuple[Group, ...]:
        groups: list[Group] = []
        ready = [n for n, waits in enumerate(self.waits) if not waits]
        held: list[int] = []
        while ready or held:
            while ready:
                n = ready.pop()
                if self.program.instrs[n].is_collective:
                    held.append(n)
                else:
                    ready += self._finish(n)
            if held:
                members = self._next(sorted(held))
                held = [n for n in held if n not in members]
                groups.append(self._group(members))
                for n in members:
                    ready += self._finish(n)
        return tuple(groups)

    def _finish(self, n: int) -> list[int]:
        self.done.add(n)
        free = []
        for reader in self.readers.get(n, ()):
            self.waits[reader].discard(n)
            if not self.waits[reader]:
                free.append(reader)
        return free

    def _next(self, held: list[int]) -> list[int]:
        """Of the collectives that are ready those that run now, as one."""
        alike: dict[Key, list[int]] = {}
        for n in held:
            alike.setdefault(self._key(n), []).append(n)
        for key, members in alike.items():
            later = (n for n in self.before if n not in self.done and n not in members and self._key(n) == key)
            if all(self.before[n] & set(members) for n in later):
                return self._apart(members)
        return self._apart(alike[self._key(held[0])])

    def _apart(self, members: list[int]) -> list[int]:
        """Without second gathers of the same input."""
        seen: set[int] = set()
        kept = []
        for n in members:
            source = self.moved.get(self._instr(n).inputs[0])
            if source is None or source not in seen:
                kept.append(n)
            if source is not None:
                seen.add(source)
        return kept

    def _instr(self, n: int) -> Instr:
        return self.program.instrs[n]

    def _key(self, n: int) -> Key:
        instr = self._instr(n)
        dtype = self.program.values[instr.inputs[0]].type.dtype
        return instr.op, axes_text(instr.axes), str(instr.attr("reduction", "")), dtype

    def _group(self, members: list[int]) -> Group:
        first = self._instr(members[0])
        return Group(first.op, axes_text(first.axes), sum(self._instr(n).bytes for n in members), tuple(members))
