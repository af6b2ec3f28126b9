"""`Tracer`: an array without numbers that writes down what is done with it.

NumPy hands every ufunc and function that meets a tracer to ``__array_ufunc__`` and ``__array_function__``; operators
and methods are spelled with the same functions, so that each has one meaning in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np

from ...errors import TraceAttributeError, TraceError, near_misses
from ...spec.sharding import Shape
from . import registry
from .dtypes import DType, tensor_type
from .recorder import Recorder, check_current, place

Method = Callable[..., Any]
_np: Any = np  # whose stubs do not know that tracers are arrays


def _binary(ufunc: np.ufunc) -> Method:
    def method(self: Tracer, other: Any) -> Any:
        return NotImplemented if _declines(other) else ufunc(self, other)

    return method


def _reflected(ufunc: np.ufunc) -> Method:
    def method(self: Tracer, other: Any) -> Any:
        return NotImplemented if _declines(other) else ufunc(other, self)

    return method


def _in_place(operator: Callable[[Tracer, Any], Tracer]) -> Method:
    def method(self: Tracer, other: Any) -> Any:
        made = operator(self, other)
        if self.scalar or made is NotImplemented:  # a number cannot change: the name gets a new one
            return made
        write(self, registry.fit_in_place(self, made))
        return self

    return method


def _unary(ufunc: np.ufunc) -> Method:
    return lambda self: ufunc(self)


def _function(name: str) -> Method:
    """The method that NumPy also has as a function."""
    function = getattr(np, name)

    def method(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return method


def _power(self: Tracer, other: Any) -> Any:
    """NumPy's operator takes other ufuncs for these exponents; they round differently from ``power``."""
    inexact = np.issubdtype(self.dtype, np.inexact)
    if type(other) is int and other == 2:
        return np.square(self)
    if type(other) is int and other == -1 and inexact:
        return np.reciprocal(self)
    if type(other) is float and other == 0.5 and inexact:
        return np.sqrt(self)
    return NotImplemented if _declines(other) else np.power(self, other)


def _declines(other: Any) -> bool:
    """Whether a foreign operand wants to handle the operator itself."""
    return getattr(other, "__array_ufunc__", False) is None


