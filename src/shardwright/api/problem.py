"""`Problem`: one program on one mesh with what the user asked for; solved by a planner or a recipe, lowered and priced.

What counts is read off the lowered Program: its cost, its memory, and whether it keeps every word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import Any

from ..cost import RESIDENT, Hardware, hardware_of, memory_profile, program_cost, program_memory, simulate
from ..errors import PlanInfeasible, ShardwrightError, SpecError
from ..frontends.numpy import trace
from ..frontends.numpy.trees import flatten
from ..ir.graph import Graph
from ..ir.program import Program
from ..lower import lower
from ..optimize.solvers import SOLVERS
from ..plans import PlanCost, Wish, duration
from ..propagation import apply_constraints
from ..propagation.complete import Complete
from ..solve.model import Assigner, Assignment
from ..solve.planner import Asked, assigner_of, best_plan
from ..solve.recipes import DISTINCT
from ..solve.recipes.costs import recipe_complete, recipe_cost
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .arguments import check_name, mesh_of
from .compile import bind_specs, read_constraints, simple_complete
from .constraints import Terms, Word, admits, broken, is_open, memory_word, read_words, splits, terms_of, wishes_of
from .shard_map import in_specs_by_position, spread, uses_torch

SIMPLE = "simple"
"""The solver of four phases, by name; all others are solvers of the numeric problem."""
DEFAULT_SECONDS = 120.0
"""Time for the solver where the user gives none: hard problems take any time for a proof."""
BOUNDED = 400
"""The most nodes of a program for which a simple plan is given the planner's bound."""


@dataclass(frozen=True)
class Candidate:
    """A way to run the program: lowered, priced and measured."""

    name: str
    complete: Complete
    program: Program
    cost: PlanCost
    memory: int
    broken: tuple[Word, ...] = ()
    """What the user asked for and it does not keep."""


@dataclass(frozen=True)
class Solved:
    """The plan that was found, and how good it is."""

    best: Candidate
    bound: int
    solver: str
    timed_out: bool


