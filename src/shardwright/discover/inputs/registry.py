"""Input generators: ``gen(shape, dtype, device, input_idx)`` gives the same values every time it is asked.

Five standard ones serve every operator.  Adversarial ones aim at an edge case and are registered for the operators
that have it (`adversarial` and its families), or for all (``"*"``).  A generator computes NumPy arrays; asked for a
torch dtype, it gives a tensor on the device.

>>> make_arange((2, 2), np.dtype("float64"), input_idx=1)
array([[100., 101.],
       [102., 103.]])
>>> "gen_orthogonal" in [generator.name for generator in generators_for("cross")]
True
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...errors import DiscoverError, near_misses
from ..operator import Array

Shape = tuple[int, ...]
Drawn = Any
"""An array of the shape; NumPy's stubs lose its type in most operators."""

Draw = Callable[[Shape, Any, int], Drawn]
"""The heart of a generator: shape, real or whole NumPy dtype, number of the input."""

Domain = Literal["any", "positive", "unit", "sorted", "posdef", "invertible"]
"""Which values it keeps to: above 0; within (0, 1); ascending along the last dim; matrices, in the last two."""

EVERY = "*"
"""Stands for all operators."""


@dataclass(frozen=True, slots=True)
class Generator:
    """A deterministic source of input values that aims at an edge case."""

    name: str
    about: str
    """The edge case."""
    make: Callable[..., Any]
    """``make(shape, dtype, device, input_idx)``"""
    ops: tuple[str, ...] = ()
    special: bool = False
    """Gives NaN, infinities, denormals, or whole numbers that overflow: ordinary arithmetic does not hold."""
    domain: Domain = "any"
    kinds: str = "fc"
    """The kinds of dtypes it is meant for, as in NumPy's ``dtype.kind``."""
    role: Literal["data", "index"] = "data"
    """What it draws: numbers, or positions (taken modulo what is legal)."""

    def __call__(self, shape: Sequence[int], dtype: Any, device: Any = "cpu", input_idx: int = 0) -> Any:
        return self.make(shape, dtype, device, input_idx)


_REGISTRY: dict[str, Generator] = {}

ALIASES = {
    "absolute": "abs",
    "add_relu": "add",
    "arctan2": "atan2",
    "clip": "clamp",
    "divide": "div",
    "greater": "gt",
    "greater_equal": "ge",
    "inverse": "inv",
    "less": "lt",
    "less_equal": "le",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "rsub": "sub",
    "safe_softmax": "softmax",
    "softmax_backward_data": "softmax",
    "subtract": "sub",
    "true_divide": "div",
    "unsafe_index": "index",
}
"""Other names for the same operator."""


def generator(
    name: str = "",
    *,
    ops: Sequence[str],
    about: str = "",
    special: bool = False,
    domain: Domain = "any",
    kinds: str = "fc",
    role: Literal["data", "index"] = "data",
    imaginary: bool = True,
) -> Callable[[Draw], Generator]:
    """Register ``draw(shape, dtype, input_idx) -> array`` as a generator; its docstring says what it aims at.

    Complex values get an imaginary part by a second draw, unless `imaginary` is off.
    """

    def register(draw: Draw) -> Generator:
        def make(shape: Sequence[int], dtype: Any, device: Any = "cpu", input_idx: int = 0) -> Any:
            return _delivered(draw, tuple(int(n) for n in shape), dtype, device, input_idx, imaginary)

        says = about or (inspect.getdoc(draw) or "").partition("\n")[0].rstrip(".")
        made = Generator(name or draw.__name__, says, make, tuple(ops), special, domain, kinds, role)
        return _add(made)

    return register


