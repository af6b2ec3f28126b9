"""`ordered`: a Program in an order in which communication hides behind compute.

Local instructions keep their order, but for the end of a step, where only new state is made (`_sequence`).
Collectives move within the window between the instruction that makes what they send and the first that reads what they
bring:

- *Buckets*: collectives of one kind over the same axes whose windows overlap share one start, up to the size at which
  a link is near its full rate.  Reductions join as their operands appear, gathers as their results are needed; no
  bucket waits for a member beyond the first reader of another.
- *Early start*: reductions start as soon as all their operands are there.  Everything else starts just in time for its
  first reader, as far as links are free then, and at most `AHEAD` buckets ahead of the one that is needed, since what
  is gathered too early takes memory.
- *Late wait*: a bucket is waited for where the first of its results is read; one whose operands its backend keeps
  until then, when `AHEAD` others of them have been started.

Several sizes of buckets are tried, and then the fastest order in other ways (`How`), as long as something shows.  Where
the fastest does not fit, buckets at its peak of memory are halved.  Of what fits the fastest is taken, by
`cost.simulate`, and of about equal ones that with the fewest starts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from ..cost import RESIDENT, Hardware, memory_profile
from ..cost.comm import full_bucket
from ..cost.overlap import state_made
from ..cost.profile import program_memory
from ..cost.program import instr_costs
from ..cost.schedule import links_of, makespan, start_time
from ..ir.graph import Graph
from ..ir.order import BUCKETED, bucket_key, check_order
from ..ir.program import START, WAIT, Event, Instr, Program, run_event
from ..rules.registry import find

AHEAD = 2
"""Buckets that may be under way or waiting before the one that is needed: what FSDP2 prefetches."""
EARLY = 8
"""Ops that prepare weights for their gathers may run so many of them ahead: about a layer's."""


class How(NamedTuple):
    """What is tried: how large buckets are, and how they grow."""

    share: int
    """Buckets are this part of a full one, 0: none.  Large ones save starts, small ones leave less at both ends."""
    ahead: int = AHEAD
    grows: bool = False
    """Whether buckets are small at both ends of a step, where there is little to hide behind."""


_LEAN = How(0, 1)
"""What holds least: where it does not fit, smaller buckets would not either."""
_SIZES = (How(1), How(4), How(16), How(32), _LEAN)
_FURTHER = 64
"""Buckets ahead, where links have more to bring for some ops than fits behind the ops before."""
_GROWING = (16, 8, 4, 2)
"""Parts of a bucket that the first, or last, ones have."""


def _grown(how: How) -> How:
    return how._replace(grows=True)


def _further(how: How) -> How:
    return how._replace(ahead=_FURTHER)


_EQUAL = 3
"""Orders whose times differ by no more than so many thousandths are taken to be equal."""
_HALVED = 8
"""How often buckets that take too much memory are halved, at most."""
_REDUCING = ("all_reduce", "reduce_scatter")
_HOLDING = ("reduce_scatter",)  # their backend keeps what is sent, which is more than what they bring


