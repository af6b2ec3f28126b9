"""PyTorch's operators as discovery sees them: found by name, described by their schemas, watched as they run.

Private parts of torch are touched here, in `names` and in `samples`, each with its reason: the registry's
list of names (for near misses), ATen's own overload resolution (to name the arguments of a call), and dispatch modes
(to see which ATen calls a Python function makes).

>>> torch_operator("torch.cross").short_name, torch_operator("aten.add_.Tensor").mutates
('cross', ('self',))
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from ...errors import DiscoverError
from ..operator import REQUIRED, Argument, Array, Operator, Role, Sample, Slot, slots_in
from .names import find_callable, name_of, packet_of
from .private import OpOverload, OpOverloadPacket, TorchDispatchMode, overload_for

INDEX_ARGUMENTS = frozenset({"index", "indices", "pivots", "LU_pivots", "target", "offsets", "sorter", "repeats"})
"""Arguments whose whole numbers are positions or classes, even in an operator of whole numbers."""

INDEX_OPERATORS = frozenset({"one_hot", "bincount"})
"""Operators whose only tensor holds classes."""

RANDOM_NAMES = re.compile(
    r"rand|dropout|bernoulli|multinomial|(^|_)poisson_?$|gumbel|rrelu|fractional_max|^normal|uniform"
)


class TorchLibrary:
    """Tensors of PyTorch on the CPU; they share memory with the arrays they are made from, where they can."""

    name = "torch"
    dtypes = (torch.float64, torch.int64, torch.complex128, torch.bool, torch.float32)
    """Values of arguments that name a dtype."""

    def tensor(self, array: Array) -> Any:
        array = np.asarray(array)  # a NumPy scalar is no array
        # from_numpy refuses negative strides, and warns about arrays that nobody may write to
        if not (array.flags.c_contiguous and array.flags.writeable):
            array = array.copy(order="C")
        try:
            return torch.from_numpy(array)
        except TypeError:
            raise DiscoverError(
                f"torch has no tensors of NumPy's {array.dtype}",
                help="give numbers: float64, int64, complex128 or bool",
            ) from None

    def array(self, tensor: Any) -> Array:
        try:
            return torch.Tensor.numpy(tensor)
        except (TypeError, RuntimeError):
            return self._from_elsewhere(tensor)

    def _from_elsewhere(self, tensor: Any) -> Array:
        """What a plain `numpy()` refuses: another device can be read; other layouts and dtypes cannot."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
            raise DiscoverError(
                "only dense tensors with values become arrays", rows=[("given", f"{tensor.layout} on {tensor.device}")]
            )
        try:
            found: Array = tensor.detach().resolve_conj().resolve_neg().cpu().numpy()
        except TypeError:
            raise DiscoverError(
                f"NumPy has no {str(tensor.dtype).removeprefix('torch.')}, and discovery judges in exact arithmetic",
                help="study the operator in float64; its sharding rule is the same",
            ) from None
        return found

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, torch.Tensor)

    def copy(self, tensor: Any) -> Any:
        return tensor.clone()


TORCH = TorchLibrary()


def torch_operator(target: object, name: str = "") -> Operator:
    """The operator of this name, ``torch.cross``, ``aten.add.Tensor`` or ``torch.ops.lib.op``; or of a function.

    >>> [argument.name for argument in torch_operator("torch.linalg.vector_norm").arguments]
    ['input', 'ord', 'dim', 'keepdim', 'dtype']
    """
    found = find_callable(target) if isinstance(target, str) else target
    if isinstance(found, OpOverload):
        operator = _overload_operator(found)
        # torch.ops.aten.x.y is what people paste; the shorter form is the one in reports
        return replace(operator, name=name) if name else operator
    if isinstance(found, type) or not callable(found):
        kind = "class" if isinstance(found, type) else type(found).__name__
        raise DiscoverError(
            f"{target!r} is a {kind}, not an operator",
            help="give a function of tensors, such as torch.nn.functional.relu or aten.relu.default",
        )
    if isinstance(found, OpOverloadPacket):
        names = _functional_overloads(found)
        if len(names) == 1:
            operator = _overload_operator(getattr(found, names[0]))
            return replace(operator, name=name) if name else operator
    if not name:
        name = target if isinstance(target, str) else name_of(found)
    return _function_operator(found, name.removeprefix("torch.ops.") if name.startswith("torch.ops.") else name)


