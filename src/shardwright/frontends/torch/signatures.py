"""`Signature`: an operator's schema, as what is an operand and what an attribute.

Every tensor parameter is one operand: a value, None where it is absent, a tuple for a list.  Every other parameter is
an attribute under its schema name, defaults filled in, so that equal calls are equal nodes.  Where a program runs is
not part of it: devices and pinning are dropped, and so is a layout, which is strided.
A number that stands where the schema has a tensor (``x * 2``) is an attribute, its operand None.  A list of optional
tensors (``x[:, i]``) is the tuple of those present, and the attribute ``<name>_present`` says which they are,
``<name>_masks``, where there are any, which of them are booleans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from ...errors import TraceError, UnknownOpError
from ...ir.core import CONSTRAINT
from .dtypes import dtype_name, torch_dtype
from .private import has_kernel

TENSOR, TENSORS, OPTIONAL_TENSORS, ATTRIBUTE, DTYPE, DROPPED = range(6)
_KINDS = {
    "Tensor": TENSOR, "Optional[Tensor]": TENSOR, "List[Tensor]": TENSORS, "Optional[List[Tensor]]": TENSORS,
    "List[Optional[Tensor]]": OPTIONAL_TENSORS, "ScalarType": DTYPE, "Optional[ScalarType]": DTYPE,
}  # fmt: skip
_DROPPED_TYPES = ("Device", "Layout", "Generator", "Optional[Device]", "Optional[Layout]", "Optional[Generator]")
_FORMATS = {
    str(format): format for format in (torch.contiguous_format, torch.preserve_format, torch.channels_last,
                                       torch.channels_last_3d)
}  # fmt: skip
MASKS = (torch.bool, torch.uint8)
"""What, as an index, says of each element whether it is meant."""
LEFT_OUT = frozenset({"sees"})
"""Attributes that stand in graphs only where they say something."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: int
    default: Any
    keyword: bool
    written: bool
    """The op changes this tensor in place."""
    aliased: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """What of a call is operand and what attribute; ``fills`` are parameters whose size is that of the result."""

    op: Any
    name: str
    parameters: tuple[Parameter, ...]
    is_view: bool
    mutates: bool
    random: bool
    composite: bool
    """Written in terms of other ops, for every device: those are recorded."""
    changes_metadata: bool
    """Such as ``unsqueeze_``: not the numbers change but how they are shown."""
    functional: bool
    """A creation op: without tensors, so that only the result tells its dtype."""

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Operands (tensors, None, lists of tensors) in schema order, and attributes."""
        operands: list[Any] = []
        attrs: dict[str, Any] = {}
        given = len(args)
        for i, parameter in enumerate(self.parameters):
            name = parameter.name
            value = args[i] if i < given and not parameter.keyword else kwargs.get(name, parameter.default)
            kind = parameter.kind
            if kind == TENSOR:
                if value is None or isinstance(value, torch.Tensor):
                    operands.append(value)
                else:
                    operands.append(None)
                    attrs[name] = _plain(value, self.name)
            elif kind == ATTRIBUTE and (value is not None or name not in LEFT_OUT):
                attrs[name] = value if type(value) in (int, bool, float, str) else _plain(value, self.name)
            elif kind == DTYPE:
                attrs[name] = None if value is None else dtype_name(value)
            elif kind == TENSORS:
                operands.append(None if value is None else list(value))
            elif kind == OPTIONAL_TENSORS:
                operands.append([item for item in value if item is not None])
                attrs[name + "_present"] = tuple(item is not None for item in value)
                masks = tuple(item is not None and item.dtype in MASKS for item in value)
                if any(masks):
                    attrs[name + "_masks"] = masks
        return operands, attrs

    def argument(self, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
        """What a call gives for a parameter."""
        for i, parameter in enumerate(self.parameters):
            if parameter.name == name:
                return args[i] if i < len(args) and not parameter.keyword else kwargs.get(name)
        raise AssertionError(name)

    def defaults(self, given: int, kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """What stands for the positional arguments after the given ones, up to the first that is named."""
        for parameter in self.parameters[given:]:
            if parameter.keyword or parameter.name in kwargs:
                return
            yield parameter.default

    def join(self, attrs: Mapping[str, Any], device: Any = None) -> Callable[[Sequence[Any]], Any]:
        """The inverse of `split`: a function that calls the op on a list of operands."""
        positional: list[tuple[int, Any]] = []
        keywords: list[tuple[str, int, Any]] = []
        place = 0
        for parameter in self.parameters:
            name, kind = parameter.name, parameter.kind
            source, fixed = -1, parameter.default
            if kind in (TENSOR, TENSORS, OPTIONAL_TENSORS):
                source, place = place, place + 1
                if kind == TENSOR and name in attrs:
                    source, fixed = -1, attrs[name]
                elif kind == OPTIONAL_TENSORS:
                    present = attrs[name + "_present"]
                    fixed = present
                    if not all(present):
                        source = -2 - source
            elif kind == DTYPE:
                text = attrs.get(name)
                fixed = None if text is None else torch_dtype(text)
            elif kind == ATTRIBUTE:
                fixed = attrs.get(name, parameter.default)
                fixed = _FORMATS.get(fixed, fixed) if isinstance(fixed, str) else fixed
                fixed = list(fixed) if isinstance(fixed, tuple) else fixed
            elif name == "device" and self.functional:
                fixed = device
            if parameter.keyword:
                keywords.append((name, source, fixed))
            else:
                positional.append((source, fixed))
        op = self.op

        def operand(operands: Sequence[Any], source: int, fixed: Any) -> Any:
            if source >= 0:
                return operands[source]
            if source == -1:
                return fixed
            items = iter(operands[-2 - source])
            return [next(items) if present else None for present in fixed]

        def call(operands: Sequence[Any]) -> Any:
            return op(
                *[operand(operands, source, fixed) for source, fixed in positional],
                **{name: operand(operands, source, fixed) for name, source, fixed in keywords},
            )

        return call


def tensors_in(operands: Any) -> Iterator[Any]:
    """All tensors among operands, lists opened."""
    for operand in operands:
        if isinstance(operand, torch.Tensor):
            yield operand
        elif isinstance(operand, list | tuple):
            yield from tensors_in(operand)


def _plain(value: Any, op: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(_plain(item, op) for item in value)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, torch.memory_format):
        return str(value)
    raise TraceError(
        f"{op} is called with a {type(value).__name__}, which is neither a tensor nor a plain number",
        help="pass sizes as ints and complex numbers as tensors",
    )


@lru_cache(maxsize=4096)
def signature(op: Any) -> Signature:
    schema = op._schema
    parameters = []
    for argument in schema.arguments:
        text = str(argument.real_type)
        kind = _KINDS.get(text, DROPPED if text in _DROPPED_TYPES or argument.name == "pin_memory" else ATTRIBUTE)
        alias = argument.alias_info
        default = argument.default_value if argument.has_default_value() else None
        if kind == DTYPE and isinstance(default, int):
            default = None
        written = alias is not None and alias.is_write
        parameters.append(Parameter(argument.name, kind, default, argument.kwarg_only, written, alias is not None))
    tensors = any(parameter.kind in (TENSOR, TENSORS, OPTIONAL_TENSORS) for parameter in parameters)
    return Signature(
        op,
        op_name(op),
        tuple(parameters),
        is_view=op.is_view,
        mutates=any(parameter.written for parameter in parameters),
        random=torch.Tag.nondeterministic_seeded in op.tags,
        composite=_has_kernel(op, "CompositeImplicitAutograd") and not _has_kernel(op, "CPU"),
        changes_metadata=torch.Tag.inplace_view in op.tags,
        functional=not tensors,
    )


def _has_kernel(op: Any, key: str) -> bool:
    return bool(has_kernel(op.name(), key))


_STAND_INS = {  # keeps the op whole while it is captured; what runs is PyTorch's own
    "shardwright.scaled_dot_product_attention": "aten.scaled_dot_product_attention",
    "shardwright.constraint": CONSTRAINT,
}


def op_name(op: Any) -> str:
    """
    >>> op_name(torch.ops.aten.mm.default), op_name(torch.ops.aten.add.Tensor)
    ('aten.mm', 'aten.add.Tensor')
    """
    name = op._schema.name.replace("::", ".")
    name = _STAND_INS.get(name, name)
    return name if op._overloadname == "default" else f"{name}.{op._overloadname}"


@lru_cache(maxsize=4096)
def find_op(name: str) -> Any:
    """The operator of a name.

    >>> find_op("aten.add.Tensor")
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    namespace, *rest = name.split(".")
    try:
        packet = getattr(getattr(torch.ops, namespace), rest[0])
        return getattr(packet, rest[1] if len(rest) > 1 else "default")
    except (AttributeError, IndexError, RuntimeError):
        raise UnknownOpError(
            f"PyTorch has no operator {name!r}",
            help="import the package that registers it, or add a kernel in shardwright.frontends.torch.kernels",
        ) from None


