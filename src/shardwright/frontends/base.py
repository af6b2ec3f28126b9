"""`Source`: what a frontend captured, in the one form that planning, running and training read.

A graph's inputs are the *data* of a call first (the arrays among its arguments), then *state*: whatever else the
program reads, each with a way to read it and, where the program changes it, to write it back.  `Input` says what each
is.  `Framework` is the other half of a frontend: how single ops are computed on real arrays, and the few array
operations that collectives are made of.

| a frontend is | |
|---|---|
| a package in `frontends/` | found by listing; importing it imports no framework |
| ``accepts(fn, args, kwargs)`` | whether it knows such a call; looks into ``sys.modules`` |
| ``FRAMEWORK`` | its `Framework` |
| ``source_of(fn, args, kwargs, optimizer=None, loss=None, training=False, form=StepForm())`` | captures it |
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from ..errors import GraphError, SpecError
from ..ir.graph import Graph, TensorType
from .failing import check_call, check_no_lists_of_numbers, telling

PARAMETER, BUFFER, OPTIMIZER, GRADIENT = "parameter", "buffer", "optimizer state", "gradient"
DATA, OPTION, RANDOM, CONSTANT = "data", "option", "random key", "constant"
ROLES = (PARAMETER, BUFFER, OPTIMIZER, GRADIENT, DATA, OPTION, RANDOM, CONSTANT)
FORWARD, BACKWARD, NORM, UPDATE = "forward", "backward", "norm", "update"
Prepared = Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Input:
    """What one input of a captured graph is."""

    name: str
    role: str
    module: str = ""
    """The path of the module that holds it."""
    owner: str = ""
    """For state of a parameter (moments, gradients): the parameter's name."""
    batch_dim: int | None = None
    """For data: the dim that counts examples; None where it has none or nobody knows."""


@dataclass(frozen=True, slots=True)
class StepForm:
    """What belongs to a training step beside forward, backward and the optimizer's own step."""

    clip_grad_norm: float | None = None
    """Gradients are scaled down to this norm, all together."""
    accumulate: int = 1
    """How many batches add up to one update; each is one call of the captured program, without its update."""
    autocast: Any = None
    """The element type that forward computes in, as PyTorch's autocast does; parameters keep theirs."""
    reduce_dtype: Any = None
    """The element type in which gradients are summed over devices."""
    checked: bool = False
    """Whether somebody looks at the norm before the update."""

    @property
    def has_norm(self) -> bool:
        return self.checked or self.clip_grad_norm is not None


PLAIN = StepForm()


class Arrays(Protocol):
    """The handful of array operations that collectives are made of, for one framework."""

    def concatenate(self, parts: Sequence[Any], dim: int) -> Any: ...

    def combine(self, kind: str, parts: Sequence[Any]) -> Any: ...

    def part(self, array: Any, dim: int, start: int, stop: int) -> Any: ...

    def neutral_like(self, kind: str, array: Any) -> Any: ...

    def number(self, value: int) -> Any: ...

    def shape(self, array: Any) -> tuple[int, ...]: ...

    def item_bytes(self, array: Any) -> int: ...


class HostArrays(Arrays, Protocol):
    """The same, and what takes whole arrays apart on the host and puts them together."""

    def copy(self, array: Any) -> Any: ...

    def dtype(self, array: Any) -> str:
        """Its element type, by our name."""

    def at(self, array: Any, slices: tuple[slice, ...]) -> Any:
        """A part of a whole array: a view where the framework has views."""

    def joined(self, like: Any, shape: Sequence[int], parts: Sequence[tuple[tuple[slice, ...], Any]]) -> Any:
        """A whole array, of the element type of ``like``, from its parts and where they stand."""