def _functional_overloads(packet: Any) -> list[str]:
    """Overloads of tensors that write to no ``out``; those over named dims are a dead end of torch's."""
    found = []
    for name in packet.overloads():
        schema = getattr(packet, name)._schema
        if any(a.is_out for a in schema.arguments) or any("Dimname" in str(a.real_type) for a in schema.arguments):
            continue
        if any("Tensor" in str(a.real_type) for a in schema.arguments):
            found.append(name)
    return found


@cache
def _overload_operator(overload: Any) -> Operator:
    schema = overload._schema
    return Operator(
        name=str(overload),
        call=overload,
        library=TORCH,
        arguments=_schema_arguments(schema),
        mutates=_written(schema),
        random=torch.Tag.nondeterministic_seeded in overload.tags,
        overload=str(overload),
        facts={"packet": schema.name, "tags": tuple(tag.name for tag in overload.tags)},
    )


def _schema_arguments(schema: Any, first: str = "self") -> tuple[Argument, ...]:
    """From the ATen schema; `first` is what the Python function calls ``self``."""
    return tuple(
        Argument(
            name=first if a.name == "self" else a.name,
            tensor="Tensor" in str(a.real_type),
            default=a.default_value if a.has_default_value() else REQUIRED,
            keyword_only=a.kwarg_only,
            type=schema_type(str(a.real_type)),
        )
        for a in schema.arguments
    )


def schema_type(text: str) -> str:
    """A type as schemas write it.

    >>> schema_type("Optional[List[int]]"), schema_type("List[Optional[Tensor]]"), schema_type("number")
    ('int[]?', 'Tensor?[]', 'Scalar')
    """
    if found := re.fullmatch(r"(Optional|List)\[(.*)\]", text):
        return schema_type(found[2]) + ("?" if found[1] == "Optional" else "[]")
    return {"number": "Scalar", "SymInt": "int"}.get(text, text)


def _written(schema: Any, first: str = "self") -> tuple[str, ...]:
    return tuple(
        first if a.name == "self" else a.name
        for a in schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    )


def _function_operator(function: Callable[..., Any], name: str) -> Operator:
    packet = function if isinstance(function, OpOverloadPacket) else packet_of(name, function)
    overloads = [getattr(packet, o) for o in _functional_overloads(packet)] if packet is not None else []
    # the overload that says most about the arguments; `resolved` finds the one that a call takes
    overload = max(overloads, key=lambda o: _says(o._schema), default=None)
    first = _first_argument(function, name)
    arguments = _python_arguments(function)
    if arguments is None:
        arguments = _schema_arguments(overload._schema, first) if overload is not None else ()
    mutates: tuple[str, ...] = ()
    if overload is not None:
        mutates = _written(overload._schema, first)
    elif re.search(r"[^_]_$", name) and arguments:
        mutates = (arguments[0].name,)
    seeded = any(torch.Tag.nondeterministic_seeded in o.tags for o in overloads)
    return Operator(
        name=name,
        call=function,
        library=TORCH,
        arguments=arguments,
        mutates=mutates,
        random=seeded or RANDOM_NAMES.search(name.rpartition(".")[2]) is not None,
        facts={"packet": packet._qualified_op_name} if packet is not None else {},
    )


def _says(schema: Any) -> tuple[int, int]:
    return sum("Tensor" in str(a.real_type) for a in schema.arguments), len(schema.arguments)


def _first_argument(function: Any, name: str) -> str:
    """Python's functions call it ``input``, methods and overloads ``self``."""
    return "self" if isinstance(function, OpOverloadPacket) or ".Tensor." in name else "input"


def _python_arguments(function: Any) -> tuple[Argument, ...] | None:
    """From the signature; None where there is none that says anything (builtins; ``*args``)."""
    if isinstance(function, OpOverloadPacket):
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        behind = _dispatched(function)
        return _python_arguments(behind) if behind is not None else None
    return tuple(
        Argument(
            name=p.name,
            tensor=_takes_tensor(p),
            default=REQUIRED if p.default is p.empty else p.default,
            keyword_only=p.kind is p.KEYWORD_ONLY,
            type=_annotation_type(p.annotation),
        )
        for p in parameters
        if p.kind is not p.VAR_KEYWORD
    )