_OTHER_NAMES = {  # of forms that return what is written
    "aten.normal_": "aten.normal_functional",
    "aten.bernoulli_.float": "aten.bernoulli.p",
    "aten.bernoulli_.Tensor": "aten.bernoulli.Tensor",
    "aten.native_batch_norm": "aten._native_batch_norm_legit_functional",
    "aten._native_batch_norm_legit": "aten._native_batch_norm_legit_functional",
}


@lru_cache(maxsize=4096)
def functional_form(name: str) -> Signature | None:
    """The op that returns what another one writes, None if there is none.

    >>> functional_form("aten.add_.Tensor").name, functional_form("aten.mm.out").name
    ('aten.add.Tensor', 'aten.mm')
    """
    namespace, base, overload = [*name.split("."), "default"][:3]
    if overload.endswith("out"):
        return _without_out(find_op(name))
    stem = base.removesuffix("_")
    candidates = [_OTHER_NAMES.get(name), f"{namespace}.{stem}.{overload}", f"{namespace}.{base}_functional.{overload}"]
    for candidate in candidates:
        if candidate is None or candidate == name:
            continue
        try:
            found = signature(find_op(candidate))
        except (UnknownOpError, RuntimeError):  # a name of TorchScript's only
            continue
        if not found.mutates and _same_parameters(found, signature(find_op(name))):
            return found
    return _same_in_packet(find_op(name), f"{namespace}.{stem}")


