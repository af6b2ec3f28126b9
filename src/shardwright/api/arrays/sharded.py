"""`ShardedArray`: arrays that live in shards on a virtual mesh, and NumPy on them one op at a time.

Every NumPy call goes through the same pipeline as a whole program: traced, sharded by its rule, lowered, run.
Calls with the same shapes and shardings share one compiled Program.  What happens is written to `log.log`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from ...errors import SpecError, front
from ...frontends.base import frontends
from ...frontends.failing import telling
from ...frontends.numpy import ShapeDtype, Traced, constrain, is_traced, prepare, trace
from ...frontends.numpy.arrays import NumpyArrays
from ...frontends.numpy.trees import Tree, flatten, unflatten
from ...plans.requests import spec_text
from ...run import CompiledProgram, VirtualEngine, assemble, pended, scatter
from ...spec.mesh import DeviceMesh
from ...spec.sharding import DimSpec, ShardingSpec
from .eager import program_by_specs
from .event_log import log
from .random import normal_part

Array = NDArray[Any]

_HOST = NumpyArrays()


@dataclass(frozen=True)
class _Compiled:
    traced: Traced
    inputs: tuple[ShardingSpec, ...]
    compiled: CompiledProgram


_compiled: dict[str, _Compiled] = {}


class ShardedArray(NDArrayOperatorsMixin):
    """A tensor in shards, one for each position of its mesh.

    >>> x = ones((4, 2), mesh="w=2")
    >>> print(x.spec, (x + 1).sum().numpy())
    [w, _] 16.0
    """

    __array_priority__ = 1000

    def __init__(self, shards: Sequence[Array], spec: ShardingSpec, shape: Sequence[int]) -> None:
        self.shards = list(shards)
        self.spec = spec
        self.shape = tuple(shape)
        self.dtype = self.shards[0].dtype

    @property
    def mesh(self) -> DeviceMesh:
        return self.spec.mesh

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self._one("bool"))

    def __float__(self) -> float:
        return float(self._one("float"))

    def __int__(self) -> int:
        return int(self._one("int"))

    def _one(self, what: str) -> Any:
        """The number of an array that has one."""
        if self.size != 1:
            raise SpecError(
                f"{what}() of an array of {self.size} elements", rows=[("array", repr(self))],
                help="reduce it first, such as (x > 0).all(), or take x.numpy()",
            )  # fmt: skip
        return self.numpy().item()

    def __repr__(self) -> str:
        return f"ShardedArray({self.dtype}{list(self.shape)}, {self.spec} on {self.mesh})"

    # -- to and from the host ---------------------------------------------------------------------------

    def numpy(self) -> Array:
        """The whole tensor, gathered on the host."""
        log.add("gather", "numpy", "+".join(map(str, self.spec.sharded_axes)), sum(s.nbytes for s in self.shards))
        whole: Array = assemble(self.shards, self.spec, self.shape)
        return whole[()]

    full_tensor = numpy

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.numpy(), dtype=dtype)

    def redistribute(self, spec: Any) -> ShardedArray:
        """The same tensor in another sharding."""
        text = str(ShardingSpec.of(spec, self.mesh, self.ndim).closed())
        result = run_eagerly(constrain, (self, text), {})
        assert isinstance(result, ShardedArray)
        return result

    # -- NumPy ------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return run_eagerly(ufunc if method == "__call__" else getattr(ufunc, method), args, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return run_eagerly(func, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        return run_eagerly(index, (self, _Key(key)), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        raise SpecError(
            "arrays in shards cannot be written to", rows=[("array", repr(self))],
            help="make a new one: np.where(condition, value, x), np.concatenate([...])",
        )  # fmt: skip

    @property
    def T(self) -> Any:
        return np.transpose(self)

    def __getattr__(self, name: str) -> Any:
        """Methods of arrays: the NumPy function of that name."""
        if name.startswith("_") or name not in _METHODS:
            raise AttributeError(f"a ShardedArray has no {name!r}")
        return lambda *args, **kwargs: run_eagerly(_Method(name), (self, *args), kwargs)


_METHODS = frozenset(
    [
        "sum",
        "mean",
        "max",
        "min",
        "prod",
        "var",
        "std",
        "any",
        "all",
        "argmax",
        "argmin",
        "reshape",
        "ravel",
        "flatten",
        "transpose",
        "swapaxes",
        "squeeze",
        "astype",
        "cumsum",
        "cumprod",
        "argsort",
        "take",
        "clip",
        "dot",
        "round",
        "conj",
        "repeat",
        "copy",
    ]
)


@dataclass(frozen=True)
class _Method:
    """Calls a method of the first argument; equal ones are the same for the cache."""

    name: str

    def __call__(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(array, self.name)(*args, **kwargs)


class _Key:
    """An index, kept as it is: slices are no leaves that a tree could compare."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def __repr__(self) -> str:
        return repr(self.key)