def _dispatched(function: Any) -> Any:
    """Torch's pooling functions choose, by a flag, between two functions of the same signature."""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    behind = [cell for cell in cells if inspect.isfunction(cell)]
    if len(behind) == 2 and len({tuple(inspect.signature(f).parameters) for f in behind}) == 1:
        return behind[0]
    return None


def _takes_tensor(parameter: inspect.Parameter) -> bool:
    if parameter.annotation is parameter.empty:
        return parameter.default is parameter.empty  # unsaid: what must be given is taken for a tensor
    return "Tensor" in str(parameter.annotation)


def _annotation_type(annotation: Any) -> str:
    """Python's annotation in the schemas' words, as far as discovery asks."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if text in ("", "Optional", "Union", "UnionType", "list", "tuple", "List", "Tuple"):
        text = str(annotation)
    text = re.sub(r"\b(typing|torch|builtins)\.", "", text).replace(" ", "")
    optional = "None" in text or text.startswith("Optional")
    words = set(re.findall(r"\w+", text)) - {"None", "Optional", "Union", "NoneType"}
    many = bool(words & {"list", "List", "tuple", "Tuple", "Sequence"}) or any(
        w.startswith("BroadcastingList") for w in words
    )
    for word in ("Tensor", "float", "int", "bool", "str", "dtype"):
        if word in words or (word == "int" and any(w.startswith("BroadcastingList") for w in words)):
            base = {"dtype": "ScalarType"}.get(word, word)
            return base + ("[]" if many else "") + ("?" if optional else "")
    return text


def resolved(operator: Operator, sample: Sample) -> Operator:
    """The operator with the arguments of the overload this call takes: ``max(x, dim)`` and ``max(x, y)`` differ."""
    if operator.overload or "packet" not in operator.facts or _python_arguments(operator.call) is not None:
        return operator
    packet = getattr(torch.ops.aten, operator.facts["packet"].removeprefix("aten::"))
    args, kwargs = sample.fill([TORCH.tensor(array) for array in sample.tensors])
    if "input" in kwargs:
        kwargs["self"] = kwargs.pop("input")
    try:
        name = overload_for(operator.facts["packet"], *args, **kwargs)
    except RuntimeError:  # nothing in ATen takes these: Python does something of its own first
        return operator
    schema = getattr(packet, name or "default")._schema
    first = _first_argument(operator.call, operator.name)
    return replace(operator, arguments=_schema_arguments(schema, first), mutates=_written(schema, first))


def roles_of(
    tensors: Mapping[int, Array] | tuple[Array, ...], names: tuple[str, ...], short_name: str
) -> tuple[Role, ...]:
    """Whole numbers beside numbers are positions; truth values are masks; all else is data."""
    arrays = tuple(tensors.values()) if isinstance(tensors, Mapping) else tensors
    beside_numbers = any(array.dtype.kind in "fc" for array in arrays)
    found: list[Role] = []
    for array, name in zip(arrays, names):
        if array.dtype.kind == "b":
            found.append("mask")
        elif array.dtype.kind in "iu" and (
            beside_numbers or name.partition("[")[0] in INDEX_ARGUMENTS or short_name in INDEX_OPERATORS
        ):
            found.append("index")
        else:
            found.append("data")
    return tuple(found)


def sample_of(operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], label: str = "") -> Sample:
    """A call with real tensors, as a sample; the arrays are copies."""
    tensors: list[Array] = []

    def slotted(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(np.array(TORCH.array(value), order="C"))
            return Slot(len(tensors) - 1)
        if isinstance(value, torch.Size):
            return tuple(value)
        if isinstance(value, (list, tuple)):
            items = [slotted(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    slotted_args, slotted_kwargs = tuple(map(slotted, args)), {k: slotted(v) for k, v in kwargs.items()}
    arrays = tuple(tensors)
    roles = roles_of(arrays, ("",) * len(arrays), operator.short_name)
    made = Sample(slotted_args, slotted_kwargs, arrays, roles, label)
    if "data" in roles and all(array.dtype.kind in "biu" for array in arrays):  # only then do names matter
        names = made.tensor_names(resolved(operator, made))
        made = replace(made, roles=roles_of(arrays, names, operator.short_name))
    return made


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every ATen call, with its tensors as they were before it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Operator, Sample]] = []
        self.tensors: list[tuple[int, ...]] = []
        """Of each call, which tensors it took."""
        self.results: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operator = _overload_operator(func)
        self.calls.append((operator, sample_of(operator, args, kwargs, label=operator.name)))
        self.tensors.append(tuple(id(t) for t in tensors_in((args, tuple(kwargs.values())))))
        result = func(*args, **kwargs)
        self.results.append(result)
        return result


def tensors_in(value: Any) -> list[Any]:
    """The tensors in a result or an argument, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [t for item in value for t in tensors_in(item)] if isinstance(value, (list, tuple)) else []