@dataclass(frozen=True)
class Problem:
    """A captured program, a mesh and a machine, with every word of the user."""

    source: Any
    mesh: DeviceMesh
    hardware: Hardware
    words: tuple[Word, ...]
    """They speak of the values of the source's graph."""
    stays: bool = False
    """Whether outputs that nobody asked for in a sharding are delivered as they are cut; else where it is cheapest."""
    notes: tuple[str, ...] = ()
    """For every plan of it."""
    asked_for: tuple[Wish, ...] = ()
    """What the user asked for, as it was written."""
    uneven: bool = False
    """Whether the planner may split dims that do not divide."""

    @classmethod
    def of(
        cls, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any, in_specs: Any = None,
        out_specs: Any = None, constraints: Any = None, memory: int | str | None = None, hardware: Any = "h100",
        optimizer: Any = None, loss: Any = None,
    ) -> Problem:  # fmt: skip
        on = mesh_of(mesh)
        source: Any
        if uses_torch(fn, args, kwargs):
            from .torch_plans import captured_problem

            source, given, wanted = captured_problem(fn, args, kwargs, on, in_specs, out_specs, optimizer, loss)
        else:
            for what, given_for in (("optimizer", optimizer), ("loss", loss)):
                if given_for is not None:
                    raise SpecError(
                        f"{what}= is for programs of PyTorch, but neither function nor arguments are of PyTorch",
                        help="give tensors of PyTorch (on the meta device shapes are enough), or leave it out",
                    )
            source = trace(fn, *args, **kwargs)
            given, wanted = _numpy_specs(source, fn, args, kwargs, on, in_specs, out_specs)
        graph: Graph = source.graph
        words = [Word(f"in_specs: {graph.values[v].name} = {spec}", {v: spec}) for v, spec in given.items()]
        words += [Word(f"out_specs: output {i} = {spec}", outs={i: spec}) for i, spec in wanted.items()]
        for value, spec in read_constraints(graph, on).items():
            maker = graph.node_of(value)
            where = "" if maker is None else f" at {graph.nodes[maker].source}"
            words.append(Word(f"with_sharding_constraint: {spec}{where}", {value: spec}))
        words += [*read_words(constraints, graph, on), *memory_word(memory)]
        named = tuple((graph.values[v].name, str(spec)) for v, spec in given.items())
        wishes = [Wish("in_specs", named)] if named else []
        ends = tuple((f"output {i}", str(spec)) for i, spec in wanted.items())
        wishes += [Wish("out_specs", ends)] if ends else []
        wishes += [*wishes_of(constraints), *([] if memory is None else [Wish("memory", memory)])]
        return cls(source, on, hardware_of(hardware).on(on), tuple(words), asked_for=tuple(wishes))

    def keeping(self, words: Sequence[Word]) -> Problem:
        """The same program with these words only."""
        return replace(self, words=tuple(words))

    # -- what was asked for -------------------------------------------------------------------------------

    @cached_property
    def _bound(self) -> tuple[Graph, Terms, dict[int, int]]:
        """The graph to solve, the terms in its values, and where the source's values are in it."""
        source: Graph = self.source.graph
        terms = terms_of(self.words, source)
        if not isinstance(terms, Terms):
            raise PlanInfeasible("these cannot all be kept", rows=[("user", str(word)) for word in terms])
        graph, known = apply_constraints(source, terms.pins)
        moved = {value.id: graph.by_name[value.name] for value in source.values}
        bans = {moved[value]: axes for value, axes in terms.bans.items()}
        said = {moved[value] for value in terms.pins}
        pins = {
            value: spec
            for value, spec in known.items()
            if value in said or not any(splits(spec, axis) for axis in bans.get(value, ()))
        }
        return graph, replace(terms, pins=pins, bans=bans), moved

    @property
    def graph(self) -> Graph:
        return self._bound[0]

    @property
    def terms(self) -> Terms:
        return self._bound[1]

    @property
    def here(self) -> tuple[Word, ...]:
        """The words in the values of `graph`."""
        moved = self._bound[2]
        return tuple(
            replace(
                word,
                pins={moved[value]: spec for value, spec in word.pins.items()},
                bans={moved[value]: axes for value, axes in word.bans.items()},
            )
            for word in self.words
        )

    @cached_property
    def given(self) -> dict[int, ShardingSpec]:
        """Shardings that stand fast.

        What the user left open at an input is chosen by the planner; elsewhere what was said is the whole of it.
        """
        inputs, pins = set(self.graph.inputs), self.terms.pins
        return {v: s.closed() for v, s in pins.items() if not is_open(s) or (v not in inputs and s.used_axes)}

    def asked(self, given: Mapping[int, ShardingSpec] | None = None, bare: bool = False) -> Asked:
        """What the planner has to keep to; ``given`` shardings stand fast beside those of the user.

        ``bare`` refuses sums that are pending over a forbidden axis, too.
        """
        terms, mesh = self.terms, self.mesh

        def allows(value: int, spec: ShardingSpec) -> bool:
            if not terms.allows(value, spec):
                return False
            pending = [axis for axis, _ in spec.partial] if bare else []
            return not any(axis.overlaps(other) for axis in terms.bans.get(value, ()) for other in pending)

        fixed = {**self.given, **(given or {})}
        outs = {i: spec.closed() for i, spec in terms.outs.items()}
        renewed = {output for _, output in self.graph.updates}
        for i, value in enumerate(self.graph.outputs):
            if value in (given or {}) and i not in outs and i not in renewed:
                outs[i] = ShardingSpec.make(mesh, fixed[value].closed().dims)
        loose = {value: spec for value, spec in terms.pins.items() if value not in fixed}

        def offer(value: int, specs: tuple[ShardingSpec, ...]) -> tuple[ShardingSpec, ...]:
            """What the user left open begins as said."""
            spec = loose.get(value)
            if spec is None:
                return specs
            return tuple(one for one in specs if admits(spec, one)) or (spec.closed(),)

        return Asked(
            fixed, outs, terms.gathered, allows if terms.bans else None, offer if loose else None, terms.memory,
            self.stays, self.uneven,
        )  # fmt: skip

    @cached_property
    def whole(self) -> Assigner:
        """The numeric problem, without a limit of memory."""
        return assigner_of(self.graph, self.mesh, self.hardware, self.asked())

    def assigned(
        self, given: Mapping[int, ShardingSpec] | None, bare: bool, solver: str, time_limit: float | None
    ) -> Assignment:
        """The planner's answer."""
        asked = self.asked(given, bare)
        return best_plan(
            self.graph, self.mesh, self.hardware, asked, solver=solver, time_limit=time_limit, measure=held_by
        )

    # -- plans ------------------------------------------------------------------------------------------------

    def candidate(self, name: str, complete: Complete) -> Candidate:
        program, graph = lower(complete), complete.graph
        priced = program_cost(program, self.hardware, graph)
        program = replace(program, notes=_notes(complete, program, priced.times, self.notes))
        shown = simulate(program, self.hardware, graph, times=priced.times).exposed
        cost = PlanCost(priced.compute, priced.communication, priced.hidden, shown)
        peak = memory_profile(program, RESIDENT).peak
        lost = broken(self.here, complete, program, peak)
        return Candidate(name, replace(complete, notes=program.notes), program, cost, peak, tuple(lost))

    def by_recipe(self, name: str) -> Candidate:
        return self.candidate(name, recipe_complete(name, self.graph, self.mesh, self.terms.pins, self.terms.outs))

    def recipe_objective(self, name: str) -> int:
        """What `by_recipe` would cost, without lowering it."""
        pins, outs = self.terms.pins, self.terms.outs
        return recipe_cost(name, self.graph, self.mesh, self.hardware, pins, outs).objective

    def by_simple(self) -> Candidate:
        """The plan of the solver of four phases."""
        hardware = self.hardware
        if self.terms.memory is not None:
            hardware = replace(hardware, memory=self.terms.memory)
        _, complete = simple_complete(self.graph, self.mesh, self.terms.pins, self.terms.outs, hardware)
        return self.candidate(SIMPLE, complete)

    def by_planner(self, solver: str, time_limit: float) -> Solved:
        """The planner's plan; where it does not keep what is forbidden, once more with less to choose from."""
        end = monotonic() + time_limit
        found = self.assigned(None, False, solver, time_limit)
        made = self.candidate("plan", found.complete)
        if any(word.bans for word in made.broken):
            # Copies may have been made by way of shardings that other tensors of the type have.
            sources = {v: tree for v, tree in found.complete.sources.items() if v not in self.terms.bans}
            made = self.candidate("plan", replace(found.complete, sources=sources))
        if any(word.bans for word in made.broken):
            found = self.assigned(None, True, solver, max(1.0, end - monotonic()))
            made = self.candidate("plan", found.complete)
        return Solved(made, found.lower_bound, found.solver, found.timed_out)

    def free_bound(self, seconds: float) -> int:
        """No plan without a limit of memory is cheaper; 0 if that is not known either."""
        asked = replace(self.asked(), memory=None)
        try:
            return best_plan(self.graph, self.mesh, self.hardware, asked, time_limit=seconds).lower_bound
        except PlanInfeasible:
            return 0

    def solved(self, solver: str = "auto", time_limit: float | None = None) -> Solved:
        """The best plan that keeps every word; `PlanInfeasible` where none is found."""
        seconds = DEFAULT_SECONDS if time_limit is None else time_limit
        if solver == SIMPLE:
            best = self.by_simple()
            small = len(self.graph.nodes) <= BOUNDED
            bound = self.whole.optimum(True, "auto", seconds).lower_bound if small else 0
            return Solved(_kept(best), min(bound, best.cost.objective), SIMPLE, False)
        failed: PlanInfeasible | None = None
        found: Solved | None = None
        try:
            found = self.by_planner(solver, seconds)
            _kept(found.best)
        except PlanInfeasible as error:
            failed, bound = error, self.free_bound(seconds) if found is None else found.bound
            found = None
        else:
            bound = found.bound
        for name in DISTINCT:
            try:
                if found is not None and self.recipe_objective(name) >= found.best.cost.objective:
                    continue
                other = self.by_recipe(name)
            except ShardwrightError:
                continue  # it does not go with what the user pinned
            if not other.broken and (found is None or other.cost.objective < found.best.cost.objective):
                found = Solved(other, bound, name, False if found is None else found.timed_out)
        if found is None:
            assert failed is not None
            raise failed
        return replace(found, bound=min(found.bound, found.best.cost.objective))


