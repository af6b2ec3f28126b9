"""`capture`, `capture_step`: run a program once on fake tensors, and keep what it did as a `Graph`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ...errors import TraceError
from ...ir.digest import program_hash
from ...ir.graph import Graph, TensorType
from ..base import (
    BUFFER,
    CONSTANT,
    DATA,
    GRADIENT,
    OPTIMIZER,
    OPTION,
    PARAMETER,
    RANDOM,
    Input,
    Leaf,
    Source,
)
from .aliasing import Record
from .compute import run_graph
from .dispatch import Interrupted, RecordingMode
from .dtypes import tensor_type
from .framework import TORCH, TorchFramework
from .neutral import neutral_forms
from .private import FakeTensor, keystr, tree_flatten, tree_flatten_with_path, tree_unflatten
from .recorder import Recorder
from .slots import Slot
from .state import Session, find_roots, named_arguments
from .watching import Ledger, ModuleWatch, StepWatch

RANDOM_TYPE = TensorType((2,), "i64")
_TENSOR = object()
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


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
    """The leaves of the arguments: what is no tensor is part of the program; `_TENSOR` stands for one."""
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
    watches: tuple[StepWatch, ...] = field(default=(), compare=False, repr=False)
    """What of each optimizer cannot change without a new program."""
    captured_for: Hashable = field(default=(), compare=False, repr=False)
    """The fingerprint when it was captured."""
    again: Callable[[tuple[Any, ...], dict[str, Any]], Captured] | None = field(default=None, compare=False, repr=False)
    """Captures the same for other arguments."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.graph.values[value].name for value in self.graph.inputs)

    def inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The graph's inputs for these arguments, with the state as it is now."""
        state = [slot.read() for slot in self.slots]
        return [*self.tensors(*args, **kwargs), *state, *self.consts]

    def tensors(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The tensors among these arguments, which must be those of the capture but for their numbers."""
        if set(kwargs) == set(self.keywords):
            kwargs = {name: kwargs[name] for name in self.keywords}
        leaves, spec = tree_flatten((args, kwargs))
        if spec != self.in_spec:
            raise TraceError(
                "the arguments are not built as they were when the program was captured",
                help="capture it again for these arguments",
            )
        for leaf, known in zip(leaves, self.statics, strict=True):
            if known is _TENSOR:
                if not isinstance(leaf, torch.Tensor):
                    raise TraceError(
                        f"an argument was a tensor when the program was captured, and is {_brief(leaf)} now",
                        help="give a tensor: torch.as_tensor makes one of an array",
                    )
            elif leaf is not known and not (isinstance(known, _PLAIN) and type(leaf) is type(known) and leaf == known):
                raise TraceError(
                    f"an argument was {_brief(known)} when the program was captured, and is {_brief(leaf)} now",
                    help="only tensors may change between calls; capture the program again for another value",
                )
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

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
        shapes = [graph.type(value).shape for value in graph.inputs[: self.leaves]]
        firsts = Counter(shape[0] for shape in shapes if shape)
        batch = max(firsts, key=lambda size: firsts[size], default=None)
        found = [
            Input(name, DATA, batch_dim=0 if shape and shape[0] == batch else None)
            for name, shape in zip(names, shapes)
        ]
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

    def result_tree(self) -> Any:
        return tree_unflatten([Leaf() if is_tensor else None for is_tensor in self.out_tensors], self.out_spec)

    @property
    def results(self) -> int:
        return sum(self.out_tensors)

    def is_of(self, fn: Any, optimizer: Any = None) -> bool:
        found = [root for _, root in self.roots]
        wanted = [fn, *_optimizers(optimizer)]
        return all(any(root is item for root in found) for item in wanted)

    @cached_property
    def _modules(self) -> ModuleWatch:
        return ModuleWatch(root for _, root in self.roots if isinstance(root, torch.nn.Module))

    def fingerprint(self) -> Hashable:
        """Of modules' modes, what is trained, how optimizers group it, and what was decided by options; numbers among
        options may change.  Cheap, and reads nothing from a device."""
        return (self._modules.facts(), *(watch.facts() for watch in self.watches))

    def advance(self) -> None:
        for watch in self.watches:
            watch.advance()

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


def capture(fn: Callable[..., Any] | Any, *args: Any, **kwargs: Any) -> Captured:
    """Capture a function, a module or an `ExportedProgram`.

    Modules and optimizers that the function is, is given or closes over are state: inputs by name, and updates where
    the program changes them.  A function that calls ``loss.backward()`` and ``optimizer.step()`` is a training step.
    A module is captured without gradients.

    >>> model = torch.nn.Linear(4, 2, device="meta")
    >>> captured = capture(model, torch.zeros(3, 4))
    >>> captured.names
    ('input', 'weight', 'bias')
    >>> [node.op for node in captured.graph.nodes]
    ['aten.t', 'aten.addmm']
    """
    if isinstance(fn, torch.export.ExportedProgram):
        from .exported import as_module

        fn = as_module(fn)
    return _capture(fn, args, kwargs, {})


def _capture(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], ledgers: dict[int, Ledger]) -> Captured:
    """``ledgers``: what is known of optimizers' state that somebody keeps."""
    made = _run(fn, fn, args, kwargs, grad=not isinstance(fn, torch.nn.Module), ledgers=ledgers)
    return replace(made, again=lambda args, kwargs: _capture(fn, args, dict(kwargs), ledgers))


def capture_step(
    model: Callable[..., Any] | Any,
    *args: Any,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    loss: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Captured:
    """Capture forward, backward and, with an optimizer or several, their steps.

    ``loss`` makes the loss of what the model returns; without it that is the loss itself, or has it as ``.loss`` or
    ``["loss"]``.  The program returns the loss; without an optimizer also the gradients.

    >>> model = torch.nn.Linear(4, 2, device="meta")
    >>> step = capture_step(model, torch.zeros(3, 4), loss=lambda out: out.sum())
    >>> step.gradients
    {'weight': 1, 'bias': 2}
    """

    return _capture_step(model, args, kwargs, optimizer, loss, {})


def _capture_step(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], optimizer: Any, loss: Any, ledgers: dict[int, Ledger]
) -> Captured:
    several = _optimizers(optimizer)
    for one in several:
        _check_optimizer(one)
    if loss is not None and not callable(loss):
        raise TraceError(f"loss= takes a function of what the model returns, not {loss!r}", help=_LOSS)

    def step(*args: Any, **kwargs: Any) -> Any:
        out = model(*args, **kwargs)
        value = _scalar(loss(out)) if loss is not None else _loss(out)
        value.backward()
        for one in several:
            one.step()
        for one in several:
            one.zero_grad()
        return value.detach()

    single = isinstance(optimizer, torch.optim.Optimizer)
    more = [("optimizer" if single else f"optimizer.{i}", one) for i, one in enumerate(several)]
    made = _run(step, model, args, kwargs, grad=True, more=more, ledgers=ledgers)
    return replace(made, again=lambda args, kwargs: _capture_step(model, args, dict(kwargs), optimizer, loss, ledgers))


def _optimizers(optimizer: Any) -> list[Any]:
    """
    >>> _optimizers(None)
    []
    """
    return [] if optimizer is None else list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]


