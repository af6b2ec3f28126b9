"""`op`: an op in one place, with all that the rest of the house asks of it.

What it computes is the decorated function; its rule, its exact meaning and samples of its calls stand beside it.
Called on arrays the function computes; called in a traced function it is written down as one op.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from math import prod
from typing import Any, TypeVar

import numpy as np

from ...errors import RuleError, TraceError, front
from ...rules.registry import RuleFn, forget, given_by, when_complete
from ...rules.registry import rule as enter_rule
from ...spec.op_record import Flow, Meaning
from ...spec.rule import RulePattern
from ...spec.sharding import Shape
from .dtypes import Array, DType, stand_in, tensor_type
from .emit import lift, nodes
from .kernels import KERNELS, Attributes, Kernel, Types, kernel
from .recorder import Recorder, place, recording
from .samples import SAMPLES, Sample
from .tracer import Tracer

F = TypeVar("F", bound=Callable[..., Any])
SampleLike = Sample | str | Sequence[Any]
Result = tuple[Shape, Any]
"""Shape and dtype."""
MOST_ELEMENTS = 1 << 22
"""Where results are found by computing on zeros, operands have at most so many elements together: it takes memory."""
_BY_RULE = "by rule"
"""The meaning of an op that says none: some function with just the properties that its rule claims."""


@front
def op(
    name: str,
    *,
    rule: str | RuleFn,
    samples: Iterable[SampleLike],
    meaning: str | Meaning = _BY_RULE,
    results: Callable[..., Result | Sequence[Result]] | None = None,
    cost: str = "memory",
    flow: Flow | None = None,
    dtypes: tuple[str, ...] = ("f8", "f4"),
    domain: str = "any",
    beyond: str = "",
    replace: bool = False,
) -> Callable[[F], F]:
    """Make an op of a function of arrays.

    Positional parameters are operands: arrays, lists of arrays, or None.  Keyword-only parameters are attributes:
    numbers, strings, tuples.  Sizes must be read off the operands, since on a device these are shards.

    ``rule`` is the sharding rule, ``meaning`` what is computed exactly, as a function over `spec.op_record.Arithmetic`:
    ``meaning(a, *operands, **attrs)``.  Without one the proof takes the rule's word.  A sample is the shapes of the
    operands, ``((6, 4), (4,))``, or ``("n m", "m")`` with sizes that checks choose, and a dict of attributes after
    them; a `Sample` says more.  ``results(*operands, **attrs)`` gives shape and dtype of each result; without it they
    are found by running the function on traced values, or else on zeros.  ``cost`` is the cost class.

    >>> @op("doc.square_add", rule="i j, j -> i j", cost="pointwise", samples=[("n m", "m")],
    ...     meaning=lambda a, x, w: a.add(a.multiply(x, x), w))
    ... def square_add(x, w):
    ...     return x * x + w
    >>> square_add(np.ones((1, 2)), np.array([1.0, 2.0]))
    array([[2., 3.]])
    >>> from shardwright.frontends.numpy import ShapeDtype, trace
    >>> traced = trace(lambda x, w: np.tanh(square_add(x, w)), ShapeDtype((8, 4)), ShapeDtype((4,)))
    >>> [node.op for node in traced.graph.nodes]
    ['doc.square_add', 'tanh']
    >>> forget_op("doc.square_add")
    """

    def define(fn: F) -> F:
        signature = _checked(name, fn)

        @wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return _called(name, fn, results, bound.args, bound.kwargs)

        calls = [_sample(call, one, dtypes, domain) for one in samples]
        if not calls:
            raise RuleError(
                f"op {name!r} has no samples", help='name the shapes of a call or two: samples=[("n m", "m")]'
            )
        if isinstance(rule, str):
            RulePattern.parse(rule)
        about: dict[str, Any] = {"cost": cost, "meaning": meaning, "beyond": beyond, "replace": replace}
        about["flow"] = flow or (Flow.POINTWISE if cost == "pointwise" else Flow.OTHER)
        about["doc"] = inspect.getdoc(fn) or ""

        def write() -> None:
            enter_rule(name, rule, **about)
            given_by(name, fn.__module__)

        if fn.__module__.startswith("shardwright."):
            when_complete(write)  # importing the package need not load the whole rule book
        else:
            write()
        SAMPLES[name] = calls

        @kernel(name)
        def make(attrs: Attributes, types: Types) -> Kernel:
            return partial(fn, **attrs)

        return call  # type: ignore[return-value]

    return define


def forget_op(name: str) -> None:
    """Take out all that `op` entered (for tests and notebooks)."""
    forget(name)
    SAMPLES.pop(name, None)
    KERNELS.pop(name, None)


def _checked(name: str, fn: Callable[..., Any]) -> inspect.Signature:
    """The function's parameters; one that looks like an attribute must be one."""
    signature = inspect.signature(fn)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default not in (parameter.empty, None):
            raise RuleError(
                f"parameter {parameter.name!r} of op {name!r} is an operand, but its default is no array",
                help=f"attributes come after a star: def {fn.__name__}(..., *, {parameter.name}={parameter.default!r})",
            )
    return signature


