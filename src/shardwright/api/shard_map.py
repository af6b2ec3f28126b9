"""`shard_map`: an ordinary function, split over a mesh.  Here for NumPy; `torch_programs` does it for PyTorch.

The function is traced for the shapes it is called with, sharded, lowered and compiled, once for each signature;
then it runs on the virtual mesh.  Arguments and results are plain NumPy arrays: scattering and assembling
happens on the host and is no collective.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SpecError
from ..frontends.numpy import Traced, constrain, is_traced, prepare, trace
from ..frontends.numpy.trees import Array, Tree, flatten, unflatten
from ..ir.graph import Graph
from ..ir.program import Program
from ..run import CompiledProgram, Executed, VirtualEngine, assemble, scatter
from ..spec.mesh import DeviceMesh
from .arguments import check_path, check_time_limit
from .compile import Auto, Learning, Lowered, Said, bind_specs, compile_graph
from .specs import is_spec, spec_text


@dataclass(frozen=True)
class Entry:
    """One signature, compiled."""

    traced: Traced
    lowered: Lowered
    compiled: CompiledProgram


class ShardMapped:
    """What `shard_map` returns: call it, or look at what it became."""

    def __init__(
        self,
        fn: Callable[..., Any],
        mesh: Any,
        in_specs: Any,
        out_specs: Any,
        auto_sharding: bool,
        debug: bool,
        specs: Mapping[str, Any] | None = None,
        engine: Any = None,
        auto: Auto | None = None,
        learning: Learning | None = None,
    ) -> None:
        self.fn = fn
        self._given_mesh, self.specs, self.engine = mesh, specs, engine
        self._torch: Any = None
        self.mesh = DeviceMesh.of(mesh)
        self.in_specs = in_specs
        self.out_specs = out_specs
        self.auto_sharding = auto_sharding
        self.learning = learning or Learning()
        self.auto: Auto | bool = (auto or Auto()) if auto_sharding else False
        self.debug = debug
        self.executed: Executed | None = None
        """What the last call did: collectives, peak of live bytes."""
        self._entries: dict[str, Entry] = {}
        self.__name__ = getattr(fn, "__name__", "fn")
        self.__doc__ = fn.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._of_torch(args, kwargs):
            made = self._torch(*args, **kwargs)
            self.executed = self._torch.executed
            return made
        entry = self.entry(*args, **kwargs)
        leaves = [np.asarray(leaf) for _, leaf in flatten((args, kwargs))[0]]
        program = entry.lowered.program
        arrays = [*leaves, *entry.traced.consts]
        shards = [scatter(array, spec) for array, spec in zip(arrays, entry.lowered.complete.inputs)]
        outputs, self.executed = entry.compiled.run(shards)
        whole = []
        for value, parts in zip(program.outputs, outputs):
            local = program.values[value]
            whole.append(assemble(parts, local.spec, local.type.shape)[()])
        return unflatten(entry.traced.out_tree, whole)

    def entry(self, *args: Any, **kwargs: Any) -> Entry:
        """Compile for these arguments, or find that it was done before."""
        found, tree = flatten((args, kwargs))
        key = repr((tree, [(np.shape(leaf), str(leaf.dtype)) for _, leaf in found]))
        if key not in self._entries:
            self._entries[key] = self._compile(tree, args, kwargs)
        return self._entries[key]

    def _of_torch(self, args: Any, kwargs: Any) -> bool:
        """Whether this is a program of PyTorch; its own class then does the work."""
        if self._torch is None and uses_torch(self.fn, args, kwargs):
            from .torch_programs import TorchMapped

            say = (self.in_specs, self.out_specs, self.specs, self.auto, self.debug, self.engine, self.learning)
            self._torch = TorchMapped(self.fn, self._given_mesh, *say)
        elif self._torch is None and (self.specs or self.engine not in (None, "virtual")):
            raise SpecError(
                "specs= and engine= are for functions of PyTorch tensors, but the arguments are none",
                help="give in_specs; NumPy functions run on the virtual mesh",
            )
        return self._torch is not None

    def _compile(self, tree: Tree, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry:
        traced = trace(self.fn, *args, **kwargs)
        graph = traced.graph
        self.learning.run(graph)
        if self.debug:
            print(f"[shard_map] traced {graph.name}: {len(graph.nodes)} nodes")
        given = spread(self._by_position(args, kwargs), tree, "in_specs")
        given += [None] * (len(graph.inputs) - len(given))  # arrays that the function closes over
        inputs = [graph.values[value] for value in graph.inputs]
        read = bind_specs(given, [v.shape for v in inputs], self.mesh, [v.name for v in inputs])
        asked = spread(self.out_specs, traced.out_tree, "out_specs")
        outputs = [graph.values[value] for value in graph.outputs]
        wanted = bind_specs(asked, [v.shape for v in outputs], self.mesh, [f"output {i}" for i in range(len(outputs))])
        said = Said({graph.inputs[i]: spec for i, spec in read.items()}, wanted)
        lowered = compile_graph(graph, self.mesh, said, auto=self.auto, debug=self.debug)
        if self.debug:
            print(lowered.program)
        return Entry(traced, lowered, VirtualEngine(self.mesh, prepare).compile(lowered.program))

    def _by_position(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return in_specs_by_position(self.in_specs, self.fn, args, kwargs)

    # -- to look at -------------------------------------------------------------------------------------

    def lowered(self, *args: Any, **kwargs: Any) -> Lowered:
        """Every stage of the pipeline for these arguments."""
        if self._of_torch(args, kwargs):
            found: Lowered = self._torch.entry(args, kwargs).lowered
            return found
        return self.entry(*args, **kwargs).lowered

    def program(self, *args: Any, **kwargs: Any) -> Program:
        return self.lowered(*args, **kwargs).program

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        return self.lowered(*args, **kwargs).graph


def in_specs_by_position(specs: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``in_specs`` as a pair that mirrors (args, kwargs)."""
    if specs is None or is_spec(specs):
        return (specs, specs)
    if isinstance(specs, Mapping):
        names = list(inspect.signature(fn).parameters)
        known = {*names[: len(args)], *kwargs}
        for name in specs:
            if name not in known:
                raise SpecError(f"in_specs names {name!r}, which is not among the arguments")
        return tuple(specs.get(name) for name in names[: len(args)]), {k: specs.get(k) for k in kwargs}
    if not isinstance(specs, list | tuple):
        raise SpecError(
            f"in_specs cannot be a {type(specs).__name__}", help="give one spec for each argument, or a dict"
        )
    specs = tuple(specs)
    if len(specs) != len(args):
        raise SpecError(
            f"{len(specs)} in_specs for {len(args)} positional arguments",
            help="give one for each, or a dict by parameter name",
        )
    return specs, dict.fromkeys(kwargs)