def register_generator(
    function: Callable[..., Any],
    *,
    ops: Sequence[str],
    about: str = "",
    name: str = "",
    special: bool = False,
    domain: Domain = "any",
    kinds: str = "fc",
) -> Generator:
    """Register your own ``function(shape, dtype, device, input_idx)``, which may give torch tensors or arrays.

    A function that is written for torch is given torch's dtypes and sizes whatever was asked for.
    """
    name = name or getattr(function, "__name__", "")
    if not name or name == "<lambda>":
        raise DiscoverError("a generator needs a name", help="register_generator(function, name='gen_my_case', ...)")
    if isinstance(ops, str):
        raise DiscoverError(f"ops is a list of operators, not the text {ops!r}", help=f"ops=({ops!r},)")

    def make(shape: Sequence[int], dtype: Any, device: Any = "cpu", input_idx: int = 0) -> Any:
        sizes = tuple(int(n) for n in shape)
        return _converted(_asked(function, sizes, dtype, device, input_idx), sizes, dtype, device, name)

    says = about or (inspect.getdoc(function) or "").partition("\n")[0].rstrip(".")
    return _add(Generator(name, says, make, tuple(ops), special, domain, kinds))


def unregister_generator(name: str) -> None:
    """Forget a generator."""
    if _REGISTRY.pop(name, None) is None:
        raise DiscoverError(f"no generator is called {name!r}", help=near_misses(name, _REGISTRY))


def _add(made: Generator) -> Generator:
    if made.name in _REGISTRY:
        raise DiscoverError(
            f"two generators are called {made.name!r}",
            rows=[("first", _REGISTRY[made.name].about)],
            help="give the second another name, or unregister_generator() the first",
        )
    _REGISTRY[made.name] = made
    return made


def generators_for(short_name: str) -> tuple[Generator, ...]:
    """The adversarial generators of an operator: its own first, then those for all operators."""
    name = plain_name(short_name)
    every = _all()
    own = [made for made in every if name in made.ops and EVERY not in made.ops]
    return (*own, *(made for made in every if EVERY in made.ops))


def generator_named(name: str) -> Generator:
    """A generator by its name, standard or adversarial."""
    known = {made.name: made for made in (*STANDARD, *_all())}
    if name not in known:
        raise DiscoverError(f"no generator is called {name!r}", help=near_misses(name, known))
    return known[name]


def standard_generators() -> tuple[Generator, ...]:
    """The five that every operator gets."""
    return STANDARD


def _all() -> tuple[Generator, ...]:
    standard = {made.name for made in STANDARD}
    return tuple(made for made in _REGISTRY.values() if made.name not in standard)


def plain_name(short_name: str) -> str:
    """An operator's name without the marks of its implementation.

    >>> plain_name("_log_softmax"), plain_name("native_layer_norm"), plain_name("true_divide")
    ('log_softmax', 'layer_norm', 'div')
    """
    name = re.sub(r"^_*((linalg|special|fft|native|foreach)_)?", "", short_name).removesuffix("_")
    return ALIASES.get(name, name)


# From a drawn array to what was asked for


def _is_torch(dtype: Any) -> bool:
    """Whether a dtype is torch's, without importing torch."""
    return type(dtype).__module__.partition(".")[0] == "torch"


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any]
    try:
        found = np.dtype(str(dtype).removeprefix("torch.") if _is_torch(dtype) else dtype)
    except TypeError:
        if not _is_torch(dtype):
            raise
        # bfloat16, float8: drawn as float32, then rounded by torch
        found = np.dtype("float32")
    return found


def _torch_dtype(dtype: Any) -> Any:
    import torch

    return dtype if _is_torch(dtype) else getattr(torch, np.dtype(dtype).name)


def _delivered(draw: Draw, shape: Shape, dtype: Any, device: Any, input_idx: int, imaginary: bool) -> Any:
    wanted = _numpy_dtype(dtype)
    with np.errstate(all="ignore"):  # a cast may overflow; the edge cases are meant
        if wanted.kind == "c":
            part = np.dtype(f"float{wanted.itemsize * 4}")
            real = np.asarray(draw(shape, part, input_idx), dtype=part)
            array = np.zeros(shape, dtype=wanted)
            array.real = real
            if imaginary:
                array.imag = np.asarray(draw(shape, part, input_idx + 10), dtype=part)
        else:
            array = cast(draw(shape, wanted, input_idx), wanted)
    if array.shape != shape:
        raise DiscoverError(f"the generator gave the shape {array.shape}, not {shape}")
    return _placed(array, dtype, device)


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """To a dtype: whole numbers are rounded, and wrap around; truth is being above 0.

    >>> cast(np.array([0.4, 1.6, -1.0]), np.dtype("uint8"))
    array([  0,   2, 255], dtype=uint8)
    """
    if dtype.kind == "b":
        return np.asarray(array > 0)
    if dtype.kind in "iu" and array.dtype.kind == "f":
        array = np.rint(np.nan_to_num(array)).astype(np.int64)
    return np.asarray(array.astype(dtype))


