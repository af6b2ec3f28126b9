"""Whether a Program computes what its Graph does: both are run over prime fields and compared exactly.

Nothing is rounded, so there is no tolerance that a small mistake could hide in, and a Program that sums in another
order than its Graph is still equal to it.  Two different programs agree on an element by chance about once in a
million, and then the next round, with another prime and other functions, tells them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import ShardwrightError, VerifyError
from ..ir.graph import Graph
from ..ir.program import Local, Program
from ..run.virtual import VirtualEngine
from ..spec.axes import AxisRef
from ..spec.collective import COLLECTIVES
from .fields import pointwise
from .fields.field import FieldArrays, apart, prepare_in
from .fields.handlers import MEANINGS, handler_of, type_change
from .fields.modular import INFINITE_HEIGHT, PRIMES, Field, FieldArray
from .lemmas import Lemma, check_ends, whole_lemma
from .structure import add_instruction

Shards = list[FieldArray]
CHOICES = 24
"""Choices that are looked at, at least: as unlikely to be right by chance as two residues are to be equal."""
COMPOSITE = (MEANINGS["parts"],)
"""What computes ops by their parts."""
NO_CHOICE = frozenset(
    {*pointwise.RISING, *pointwise.IDENTITY, "add", "subtract", "multiply", "divide", "negative", "matmul", "einsum"}
    | {"reduce_sum", "reshape", "transpose", "broadcast_to", *COLLECTIVES, "core.slice", "core.to_partial"}
)
"""Common ops that choose nothing."""


def check_identity(graph: Graph, program: Program, *, seed: int = 0, rounds: int = 2) -> Program:
    """Return the program, or say which output and element differ, and which instruction is the first to be wrong.

    Both are run as they are, whole; `prove` does the same in lemmas and at small sizes.
    """
    check_ends(graph, program)
    check_lemma(whole_lemma(graph, program), seed=seed, rounds=rounds, strict=False)
    return program


def check_lemma(
    lemma: Lemma, *, seed: int = 0, rounds: int = 2, primes: Sequence[int] = PRIMES, strict: bool = True
) -> None:
    """Run both sides of a lemma over fields, on random tensors in random parts, and compare.

    An element that is chosen (by a mask, an index, an order) is the right one by chance half of the time, so few of
    them are looked at more often.  Without ``strict`` sums pass through any change of element type.
    """
    if any(op not in NO_CHOICE for op in lemma.ops):
        fewest = min((max(lemma.graph.values[v].type.elements, 1) for v in lemma.graph.outputs), default=1)
        rounds = max(rounds, -(-CHOICES // fewest))
    linear = _linear_casts(lemma.program) if strict else None
    for turn in range(rounds):
        _Round(lemma, seed, turn, primes, linear).check()


def _linear_casts(program: Program) -> frozenset[Any] | None:
    """Changes of element type that the Program makes of something pending, or that leave something pending.

    None, which is all, where an op that is made of parts does so: these change types among themselves.
    """
    found = set()
    for instr in program.instrs:
        reads, made = list(program.locals_of(instr.inputs)), list(program.locals_of(instr.results))
        if not any(local.spec.partial for local in (*reads, *made)):
            continue
        if handler_of(instr.op) in COMPOSITE:
            return None
        before = {local.type.dtype for local in reads}
        for local in made:
            change = type_change(instr.op, before, local.type.dtype)
            # A reduction to a product in parts: these would have a factor each.
            begins = _multiplies(local) and not any(map(_multiplies, reads))
            found.add(("prod", change) if begins else change)
    return frozenset(found)


def _multiplies(local: Local) -> bool:
    return any(kind == "prod" for _, kind in local.spec.partial)


@dataclass(frozen=True, slots=True)
class _Difference:
    """An element of a value that is not what it should be."""

    device: int
    index: tuple[int, ...]
    """In the whole tensor."""
    is_: float
    should: float

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.index))}] on device {self.device}: {self.is_:.0f}, not {self.should:.0f}"


def _cannot(error: Exception) -> VerifyError:
    facts = error.fact if isinstance(error, ShardwrightError) else f"{type(error).__name__}: {error}"
    return VerifyError(f"cannot be run: {facts}")


def _infinite(height: Any) -> Any:
    """Which infinity stands there, if any: as a residue all are 0."""
    return np.where(np.abs(height) >= INFINITE_HEIGHT / 2, np.sign(height), 0.0)


class _Round:
    """One prime, one key, one set of random inputs."""

    def __init__(
        self, lemma: Lemma, seed: int, turn: int, primes: Sequence[int], linear: frozenset[Any] | None
    ) -> None:
        self.lemma = lemma
        self.graph = lemma.graph
        self.program = lemma.program
        self.seed = (seed, turn)
        key = seed * 1000003 + turn
        self.field = Field(primes[turn % len(primes)], key)
        self.field.linear_casts = linear
        self.arrays = FieldArrays(self.field)
        self.prepare = prepare_in(self.field)
        self.mesh = lemma.program.mesh
        self.tells_infinities = linear is not None or len(lemma.graph.nodes) <= 4
        """Not in a deep program, where heights may have grown beyond bounds by themselves."""

    def check(self) -> None:
        whole = self.evaluate()
        env = self.run(whole)
        for i, (value, local) in enumerate(zip(self.graph.outputs, self.program.outputs)):
            found = self.difference(self.program.values[local], env[local], whole[value])
            if found is not None:
                raise self.blame(i, found, env, whole)

    # -- running both -----------------------------------------------------------------------------------

    def evaluate(self) -> list[Any]:
        """Every value of the graph, on one device."""
        graph = self.graph
        whole: list[Any] = [None] * len(graph.values)
        for i, value in enumerate(graph.inputs):
            generator = np.random.default_rng([*self.seed, i])
            type = graph.type(value)
            whole[value] = replace(self.field.random(generator, type.shape), dtype=type.dtype)
        for n, node in enumerate(graph.nodes):
            operands = [
                [whole[v] for v in operand]
                if isinstance(operand, tuple)
                else None
                if operand is None
                else whole[operand]
                for operand in node.operands
            ]
            types = graph.types(node.results)
            try:
                made = self.prepare(node.op, dict(node.attrs), types)(operands)
            except Exception as error:
                raise VerifyError(
                    f"node {n} of the graph cannot be computed: {error}", rows=[("op", node.op)]
                ) from error
            for value, type, array in zip(node.results, types, made, strict=True):
                if array.shape != type.shape:
                    rows = [("op", node.op), ("computed", str(list(array.shape))), ("said", str(type))]
                    raise VerifyError(f"node {n} of the graph has a result of another shape than it says", rows=rows)
                whole[value] = array
        return whole

    def run(self, whole: Sequence[Any]) -> list[Shards]:
        """Every value of the program, on every device."""
        program = self.program
        env: list[Shards] = [[] for _ in program.values]
        for i, (place, local) in enumerate(zip(self.lemma.copy_of, program.inputs)):
            env[local] = self.scatter(whole[self.graph.inputs[place]], program.values[local], i)
        try:
            steps = VirtualEngine(self.mesh, self.prepare, self.arrays).compile(program).steps
        except Exception as error:
            raise _cannot(error) from error
        for n, step in enumerate(steps):
            try:
                for value, shards in zip(program.instrs[n].results, step(env)):
                    env[value] = list(shards)
                    self.check_shapes(program.values[value], env[value])
            except VerifyError as error:
                raise add_instruction(error, program, n) from None
            except Exception as error:
                raise add_instruction(_cannot(error), program, n) from error
        return env

    def scatter(self, array: FieldArray, local: Local, input: int) -> Shards:
        """The shards of an input; one that is pending comes in random parts that combine to it."""
        spec = local.spec
        shards = []
        for position in self.mesh:
            cut = spec.local_slices(array.shape, position)
            shards.append(array.map(lambda part, cut=cut: part[cut]))  # type: ignore[misc]
        # What is combined last is taken apart first, alike wherever only axes that are still to come differ.
        for n, (axis, kind) in reversed(list(enumerate(spec.partial))):
            inner = [other for other, _ in spec.partial[: n + 1]]
            for group in self.mesh.groups([axis]):
                where = self.outside(group[0], inner)
                generator = np.random.default_rng([*self.seed, 7, input, n, *where])
                parts = apart(self.field, kind, shards[group[0]], len(group), generator)
                for position, part in zip(group, parts):
                    shards[position] = replace(part, dtype=array.dtype)
        return shards

    def outside(self, position: int, axes: Sequence[AxisRef]) -> list[int]:
        """Where a device stands, but for these axes."""
        found = self.mesh.coordinates(position)
        for axis in axes:
            step = axis.full // axis.end
            found[axis.name] -= self.mesh.index_along(position, axis) * step
        return list(found.values())

    def check_shapes(self, local: Local, shards: Shards) -> None:
        if len(shards) != self.mesh.size:
            raise VerifyError(f"{len(shards)} of {self.mesh.size} devices hold a shard of %{local.name}")
        for position, shard in enumerate(shards):
            shape = local.local_shape(position)
            if shard.shape != shape:
                rows = [("holds", str(list(shard.shape))), ("should", str(list(shape)))]
                raise VerifyError(f"device {position} holds a shard of %{local.name} that has another shape", rows=rows)

    # -- comparing --------------------------------------------------------------------------------------

    def difference(self, local: Local, shards: Shards, whole: FieldArray) -> _Difference | None:
        """Where a value first differs from the one that it is a copy of, on any device, replicas included."""
        shards = self.combined(local, shards)
        for position, shard in enumerate(shards):
            cut = local.spec.local_slices(whole.shape, position)
            should = whole.residue[cut]
            wrong = shard.residue != should
            if self.tells_infinities:
                wrong |= _infinite(shard.height) != _infinite(whole.height[cut])
            if not wrong.any():
                continue
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            index = tuple(part.start + i for part, i in zip(cut, at))
            return _Difference(position, index, float(shard.residue[at]), float(should[at]))
        return None

    def combined(self, local: Local, shards: Shards) -> Shards:
        """What a pending value will be."""
        for axis, kind in local.spec.partial:
            made = list(shards)
            for group in self.mesh.groups([axis]):
                total = self.arrays.combine(kind, [shards[position] for position in group])
                for position in group:
                    made[position] = total
            shards = made
        return shards

    def origin(self, n: int, result: int) -> int | None:
        """The value of the graph that a result should equal: what it says, or what its node makes."""
        instr = self.program.instrs[n]
        local = self.program.values[instr.results[result]]
        if local.origin is not None or instr.node is None:
            return local.origin
        made = self.graph.nodes[instr.node].results
        same = len(made) == len(instr.results) and self.graph.type(made[result]) == local.type
        return made[result] if same else None

    def blame(self, output: int, found: _Difference, env: Sequence[Shards], whole: Sequence[Any]) -> VerifyError:
        """Name the first instruction whose value is not what the graph says."""
        name = self.graph.values[self.graph.outputs[output]].name
        error = VerifyError(f"output {output} differs from %{name} of the graph")
        error.add("element", f"{found} (modulo {self.field.p})")
        for n, instr in enumerate(self.program.instrs):
            for r, value in enumerate(instr.results):
                origin, local = self.origin(n, r), self.program.values[value]
                wrong = None if origin is None else self.difference(local, env[value], whole[origin])
                if wrong is None:
                    continue
                add_instruction(error, self.program, n).add("wrong first", f"%{local.name}{wrong}")
                if handler_of(instr.op) is None:
                    error.help = (
                        f"nothing is known of what {instr.op} computes, so it is right only on whole tensors; "
                        "give its record a meaning"
                    )
                return error
        return error.add("wrong first", "no instruction: another value is returned, or in another sharding")
