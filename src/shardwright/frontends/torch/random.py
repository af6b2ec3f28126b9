"""Random numbers that depend on a key, a step and the place of an element, and on nothing else.

Captured programs draw from two ops, ``random.uniform`` and ``random.normal``; all others are written in terms of them
here.  A number is a hash of the key, the step, which draw of the program it is, and the index of the element in the
whole tensor, so every mesh gives the same ones, and a recomputation draws again what was drawn before.  Key and step
are an input of the program, ``random``; each run leaves the next step.

The hash is the finaliser of SplitMix64 (Steele, Lea and Flood 2014): three multiplications, which also GPUs do fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import pi, prod
from typing import Any

import torch

from ...errors import TraceError
from ...ir.graph import TensorType
from .dtypes import torch_dtype
from .kernels import Kernel, kernel

Draw = Callable[[str, Sequence[int], Any], Any]
"""From the kind of numbers, a shape and a dtype to a tensor of the program."""

STATE = "random"
"""The input that holds key and step."""
_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
_FIRST, _SECOND = -4658895280553007687, -7723592293110705685  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def fresh_state() -> Any:
    """Key and step to begin with: the key is the seed that the user gave PyTorch."""
    return torch.tensor([torch.initial_seed() % 2**63, 0], dtype=torch.int64)


def _mix(x: Any) -> Any:
    """SplitMix64's finaliser, in signed arithmetic that wraps round."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _FIRST
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _SECOND
    return x ^ ((x >> 31) & (2**33 - 1))


def _words(state: Any, draw: int, whole: Sequence[int], local: Sequence[int], offsets: Sequence[Any], turn: int) -> Any:
    """64 random bits for each element of a part of a tensor."""
    device = state.device
    index = torch.zeros((), dtype=torch.int64, device=device)
    for d, (size, here) in enumerate(zip(whole, local)):
        place = torch.arange(here, device=device)
        place = place + offsets[d] if offsets else place
        index = index.unsqueeze(-1) * size + place
    number = ((2 * draw + turn) * _SECOND + 2**63) % 2**64 - 2**63  # PyTorch takes no larger ones
    stream = _mix(_mix(state[0]) + state[1] * _GOLDEN) + number
    return _mix(_mix(stream) + (index + 1) * _GOLDEN)


def _unit(words: Any, dtype: Any) -> Any:
    """Numbers in [0, 1), as many bits as the type holds."""
    bits = _BITS[dtype]
    kept = (words >> (64 - bits)) & (2**bits - 1)
    return (kept.to(torch.float64) * 2.0**-bits).to(dtype)


