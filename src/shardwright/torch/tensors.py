"""`ShardedTensor`: tensors of PyTorch in shards, one op at a time: on the virtual mesh, or one shard on each process.

Every call of PyTorch goes through the same pipeline as a whole program: captured, sharded by its rule, lowered, run.
Calls with the same shapes and shardings share one compiled Program.  What happens is written to `log.log`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..api.arrays.eager import program_by_specs
from ..api.arrays.event_log import log
from ..api.arrays.random import normal_part
from ..errors import SpecError
from ..frontends.failing import telling
from ..frontends.torch import TORCH, Captured, capture, constrain, dtype_name
from ..frontends.torch.private import tree_flatten, tree_unflatten
from ..run.engine import engine_for
from ..run.virtual import held_part
from ..spec.mesh import DeviceMesh
from ..spec.pending import check_pending
from ..spec.sharding import ShardingSpec

__all__ = ["ShardedTensor", "constrain", "filled", "place", "randn", "run_eagerly", "shared_engine"]
_OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "mod", "pow", "rpow", "matmul",
    "rmatmul", "neg", "abs", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "invert", "getitem",
)  # fmt: skip


class ShardedTensor:
    """A tensor in shards; ``shards`` is what the engine holds of it.

    >>> spec = ShardingSpec.parse("[w, _]", DeviceMesh("w=2"))
    >>> x = place(torch.ones(4, 2, dtype=torch.float64), "w=2", spec, "virtual")
    >>> print(x.spec, (x + 1).sum().full_tensor())
    [w, _] tensor(16., dtype=torch.float64)
    """

    def __init__(self, shards: Any, spec: ShardingSpec, shape: Sequence[int], engine: Any, dtype: Any) -> None:
        self.shards = shards
        self.spec = spec
        self.shape = torch.Size(shape)
        self.engine = engine
        self.dtype = dtype

    @property
    def mesh(self) -> DeviceMesh:
        return self.spec.mesh

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __bool__(self) -> bool:
        return bool(self._one("bool"))

    def __float__(self) -> float:
        return float(self._one("float"))

    def __int__(self) -> int:
        return int(self._one("int"))

    def _one(self, what: str) -> Any:
        """The number of a tensor that has one."""
        if self.shape.numel() != 1:
            raise SpecError(
                f"{what}() of a tensor of {self.shape.numel()} elements", rows=[("tensor", repr(self))],
                help="reduce it first, such as (x > 0).all(), or take x.full_tensor()",
            )  # fmt: skip
        return self.full_tensor().item()

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"ShardedTensor({kind}{list(self.shape)}, {self.spec} on {self.mesh}, {self.engine.name})"

    def full_tensor(self) -> Any:
        """The whole tensor, on every process."""
        log.add("gather", "full_tensor", "+".join(map(str, self.spec.sharded_axes)))
        return self.engine.assemble(self.shards, self.spec, self.shape)

    def numpy(self) -> Any:
        return self.full_tensor().cpu().numpy()

    def item(self) -> Any:
        return self.full_tensor().item()

    def redistribute(self, spec: Any) -> ShardedTensor:
        """The same tensor in another sharding."""
        text = str(ShardingSpec.of(spec, self.mesh, self.ndim).closed())
        made = run_eagerly(constrain, (self, text), {})
        assert isinstance(made, ShardedTensor)
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run_eagerly(func, args, kwargs or {})

    @property
    def T(self) -> Any:
        return run_eagerly(torch.t, (self,), {})

    def __getattr__(self, name: str) -> Any:
        """Methods of tensors."""
        method = None if name.startswith("_") else getattr(torch.Tensor, name, None)
        if not callable(method):
            raise AttributeError(f"a ShardedTensor has no {name!r}")
        return lambda *args, **kwargs: run_eagerly(method, (self, *args), kwargs)


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, name)

    def call(self: Any, *args: Any) -> Any:
        return run_eagerly(method, (self, *args), {})

    call.__name__ = name
    return call


for _name in _OPERATORS:
    setattr(ShardedTensor, f"__{_name}__", _operator(f"__{_name}__"))
ShardedTensor.__hash__ = object.__hash__  # type: ignore[method-assign]


@dataclass(frozen=True)
class _Compiled:
    captured: Captured
    inputs: tuple[ShardingSpec, ...]
    program: Any
    compiled: Any


_compiled: dict[Any, _Compiled] = {}


def run_eagerly(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One call on sharded tensors; plain tensors among the arguments are on every device already."""
    leaves, tree = tree_flatten((tuple(args), kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, ShardedTensor | torch.Tensor)]
    first = next(leaf for leaf in tensors if isinstance(leaf, ShardedTensor))
    engine, mesh = first.engine, first.mesh
    specs = [_spec_of(leaf, first) for leaf in tensors]
    name = str(getattr(func, "__name__", func))
    types = tuple((tuple(leaf.shape), leaf.dtype) for leaf in tensors)
    statics = tuple(repr(leaf) for leaf in leaves if not isinstance(leaf, ShardedTensor | torch.Tensor))
    key = (func, str(tree), types, statics, tuple(specs), id(engine))
    entry = _compiled.get(key)
    if entry is None:
        entry = _compiled[key] = _compile(func, leaves, tree, specs, mesh, engine)
    log.add("op", name)
    given = [
        leaf.shards if isinstance(leaf, ShardedTensor) else engine.scatter(leaf.detach(), spec)
        for leaf, spec in zip(tensors, entry.inputs)
    ]
    given += [engine.scatter(c, spec) for c, spec in zip(entry.captured.consts, entry.inputs[len(tensors) :])]
    outputs, executed = entry.compiled.run(given)
    for collective in executed.collectives:
        log.add("collective", collective.kind, collective.axis, collective.bytes)
    made = []
    for value, shards in zip(entry.program.outputs, outputs):
        local = entry.program.values[value]
        dtype = shards[0].dtype if isinstance(shards, list) else shards.dtype
        made.append(ShardedTensor(shards, local.spec, local.type.shape, engine, dtype))
    return entry.captured.result(made)