def ordered(
    program: Program,
    hardware: Hardware,
    graph: Graph | None = None,
    times: Sequence[int] | None = None,
    limit: int | None = None,
) -> Program:
    """The same Program with an order; ``graph`` and ``times`` as for `simulate`, ``limit`` in bytes of a device."""
    hardware = hardware.on(program.mesh)
    plain = replace(program, order=())
    if not program.collectives:
        return plain
    if times is None:
        times = instr_costs(program, hardware, graph)

    def time_of(candidate: Program) -> int:
        return makespan(candidate, hardware, times)

    best, least = plain, time_of(plain)
    computed = sum(time for time, instr in zip(times, program.instrs) if not instr.is_collective)
    fits = True
    """Whether the order that holds least does."""
    for late_parts in (True, False):
        windows = _Windows(plain, hardware, times, late_parts)

        def made(how: How, windows: _Windows = windows) -> _Tried:
            order = replace(plain, order=tuple(windows.order(how)))
            return _Tried(time_of(order), sum(event.kind == START for event in order.order), order, how)

        if not fits and not _within(made(_LEAN).order, limit):
            break
        tried = [made(how) for how in _SIZES]
        usual = min(tried, key=lambda one: one[:2]).how
        for changed in (_grown, _further):
            first = min(tried, key=lambda one: one[:2])
            if first.time * 1000 > computed * (1000 + _EQUAL):
                tried.append(made(changed(first.how)))
        # The one who computes issues each start: what hides about equally well goes out in few of them.
        equal = min(one.time for one in tried) * (1000 + _EQUAL) // 1000
        tried.sort(key=lambda one: (max(one[0], equal), one[1], one[0]))
        done = tried[0][0] >= least
        for place, (time, _, order, how) in enumerate(tried):
            if time >= least:
                break
            if _within(order, limit):
                best, least, done = order, time, place == 0
                break
            if place == 0:
                fits = any(_within(lean.order, limit) for lean in tried if lean.how == _LEAN)
                if not fits:
                    break
            smaller = windows.fitting(how, limit) if limit and (place == 0 or how == usual) else None
            if smaller is not None and (time := time_of(smaller)) < least:
                best, least = smaller, time
        if done:
            break  # else what is kept whole until a part of it is needed may be what takes too much
    return check_order(best)


def _within(program: Program, limit: int | None) -> bool:
    return limit is None or program_memory(program, RESIDENT) <= limit


class _Tried(NamedTuple):
    """An order, and what it takes."""

    time: int
    starts: int
    order: Program
    how: How


@dataclass
class _Bucket:
    """Collectives that start together."""

    members: list[int]
    ready: int
    """The place after which all operands are there; -1: from the start."""
    deadline: int
    """The first place at which one of their results is read."""
    bytes: int
    at: int = 0
    """The place before which it is started."""

    def add(self, n: int, ready: int, deadline: int, bytes: int) -> None:
        self.members.append(n)
        self.ready, self.deadline = max(self.ready, ready), min(self.deadline, deadline)
        self.bytes += bytes


