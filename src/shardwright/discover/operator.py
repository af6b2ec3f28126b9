"""What discovery studies: an operator, and samples of calls of it.

Tensors are NumPy arrays here; the operator's library turns them into its own and back.  So one oracle serves
every framework, and nothing in this file knows one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

REQUIRED = object()
"""The default of an argument that has none."""


class Library(Protocol):
    """How a framework's tensors are made from arrays, and read."""

    name: str

    def tensor(self, array: Array) -> Any: ...

    def array(self, tensor: Any) -> Array: ...

    def is_tensor(self, value: object) -> bool: ...

    def copy(self, tensor: Any) -> Any: ...


class NumpyLibrary:
    """NumPy's arrays are themselves."""

    name = "numpy"

    def tensor(self, array: Array) -> Any:
        return array

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, (np.ndarray, np.generic))

    def copy(self, tensor: Any) -> Any:
        return np.array(tensor)


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the operator."""

    name: str
    tensor: bool
    """Takes a tensor, or a list of tensors."""
    default: Any = REQUIRED
    keyword_only: bool = False
    type: str = ""
    """As the library writes it: ``int``, ``int[]``, ``Scalar``, ``str?``; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A function of tensors, with the names of its arguments."""

    name: str
    """As a user writes it: ``torch.cross``."""
    call: Callable[..., Any]
    library: Library
    arguments: tuple[Argument, ...] = ()
    mutates: tuple[str, ...] = ()
    """Names of arguments that it writes to: their new values are its first results."""
    random: bool = False
    overload: str = ""
    """The ATen overload that ``call`` is, ``aten.linalg_cross.default``; empty for other functions."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def never_judged(self) -> str:
        """Why no run of it can be compared with another; empty if it can."""
        if self.random:
            return "its numbers are random"
        return "its result is not initialised" if "empty" in self.short_name.split("_") else ""

    @property
    def short_name(self) -> str:
        """The name without its module, by which generators are registered: ``cross``."""
        parts = (self.overload or self.name).split(".")
        name = parts[1] if self.overload else parts[-1]
        return name.removeprefix("linalg_").removesuffix("_")


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands in a sample's arguments for its tensor number `index`."""

    index: int


Role = Literal["data", "index", "mask"]
"""What a tensor holds: numbers; positions, pivots or classes, legal only as they are; truth values."""


@dataclass(frozen=True)
class Sample:
    """One call: arguments with `Slot` for each tensor, and the tensors as arrays."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: tuple[Array, ...]
    roles: tuple[Role, ...]
    label: str = ""
    """Where it is from: ``OpInfo 3``, ``schema``, ``gen_orthogonal``."""

    def __post_init__(self) -> None:
        if len(self.roles) != len(self.tensors):
            raise ValueError(f"{len(self.tensors)} tensors, but {len(self.roles)} roles")

    def with_tensors(self, tensors: tuple[Array, ...], label: str = "") -> Sample:
        return replace(self, tensors=tensors, label=label or self.label)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tensor.shape for tensor in self.tensors)

    def bound(self, operator: Operator) -> dict[str, Any]:
        """Every argument by name, defaults filled in; tensors as slots.  Unnamed ones are ``arg0``, ``arg1``, ..."""
        names = [argument.name for argument in operator.arguments]
        found = {names[i] if i < len(names) else f"arg{i}": value for i, value in enumerate(self.args)}
        found.update(self.kwargs)
        for argument in operator.arguments:
            if argument.name not in found and argument.default is not REQUIRED:
                found[argument.name] = argument.default
        return found

    def values(self, operator: Operator) -> dict[str, Any]:
        """The arguments that hold no tensor, by name, defaults filled in."""
        bound = self.bound(operator).items()
        return {name: value for name, value in bound if not any(True for _ in slots_in(value))}

    def tensor_names(self, operator: Operator) -> tuple[str, ...]:
        """The argument that each tensor is, ``input`` or ``tensors[1]``, by its number."""
        names: dict[int, str] = {}
        for name, value in self.bound(operator).items():
            inside = list(slots_in(value))
            for place, slot in enumerate(inside):
                names[slot.index] = name if isinstance(value, Slot) else f"{name}[{place}]"
        return tuple(names.get(i, f"tensor{i}") for i in range(len(self.tensors)))

    def fill(self, tensors: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call, with these tensors in the slots."""
        args = tuple(_filled(value, tensors) for value in self.args)
        return args, {name: _filled(value, tensors) for name, value in self.kwargs.items()}

    def key(self, operator: Operator) -> tuple[object, ...]:
        """Shapes, dtypes and other arguments: samples with equal keys teach the same."""
        dtypes = tuple(tensor.dtype.str for tensor in self.tensors)
        return self.shapes, dtypes, tuple(sorted((k, repr(v)) for k, v in self.values(operator).items()))


def leaves(value: Any) -> Iterator[Any]:
    """What a call returned, lists and tuples looked through."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def slots_in(value: object) -> Iterator[Slot]:
    """The slots in an argument, lists looked through."""
    if isinstance(value, Slot):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from slots_in(item)


def _filled(value: Any, tensors: list[Any]) -> Any:
    if isinstance(value, Slot):
        return tensors[value.index]
    if isinstance(value, (list, tuple)) and any(True for _ in slots_in(value)):
        return type(value)(_filled(item, tensors) for item in value)
    return value


_DIM_NAMES = re.compile(r"(.*_)?(dims?|dimensions?|axis|axes|axe)_?\d*|source|destination")


def names_dims(operator: Operator, name: str) -> bool:
    """Whether an argument names dims: it is called so, or it was seen to take dims and nothing else (`calls.fresh`)."""
    return _DIM_NAMES.fullmatch(name) is not None or name in operator.facts.get("dims", ())
