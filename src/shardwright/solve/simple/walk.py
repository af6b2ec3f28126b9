"""A fast estimate of a plan: one pass forward through the graph.

Each value has *copies*, the shardings in which it exists; an op pays for its time and for every operand that has no
copy where it needs one, from the cheapest copy there is.  A program input that nobody placed yet is placed, for free,
where its first reader needs it.  Strategic nodes follow their strategy, the other nodes take what is cheapest for
them.

`Walker.beam` seeds: it walks with many states side by side, each strategic node trying every strategy from every
state.  States that leave the same copies to the rest of the program differ only in cost, so the cheapest stands for
all of them; of the others the cheapest few go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...propagation.choices import Choice, choices
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec
from .ahead import Ahead
from .problem import Problem
from .strategies import Strategy

BRANCHES, LEAST = 768, 16
"""About how many states a beam makes at a strategic node, and how few it carries on at least."""
WINDOW = 32
"""How many nodes behind a changed one are walked again to see what the change costs."""

Copies = tuple[ShardingSpec, ...]
Key = tuple[int, int]
"""What a search makes small: bytes of inputs beyond what a device has, then picoseconds."""
_Way = tuple[int, tuple[ShardingSpec, ...], tuple[ShardingSpec, ...]]
"""Time, what the operands are needed in, what the results are left in."""


@dataclass(slots=True)
class State:
    """How far a walk has come."""

    copies: dict[int, Copies]
    cost: int = 0
    resident: int = 0
    """Bytes of the program's inputs on one device."""
    made: int = 0
    """Bytes of everything else that was made."""
    chosen: tuple[Strategy, ...] = ()

    def fork(self) -> State:
        return State(dict(self.copies), self.cost, self.resident, self.made, self.chosen)