@kernel("random.uniform")
def _uniform(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    draw, whole, type = attrs["draw"], attrs["size"], results[0]
    dtype = torch_dtype(type.dtype)
    return lambda state, *offsets: _unit(_words(state, draw, whole, type.shape, offsets, 0), dtype)


@kernel("random.normal")
def _normal(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """By Box and Muller, from two numbers each."""
    draw, whole, type = attrs["draw"], attrs["size"], results[0]
    dtype = torch_dtype(type.dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def run(state: Any, *offsets: Any) -> Any:
        radius, angle = (_unit(_words(state, draw, whole, type.shape, offsets, turn), wide) for turn in (0, 1))
        return (torch.sqrt(-2.0 * torch.log(1.0 - radius)) * torch.cos(2.0 * pi * angle)).to(dtype)

    return run


@kernel("random.advance")
def _advance(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """The same key, the next step."""
    return lambda state: state + torch.arange(2, device=state.device)


# -- PyTorch's random ops ---------------------------------------------------------------------------------

Redraw = Callable[..., Any]
REDRAWN: dict[str, Redraw] = {}


def redrawn(*ops: str) -> Callable[[Redraw], Redraw]:
    """Register how ops draw: a function of `Draw`, the op's operands, and its attributes by name."""

    def register(function: Redraw) -> Redraw:
        REDRAWN.update(dict.fromkeys(ops, function))
        return function

    return register


def redraw(op: str, draw: Draw, operands: Sequence[Any], attrs: Mapping[str, Any], result: Any) -> Any:
    """What a random op gives, in terms of `Draw`; ``result`` is a tensor of the type of the first result."""
    make = REDRAWN.get(op)
    if make is None:
        raise TraceError(
            f"{op} draws random numbers in a way that is not known to give the same ones on every mesh",
            help="draw with torch.rand, randn, randint, bernoulli or dropout, or pass the numbers as an argument",
        )
    return make(draw, result, *operands, **attrs)


def _float(dtype: Any) -> Any:
    return dtype if dtype in _BITS else torch.float32


@redrawn("aten.native_dropout")
def _dropout(draw: Draw, result: Any, x: Any, p: float, train: Any, **_: Any) -> Any:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = draw("uniform", x.shape, torch.float32) >= p
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return x * kept * scale, kept


@redrawn("aten.rand", "aten.rand_like", "aten.rand.generator")
def _rand(draw: Draw, result: Any, *_: Any, **__: Any) -> Any:
    return draw("uniform", result.shape, result.dtype)


@redrawn("aten.randn", "aten.randn_like", "aten.randn.generator")
def _randn(draw: Draw, result: Any, *_: Any, **__: Any) -> Any:
    return draw("normal", result.shape, result.dtype)


@redrawn("aten.uniform")
def _uniform_in(draw: Draw, result: Any, x: Any, **given: Any) -> Any:
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return draw("uniform", x.shape, x.dtype) * (high - low) + low


@redrawn("aten.normal_functional", "aten.normal.float_float")
def _normal_of(draw: Draw, result: Any, *_: Any, mean: float = 0.0, std: float = 1.0, **__: Any) -> Any:
    return draw("normal", result.shape, result.dtype) * std + mean


@redrawn("aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")
def _normal_around(draw: Draw, result: Any, *tensors: Any, mean: Any = None, std: Any = None, **_: Any) -> Any:
    rest = iter(tensors)
    mean = next(rest) if mean is None else mean
    std = next(rest) if std is None else std
    return draw("normal", result.shape, result.dtype) * std + mean


@redrawn("aten.bernoulli.p")
def _bernoulli(draw: Draw, result: Any, x: Any, p: float, **_: Any) -> Any:
    return (draw("uniform", x.shape, torch.float32) < p).to(result.dtype)


@redrawn("aten.bernoulli", "aten.bernoulli.Tensor")
def _bernoulli_by(draw: Draw, result: Any, x: Any, p: Any = None, **_: Any) -> Any:
    chance = x if p is None else p
    return (draw("uniform", x.shape, _float(chance.dtype)) < chance).to(result.dtype)


def _whole_numbers(draw: Draw, result: Any, low: int, high: int) -> Any:
    """Of 53 random bits: ranges beyond that would need more."""
    count = high - low
    if count > 2**53:
        raise TraceError(f"whole numbers from a range of {count} are not drawn alike on every mesh")
    return (torch.floor(draw("uniform", result.shape, torch.float64) * count) + low).to(result.dtype)


@redrawn("aten.randint", "aten.randint_like", "aten.random.to")
def _randint(draw: Draw, result: Any, *_: Any, **given: Any) -> Any:
    return _whole_numbers(draw, result, 0, given["high"] if "high" in given else given["to"])


@redrawn("aten.randint.low", "aten.randint_like.low_dtype", "aten.random.from")
def _randint_from(draw: Draw, result: Any, *_: Any, **given: Any) -> Any:
    low, high = (given[name] for name in (("low", "high") if "low" in given else ("from", "to")))
    return _whole_numbers(draw, result, low, high)


@redrawn("aten.exponential")
def _exponential(draw: Draw, result: Any, x: Any, lambd: float = 1.0, **_: Any) -> Any:
    return -torch.log1p(-draw("uniform", x.shape, x.dtype)) / lambd


@redrawn("aten.randperm")
def _randperm(draw: Draw, result: Any, *_: Any, **__: Any) -> Any:
    return torch.argsort(draw("uniform", (prod(result.shape),), torch.float64)).to(result.dtype)


@redrawn("aten.multinomial")
def _multinomial(draw: Draw, result: Any, x: Any, num_samples: int, replacement: bool = False, **_: Any) -> Any:
    """The largest of exponential races (Efraimidis and Spirakis), or as many races as there are samples."""
    wide = x.to(torch.float64)
    if not replacement:
        race = torch.log(draw("uniform", x.shape, torch.float64)) / wide
        return torch.topk(race, num_samples, -1).indices
    shape = (*x.shape[:-1], num_samples, x.shape[-1])
    race = torch.log(draw("uniform", shape, torch.float64)) / wide.unsqueeze(-2)
    return torch.argmax(race, -1)