def call_sample(operator: Operator, sample: Sample) -> Any:
    """Make the call on fresh tensors, without gradients and without the library's warnings."""
    args, kwargs = sample.fill([TORCH.tensor(array.copy()) for array in sample.tensors])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return operator.call(*args, **kwargs)


def aten_calls(operator: Operator, sample: Sample, backward: bool = False) -> list[tuple[Operator, Sample]]:
    """The ATen calls that this call makes, in order, each with the values it saw; on request, its gradient's too."""
    return _recorded(operator, sample, backward)[0].calls


def _recorded(operator: Operator, sample: Sample, backward: bool = False) -> tuple[_Recorder, list[Any], Any]:
    given = [TORCH.tensor(array.copy()) for array in sample.tensors]
    for tensor in given:
        tensor.requires_grad_(backward and tensor.dtype.is_floating_point)
    args, kwargs = sample.fill(given)
    # no_grad, not inference mode: only the autograd key takes composite operators apart
    with warnings.catch_warnings(), torch.set_grad_enabled(backward), _Recorder() as recorder:
        warnings.simplefilter("ignore")
        result = operator.call(*args, **kwargs)
        smooth = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
        if smooth:
            torch.autograd.backward(smooth, [torch.ones_like(tensor) for tensor in smooth])
    return recorder, given, result


def study_of(operator: Operator, sample: Sample) -> tuple[Operator, Sample] | None:
    """The one ATen call that this call is, under the user's name; None if it is several, or more than a call."""
    recorder, given, result = _recorded(operator, sample)
    if len(recorder.calls) != 1 or set(recorder.tensors[0]) != {id(tensor) for tensor in given}:
        return None
    returned, made = tensors_in(result), tensors_in(recorder.results[0])
    if len(returned) != len(made) or not all(_same(a, b) for a, b in zip(returned, made)):
        return None
    overload, called = recorder.calls[0]
    # the caller knew better what its whole numbers are, where the tensors are the same ones in the same order
    if recorder.tensors[0] == tuple(id(tensor) for tensor in given):
        called = replace(called, roles=sample.roles)
    return replace(overload, name=operator.name), replace(called, label=sample.label)


def _same(a: Any, b: Any) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b)))


def is_random(operator: Operator, sample: Sample) -> bool:
    """Whether this call draws random numbers: attention is marked random, but without dropout it is not."""
    if not operator.random:
        return False
    drawn = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.default_generator.manual_seed(seed)  # manual_seed would also queue calls for absent devices
            drawn.append([TORCH.array(t) for t in tensors_in(call_sample(operator, sample))])
    return any(a.tobytes() != b.tobytes() for a, b in zip(*drawn))


def fits(operator: Operator, sample: Sample) -> bool:
    """Whether the names in the sample are the operator's: a sample for another overload is not."""
    names = {argument.name for argument in operator.arguments}
    required = {a.name for a in operator.arguments if a.default is REQUIRED}
    bound = sample.bound(operator)
    tensors = {a.name for a in operator.arguments if a.tensor}
    held = {name for name, value in bound.items() if any(True for _ in slots_in(value))}
    return set(bound) <= names and required <= set(bound) and held <= tensors


__all__ = [
    "TORCH",
    "TorchLibrary",
    "aten_calls",
    "call_sample",
    "fits",
    "is_random",
    "resolved",
    "roles_of",
    "sample_of",
    "study_of",
    "tensors_in",
    "torch_operator",
]
