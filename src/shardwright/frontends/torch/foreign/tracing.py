"""`RankMode`: sees every ATen call and every collective of one rank, lets it happen, and writes it down.

Unlike a capture for planning, a foreign program runs on real tensors where it has some, in lock-step with its other
ranks, so that whole numbers (routing, sizes of parts) are what they would be.  Below DTensor, FSDP2 and DDP there are
only plain tensors and collectives; what those wrappers mean is not asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch

from ....errors import TraceError
from ....ir.graph import Operand, SourceLine, TensorType
from ...ranks import COMMUNICATION
from ..compute import prepare
from ..dtypes import dtype_name, tensor_type
from ..private import (
    FakeTensor,
    OpOverload,
    TorchDispatchMode,
    current_autograd_node,
    next_sequence_number,
    unset_fake_temporarily,
)
from ..recording.answers import Answers
from ..recording.dispatch import Interrupted
from ..recording.recorder import Recorded, Recorder
from ..recording.sizes import WHOLE_SHAPE
from ..recording.source import Scopes, place_of
from ..signatures import Signature, functional_form, signature, tensors_in
from .attention import FUSED as ATTENTION
from .attention import fused, returned
from .collectives import CALLS, NAMESPACES, group_of
from .exchange import Call, Exchanges
from .memory import Memory, unwritten
from .optimizers import FUSED, each_of

_UNRECORDED = ("prim", "profiler", "debugprims")
_EMPTY = ("aten.empty", "aten.empty_strided", "aten.empty_like", "aten.new_empty", "aten.new_empty_strided")
_CHECKS = ("aten._assert_async", "aten._assert_scalar", "aten.sym_size", "aten.is_same_size")
MOST_CALLERS = 3
"""Lines that are kept of who called a collective."""
_DEVICE = torch.ops.prim.device.default
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


class RankMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True  # so that `torch.cond` and its like come here, to be refused in our words

    def __init__(self, rank: int, exchanges: Exchanges, scopes: Scopes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rank = rank
        self.exchanges = exchanges
        self.scopes = scopes
        self.recorder = Recorder()
        self.memory = Memory(self.recorder, self._unseen, lambda: self._latest)
        self.constants: dict[int, Any] = {}
        """Numbers of tensors that nobody has made, by value."""
        self.known: dict[int, Any] = {}
        """Whole numbers that were made from floats, by value: routing, as it was in this run."""
        self.recording = False
        self._latest: SourceLine | None = None
        """Where the op before stood: who puts tensors together from memory need not look."""
        self._lines: dict[int, SourceLine | None] = {}
        self._makers: dict[int, Recorded] = {}
        self._indexed = 0
        self._wholes: dict[int, Any] = {}
        self.answers: Answers | None = None
        """For programs without numbers: what calls return, on any rank."""
        self._awaited: list[tuple[Any, Callable[[], None]]] = []
        """Tensors that are being received, and what ends that."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and type(args[0]) is FakeTensor:  # asked for more often than all else
            return args[0].device
        if any(kind not in _PLAIN and issubclass(kind, torch.Tensor) for kind in types):
            return NotImplemented  # a wrapper, such as a DTensor: what it does with plain tensors comes here again
        try:
            return self._dispatch(func, args, kwargs or {})
        except TraceError as error:
            source = self._source()
            if source is not None and not any(label == "at" for label, _ in error.rows):
                error.add("at", str(source))
            raise Interrupted(error) from None

    def _dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not isinstance(func, OpOverload):
            raise TraceError(
                f"{getattr(func, '__name__', func)} cannot be followed: it is no plain operator",
                help="write it in plain tensor operations: an if or a loop of Python instead of torch.cond or a scan",
            )
        if func.namespace in _UNRECORDED:  # not all of these have a schema that can be asked for
            return func(*args, **kwargs)
        form = signature(func)
        if func.namespace in NAMESPACES and form.name in CALLS:
            with self:
                return CALLS[form.name](self._exchange, *args, **kwargs)
        if not self.recording or form.name in _CHECKS:
            if form.name in ATTENTION:
                return returned(form.name, fused(form.name, args, kwargs).compute())
            return self._answered(form, func, args, kwargs)
        if func.namespace in NAMESPACES:
            raise TraceError(
                f"{form.name} is a collective that is not known",
                help="call all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send or recv instead",
            )
        if self._awaited:
            self._receive([*tensors_in(args), *tensors_in(list(kwargs.values()))])
        if form.name in ATTENTION:
            return self._attention(form, args, kwargs)
        apart = each_of(form.name) or FUSED.get(form.name)
        if apart is not None:
            with self:
                return apart(*args, **kwargs)
        if form.composite:
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        return self._record(form, func, args, kwargs)

    def _record(self, form: Signature, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if form.name == "aten._local_scalar_dense":
            return self._number(func, args[0])
        if form.name in _EMPTY or form.name.rpartition(".")[0] in _EMPTY:
            made = self._answered(form, func, args, kwargs)
            self.memory.make(made, unwritten(self.recorder, tensor_type(made)))
            return made
        if form.random and form.split(args, kwargs)[1].get("dropout_p") != 0:
            raise TraceError(
                f"{form.name} draws random numbers, which differ between ranks and one device",
                help="switch dropout off (model.eval(), or p=0), and draw outside of what is proven",
            )
        if form.changes_metadata or form.name in ("aten.as_strided", "aten.set_.source_Tensor"):
            if form.name == "aten.as_strided":
                self.memory.value(args[0])
            return func(*args, **kwargs)  # the same memory, shown in another way
        if form.name == "aten.copy_":
            return self._copy(form, func, args, kwargs)
        statistics = form.name == "aten.native_batch_norm" and args[3] is not None and args[5]
        if form.mutates or statistics:  # it writes its running statistics, though its schema does not say so
            return self._mutate(form, func, args, kwargs, "running_" if statistics else None)
        operands, attrs = form.split(args, kwargs)
        reads = self._reads(operands)
        made = self._answered(form, func, args, kwargs, (operands, attrs))
        results = list(_results(made, form))
        if "output_mask" in attrs:
            results = [result if wanted else None for result, wanted in zip(results, attrs["output_mask"], strict=True)]
        here = [result for result in results if result is not None]
        if form.is_view and self._already_shown(here):
            return made
        values = self._node(form, reads, operands, attrs, results)
        for result, value in zip(here, values, strict=True):
            self.memory.make(result, value)
        self._keep_whole_numbers(operands, here, values)
        return made

    def _answered(
        self, form: Signature, func: Any, args: Any, kwargs: dict[str, Any], split: tuple[Any, Any] | None = None
    ) -> Any:
        """What a call returns; of equal ones without numbers, only the first asks."""
        if self.answers is None or form.composite:
            return func(*args, **kwargs)
        operands, attrs = form.split(args, kwargs) if split is None else split
        return self.answers.ask(form, operands, attrs, kwargs, lambda: func(*args, **kwargs))

    def _attention(self, form: Signature, args: Any, kwargs: Any) -> Any:
        call = fused(form.name, args, kwargs)
        with self.paused(), self:
            made = self._answered(form, lambda *args, **kwargs: call.compute(), args, kwargs)
        types = [tensor_type(x) for x in made]
        values = self.recorder.node(call.op, self._reads(call.operands), types, call.attrs, source=self._source())
        for result, value in zip(made, values):
            self.memory.make(result, value)
        return returned(form.name, made)

    def _already_shown(self, results: Sequence[Any]) -> bool:
        """Views that show what their memory is known to show."""
        return len(results) == 1 and self.memory.shows(results[0])

    def _node(
        self, form: Signature, reads: Sequence[Operand], operands: Sequence[Any], attrs: dict[str, Any],
        results: Sequence[Any],
    ) -> tuple[int, ...]:  # fmt: skip
        types = [tensor_type(result) for result in results if result is not None]
        if len(types) != len(results):
            attrs["absent"] = tuple(i for i, result in enumerate(results) if result is None)
        if form.name in WHOLE_SHAPE and types:
            attrs[WHOLE_SHAPE[form.name]] = types[0].shape
        elif form.name == "aten.slice.Tensor":
            size = operands[0].shape[attrs["dim"]]
            start, end, _ = slice(attrs["start"], attrs["end"]).indices(size)
            attrs["start"], attrs["end"] = start, max(start, end)
        if form.functional and "dtype" in attrs:
            attrs["dtype"] = types[0].dtype
        dim = attrs.get("dim")
        if type(dim) is int and dim < 0 and form.is_view:
            attrs["dim"] = dim + (operands[0].dim() + 1 if form.name == "aten.unsqueeze" else max(operands[0].dim(), 1))
        views = [(r, 0) for r in range(len(types))] if form.is_view else ()
        return self.recorder.node(form.name, reads, types, attrs, views, self._source())

    def _keep_whole_numbers(self, operands: Sequence[Any], results: Sequence[Any], values: Sequence[int]) -> None:
        """Places that follow from floats (the best experts, say) are those of this run."""
        if all(not x.is_floating_point() for x in tensors_in(operands)):
            return
        for result, value in zip(results, values):
            places = not result.is_floating_point() and not result.is_complex() and result.dtype is not torch.bool
            if places and not isinstance(result, FakeTensor):
                self.known[value] = np.array(result.detach().numpy(force=True))

    def _mutate(self, form: Signature, func: Any, args: Any, kwargs: dict[str, Any], prefix: str | None = None) -> Any:
        """Record the op that returns what this one writes, then write that."""
        pure = functional_form(form.name)
        if pure is None:
            raise TraceError(
                f"{form.name} changes a tensor in place and has no form that returns the result",
                help="call an operation that returns a new tensor, and copy_ it where it belongs",
            )
        written = [
            parameter.name
            for parameter in form.parameters
            if (parameter.name.startswith(prefix) if prefix else parameter.written)
        ]
        targets = list(tensors_in([form.argument(args, kwargs, name) for name in written]))
        args = (*args, *form.defaults(len(args), kwargs))
        operands, attrs = pure.split(args, {key: value for key, value in kwargs.items() if key not in written})
        if form.name in ("aten.zero_", "aten.fill_.Scalar"):  # whatever was there
            number = attrs.get("value", 0)
            values = self._filled(targets[0], number)
            self._answered(form, func, args, kwargs)
            self.memory.write(targets[0], values)
            return args[0]
        reads = self._reads(operands)
        made = self._answered(form, func, args, kwargs)
        fresh = [] if made is None else [r for r in _results(made, form) if all(r is not t for t in targets)]
        values_made = self._node(pure, reads, operands, attrs, [*fresh, *targets])
        for result, value in zip(fresh, values_made):
            self.memory.make(result, value)
        for target, value in zip(targets, values_made[len(fresh) :]):
            self.memory.write(target, value)
        self._keep_whole_numbers(operands, [*fresh, *targets], values_made)
        return made

    def _filled(self, like: Any, number: Any) -> int:
        type = tensor_type(like)
        attrs = {"size": type.shape, "fill_value": number, "dtype": type.dtype}
        return self.recorder.node("aten.full", [], [type], attrs, source=self._source())[0]

    def _copy(self, form: Signature, func: Any, args: Any, kwargs: Any) -> Any:
        target, origin = args[0], args[1]
        source = self._source()
        value, type, wanted = self.memory.value(origin), tensor_type(origin), tensor_type(target)
        if type.dtype != wanted.dtype:
            type = TensorType(type.shape, wanted.dtype)
            attrs = {"dtype": wanted.dtype, "non_blocking": False, "memory_format": None}
            value = self.recorder.node("aten._to_copy", [value], [type], attrs, source=source)[0]
        if type.shape != wanted.shape:
            attrs = {"size": wanted.shape, "implicit": False}
            value = self.recorder.node("aten.expand", [value], [wanted], attrs, [(0, 0)], source)[0]
        made = self._answered(form, func, args, kwargs)
        self.memory.write(target, value)
        return made

    def _number(self, func: Any, tensor: Any) -> Any:
        """A number that the program asks for: it may not follow from floats that are given."""
        if tensor.is_floating_point() and not self._is_constant(self.memory.value(tensor)):
            raise TraceError(
                "the program asks for the number in a tensor (.item(), float(x), if x:), which depends on its inputs",
                help="keep it a tensor; return losses and norms as tensors and read them afterwards",
            )
        if isinstance(tensor, FakeTensor):
            with unset_fake_temporarily():
                return self._whole(self.memory.value(tensor)).item()
        return func(tensor)

    def _whole(self, value: int) -> Any:
        """Whole numbers of a tensor without numbers, from what they follow from."""
        if value not in self._wholes:
            numbers = self.constants.get(value)
            if numbers is None:
                self._index()
                made = self._makers.get(value)
                if made is None or made.op.startswith((COMMUNICATION, "foreign.")):
                    raise TraceError(
                        "the program asks for a whole number that follows from a collective or from floats",
                        help="give the model numbers: build it on the CPU, at a small size",
                    )
                operands = [
                    None if o is None else [self._whole(v) for v in o] if isinstance(o, tuple) else self._whole(o)
                    for o in made.operands
                ]
                types = [self.recorder.types[v] for v in made.results]
                self._wholes.update(zip(made.results, prepare(made.op, made.attrs, types)(operands)))
            else:
                self._wholes[value] = torch.from_numpy(np.asarray(numbers).reshape(self.recorder.types[value].shape))
        return self._wholes[value]

    def _index(self) -> None:
        for node in self.recorder.nodes[self._indexed :]:
            self._makers.update(dict.fromkeys(node.results, node))
        self._indexed = len(self.recorder.nodes)

    def _is_constant(self, value: int) -> bool:
        """Whether a value follows from nothing that is given."""
        waiting, seen = [value], set()
        self._index()
        while waiting:
            found = waiting.pop()
            if found in seen or found in self.constants:
                continue
            seen.add(found)
            made = self._makers.get(found)
            if made is None or made.op.startswith((COMMUNICATION, "foreign.")):
                return False
            waiting += made.reads()
        return True

    def _reads(self, operands: Sequence[Any]) -> list[Operand]:
        return [
            None if operand is None
            else tuple(self.memory.value(item) for item in operand) if isinstance(operand, list)
            else self.memory.value(operand)
            for operand in operands
        ]  # fmt: skip

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While something is computed that is no part of the program."""
        before, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = before

    # -- collectives ------------------------------------------------------------------------------------------

    def _exchange(
        self, kind: str, group: Any, given: Sequence[Any], *, reduce: str = "", root: int = 0,
        back: Sequence[Any] | None = None, tag: int = 0,
    ) -> list[Any]:  # fmt: skip
        process_group = group_of(group)
        ranks = tuple(torch.distributed.get_process_group_ranks(process_group))
        source = self._source()
        root = ranks[root] if kind not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all") else 0
        attrs: dict[str, Any] = {"group": ranks, "reduce": reduce, "root": root, "tag": tag}
        if self.recording:
            attrs["callers"] = _callers()
        reads = [self.memory.value(x) for x in given] if self.recording else []
        if kind == "send":
            attrs["at"] = self.exchanges.send(self.rank, root, tag, given[0].clone())
            if self.recording:
                self.recorder.node(f"{COMMUNICATION}send", reads, [], attrs, source=source)
            return []
        if kind == "receive":
            assert back is not None
            self._await(back[0], root, tag, attrs, source)
            return []
        likes = None if back is None else tuple(back)
        call = Call(self.rank, kind, ranks, reduce, root, tuple(given), likes, source)
        name = process_group.group_name
        attrs["at"], made = self.exchanges.meet(call, name)
        attrs["channel"] = name
        if self.recording:
            types = [tensor_type(x) for x in made]
            values = self.recorder.node(f"{COMMUNICATION}{kind}", [tuple(reads)], types, attrs, source=source)
            for result, value in zip(made, values):
                self.memory.make(result, value)
        return made

    def _await(self, target: Any, sender: int, tag: int, attrs: dict[str, Any], source: SourceLine | None) -> None:
        """A receive ends where its tensor is next looked at."""
        attrs["at"] = number = self.exchanges.expect(sender, self.rank, tag)

        def finish() -> None:
            found = self.exchanges.receive(sender, self.rank, tag, number, target, source)
            with torch.no_grad():
                target.copy_(found)
            if self.recording:
                (value,) = self.recorder.node(f"{COMMUNICATION}receive", [], [tensor_type(target)], attrs, (), source)
                self.memory.write(target, value)

        self._awaited.append((target, finish))
        if not self.recording:
            self._receive([target])

    def _receive(self, tensors: Sequence[Any]) -> None:
        """End the receives of tensors that lie in the same memory as these, in the order of the calls."""
        places = {x.untyped_storage()._cdata for x in tensors}
        here = [item for item in self._awaited if item[0].untyped_storage()._cdata in places]
        self._awaited = [item for item in self._awaited if item[0].untyped_storage()._cdata not in places]
        for _, finish in here:
            finish()

    def receive_all(self) -> None:
        while self._awaited:
            self._awaited.pop(0)[1]()

    # -- tensors that nobody has made ---------------------------------------------------------------------------

    def input(self, tensor: Any, name: str) -> int:
        """A tensor that is given: from now on it shows an input of this name."""
        value = self.recorder.input(tensor_type(tensor), name)
        if self.memory.knows(tensor) or tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size():
            self.memory.write(tensor, value)
        else:
            self.memory.value(tensor)
            self.memory.write(tensor, value)
        return value

    def whole_numbers(self, value: int, numbers: Any) -> None:
        """The numbers of an input, for a program that asks for them."""
        if numbers is not None:
            self._wholes[value] = torch.from_numpy(np.array(numbers))

    def _unseen(self, tensor: Any) -> int:
        """A vector over the storage of a tensor that was there before: a constant, with its numbers."""
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        value = self.recorder.input(TensorType((elements,), dtype_name(tensor.dtype)), f"constant{len(self.constants)}")
        numbers = None
        if not isinstance(tensor, FakeTensor) and tensor.device.type != "meta":
            with self.paused(), unset_fake_temporarily():
                flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage(), 0, (elements,), (1,)).detach()
                flat = flat.double() if tensor.dtype is torch.bfloat16 else flat
                numbers = np.array(flat.numpy(force=True))
        self.constants[value] = numbers
        return value

    # -- where it stands -----------------------------------------------------------------------------------------

    def _source(self) -> SourceLine | None:
        self._latest = self._found_source()
        return self._latest

    def _found_source(self) -> SourceLine | None:
        """The user's line; in a backward pass that of the forward op, unless the user wrote the backward, too."""
        if current_autograd_node() is None or torch.is_grad_enabled():
            source = self.scopes.caller()
            self._lines.setdefault(next_sequence_number() - 1, source)
            return source
        if not _inside_backward():
            node = current_autograd_node()
            number = node._sequence_nr()
            if number in self._lines:
                return self._lines[number]
        return self.scopes.caller()


def _callers() -> tuple[str, ...]:
    """The user's lines that lead to this one, the nearest first, without the nearest."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(found) <= MOST_CALLERS:
        place = place_of(frame)
        if place is not None:
            found.append(f"{place[0]}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(found[1:])


def _inside_backward() -> bool:
    """Whether a function of the user's runs within the backward pass: his line stands before autograd's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            return False
        if place_of(frame) is not None:
            return True
        frame = frame.f_back
    return False


def _results(made: Any, form: Signature) -> Iterator[Any]:
    """What an op returns, lists opened; None where a gradient was not asked for."""
    if made is None or isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, list | tuple):
        for item in made:
            yield from _results(item, form)
    else:
        raise TraceError(
            f"{form.name} returns a {type(made).__name__}, which depends on numbers that are not known",
            help="keep it a tensor, or take the number from what does not depend on the inputs",
        )
