"""`fuse_updates`: a pass that finds what optimizers compute, parameter by parameter, and writes it as one op.

It does not ask who wrote the step.  Around each parameter that a program updates it takes the ops that lead to the new
value and looks at them as a function of numbers (`residues`): the coefficient of the mean in its own update has to be
some tensor of no dimension of the program, which then is beta1, and so on.  What is found in that way is compared as a
whole with the formula of the op (`updates`) on other numbers; where that is not the same, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from ....ir.graph import Graph, Node, TensorType
from ....ir.rewrite import Rewriter
from ....rules.registry import parts
from .residues import P, computes, evaluated, hashed, over, power, root
from .updates import ADAM, SGD, STATE

FLOATS = ("f64", "f32", "bf16", "f16")
WIDENED = ("bf16", "f16")
_last: tuple[Graph, list[Any]] | None = None
"""What was recognised last: planning asks twice for the same graph."""
MOST = 40
"""Elementwise ops, counted back from a new parameter, among which its gradient is looked for."""


@dataclass(frozen=True)
class Update:
    """An op to put in: values are those of the graph, or, in a sketch, places in a cone."""

    op: str
    operands: tuple[int | None, ...]
    results: tuple[int, ...]
    attrs: tuple[tuple[str, bool], ...]

    def at(self, place: Any) -> Update:
        """The same with other names for values."""
        operands = tuple(None if value is None else place(value) for value in self.operands)
        return replace(self, operands=operands, results=tuple(map(place, self.results)))


def fuse_updates(graph: Graph, kept: Iterable[int] = ()) -> tuple[Graph, dict[int, int]] | None:
    """The graph with one op for every update that is recognised, and what became of each value; None without any.

    Values that are ``kept`` stay as they are.
    """
    global _last
    if _last is None or _last[0] is not graph:
        _last = graph, recognised(graph)
    found = _last[1]
    while found:
        change = _Change(graph, found)
        fewer = [update for update in found if change.possible(update, set(kept))]
        if len(fewer) == len(found):
            return change.made()
        found = fewer
    return None


def recognised(graph: Graph) -> list[Update]:
    """Every update of a parameter that is known as an op."""
    known: dict[Any, Update | None] = {}
    found: list[Update] = []
    taken: set[int] = set()
    renewed = {graph.inputs[i]: graph.outputs[o] for i, o in graph.updates}
    for parameter in renewed:
        if parameter in taken or graph.type(parameter).dtype not in FLOATS:
            continue
        cone = _Cone(graph, parameter, renewed)
        key = cone.key
        if key not in known:
            update = _Reading(cone).update()
            known[key] = None if update is None else update.at(cone.order.index)
        sketch = known[key]
        if sketch is not None:
            update = sketch.at(cone.order.__getitem__)
            if not taken & set(update.results):
                found.append(update)
                taken |= {*(v for v in update.operands if v in renewed), *update.results}
    return found


class _Cone:
    """The elementwise ops that lead to a parameter's new value, and what they begin with."""

    def __init__(self, graph: Graph, parameter: int, renewed: dict[int, int]) -> None:
        self.graph, self.parameter, self.renewed = graph, parameter, renewed
        self.type = graph.type(parameter)
        self.target = renewed[parameter]
        self.order: list[int] = []
        """All values, each before those that it is made of."""
        self.inside: set[int] = set()
        """Values that are computed here; others are leaves."""
        self._collect()

    def _collect(self) -> None:
        waiting, seen, full = [self.target], {self.target}, 0
        while waiting:
            value = waiting.pop(0)
            self.order.append(value)
            n = self.graph.node_of(value)
            if n is None or not self._walkable(self.graph.nodes[n]) or full >= MOST:
                continue
            self.inside.add(value)
            full += self.is_full(value)
            for read in self.graph.nodes[n].inputs:
                if read not in seen:
                    seen.add(read)
                    waiting.append(read)

    def is_full(self, value: int) -> bool:
        """Whether it stands for the parameter, element by element: half types may be computed in float32, as kernels
        do; any other change of type is not theirs to make."""
        type = self.graph.type(value)
        return type == self.type or (self.type.dtype in WIDENED and type == replace(self.type, dtype="f32"))

    def is_alike(self, value: int) -> bool:
        """Whether a kernel takes it beside the parameter."""
        return self.graph.type(value) == self.type

    def _walkable(self, node: Node) -> bool:
        graph = self.graph
        return computes(node) and all(
            self.is_full(v) or _is_number(graph.type(v)) for v in (*node.inputs, *node.results)
        )

    @property
    def state(self) -> list[int]:
        """Leaves of the parameter's type that the program updates."""
        return [v for v in self.order if v in self.renewed and self.is_alike(v) and v != self.parameter]

    @property
    def numbers(self) -> list[int]:
        """Of no dimension, in the order in which the program has them."""
        return sorted(v for v in self.order if _is_number(self.graph.type(v)))

    @property
    def key(self) -> Any:
        """Equal for equal formulas."""
        place = {value: i for i, value in enumerate(self.order)}
        lines: list[Any] = []
        for value in self.order:
            n = self.graph.node_of(value) if value in self.inside else None
            if n is not None:
                node = self.graph.nodes[n]
                operands = tuple(place[o] if isinstance(o, int) else None for o in node.operands)
                lines.append((node.op, operands, repr(node.attrs)))
            else:
                kind = self.graph.type(value).dtype if self.is_full(value) else None
                lines.append((kind, value == self.parameter, place.get(self.renewed.get(value, -1), -1)))
        numbers = tuple(place[v] for v in self.numbers)
        return tuple(lines), numbers, self.type.rank == 0, self.type.dtype