class Tracer:
    """A traced array.  ``scalar`` marks what NumPy would return as a number: it cannot be written to."""

    __slots__ = ("_dtype", "_shape", "_value", "link", "recorder", "root", "scalar", "seen", "version")

    def __init__(self, recorder: Recorder, value: int, shape: Shape, dtype: DType, scalar: bool = False) -> None:
        self.recorder = recorder
        self._value = value
        self._shape = shape
        self._dtype = dtype
        self.scalar = scalar
        self.link: Link | None = None
        self.root: Tracer = self
        self.version = 0
        self.seen = 0

    # What the recording needs.

    @property
    def value(self) -> int:
        """The number of this value in the recorded program, as of now."""
        return self._value if self.seen == self.root.version else refresh(self)

    def place(self, value: int, seen: int) -> None:
        self._value = value
        self.seen = seen

    def alias(self) -> Tracer:
        """The same value in memory of its own."""
        return Tracer(self.recorder, self.value, self.shape, self.dtype)

    def number(self) -> Tracer:
        """The same value as what NumPy returns for one element."""
        return Tracer(self.recorder, self.value, self.shape, self.dtype, scalar=True)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        check_current(self.recorder)
        return registry.call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        check_current(self.recorder)
        return registry.call_function(func, args, kwargs)

    # What an array says of itself.  Shape and dtype cannot be assigned, as NumPy allows: say reshape or astype.

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def T(self) -> Any:
        return np.transpose(self)

    @property
    def mT(self) -> Any:
        return np.matrix_transpose(self)

    @property
    def real(self) -> Any:
        return np.real(self)

    @property
    def imag(self) -> Any:
        return np.imag(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __getitem__(self, key: Any) -> Any:
        check_current(self.recorder)
        return registry.getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        check_current(self.recorder)
        registry.setitem(self, key, value)

    def __repr__(self) -> str:
        return f"traced {tensor_type(self.shape, self.dtype)}"

    __hash__ = None  # type: ignore[assignment]  # as arrays: == compares elements

    # Operators.

    __add__, __radd__ = _binary(np.add), _reflected(np.add)
    __sub__, __rsub__ = _binary(np.subtract), _reflected(np.subtract)
    __mul__, __rmul__ = _binary(np.multiply), _reflected(np.multiply)
    __matmul__, __rmatmul__ = _binary(np.matmul), _reflected(np.matmul)
    __truediv__, __rtruediv__ = _binary(np.true_divide), _reflected(np.true_divide)
    __floordiv__, __rfloordiv__ = _binary(np.floor_divide), _reflected(np.floor_divide)
    __mod__, __rmod__ = _binary(np.remainder), _reflected(np.remainder)
    __divmod__, __rdivmod__ = _binary(np.divmod), _reflected(np.divmod)
    __pow__, __rpow__ = _power, _reflected(np.power)
    __lshift__, __rlshift__ = _binary(np.left_shift), _reflected(np.left_shift)
    __rshift__, __rrshift__ = _binary(np.right_shift), _reflected(np.right_shift)
    __and__, __rand__ = _binary(np.bitwise_and), _reflected(np.bitwise_and)
    __or__, __ror__ = _binary(np.bitwise_or), _reflected(np.bitwise_or)
    __xor__, __rxor__ = _binary(np.bitwise_xor), _reflected(np.bitwise_xor)
    __eq__: Method = _binary(np.equal)
    __ne__: Method = _binary(np.not_equal)
    __lt__, __le__ = _binary(np.less), _binary(np.less_equal)
    __gt__, __ge__ = _binary(np.greater), _binary(np.greater_equal)
    __neg__, __pos__ = _unary(np.negative), _unary(np.positive)
    __invert__, __abs__ = _unary(np.invert), _unary(np.absolute)
    __iadd__, __isub__, __imul__ = _in_place(__add__), _in_place(__sub__), _in_place(__mul__)
    __itruediv__, __ifloordiv__ = _in_place(__truediv__), _in_place(__floordiv__)
    __imod__, __ipow__, __imatmul__ = _in_place(__mod__), _in_place(__pow__), _in_place(__matmul__)
    __ilshift__, __irshift__ = _in_place(__lshift__), _in_place(__rshift__)
    __iand__, __ior__, __ixor__ = _in_place(__and__), _in_place(__or__), _in_place(__xor__)

    # Methods.

    sum, prod, max, min = _function("sum"), _function("prod"), _function("max"), _function("min")
    any, all, mean, var = _function("any"), _function("all"), _function("mean"), _function("var")
    std, argmax, argmin = _function("std"), _function("argmax"), _function("argmin")
    cumsum, cumprod, argsort = _function("cumsum"), _function("cumprod"), _function("argsort")
    swapaxes, squeeze, ravel = _function("swapaxes"), _function("squeeze"), _function("ravel")
    take, repeat, dot, round = _function("take"), _function("repeat"), _function("dot"), _function("round")
    diagonal, trace, clip = _function("diagonal"), _function("trace"), _function("clip")
    nonzero, compress = _function("nonzero"), _function("compress")

    def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> Any:
        return _np.reshape(self, shape[0] if len(shape) == 1 else shape, order=order, copy=copy)

    def transpose(self, *axes: Any) -> Any:
        if not axes or axes == (None,):
            return np.transpose(self)
        return np.transpose(self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = "unsafe", subok: bool = True, copy: Any = True
    ) -> Any:
        if order not in ("K", "A", "C") or not np.can_cast(self.dtype, np.dtype(dtype), casting):
            _np.empty(0, self.dtype).astype(dtype, order=order, casting=casting)  # NumPy's own error
        return _np.astype(self, dtype, copy=bool(copy))

    def conj(self) -> Any:
        return np.conjugate(self) if self.dtype.kind == "c" else self

    conjugate = conj

    def flatten(self, order: str = "C") -> Any:
        return _np.copy(_np.ravel(self, order=order))

    def copy(self, order: str = "C") -> Any:
        return np.copy(self)

    def __copy__(self) -> Any:
        return np.copy(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return np.copy(self)

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> None:
        """In place, as NumPy's method: the array is the sorted one from here on."""
        write(self, _np.sort(self, axis=axis, kind=kind, order=order, stable=stable))

    def fill(self, value: Any) -> None:
        self[...] = value

    # What a value without numbers cannot do.

    def __bool__(self) -> bool:
        self._no_numbers("bool()", "choose with np.where(condition, a, b); shapes and dtypes may be tested with if")

    def __float__(self) -> float:
        self._no_numbers("float()", _RETURN)

    def __int__(self) -> int:
        self._no_numbers("int()", _RETURN)

    def __complex__(self) -> complex:
        self._no_numbers("complex()", _RETURN)

    def __index__(self) -> int:
        self._no_numbers("an index", "index with np.take(x, i), or pass the index as a Python int")

    def __contains__(self, item: object) -> bool:
        self._no_numbers("in", "say np.any(x == item)")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._no_numbers(
            "np.asarray",
            "leave np.asarray out; join traced values with np.stack; write into np.zeros(shape, like=x) or\n"
            "np.zeros_like(x), not into an array made by np.zeros(shape)",
        )

    def item(self, *args: Any) -> Any:
        self._no_numbers(".item()", _RETURN)

    def tolist(self) -> Any:
        self._no_numbers(".tolist()", _RETURN)

    def tobytes(self, order: str = "C") -> bytes:
        self._no_numbers(".tobytes()", _RETURN)

    def _no_numbers(self, asked: str, help: str) -> NoReturn:
        kind = str(tensor_type(self.shape, self.dtype))
        raise place(TraceError(f"a traced value has no numbers, but {asked} needs those of {kind}", help=help))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(f"a traced array has no attribute {name!r}")
        known = [word for word in dir(type(self)) if not word.startswith("_")]
        raise place(
            TraceAttributeError(
                f"ndarray.{name} is not supported in a traced function",
                help=near_misses(name, known) or registry.INSTEAD,
            )
        )


Again = Callable[["Tracer"], "Tracer"]
PutBack = Callable[["Tracer", "Tracer"], "Tracer"]


@dataclass(frozen=True, slots=True)
class Link:
    """From a view to its parent.  Without ``again`` and ``put_back`` it may as well be a copy."""

    parent: Tracer
    again: Again | None = None
    put_back: PutBack | None = None
    key: object = None
    """Which part of the parent the view shows, if that has a name."""


def refresh(tracer: Tracer) -> int:
    """The value of a view after its memory was written to."""
    link = tracer.link
    if link is None or link.again is None:
        raise place(
            TraceError(
                f"{tracer} was written to through an array that may share its memory",
                help="reshape and ravel give a view or a copy, as the memory is laid out, and a trace does not know;\n"
                "say .reshape(...).copy() if it is to be a copy, or write to the array that is read later",
            )
        )
    made = link.again(link.parent).value
    tracer.place(made, tracer.root.version)
    return made


def write(target: Tracer, new: Tracer) -> None:
    """Make ``new`` the content of ``target`` and of what it is a view of."""
    if target.scalar:
        raise TypeError(f"'numpy.{target.dtype}' object does not support item assignment")
    _ = target.value  # all of the chain must be up to date before the version moves on
    changed = [(target, new.value)]
    node, content = target, new
    while node.link is not None and node.link.put_back is not None:
        content = node.link.put_back(node.link.parent, content)
        node = node.link.parent
        changed.append((node, content.value))
    target.root.version += 1
    for tracer, value in changed:
        tracer.place(value, target.root.version)


def is_traced(x: Any) -> bool:
    """Whether something is an array of a function that is being traced."""
    return isinstance(x, Tracer)


_RETURN = "return the value from the traced function, or pass the number as a Python scalar argument"
