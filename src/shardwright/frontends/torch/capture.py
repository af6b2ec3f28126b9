"""`capture`, `capture_step`: run a program once on fake tensors, and keep what it did as a `Graph`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import TraceError
from ...ir.digest import program_hash
from ...ir.graph import Graph, TensorType
from .aliasing import Record
from .dispatch import Interrupted, RecordingMode
from .dtypes import tensor_type
from .evaluate import run_graph
from .neutral import neutral_forms
from .private import FakeTensor, keystr, tree_flatten, tree_flatten_with_path, tree_unflatten
from .recorder import Recorder
from .state import GRADIENT, PARAMETER, Session, Slot, find_roots, named_arguments

RANDOM_TYPE = TensorType((2,), "i64")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True)
class Captured:
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
    """What among the arguments is no tensor: part of the program."""
    leaves: int
    slots: tuple[Slot, ...]
    consts: tuple[Any, ...]
    gradients: dict[str, int] = field(default_factory=dict)
    """Parameter to output: gradients that the program leaves in ``.grad``, where there was none."""
    cleared: tuple[str, ...] = ()
    """Parameters whose gradient the program resets to None."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.graph.values[value].name for value in self.graph.inputs)

    def inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The graph's inputs for these arguments, with the state as it is now."""
        state = [slot.read() for slot in self.slots]
        return [*self.tensors(*args, **kwargs), *state, *self.consts]

    def tensors(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The tensors among these arguments, which must be those of the capture but for their numbers."""
        leaves, spec = tree_flatten((args, kwargs))
        if spec != self.in_spec:
            raise TraceError(
                "the arguments are not built as they were when the program was captured",
                help="capture it again for these arguments",
            )
        statics = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        for leaf, known in zip(statics, self.statics):
            if leaf is not known and (not isinstance(known, _PLAIN) or leaf != known):
                raise TraceError(
                    f"an argument was {_brief(known)} when the program was captured, and is {_brief(leaf)} now",
                    help="only tensors may change between calls; capture the program again for another value",
                )
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate on real tensors: returns what the program returns, and changes what it changes."""
        inputs = self.inputs(*args, **kwargs)
        return self.deliver(inputs, run_graph(self.graph, inputs))

    def deliver(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Given the graph's outputs: change what the program changes, and return what it returns."""
        held = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        outputs = [
            output.clone() if output.untyped_storage().data_ptr() in held else output  # state is written in place below
            for output in outputs
        ]
        for position, output in self.graph.updates:
            if position < self.leaves:
                with torch.no_grad():
                    inputs[position].copy_(outputs[output])
            elif position < self.leaves + len(self.slots):
                self.slots[position - self.leaves].write(outputs[output])
            else:  # key and step of random numbers
                self.consts[position - self.leaves - len(self.slots)].copy_(outputs[output])
        owners = {slot.name: slot.owner for slot in self.slots if slot.kind == PARAMETER}
        for name, output in self.gradients.items():
            owners[name].grad = outputs[output]
        for name in self.cleared:
            owners[name].grad = None
        return self.result(outputs)

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
    return _run(fn, fn, args, kwargs, grad=not isinstance(fn, torch.nn.Module))


def capture_step(
    model: Callable[..., Any] | Any,
    *args: Any,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Captured:
    """Capture forward, backward and, with an optimizer, its step.

    ``loss`` makes the loss of what the model returns; without it that is the loss itself, or has it as ``.loss`` or
    ``["loss"]``.  The program returns the loss; without an optimizer also the gradients.

    >>> model = torch.nn.Linear(4, 2, device="meta")
    >>> step = capture_step(model, torch.zeros(3, 4), loss=lambda out: out.sum())
    >>> step.gradients
    {'weight': 1, 'bias': 2}
    """

    def step(*args: Any, **kwargs: Any) -> Any:
        out = model(*args, **kwargs)
        value = loss(out) if loss is not None else _loss(out)
        value.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        return value.detach()

    return _run(step, model, args, kwargs, grad=True, more=[("optimizer", optimizer)] if optimizer else ())


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
    fn: Any, named: Any, args: Sequence[Any], kwargs: dict[str, Any], grad: bool, more: Sequence[tuple[str, Any]] = ()
) -> Captured:
    session = Session([*find_roots(named, args, kwargs), *more])
    recorder = Recorder()
    mode = RecordingMode(recorder, session.scopes, session.fake)
    grad = grad and torch.is_grad_enabled()
    with session.swapped(), session.scopes.following(), torch.set_grad_enabled(grad):
        leaves, in_spec = tree_flatten((tuple(args), kwargs))
        stand_ins, tensors = _arguments(session, mode, named, args, kwargs, leaves)
        for slot in session.slots:
            mode.track(slot.fake, Record(recorder.input(tensor_type(slot.fake), slot.name)))
        fake_args, fake_kwargs = tree_unflatten(stand_ins, in_spec)
        with session.mode, mode, neutral_forms(recorder):
            try:
                result = fn(*fake_args, **fake_kwargs)
            except Interrupted as stop:
                raise stop.error from None
        found, out_spec = tree_flatten(result)
        outputs = [mode.value_of(leaf) for leaf in found if _is_output(leaf)]
        ends = _gradients(session, mode, outputs)
        states = [*((fake, fake) for fake in tensors), *((slot.fake, session.now(slot)) for slot in session.slots)]
        updates = [
            (i, mode.value_of(now))
            for i, (before, now) in enumerate(states)
            if now is not before or mode.written(before)
        ]
        if mode.random is not None:
            position = [value for value, _ in recorder.inputs].index(mode.random)
            updates.append((position, recorder.node("random.advance", [mode.random], [RANDOM_TYPE], {})[0]))
    return Captured(
        recorder.finish(_name(named), outputs, updates),
        in_spec,
        out_spec,
        tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in found),
        tuple(isinstance(leaf, torch.Tensor) for leaf in found),
        tuple(leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)),
        len(tensors),
        session.finished(),
        tuple(mode.consts),
        *ends,
    )


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