def _spec_of(leaf: Any, first: ShardedTensor) -> ShardingSpec:
    if not isinstance(leaf, ShardedTensor):
        return ShardingSpec.replicate(first.mesh, leaf.dim())
    if leaf.mesh != first.mesh or leaf.engine is not first.engine:
        raise SpecError(
            "tensors of two meshes or engines meet in one call",
            rows=[("one", repr(first)), ("other", repr(leaf))],
            help="make both with the same mesh and engine",
        )
    return leaf.spec


def _compile(
    func: Callable[..., Any], leaves: Sequence[Any], tree: Any, specs: Sequence[Any], mesh: DeviceMesh, engine: Any
) -> _Compiled:
    sharded = [isinstance(leaf, ShardedTensor | torch.Tensor) for leaf in leaves]

    def call(*tensors: Any) -> Any:
        rest = iter(tensors)
        filled = [next(rest) if there else leaf for leaf, there in zip(leaves, sharded)]
        given, options = tree_unflatten(filled, tree)
        return func(*given, **options)

    call.__name__ = str(getattr(func, "__name__", "call"))
    stand_ins = [
        torch.empty(tuple(leaf.shape), dtype=leaf.dtype, device="meta")
        for leaf in leaves
        if isinstance(leaf, ShardedTensor | torch.Tensor)
    ]
    with torch.no_grad(), telling(call, tuple(stand_ins), {}, asked=True):
        captured = capture(call, *stand_ins)
    program = program_by_specs(captured.graph, mesh, specs)
    inputs = tuple(program.values[value].spec for value in program.inputs)
    return _Compiled(captured, inputs, program, engine.compile(program))


# -- making tensors -------------------------------------------------------------------------------------

_engines: dict[Any, Any] = {}


def shared_engine(mesh: Any, engine: Any) -> Any:
    """One engine for a mesh: tensors that meet must be of the same."""
    if not isinstance(engine, str):
        return engine
    key = (DeviceMesh.of(mesh), engine)
    if key not in _engines:
        _engines[key] = engine_for(mesh, TORCH, engine)
    return _engines[key]


def _made(part: Callable[[int], Any], spec: ShardingSpec, shape: Sequence[int], engine: Any, dtype: Any) -> Any:
    """The shards that this process holds: all of them on the virtual mesh, else its own."""
    check_pending(spec, dtype_name(dtype))

    def held(position: int) -> Any:
        return held_part(part(position), spec, position, TORCH.arrays)

    if engine.name == "virtual":
        return ShardedTensor([held(p) for p in spec.mesh], spec, shape, engine, dtype)
    return ShardedTensor(held(engine.position).to(engine.device), spec, shape, engine, dtype)


def randn(shape: Sequence[int], mesh: Any, spec: ShardingSpec, seed: int, dtype: Any, engine: Any) -> ShardedTensor:
    """The numbers that NumPy's sharded arrays have, on any mesh and engine."""
    kind = _dtype(dtype)

    def part(position: int) -> Any:
        return torch.from_numpy(normal_part(shape, spec.local_slices(shape, position), seed)).to(kind)

    return _made(part, spec, shape, shared_engine(mesh, engine), kind)  # type: ignore[no-any-return]


def filled(
    name: str, make: Callable[..., Any], shape: Sequence[int], mesh: Any, spec: ShardingSpec, dtype: Any, engine: Any
) -> ShardedTensor:
    kind = _dtype(dtype)
    fill: Any = {"zeros": torch.zeros, "ones": torch.ones}.get(name, make)
    held = shared_engine(mesh, engine)
    return _made(lambda p: fill(spec.local_shape(shape, p), dtype=kind), spec, shape, held, kind)  # type: ignore[no-any-return]


def place(array: Any, mesh: Any, spec: ShardingSpec, engine: Any) -> ShardedTensor:
    """A tensor that every process has, in shards."""
    whole = torch.as_tensor(array)
    held = shared_engine(mesh, engine)
    return ShardedTensor(held.scatter(whole, spec), spec, whole.shape, held, whole.dtype)


def _dtype(dtype: Any) -> Any:
    """PyTorch's element type for what NumPy's users write."""
    if isinstance(dtype, torch.dtype):
        return dtype
    import numpy as np

    return torch.from_numpy(np.empty(0, dtype)).dtype