def _placed(array: Array, dtype: Any, device: Any) -> Any:
    if not _is_torch(dtype):
        return array
    import torch

    if array.dtype.kind == "V":  # bfloat16 as ml_dtypes has it, which torch does not read
        array = array.astype(np.float32)
    return torch.from_numpy(array.copy(order="C")).to(dtype=dtype, device=device)


def _asked(function: Callable[..., Any], shape: Shape, dtype: Any, device: Any, input_idx: int) -> Any:
    """Call a user's function in the form that was asked for; if it cannot take a NumPy dtype, in torch's form."""
    if not _is_torch(dtype):
        try:
            return function(shape, np.dtype(dtype), device, input_idx)
        except (TypeError, AttributeError):
            try:
                dtype = _torch_dtype(dtype)
            except (ImportError, AttributeError):
                dtype = None
            if dtype is None:
                raise
    import torch

    return function(torch.Size(shape), dtype, device, input_idx)


def _converted(found: Any, shape: Shape, dtype: Any, device: Any, name: str) -> Any:
    given = tuple(getattr(found, "shape", ()))
    if given != shape or not hasattr(found, "shape"):
        raise DiscoverError(
            f"the generator {name!r} gave {'the shape ' + str(given) if hasattr(found, 'shape') else repr(found)}",
            rows=[("asked for", str(shape))],
        )
    if isinstance(found, (np.ndarray, np.generic)):
        return _placed(np.asarray(found).astype(_numpy_dtype(dtype)), dtype, device)
    if _is_torch(dtype):
        return found.to(dtype=dtype, device=device)
    return np.asarray(found.detach().cpu().numpy()).astype(np.dtype(dtype))


# What generators are made of


def counting(shape: Shape) -> Array:
    """0, 1, 2, ... in reading order."""
    return np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape)


def random(input_idx: int, salt: int) -> np.random.Generator:
    """Its own random numbers for each input of each generator."""
    return np.random.default_rng((salt, input_idx))


def whole(shape: Shape, input_idx: int, salt: int, low: int, high: int) -> Array:
    """Random whole numbers from `low` to `high`, both included, as floats."""
    return np.asarray(random(input_idx, salt).integers(low, high + 1, shape), dtype=np.float64)


# The five standard ones


@generator("make_arange", ops=(), kinds="fciub", imaginary=False)
def make_arange(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Ordered values [0, 1, 2, ...] + 100 * input_idx"""
    return counting(shape) + 100 * input_idx


@generator("make_randn", ops=(), kinds="fciub")
def make_randn(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Random normal, seed 42 + input_idx"""
    return np.asarray(np.random.default_rng(42 + input_idx).standard_normal(shape))


@generator("make_zeros", ops=(), kinds="fciub", imaginary=False)
def make_zeros(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All zeros"""
    return np.zeros(shape)


@generator("make_ones", ops=(), kinds="fciub", imaginary=False)
def make_ones(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All ones"""
    return np.ones(shape)


@generator("make_negative", ops=(), kinds="fci", imaginary=False)
def make_negative(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All negative: -1.5 - input_idx (whole numbers: -2 - input_idx)"""
    return np.full(shape, (-2 if dtype.kind in "iu" else -1.5) - input_idx)


STANDARD = (make_arange, make_randn, make_zeros, make_ones, make_negative)
"""The generators that every operator gets."""
