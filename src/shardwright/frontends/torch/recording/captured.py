"""`Captured`: a program of PyTorch as a `Source`: its graph, and how calls and state go in and out of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ....errors import TraceError
from ....ir.digest import program_hash
from ....ir.graph import Graph
from ...base import (
    BUFFER,
    CONSTANT,
    DATA,
    GRADIENT,
    OPTIMIZER,
    OPTION,
    PARAMETER,
    PLAIN,
    RANDOM,
    Input,
    Leaf,
    Source,
    StepForm,
    batch_dims,
)
from ..compute import run_graph
from ..dtypes import tensor_type
from ..framework import TORCH, TorchFramework
from ..private import tree_flatten, tree_unflatten
from ..steps.saving import check_option_groups, option_groups, saved_names, set_option_groups
from ..steps.watching import ModuleWatch, StepWatch
from .slots import Slot

TENSOR = object()
PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True)
class Captured(Source):
    """A captured program.

    The graph's inputs are the tensors among the arguments, then ``slots`` (parameters, buffers, gradients, optimizer
    state), then ``consts``: real tensors that the program came upon.  Its outputs are the tensors of the result, then
    ``gradients``, then the next states named in ``graph.updates``.
    """

    graph: Graph
    in_spec: Any
    out_spec: Any
    out_static: tuple[Any, ...]
    """The leaves of the result: a number where it is no tensor, else None."""
    out_tensors: tuple[bool, ...]
    statics: tuple[Any, ...]
    """The leaves of the arguments: what is no tensor is part of the program; `TENSOR` stands for one."""
    leaves: int
    slots: tuple[Slot, ...]
    consts: tuple[Any, ...]
    gradients: dict[str, int] = field(default_factory=dict)
    """Parameter to output: gradients that the program leaves in ``.grad``, where there was none."""
    cleared: tuple[str, ...] = ()
    """Parameters whose gradient the program resets to None."""
    phases: tuple[str, ...] = ()
    """Of every node: forward, backward or update."""
    device: Any = field(default=None, compare=False)
    """Where the real tensors are, if that is not the CPU; programs themselves do not depend on it."""
    keywords: tuple[str, ...] = ()
    """The keyword arguments, in the order of the capture; a call may give them in any."""
    roots: tuple[tuple[str, Any], ...] = field(default=(), compare=False, repr=False)
    """Modules and optimizers that it was captured from."""
    form: StepForm = PLAIN
    """Of a training step; one that has the norm of gradients returns it beside its result."""
    watches: tuple[StepWatch, ...] = field(default=(), compare=False, repr=False)
    """What of each optimizer cannot change without a new program."""
    captured_for: Hashable = field(default=(), compare=False, repr=False)
    """The fingerprint when it was captured."""
    again: Callable[[tuple[Any, ...], dict[str, Any]], Captured] | None = field(default=None, compare=False, repr=False)
    """Captures the same for other arguments."""
    evaluate: Callable[[tuple[Any, ...], dict[str, Any]], Captured] | None = field(
        default=None, compare=False, repr=False
    )
    """Captures the loss of a training step alone, as when a model is evaluated."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.graph.values[value].name for value in self.graph.inputs)

    def inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The graph's inputs for these arguments, with the state as it is now."""
        state = [slot.read() for slot in self.slots]
        return [*self.tensors(*args, **kwargs), *state, *self.consts]

    def tensors(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The tensors among these arguments, which must be those of the capture but for their numbers."""
        leaves, spec = tree_flatten((args, self._in_order(kwargs)))
        if spec != self.in_spec:
            raise TraceError(
                "the arguments are not built as they were when the program was captured",
                help="capture it again for these arguments",
            )
        for leaf, known in zip(leaves, self.statics, strict=True):
            if known is TENSOR:
                if not isinstance(leaf, torch.Tensor):
                    raise TraceError(
                        f"an argument was a tensor when the program was captured, and is {_brief(leaf)} now",
                        help="give a tensor: torch.as_tensor makes one of an array",
                    )
            elif leaf is not known and not (
                isinstance(known, PLAIN_TYPES) and type(leaf) is type(known) and leaf == known
            ):
                raise TraceError(
                    f"an argument was {_brief(known)} when the program was captured, and is {_brief(leaf)} now",
                    help="only tensors may change between calls; capture the program again for another value",
                )
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def _in_order(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        same = set(kwargs) == set(self.keywords)
        return {name: kwargs[name] for name in self.keywords} if same else dict(kwargs)

    def data_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        return self.framework.leaves((args, self._in_order(kwargs)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate on real tensors: returns what the program returns, and changes what it changes."""
        if self.watches and self.fingerprint() != self.captured_for:
            raise TraceError(
                "what cannot change without a new program has changed since this one was captured: modes, what is "
                "trained, parameter groups, or what an optimizer's step decides by its options",
                help="capture the program again",
            )
        inputs = self.inputs(*args, **kwargs)
        return self.deliver(inputs, run_graph(self.graph, inputs))

    def deliver(self, given: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Given the graph's outputs: change what the program changes, and return what it returns."""
        state = [self.read(slot) for slot in range(len(self.graph.inputs) - self.leaves)]
        held = {tensor.untyped_storage().data_ptr() for tensor in (*given, *state)}
        outputs = [
            output.clone() if output.untyped_storage().data_ptr() in held else output  # state is written in place below
            for output in outputs
        ]
        for position, output in self.graph.updates:
            if position < self.leaves:
                self.write_data(given[position], outputs[output])
            else:
                self._put(position - self.leaves, outputs[output])
        owners = {slot.name: slot.owner for slot in self.slots if slot.kind == PARAMETER}
        for name, output in self.gradients.items():
            owners[name].grad = outputs[output]
        for name in self.cleared:
            owners[name].grad = None
        return self.result(outputs)

    # -- as a `Source` --------------------------------------------------------------------------------------

    @cached_property
    def framework(self) -> TorchFramework:
        """On the device that arguments and parameters were on when the program was captured."""
        return TORCH if self.device is None else TorchFramework(self.device)

    @cached_property
    def inputs_are(self) -> tuple[Input, ...]:
        """Arguments, then slots, then constants; a constant that the program changes is its key of random numbers."""
        graph, names = self.graph, self.names
        dims = batch_dims([graph.type(value).shape for value in graph.inputs[: self.leaves]])
        found = [Input(name, DATA, batch_dim=dim) for name, dim in zip(names, dims)]
        changed = {position for position, _ in graph.updates}
        parameters = {id(slot.owner): slot.name for slot in self.slots if slot.kind == PARAMETER}
        for position, slot in enumerate(self.slots, self.leaves):
            own = slot.kind in (PARAMETER, BUFFER)
            owner = "" if own else parameters.get(id(slot.owner), "")
            number = not graph.type(graph.inputs[position]).shape and position not in changed
            role = OPTION if slot.kind == OPTIMIZER and number else slot.kind
            found.append(Input(slot.name, role, (slot.name if own else owner).rpartition(".")[0], owner))
        rest = range(self.leaves + len(self.slots), len(graph.inputs))
        return (*found, *(Input(names[at], RANDOM if at in changed else CONSTANT) for at in rest))

    @property
    def data_count(self) -> int:
        return self.leaves

    def check_alike(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for value, tensor in zip(self.graph.inputs, self.tensors(*args, **kwargs)):
            known, found = self.graph.type(value), tensor_type(tensor)
            if (known.dtype, known.rank) != (found.dtype, found.rank):
                raise TraceError(
                    f"{self.graph.values[value].name} is {found}, but the step was made for {known}",
                    help="sizes may differ between calls; element types and numbers of dims may not",
                )

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        found = self.tensors(*args, **kwargs)
        for value, tensor in zip(self.graph.inputs, found):
            if tensor_type(tensor) != self.graph.type(value):
                name, wanted = self.graph.values[value].name, self.graph.type(value)
                raise TraceError(
                    f"{name} is {tensor_type(tensor)}, but the program was captured for {wanted}",
                    help="give tensors of these shapes and types, or capture the program again for others",
                )
        return found

    def read(self, slot: int) -> Any:
        return self.slots[slot].read() if slot < len(self.slots) else self.consts[slot - len(self.slots)]

    def write(self, slot: int, array: Any) -> None:
        self._put(slot, array.clone())

    def _put(self, slot: int, array: Any) -> None:
        if slot < len(self.slots):
            self.slots[slot].write(array)
        else:  # key and step of random numbers
            self.consts[slot - len(self.slots)].copy_(array)

    def write_data(self, given: Any, array: Any) -> None:
        with torch.no_grad():
            given.copy_(array)

    def write_gradient(self, name: str, array: Any) -> None:
        owner = next(slot.owner for slot in self.slots if slot.kind == PARAMETER and slot.name == name)
        owner.grad = array.clone()

    @property
    def cleared_slots(self) -> tuple[int, ...]:
        owners = {id(slot.owner) for slot in self.slots if slot.kind == PARAMETER and slot.name in self.cleared}
        return tuple(i for i, slot in enumerate(self.slots) if slot.kind == GRADIENT and id(slot.owner) in owners)

    def clear_gradients(self) -> None:
        for slot in self.cleared_slots:
            self.slots[slot].owner.grad = None

    def result_tree(self) -> Any:
        return tree_unflatten([Leaf() if is_tensor else None for is_tensor in self.out_tensors], self.out_spec)

    @property
    def results(self) -> int:
        return sum(self.out_tensors)

    def is_of(self, fn: Any, optimizer: Any = None) -> bool:
        found = [root for _, root in self.roots]
        wanted = [fn, *optimizers_of(optimizer)]
        return all(any(root is item for root in found) for item in wanted)

    @cached_property
    def _modules(self) -> ModuleWatch:
        return ModuleWatch(root for _, root in self.roots if isinstance(root, torch.nn.Module))

    def fingerprint(self) -> Hashable:
        """Of modules' modes, what is trained, how optimizers group it, and what was decided by options; numbers among
        options may change.  Cheap, and reads nothing from a device."""
        return (self._modules.facts(), *(watch.facts() for watch in self.watches))

    def trained(self) -> Hashable:
        return tuple(slot.name for slot in self.slots if slot.kind == PARAMETER and slot.owner.requires_grad)

    def evaluation(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Captured:
        if self.evaluate is None:
            raise TraceError(
                "this step was captured whole, so it cannot be evaluated without training",
                help="make it with train_step(model, loss=..., ...), or shard_map the model",
            )
        return self.evaluate(args, dict(kwargs))

    def stepped(self) -> None:
        for watch in self.watches:
            watch.advance()

    def resumed(self, numbers: Mapping[str, float]) -> None:
        for watch in self.watches:
            watch.resume(numbers)

    def saved_names(self) -> dict[str, tuple[str, ...]]:
        return saved_names(self.roots, self.slots)

    def option_groups(self) -> list[dict[str, Any]]:
        return option_groups(self.roots, self.slots)

    def check_option_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        check_option_groups(self.option_groups(), groups)

    def set_option_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        set_option_groups(self.roots, groups)

    def combined(self, results: Sequence[Any]) -> Any:
        """One result of several batches: numbers are averaged, counts added up, other tensors joined along dim 0."""
        first = results[0]
        if first.dim():
            return torch.cat(list(results))
        total = torch.stack(list(results)).sum(0)
        return total / len(results) if first.is_floating_point() else total

    def recapture(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Captured:
        assert self.again is not None
        return self.again(args, dict(kwargs))

    def result(self, outputs: Sequence[Any]) -> Any:
        """What the program returns, from the graph's outputs."""
        tensors = iter(outputs)
        filled = [
            next(tensors) if is_tensor else static for is_tensor, static in zip(self.out_tensors, self.out_static)
        ]
        return tree_unflatten(filled, self.out_spec)

    @property
    def hash(self) -> str:
        return program_hash(self.graph)


def optimizers_of(optimizer: Any) -> list[Any]:
    """
    >>> optimizers_of(None)
    []
    """
    return [] if optimizer is None else list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]


def _brief(item: Any) -> str:
    return repr(item) if isinstance(item, PLAIN_TYPES) else f"another {type(item).__name__}"