def index(array: Any, key: _Key) -> Any:
    return array[key.key]


def run_eagerly(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One NumPy call on sharded arrays; host arrays among the arguments are broadcast."""
    found, tree = flatten((tuple(args), kwargs))
    leaves = [leaf for _, leaf in found]
    mesh = next(leaf.mesh for leaf in leaves if isinstance(leaf, ShardedArray))
    specs = [_spec_of(leaf, mesh) for leaf in leaves]
    name = str(getattr(func, "name", None) or getattr(func, "__name__", func))
    types = [(tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves]
    key = repr(
        (getattr(func, "__module__", ""), name, str(func), tree, types, [str(spec) for spec in specs], str(mesh))
    )
    entry = _compiled.get(key)
    if entry is None:
        entry = _compiled[key] = _compile(func, tree, leaves, specs, mesh)
    shards = []
    for leaf, spec in zip(leaves, entry.inputs):
        if isinstance(leaf, ShardedArray):
            shards.append(leaf.shards)
        else:
            array = np.asarray(leaf)
            if array.ndim:
                log.add("broadcast", f"host array {list(array.shape)}", "", array.nbytes)
            shards.append(scatter(array, spec))
    shards += [scatter(const, spec) for const, spec in zip(entry.traced.consts, entry.inputs[len(leaves) :])]
    log.add("op", name)
    outputs, executed = entry.compiled.run(shards)
    for collective in executed.collectives:
        log.add("collective", collective.kind, collective.axis, collective.bytes)
    program = entry.compiled.program
    made = [
        ShardedArray(parts, program.values[value].spec, program.values[value].type.shape)
        for value, parts in zip(program.outputs, outputs)
    ]
    return unflatten(entry.traced.out_tree, made)


def _spec_of(leaf: Any, mesh: DeviceMesh) -> ShardingSpec:
    if not isinstance(leaf, ShardedArray):
        return ShardingSpec.replicate(mesh, len(leaf.shape))
    if leaf.mesh != mesh:
        raise SpecError(
            "arrays of two meshes meet in one call",
            rows=[("one", str(mesh)), ("other", str(leaf.mesh))],
            help="bring one to the other's mesh: sw.asarray(x.numpy(), mesh=...)",
        )
    return leaf.spec


def _compile(
    func: Callable[..., Any], tree: Tree, leaves: Sequence[Any], specs: Sequence[ShardingSpec], mesh: DeviceMesh
) -> _Compiled:
    def call(*arrays: Any) -> Any:
        args, kwargs = unflatten(tree, arrays)
        return func(*args, **kwargs)

    call.__name__ = str(getattr(func, "name", None) or getattr(func, "__name__", "call"))
    stand_ins = [ShapeDtype(tuple(leaf.shape), leaf.dtype) for leaf in leaves]
    with telling(call, tuple(stand_ins), {}, asked=True):
        traced = trace(call, *stand_ins)
    program = program_by_specs(traced.graph, mesh, specs)
    inputs = tuple(program.values[value].spec for value in program.inputs)
    return _Compiled(traced, inputs, VirtualEngine(mesh, prepare).compile(program))


# -- making arrays --------------------------------------------------------------------------------------


def default_spec(mesh: DeviceMesh, shape: Sequence[int]) -> ShardingSpec:
    """Cut the first dim that the whole mesh divides; if there is none, keep a copy everywhere."""
    dims = [DimSpec()] * len(shape)
    for d, size in enumerate(shape):
        if size and size % mesh.size == 0:
            dims[d] = DimSpec(mesh.axes)
            break
    return ShardingSpec(mesh, dims)


def _place(mesh: Any, shape: Sequence[int], spec: Any) -> ShardingSpec:
    mesh = DeviceMesh.of(mesh)
    return default_spec(mesh, shape) if spec is None else ShardingSpec.of(spec, mesh, len(shape)).closed()


@front
def asarray(array: Any, *, mesh: Any, spec: Any = None, engine: Any = None) -> Any:
    """Put a host array on the mesh, sharded on the first dividing dim unless told.

    With ``engine="torch"`` (and for PyTorch tensors) it becomes a `ShardedTensor`, on real processes under torchrun.
    """
    if engine is not None or _framework_of(array) is not None:
        door = _door(_framework_of(array) or engine)
        return door.place(array, mesh, _place(mesh, array.shape, spec), engine or "virtual")
    whole = _numbers(array)
    where = _place(mesh, whole.shape, spec)
    event = "broadcast" if where.is_replicated else "scatter"
    log.add(event, f"host array {list(whole.shape)}", "+".join(map(str, where.sharded_axes)), whole.nbytes)
    return ShardedArray(scatter(whole, where), where, whole.shape)


def _numbers(array: Any) -> Array:
    """A host array of numbers or truth values."""
    try:
        whole = np.asarray(array)
        if whole.dtype.kind in "biufc":
            return whole
        said = f"elements are {whole.dtype}"
    except ValueError as error:
        said = str(error).partition(". ")[0]
    raise SpecError(
        f"asarray takes an array of numbers, not a {type(array).__name__}", rows=[("NumPy", said)],
        help="give np.asarray([...])",
    )  # fmt: skip


@front
def randn(*shape: Any, mesh: Any, spec: Any = None, seed: int = 0, dtype: Any = np.float64, engine: Any = None) -> Any:
    """Standard normal numbers that depend on the seed and the global index alone.

    ``engine="torch"`` makes a `ShardedTensor` of PyTorch tensors: on the processes that torchrun started, each of which
    draws its own shard.
    """
    size = _shape(shape)
    if type(seed) is not int:
        raise SpecError(f"seed= takes a whole number, not {seed!r}")
    dtype = _element_type(dtype, engine)
    where = _place(mesh, size, spec)
    log.add("create", f"randn {list(size)}", "+".join(map(str, where.sharded_axes)))
    if engine is not None:
        return _door(engine).randn(size, mesh, where, seed, dtype, engine)
    shards = [normal_part(size, where.local_slices(size, p), seed).astype(dtype) for p in where.mesh]
    return ShardedArray(pended(shards, where, _HOST), where, size)


@front
def zeros(*shape: Any, mesh: Any, spec: Any = None, dtype: Any = np.float64, engine: Any = None) -> Any:
    return _filled("zeros", np.zeros, _shape(shape), mesh, spec, dtype, engine)


@front
def ones(*shape: Any, mesh: Any, spec: Any = None, dtype: Any = np.float64, engine: Any = None) -> Any:
    return _filled("ones", np.ones, _shape(shape), mesh, spec, dtype, engine)


def _filled(
    name: str, make: Callable[..., Array], shape: tuple[int, ...], mesh: Any, spec: Any, dtype: Any, engine: Any
) -> Any:
    dtype = _element_type(dtype, engine)
    where = _place(mesh, shape, spec)
    log.add("create", f"{name} {list(shape)}", "+".join(map(str, where.sharded_axes)))
    if engine is not None:
        return _door(engine).filled(name, make, shape, mesh, where, dtype, engine)
    shards = [make(where.local_shape(shape, p), dtype) for p in where.mesh]
    return ShardedArray(pended(shards, where, _HOST), where, shape)


def _element_type(dtype: Any, engine: Any) -> Any:
    """NumPy's; what an engine of another framework takes it says itself."""
    return ShapeDtype((), dtype).dtype if engine is None else dtype


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    listed = len(shape) == 1 and isinstance(shape[0], list | tuple)
    sizes = tuple(shape[0]) if listed else tuple(shape)
    if not all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise SpecError(
            f"{shape[0] if len(shape) == 1 else shape!r} is no shape", help="write the sizes: randn(128, 64)"
        )
    return tuple(map(int, sizes))


@front
def with_sharding_constraint(x: Any, spec: Any) -> Any:
    """Inside a traced function: from here on the value is sharded like this.  Elsewhere: the value itself."""
    if hasattr(x, "redistribute") and hasattr(x, "shards"):
        return x.redistribute(spec)
    if is_traced(x):
        return constrain(x, spec_text(spec))
    framework = _framework_of(x)
    return x if framework is None else _door(framework).constrain(x, spec_text(spec))


def _framework_of(array: Any) -> str | None:
    """The framework, other than NumPy, that an array is of."""
    name = type(array).__module__.split(".")[0]
    return name if any(name == frontend.__name__.rpartition(".")[2] != "numpy" for frontend in frontends()) else None


def _door(name: Any) -> Any:
    """What makes arrays in shards of another framework: the module ``tensors`` behind its door.

    An engine's name is that of the framework whose processes it runs on; "virtual" and engines of one's own, on which
    any framework runs, take PyTorch's tensors.
    """
    here = __name__.partition(".")[0]
    known = isinstance(name, str) and importlib.util.find_spec(f"{here}.{name}") is not None
    return importlib.import_module(f"{here}.{name if known else 'torch'}.tensors")
