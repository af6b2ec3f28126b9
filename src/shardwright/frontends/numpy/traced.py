"""`trace`: run a NumPy function on tracers, and keep what it did as a `Graph`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import TraceError, front
from ...ir.core import CONSTRAINT
from ...ir.graph import Graph
from ...spec.sharding import Shape
from ..base import CONSTANT, DATA, FORWARD, Input, Leaf, Source
from ..failing import check_call, telling
from .aliasing import view_of
from .compute import run_graph
from .dtypes import Array, DType, tensor_type
from .emit import lift, node
from .framework import NUMPY
from .recorder import Recorder, check_current, recording
from .tracer import Tracer
from .trees import Path, Tree, flatten, match, path_name, unflatten


@dataclass(frozen=True)
class Traced(Source):
    """A captured function.

    The graph's inputs are the arrays among the arguments, in order, then ``consts``: arrays that the function closed
    over.  ``in_tree`` is the shape of ``(args, kwargs)``, ``out_tree`` that of the result; what is no array stands in
    the trees as it was.
    """

    graph: Graph
    in_tree: Tree
    out_tree: Tree
    names: tuple[str, ...]
    """The inputs that are arguments: ``x``, ``params.w1``, ``layers.0.w``."""
    consts: tuple[Array, ...] = ()
    const_names: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    """Arguments that the function writes to; a replay leaves the caller's arrays as they are."""
    paths: tuple[str, ...] = ()
    """How the arguments are called, by position."""

    def flatten(self, *args: Any, **kwargs: Any) -> list[Array]:
        """The graph's inputs for these arguments, which must be of the kind that was traced."""

        def name(path: Path) -> str:
            return path_name(_named(self.paths, path)) or "the argument list"

        leaves = [np.asarray(leaf) for leaf in match(self.in_tree, (args, kwargs), name)]
        for value, leaf in zip(self.graph.inputs, leaves):
            given, expected = tensor_type(leaf.shape, leaf.dtype), self.graph.type(value)
            if given != expected:
                raise TraceError(
                    f"{self.graph.values[value].name} is {given}, but the function was traced for {expected}",
                    help="trace the function again for these arguments",
                )
        return [*leaves, *self.consts]

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """The function's result from the graph's outputs."""
        return unflatten(self.out_tree, outputs)

    fn: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    framework = NUMPY

    @property
    def phases(self) -> tuple[str, ...]:  # type: ignore[override]
        return (FORWARD,) * len(self.graph.nodes)

    @property
    def inputs_are(self) -> tuple[Input, ...]:
        data = [Input(name, DATA) for name in self.names]
        return (*data, *(Input(name, CONSTANT) for name in self.const_names))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        return self.flatten(*args, **kwargs)[: len(self.names)]

    def result(self, outputs: Sequence[Any]) -> Any:
        return self.unflatten([array[()] for array in outputs])

    def result_tree(self) -> Any:
        return unflatten(self.out_tree, [Leaf()] * self.out_tree.leaves)

    def read(self, slot: int) -> Any:
        return self.consts[slot]

    def write(self, slot: int, array: Any) -> None:
        raise TraceError("a traced function has no state to write")

    def recapture(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Traced:
        assert self.fn is not None
        return trace(self.fn, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate on whole arrays."""
        return self.unflatten(run_graph(self.graph, self.flatten(*args, **kwargs)))


@front
def trace(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Traced:
    """Run ``fn`` on tracers in place of the arrays among its arguments.

    Arguments are arrays, anything with a shape and a dtype, or dicts, lists, tuples and dataclasses of them; whatever
    else stands in them is part of the program.

    >>> from shardwright.frontends.numpy import ShapeDtype
    >>> def layer(x, params):
    ...     return np.maximum(x @ params["w"] + params["b"], 0)
    >>> params = {"w": ShapeDtype((16, 4), np.float32), "b": ShapeDtype((4,), np.float32)}
    >>> traced = trace(layer, ShapeDtype((8, 16), np.float32), params)
    >>> traced.names
    ('x', 'params.w', 'params.b')
    >>> [node.op for node in traced.graph.nodes]
    ['matmul', 'add', 'full', 'maximum']
    """
    check_call(fn, args, kwargs)
    with telling(fn, args, kwargs, asked=inspect.isbuiltin(fn)):
        return _traced(fn, args, kwargs)


def _traced(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    recorder = Recorder(_name(fn))
    leaves, in_tree = flatten((args, kwargs))
    paths = _parameters(fn, args, kwargs)
    arguments: list[Tracer] = []
    names: list[str] = []
    for path, leaf in leaves:
        if isinstance(leaf, np.ma.MaskedArray | np.matrix):
            raise TraceError(
                f"{path_name(_named(paths, path))} is a {type(leaf).__name__}, whose operators mean other things",
                help="give a plain array: np.asarray(x), or x.filled(0) of one with a mask",
            )
        shape, dtype = _shape(leaf), _dtype(leaf)
        names.append(path_name(_named(paths, path)))
        value = recorder.input(tensor_type(shape, dtype), names[-1])
        arguments.append(Tracer(recorder, value, shape, dtype, isinstance(leaf, np.generic)))
    traced_args, traced_kwargs = unflatten(in_tree, arguments)
    with recording(recorder):
        result = fn(*traced_args, **traced_kwargs)
        if isinstance(result, Iterator | Awaitable):
            getattr(result, "close", lambda: None)()  # else a coroutine warns that nobody awaited it
            raise TraceError(
                f"a traced function returned a {type(result).__name__}, which has yet to run", help=_RETURN
            )
        outputs, out_tree = flatten(result)
        values = [_output(leaf) for _, leaf in outputs]
    graph = recorder.finish(values)
    inputs = [graph.values[value].name for value in graph.inputs]
    return Traced(
        graph,
        in_tree,
        out_tree,
        tuple(inputs[: len(leaves)]),
        tuple(array for _, array in recorder.consts),
        tuple(inputs[len(leaves) :]),
        tuple(name for name, argument in zip(inputs, arguments) if argument.version),
        paths,
        fn,
    )


def constrain(x: Any, text: Any) -> Any:
    """Ask for a sharding of a value inside a traced function; a plain array is returned as it is.

    >>> from shardwright.frontends.numpy import ShapeDtype
    >>> traced = trace(lambda x: constrain(x * 2, "[dp, _]"), ShapeDtype((8, 4)))
    >>> traced.graph.nodes[-1].op, traced.graph.nodes[-1].attrs
    ('core.constraint', (('spec', '[dp, _]'),))
    """
    if not isinstance(x, Tracer):
        return x
    check_current(x.recorder)

    def constrained(value: Tracer) -> Tracer:
        return node(CONSTRAINT, [value], value.shape, value.dtype, spec=str(text))

    return view_of(x, constrained(x), constrained, lambda parent, value: value)


_RETURN = "return traced values, arrays, numbers, or dicts, lists, tuples and dataclasses of them"


def _output(leaf: Any) -> int:
    if not isinstance(leaf, Tracer | np.ndarray | np.generic):
        raise TraceError(
            f"a traced function returned a {type(leaf).__name__}",
            help=_RETURN,
        )
    made = lift(leaf)
    check_current(made.recorder)
    return made.value


def _shape(leaf: Any) -> Shape:
    return tuple(int(size) for size in leaf.shape)


def _dtype(leaf: Any) -> DType:
    try:
        found: DType = np.dtype(leaf.dtype).newbyteorder("=")
    except TypeError:
        raise TraceError(
            f"{type(leaf).__name__} has element type {leaf.dtype}, which is none of NumPy's",
            help="pass ShapeDtype(shape, dtype) in its place",
        ) from None
    return found


def _name(fn: Callable[..., Any]) -> str:
    inner = getattr(fn, "func", fn)  # of a functools.partial
    name = getattr(inner, "__name__", type(inner).__name__)
    return "main" if name == "<lambda>" else str(name)


def _parameters(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """The name of each positional argument; those of ``*args`` are numbered."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # built-in functions need not tell
        return tuple(f"arg{i}" for i in range(len(args)))
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}.{i}" for i in range(len(args) - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return tuple(names[: len(args)]) + tuple(f"arg{i}" for i in range(len(names), len(args)))


def _named(paths: Sequence[str], path: Path) -> Path:
    """A path in ``(args, kwargs)``, said as the user would."""
    if len(path) < 2:
        return ()
    side, first, *rest = path
    return (paths[int(str(first))] if side == 0 else first, *rest)