def _is_number(type: TensorType) -> bool:
    return not type.shape and type.dtype in FLOATS


class _No(Exception):
    """It is not this formula."""


class _Reading:
    """What a cone computes, read off its numbers."""

    def __init__(self, cone: _Cone) -> None:
        self.cone, self.graph = cone, cone.graph
        self.parameter = cone.parameter
        values = evaluated(self.graph, cone.numbers, {})
        self.by_number = dict(reversed([*zip(values, cone.numbers)]))
        self.number_of = dict(zip(cone.numbers, values))

    def update(self) -> Update | None:
        state = self.cone.state
        if len(state) > 3:
            return None
        read: Callable[..., Update] = self.adam if len(state) > 1 else self.sgd
        for gradient in self.gradients():
            for given in permutations(state):
                try:
                    update = read(gradient, *given)
                except _No:
                    continue
                if self.holds(update):
                    return update
        return None

    def gradients(self) -> Iterator[int]:
        """Values that may be the gradient, from those on that have most of the step behind them."""
        leaves = {self.parameter, *self.cone.state, *self.cone.renewed.values()}
        for value in reversed(self.cone.order):
            if self.cone.is_alike(value) and value not in leaves and self._is_cut(value):
                yield value

    def _is_cut(self, gradient: int) -> bool:
        """Whether all is computed from this value, the parameter, its state and numbers."""
        allowed = {gradient, self.parameter, *self.cone.state}
        seen, waiting = set(allowed), [self.cone.target]
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if value not in self.cone.inside:
                if self.cone.is_full(value) and not (self.cone.type.rank == 0 and value in self.number_of):
                    return False
                continue
            n = self.graph.node_of(value)
            waiting += [] if n is None else self.graph.nodes[n].inputs
        return True

    # -- asking the cone ------------------------------------------------------------------------------------

    def value(self, root: int, given: dict[int, int]) -> int:
        return evaluated(self.graph, [root], given)[0]

    def slope(self, root: int, by: int, given: dict[int, int]) -> int:
        """By how much a value grows with another; the numbers tell whether it does so evenly."""
        start = given[by]
        return (self.value(root, {**given, by: start + 1}) - self.value(root, given)) % P

    def number(self, residue: int) -> int:
        """The tensor of no dimension that is this number."""
        found = self.by_number.get(residue % P)
        if found is None:
            raise _No
        return found

    def base(self, *values: int) -> dict[int, int]:
        return {value: hashed("base", value) for value in values}

    # -- formulas -------------------------------------------------------------------------------------------

    def direction(self, slope: int, decay: int) -> tuple[bool, int | None]:
        """Whether the gradient is turned round, and what part of the parameter is added to it."""
        if slope not in (1, P - 1):
            raise _No
        return slope != 1, self.number(decay) if decay else None

    def adam(self, gradient: int, mean: int, square: int, largest: int | None = None) -> Update:
        new, target = self.cone.renewed, self.cone.target
        state = [mean, square] if largest is None else [mean, square, largest]
        base = self.base(gradient, self.parameter, *state)
        beta1, beta2 = (self.slope(new[v], v, base) for v in (mean, square))
        if beta1 == 1 or beta2 == 1:
            raise _No
        rest = over(1, 1 - beta1)
        slopes = [self.slope(new[mean], v, base) * rest % P for v in (gradient, self.parameter)]
        maximize, decay = self.direction(*slopes)
        high = new[square if largest is None else largest]
        inner = self.base(gradient, self.parameter, *state, new[mean], high)
        keep = self.slope(target, self.parameter, inner)
        heights = []
        for turn in range(2):
            given = {**inner, high: hashed("height", turn)}
            step = (keep * given[self.parameter] - self.value(target, given)) % P
            heights.append((root(given[high]), over(given[new[mean]], step)))
        (x0, y0), (x1, y1) = heights
        slope = (y1 - y0) * over(1, x1 - x0) % P
        start = (y0 - slope * x0) % P
        count, rate = self.step_and_rate(slope, beta1, beta2)
        size = over(self.number_of[rate], 1 - power(beta1, self.number_of[count]))
        decoupled = decay is None and keep != 1
        if decoupled:
            decay = self.number(over(1 - keep, self.number_of[rate]))
        operands = (
            self.parameter, gradient, mean, square, largest, count, rate, self.number(beta1), self.number(beta2),
            self.number(start * size), decay,
        )  # fmt: skip
        results = (target, *(new[v] for v in state))
        return Update(ADAM, operands, results, (("decoupled", decoupled), ("maximize", maximize)))

    def step_and_rate(self, slope: int, beta1: int, beta2: int) -> tuple[int, int]:
        """The count and the learning rate of which both bias corrections come."""
        for count in self.cone.numbers:
            first, second = (1 - power(beta, self.number_of[count]) for beta in (beta1, beta2))
            rate = self.by_number.get(over(first, slope * root(second % P) % P))
            if rate is not None:
                return count, rate
        raise _No

    def sgd(self, gradient: int, moving: int | None = None) -> Update:
        target, parameter = self.cone.target, self.parameter
        if moving is None:
            base = self.base(gradient, parameter)
            towards, keep = (self.slope(target, v, base) for v in (gradient, parameter))
            maximize = self.by_number.get(P - towards) is None
            rate = self.number(towards if maximize else P - towards)
            decay = None if keep == 1 else self.number(over(1 - keep, self.number_of[rate]))
            attrs = (("maximize", maximize), ("nesterov", False))
            return Update(SGD, (parameter, gradient, None, rate, None, None, decay), (target,), attrs)
        new = self.cone.renewed[moving]
        base = self.base(gradient, parameter, moving)
        momentum, share, part = (self.slope(new, v, base) for v in (moving, gradient, parameter))
        dampening = None
        if share not in (1, P - 1):
            found = [(self.by_number.get((1 - s * share) % P), s) for s in (1, -1)]
            dampening, share = next(((v, s % P) for v, s in found if v is not None), (None, 0))
            part = over(part, 1 - self.number_of[dampening]) if dampening is not None else 0
        maximize, decay = self.direction(share, part)
        inner = self.base(gradient, parameter, moving, new)
        along, towards = (self.slope(target, v, inner) for v in (new, gradient))
        rate = self.number(-along if towards == 0 else -towards * (P - 1 if maximize else 1))
        operands = (parameter, gradient, moving, rate, self.number(momentum), dampening, decay)
        return Update(SGD, operands, (target, new), (("maximize", maximize), ("nesterov", towards != 0)))

    # -- the whole ------------------------------------------------------------------------------------------

    def holds(self, update: Update) -> bool:
        """Whether the formula of the op gives what the graph does, on other numbers."""
        types = tuple(None if value is None else self.graph.type(value) for value in update.operands)
        formula = parts(update.op, update.attrs, types, tuple(self.graph.types(update.results)))
        if formula is None:
            return False
        given = {value: hashed("again", value) for value in update.operands if value is not None}
        leaves = [given[value] for value in update.operands if value is not None]
        theirs = evaluated(formula, formula.outputs, dict(zip(formula.inputs, leaves)))
        return evaluated(self.graph, update.results, given) == theirs