def held_by(complete: Complete) -> int:
    """The most bytes that a device holds."""
    return program_memory(lower(complete), RESIDENT)


def check_solver(solver: str) -> None:
    """Refuse a name that no solver has."""
    check_name(solver, "solver", (*SOLVERS, SIMPLE))


def _numpy_specs(
    source: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh, in_specs: Any, out_specs: Any
) -> tuple[dict[int, ShardingSpec], dict[int, ShardingSpec]]:
    """Shardings by input and by output, as the user mirrored arguments and results."""
    graph: Graph = source.graph
    tree = flatten((args, kwargs))[1]
    specs = spread(in_specs_by_position(in_specs, fn, args, kwargs), tree, "in_specs")
    inputs = [graph.values[value] for value in graph.inputs]
    specs += [None] * (len(inputs) - len(specs))
    read = bind_specs(specs, [v.shape for v in inputs], mesh, [v.name for v in inputs])
    outs = [graph.values[value] for value in graph.outputs]
    asked = spread(out_specs, source.out_tree, "out_specs")
    wanted = bind_specs(asked, [v.shape for v in outs], mesh, [f"output {i}" for i in range(len(outs))])
    return {graph.inputs[i]: spec for i, spec in read.items()}, wanted


def _only_memory(words: Sequence[Word]) -> bool:
    return all(word.memory is not None for word in words)


def _kept(made: Candidate) -> Candidate:
    if made.broken:
        raise PlanInfeasible(
            "no plan was found that keeps everything asked for", rows=[("user", str(word)) for word in made.broken]
        )
    return made


def _notes(complete: Complete, program: Program, times: Sequence[int], more: tuple[str, ...]) -> tuple[str, ...]:
    """With a note for each op that runs replicated for lack of a rule, and what it then takes."""
    graph, notes = complete.graph, [*complete.notes, *more]
    alone = {d.node for d in complete.decisions if d.rule is None and graph.nodes[d.node].results}
    took = {instr.node: time for instr, time in zip(program.instrs, times) if instr.node in alone}
    texts = {n: f"node {n}: {graph.nodes[n].op} has no rule and runs replicated" for n in sorted(alone)}
    notes = [note for note in notes if note not in texts.values()]
    notes += [f"{text} ({duration(took.get(n, 0))})" for n, text in texts.items()]
    return tuple(dict.fromkeys(notes))
