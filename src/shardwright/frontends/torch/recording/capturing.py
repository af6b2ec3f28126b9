"""`capture`, `capture_step`: run a program once on fake tensors, and keep what it did as a `Graph`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import torch

from ....errors import TraceError
from ....ir.graph import Graph, SourceLine, TensorType
from ...base import GRADIENT, NORM, PARAMETER, PLAIN, UPDATE, StepForm
from ...failing import check_call
from ..dtypes import tensor_type
from ..private import FakeTensor, keystr, quiet, tree_flatten, tree_flatten_with_path, tree_unflatten
from ..steps.watching import Ledger
from .aliasing import Record
from .captured import PLAIN_TYPES, TENSOR, Captured, optimizers_of
from .dispatch import Interrupted, RecordingMode
from .neutral import neutral_forms
from .recorder import Recorder
from .slots import Slot
from .source import SPOKEN_FOR, following
from .state import Session, find_roots, named_arguments

_ALIKE = frozenset(
    {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.dot", "aten.addmv", "aten.convolution"}
)
"""Operators all of whose operands have one type."""


def check_products(graph: Graph) -> None:
    """Refuse what a call on real tensors would refuse."""
    for node in graph.nodes:
        if node.op not in _ALIKE:
            continue
        types = [graph.type(value).dtype for value in node.inputs]
        if len(set(types)) > 1:
            error = TraceError(
                f"{node.op} of {' and '.join(dict.fromkeys(types))}: PyTorch multiplies tensors of one element type",
                rows=[("operands", ", ".join(str(graph.type(value)) for value in node.inputs))],
                help="bring them to one: x.to(weight.dtype), or model.to(x.dtype)",
            )
            raise error if node.source is None else error.add("at", node.source)


_FILE = re.compile(r'File "([^"]+)", line (\d+)')


def as_module(program: Any) -> Any:
    """The program's module; its own code has generated lines, so the nodes are run one by one."""
    module = program.module()
    interpreter = _Located(module)
    generated = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return generated(*args, **kwargs) if kwargs else interpreter.run(*args)

    module.forward = forward
    return module


class _Located(torch.fx.Interpreter):
    def run_node(self, n: Any) -> Any:
        SPOKEN_FOR.append(_source(n))
        try:
            return super().run_node(n)
        finally:
            SPOKEN_FOR.pop()


def _source(node: Any) -> SourceLine | None:
    lines = _FILE.findall(node.meta.get("stack_trace") or "")
    if not lines:
        return None
    file, line = lines[-1]
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    scope = str(modules[-1][0]) if modules else ""
    return SourceLine(PurePath(file).name, int(line), re.sub(r"^L\['self'\]\.?|^L__self__\.?", "", scope))


RANDOM_TYPE = TensorType((2,), "i64")


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
    if not callable(fn) and not isinstance(fn, torch.export.ExportedProgram):
        raise TraceError(f"capture takes a function or a module, not a {type(fn).__name__}")
    check_call(fn, args, kwargs)
    if isinstance(fn, torch.export.ExportedProgram):
        from .capturing import as_module

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
    form: StepForm = PLAIN,
    **kwargs: Any,
) -> Captured:
    """Capture forward, backward and, with an optimizer or several, their steps.

    ``loss`` makes the loss of what the model returns, or a tuple or dict of the loss and whatever else is wanted;
    without it the model's output is the loss itself, or has it as ``.loss`` or ``["loss"]``.  The program returns what
    ``loss`` returns; without an optimizer it also leaves the gradients.

    >>> model = torch.nn.Linear(4, 2, device="meta")
    >>> step = capture_step(model, torch.zeros(3, 4), loss=lambda out: out.sum())
    >>> step.gradients
    {'weight': 1, 'bias': 2}
    """
    if not callable(model):
        raise TraceError(f"capture_step takes a model or a function, not a {type(model).__name__}")
    check_call(model, args, kwargs)
    return _Training(model, optimizer, loss, form).capture(args, kwargs)