class _Change:
    """Puts the ops in."""

    def __init__(self, graph: Graph, found: Sequence[Update]) -> None:
        self.graph, self.found = graph, found
        self.results = {value for update in found for value in update.results}
        self.lost = self._lost()
        self.gone = {n for value in self.lost | self.results if (n := graph.node_of(value)) is not None}

    def place(self, update: Update) -> int:
        """The node in whose place it comes: the last of those that make its results."""
        return max(n for value in update.results if (n := self.graph.node_of(value)) is not None)

    def possible(self, update: Update, kept: set[int]) -> bool:
        """An op makes all its results at once, so nobody may read one before; and what is kept must not go."""
        graph, place = self.graph, self.place(update)
        early = {n for value in update.results for n in graph.uses[value] if n <= place} - self.gone
        return not early and not (kept and kept & self._made_of(update))

    def _made_of(self, update: Update) -> set[int]:
        """What goes for its sake."""
        seen, waiting = set[int](), list(update.results)
        while waiting:
            n = self.graph.node_of(waiting.pop())
            reads = [] if n is None else [v for v in self.graph.nodes[n].inputs if v in self.lost and v not in seen]
            seen.update(reads)
            waiting += reads
        return seen

    def _lost(self) -> set[int]:
        """Values that nobody needs any more."""
        graph, results = self.graph, self.results
        held = {value for update in self.found for value in update.operands if value is not None}
        lost: set[int] = set()
        waiting = [(value, True) for value in results]
        while waiting:
            value, replaced = waiting.pop()
            n = graph.node_of(value)
            if n is None or not computes(graph.nodes[n]) or value in lost:
                continue
            if not replaced:
                needed = (
                    value in held
                    or graph.output_uses[value]
                    or any(
                        r not in lost and r not in results
                        for r in (graph.nodes[m].results[0] for m in graph.uses[value])
                    )
                )
                if needed:
                    continue
                lost.add(value)
            waiting += [(read, False) for read in graph.nodes[n].inputs if read not in results]
        return lost

    def made(self) -> tuple[Graph, dict[int, int]]:
        rewriter = Rewriter(self.graph)
        places = {self.place(update): update for update in self.found}
        for n, node in enumerate(self.graph.nodes):
            if n not in self.gone:
                rewriter.copy(node)
            update = places.get(n)
            if update is not None:
                views = self._views(update, n)
                rewriter.copy(Node(update.op, update.operands, update.results, update.attrs, views, node.source))
        return rewriter.finish(), rewriter.new

    def _views(self, update: Update, place: int) -> tuple[tuple[int, int], ...]:
        """New state takes the place of the old, unless somebody reads that later."""
        flat = [i for i, value in enumerate(update.operands) if value is not None]
        state = [i for i in STATE[update.op] if update.operands[i] is not None]
        if any(self._read_after(value, place) for i in state if (value := update.operands[i]) is not None):
            return ()
        return tuple((r, flat.index(i)) for r, i in enumerate(state))

    def _read_after(self, value: int, place: int) -> bool:
        graph, waiting = self.graph, [value]
        while waiting:
            shown = waiting.pop()
            if graph.output_uses[shown]:
                return True
            for n in graph.uses[shown]:
                if n in self.gone:
                    continue
                if n > place:
                    return True
                node = graph.nodes[n]
                waiting += [node.results[r] for r, o in node.views if node.inputs[o] == shown]
        return False
