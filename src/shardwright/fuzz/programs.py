"""A program as data: inputs, calls, what is returned.  It runs on arrays and on traced values, and prints as Python.

>>> from .programs import Call, Fill, FuzzProgram, Ref
>>> program = FuzzProgram((Fill((4, 6), "float64", 0),), (Call("np.sum", (Ref(0),), (("axis", 1),)),), (1,))
>>> print(*program.body(), program(*program.arguments())[0].shape, sep="\\n")
v1 = np.sum(v0, axis=1)
return [v1]
(4,)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

MODULES = {
    "np": "numpy", "swn": "shardwright.numpy", "sw": "shardwright", "torch": "torch", "F": "torch.nn.functional",
}  # fmt: skip
"""What the first part of a function's name stands for, in scripts too."""
CONSTRAIN = "sw.with_sharding_constraint"
LEAST = 0.1
"""The least number of a positive input."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the program: inputs first, then one for each call."""

    index: int


@dataclass(frozen=True, slots=True)
class Name:
    """A constant of a module, such as a dtype."""

    text: str


@dataclass(frozen=True, slots=True)
class Fill:
    """An input: its shape, its dtype, and the numbers in it."""

    shape: tuple[int, ...]
    dtype: str
    seed: int
    kind: str = "normal"
    """``normal``; ``positive``; ``nan`` among them; whole numbers that index, ``below`` a limit or ``distinct``."""
    limit: int = 0
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A function by its name: ``np.sum``, ``.reshape`` (a method), ``[]`` (an index), ``[]=`` (a write)."""

    function: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def refs(self) -> Iterator[int]:
        yield from _refs((self.args, tuple(value for _, value in self.kwargs)))

    @property
    def writes(self) -> bool:
        """Whether it changes its first argument in place."""
        name = self.function
        return name == "[]=" or (name.startswith(".") and name.endswith("_"))

    def renamed(self, names: Mapping[int, int]) -> Call:
        kwargs = tuple((key, _renamed(value, names)) for key, value in self.kwargs)
        return Call(self.function, _renamed(self.args, names), kwargs)

    def apply(self, pool: Sequence[Any]) -> Any:
        args = [_bound(value, pool) for value in self.args]
        kwargs = {key: _bound(value, pool) for key, value in self.kwargs}
        if self.function == "[]":
            return args[0][args[1]]
        if self.function == "[]=":
            args[0][args[1]] = args[2]
            return args[0]
        if self.function.startswith("."):
            return getattr(args[0], self.function[1:])(*args[1:], **kwargs)
        return resolve(self.function)(*args, **kwargs)

    def text(self, made: int) -> str:
        args = [_text(value) for value in self.args]
        kwargs = [f"{key}={_text(value)}" for key, value in self.kwargs]
        if self.function == "[]":
            return f"v{made} = {args[0]}[{_key_text(self.args[1])}]"
        if self.function == "[]=":
            return f"v{made} = {args[0]}; v{made}[{_key_text(self.args[1])}] = {args[2]}"
        if self.function.startswith("."):
            return f"v{made} = {args[0]}{self.function}({', '.join([*args[1:], *kwargs])})"
        return f"v{made} = {self.function}({', '.join([*args, *kwargs])})"


@dataclass(frozen=True, slots=True)
class FuzzProgram:
    """Called with arrays, tensors or traced values it computes; ``body`` is the same as lines of Python."""

    inputs: tuple[Fill, ...]
    calls: tuple[Call, ...]
    returned: tuple[int, ...]
    frontend: str = "numpy"
    backward: bool = False
    """Whether gradients of the sum of squares of what is returned are returned, too."""
    constraints: tuple[tuple[int, str], ...] = ()
    """Shardings said inside the program, by value."""

    @property
    def __name__(self) -> str:
        return "fuzz"

    def __call__(self, *arguments: Any) -> list[Any]:
        pool = self.values(arguments)
        returned = [pool[i] for i in self.returned]
        return [*returned, *self._gradients(returned, pool)] if self.backward else returned

    def values(self, arguments: Sequence[Any]) -> list[Any]:
        """Every value, in order."""
        pool = list(arguments)
        said = dict(self.constraints)
        if self.backward:
            pool = [x.detach().requires_grad_() if fill.gradient else x for x, fill in zip(pool, self.inputs)]
        for call in self.calls:
            value = call.apply(pool)
            if len(pool) in said:
                value = resolve(CONSTRAIN)(value, said[len(pool)])
            pool.append(value)
        return pool

    def _gradients(self, returned: Sequence[Any], pool: Sequence[Any]) -> list[Any]:
        torch = import_module("torch")
        leaves = [x for x, fill in zip(pool, self.inputs) if fill.gradient]
        total = sum(value.double().square().sum() for value in returned if value.requires_grad)
        made = torch.autograd.grad(total, leaves, allow_unused=True)
        return [grad for grad in made if grad is not None]

    def arguments(self) -> list[Any]:
        return [argument(fill, self.frontend) for fill in self.inputs]

    def body(self) -> list[str]:
        """The lines of the function."""
        said, lines = dict(self.constraints), []
        leaves = ", ".join(f"v{i}" for i, fill in enumerate(self.inputs) if fill.gradient)
        if self.backward:
            lines.append(f"{leaves}, = (x.detach().requires_grad_() for x in ({leaves},))")
        for made, call in enumerate(self.calls, len(self.inputs)):
            lines.append(call.text(made))
            if made in said:
                lines.append(f"v{made} = {CONSTRAIN}(v{made}, {said[made]!r})")
        out = ", ".join(f"v{i}" for i in self.returned)
        if not self.backward:
            return [*lines, f"return [{out}]"]
        lines.append(f"total = sum(y.double().square().sum() for y in [{out}] if y.requires_grad)")
        grads = f"torch.autograd.grad(total, [{leaves}], allow_unused=True)"
        return [*lines, f"return [{out}, *(g for g in {grads} if g is not None)]"]

    def read(self) -> list[int]:
        """The values that matter for what is returned; a write is read by what reads its array."""
        reads = set(self.returned)
        for made in reversed(range(len(self.inputs), len(self.inputs) + len(self.calls))):
            call = self.calls[made - len(self.inputs)]
            if made in reads or (call.writes and reads & set(call.refs())):
                reads |= {made, *call.refs()}
        return sorted(reads)

    def only(self, kept: Sequence[int]) -> FuzzProgram:
        """The program with these values alone, renumbered."""
        names = {old: new for new, old in enumerate(kept)}
        n = len(self.inputs)
        return replace(
            self,
            inputs=tuple(fill for i, fill in enumerate(self.inputs) if i in names),
            calls=tuple(call.renamed(names) for i, call in enumerate(self.calls, n) if i in names),
            returned=tuple(names[i] for i in self.returned),
            constraints=tuple((names[i], spec) for i, spec in self.constraints if i in names),
        )


def resolve(name: str) -> Callable[..., Any]:
    """The function that a dotted name stands for."""
    first, *rest = name.split(".")
    found: Any = import_module(MODULES[first])
    for part in rest:
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def argument(fill: Fill, frontend: str) -> Any:
    """The numbers of an input, the same for the same seed."""
    import numpy as np

    random = np.random.default_rng(fill.seed)
    numbers: Any
    if fill.dtype == "bool":
        numbers = random.random(fill.shape) > 0.4
    elif fill.kind == "below":
        numbers = random.integers(0, fill.limit, fill.shape)
    elif fill.kind == "distinct":
        numbers = random.permutation(fill.limit)[: fill.shape[0]]
    elif "int" in fill.dtype:
        numbers = random.integers(-9, 10, fill.shape)
    else:
        numbers = random.standard_normal(fill.shape)
        if fill.kind == "positive":
            numbers = np.abs(numbers) + LEAST
        if fill.kind == "nan":
            numbers = np.where(np.abs(numbers) > 1.5, np.nan, numbers)
    if frontend == "numpy":
        return np.asarray(numbers).astype(fill.dtype)
    torch = import_module("torch")
    return torch.asarray(np.asarray(numbers)).to(getattr(torch, fill.dtype))


def _refs(value: Any) -> Iterator[int]:
    if isinstance(value, Ref):
        yield value.index
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _refs(item)


def _renamed(value: Any, names: Mapping[int, int]) -> Any:
    if isinstance(value, Ref):
        return Ref(names[value.index])
    if isinstance(value, tuple | list):
        return type(value)(_renamed(item, names) for item in value)
    return value


def _bound(value: Any, pool: Sequence[Any]) -> Any:
    if isinstance(value, Ref):
        return pool[value.index]
    if isinstance(value, Name):
        return resolve(value.text)
    if isinstance(value, tuple | list):
        return type(value)(_bound(item, pool) for item in value)
    return value


def _text(value: Any) -> str:
    if isinstance(value, Ref):
        return f"v{value.index}"
    if isinstance(value, Name):
        return value.text
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _key_text(key: Any) -> str:
    if isinstance(key, tuple) and key:
        return ", ".join(map(_key_text, key))
    if isinstance(key, slice):
        start, stop = ("" if bound is None else str(bound) for bound in (key.start, key.stop))
        return f"{start}:{stop}" + ("" if key.step is None else f":{key.step}")
    return "..." if key is Ellipsis else _text(key)