class _Windows:
    """When each collective may be started and has to be done; instructions are told by their place in a sequence."""

    def __init__(self, program: Program, hardware: Hardware, times: Sequence[int], late_parts: bool = True) -> None:
        self.program, self.hardware = program, hardware
        self.count = len(program.instrs)
        self.sequence = _sequence(program, late_parts)
        place = {n: at for at, n in enumerate(self.sequence)}
        maker = {value: n for n, instr in enumerate(program.instrs) for value in instr.results}
        self.ready: dict[int, int] = {}
        self.deadline: dict[int, int] = {}
        for at, n in enumerate(self.sequence):
            instr = program.instrs[n]
            makers = [maker[value] for value in instr.inputs if value in maker]
            for made in makers:
                if made in self.ready:
                    # What feeds another collective is done in its turn, so that the other can move.
                    self.deadline[made] = min(self.deadline[made], place[made] if instr.is_collective else at)
            if instr.is_collective:
                self.ready[n] = max((place[made] for made in makers), default=-1)
                self.deadline[n] = self.count
        self.clock = self._clock(times, place)
        self._caps: dict[tuple[str, ...], int] = {}
        self.runs = [
            None if program.instrs[n].is_collective else (program.instrs[n].inputs, run_event(n)) for n in self.sequence
        ]
        """Of local instructions, by their place, what they read and their event, which is the same in every order."""

    def _clock(self, times: Sequence[int], place: Mapping[int, int]) -> list[int]:
        """When each place is reached, if only collectives that cannot move are waited for."""
        found, now = [], 0
        for at, n in enumerate(self.sequence):
            found.append(now)
            movable = n in self.ready and (self.ready[n] < at - 1 or self.deadline[n] > at + 1)
            now += 0 if movable else times[n]
        return [*found, now]

    def cap(self, key: tuple[str, ...], n: int) -> int:
        """Bytes sent at which a bucket is full."""
        found = self._caps.get(key)
        if found is None:
            instr = self.program.instrs[n]
            found = self._caps[key] = full_bucket(instr.op, instr.axes, self.hardware)
        return found

    def fitting(self, how: How, limit: int) -> Program | None:
        """An order within a limit of bytes: buckets that are under way at the peak are halved until it is met."""
        parts: dict[int, int] = {}
        for _ in range(_HALVED):
            program = replace(self.program, order=tuple(self.order(how, parts)))
            profile = memory_profile(program, RESIDENT)
            if profile.peak <= limit:
                return program
            at = profile.live.step
            ends = {event.members: i for i, event in enumerate(program.order) if event.kind == WAIT}
            begun = [event.members for event in program.order[: at + 1] if event.kind == START]
            around = [members for members in begun if len(members) > 1 and at <= ends[members]]
            for n in [n for members in around or [m for m in begun if len(m) > 1][-1:] for n in members]:
                parts[n] = 2 * parts.get(n, 1)
            if not parts:
                return None
        return None

    # -- buckets ----------------------------------------------------------------------------------------

    def buckets(self, how: How, parts: Mapping[int, int]) -> list[_Bucket]:
        """All collectives; ``parts``: of the usual size, for some."""
        reducing = [n for n in self.ready if self.program.instrs[n].op in _REDUCING]
        others = [n for n in self.ready if self.program.instrs[n].op not in _REDUCING]
        # What grows is joined from the end of the step that it is small at.
        turn = -1 if how.grows else 1
        reducing.sort(key=lambda n: (turn * self.ready[n], turn * n))
        others.sort(key=lambda n: (self.deadline[n], self.ready[n], n))
        return [*self._joined(reducing, how, parts), *self._joined(others, how, parts)]

    def _joined(self, numbers: Iterable[int], how: How, parts: Mapping[int, int]) -> Iterator[_Bucket]:
        open_: dict[tuple[str, ...], _Bucket] = {}
        closed: dict[tuple[str, ...], int] = {}
        for n in numbers:
            instr, ready, deadline = self.program.instrs[n], self.ready[n], self.deadline[n]
            key = bucket_key(self.program, instr)
            bucket, done = open_.get(key), closed.get(key, 0)
            part = _GROWING[done] if how.grows and done < len(_GROWING) else 1
            fits = (
                bucket is not None
                and how.share > 0
                and instr.op in BUCKETED
                and instr.cause  # what an op exchanges inside, it waits for
                and ready < bucket.deadline
                and bucket.ready < deadline
                and bucket.bytes + instr.bytes <= self.cap(key, n) // (how.share * part * parts.get(n, 1))
            )
            if fits and bucket is not None:
                bucket.add(n, ready, deadline, instr.bytes)
                continue
            if bucket is not None:
                closed[key] = done + 1
                yield bucket
            open_[key] = _Bucket([n], ready, deadline, instr.bytes)
        yield from open_.values()

    # -- when they start --------------------------------------------------------------------------------

    def order(self, how: How, parts: Mapping[int, int] = MappingProxyType({})) -> list[Event]:
        buckets = self.buckets(how, parts)
        for bucket in buckets:
            bucket.members.sort()
            bucket.at = bucket.ready + 1
        self._just_in_time([b for b in buckets if self.program.instrs[b.members[0]].op not in _REDUCING], how.ahead)
        return self._events(buckets)

    def _about(self, bucket: _Bucket) -> tuple[tuple[str, ...], int]:
        """The links that a bucket runs over, and for how long."""
        event = Event(START, tuple(bucket.members))
        return links_of(self.program, event, self.hardware), start_time(self.program, event, self.hardware)

    def _just_in_time(self, buckets: list[_Bucket], ahead: int) -> None:
        """The last one first: each as late as its reader and those after it on its links allow."""
        buckets.sort(key=lambda bucket: (bucket.deadline, bucket.members))
        busy: dict[str, int] = {}
        for i in range(len(buckets) - 1, -1, -1):
            bucket = buckets[i]
            links, time = self._about(bucket)
            end = min([self.clock[bucket.deadline], *(busy.get(link, self.clock[-1]) for link in links)])
            begin = end - time
            busy.update(dict.fromkeys(links, begin))
            earliest = buckets[i - ahead].deadline if i >= ahead else 0
            at = bisect_right(self.clock, begin, 0, self.count) - 1
            bucket.at = min(max(bucket.at, earliest, at), bucket.deadline)

    def _events(self, buckets: Sequence[_Bucket]) -> list[Event]:
        program, found = self.program, list[Event]()
        starts: dict[int, list[_Bucket]] = {}
        for bucket in buckets:
            starts.setdefault(bucket.at, []).append(bucket)
        under_way: dict[int, Event] = {}
        """By result."""
        holding: deque[Event] = deque()
        """What keeps more than it brings."""

        def wait_for(values: Iterable[int]) -> None:
            for value in values:
                event = under_way.get(value)
                if event is not None:
                    for n in event.members:
                        for made in program.instrs[n].results:
                            del under_way[made]
                    found.append(Event(WAIT, event.members))

        for at, run in enumerate([*self.runs, None]):
            for bucket in sorted(starts.get(at, ()), key=lambda bucket: (bucket.deadline, bucket.members)):
                event = Event(START, tuple(bucket.members))
                for member in bucket.members:
                    wait_for(program.instrs[member].inputs)
                found.append(event)
                under_way.update({made: event for m in bucket.members for made in program.instrs[m].results})
                if program.instrs[bucket.members[0]].op in _HOLDING:
                    holding.append(event)
                if len(holding) > AHEAD:
                    wait_for(program.instrs[holding.popleft().members[0]].results)
            if run is not None:
                if not under_way.keys().isdisjoint(run[0]):
                    wait_for(run[0])
                found.append(run[1])
        wait_for(list(under_way))
        return found