def _sample(fn: Callable[..., Any], given: SampleLike, dtypes: tuple[str, ...], domain: str) -> Sample:
    """A sample as written: shapes, perhaps with attributes after them."""
    if isinstance(given, Sample):
        return given
    lone = isinstance(given, str) or all(isinstance(size, int) for size in given)
    shapes: list[Any] = [given] if lone else list(given)
    if shapes and isinstance(shapes[-1], Mapping):
        fn = partial(fn, **shapes.pop())
    texts = tuple(shape if isinstance(shape, str) else " ".join(map(str, shape)) for shape in shapes)
    return Sample(fn, texts, dtypes, domain)


def _called(
    name: str, fn: Callable[..., Any], results: Callable[..., Any] | None, args: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    for key, value in attrs.items():
        if isinstance(value, Tracer):
            error = TraceError(f"{key}= of op {name!r} is a traced value", help="attributes are plain: pass a number")
            raise place(error)
    if not any(isinstance(x, Tracer) for arg in args for x in _flat(arg)):
        return fn(*(_each(np.asarray, arg) for arg in args), **attrs)
    operands = [_each(lift, arg) for arg in args]
    single, types = _results(name, fn, results, operands, attrs)
    made = nodes(name, operands, types, **attrs)
    return made[0] if single else made


def _flat(operand: Any) -> Sequence[Any]:
    return () if operand is None else operand if isinstance(operand, list | tuple) else (operand,)


def _each(turn: Callable[[Any], Any], operand: Any) -> Any:
    if operand is None:
        return None
    return [turn(item) for item in operand] if isinstance(operand, list | tuple) else turn(operand)


def _results(
    name: str,
    fn: Callable[..., Any],
    results: Callable[..., Any] | None,
    operands: Sequence[Any],
    attrs: Mapping[str, Any],
) -> tuple[bool, list[tuple[Shape, DType]]]:
    """Whether there is one result that stands alone, and shape and dtype of each."""
    if results is not None:
        said = results(*operands, **attrs)
        single = len(said) == 2 and not isinstance(said[1], tuple)
        return single, [(tuple(shape), np.dtype(dtype)) for shape, dtype in ([said] if single else said)]
    made = _tried(name, fn, operands, attrs)
    if made is None:
        made = _computed(name, fn, operands, attrs)
    single = not isinstance(made, list | tuple)
    return single, [(x.shape, x.dtype) for x in ([made] if single else made)]


def _tried(name: str, fn: Callable[..., Any], operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """The function on traced values of a program that is thrown away; None if it cannot be traced."""
    scratch = Recorder(name)

    def stand(x: Tracer) -> Tracer:
        return Tracer(scratch, scratch.input(tensor_type(x.shape, x.dtype), ""), x.shape, x.dtype)

    try:
        with recording(scratch):
            made = fn(*(_each(stand, operand) for operand in operands), **attrs)
            return _each(lift, made)
    except Exception:  # whatever it is, computing on arrays will say it better
        return None


def _computed(name: str, fn: Callable[..., Any], operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if sum(prod(x.shape) for operand in operands for x in _flat(operand)) > MOST_ELEMENTS:
        raise place(
            TraceError(
                f"op {name!r} cannot be traced, and is not computed on operands this large to see what it returns",
                help="say it: op(..., results=lambda x: (x.shape, x.dtype))",
            )
        )

    def zeros(x: Tracer) -> Array:
        return stand_in(x.shape, x.dtype)

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _each(np.asarray, fn(*(_each(zeros, operand) for operand in operands), **attrs))