class Walker:
    """Walks one problem many times; what the nodes that are no seeds do is remembered."""

    def __init__(self, problem: Problem, offered: Mapping[int, tuple[Strategy, ...]]) -> None:
        self.problem = problem
        self.offered = offered
        """Strategies by strategic node."""
        self.ahead_of = Ahead(problem)
        self.ways: dict[object, _Way] = {}
        self.stays: dict[object, _Way | None] = {}
        self._choices: dict[object, list[Choice]] = {}
        self._finished: dict[ShardingSpec, ShardingSpec] = {}

    def walk(self, plan: Mapping[int, Strategy]) -> State:
        """The whole program under a plan."""
        state = self.start()
        for n in range(self.count):
            self.node(state, n, plan)
        return self.end(state)

    def key(self, state: State) -> Key:
        return self.excess(state.resident), state.cost

    def excess(self, resident: int) -> int:
        return max(0, resident - self.problem.hardware.memory)

    def beam(self, weight: int = 0) -> dict[int, Strategy]:
        """The best plan that a beam finds; ``weight`` prices memory, in picoseconds per KiB."""

        def rank(state: State) -> Key:
            priced = weight * (state.resident + state.made) >> 10
            return self.excess(state.resident), state.cost + priced + self.to_finish(state)

        states, width = [self.start()], 1
        for n in range(self.count):
            if n in self.offered:
                width = max(LEAST, BRANCHES // len(self.offered[n]))
                states = [self.branch(state, n, strategy) for state in states for strategy in self.offered[n]]
            else:
                states = [new for state in states for new in self.both(state, n)]
            for state in states:
                self.forget(state, n)
            if len(states) > width:
                # Sorting is stable and strategies with fewer axes come first: ties go to the plainer plan.
                states.sort(key=rank)
                states = _survivors(states, width)
        best = min(map(self.end, states), key=rank)
        return dict(zip(self.offered, best.chosen))

    def uniform(self) -> list[dict[int, Strategy]]:
        """Plans in which every node does alike, as far as it can, and is else replicated; among them nothing split."""
        texts = dict.fromkeys(strategy.text for ways in self.offered.values() for strategy in ways)
        return [
            {n: next((s for s in ways if s.text == text), ways[0]) for n, ways in self.offered.items()}
            for text in texts
        ]

    def to_finish(self, state: State) -> int:
        """What is still to pay: values that exist only pending have to be reduced, by half an all_reduce at least."""
        cost = 0
        for value, held in state.copies.items():
            if held[0].partial and all(copy.partial for copy in held):
                cost += self.problem.move(value, held[0], self.finished(held[0])) // 2
        return cost

    def finished(self, spec: ShardingSpec) -> ShardingSpec:
        found = self._finished.get(spec)
        if found is None:
            found = self._finished[spec] = self.problem.same(ShardingSpec.make(spec.mesh, spec.dims))
        return found

    def around(self, plan: Mapping[int, Strategy]) -> Around:
        return Around(self, plan)

    @property
    def count(self) -> int:
        return len(self.problem.graph.nodes)

    def forget(self, state: State, n: int) -> None:
        for value in self.dying[n]:
            state.copies.pop(value, None)

    @cached_property
    def dying(self) -> list[list[int]]:
        """By node: the values that nobody reads after it."""
        graph = self.problem.graph
        found: list[list[int]] = [[] for _ in graph.nodes]
        for value, uses in enumerate(graph.uses):
            if uses and not graph.output_uses[value]:
                found[uses[-1]].append(value)
        return found

    # -- values -----------------------------------------------------------------------------------------

    def start(self) -> State:
        state = State({})
        for value in self.problem.graph.inputs:
            if value in self.problem.given:
                self.place(state, value, self.home(value))
        return state

    def end(self, state: State) -> State:
        """Place what nobody read; outputs are as asked, and never pending."""
        problem = self.problem
        for value in problem.graph.inputs:
            if value not in state.copies and not problem.graph.uses[value]:
                self.place(state, value, problem.replicated(value))
        for i, value in enumerate(problem.graph.outputs):
            held, said = state.copies.get(value), problem.out_specs.get(i)
            if said is not None:
                self.need(state, value, self.problem.same(said.closed()))
            elif held is not None and all(copy.partial for copy in held):
                self.need(state, value, self.finished(held[0]))
        return state

    def home(self, value: int) -> ShardingSpec:
        """What the user gave."""
        return self.problem.same(self.problem.given[value].closed())

    def place(self, state: State, value: int, spec: ShardingSpec) -> None:
        """Where a free value lives, an input or what is made of undecided inputs alone; no cost."""
        state.copies[value] = (spec,)
        state.resident += self.problem.held(value, spec)

    def price(self, state: State, value: int, spec: ShardingSpec) -> int:
        held = state.copies.get(value)
        if held is None or _among(spec, held):
            return 0
        return min([self.problem.move(value, copy, spec) for copy in held])

    def need(self, state: State, value: int, spec: ShardingSpec) -> None:
        held = state.copies.get(value)
        if held is None:
            self.place(state, value, spec)
        elif not _among(spec, held):
            state.cost += self.price(state, value, spec)
            state.copies[value] = (*held, spec)

    # -- nodes ------------------------------------------------------------------------------------------

    def branch(self, state: State, n: int, strategy: Strategy) -> State:
        new = state.fork()
        self.take(new, n, strategy.time, strategy.operands, strategy.results)
        new.chosen += (strategy,)
        return new

    def both(self, state: State, n: int) -> list[State]:
        """Where a beam does not know what is wanted later: what is cheapest now, and taking operands as they are."""
        rule = self.problem.rules[n]
        stay = None if rule is None else self.staying(state, n, rule)
        if stay is None:
            self.node(state, n, {})
            return [state]
        new = state.fork()
        self.take(new, n, *stay)
        self.node(state, n, {})
        return [state, new]

    def node(self, state: State, n: int, plan: Mapping[int, Strategy]) -> None:
        problem = self.problem
        inputs, rule = problem.inputs[n], problem.rules[n]
        results = problem.graph.nodes[n].results
        if n in plan:
            self.take(state, n, plan[n].time, plan[n].operands, plan[n].results)
        elif rule is None:
            operands = tuple(map(problem.replicated, inputs))
            self.take(state, n, problem.whole_time(n), operands, tuple(map(problem.replicated, results)))
        elif any(value in state.copies for value in inputs) or not inputs:
            self.take(state, n, *self.cheapest(state, n, rule, plan))
        else:  # nothing is decided yet: whoever reads the results decides
            for value in results:
                if value in problem.given:
                    state.copies[value] = (self.home(value),)

    def take(
        self, state: State, n: int, time: int, operands: Sequence[ShardingSpec], results: Sequence[ShardingSpec]
    ) -> None:
        problem = self.problem
        for value, spec in zip(problem.inputs[n], operands):
            self.need(state, value, spec)
        state.cost += time
        for value, spec in zip(problem.graph.nodes[n].results, results):
            home = spec
            if value in problem.given:
                home = self.home(value)
                state.cost += problem.move(value, spec, home)
            state.copies[value] = (home,)
            state.made += problem.held(value, home)

    def cheapest(self, state: State, n: int, rule: OpShardingRule, plan: Mapping[int, Strategy]) -> _Way:
        """What a node that is no seed does, given where its operands are and where its results are wanted."""
        problem = self.problem
        inputs, results = problem.inputs[n], problem.graph.nodes[n].results
        held = tuple([state.copies.get(value) for value in inputs])
        wanted = tuple(
            [self.home(value) if value in problem.given else self.ahead_of.want(value, plan) for value in results]
        )
        key = (n, held, wanted)
        found = self.ways.get(key)
        if found is None:

            def cost(choice: Choice) -> tuple[int, int]:
                total = problem.time(n, choice.axes, (*choice.operands, *choice.results))
                for value, spec in dict.fromkeys(zip(inputs, choice.operands)):  # used twice is moved once
                    total += self.price(state, value, spec)
                for value, spec, want in zip(results, choice.results, wanted):
                    total += 0 if want is None else problem.move(value, spec, want)
                return total, -choice.ways(rule)

            found = self.ways[key] = self.way(n, min(self.choices(state, n, rule, wanted), key=cost))
        return found

    def staying(self, state: State, n: int, rule: OpShardingRule) -> _Way | None:
        """The way that moves and cuts nothing, if there is one and it is not the cheapest anyway."""
        held = tuple([state.copies.get(value) for value in self.problem.inputs[n]])
        if not held or any(copies is None for copies in held):
            return None
        key = (n, held)
        if key not in self.stays:
            as_they_are = [
                choice
                for choice in self.choices(state, n, rule, (None,) * len(rule.results))
                if all(spec in copies for spec, copies in zip(choice.operands, held) if copies is not None)
            ]
            way = None
            if as_they_are:
                way = self.way(n, max(as_they_are, key=lambda choice: choice.ways(rule)))
            self.stays[key] = way if way != self.cheapest(state, n, rule, {}) else None
        return self.stays[key]

    def choices(
        self, state: State, n: int, rule: OpShardingRule, wanted: tuple[ShardingSpec | None, ...]
    ) -> list[Choice]:
        problem = self.problem
        held = [(value, state.copies.get(value)) for value in problem.inputs[n]]
        homes = tuple([problem.replicated(value) if copies is None else copies[0] for value, copies in held])
        key = (rule, homes, wanted)
        found = self._choices.get(key)
        if found is None:
            found = self._choices[key] = choices(rule, problem.mesh, homes, wanted)
        return found

    def way(self, n: int, choice: Choice) -> _Way:
        same = self.problem.same
        time = self.problem.time(n, choice.axes, (*choice.operands, *choice.results))
        return time, tuple(map(same, choice.operands)), tuple(map(same, choice.results))


class Around:
    """A plan, and what it would cost with one node done otherwise.

    The walk is kept at every node, and resumed where the change first has an effect.  In a large program it ends
    `WINDOW` nodes later: what a change costs shows near it.
    """

    def __init__(self, walker: Walker, plan: Mapping[int, Strategy]) -> None:
        self.walker = walker
        self.plan = plan
        self.before: list[State] = []
        self.after: list[tuple[int, int]] = []
        state = walker.start()
        for n in range(walker.count):
            self.before.append(state.fork())
            walker.node(state, n, plan)
            walker.forget(state, n)
            self.after.append((state.cost, state.resident))
        self.whole = walker.end(state)

    @property
    def key(self) -> Key:
        return self.walker.key(self.whole)

    def with_other(self, n: int, strategy: Strategy) -> Key:
        """The key of the plan with this strategy at this node."""
        walker = self.walker
        plan = {**self.plan, n: strategy}
        begin = walker.ahead_of.begins[n]
        state = self.before[begin].fork()
        stop = min(walker.count, n + 1 + WINDOW)
        for at in range(begin, stop):
            walker.node(state, at, plan)
            walker.forget(state, at)
        if stop == walker.count:
            return walker.key(walker.end(state))
        cost, resident = self.after[stop - 1]
        return (
            walker.excess(self.whole.resident + state.resident - resident),
            self.whole.cost + state.cost - cost,
        )


def _among(spec: ShardingSpec, held: Copies) -> bool:
    """Equal shardings are one object (`Problem.same`), so identity tells them apart."""
    for copy in held:  # noqa: SIM110 - a generator here costs as much as the whole walk
        if copy is spec:
            return True
    return False


def _survivors(states: Sequence[State], width: int) -> list[State]:
    """Of states in order of rank: the first few that leave different copies."""
    kept: list[State] = []
    alike: set[object] = set()
    for state in states:
        left = frozenset([(value, *map(id, held)) for value, held in state.copies.items()])
        if left not in alike:
            alike.add(left)
            kept.append(state)
            if len(kept) == width:
                break
    return kept