def shard_map(
    fn: Callable[..., Any],
    mesh: Any,
    in_specs: Any = None,
    out_specs: Any = None,
    auto_sharding: bool = False,
    debug: bool = False,
    *,
    specs: Mapping[str, Any] | None = None,
    engine: Any = None,
    solver: str = "auto",
    hardware: Any = "virtual",
    time_limit: float | None = None,
    learn: bool = False,
    rule_book: str | Path | None = None,
) -> ShardMapped:
    """Split a function of NumPy arrays or PyTorch tensors over a mesh, or a PyTorch module.

    ``in_specs`` mirrors the arguments (one spec may stand for a whole subtree; None leaves it to propagation),
    ``out_specs`` the results.  An output without one keeps the sharding it has.  ``auto_sharding`` lets the planner
    decide where nothing is said, for this ``hardware``; ``debug`` prints how.  ``solver`` (``"simple"`` is the one of
    four phases), ``time_limit``, ``learn`` and ``rule_book`` are those of `plan`.  For PyTorch, ``specs`` gives
    shardings by names or patterns of parameters (``{"*.q_proj.weight": P("tp", None)}``), and ``engine`` says where it
    runs: ``"virtual"`` in this process, ``"torch"`` on those that ``torchrun`` started (what it does by itself where
    there are several).

    >>> import numpy as np
    >>> from shardwright import P
    >>> f = shard_map(lambda x, w: x @ w, "dp=2, tp=2", in_specs=(P("dp", "tp"), P("tp", None)))
    >>> x, w = np.ones((4, 8)), np.ones((8, 2))
    >>> float(f(x, w).sum()), f.program(x, w).collectives
    (64.0, [Collective(kind='all_reduce', axis='tp', bytes=32)])
    """
    check_time_limit(time_limit)
    check_path(rule_book, "rule_book")
    auto = Auto(solver, hardware, time_limit)
    learning = Learning(learn, rule_book)
    return ShardMapped(fn, mesh, in_specs, out_specs, auto_sharding, debug, specs, engine, auto, learning)


def with_sharding_constraint(x: Any, spec: Any) -> Any:
    """Inside a traced function: from here on the value is sharded like this.  Elsewhere: the value itself."""
    from .sharded import ShardedArray

    if isinstance(x, ShardedArray) or type(x).__name__ == "ShardedTensor":
        return x.redistribute(spec)
    if uses_torch(None, (x,), {}):
        from ..frontends.torch import constrain as constrain_tensor

        return constrain_tensor(x, spec_text(spec))
    return constrain(x, spec_text(spec)) if is_traced(x) else x


def uses_torch(fn: Any, args: Any, kwargs: Any) -> bool:
    """Whether a module or a tensor of PyTorch is at hand; PyTorch is not imported to find out."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(fn, torch.nn.Module):
        return True
    from torch.utils._pytree import tree_leaves

    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, kwargs)))


def spread(specs: Any, tree: Tree, what: str) -> list[Any]:
    """One spec for each array of a tree; a spec in place of a container stands for all that is in it."""
    if specs is None or is_spec(specs) or tree.kind is Array:
        return [specs] * tree.leaves
    if isinstance(specs, Mapping):
        unknown = [key for key in specs if key not in tree.keys]
        if unknown:
            raise SpecError(f"{what} names {unknown[0]!r}, which is not there", rows=[("there is", str(tree.keys))])
        inner = [specs.get(key) for key in tree.keys]
    else:
        inner = list(specs)
        if len(inner) != len(tree.children):
            raise SpecError(f"{what} has {len(inner)} entries where there are {len(tree.children)}")
    return [spec for part, child in zip(inner, tree.children) for spec in spread(part, child, what)]