def _check_optimizer(optimizer: Any) -> None:
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TraceError(
            f"optimizer= takes an optimizer, not {getattr(optimizer, '__name__', repr(optimizer))}",
            help="make one of the model's parameters: torch.optim.AdamW(model.parameters(), lr=1e-3)",
        )


_LOSS = "write loss=lambda out: ...mean(), a function of the model's output alone; targets it may close over"


def _scalar(value: Any) -> Any:
    """One number, which gradients flow from."""
    if not isinstance(value, torch.Tensor) or value.dim():
        what = (
            f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        )
        raise TraceError(f"loss= returns {what}, not one number", help=_LOSS)
    if not value.requires_grad:
        raise TraceError("the loss does not depend on any parameter that is trained", help=_LOSS)
    return value


def _loss(out: Any) -> Any:
    found = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    found = out if found is None else found
    if not isinstance(found, torch.Tensor) or found.dim():
        raise TraceError(
            f"the model returns a {type(out).__name__}, in which there is no loss",
            help="pass loss=, a function of what the model returns; or the labels, if the model takes them",
        )
    return found


def _run(
    fn: Any,
    named: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    grad: bool,
    more: Sequence[tuple[str, Any]] = (),
    ledgers: dict[int, Ledger] | None = None,
) -> Captured:
    recorder = Recorder()
    session = Session([*find_roots(named, args, kwargs), *more], recorder, ledgers)
    mode = session.recording
    grad = grad and torch.is_grad_enabled()
    with session.swapped(), session.scopes.following(), torch.set_grad_enabled(grad):
        leaves, in_spec = tree_flatten((tuple(args), kwargs))
        stand_ins, tensors = _arguments(session, mode, named, args, kwargs, leaves)
        for slot in session.slots:
            session.enter(slot)
        fake_args, fake_kwargs = tree_unflatten(stand_ins, in_spec)
        with session.mode, mode, neutral_forms(recorder):
            try:
                result = fn(*fake_args, **fake_kwargs)
            except Interrupted as stop:
                raise stop.error from None
        found, out_spec = tree_flatten(result)
        outputs = [mode.value_of(leaf) for leaf in found if _is_output(leaf)]
        ends = _gradients(session, mode, outputs)
        recorder.order_inputs(len(tensors), [slot.value for slot in session.slots])
        states = [*((fake, fake) for fake in tensors), *((slot.fake, session.now(slot)) for slot in session.slots)]
        updates = [
            (i, mode.value_of(now))
            for i, (before, now) in enumerate(states)
            if now is not before or mode.written(before)
        ]
        if mode.random is not None:
            position = [value for value, _ in recorder.inputs].index(mode.random)
            updates.append((position, recorder.node("random.advance", [mode.random], [RANDOM_TYPE], {})[0]))
    watches = tuple(stepper.watch() for stepper in session.steppers)
    made = Captured(
        recorder.finish(_name(named), outputs, updates),
        in_spec,
        out_spec,
        tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in found),
        tuple(isinstance(leaf, torch.Tensor) for leaf in found),
        tuple(_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves),
        len(tensors),
        session.finished(),
        tuple(mode.consts),
        *ends,
        phases=recorder.phases,
        device=_device(leaves, session.slots),
        keywords=tuple(kwargs),
        roots=(*session.modules, *session.optimizers),
        watches=watches,
    )
    return replace(made, captured_for=made.fingerprint()) if watches else made


