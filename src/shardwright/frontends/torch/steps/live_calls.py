"""`LiveCalls`: PyTorch's functions, called with live numbers (see `numbers`), while an optimizer's step is captured.

It stands above the dispatcher, where a number still is the object that the optimizer's code passes on.  Where an
operator has a form that takes a tensor for the number, that form is called; ``alpha=`` and ``value=`` become products,
in the order in which PyTorch's kernels multiply; lists of tensors (``torch._foreach_...``) are taken one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..foreign.optimizers import each_of
from ..private import FakeTensor
from .numbers import LiveNumber, Numbers

_ARITHMETIC = {
    prefix + name
    for name in ("add", "sub", "mul", "div", "truediv", "pow", "floordiv", "mod")
    for prefix in ("", "r", "i")
} | {"true_divide", "multiply", "divide", "subtract", "floor_divide", "remainder", "fmod", "float_power"}
"""Kernels that take a CPU's number of any precision as it is, beside a tensor that has dimensions."""
_WITH_ALPHA = ("add", "sub", "subtract", "rsub", "iadd", "isub")
_FILLED = {"full": 1, "full_like": 1, "new_full": 2}
_MADE_OF = ("tensor", "as_tensor", "asarray", "scalar_tensor")
_HALF = (torch.bfloat16, torch.float16)
_BOUNDS = ("clamp", "clip")
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_AS_NUMBER = ("__float__", "__int__", "__index__")


class LiveCalls(TorchFunctionMode):
    def __init__(self, numbers: Numbers) -> None:
        super().__init__()
        self.numbers = numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name.startswith("_foreach_"):
            every = each_of("aten." + name + (".ScalarAndTensor" if name == "_foreach_pow" else ""))
            if every is not None:
                with self:
                    return every(*args, **kwargs)
        if args and isinstance(args[0], FakeTensor):
            if name == "item":
                return self.numbers.item(args[0])
            if name in _AS_NUMBER:
                number = self.numbers.plain(self.numbers.item(args[0]), name.strip("_") + "()")
                return float(number) if name == "__float__" else int(number)
            if name == "__bool__":
                decided = self.numbers.truth(args[0])
                if decided is not None:
                    return decided
            if name == "__setitem__" and _whole_mask(*args):
                return self._masked(*args)
            if func == _SET_DATA:
                return self._data(*args)
        if not any(isinstance(item, LiveNumber) for item in _leaves((args, kwargs))):
            return func(*args, **kwargs)
        return self._call(func, name, list(args), dict(kwargs))

    def _call(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        stem = name.strip("_")
        if stem in _WITH_ALPHA and isinstance(kwargs.get("alpha"), LiveNumber):
            other = kwargs.pop("other", None) if len(args) < 2 else args[1]
            return self._again(func, args[0], self._times(other, kwargs.pop("alpha"), args[0]), **kwargs)
        if stem in ("addcmul", "addcdiv") and isinstance(kwargs.get("value"), LiveNumber) and len(args) == 3:
            joined = torch.mul if stem == "addcmul" else torch.div
            made = joined(self._times(args[1], kwargs.pop("value"), args[0]), args[2])
            return self._again(torch.Tensor.add_ if name.endswith("_") else torch.add, args[0], made, **kwargs)
        if stem == "lerp" and args[0].dtype in _HALF:  # its weight would be rounded; kernels compute in float32
            wide = [x.float() if isinstance(x, torch.Tensor) else x for x in args]
            made = self._again(torch.lerp, *wide, **kwargs).to(args[0].dtype)
            return args[0].copy_(made) if name.endswith("_") else made
        at = _FILLED.get(stem)
        if at is not None:
            place, store = (at, args) if len(args) > at else ("fill_value", kwargs)
            number = store[place]  # type: ignore[index]
            if isinstance(number, LiveNumber):
                store[place] = 0.0  # type: ignore[index]
                made = func(*args, **kwargs)
                return made + self._operand(number, [made])
        if stem in _MADE_OF and isinstance(args[0], LiveNumber):
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            return self.numbers.tensor(args[0], dtype).clone()
        tensors = [item for item in _leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        cast = stem not in _ARITHMETIC
        if stem in _BOUNDS:  # both bounds are tensors, or none
            args = args[:1] + [self._bound(item) for item in args[1:]]
            kwargs = {key: self._bound(item) for key, item in kwargs.items()}
        try:
            if not tensors:
                raise TypeError("nothing but numbers")
            given = [self._operand(item, tensors, cast) for item in args]
            named = {key: self._operand(item, tensors, cast) for key, item in kwargs.items()}
            return func(*given, **named)
        except (TypeError, RuntimeError, ValueError):  # there is no such form
            return func(*self._plain(args, name), **self._plain(kwargs, name))

    def _again(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """The call with what it was made into: there may be other live numbers in it."""
        if any(isinstance(item, LiveNumber) for item in _leaves((args, kwargs))):
            return self._call(func, func.__name__, list(args), kwargs)
        return func(*args, **kwargs)

    def _bound(self, item: Any) -> Any:
        return self.numbers.constant(item) if type(item) in (int, float) else item

    def _times(self, other: Any, factor: LiveNumber, beside: Any) -> Any:
        """A product in the element type in which the sum is made."""
        if isinstance(other, torch.Tensor):
            if isinstance(beside, torch.Tensor) and other.dim():
                other = other.to(torch.result_type(beside, other))
            return other * self._operand(factor, [other])
        return factor * other

    def _operand(self, item: Any, tensors: list[Any], cast: bool = False) -> Any:
        """A tensor for a live number, of the element type that PyTorch gives a plain number beside these tensors."""
        if not isinstance(item, LiveNumber):
            return item
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        if not floating:
            return self.numbers.tensor(item, torch.get_default_dtype())
        wide = next((tensor for tensor in floating if tensor.dim()), None)
        if wide is not None and not cast:
            return self.numbers.tensor(item)
        return self.numbers.tensor(item, (wide if wide is not None else floating[0]).dtype)

    def _data(self, target: Any, source: Any) -> None:
        """``p.data = x`` leaves nothing behind that a capture could see: a copy says the same."""
        if target.shape != source.shape or target.dtype != source.dtype:
            raise self.numbers.refusal(
                "the optimizer's step gives a tensor another shape or element type through .data",
                "write to it in place: p.copy_(x)",
            )
        with torch.no_grad():
            target.copy_(source)

    def _masked(self, target: Any, mask: Any, value: Any) -> None:
        value = self._operand(value, [target], cast=True)
        target.copy_(torch.where(mask, value, target))

    def _plain(self, item: Any, name: str) -> Any:
        if isinstance(item, LiveNumber):
            return self.numbers.plain(item, f"torch's {name}")
        if isinstance(item, dict):
            return {key: self._plain(part, name) for key, part in item.items()}
        if type(item) in (list, tuple):
            return type(item)(self._plain(part, name) for part in item)
        return item


def _leaves(item: Any) -> Iterator[Any]:
    if isinstance(item, dict):
        item = tuple(item.values())
    if isinstance(item, list | tuple):
        for part in item:
            yield from _leaves(part)
    else:
        yield item


def _whole_mask(target: Any, mask: Any, value: Any) -> bool:
    """``x[x > 0] = number``, which needs no shapes that depend on data."""
    single = isinstance(value, int | float) or (isinstance(value, torch.Tensor) and not value.dim())
    return isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.shape == target.shape and single
