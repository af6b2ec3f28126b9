"""`RecordingMode`: sees every ATen call below autograd, lets fake tensors answer shapes, and writes the call down.

Above it stands `NeutralForms` (`neutral`), which keeps calls from being taken apart in a device's own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ....errors import TraceError
from ....ir.core import CONSTRAINT
from ....ir.graph import Operand, SourceLine, TensorType
from ..dtypes import dtype_name, tensor_type
from ..private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    OpOverload,
    TorchDispatchMode,
    UnsupportedOperatorException,
    current_autograd_node,
    next_sequence_number,
    unset_fake_temporarily,
)
from ..random import STATE, fresh_state, redraw
from ..signatures import Signature, functional_form, signature, tensors_in
from .aliasing import Record, View, read, write
from .answers import Answers
from .half_types import as_computed
from .recorder import Recorder
from .sizes import WHOLE_SHAPE, grouped_channels
from .source import Scopes

_UNRECORDED = ("prim", "profiler", "debugprims")
_DEVICE = torch.ops.prim.device.default
_SAME_TENSOR = ("aten.detach", "aten.alias", "aten.lift_fresh", "aten.lift")
ATTENTION = ("aten.scaled_dot_product_attention", "shardwright.attention")
_MAY_DO_NOTHING = ("aten.view", "aten.expand", "aten.slice.Tensor", "aten._reshape_alias", "aten.squeeze.dim")


class Interrupted(RuntimeError):
    """Carries a `TraceError` through PyTorch, whose operators take a `TypeError` for "try the other operand"."""

    def __init__(self, error: TraceError) -> None:
        super().__init__(str(error))
        self.error = error


class RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True  # so that `torch.cond` and its like come here, to be refused in our words

    def __init__(self, recorder: Recorder, scopes: Scopes, fake: Callable[[Any], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.scopes = scopes
        self.fake = fake
        """Turns a real tensor into one without numbers."""
        self.consts: list[Any] = []
        self.random: int | None = None
        """The input with key and step, once something is drawn."""
        self._random_state = fresh_state()  # made here, where tensors still have numbers
        self._lines: dict[int, SourceLine | None] = {}
        self._known: dict[int, tuple[Any, Any]] = {}
        self.attended = False
        """Whether there was attention: how that lies in memory depends on the device, and with it what can be viewed.
        So a view that is none here is taken for one; where it runs it may copy."""
        self._answers = Answers()

    # What a tensor is to the program

    def track(self, tensor: Any, record: Record) -> None:
        tensor._shardwright_record = (self, record)

    def record_of(self, tensor: Any) -> Record:
        owner, record = getattr(tensor, "_shardwright_record", (None, None))
        if owner is not self or record is None:
            raise TraceError(
                "a tensor turned up that the capture has not seen being made",
                rows=self._place(),
                help="make tensors inside the captured function, or pass them as arguments",
            )
        return record  # type: ignore[no-any-return]

    def value_of(self, tensor: Any) -> int:
        """The value of an output; a real tensor becomes a constant."""
        if not isinstance(tensor, FakeTensor):
            tensor = self._constant(tensor)
        return read(self.recorder, self.record_of(tensor), None)

    def written(self, tensor: Any) -> bool:
        return self.record_of(tensor).memory.writes > 0

    def constrain(self, tensor: Any, spec: str) -> None:
        """From now on the tensor is a view of what it showed, of the same numbers."""
        whole, source, type = self.record_of(tensor), self._source(), tensor_type(tensor)
        value = self.recorder.node(CONSTRAINT, [read(self.recorder, whole, source)], [type], {"spec": spec},
                                   source=source)[0]  # fmt: skip
        self.track(tensor, Record(value, whole, View(CONSTRAINT, {"spec": spec}, type)))

    # One call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):  # autograd asks it of every gradient, more than once
            return torch.device("meta") if args[0].fake_mode.in_kernel_invocation else args[0].fake_device
        try:
            return self._dispatch(func, args, kwargs or {})
        except TraceError as error:
            for label, place in self._place():
                error.add(label, place)
            raise Interrupted(error) from None

    def _dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not isinstance(func, OpOverload):
            raise TraceError(
                f"{getattr(func, '__name__', func)} cannot be captured: it is no plain operator",
                rows=self._place(),
                help="write it with ordinary tensor operations: torch.where for a choice, Python's for a loop",
            )
        if func.namespace in _UNRECORDED:
            return func(*args, **kwargs)
        form = signature(func)
        if form.composite:
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        operands, attrs = form.split(args, kwargs)
        if form.name == "aten.lift_fresh" and not isinstance(operands[0], FakeTensor):
            made = self._call(func, args, kwargs)  # keeps the numbers of torch.tensor(...), for .item()
            self.track(made, Record(self._constant_value(operands[0])))
            return made
        if any(not isinstance(tensor, FakeTensor) for tensor in tensors_in(operands)):
            args, kwargs = self._without_real(args), {key: self._without_real(value) for key, value in kwargs.items()}
            operands, attrs = form.split(args, kwargs)
        return self._record(form, func, args, kwargs, operands, attrs)

    def _record(
        self, form: Signature, func: Any, args: Any, kwargs: Any, operands: list[Any], attrs: dict[str, Any]
    ) -> Any:
        source = self._source()
        if form.name in _SAME_TENSOR:
            made = self._call(func, args, kwargs)
            self.track(made, self.record_of(args[0]))
            return made
        if form.name == "aten.copy_":
            return self._copy(func, args, kwargs, source)
        if form.changes_metadata:
            return self._reshape_in_place(form, func, args, kwargs, source)
        if form.name == "aten.cat":  # an empty vector goes with tensors of any rank, and adds nothing to them
            args = ([tensor for tensor in args[0] if tensor.shape != (0,)] or args[0][:1], *args[1:])
            operands, attrs = form.split(args, kwargs)
        batch_norm = form.name == "aten.native_batch_norm" and args[3] is not None and args[5]
        if form.mutates or batch_norm:
            return self._mutate(form, func, args, kwargs, source, "running_" if batch_norm else None)
        if form.random:
            return self._redraw(form, func, args, kwargs, operands, attrs)
        if form.name.startswith("aten.as_strided") and (
            operands[0].storage_offset() or not operands[0].is_contiguous()
        ):
            raise TraceError(
                "as_strided of a tensor that is not contiguous depends on its strides",
                rows=[("op", form.name), *self._place(source)],
                help="call .contiguous() on it first, or use view, transpose, unfold or slicing",
            )
        reads = self._reads(operands, source)
        made = self._answers.ask(form, operands, attrs, kwargs, lambda: self._call(func, args, kwargs))
        if form.name == "aten._local_scalar_dense" and isinstance(made, bool | int | float):
            return made
        self.attended |= form.name in ATTENTION
        results = list(_results(made, form, self))
        if "output_mask" in attrs:  # fake tensors may give what devices do not, where it was not asked for
            results = [result if wanted else None for result, wanted in zip(results, attrs["output_mask"], strict=True)]
        types = [tensor_type(result) for result in results if result is not None]
        self._canonical(form, attrs, operands, types)
        if form.is_view:
            self._view(form, attrs, operands[0], reads, results, source)
            return made
        if len(types) != len(results):
            attrs["absent"] = tuple(i for i, result in enumerate(results) if result is None)
        values = iter(self.recorder.node(form.name, reads, types, attrs, source=source))
        for result in results:
            if result is not None:
                self.track(result, Record(next(values)))
        return made

    def _view(
        self,
        form: Signature,
        attrs: dict[str, Any],
        base: Any,
        reads: list[Operand],
        results: list[Any],
        source: SourceLine | None,
    ) -> None:
        whole = self.record_of(base)
        types = [tensor_type(result) for result in results]
        if form.name in _MAY_DO_NOTHING and types == [tensor_type(base)]:
            self.track(results[0], whole)
            return
        views = [(r, 0) for r in range(len(results))]
        values = self.recorder.node(form.name, reads, types, attrs, views, source)
        for r, (result, value, type) in enumerate(zip(results, values, types)):
            self.track(result, Record(value, whole, _part(form.name, attrs, types, r, type)))

    def _mutate(
        self, form: Signature, func: Any, args: Any, kwargs: Any, source: SourceLine | None, prefix: str | None
    ) -> Any:
        """Record the op that returns what this one writes, then write that."""
        pure = functional_form(form.name)
        if pure is None:
            raise TraceError(
                f"{form.name} changes a tensor in place and has no form that returns the result",
                rows=self._place(source),
                help="use the operation without the underscore or out=",
            )
        written = [
            parameter.name
            for parameter in form.parameters
            if (parameter.name.startswith(prefix) if prefix else parameter.written)
        ]
        args = (*args, *form.defaults(len(args), kwargs))  # the other form need not have the same ones
        operands, attrs = pure.split(args, {key: value for key, value in kwargs.items() if key not in written})
        if pure.random:
            self._check_generator(form, args, kwargs)
            (target,) = tensors_in([form.argument(args, kwargs, name) for name in written])
            with self:
                made = redraw(pure.name, self._draw, operands, attrs, target)
            write(self.recorder, self.record_of(target), read(self.recorder, self.record_of(made), source), source)
            return self._call(func, args, kwargs)
        reads = self._reads(operands, source)
        targets = list(tensors_in([form.argument(args, kwargs, name) for name in written]))
        made = self._call(func, args, kwargs)
        fresh = [] if made is None else list(_results(made, form, self))
        fresh = [result for result in fresh if all(result is not target for target in targets)]
        types = [tensor_type(tensor) for tensor in (*fresh, *targets)]
        self._canonical(pure, attrs, operands, types)
        values = self.recorder.node(pure.name, reads, types, attrs, source=source)
        for result, value in zip(fresh, values):
            self.track(result, Record(value))
        for target, value in zip(targets, values[len(fresh) :]):
            write(self.recorder, self.record_of(target), value, source)
        return made

    def _redraw(
        self, form: Signature, func: Any, args: Any, kwargs: Any, operands: Sequence[Any], attrs: dict[str, Any]
    ) -> Any:
        """A random op, in terms of numbers that every mesh draws alike."""
        self._check_generator(form, args, kwargs)
        like = self._call(func, args, kwargs)
        with self:
            return redraw(form.name, self._draw, operands, attrs, like[0] if isinstance(like, tuple) else like)

    def _check_generator(self, form: Signature, args: Any, kwargs: Any) -> None:
        if any(isinstance(item, torch.Generator) for item in (*args, *kwargs.values())):
            raise TraceError(
                f"{form.name} draws from a generator of its own, whose numbers a program in shards cannot have",
                rows=self._place(),
                help="leave generator= out: numbers then follow from torch.manual_seed and the step, on any mesh; or "
                "draw outside and pass them as an argument",
            )

    def _draw(self, kind: str, shape: Sequence[int], dtype: Any) -> Any:
        if self.random is None:
            self.consts.append(self._random_state)
            self.random = self.recorder.input(TensorType((2,), "i64"), STATE)
        made = self.fake(torch.empty(tuple(shape), dtype=dtype, device="meta"))
        attrs = {"draw": self.recorder.draw(), "size": tuple(shape)}
        source = self._source()
        value = self.recorder.node(f"random.{kind}", [self.random], [tensor_type(made)], attrs, source=source)[0]
        self.track(made, Record(value))
        return made

    def _copy(self, func: Any, args: Any, kwargs: Any, source: SourceLine | None) -> Any:
        """``target.copy_(x)`` makes the target show ``x``, cast and broadcast."""
        target, origin = args[0], args[1]
        value, type = read(self.recorder, self.record_of(origin), source), tensor_type(origin)
        wanted = tensor_type(target)
        if type.dtype != wanted.dtype:
            type = TensorType(type.shape, wanted.dtype)
            attrs = {"dtype": wanted.dtype, "non_blocking": False, "memory_format": None}
            value = self.recorder.node("aten._to_copy", [value], [type], attrs, source=source)[0]
        if type.shape != wanted.shape:
            attrs = {"size": wanted.shape, "implicit": False}
            value = self.recorder.node("aten.expand", [value], [wanted], attrs, [(0, 0)], source)[0]
        made = self._call(func, args, kwargs)
        write(self.recorder, self.record_of(target), value, source)
        return made

    def _reshape_in_place(self, form: Signature, func: Any, args: Any, kwargs: Any, source: SourceLine | None) -> Any:
        """``unsqueeze_`` and its like: the same tensor is from now on a view of what it was."""
        pure, target = functional_form(form.name), args[0]
        if pure is None or not pure.is_view:
            raise TraceError(
                f"{form.name} cannot be captured", rows=self._place(source), help="make a new tensor instead"
            )
        whole = self.record_of(target)
        operands, attrs = pure.split(args, kwargs)
        reads = self._reads(operands, source)
        made = self._call(func, args, kwargs)
        type = tensor_type(target)
        self._canonical(pure, attrs, operands, [type])
        value = self.recorder.node(pure.name, reads, [type], attrs, [(0, 0)], source)[0]
        self.track(target, Record(value, whole, View(pure.name, attrs, type)))
        return made

    # Parts of a call

    def _canonical(
        self, form: Signature, attrs: dict[str, Any], operands: Sequence[Any], types: Sequence[TensorType]
    ) -> None:
        """Spell equal calls equally, and say what only the run knows."""
        if form.name in WHOLE_SHAPE:
            attrs[WHOLE_SHAPE[form.name]] = types[0].shape
        elif form.name == "aten.slice.Tensor":
            size = operands[0].shape[attrs["dim"]]
            start, end, _ = slice(attrs["start"], attrs["end"]).indices(size)
            attrs["start"], attrs["end"] = start, max(start, end)
        channels = grouped_channels(form.name, attrs, operands)
        if channels is not None:
            attrs["channels"] = channels
        if form.functional and "dtype" in attrs:
            attrs["dtype"] = types[0].dtype
        dim = attrs.get("dim")
        if type(dim) is int and dim < 0 and form.is_view:
            attrs["dim"] = dim + (operands[0].dim() + 1 if form.name == "aten.unsqueeze" else max(operands[0].dim(), 1))

    def _reads(self, operands: Sequence[Any], source: SourceLine | None) -> list[Operand]:
        found: list[Operand] = []
        for operand in operands:
            if operand is None:
                found.append(None)
            elif isinstance(operand, list):
                found.append(tuple(read(self.recorder, self.record_of(item), source) for item in operand))
            else:
                found.append(read(self.recorder, self.record_of(operand), source))
        return found

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return as_computed(signature(func).name, args, func(*args, **kwargs))
        except (DataDependentOutputException, DynamicOutputShapeException):
            name = signature(func).name
            if name == "aten._local_scalar_dense":
                known = self._sure(args[0])
                if known is not None:
                    return known
                fact, help = (
                    "the program asks for the number in a tensor (.item(), float(x), if x:), which capture cannot know",
                    "keep it a tensor: torch.where for a choice; or pass the number as a plain argument",
                )
            else:
                fact = f"the shape of what {name} returns depends on the numbers in its operands"
                help = "use a form of fixed shape, such as torch.where(mask, x, 0) for x[mask]"
            raise TraceError(fact, rows=[("op", name), *self._place()], help=help) from None
        except UnsupportedOperatorException:
            name = signature(func).name
            raise TraceError(
                f"{name} does not say what shape it returns",
                rows=[("op", name), *self._place()],
                help="register that with torch.library.register_fake",
            ) from None
        except TraceError:
            raise
        except Exception as error:
            if self.attended and signature(func).name == "aten.view" and not args[0].is_contiguous():
                return self._call(func, (args[0].contiguous(), *args[1:]), kwargs)
            # PyTorch's own refusal, such as of shapes that do not fit; say where.
            error.add_note(
                f"while {signature(func).name} was captured" + "".join(f", at {at}" for _, at in self._place())
            )
            raise

    def _sure(self, tensor: Any) -> bool | None:
        """Whether a comparison holds that a draw from [0, 1) cannot help: ``torch.rand([]) < 0``, as a switched-off
        layer drop asks."""
        made = self.recorder.maker(self.record_of(tensor).value)
        if made is None or made.op not in ("aten.lt.Scalar", "aten.ge.Scalar"):
            return None
        drawn = self.recorder.maker(made.reads()[0])
        bound = made.attrs["other"]
        if drawn is None or drawn.op != "random.uniform" or 0 < bound < 1:
            return None
        return bool((bound >= 1) == (made.op == "aten.lt.Scalar"))

    def _source(self) -> SourceLine | None:
        """The user's line; in a backward pass that of the forward op whose gradient is being computed.

        The autograd node of a forward op is numbered just before the op runs, so the number leads back to the line.
        A recomputation (checkpointing) runs inside the backward pass too, but with gradients enabled.
        """
        node = current_autograd_node()
        if node is not None and not torch.is_grad_enabled():
            number = node._sequence_nr()
            if number in self._lines:
                return self._lines[number]
            return self.scopes.caller()
        source = self.scopes.caller()
        self._lines.setdefault(next_sequence_number() - 1, source)
        return source

    def _place(self, source: SourceLine | None = None) -> list[tuple[str, str]]:
        source = source or self._source()
        return [("at", str(source))] if source else []

    # Tensors that are no part of the program

    def _without_real(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._without_real(item) for item in value)
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            return self._constant(value)
        return value

    def _constant(self, tensor: Any) -> Any:
        """The same real tensor is one constant, however often it is used."""
        known = self._known.get(id(tensor))
        if known is None:
            if tensor.requires_grad and torch.is_grad_enabled():
                raise TraceError(
                    f"a {'parameter' if isinstance(tensor, torch.nn.Parameter) else 'tensor'} of shape "
                    f"{list(tensor.shape)} that requires gradients is used, but is no argument",
                    rows=self._place(),
                    help="pass the tensor, or the module that has it, as an argument of the captured function",
                )
            stand_in = self.fake(tensor)
            self.track(stand_in, Record(self._constant_value(tensor)))
            known = self._known[id(tensor)] = (tensor, stand_in)
        return known[1]

    def _constant_value(self, tensor: Any) -> int:
        """A number is part of the program, an array of them an input."""
        type = tensor_type(tensor)
        if tensor.dim() == 0 and tensor.device.type != "meta" and not tensor.is_complex():
            with unset_fake_temporarily():
                number = tensor.detach().item()
            attrs = {"size": (), "fill_value": number, "dtype": dtype_name(tensor.dtype)}
            return self.recorder.node("aten.full", [], [type], attrs, source=self._source())[0]
        self.consts.append(tensor)
        return self.recorder.input(type, f"const{len(self.consts) - 1}")


def _results(made: Any, form: Signature, mode: RecordingMode) -> Iterator[Any]:
    """What an op returns, lists opened; None where a gradient was not asked for."""
    if made is None or isinstance(made, torch.Tensor):
        if made is not None and made.layout != torch.strided:
            raise TraceError(
                f"{form.name} returns a sparse tensor",
                rows=[("op", form.name), *mode._place()],
                help="use dense tensors (sparse=False of an embedding)",
            )
        yield made
    elif isinstance(made, list | tuple):
        for item in made:
            yield from _results(item, form, mode)
    else:
        raise TraceError(
            f"{form.name} returns a {type(made).__name__}, which depends on numbers that capture cannot know",
            rows=[("op", form.name), *mode._place()],
            help="keep the decision in tensors, e.g. with torch.where",
        )


def _part(op: str, attrs: dict[str, Any], types: Sequence[TensorType], r: int, type: TensorType) -> View:
    """How to take one result of a view anew; splits return many, so each is a slice or a row."""
    dim = attrs.get("dim", 0)
    if op in ("aten.split.Tensor", "aten.split_with_sizes"):
        start = sum(before.shape[dim] for before in types[:r])
        piece = {"dim": dim, "start": start, "end": start + type.shape[dim], "step": 1}
        return View("aten.slice.Tensor", piece, type)
    if op == "aten.unbind.int":
        return View("aten.select.int", {"dim": dim, "index": r}, type)
    return View(op, attrs, type)