def _arguments(
    session: Session, mode: RecordingMode, fn: Any, args: Sequence[Any], kwargs: dict[str, Any], leaves: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The leaves with fakes for tensors, and these fakes; a parameter among the arguments is the module's."""
    names = [
        name + keystr(path).replace("['", ".").replace("']", "").replace("[", ".").replace("]", "")
        for name, argument in named_arguments(fn, args, kwargs)
        for path, _ in tree_flatten_with_path(argument)[0]
    ]
    stand_ins: list[Any] = []
    tensors: list[Any] = []
    for name, leaf in zip(names, leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            stand_ins.append(leaf)
        elif id(leaf) in session.by_tensor:
            raise TraceError(f"{name} is a parameter of a module that is captured", help="pass the module only")
        else:
            fake = session.fake(leaf)
            mode.track(fake, Record(mode.recorder.input(tensor_type(fake), name)))
            stand_ins.append(fake)
            tensors.append(fake)
    return stand_ins, tensors


def _device(leaves: Sequence[Any], slots: Sequence[Slot]) -> Any:
    """Of the first tensor that has one beside the CPU; tensors on the meta device are nowhere."""
    real = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    real += [slot.owner for slot in slots if isinstance(slot.owner, torch.Tensor)]
    return next((tensor.device for tensor in real if tensor.device.type not in ("cpu", "meta")), None)


def _is_output(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return True
    if isinstance(leaf, _PLAIN):
        return False
    raise TraceError(
        f"the program returns a {type(leaf).__name__}",
        help="return tensors, numbers, or dicts, lists and tuples of them (for a model with a cache: use_cache=False)",
    )


def _gradients(session: Session, mode: RecordingMode, outputs: list[int]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Gradients are left in ``.grad``: new ones are outputs, old ones state."""
    before = {id(slot.owner): slot for slot in session.slots if slot.kind == GRADIENT}
    made: dict[str, int] = {}
    cleared: list[str] = []
    for slot in session.slots:
        if slot.kind != PARAMETER:
            continue
        grad, held = slot.fake.grad, before.get(id(slot.owner))
        if grad is None and held is not None:
            cleared.append(slot.name)
        elif isinstance(grad, FakeTensor) and (held is None or grad is not held.fake):
            made[slot.name] = len(outputs)
            outputs.append(mode.value_of(grad))
    return made, tuple(cleared)


def _brief(item: Any) -> str:
    return repr(item) if isinstance(item, _PLAIN) else f"another {type(item).__name__}"


def _name(fn: Any) -> str:
    inner = getattr(fn, "func", fn)  # of a functools.partial
    name = getattr(inner, "__name__", type(inner).__name__)
    return "main" if name == "<lambda>" else str(name)