def _sequence(program: Program, late_parts: bool = True) -> list[int]:
    """Instructions in an order in which communication at the end of a step can be sent together.

    Once all that several parameters need is done, only new state is left to be made, parameter by parameter.  Of these
    instructions those run first that wait for no collective, then those that wait for one, and so on; what is computed
    from a gradient before it is reduced comes right after the gradient.  So do, everywhere, views of what is sent.
    Views of what was received come right before who reads them, so that nobody waits for them earlier; so do parts of
    it, with ``late_parts``.  What is computed of state alone and then sent, such as a weight's shard in another type,
    comes `EARLY` such ops before its turn: else its gather could not begin before the op that waits for it.
    """
    count, start = len(program.instrs), _last_shared(program) + 1
    maker = {value: n for n, instr in enumerate(program.instrs) for value in instr.results}
    made_by = [[maker[value] for value in instr.inputs if value in maker] for instr in program.instrs]
    sends, views = [instr.is_collective for instr in program.instrs], [_is_view(instr) for instr in program.instrs]
    feeds: set[int] = set()
    for n in range(count - 1, -1, -1):
        if sends[n] or n in feeds:
            feeds.update(made for made in made_by[n] if made >= start or views[made])
    early = _early(program, start)
    rows: list[tuple[int, int, int]] = []
    """For each instruction the one that it comes after, and the collectives that it waits for."""
    levels = [0] * count
    for n, makers in enumerate(made_by):
        level = max([levels[made] + (made >= start and sends[made]) for made in makers], default=0)
        levels[n] = level
        waits = sends[n] or any(sends[made] for made in makers)
        if n in feeds and n not in early and not waits and (views[n] or (makers and not level)):
            after, rank = max((rows[made][:2] for made in makers), default=(-1, 0))
            rows.append((after, rank, n))
        elif n in early:
            rows.append(max([(early[n], -1, n), *((*rows[made][:2], n) for made in makers)]))
        elif n < start:
            rows.append((n, 0, n))
        else:
            rows.append((count, level, n))
    free = [views[n] or _is_free(instr) for n, instr in enumerate(program.instrs)]
    first: list[int] = [count] * count
    """The first reader of what each instruction makes; those that move with their reader count as that."""
    for n in range(count - 1, -1, -1):
        moves = first[n] < count and (free[n] if late_parts else views[n]) and rows[n][0] in (n, count)
        if moves and rows[first[n]] > rows[n] and any(sends[made] or free[made] for made in made_by[n]):
            rows[n] = (*rows[first[n]][:2], n)
        for made in made_by[n]:
            if first[made] == count or rows[n] < rows[first[made]]:
                first[made] = n
    return sorted(range(count), key=rows.__getitem__)