class _Training:
    """What a training step is made of; it can be captured again and again, for other batches."""

    def __init__(self, model: Any, optimizer: Any, loss: Any, form: StepForm) -> None:
        self.model, self.optimizer, self.loss, self.form = model, optimizer, loss, form
        self.several = optimizers_of(optimizer)
        for one in self.several:
            _check_optimizer(one)
        if loss is not None and not callable(loss):
            raise TraceError(f"loss= takes a function of what the model returns, not {loss!r}", help=_LOSS)
        self.ledgers: dict[int, Ledger] = {}
        """What is known of optimizers' state that somebody keeps."""

    def capture(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        running: list[Session] = []
        form, several = self.form, self.several

        def step(*args: Any, **kwargs: Any) -> Any:
            result = self.result(*args, **kwargs)
            value = _scalar(_first(result))
            (value if form.accumulate == 1 else value / form.accumulate).backward()
            norm = running[-1].clip(form.clip_grad_norm) if form.has_norm else None
            for one in several:
                one.step()
            for one in several:
                one.zero_grad()
            result = _detached(result)
            return (result, norm) if form.has_norm else result

        single = isinstance(self.optimizer, torch.optim.Optimizer)
        more = [("optimizer" if single else f"optimizer.{i}", one) for i, one in enumerate(several)]
        made = _run(step, self.model, args, kwargs, True, more, self.ledgers, form, running)
        return replace(made, form=form, again=self.capture, evaluate=self.capture_evaluation)

    def result(self, *args: Any, **kwargs: Any) -> Any:
        """What the loss function makes of the model's output."""
        dtype = self.form.autocast
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            out = self.model(*args, **kwargs)
            return self.loss(out) if self.loss is not None else _loss(out)

    def capture_evaluation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        """The loss, without gradients, of a model in evaluation mode."""
        roots = find_roots(self.model, args, kwargs)
        modules = [root for _, root in roots if isinstance(root, torch.nn.Module)]
        modes = [(part, part.training) for module in modules for part in module.modules()]
        try:
            for module in modules:
                module.eval()
            return _run(self.result, self.model, args, kwargs, grad=False)
        finally:
            for part, mode in modes:
                part.training = mode


def _first(result: Any) -> Any:
    """The loss among what ``loss`` returns."""
    if isinstance(result, dict):
        return result.get("loss")
    return result[0] if isinstance(result, tuple | list) and result else result


def _detached(result: Any) -> Any:
    leaves, tree = tree_flatten(result)
    return tree_unflatten([x.detach() if isinstance(x, torch.Tensor) else x for x in leaves], tree)


def _check_optimizer(optimizer: Any) -> None:
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TraceError(
            f"optimizer= takes an optimizer, not {getattr(optimizer, '__name__', repr(optimizer))}",
            help="make one of the model's parameters: torch.optim.AdamW(model.parameters(), lr=1e-3)",
        )


_LOSS = (
    "write loss=lambda out: ...mean(), a function of the model's output alone: the loss, or a tuple that begins with "
    "it; targets are the model's arguments"
)


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
    form: StepForm = PLAIN,
    running: list[Session] | None = None,
) -> Captured:
    recorder = Recorder()
    session = Session([*find_roots(named, args, kwargs), *more], recorder, ledgers, form.accumulate > 1)
    if running is not None:
        running.append(session)
    mode = session.recording
    grad = grad and torch.is_grad_enabled()
    with session.swapped(), following(lambda: session.scopes), torch.set_grad_enabled(grad), quiet():
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
            recorder.move_last_before(UPDATE, NORM)
    watches = tuple(stepper.watch() for stepper in session.steppers)
    made = Captured(
        recorder.finish(_name(named), outputs, updates),
        in_spec,
        out_spec,
        tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in found),
        tuple(isinstance(leaf, torch.Tensor) for leaf in found),
        tuple(TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves),
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
    check_products(made.graph)
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
    if isinstance(leaf, PLAIN_TYPES):
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
        elif isinstance(grad, FakeTensor) and held is None:
            made[slot.name] = len(outputs)
            outputs.append(mode.value_of(grad))
    return made, tuple(cleared)


def _name(fn: Any) -> str:
    inner = getattr(fn, "func", fn)  # of a functools.partial
    name = getattr(inner, "__name__", type(inner).__name__)
    return "main" if name == "<lambda>" else str(name)