class Framework(Protocol):
    """How ops are computed on real arrays."""

    @property
    def name(self) -> str: ...

    @property
    def arrays(self) -> HostArrays: ...

    @property
    def processes(self) -> str | None:
        """The engine that runs its programs on several processes, if there is one."""

    def prepare(self, op: str, attrs: Mapping[str, Any], results: Sequence[TensorType]) -> Prepared: ...

    def leaves(self, tree: Any) -> list[Any]:
        """The arrays (or what stands for one) among nested containers, in order."""

    def array_type(self, array: Any) -> TensorType: ...

    def filled(self, tree: Any, arrays: Sequence[Any]) -> Any:
        """The same containers with other arrays in the places of theirs."""

    def stand_in(self, array: Any, shape: Sequence[int]) -> Any:
        """Something that captures like an array of another shape, and has no numbers."""

    def signature(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
        """Equal for calls that one captured program serves."""

    def checkpointed(self, fn: Any) -> AbstractContextManager[tuple[str, ...]]:
        """Meanwhile layers of a model keep nothing for their backward pass; the names of the lists that they are in."""


def batch_dims(shapes: Sequence[tuple[int, ...]]) -> list[int | None]:
    """For each array of a call the dim that counts examples: the first, where it has the size that most have.

    >>> batch_dims([(8, 128), (8,), (1, 128), ()])
    [0, 0, None, None]
    """
    firsts = Counter(shape[0] for shape in shapes if shape)
    batch = max(firsts, key=lambda size: firsts[size], default=None)
    return [0 if shape and shape[0] == batch else None for shape in shapes]


class Leaf:
    """Stands for an array in the tree of a result."""


class Source(ABC):
    """A captured program: its graph, what its inputs are, and how calls and state go in and out of it."""

    graph: Graph

    @property
    @abstractmethod
    def framework(self) -> Framework: ...

    @property
    @abstractmethod
    def inputs_are(self) -> tuple[Input, ...]:
        """For every input of the graph what it is, data first."""

    @property
    def data_count(self) -> int:
        return sum(about.role == DATA for about in self.inputs_are)

    phases: tuple[str, ...]
    """For every node: forward, backward, norm (of all gradients) or update."""
    form: StepForm = PLAIN
    """Of a training step."""

    # -- a call ---------------------------------------------------------------------------------------------

    def check_alike(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse a call that differs from the captured one in more than the sizes of its arrays."""
        self.bind(args, kwargs)

    @abstractmethod
    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The data of a call, looked at: built, shaped and typed as it was when the program was captured."""

    def data_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arrays of a call in the order of the graph's inputs, not looked at."""
        return self.framework.leaves((args, dict(kwargs)))

    @abstractmethod
    def result(self, outputs: Sequence[Any]) -> Any:
        """What the program returns, from the graph's outputs."""

    @abstractmethod
    def result_tree(self) -> Any:
        """What it returns, with a `Leaf` for each array."""

    @property
    def results(self) -> int:
        """How many of the graph's outputs are what the program returns; gradients and new state follow."""
        return len(self.framework.leaves(self.result_tree()))

    def deliver(self, given: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """After a call: write what the program changes to where it was read from, and return what it returns."""
        count = len(given)
        for position, output in self.graph.updates:
            if position < count:
                self.write_data(given[position], outputs[output])
            else:
                self.write(position - count, outputs[output])
        for name, output in self.gradients.items():
            self.write_gradient(name, outputs[output])
        return self.result(outputs)

    # -- state ----------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, slot: int) -> Any:
        """The present array of a piece of state; slots are the graph's inputs after the data."""

    @abstractmethod
    def write(self, slot: int, array: Any) -> None:
        """Put the next state where the present one was read from."""

    def write_data(self, given: Any, array: Any) -> None:
        """Change an argument in place, as the program did."""
        raise SpecError("a captured program changes an argument, which its frontend cannot")

    gradients: Mapping[str, int] = MappingProxyType({})
    """Parameter -> output: gradients that the program leaves beside its results."""

    def write_gradient(self, name: str, array: Any) -> None:
        raise SpecError("this frontend has no gradients")

    @property
    def cleared_slots(self) -> tuple[int, ...]:
        """Gradients that the program leaves at nothing: the next call begins with zeros."""
        return ()

    def clear_gradients(self) -> None:  # noqa: B027  most programs have none
        """Let go of these gradients, as the program does."""

    # -- checkpoints ----------------------------------------------------------------------------------------

    def saved_names(self) -> Mapping[str, tuple[str, ...]]:
        """Parameters and buffers -> the names that the user's own checkpoints have for each; none if they leave it out.

        What is not named here is saved under its own name.
        """
        return {}

    def option_groups(self) -> list[dict[str, Any]]:
        """The numbers among the options of each group that an optimizer has, and the names of its parameters."""
        return []

    def check_option_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Refuse groups that are not those of `option_groups` but for their numbers."""
        if groups:
            raise SpecError("this frontend has no training steps")

    def set_option_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:  # noqa: B027  most programs have none
        """Write numbers into the options of the present groups."""

    def resumed(self, numbers: Mapping[str, float]) -> None:  # noqa: B027  most programs have no optimizer
        """Called when state of earlier steps was put in; ``numbers`` are those among an optimizer's state, by input."""

    # -- what may change ------------------------------------------------------------------------------------

    def is_of(self, fn: Any, optimizer: Any = None) -> bool:
        """Whether it was captured from this very function or module, and optimizer."""
        return False

    def fingerprint(self) -> Hashable:
        """Of what cannot change without a new program; compared at every step."""
        return ""

    def trained(self) -> Hashable:
        """Which parameters are trained at present."""
        return ()

    def evaluation(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Source:
        """Of a training step: the program of its loss alone."""
        raise SpecError("this frontend has no training steps")

    def stepped(self) -> None:  # noqa: B027  most programs have no optimizer
        """Called after each update: whoever counts the optimizer's steps is told."""

    def combined(self, results: Sequence[Any]) -> Any:
        """One result of several batches that add up to one."""
        raise SpecError("this frontend has no training steps")

    @abstractmethod
    def recapture(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Source:
        """The same program for data of other shapes."""


# -- which frontend -------------------------------------------------------------------------------------------


def frontends() -> Iterator[Any]:
    """All packages of `frontends/`, by listing; NumPy, which takes any function, last."""
    here = sys.modules[__package__ or "shardwright.frontends"]
    names = [module.name for module in pkgutil.iter_modules(here.__path__) if module.ispkg]
    for name in sorted(names, key=lambda name: (name == "numpy", name)):
        yield importlib.import_module(f"{here.__name__}.{name}")


def frontend_for(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The frontend that knows such a function and such arguments."""
    for frontend in frontends():
        if frontend.accepts(fn, args, kwargs):
            return frontend
    known = ", ".join(module.__name__.rpartition(".")[2] for module in frontends())
    raise SpecError("no frontend knows such a function", rows=[("frontends", known)])


def capture_source(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], **training: Any) -> Source:
    """What its frontend captures of a function; ``training`` as for ``source_of``."""
    check_call(fn, args, kwargs)
    check_no_lists_of_numbers(args, kwargs)
    with telling(fn, args, kwargs):
        source: Source = frontend_for(fn, args, kwargs).source_of(fn, args, kwargs, **training)
    return source


def run_nodes(
    graph: Graph,
    inputs: Sequence[Any],
    type_of: Callable[[Any], TensorType],
    prepare: Callable[[str, Mapping[str, Any], Sequence[TensorType]], Callable[[Sequence[Any]], Sequence[Any]]],
) -> list[Any]:
    """A graph's outputs, op by op on whole arrays; values are dropped after their last use."""
    if len(inputs) != len(graph.inputs):
        raise GraphError(f"{graph.name} takes {len(graph.inputs)} inputs, not {len(inputs)}")
    values = dict(zip(graph.inputs, inputs))
    for value, given in values.items():
        if type_of(given) != graph.type(value):
            kinds = f"{graph.type(value)}, not {type_of(given)}"
            raise GraphError(f"%{graph.values[value].name} of {graph.name} is {kinds}")
    last = {value: n for n, node in enumerate(graph.nodes) for value in node.inputs}
    for n, node in enumerate(graph.nodes):
        operands = [
            [values[value] for value in operand] if isinstance(operand, tuple) else None if operand is None else
            values[operand]
            for operand in node.operands
        ]  # fmt: skip
        types = graph.types(node.results)
        made = prepare(node.op, dict(node.attrs), types)(operands)
        for value, result, type in zip(node.results, made, types, strict=True):
            if type_of(result) != type:
                raise GraphError(
                    f"{node.op} gave {type_of(result)} where the graph says {type}",
                    rows=[("at", str(node.source))] if node.source else (),
                )
            values[value] = result
        for value in {*node.inputs, *node.results}:
            if last.get(value, n) <= n and not graph.output_uses[value]:
                del values[value]
    return [values[value] for value in graph.outputs]