def _early(program: Program, end: int) -> dict[int, int]:
    """Ops before the ``end`` that make of state alone what a collective sends, views before them included, and the
    place that each is brought to: that of the op which comes `EARLY` such ops before; -1: the start."""
    steps = [(x.node, () if x.is_collective else x.inputs, x.results) for x in program.instrs[:end]]
    made = state_made(steps, {program.inputs[i] for i, _ in program.updates})
    sent: set[int] = set()
    chains: list[int] = []
    for n in range(len(program.instrs) - 1, -1, -1):
        instr = program.instrs[n]
        if instr.is_collective:
            sent.update(instr.inputs)
        elif n in made and not sent.isdisjoint(instr.results):
            sent.update(instr.inputs)
            chains.append(n)
    timed = sorted(n for n in chains if not _is_free(program.instrs[n]))
    found = {}
    for n in chains:
        at = bisect_right(timed, n - 1)  # with the first op that may read it
        if at < len(timed):
            found[n] = timed[at - EARLY] if at >= EARLY else -1
    return found


def _is_free(instr: Instr) -> bool:
    """Whether it takes no time: a view, or a local step of a reshard."""
    return not instr.is_collective and (_is_view(instr) or (bool(instr.cause) and find(instr.op) is None))


def _is_view(instr: Instr) -> bool:
    record = find(instr.op)
    return len(instr.views) == len(instr.results) > 0 and not (record is not None and record.in_place)


_OF_ONE_PARAMETER = 4
"""At most so many tensors of state are made from what belongs to one parameter: itself and its moments."""


def _last_shared(program: Program) -> int:
    """The last instruction that is needed for more than one parameter's new state, or for anything else."""
    needed: dict[int, int] = {}
    """For each value the new state that is made from it, a bit for each."""
    other = 1 << len(program.updates)
    renewed = {o: 1 << bit for bit, (_, o) in enumerate(program.updates)}
    for o, value in enumerate(program.outputs):
        needed[value] = needed.get(value, 0) | renewed.get(o, other)
    masks = [0] * len(program.instrs)
    for n in range(len(program.instrs) - 1, -1, -1):
        instr = program.instrs[n]
        for value in instr.results:
            masks[n] |= needed.get(value, 0)
        for value in instr.inputs:
            needed[value] = needed.get(value, 0) | masks[n]
    together = {1 << bit: 1 << bit for bit in range(len(program.updates))}
    """For each bit all that belong to the same parameter."""
    for i, _ in program.updates:
        mask = needed.get(program.inputs[i], 0)
        if mask.bit_count() <= _OF_ONE_PARAMETER and not mask & other:
            bits = [bit for bit in together if bit & mask]
            joined = 0
            for bit in bits:
                joined |= together[bit]
            for bit in [bit for bit in together if bit & joined]:
                together[bit] = joined
    shared = (n for n, mask in enumerate(masks) if mask & other or mask & ~together.get(mask & -mask, 0))
    return max(shared, default=-1)