def _same_parameters(one: Signature, other: Signature) -> bool:
    """Overloads of one name may differ in which operand is a number: ``pow_.Scalar`` is no ``pow.Scalar``."""
    kinds = [[(p.name, p.kind == ATTRIBUTE) for p in side.parameters if p.kind != DROPPED] for side in (one, other)]
    return kinds[0] == kinds[1] or len(kinds[0]) != len(kinds[1])


def _same_in_packet(op: Any, stem: str) -> Signature | None:
    """An overload of the op without underscore that has just the parameters of this one, by name and kind."""
    wanted = [(p.name, p.kind) for p in signature(op).parameters if p.kind != DROPPED]
    try:
        packet = find_op(stem + ".default").overloadpacket
    except UnknownOpError:
        namespace, base = stem.split(".")
        packet = getattr(getattr(torch.ops, namespace), base, None)
    for overload in packet.overloads() if packet is not None else ():
        try:
            found = signature(getattr(packet, overload))
        except RuntimeError:  # a name of TorchScript's only
            continue
        if not found.mutates and [(p.name, p.kind) for p in found.parameters if p.kind != DROPPED] == wanted:
            return found
    return None


def _without_out(op: Any) -> Signature | None:
    """The overload with the same parameters, but for those that are written."""
    wanted = [(parameter.name, parameter.kind) for parameter in signature(op).parameters if not parameter.written]
    packet = op.overloadpacket
    for overload in packet.overloads():
        try:
            found = signature(getattr(packet, overload))
        except RuntimeError:
            continue
        shared = [(parameter.name, parameter.kind) for parameter in found.parameters if parameter.kind != DROPPED]
        if not found.mutates and shared == [pair for pair in wanted if pair[1] != DROPPED]:
            return found
    return None
